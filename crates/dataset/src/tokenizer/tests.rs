use super::{NoTokens, Tokenizer};

#[test]
fn gpt2_tokens_are_those_of_the_published_tokenizer() {
    let encoder = Tokenizer::Gpt2.encoder().unwrap();
    assert_eq!(encoder.encode(b"Hello world").unwrap(), [15496, 995]);
    assert_eq!(
        encoder.encode(b"In the beginning\n\n").unwrap(),
        [818, 262, 3726, 628]
    );
    assert!(
        encoder
            .encode(b"<|endoftext|>")
            .unwrap()
            .iter()
            .all(|t| *t < 50_256)
    );
    assert_eq!(encoder.encode(b"ok \xff"), Err(NoTokens::NotUtf8(3)));
    assert_eq!(Tokenizer::Gpt2.vocabulary(), 50_257);
}

#[test]
fn byte_tokens_are_the_bytes() {
    let encoder = Tokenizer::Byte.encoder().unwrap();
    assert_eq!(encoder.encode(&[0, 255, b'a']).unwrap(), [0, 255, 97]);
    assert_eq!(Tokenizer::Byte.vocabulary(), 257);
    let unknown = Tokenizer::open("bytes", None).unwrap_err().to_string();
    assert!(unknown.contains("bytes — byte, gpt2, or the path"), "{unknown}");
    let other_end = Tokenizer::open("byte", Some("</s>")).unwrap_err().to_string();
    assert!(
        other_end.contains("</s> — none with the tokenizer byte"),
        "{other_end}"
    );
}

#[test]
fn a_description_names_only_a_folder_beside_it() {
    let temp = tempfile::tempdir().unwrap();
    let dataset = temp.path().join("data");
    for folder in ["/etc", "../other", "a/b", "a/", "..", ".", ""] {
        let description = serde_json::json!({
            "tokenizer": "tokenizer.json", "tokenizerFiles": folder, "vocabulary": 3, "endOfDocument": 2, "tokens": 1, "documents": 1,
            "sha256": "",
        });
        std::fs::write(dataset.with_extension("json"), description.to_string()).unwrap();
        let why = Tokenizer::open(dataset.to_str().unwrap(), None).unwrap_err();
        let why = why.to_string();
        assert!(
            why.contains("tokenizerFiles") && why.contains("beside it"),
            "{why}"
        );
    }
}

/// The text of tokens that are decoded one by one.
fn text_of(encoder: &super::Encoder, tokens: &[u32]) -> Vec<u8> {
    let mut decoder = encoder.decoder();
    tokens.iter().flat_map(|token| decoder.push(*token)).collect()
}

#[test]
fn tokens_are_decoded_to_the_text_they_came_from() {
    let text = "In the beginning,\n\u{2014} \u{1F600} caf\u{e9}".as_bytes();
    for own in [Tokenizer::Byte, Tokenizer::Gpt2] {
        let folder = tempfile::tempdir().unwrap();
        publish(&own, folder.path());
        let read = Tokenizer::open(folder.path().to_str().unwrap(), None).unwrap();
        for tokenizer in [own, read] {
            let encoder = tokenizer.encoder().unwrap();
            let tokens = encoder.encode(text).unwrap();
            assert_eq!(text_of(&encoder, &tokens), text, "{tokenizer}");
            for none in [tokenizer.end_of_document(), tokenizer.vocabulary(), u32::MAX] {
                assert!(text_of(&encoder, &[none]).is_empty(), "{tokenizer} {none}");
            }
        }
    }
}

/// Writes the published files of a tokenizer into a folder.
fn publish(tokenizer: &Tokenizer, folder: &std::path::Path) {
    for (name, content) in tokenizer.published(1024).unwrap() {
        std::fs::write(folder.join(name), content).unwrap();
    }
}

#[test]
fn published_tokenizer_matches_hugging_face() {
    let text = "In the beginning  God created\n\n\tthe heaven's 12 345and\n  the earth.\nAnd so on\u{3000}\nx \u{e9}\u{1F600} <|endoftext|>\n";
    for own in [Tokenizer::Byte, Tokenizer::Gpt2] {
        let folder = tempfile::tempdir().unwrap();
        publish(&own, folder.path());
        let read = Tokenizer::open(folder.path().to_str().unwrap(), None).unwrap();
        assert_eq!(read.vocabulary(), own.vocabulary());
        assert_eq!(read.end_of_document(), own.end_of_document());
        let tokens = |tokenizer: &Tokenizer| tokenizer.encoder().unwrap().encode(text.as_bytes()).unwrap();
        assert_eq!(tokens(&read), tokens(&own), "{own}");
    }
}

/// A tokenizer of three words that adds a token before each text, with these additional files.
fn words(beside: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let special = |id: u32, content: &str| {
        serde_json::json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    };
    let begin = serde_json::json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
    let text = serde_json::json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let words = serde_json::json!({ "<unk>": 0, "good": 1, "day": 2, "<s>": 3, "</s>": 4, "<|im_end|>": 9 });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(3, "<s>"), special(4, "</s>"), special(9, "<|im_end|>")],
        "normalizer": { "type": "Lowercase" },
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": { "type": "TemplateProcessing", "single": [begin, text], "pair": [text, text],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [3], "tokens": ["<s>"] } } },
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "<unk>" },
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    for (name, content) in beside {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

fn open(folder: &tempfile::TempDir, end: Option<&str>) -> Result<Tokenizer, crate::DataError> {
    Tokenizer::open(folder.path().join("tokenizer.json").to_str().unwrap(), end)
}

#[test]
fn tokenizer_file_gives_tokens_without_control_tokens() {
    let tokenizer = open(&words(&[]), None).unwrap();
    // Ids may have gaps. The vocabulary is greater than all of them.
    assert_eq!(tokenizer.vocabulary(), 10);
    let encoder = tokenizer.encoder().unwrap();
    assert_eq!(encoder.encode(b"Good day").unwrap(), [3, 1, 2]);
    let spelled = encoder.encode(b"</s>").unwrap();
    assert!(!spelled.contains(&4), "{spelled:?}");
    assert_eq!(encoder.encode(b"a\xff"), Err(NoTokens::NotUtf8(1)));
}

#[test]
fn end_of_document_is_requested_named_or_well_known() {
    let by_name = (
        "tokenizer_config.json",
        r#"{"eos_token": {"content": "<|im_end|>"}}"#,
    );
    let by_id = ("config.json", r#"{"eos_token_id": [9, 4]}"#);
    for (beside, asked, want) in [
        (&[][..], None, 4),
        (&[by_name], None, 9),
        (&[by_id], None, 9),
        (&[("config.json", r#"{"eos_token_id": 3}"#)], None, 3),
        (
            &[("tokenizer_config.json", r#"{"eos_token": "<s>"}"#), by_id],
            None,
            3,
        ),
        // The named token is not in the vocabulary, or the file is invalid, so the next source is used.
        (&[("tokenizer_config.json", r#"{"eos_token": "<end>"}"#)], None, 4),
        (&[("tokenizer_config.json", "?")], None, 4),
        (&[by_name], Some("<s>"), 3),
    ] {
        let end = open(&words(beside), asked).unwrap().end_of_document();
        assert_eq!(end, want, "{beside:?}, {asked:?}");
    }
    let unknown = open(&words(&[]), Some("<end>")).unwrap_err().to_string();
    assert!(
        unknown.contains("end of document: <end> — a token of the tokenizer"),
        "{unknown}"
    );
}

#[test]
fn control_tokens_in_text_are_allowed_on_request() {
    let encoder = open(&words(&[]), None).unwrap().encoder().unwrap();
    let text = b"good <|im_end|> day";
    assert!(!encoder.encode(text).unwrap().contains(&9));
    assert_eq!(encoder.encode_with_control(text).unwrap(), [3, 1, 9, 2]);
    // The token before a text occurs only once, even if the text spells it.
    assert_eq!(encoder.encode_with_control(b"<s>good day").unwrap(), [3, 1, 2]);
    assert_eq!(encoder.encode_with_control(b"<s>").unwrap(), [3]);
    assert_eq!(encoder.encode_with_control(b"").unwrap(), [3]);
    assert_eq!(encoder.encode_with_control(b"a\xff"), Err(NoTokens::NotUtf8(1)));
    assert_eq!(encoder.control_token_in(b"a </s> <s>").as_deref(), Some("</s>"));
    for none in [&b"good day"[..], b"", b"<s>\xff"] {
        assert_eq!(encoder.control_token_in(none), None, "{none:?}");
    }
    let gpt2 = Tokenizer::Gpt2.encoder().unwrap();
    let text = b"Hello<|endoftext|> world";
    assert_eq!(gpt2.encode_with_control(text).unwrap(), [15496, 50256, 995]);
    assert_eq!(gpt2.control_token_in(text).as_deref(), Some("<|endoftext|>"));
    let bytes = Tokenizer::Byte.encoder().unwrap();
    assert_eq!(
        bytes.encode_with_control(b"</s>").unwrap(),
        bytes.encode(b"</s>").unwrap()
    );
    assert_eq!(bytes.control_token_in(b"<|endoftext|>"), None);
}

#[test]
fn begin_token_is_the_named_one_or_none() {
    for (named, begin) in [
        (r#"{"bos_token": "<s>", "eos_token": "</s>"}"#, Some(3)),
        (r#"{"bos_token": {"content": "good"}}"#, Some(1)),
        (r#"{"bos_token": null}"#, None),
        (r#"{"bos_token": "<begin>"}"#, None),
        ("?", None),
    ] {
        let found = open(&words(&[("tokenizer_config.json", named)]), None).unwrap();
        assert_eq!(found.begin_of_text(), begin, "{named}");
    }
    // Without such a file, the published files have no invented value.
    let found = open(&words(&[]), None).unwrap();
    assert_eq!(found.begin_of_text(), None);
    let published = found.published(16).unwrap();
    let config = published.iter().find(|(name, _)| name == "tokenizer_config.json");
    let config: serde_json::Value = serde_json::from_slice(&config.unwrap().1).unwrap();
    assert!(config["bos_token"].is_null(), "{config}");
    assert_eq!(config["eos_token"], "</s>");
    assert_eq!(Tokenizer::Gpt2.begin_of_text(), Some(50_256));
}

#[test]
fn a_tokenizer_came_from_the_file_that_it_was_read_from() {
    let folder = words(&[]);
    let json = std::fs::read(folder.path().join("tokenizer.json")).unwrap();
    let found = open(&folder, None).unwrap();
    assert!(found.was_made_from(&json) && !found.was_made_from(b"{}"));
    assert!(!Tokenizer::Byte.was_made_from(&json));
}

#[test]
fn a_tokenizer_made_a_dataset_of_its_digest_or_tokens() {
    let described = |tokenizer: &str, sha256: Option<&str>| crate::Sidecar {
        tokenizer: tokenizer.to_owned(),
        tokenizer_files: None,
        tokenizer_sha256: sha256.map(str::to_owned),
        vocabulary: 257,
        end_of_document: 256,
        tokens: 1,
        documents: 1,
        sha256: String::new(),
    };
    let folder = words(&[]);
    let of_file = open(&folder, None).unwrap();
    let json = std::fs::read(folder.path().join("tokenizer.json")).unwrap();
    for (digest, is_own) in [
        (of_file.sha256(), Some(true)),
        (Some("ab"), Some(false)),
        (None, None),
    ] {
        let description = described("tokenizer.json", digest);
        assert_eq!(description.is_of_tokenizer(&json), is_own, "{description:?}");
    }
    assert!(of_file.made(&described("tokenizer.json", None)).unwrap());
    assert!(!of_file.made(&described("byte", None)).unwrap());
    // The same tokenizer as a file, whose digest the description does not have.
    for (own, other) in [(Tokenizer::Byte, "gpt2"), (Tokenizer::Gpt2, "byte")] {
        let folder = tempfile::tempdir().unwrap();
        publish(&own, folder.path());
        let published = open(&folder, None).unwrap();
        assert!(published.made(&described(own.name(), None)).unwrap(), "{own}");
        assert!(!published.made(&described(other, None)).unwrap(), "{own}");
    }
}

#[test]
fn space_before_a_word_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let spaces = serde_json::json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true });
    let vocabulary =
        serde_json::json!({ "<unk>": 0, "\u{2581}good": 1, "\u{2581}day": 2, "</s>": 3, "s": 4 });
    let end = serde_json::json!({ "id": 3, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": spaces, "post_processor": null, "decoder": spaces,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>" },
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let encoder = open(&folder, None).unwrap().encoder().unwrap();
    let prompt = encoder.encode(b"good day").unwrap();
    assert_eq!(prompt, [1, 2]);
    let text = |before: &[u32], tokens: &[u32]| {
        let mut decoder = encoder.decoder_after(before);
        let text = tokens.iter().flat_map(|token| decoder.push(*token)).collect();
        String::from_utf8(text).unwrap()
    };
    assert_eq!(text(&prompt, &[2, 4, 1]), " days good");
    // A text begins without the space, also after the end of another text.
    for none in [&[] as &[u32], &[3]] {
        assert_eq!(text(none, &[2, 4, 1]), "days good", "{none:?}");
    }
    for own in [Tokenizer::Byte, Tokenizer::Gpt2] {
        let encoder = own.encoder().unwrap();
        let tokens = encoder.encode(b" world").unwrap();
        let mut decoder = encoder.decoder_after(&encoder.encode(b"Hello").unwrap());
        let text: Vec<u8> = tokens.iter().flat_map(|token| decoder.push(*token)).collect();
        assert_eq!(text, b" world", "{own}");
    }
}

#[test]
fn what_is_no_tokenizer_is_refused_by_name() {
    let folder = words(&[]);
    let path = folder.path().join("tokenizer.json");
    assert!(Tokenizer::check_file(&path).is_ok());
    // The library panics at the second one.
    for malformed in ["{}", "{\"decoder\":"] {
        std::fs::write(&path, malformed).unwrap();
        let error = open(&folder, None).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: tokenizer: "), "{error}");
        assert!(Tokenizer::check_file(&path).is_err());
    }
}

#[cfg(feature = "store")]
#[test]
fn tokenizer_files_may_be_in_a_store() {
    let folder = words(&[("tokenizer_config.json", r#"{"eos_token": "</s>"}"#)]);
    let url = format!("file://{}/tokenizer.json", folder.path().display());
    let of = |url: &str| Tokenizer::of_file(std::path::Path::new(url), &super::End::OfTokenizer);
    let found = of(&url).unwrap();
    assert_eq!((found.vocabulary(), found.end_of_document()), (10, 4));
    let missing = of(&format!("{url}-missing")).unwrap_err().to_string();
    assert!(missing.contains("-missing"), "{missing}");
}
