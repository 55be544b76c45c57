use super::batches::DOCUMENT_BYTES_MAX;
use super::{Build, Built, Format, Split, build, build_while};
use crate::tokenizer::Tokenizer;
use crate::{DataError, info};
use ::parquet::basic::Compression;
use ::parquet::data_type::{ByteArray, ByteArrayType};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder for inputs and outputs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn input(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    fn gz(&self, name: &str, content: &[u8]) -> PathBuf {
        let mut to = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(content).unwrap();
        self.input(name, to.finish().unwrap())
    }

    /// A Parquet file with a column of numbers and one of texts, in row groups of 3 rows.
    fn parquet(&self, name: &str, texts: &[Option<&str>]) -> PathBuf {
        self.parquet_in_groups(name, texts, 3)
    }

    /// The same with row groups of this many rows.
    fn parquet_in_groups(&self, name: &str, texts: &[Option<&str>], rows: usize) -> PathBuf {
        let schema = "message rows { REQUIRED INT64 id; OPTIONAL BYTE_ARRAY text (UTF8); }";
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
        let mut file = SerializedFileWriter::new(
            File::create(self.path(name)).unwrap(),
            Arc::new(parse_message_type(schema).unwrap()),
            Arc::new(properties.build()),
        )
        .unwrap();
        for rows in texts.chunks(rows) {
            let mut group = file.next_row_group().unwrap();
            let mut ids = group.next_column().unwrap().unwrap();
            let numbers: Vec<i64> = (0..).take(rows.len()).collect();
            ids.typed::<::parquet::data_type::Int64Type>()
                .write_batch(&numbers, None, None)
                .unwrap();
            ids.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let levels: Vec<i16> = rows.iter().map(|text| i16::from(text.is_some())).collect();
            let values: Vec<ByteArray> = rows.iter().flatten().map(|text| ByteArray::from(*text)).collect();
            column
                .typed::<ByteArrayType>()
                .write_batch(&values, Some(&levels), None)
                .unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        file.close().unwrap();
        self.path(name)
    }

    fn request(&self, inputs: Vec<PathBuf>) -> Build {
        Build::new(inputs, self.path("data"), Tokenizer::Byte)
    }

    fn build(&self, inputs: Vec<PathBuf>) -> Result<Vec<Built>, DataError> {
        build(&self.request(inputs), &mut |_| ())
    }

    /// The documents of a dataset of bytes, divided by its index.
    fn documents(&self, name: &str) -> Vec<String> {
        let bin = std::fs::read(self.path(&format!("{name}.bin"))).unwrap();
        let idx = std::fs::read(self.path(&format!("{name}.idx"))).unwrap();
        let number =
            |at: usize| usize::try_from(u64::from_le_bytes(idx[at..at + 8].try_into().unwrap())).unwrap();
        let (sequences, entries) = (number(18), number(26));
        let sizes: Vec<usize> = (0..sequences)
            .map(|i| i32::from_le_bytes(idx[34 + 4 * i..38 + 4 * i].try_into().unwrap()) as usize)
            .collect();
        let entry = |i: usize| number(34 + 12 * sequences + 8 * i);
        let tokens: Vec<u16> = bin.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        let mut from = 0;
        let mut next = |length: usize| {
            from += length;
            let text = tokens[from - length..from].iter();
            let text: String = text.map(|t| u8::try_from(*t).map_or('|', char::from)).collect();
            text
        };
        (1..entries)
            .map(|i| {
                sizes[entry(i - 1)..entry(i)]
                    .iter()
                    .map(|size| next(*size))
                    .collect()
            })
            .collect()
    }
}

#[test]
fn each_document_is_one_sequence_in_input_order() {
    let place = Place::new();
    let inputs = vec![
        place.input("b.txt", "a file\n"),
        place.input(
            "a.jsonl",
            "{\"text\": \"one\"}\r\n\n{\"id\": 1, \"text\": \"\"}\n{\"text\": \"two\"}",
        ),
        place.gz("c.json.gz", b"{\"text\": \"three\"}\n"),
        place.input("empty.txt", ""),
        place.parquet("d.parquet", &["four", "five", "six", "seven"].map(Some)),
        place.gz("e.gz", b"a compressed file"),
    ];
    let bytes: u64 = inputs.iter().map(|path| path.metadata().unwrap().len()).sum();
    let mut told = 0;
    let built = build(&place.request(inputs), &mut |bytes| told += bytes).unwrap();
    assert_eq!(
        place.documents("data"),
        [
            "a file\n|",
            "one|",
            "",
            "two|",
            "three|",
            "",
            "four|",
            "five|",
            "six|",
            "seven|",
            "a compressed file|"
        ]
    );
    assert_eq!(built[0].text_bytes, 7 + 3 + 3 + 5 + 4 + 4 + 3 + 5 + 17);
    assert!(told <= bytes && bytes - told < 100, "{told} of {bytes}");
    let read = info(&place.path("data")).unwrap();
    assert_eq!((read.documents, read.sequences), (11, 9));
    assert_eq!(read.sidecar.as_ref(), Some(&built[0].sidecar));
}

#[test]
fn a_build_without_any_token_is_refused_and_leaves_nothing() {
    let place = Place::new();
    let inputs = vec![
        place.input("empty.txt", ""),
        place.input("b.jsonl", "\n{\"text\": \"\"}\n"),
    ];
    let before = files(place.0.path());
    let mut request = place.request(inputs);
    for split in [None, Some("1,1,1".parse::<Split>().unwrap())] {
        request.split = split;
        let error = build(&request, &mut |_| ()).unwrap_err();
        assert!(matches!(&error, DataError::NoTokens(_)), "{error}");
        assert_eq!(files(place.0.path()), before);
    }
}

#[test]
fn a_text_of_several_pieces_is_one_sequence() {
    let place = Place::new();
    let text = "word and word\n".repeat(200_000);
    place.build(vec![place.input("long.txt", &text)]).unwrap();
    let read = info(&place.path("data")).unwrap();
    assert_eq!(
        (read.documents, read.sequences, read.tokens),
        (1, 1, text.len() as u64 + 1)
    );
}

#[test]
fn field_and_format_can_be_chosen() {
    let place = Place::new();
    let mut request = place.request(vec![
        place.input("lines.txt", "{\"body\": \"x\", \"text\": \"y\"}\n"),
    ]);
    request.format = Some("jsonl".parse().unwrap());
    request.field = "body".to_owned();
    build(&request, &mut |_| ()).unwrap();
    assert_eq!(place.documents("data"), ["x|"]);
    let names = ["text", "jsonl", "parquet"].map(|name| name.parse::<Format>().unwrap().to_string());
    assert_eq!(names, ["text", "jsonl", "parquet"]);
    assert!(
        "json"
            .parse::<Format>()
            .unwrap_err()
            .to_string()
            .contains("text, jsonl or parquet")
    );
}

/// All files in the folder, with their content.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                std::fs::read(entry.path()).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    #[test]
    fn the_bytes_are_the_same_for_every_number_of_threads(seed: u64, documents in 1u64..1200) {
        let place = Place::new();
        // Lengths from zero to hundreds of bytes; all together more than one batch.
        let length = |i: u64| ((seed ^ i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize * 3;
        let lines: String = (0..documents)
            .map(|i| format!("{{\"text\": \"{i} {}\"}}\n", "w ".repeat(length(i))))
            .collect();
        let inputs = vec![
            place.input("a.jsonl", &lines),
            place.input("b.txt", lines.repeat(2)),
            place.parquet("c.parquet", &["x", "y"].map(Some)),
        ];
        let built = |threads: usize| {
            let folder = place.path(&threads.to_string());
            let mut request = Build::new(inputs.clone(), folder.join("data"), Tokenizer::Byte);
            request.threads = threads;
            request.split = Some("3,1,1".parse().unwrap());
            build(&request, &mut |_| ()).unwrap();
            files(&folder)
        };
        let one = built(1);
        prop_assert_eq!(one.len(), 9);
        for threads in [2, 4, 7] {
            prop_assert!(one == built(threads), "{} threads", threads);
        }
    }
}

#[test]
fn a_split_divides_the_documents_and_each_text_goes_to_one_set() {
    let place = Place::new();
    let lines: String = (0..400)
        .map(|i| format!("{{\"text\": \"document {}\"}}\n", i % 200))
        .collect();
    let mut request = place.request(vec![place.input("a.jsonl", lines)]);
    request.split = Some("6,2,2".parse::<Split>().unwrap());
    let built = build(&request, &mut |_| ()).unwrap();
    let paths: Vec<_> = built.iter().map(|built| built.path.clone()).collect();
    assert_eq!(
        built.iter().map(|built| built.sidecar.documents).sum::<u64>(),
        400
    );
    assert_eq!(
        paths,
        ["data-train", "data-validation", "data-test"].map(|name| place.path(name))
    );
    let sets = ["data-train", "data-validation", "data-test"].map(|name| place.documents(name));
    assert_eq!(sets.iter().map(Vec::len).sum::<usize>(), 400);
    for (i, set) in sets.iter().enumerate() {
        assert!(set.len() > 30, "{sets:?}");
        let elsewhere = |text: &String| {
            sets.iter()
                .enumerate()
                .any(|(j, other)| i != j && other.contains(text))
        };
        assert!(!set.iter().any(elsewhere));
    }
    // A set with a share of 0 gets no dataset, and with sets there is none under the path itself.
    let other = Place::new();
    let mut request = other.request(vec![other.input("a.txt", "x")]);
    request.split = Some("9,0,1".parse::<Split>().unwrap());
    assert_eq!(build(&request, &mut |_| ()).unwrap().len(), 2);
    assert!(!other.path("data-validation.bin").exists() && !other.path("data.bin").exists());
}

#[test]
fn tokenizer_files_are_found_beside_the_dataset() {
    let place = Place::new();
    let folder = place.path("published");
    std::fs::create_dir(&folder).unwrap();
    for (name, content) in Tokenizer::Gpt2.published(64).unwrap() {
        std::fs::write(folder.join(name), content).unwrap();
    }
    let given = Tokenizer::open(folder.to_str().unwrap(), None).unwrap();
    let mut request = place.request(vec![place.input("a.txt", "Hello world")]);
    request.tokenizer = given.clone();
    request.split = Some("1,0,0".parse::<Split>().unwrap());
    let built = build(&request, &mut |_| ()).unwrap();
    let Built { path, sidecar, .. } = &built[0];
    assert_eq!(
        (sidecar.tokenizer.as_str(), sidecar.tokens),
        ("tokenizer.json", 3)
    );
    std::fs::remove_dir_all(&folder).unwrap();
    let found = Tokenizer::open(path.to_str().unwrap(), None).unwrap();
    assert_eq!(found.published(64).unwrap(), given.published(64).unwrap());
    assert_eq!(found.end_of_document(), 50_256);
    // The dataset refuses another tokenizer in its place.
    let json = place.path("data.tokenizer/tokenizer.json");
    let text = std::fs::read_to_string(&json).unwrap();
    std::fs::write(&json, text + " ").unwrap();
    let error = Tokenizer::open(path.to_str().unwrap(), None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("SHA-256"), "{error}");
    // It is not overwritten either, unless that is requested.
    let error = build(
        &Build {
            split: None,
            ..request.clone()
        },
        &mut |_| (),
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("data.tokenizer: it already exists"), "{error}");
    request.overwrite = true;
    build(&request, &mut |_| ()).unwrap();
    assert!(Tokenizer::open(path.to_str().unwrap(), None).is_ok());
}

#[test]
fn the_tokenizer_of_a_jobs_data_is_that_of_all_its_datasets() {
    let place = Place::new();
    let folder = place.path("published");
    std::fs::create_dir(&folder).unwrap();
    for (name, content) in Tokenizer::Byte.published(64).unwrap() {
        std::fs::write(folder.join(name), content).unwrap();
    }
    let of_file = Tokenizer::open(folder.to_str().unwrap(), None).unwrap();
    let made = |name: &str, tokenizer: &Tokenizer| {
        let mut request = place.request(vec![place.input("a.txt", "Hello world")]);
        (request.output, request.tokenizer) = (place.path(name), tokenizer.clone());
        build(&request, &mut |_| ()).unwrap();
        name.to_owned()
    };
    let (own, again) = (made("own", &of_file), made("again", &of_file));
    let (byte, foreign) = (made("byte", &Tokenizer::Byte), made("foreign", &of_file));
    std::fs::remove_file(place.path("foreign.json")).unwrap();
    let of = |names: &[&String]| {
        let source = |name: &&String| varuna_api::DataSource {
            path: place.path(name).to_str().unwrap().to_owned(),
            weight: 1.0,
        };
        let data = varuna_api::Data {
            train: names.iter().map(source).collect(),
            held_out: varuna_api::HeldOut::Fraction(0.0),
        };
        Tokenizer::of_data(&data).unwrap()
    };
    let found = of(&[&own, &again]).unwrap();
    let kept = found.kept_with_model().unwrap();
    let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["tokenizer.json", "tokenizer_config.json", "config.json"]);
    assert_eq!(
        String::from_utf8(kept[2].1.clone()).unwrap(),
        r#"{"bos_token_id":256,"eos_token_id":256}"#
    );
    assert!(of(&[&own, &byte]).is_none(), "two tokenizers");
    assert!(of(&[&own, &foreign]).is_none(), "nobody knows that of the second");
    // This tokenizer is part of the program, and is found by the size of a model's vocabulary.
    assert!(of(&[&byte]).unwrap().kept_with_model().is_none());
}

#[test]
fn error_names_file_and_line_and_leaves_nothing() {
    let good = "{\"text\": \"a\"}\n".repeat(70_000);
    for threads in [1, 4] {
        let place = Place::new();
        let lines = place.input("bad.jsonl", format!("{good}\n{{\"text\": 1}}\n{good}{{}}\n"));
        let check = |input: PathBuf, tokenizer: Tokenizer, want: &str| {
            let mut request = place.request(vec![input]);
            (request.threads, request.tokenizer) = (threads, tokenizer);
            let error = build(&request, &mut |_| ()).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
            let left: Vec<String> = files(place.0.path()).into_iter().map(|(name, _)| name).collect();
            assert!(left.iter().all(|name| !name.starts_with("data")), "{left:?}");
        };
        // The first of two errors.
        let byte = || Tokenizer::Byte;
        check(lines, byte(), "bad.jsonl: line: 70002: invalid type: integer `1`");
        let nulls = ["a", "b", "c", "d"]
            .map(Some)
            .into_iter()
            .chain([None, Some("e")]);
        let nulls = place.parquet("nulls.parquet", &nulls.collect::<Vec<_>>());
        check(nulls, byte(), "nulls.parquet: row: 5, whose text is null");
        check(
            place.input("no.parquet", "PAR1 no"),
            byte(),
            "no.parquet: Parquet: ",
        );
        check(
            place.input("latin.txt", b"ab\xff"),
            Tokenizer::Gpt2,
            "latin.txt: byte: 2",
        );
        check(place.input("cut.gz", b"\x1f\x8b\x08"), byte(), "cannot read");
        check(place.path("missing.txt"), byte(), "missing.txt");
        let mut request = place.request(vec![place.parquet("a.parquet", &[Some("a")])]);
        for (field, want) in [
            ("body", "column: no body — one of id, text"),
            ("id", "column: id, which is INT64"),
        ] {
            request.field = field.to_owned();
            let error = build(&request, &mut |_| ()).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}

#[test]
fn parquet_rows_are_read_in_order() {
    let place = Place::new();
    let texts: Vec<String> = (0..100).map(|row| format!("row {row}")).collect();
    let rows: Vec<Option<&str>> = texts.iter().map(|text| Some(text.as_str())).collect();
    let input = place.parquet_in_groups("a.parquet", &rows, 70);
    place.build(vec![input]).unwrap();
    let expected: Vec<String> = texts.iter().map(|text| format!("{text}|")).collect();
    assert_eq!(place.documents("data"), expected);

    let mut with_null = rows.clone();
    with_null[40] = None;
    let long = "x".repeat(DOCUMENT_BYTES_MAX + 1);
    let mut with_long = rows;
    with_long[41] = Some(long.as_str());
    for (name, rows, want) in [
        ("null.parquet", with_null, "row: 41, whose text is null"),
        (
            "long.parquet",
            with_long,
            "row: 42, whose text has 33554433 bytes — rows with",
        ),
    ] {
        let input = place.parquet_in_groups(name, &rows, 70);
        let mut request = place.request(vec![input]);
        request.overwrite = true;
        let error = build(&request, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn a_byte_order_mark_before_a_text_is_no_part_of_it() {
    let place = Place::new();
    let inputs = vec![
        place.input("a.txt", "\u{feff}one"),
        place.input("b.jsonl", "\u{feff}{\"text\": \"two\"}\n{\"text\": \"three\"}\n"),
        place.gz("c.txt.gz", "\u{feff}four".as_bytes()),
        place.input("empty.txt", "\u{feff}"),
        place.input("short.txt", "ab"),
    ];
    let built = place.build(inputs).unwrap();
    assert_eq!(
        place.documents("data"),
        ["one|", "two|", "three|", "four|", "", "ab|"]
    );
    assert_eq!(built[0].text_bytes, 3 + 3 + 5 + 4 + 2);
}

#[test]
fn files_that_are_no_texts_are_refused_with_what_to_do() {
    let place = Place::new();
    let refused = |input: PathBuf, format: Option<Format>, wants: &[&str]| {
        let mut request = place.request(vec![input]);
        request.format = format;
        let error = build(&request, &mut |_| ()).unwrap_err().to_string();
        for want in wants {
            assert!(error.contains(want), "{want}: {error}");
        }
    };
    for (name, content, wants) in [
        (
            "a.jsonl.zst",
            &b"\x28\xb5\x2f\xfd\x04\x00"[..],
            ["a.jsonl.zst: format: Zstandard — ", "decompressed"],
        ),
        ("a.txt.bz2", b"BZh91AY&SY", ["format: bzip2", "decompressed"]),
        ("a.xz", b"\xfd7zXZ\x00", ["format: xz", "decompressed"]),
        ("a.zip", b"PK\x03\x04\x14\x00", ["a zip archive", "in it"]),
        ("a.txt", b"\x1f\x8b\x08\x00", ["format: gzip", ".gz"]),
        ("b.txt", b"ARROW1\x00\x00", ["an Arrow file", "as one of these"]),
        ("c.txt", b"PAR1\x15\x04", ["a Parquet file", "--format parquet"]),
        ("d.jsonl", b"PAR1\x15\x04", ["a Parquet file", "--format parquet"]),
        ("a.csv", b"id,text\n1,one\n", ["a table (.csv)", "--format text"]),
        ("a.TSV", b"id\ttext\n", ["a table (.tsv)", "--format text"]),
    ] {
        refused(place.input(name, content), None, &wants);
    }
    refused(place.gz("a.csv.gz", b"id,text\n"), None, &["a table (.csv)"]);
    // No line of JSON begins with these bytes.
    let lines = place.input("lines.zst", b"\x28\xb5\x2f\xfd\x04\x00");
    refused(lines, Some(Format::JsonLines), &["format: Zstandard"]);

    // With an explicit format of text, the files are used as they are.
    let mut request = place.request(vec![
        place.input("a.csv", "id\n"),
        place.input("a.zip", "PK\x03\x04"),
    ]);
    request.format = Some(Format::Text);
    build(&request, &mut |_| ()).unwrap();
    assert_eq!(place.documents("data"), ["id\n|", "PK\u{3}\u{4}|"]);
}

#[test]
fn store_urls_are_refused_without_creating_folders() {
    let place = Place::new();
    let mut request = place.request(vec![place.input("a.txt", "one")]);
    request.output = PathBuf::from("s3://bucket/web");
    let error = build(&request, &mut |_| ()).unwrap_err().to_string();
    assert!(
        error.starts_with("output: s3://bucket/web — a path of this machine") && error.contains("copied"),
        "{error}"
    );
    assert!(!Path::new("s3:").exists());
    let request = place.request(vec![place.path("a.txt"), PathBuf::from("gs://bucket/b.jsonl")]);
    let error = build(&request, &mut |_| ()).unwrap_err().to_string();
    assert!(
        error.starts_with("input: gs://bucket/b.jsonl — a path of this machine"),
        "{error}"
    );
}

#[test]
fn a_prefix_that_no_job_can_name_is_refused() {
    let place = Place::new();
    let mut request = place.request(vec![place.input("a.txt", "one")]);
    for (output, allowed) in [
        ("out/x.bin", "the path without .bin or .idx"),
        ("out/x.idx", "the path without .bin or .idx"),
        ("out/", "ends with the name of the dataset"),
        ("out/.", "ends with the name of the dataset"),
        ("", "ends with the name of the dataset"),
    ] {
        request.output = match output {
            "" => PathBuf::new(),
            output => place.path(output),
        };
        let error = build(&request, &mut |_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("output: ") && error.contains(allowed),
            "{output}: {error}"
        );
    }
    assert!(!place.path("out").exists());
    // Who names a file of a dataset is told so.
    request.output = place.path("data");
    build(&request, &mut |_| ()).unwrap();
    let error = info(&place.path("data.bin")).unwrap_err().to_string();
    assert!(
        error.contains("data.bin — the path without .bin or .idx"),
        "{error}"
    );
}

#[test]
fn a_stopped_build_leaves_no_files() {
    let place = Place::new();
    let request = place.request(vec![place.input("a.txt", "one ".repeat(1 << 20))]);
    let partial = place.path("data.bin.partial");
    let mut calls = 0;
    let stopped = build_while(&request, &mut |_| {
        calls += 1;
        assert!(partial.exists());
        match calls {
            1 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    assert!(matches!(stopped, Err(DataError::Stopped)));
    assert_eq!(calls, 2);
    let left: Vec<_> = std::fs::read_dir(place.path(""))
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(left, ["a.txt"]);
}

#[test]
fn a_build_may_be_stopped_when_all_is_read() {
    let place = Place::new();
    let request = place.request(vec![place.input("a.txt", "one")]);
    let mut read = 0;
    let stopped = build_while(&request, &mut |bytes| {
        read += bytes;
        match bytes {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    assert!(matches!(stopped, Err(DataError::Stopped)), "{stopped:?}");
    assert_eq!(read, 3);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 1);
}

/// Lines of which every hundredth is no JSON. They are long, so that a few thousand lines are three batches.
fn with_malformed() -> String {
    let line = |i: u32| match i % 100 {
        99 => "{\"text\": \"cut off\"\n".to_owned(),
        _ => format!("{{\"text\": \"{i} {}\"}}\n", "w ".repeat(500)),
    };
    (0..3_000).map(line).collect()
}

#[test]
fn malformed_lines_are_skipped_up_to_a_limit() {
    let place = Place::new();
    let inputs = vec![
        place.input("a.jsonl", with_malformed()),
        place.input("b.jsonl", "{\"loss\": NaN, \"text\": \"a\"}\n{\"text\": \"b\"}\n"),
    ];
    let request = |threads: usize, most: u64| {
        let output = place.path(&format!("{threads}-{most}")).join("data");
        let mut request = Build::new(inputs.clone(), output, Tokenizer::Byte);
        (request.threads, request.skip_malformed) = (threads, most);
        request
    };
    let built = |threads| build(&request(threads, 31), &mut |_| ()).unwrap().remove(0);
    let one = built(1);
    assert_eq!((one.skipped.lines, one.sidecar.documents), (31, 3_002 - 31));
    let first = one.skipped.first.as_deref().unwrap();
    assert!(first.contains("a.jsonl: line: 100: EOF while parsing"), "{first}");
    let four = built(4);
    assert_eq!((four.sidecar, four.skipped), (one.sidecar, one.skipped));
    // The limit is exceeded by one, which is found in the second file; and by more, which is found earlier.
    for (most, want) in [
        (30, "b.jsonl: line: 1: expected value"),
        (15, "a.jsonl: line: 1600: EOF"),
        (0, "a.jsonl: line: 100: EOF"),
    ] {
        let error = |threads| {
            let error = build(&request(threads, most), &mut |_| ()).unwrap_err();
            error.to_string()
        };
        let one = error(1);
        assert!(one.contains(want) && one.contains("--skip-malformed"), "{one}");
        assert_eq!(error(4), one);
    }
}

#[test]
fn a_line_that_is_json_without_a_text_is_never_left_out() {
    let place = Place::new();
    let lines = place.input("a.jsonl", "{\n{\"id\": 1}\n{\n");
    let mut request = place.request(vec![lines]);
    request.skip_malformed = 9;
    let error = build(&request, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("a.jsonl: line: 2: no field text"), "{error}");
    // Of several errors, the first one is reported.
    request.skip_malformed = 0;
    let error = build(&request, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("a.jsonl: line: 1: EOF"), "{error}");
}

#[test]
fn an_existing_dataset_is_replaced_only_where_that_is_asked_for() {
    let place = Place::new();
    let mut request = place.request(vec![place.input("a.txt", "one")]);
    build(&request, &mut |_| ()).unwrap();
    request.inputs = vec![place.input("b.txt", "two")];
    let error = build(&request, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("already exists"), "{error}");
    assert_eq!(place.documents("data"), ["one|"]);
    request.overwrite = true;
    build(&request, &mut |_| ()).unwrap();
    assert_eq!(place.documents("data"), ["two|"]);
}

#[test]
fn replacing_in_vain_leaves_no_index_of_other_tokens() {
    let place = Place::new();
    let mut request = place.request(vec![place.input("a.txt", "one")]);
    build(&request, &mut |_| ()).unwrap();
    // A folder that is not empty stands where the description is to be.
    std::fs::remove_file(place.path("data.json")).unwrap();
    std::fs::create_dir_all(place.path("data.json/inner")).unwrap();
    // As many tokens: the old index would fit them.
    request.inputs = vec![place.input("b.txt", "two")];
    request.overwrite = true;
    assert!(build(&request, &mut |_| ()).is_err());
    assert!(!place.path("data.idx").exists());
}

#[test]
fn a_tokenizer_replaced_in_vain_leaves_no_index_of_another() {
    let place = Place::new();
    let folder = place.path("published");
    std::fs::create_dir(&folder).unwrap();
    for (name, content) in Tokenizer::Byte.published(64).unwrap() {
        std::fs::write(folder.join(name), content).unwrap();
    }
    let mut request = place.request(vec![place.input("a.txt", "one")]);
    build(&request, &mut |_| ()).unwrap();
    assert!(place.path("data.idx").exists());
    // A file stands where the folder of the tokenizer is to be.
    std::fs::write(place.path("data.tokenizer"), "no folder").unwrap();
    request.tokenizer = Tokenizer::open(folder.to_str().unwrap(), None).unwrap();
    request.overwrite = true;
    assert!(build(&request, &mut |_| ()).is_err());
    assert!(!place.path("data.idx").exists());
}
