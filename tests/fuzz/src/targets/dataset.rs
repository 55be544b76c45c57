//! Datasets: `.idx`, `.bin` and `.json`, and the texts that datasets are built from.

use super::{LITTLE, MORE, Seeds, join, take_part};
use crate::{Form, Target};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varuna_dataset::{Build, TokenDataset, Tokenizer, build, info};

pub(super) const INDEX: Target = Target {
    name: "dataset-index",
    what: ".idx, .json and .bin of a dataset",
    form: Form::Parts(3),
    words: &["MMIDIDX\0\0", "\"tokens\":", "\"vocabulary\":"],
    memory: LITTLE,
    seeds: index_seeds,
    run: run_index,
};

pub(super) const LINES: Target = Target {
    name: "dataset-lines",
    what: "lines of JSON that a dataset is built from",
    form: Form::Bytes,
    words: &["{\"text\":", "\n", "\\u0000", "\\ud800", "[[[[", "\"text\""],
    memory: MORE,
    seeds: lines_seeds,
    run: run_lines,
};

pub(super) const PARQUET: Target = Target {
    name: "dataset-parquet",
    what: "a Parquet file that a dataset is built from",
    form: Form::Bytes,
    words: &["PAR1", "text", "\0\0\0\0"],
    memory: PARQUET_MEMORY,
    seeds: parquet_seeds,
    run: run_parquet,
};

pub(super) const TOKENIZER: Target = Target {
    name: "tokenizer",
    what: "a tokenizer.json, its configuration, and a text for it",
    form: Form::Parts(3),
    words: &[
        "\"type\":",
        "\"Split\"",
        "\"ByteLevel\"",
        "\"Metaspace\"",
        "null",
        "\"eos_token\":",
    ],
    memory: MORE,
    seeds: tokenizer_seeds,
    run: run_tokenizer,
};

pub(super) const TEXT: Target = Target {
    name: "dataset-text",
    what: "texts, plain and compressed, that a dataset is built from",
    form: Form::Bytes,
    words: &[
        "\n\n",
        "\u{3000}",
        "\u{FEFF}",
        "<|endoftext|>",
        "\u{1f}\u{8b}\u{8}",
    ],
    memory: MORE,
    seeds: text_seeds,
    run: run_text,
};

/// The library panics at some files, in a separate thread. If backtraces are enabled, printing one takes some 70 MB.
const PARQUET_MEMORY: usize = 128 << 20;

const TOKENS: &str =
    "In the beginning God created the heaven and the earth.\nAnd the earth was without form.\n";

/// Builds a dataset in the folder.
fn build_in(folder: &Path, file: &str, content: &[u8]) -> Result<(PathBuf, u64), String> {
    let (input, output) = (folder.join(file), folder.join("data"));
    std::fs::write(&input, content).expect("a temporary file can be written");
    let request = Build::new(vec![input], output.clone(), Tokenizer::Byte);
    let built = build(&request, &mut |_| ()).map_err(|e| e.to_string())?;
    Ok((output, built[0].text_bytes))
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn index_seeds() -> Seeds {
    let folder = temporary();
    let (prefix, _) = build_in(folder.path(), "text.txt", TOKENS.as_bytes()).expect("a text is a dataset");
    let file = |extension| std::fs::read(prefix.with_extension(extension)).expect("it was written");
    let (idx, json, bin) = (file("idx"), file("json"), file("bin"));
    vec![
        ("with-description", join(&[&idx, &json, &bin])),
        ("without-description", join(&[&idx, b"", &bin])),
    ]
}

fn run_index(mut input: &[u8]) -> Result<String, String> {
    let folder = temporary();
    let prefix = folder.path().join("data");
    let write = |extension: &str, content: &[u8]| {
        let path = prefix.with_extension(extension);
        std::fs::write(path, content).expect("a temporary file can be written");
    };
    write("idx", take_part(&mut input));
    let json = take_part(&mut input);
    if !json.is_empty() {
        write("json", json);
    }
    write("bin", input);
    let place = folder.path().display().to_string();
    let said = |e: varuna_dataset::DataError| e.to_string().replace(&place, "");
    let summary = info(&prefix).map_err(said)?;
    assert_eq!(summary.tokens * summary.token_bytes as u64, input.len() as u64);
    let data = TokenDataset::open(&prefix, 4, 0.1, 7).map_err(said)?;
    let (mut tokens, mut positions) = ([0; 5], [0; 5]);
    let count_up = |positions: &[i64]| {
        let follows = |pair: &[i64]| pair[1] == 0 || pair[1] == pair[0] + 1;
        positions[0] == 0 && positions.windows(2).all(follows)
    };
    for sample in [0, data.training_len() - 1, data.training_len(), u64::MAX] {
        data.train(sample, &mut tokens)
            .expect("every sample of the training data can be read");
        data.train_positions(sample, &mut positions)
            .expect("the documents of every sample of the training data can be read");
        assert!(count_up(&positions), "{positions:?}");
    }
    for sample in 0..data.held_out_len().min(4) {
        data.held_out(sample, &mut tokens)
            .expect("every sample that is held out can be read");
        data.held_out_positions(sample, &mut positions)
            .expect("the documents of every sample that is held out can be read");
        assert!(count_up(&positions), "{positions:?}");
    }
    assert_eq!(
        data.fingerprint(),
        TokenDataset::open(&prefix, 4, 0.1, 7)
            .map_err(said)?
            .fingerprint()
    );
    Ok(format!(
        "{} documents of {} bytes",
        summary.documents, summary.token_bytes
    ))
}

fn text_seeds() -> Seeds {
    // The header of gzip, a last block that is not compressed, of two bytes, and their checksum and length.
    let gzip = [
        1, 0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 0, 0xFD, 0xFF, 0x49, 0x6E, 0xEC, 0xAA, 0x68, 0xCA, 2, 0,
        0, 0,
    ];
    let plain = [&[0], TOKENS.as_bytes()].concat();
    vec![("plain", plain), ("gzip", gzip.to_vec())]
}

/// The first byte says whether the rest is compressed.
fn run_text(input: &[u8]) -> Result<String, String> {
    let (first, content) = input.split_first().ok_or("empty")?;
    let folder = temporary();
    let file = if first & 1 == 0 { "text.txt" } else { "text.gz" };
    let place = folder.path().display().to_string();
    let built = build_in(folder.path(), file, content);
    let (prefix, length) = built.map_err(|e| e.replace(&place, ""))?;
    let summary = info(&prefix).expect("what was built can be opened");
    // One token for each byte, and an end-of-document token if the text is not empty.
    assert_eq!(summary.tokens, length + u64::from(length > 0));
    Ok(file.to_owned())
}

fn lines_seeds() -> Seeds {
    let lines = "{\"id\": 1, \"text\": \"In the beginning\\n\"}\n\n{\"text\": \"\", \"meta\": {\"text\": [1, null]}}\r\n";
    vec![("lines", lines.as_bytes().to_vec())]
}

fn run_lines(input: &[u8]) -> Result<String, String> {
    let folder = temporary();
    let place = folder.path().display().to_string();
    let built = build_in(folder.path(), "lines.jsonl", input);
    let (prefix, length) = built.map_err(|e| e.replace(&place, ""))?;
    let summary = info(&prefix).expect("what was built can be opened");
    // Each document that is not empty has an end-of-document token, and such documents are the sequences.
    assert_eq!(summary.tokens, length + summary.sequences);
    Ok(format!("{} documents", summary.documents.min(3)))
}

fn parquet_seeds() -> Seeds {
    let schema = "message rows { REQUIRED INT64 id; OPTIONAL BYTE_ARRAY text (UTF8); }";
    let seed = |codec| {
        let schema = parse_message_type(schema).expect("a schema");
        let properties = WriterProperties::builder().set_compression(codec).build();
        let mut file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))
            .expect("a file can be begun in memory");
        let mut group = file.next_row_group().expect("a group");
        let mut ids = group.next_column().expect("a column").expect("the first");
        let written = ids.typed::<Int64Type>().write_batch(&[1, 2], None, None);
        written.expect("two numbers");
        ids.close().expect("the first column ends");
        let mut texts = group.next_column().expect("a column").expect("the second");
        let values = [ByteArray::from("In the beginning"), ByteArray::from("And")];
        let written = texts
            .typed::<ByteArrayType>()
            .write_batch(&values, Some(&[1, 1]), None);
        written.expect("two texts");
        texts.close().expect("the second column ends");
        group.close().expect("the group ends");
        file.into_inner().expect("the file ends")
    };
    let zstd = Compression::ZSTD(ZstdLevel::default());
    vec![
        ("plain", seed(Compression::UNCOMPRESSED)),
        ("snappy", seed(Compression::SNAPPY)),
        ("zstd", seed(zstd)),
    ]
}

fn run_parquet(input: &[u8]) -> Result<String, String> {
    let folder = temporary();
    let place = folder.path().display().to_string();
    let built = build_in(folder.path(), "rows.parquet", input);
    let (prefix, length) = built.map_err(|e| e.replace(&place, ""))?;
    let summary = info(&prefix).expect("what was built can be opened");
    assert_eq!(summary.tokens, length + summary.sequences);
    Ok(format!("{} documents", summary.documents.min(3)))
}

fn tokenizer_seeds() -> Seeds {
    let published = Tokenizer::Byte.published(64).expect("the bytes have a table");
    let content = |name: &str| {
        let file = published.iter().find(|(file, _)| file == name);
        file.map(|(_, content)| content.clone()).expect("it is published")
    };
    let (bytes, config) = (content("tokenizer.json"), content("tokenizer_config.json"));
    let words = serde_json::json!({
        "version": "1.0", "added_tokens": [],
        "normalizer": { "type": "Sequence", "normalizers": [{ "type": "NFC" }, { "type": "Lowercase" }] },
        "pre_tokenizer": { "type": "Split", "pattern": { "Regex": "\\s+" }, "behavior": "Removed", "invert": false },
        "model": { "type": "WordLevel", "vocab": { "<unk>": 0, "in": 1, "</s>": 2 }, "unk_token": "<unk>" },
    });
    let pieces = serde_json::json!({
        "version": "1.0", "added_tokens": [],
        "pre_tokenizer": { "type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": false },
        "model": { "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["_in", -1.5], ["i", -2.0], ["n", -2.5]] },
    });
    vec![
        ("bytes", join(&[&bytes, &config, b"In the beginning"])),
        (
            "words",
            join(&[words.to_string().as_bytes(), b"", b"In the beginning"]),
        ),
        ("pieces", join(&[pieces.to_string().as_bytes(), b"{}", b"in i n"])),
    ]
}

fn run_tokenizer(mut input: &[u8]) -> Result<String, String> {
    let folder = temporary();
    let place = folder.path().display().to_string();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let content = take_part(&mut input);
        std::fs::write(folder.path().join(name), content).expect("a temporary file can be written");
    }
    let tokenizer = Tokenizer::open(&place, None).map_err(|e| e.to_string().replace(&place, ""))?;
    let text = folder.path().join("text.txt");
    std::fs::write(&text, input).expect("a temporary file can be written");
    let output = folder.path().join("data");
    let built = build(
        &Build::new(vec![text], output.clone(), tokenizer.clone()),
        &mut |_| (),
    );
    let built = built.map_err(|e| e.to_string().replace(&place, ""))?;
    let again = Tokenizer::open(&output.display().to_string(), None).expect("the dataset has its tokenizer");
    assert_eq!(again.end_of_document(), tokenizer.end_of_document());
    assert!(tokenizer.end_of_document() < tokenizer.vocabulary());
    Ok(format!("{} tokens", built[0].sidecar.tokens.min(3)))
}
