use super::*;
use crate::shard::ShardTensor;
use safetensors::tensor::{Dtype, SafeTensors, View, serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use varuna_model::{gpt2, presets};

/// SHA-256 of the file of a small model, with a tied head and with an untied head.
const DIGESTS: [(bool, &str); 2] = [
    (
        true,
        "8609cff8119810079dc02a7ad1290e7041f503585080cb22ece6a1d68cda900c",
    ),
    (
        false,
        "e09acbab9b4d388ffbed4dfba62e7f50a45f5f90cd785ad50fcd20d0cd8eab19",
    ),
];

/// The state of a model; the elements of its parameters count upwards.
fn counting(model: &Transformer) -> Vec<(Unit, Shard)> {
    let mut next = 0.0f32;
    let shard = |unit: Unit| {
        let mut data = Vec::new();
        let mut tensors = Vec::new();
        for p in model.parameters(unit) {
            for _ in 0..p.elements() {
                next += 1.0;
                data.push(next);
            }
            tensors.push(ShardTensor {
                name: p.name.clone().into_owned(),
                shape: p.shape,
                whole: None,
            });
        }
        data.resize(3 * data.len(), 0.0);
        let shard = Shard {
            id: StateId::INITIAL,
            unit: crate::unit_name(model.layout(), unit),
            adam_steps: 0,
            loss_scale: None,
            failed_in_a_row: 0,
            moments: varuna_plan::Moments::Adam,
            tensors,
            data,
        };
        (unit, shard)
    };
    model.layout().all_units().map(shard).collect()
}

fn small(tied_head: bool) -> Transformer {
    Transformer {
        layers: 2,
        hidden_size: 4,
        heads: 2,
        sequence_length: 3,
        vocabulary_size: 5,
        tied_head,
        ..gpt2::SMALL
    }
}

/// A small model of another family. Its heads share keys, and together they are wider than the model.
fn small_of(preset: &str) -> Transformer {
    let mut model = Transformer {
        features: presets::preset(preset).unwrap().features,
        ..small(false)
    };
    model.heads = 4;
    model.features.kv_heads = Some(2);
    model.features.head_size = Some(2);
    model.features.inner_size = Some(3);
    model
}

#[test]
fn a_gpt2_survives_the_way_out_and_back() {
    for (tied_head, digest) in DIGESTS {
        let model = small(tied_head);
        let shards = counting(&model);
        let file = export(&model, &shards).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        let shape = |name: &str| read.tensor(name).unwrap().shape().to_vec();
        assert_eq!(shape("transformer.h.1.attn.c_attn.weight"), [4, 12]);
        assert_eq!(shape("transformer.h.1.mlp.c_proj.weight"), [16, 4]);
        assert_eq!(read.tensor("lm_head.weight").is_ok(), !tied_head);
        assert_eq!(
            format!("{:x}", Sha256::digest(&file)),
            digest,
            "every byte of the file"
        );
        assert_eq!(import(&model, StateId::INITIAL, &[&file]).unwrap(), shards);
    }
}

#[test]
fn llama_and_qwen_round_trip_with_separate_qkv() {
    for preset in ["llama-tiny", "qwen3-tiny"] {
        let model = small_of(preset);
        let shards = counting(&model);
        let file = export(&model, &shards).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        let rows = |name: &str| {
            let tensor = read
                .tensor(&format!("model.layers.0.self_attn.{name}_proj.weight"))
                .unwrap();
            assert_eq!(tensor.shape()[1..], [4]);
            bytemuck::pod_collect_to_vec::<u8, f32>(tensor.data())
        };
        // The rows of our combined product are the rows of the three published ones, one after the other. It follows the token table.
        let all = [rows("q"), rows("k"), rows("v")].concat();
        let expected: Vec<f32> = (0u16..(8 + 4 + 4) * 4).map(|i| f32::from(i + 21)).collect();
        assert_eq!(all, expected, "{preset}");
        assert_eq!(
            read.tensor("model.layers.1.self_attn.q_norm.weight").is_ok(),
            model.features.qk_norm
        );
        assert_eq!(
            import(&model, StateId::INITIAL, &[&file]).unwrap(),
            shards,
            "{preset}"
        );
    }
}

#[test]
fn bert_round_trips_and_reads_old_norm_names() {
    for tied_head in [true, false] {
        let model = Transformer {
            features: presets::preset("bert-tiny").unwrap().features,
            ..small(tied_head)
        };
        let shards = counting(&model);
        let file = export(&model, &shards).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        let shape = |name: &str| read.tensor(name).unwrap().shape().to_vec();
        assert_eq!(shape("bert.embeddings.token_type_embeddings.weight"), [2, 4]);
        for part in ["query", "key", "value"] {
            let layer = format!("bert.encoder.layer.1.attention.self.{part}");
            assert_eq!(shape(&format!("{layer}.weight")), [4, 4]);
            assert_eq!(shape(&format!("{layer}.bias")), [4]);
        }
        let bias = if tied_head { "bias" } else { "decoder.bias" };
        assert_eq!(shape(&format!("cls.predictions.{bias}")), [5]);
        assert_eq!(read.tensor("cls.predictions.decoder.weight").is_ok(), !tied_head);
        assert_eq!(import(&model, StateId::INITIAL, &[&file]).unwrap(), shards);
        let older = renamed(&file, |name| {
            let older = name.replace("LayerNorm.weight", "LayerNorm.gamma");
            older.replace("LayerNorm.bias", "LayerNorm.beta")
        });
        let names = SafeTensors::deserialize(&older).unwrap();
        assert!(names.tensor("bert.embeddings.LayerNorm.gamma").is_ok());
        assert!(names.tensor("bert.embeddings.LayerNorm.weight").is_err());
        assert_eq!(import(&model, StateId::INITIAL, &[&older]).unwrap(), shards);
    }
}

/// The same file with other names of tensors.
fn renamed(file: &[u8], name: impl Fn(&str) -> String) -> Vec<u8> {
    let read = SafeTensors::deserialize(file).unwrap();
    let tensors = read.tensors().into_iter().map(|(own, view)| (name(&own), view));
    serialize(tensors, None).unwrap()
}

/// The tensors with certain names as a file, in 16 bits.
fn narrow(file: &[u8], dtype: Dtype, of: impl Fn(&str) -> bool) -> Vec<u8> {
    struct Narrow(Dtype, Vec<usize>, Vec<u8>);
    impl View for Narrow {
        fn dtype(&self) -> Dtype {
            self.0
        }
        fn shape(&self) -> &[usize] {
            &self.1
        }
        fn data(&self) -> Cow<'_, [u8]> {
            Cow::Borrowed(&self.2)
        }
        fn data_len(&self) -> usize {
            self.2.len()
        }
    }
    let read = SafeTensors::deserialize(file).unwrap();
    let tensors = read.tensors().into_iter().filter(|(name, _)| of(name));
    let tensors = tensors.map(|(name, view)| {
        let halves = view.data().chunks_exact(4).flat_map(|bytes| match dtype {
            Dtype::F16 => {
                let whole = f32::from_le_bytes(bytes.try_into().unwrap());
                half::f16::from_f32(whole).to_le_bytes()
            }
            _ => [bytes[2], bytes[3]],
        });
        let data = halves.collect();
        (name, Narrow(dtype, view.shape().to_vec(), data))
    });
    serialize(tensors, None).unwrap()
}

#[test]
fn several_16_bit_files_are_read_in_fp32() {
    let model = small_of("llama-tiny");
    let shards = counting(&model);
    let file = export(&model, &shards).unwrap();
    let is_first = |name: &str| name.contains("layers.0");
    let parts = [
        narrow(&file, Dtype::BF16, is_first),
        narrow(&file, Dtype::BF16, |name| !is_first(name)),
    ];
    let found = import(&model, StateId::INITIAL, &[&parts[0], &parts[1]]).unwrap();
    for ((_, ours), (_, read)) in shards.iter().zip(&found) {
        let rounded = ours
            .data
            .iter()
            .map(|v| f32::from_bits(v.to_bits() & 0xffff_0000));
        assert_eq!(rounded.collect::<Vec<f32>>(), read.data);
    }
    let why = import(&model, StateId::INITIAL, &[&parts[1]])
        .unwrap_err()
        .to_string();
    assert_eq!(
        why,
        "tensor model.layers.0.self_attn.q_proj.weight: it is missing"
    );
}

#[test]
fn a_file_in_float16_is_read_exactly() {
    for preset in ["gpt2", "llama-tiny"] {
        let model = match preset {
            "gpt2" => small(true),
            _ => small_of(preset),
        };
        let shards = counting(&model);
        let file = narrow(&export(&model, &shards).unwrap(), Dtype::F16, |_| true);
        let found = import(&model, StateId::INITIAL, &[&file]).unwrap();
        for ((_, ours), (_, read)) in shards.iter().zip(&found) {
            // Numbers up to 2048 are exact in this format.
            assert!(ours.data.iter().all(|value| *value <= 2048.0), "{preset}");
            assert_eq!(ours.data, read.data, "{preset}");
        }
    }
}

#[test]
fn sharded_export_has_an_index_and_is_read_again() {
    for preset in ["llama-tiny", "qwen3-tiny"] {
        let model = small_of(preset);
        let shards = counting(&model);
        let whole = export(&model, &shards).unwrap();
        for (elements, bytes) in [(Elements::Fp32, 4), (Elements::Bf16, 2)] {
            let most = 60 * bytes;
            let mut export = Export::new(&model, elements, most).unwrap();
            let mut files = Vec::new();
            for (unit, shard) in &shards {
                files.extend(export.add(*unit, shard));
            }
            let index = export.index().expect("several files");
            let names: Vec<String> = files.iter().map(|f| f.name.clone()).collect();
            assert_eq!(files_of_index(&index).unwrap(), names, "{preset}");
            assert!(names.len() > 5, "{names:?}");
            assert_eq!(names[0], format!("model-00001-of-{:05}.safetensors", names.len()));
            let folder = tempfile::tempdir().unwrap();
            let written = |file: ExportedFile| {
                let path = folder.path().join(&file.name);
                let content = file.clone().content().unwrap();
                file.write(folder.path()).unwrap();
                assert!(std::fs::read(path).unwrap() == content, "{preset}");
                content
            };
            let contents: Vec<Vec<u8>> = files.iter().cloned().map(written).collect();
            for (file, content) in files.iter().zip(&contents) {
                let read = SafeTensors::deserialize(content).unwrap();
                for (name, tensor) in read.tensors() {
                    assert_eq!(index["weight_map"][&name], file.name);
                    assert_eq!(
                        tensor.data().len() as u64,
                        bytes * tensor.shape().iter().product::<usize>() as u64
                    );
                }
                let all: usize = read.tensors().iter().map(|(_, t)| t.data().len()).sum();
                assert!(
                    all as u64 <= most || read.len() == 1,
                    "{}: {all} bytes",
                    file.name
                );
            }
            assert_eq!(index["metadata"]["total_size"], bytes * model.parameter_count());
            let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
            let again = import(&model, StateId::INITIAL, &contents).unwrap();
            // Numbers up to 256 are exact in 16 bits.
            let small = |shards: &[(Unit, Shard)]| -> Vec<f32> {
                let all = shards.iter().flat_map(|(_, s)| s.data.iter().copied());
                all.take_while(|v| *v < 256.0).collect()
            };
            assert_eq!(small(&again), small(&shards), "{preset} {elements:?}");
            if elements == Elements::Fp32 {
                assert_eq!(again, shards);
                assert_eq!(crate::huggingface::export(&model, &again).unwrap(), whole);
            }
        }
    }
}

#[test]
fn a_model_that_fits_one_file_has_no_index() {
    let model = small(true);
    let mut export = Export::new(&model, Elements::Bf16, 5_000_000_000).unwrap();
    let mut files = Vec::new();
    for (unit, shard) in counting(&model) {
        files.extend(export.add(unit, &shard));
    }
    let names: Vec<&str> = files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, [WHOLE]);
    assert_eq!(export.index(), None);
}

#[test]
fn an_index_names_files_of_its_own_folder() {
    let of = |map: serde_json::Value| files_of_index(&json!({ "weight_map": map }));
    let two = of(json!({"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}));
    assert_eq!(two.unwrap(), ["1.safetensors", "2.safetensors"]);
    for (map, found) in [
        (json!({"a": "../x.safetensors"}), "\"../x.safetensors\""),
        (json!({"a": "/x.safetensors"}), "\"/x.safetensors\""),
        (json!({"a": "x.bin"}), "\"x.bin\""),
        (json!({}), "0 files"),
        (json!(3), "3"),
    ] {
        let why = of(map).unwrap_err().to_string();
        let expected = format!("model.safetensors.index.json: weight_map: {found} — a mapping");
        assert!(why.starts_with(&expected), "{why}");
    }
}

/// A file in memory that records the reads, and fails after this many bytes.
struct Noting<'a> {
    content: &'a [u8],
    readable: usize,
    read: RefCell<Vec<usize>>,
}

impl<'a> Noting<'a> {
    fn new(content: &'a [u8], readable: usize) -> Noting<'a> {
        Noting {
            content,
            readable,
            read: RefCell::default(),
        }
    }

    fn bytes(&self) -> usize {
        self.read.borrow().iter().sum()
    }
}

impl Content for Noting<'_> {
    fn length(&self) -> u64 {
        self.content.length()
    }

    fn read_into(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        self.read.borrow_mut().push(out.len());
        if self.bytes() > self.readable {
            return Err(io::Error::other("the disk is gone"));
        }
        self.content.read_into(start, out)
    }
}

/// A model for each way to store tensors: as (inputs, outputs), separately, and under other names.
fn of_all_families() -> [Transformer; 4] {
    let bert = Transformer {
        features: presets::preset("bert-tiny").unwrap().features,
        ..small(true)
    };
    [small(false), small_of("llama-tiny"), small_of("qwen3-tiny"), bert]
}

#[test]
fn units_are_read_in_turn_and_in_pieces() {
    const PIECE: usize = 12;
    for model in of_all_families() {
        let shards = counting(&model);
        let whole = export(&model, &shards).unwrap();
        let file = Noting::new(&whole, usize::MAX);
        let mut import = Import::new(&model, vec![file]).unwrap();
        import.piece_bytes = PIECE;
        let mut all = import.files()[0].bytes();
        let headers = import.files()[0].read.borrow().len();
        assert_eq!(headers, 2, "the length of the header, then the header");
        let mut made = import.shards(StateId::INITIAL);
        for (unit, expected) in &shards {
            assert_eq!(
                import.files()[0].bytes(),
                all,
                "nothing is read ahead of unit {unit}"
            );
            assert_eq!(made.next().unwrap().unwrap(), (*unit, expected.clone()));
            // A third of the state, because the file has no moments.
            all += 4 * expected.data.len() / 3;
        }
        assert!(made.next().is_none());
        assert_eq!(import.files()[0].bytes(), all, "each element is read once");
        let read = import.files()[0].read.borrow();
        assert!(read[headers..].iter().all(|bytes| *bytes <= PIECE), "{read:?}");
    }
}

#[test]
fn unreadable_file_ends_an_import_after_the_read_units() {
    let model = small_of("llama-tiny");
    let shards = counting(&model);
    let whole = export(&model, &shards).unwrap();
    let headers = {
        let import = Import::new(&model, vec![Noting::new(&whole, usize::MAX)]).unwrap();
        import.files()[0].bytes()
    };
    let first = 4 * shards[0].1.data.len() / 3;
    let file = Noting::new(&whole, headers + first);
    let import = Import::new(&model, vec![file]).unwrap();
    let mut made = import.shards(StateId::INITIAL);
    assert_eq!(made.next().unwrap().unwrap(), shards[0]);
    let why = made.next().unwrap().unwrap_err().to_string();
    assert_eq!(why, "the disk is gone");
}

#[test]
fn a_folder_of_another_model_is_refused_by_its_headers_alone() {
    let model = small_of("llama-tiny");
    let whole = export(&model, &counting(&model)).unwrap();
    let refused = |model: &Transformer, content: &[u8]| {
        let file = Noting::new(content, usize::MAX);
        let why = Import::new(model, vec![file]).err().unwrap();
        why.to_string()
    };
    let deeper = Transformer {
        layers: 3,
        ..model.clone()
    };
    assert_eq!(
        refused(&deeper, &whole),
        "tensor model.layers.2.self_attn.q_proj.weight: it is missing"
    );
    let mut wider = model.clone();
    wider.features.inner_size = Some(4);
    assert_eq!(
        refused(&wider, &whole),
        "tensor model.layers.0.mlp.gate_proj.weight: its shape is [3, 4], the model needs [4, 4]"
    );
    assert_eq!(
        refused(&model, &renumbered(&whole)),
        "tensor model.embed_tokens.weight: it is I32, F32, F16 or BF16 is needed"
    );
}

/// The same file with more tensors.
fn with_more(file: &[u8], names: &[&str]) -> Vec<u8> {
    let read = SafeTensors::deserialize(file).unwrap();
    let tensors = read.tensors();
    let (_, any) = &tensors[0];
    let more = names.iter().map(|name| ((*name).to_owned(), any.clone()));
    serialize(tensors.iter().cloned().chain(more), None).unwrap()
}

#[test]
fn tensors_that_the_model_does_not_have_are_refused() {
    let model = small_of("llama-tiny");
    let whole = export(&model, &counting(&model)).unwrap();
    let shallower = Transformer {
        layers: 1,
        ..model.clone()
    };
    let why = import(&shallower, StateId::INITIAL, &[&whole])
        .unwrap_err()
        .to_string();
    // Four of the attention, three of the MLP, two norms.
    assert!(
        why.starts_with("9 of its tensors are not of the model")
            && why.contains("such as model.layers.1.input_layernorm.weight"),
        "{why}"
    );
    let biased = with_more(&whole, &["model.layers.0.self_attn.q_proj.bias"]);
    let why = import(&model, StateId::INITIAL, &[&biased])
        .unwrap_err()
        .to_string();
    assert!(why.starts_with("1 of its tensors"), "{why}");
}

#[test]
fn constants_and_parts_that_are_not_trained_are_left_out() {
    let bert = Transformer {
        features: presets::preset("bert-tiny").unwrap().features,
        ..small(true)
    };
    let gpt2 = &[
        "lm_head.weight",
        "transformer.h.1.attn.bias",
        "h.0.attn.masked_bias",
        "multiple_choice_head.summary.weight",
        "v_head.summary.weight",
    ][..];
    let llama = &[
        "model.layers.1.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.inv_freq",
        "score.weight",
        "qa_outputs.weight",
    ][..];
    let of_bert = &[
        "bert.embeddings.position_ids",
        "bert.pooler.dense.weight",
        "cls.seq_relationship.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
        "classifier.bias",
    ][..];
    for (model, names) in [
        (small(true), gpt2),
        (small_of("llama-tiny"), llama),
        (bert, of_bert),
    ] {
        let shards = counting(&model);
        let file = with_more(&export(&model, &shards).unwrap(), names);
        assert_eq!(import(&model, StateId::INITIAL, &[&file]).unwrap(), shards);
        // Such a name elsewhere is that of a parameter.
        let file = with_more(&file, &["transformer.attn.bias"]);
        assert!(import(&model, StateId::INITIAL, &[&file]).is_err());
    }
}

#[test]
fn a_cut_file_among_several_is_named() {
    let model = small_of("llama-tiny");
    let whole = export(&model, &counting(&model)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let paths = ["model-00001.safetensors", "model-00002.safetensors"].map(|name| folder.path().join(name));
    std::fs::write(&paths[0], &whole).unwrap();
    std::fs::write(&paths[1], &whole[..whole.len() - 1]).unwrap();
    let files: Vec<LocalFile> = paths.iter().map(|path| LocalFile::open(path).unwrap()).collect();
    let why = Import::new(&model, files).err().unwrap().to_string();
    let cut = format!("{} is no whole safetensors file: ", paths[1].display());
    assert!(why.starts_with(&cut), "{why}");
}

/// The same file with a header that says that all numbers are integers.
fn renumbered(file: &[u8]) -> Vec<u8> {
    let (length, _) = SafeTensors::read_metadata(file).unwrap();
    let (start, data) = file.split_at(8 + length);
    let header = std::str::from_utf8(&start[8..]).unwrap();
    let header = header.replace("\"F32\"", "\"I32\"");
    [&start[..8], header.as_bytes(), data].concat()
}

#[test]
fn invalid_safetensors_is_refused_with_the_librarys_error() {
    let model = small(true);
    let whole = export(&model, &counting(&model)).unwrap();
    let (length, _) = SafeTensors::read_metadata(&whole).unwrap();
    let with_length = |length: u64| [&length.to_le_bytes(), &whole[8..]].concat();
    let longer = [whole.as_slice(), &[0]].concat();
    let mut moved = whole.clone();
    let at = whole.windows(10).position(|w| w == b"offsets\":[").unwrap() + 10;
    moved[at] = b'1';
    let mut no_text = whole.clone();
    no_text[8] = b'x';
    let broken = [
        whole[..7].to_vec(),
        whole[..8 + length - 1].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        longer,
        with_length(100_000_001),
        with_length(whole.len() as u64),
        moved,
        no_text,
    ];
    for (case, file) in broken.iter().enumerate() {
        let expected = SafeTensors::deserialize(file).unwrap_err();
        let why = import(&model, StateId::INITIAL, &[file]).unwrap_err();
        assert_eq!(why.to_string(), format!("safetensors: {expected}"), "{case}");
    }
}

/// The model of a job file with these sizes and features, and no preset.
fn mixed(features: &str) -> Transformer {
    let sizes = "layers: 2, hiddenSize: 4, heads: 2, sequenceLength: 3, vocabularySize: 5";
    let text = format!(
        "{{apiVersion: varuna.dev/v1alpha1, kind: VarunaJob, metadata: {{name: j}}, spec: {{model: {{{sizes}, {features}}}, data: {{path: d}},
        training: {{globalBatchSize: 1, steps: 1, optimizer: {{learningRate: 0.1}}}}}}}}"
    );
    let job = varuna_api::parse_job(&text).unwrap_or_else(|e| panic!("{features}: {e}"));
    job.model.transformer().unwrap().clone()
}

#[test]
fn a_model_of_no_family_is_refused() {
    let mut model = small(true);
    model.features.qk_norm = true;
    let mix = mixed("norm: rms, positions: rotary, qkNorm: true");
    for model in [model, mix] {
        let why = export(&model, &[]).unwrap_err().to_string();
        assert!(
            why.starts_with("no published family has the model's features"),
            "{why}"
        );
    }
}

#[test]
fn a_llama_that_no_preset_names_is_exported_as_one() {
    let model = mixed(
        "norm: rms, positions: rotary, mlp: swiglu, attentionBias: false, mlpBias: false, tiedHead: false",
    );
    let shards = counting(&model);
    let file = export(&model, &shards).unwrap();
    let read = SafeTensors::deserialize(&file).unwrap();
    for name in ["self_attn.q_proj", "mlp.gate_proj", "post_attention_layernorm"] {
        let tensor = read.tensor(&format!("model.layers.1.{name}.weight"));
        assert!(tensor.is_ok(), "{name}");
    }
    assert!(read.tensor("model.layers.1.self_attn.q_norm.weight").is_err());
    assert_eq!(import(&model, StateId::INITIAL, &[&file]).unwrap(), shards);
}
