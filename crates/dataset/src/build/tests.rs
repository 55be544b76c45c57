use super::{Build, Built, Format, Split, build};
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
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder of inputs and outputs.
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

    /// A Parquet file with a column of numbers and one of texts, in groups of 3 rows.
    fn parquet(&self, name: &str, texts: &[Option<&str>]) -> PathBuf {
        let schema = "message rows { REQUIRED INT64 id; OPTIONAL BYTE_ARRAY text (UTF8); }";
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
        let mut file = SerializedFileWriter::new(
            File::create(self.path(name)).unwrap(),
            Arc::new(parse_message_type(schema).unwrap()),
            Arc::new(properties.build()),
        )
        .unwrap();
        for rows in texts.chunks(3) {
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

    /// The documents of a dataset of bytes, as its index divides them.
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
fn each_document_is_one_sequence_with_its_end_in_the_order_of_the_inputs() {
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
fn another_field_and_another_format_than_the_names_say_may_be_asked_for() {
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

/// All files of a build.
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
        // Lengths from nothing to thousands of bytes, more than a batch in all.
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
    // No dataset for a set without a share, and none under the path itself.
    let other = Place::new();
    let mut request = other.request(vec![other.input("a.txt", "x")]);
    request.split = Some("9,0,1".parse::<Split>().unwrap());
    assert_eq!(build(&request, &mut |_| ()).unwrap().len(), 2);
    assert!(!other.path("data-validation.bin").exists() && !other.path("data.bin").exists());
}

#[test]
fn the_tokenizers_files_lie_beside_the_dataset_and_are_found_by_its_path() {
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
    // Another one in its place is no longer the dataset's.
    let json = place.path("data.tokenizer/tokenizer.json");
    let text = std::fs::read_to_string(&json).unwrap();
    std::fs::write(&json, text + " ").unwrap();
    let error = Tokenizer::open(path.to_str().unwrap(), None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("SHA-256"), "{error}");
    // Nor is it overwritten unasked.
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
fn an_error_names_the_file_and_the_line_or_row_and_leaves_nothing() {
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
        // The first of two.
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
