//! `varuna checkpoint import` and `export`: what comes in goes out again, in other formats and files, with the tokenizer that came with it.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use varuna_checkpoint::huggingface;
use varuna_checkpoint::{Shard, ShardTensor};
use varuna_model::{Family, Transformer, gpt2};
use varuna_plan::{StateId, Unit};

fn model() -> Transformer {
    Transformer {
        layers: 2,
        hidden_size: 8,
        heads: 2,
        sequence_length: 16,
        vocabulary_size: 11,
        ..gpt2::SMALL
    }
}

/// A unit whose elements count upwards; numbers below 256 are whole in 16 bits.
fn shard(model: &Transformer, unit: Unit) -> Shard {
    let mut data = Vec::new();
    let mut tensors = Vec::new();
    for p in model.parameters(unit) {
        data.extend((0..p.elements()).map(|i| f32::from(u8::try_from(i % 200).unwrap())));
        tensors.push(ShardTensor {
            name: p.name.into_owned(),
            shape: p.shape,
            whole: None,
        });
    }
    data.resize(3 * data.len(), 0.0);
    Shard {
        id: StateId::INITIAL,
        unit: varuna_checkpoint::unit_name(model.layout(), unit),
        adam_steps: 0,
        loss_scale: None,
        failed_in_a_row: 0,
        moments: varuna_plan::Moments::Adam,
        tensors,
        data,
    }
}

/// A published folder, whose tokenizer is one that nobody knows here.
fn published(folder: &Path) -> Vec<u8> {
    let model = model();
    let shards: Vec<(Unit, Shard)> = model
        .layout()
        .all_units()
        .map(|u| (u, shard(&model, u)))
        .collect();
    let tensors = huggingface::export(&model, &shards).unwrap();
    let mut config = Family::Gpt2.config(&model, 10);
    config["eos_token_id"] = json!(3);
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), &tensors).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{\"their\": \"own\"}").unwrap();
    std::fs::write(folder.join("notes.txt"), "of somebody").unwrap();
    tensors
}

fn varuna(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_varuna"))
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
}

fn names(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = files
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn json_of(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_was_imported_is_exported_with_its_tokenizer_in_any_format_and_number_of_files() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let tensors = published(Path::new(&path("in")));
    varuna(&["checkpoint", "import", &path("store"), &path("in"), "--job", "j"]);
    let store = path("store/j");

    varuna(&["checkpoint", "export", &store, &path("whole")]);
    let whole = PathBuf::from(path("whole"));
    let expected = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ];
    assert_eq!(names(&whole), expected);
    assert_eq!(std::fs::read(whole.join("model.safetensors")).unwrap(), tensors);
    assert_eq!(
        std::fs::read_to_string(whole.join("tokenizer.json")).unwrap(),
        "{\"their\": \"own\"}"
    );
    let config = json_of(whole.join("config.json"));
    assert_eq!(
        (&config["eos_token_id"], &config["torch_dtype"]),
        (&json!(3), &json!("float32"))
    );
    assert_eq!(json_of(whole.join("generation_config.json"))["eos_token_id"], 3);

    varuna(&[
        "checkpoint",
        "export",
        &store,
        &path("parts"),
        "--dtype",
        "bf16",
        "--max-shard-size",
        "1KB",
    ]);
    let parts = PathBuf::from(path("parts"));
    let index = json_of(parts.join("model.safetensors.index.json"));
    let files = huggingface::files_of_index(&index).unwrap();
    assert!(files.len() > 2, "{files:?}");
    assert_eq!(index["metadata"]["total_size"], 2 * model().parameter_count());
    assert_eq!(json_of(parts.join("config.json"))["torch_dtype"], "bfloat16");
    let contents: Vec<Vec<u8>> = files
        .iter()
        .map(|f| std::fs::read(parts.join(f)).unwrap())
        .collect();
    let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let again = huggingface::import(&model(), StateId::INITIAL, &contents).unwrap();
    for (unit, found) in again {
        assert_eq!(found, shard(&model(), unit));
    }
}
