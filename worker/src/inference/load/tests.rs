use super::*;
use varuna_checkpoint::Facts;
use varuna_model::presets::preset;
use varuna_plan::{Moments, StateId};

/// A checkpoint of a job, without its shards.
fn chosen(model: &Transformer, folder: &Path, job: &str) -> Chosen {
    let facts = Facts {
        job: job.to_owned(),
        model: serde_json::to_value(model).unwrap(),
        training_hash: String::new(),
        seed: 0,
        global_batch_size: 1,
        data_fingerprint: String::new(),
        moments: Moments::Adam,
    };
    let folder = folder.join(job);
    std::fs::create_dir_all(&folder).unwrap();
    Chosen {
        model: Model::Transformer(model.clone()),
        manifest: Manifest::new(StateId::INITIAL, model.layout(), facts, Vec::new()),
        location: Location::open(folder.to_str().unwrap()).unwrap(),
        runtime: tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap(),
    }
}

/// A tokenizer of bytes like `byte`, except that a space ends a document.
fn spaces_end(folder: &Path) {
    let mut files = Tokenizer::Byte.published(16).unwrap();
    let config = serde_json::json!({ "eos_token": "\u{120}" }).to_string();
    files.retain(|(name, _)| name != "tokenizer_config.json");
    files.push(("tokenizer_config.json".to_owned(), config.into_bytes()));
    std::fs::create_dir_all(folder).unwrap();
    for (name, content) in files {
        std::fs::write(folder.join(name), content).unwrap();
    }
}

#[test]
fn imported_tokenizer_is_preferred_to_a_guess() {
    let store = tempfile::tempdir().unwrap();
    let store = store.path();
    let model = Transformer {
        vocabulary_size: 257,
        ..preset("llama-tiny").unwrap()
    };
    spaces_end(&store.join("base/published"));
    let origin = serde_json::json!({
        "uri": store, "job": "base", "weightsOnly": true, "state": StateId::INITIAL,
    });
    let [base, tuned, other] = ["base", "tuned", "other"].map(|job| chosen(&model, store, job));
    std::fs::write(store.join("tuned/origin.json"), origin.to_string()).unwrap();
    let of = |tokenizer: Option<&str>, chosen: &Chosen| {
        let arguments = TokenizerArguments {
            tokenizer: tokenizer.map(str::to_owned),
            data: None,
        };
        arguments
            .of(chosen, &model)
            .map(|found| found.tokenizer.end_of_document())
    };
    assert_eq!(of(None, &base).unwrap(), u32::from(b' '));
    assert_eq!(of(None, &tuned).unwrap(), u32::from(b' '));
    assert_eq!(of(None, &other).unwrap(), 256, "the one that fits");
    assert_eq!(of(Some("byte"), &tuned).unwrap(), 256, "the one that is named");
    // An imported tokenizer that cannot be read is an error, and is not skipped.
    std::fs::write(store.join("base/published/tokenizer.json"), "{}").unwrap();
    let why = of(None, &tuned).unwrap_err();
    assert!(
        why.to_string().contains("--tokenizer and --data name another"),
        "{why}"
    );
    let why = format!("{why:#}");
    assert!(why.contains("cannot read published/tokenizer.json: "), "{why}");
}

#[test]
fn kept_tokenizer_needs_no_end_to_be_compared() {
    // As far as this is told, it names no token that ends a document, and cannot be opened.
    let json = b"{}";
    let kept = Kept(vec![(TOKENIZER.to_owned(), json.to_vec())]);
    let described = |tokenizer: &str, digest: Option<String>| Sidecar {
        tokenizer: tokenizer.to_owned(),
        tokenizer_files: None,
        tokenizer_sha256: digest,
        vocabulary: 257,
        end_of_document: 256,
        tokens: 1,
        documents: 1,
        sha256: String::new(),
    };
    let of_file = |digest: String| kept.made(&described(TOKENIZER, Some(digest))).unwrap();
    assert!(of_file(varuna_api::sha256(json)));
    assert!(!of_file("ab".to_owned()));
    let of_program = described("byte", None);
    assert!(kept.made(&of_program).is_err(), "it would have to be opened");
    assert!(Kept(Vec::new()).made(&of_program).unwrap(), "none is kept");
}

#[test]
fn any_end_token_of_the_import_ends_a_text() {
    let store = tempfile::tempdir().unwrap();
    let store = store.path();
    let model = Transformer {
        vocabulary_size: 257,
        ..preset("llama-tiny").unwrap()
    };
    let folder = store.join("base/published");
    spaces_end(&folder);
    let chosen = chosen(&model, store, "base");
    let write = |name: &str, content: &str| std::fs::write(folder.join(name), content).unwrap();
    let ends = |tokenizer: Option<&str>| -> Vec<u32> {
        let arguments = TokenizerArguments {
            tokenizer: tokenizer.map(str::to_owned),
            data: None,
        };
        let found = arguments.of(&chosen, &model).unwrap();
        found.ends.into_iter().collect()
    };
    assert_eq!(ends(None), [32], "that of the tokenizer");
    write("config.json", r#"{"eos_token_id": 10}"#);
    assert_eq!(ends(None), [10, 32]);
    write(
        "generation_config.json",
        r#"{"eos_token_id": [33, 10, 46, -1, "x"]}"#,
    );
    assert_eq!(ends(None), [10, 32, 33, 46]);
    assert_eq!(
        ends(Some(folder.to_str().unwrap())),
        [10, 32, 33, 46],
        "the same one by its path"
    );
    assert_eq!(ends(Some("byte")), [256], "another one");
    // Now the folder has no tokenizer that can be read.
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    assert_eq!(ends(Some("byte")), [10, 33, 46, 256]);
    write("config.json", "[");
    write("generation_config.json", "{}");
    assert_eq!(ends(None), [256]);
}

#[test]
fn named_tokenizer_needs_no_kept_files() {
    let store = tempfile::tempdir().unwrap();
    let model = Transformer {
        vocabulary_size: 257,
        ..preset("llama-tiny").unwrap()
    };
    let folder = store.path().join("base/published");
    spaces_end(&folder);
    // A folder that contains itself cannot be listed.
    std::os::unix::fs::symlink(&folder, folder.join("again")).unwrap();
    let chosen = chosen(&model, store.path(), "base");
    let of = |tokenizer: Option<&str>| {
        let arguments = TokenizerArguments {
            tokenizer: tokenizer.map(str::to_owned),
            data: None,
        };
        arguments.of(&chosen, &model)
    };
    assert_eq!(of(Some("byte")).unwrap().ends, BTreeSet::from([256]));
    assert!(of(None).is_err(), "it may have the one that is looked for");
}

#[test]
fn libtorch_is_asked_about_samples_that_take_little_memory() {
    let shape = |sequence_length| {
        let model = Transformer {
            sequence_length,
            ..preset("llama-tiny").unwrap()
        };
        asked(attention_shape(
            &model,
            Packing::default(),
            Precision::Fp32.into(),
        ))
    };
    assert_eq!(shape(256).sequence, 256);
    let long = shape(131_072);
    assert_eq!(
        long,
        AttentionShape {
            sequence: 4096,
            ..shape(256)
        }
    );
}
