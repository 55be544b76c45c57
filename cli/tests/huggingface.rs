//! `varuna checkpoint import` and `export`: what comes in goes out again, in other formats and files, with the tokenizer that came with it.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use varuna_checkpoint::huggingface;
use varuna_checkpoint::{Shard, ShardTensor};
use varuna_model::{Family, Features, Transformer, gpt2, llama3};
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

/// One whose positions are not learned.
fn rotary() -> Transformer {
    Transformer {
        layers: 2,
        hidden_size: 8,
        heads: 2,
        sequence_length: 16,
        vocabulary_size: 11,
        features: Features {
            kv_heads: Some(1),
            inner_size: Some(12),
            ..llama3::SMALL.features
        },
        ..llama3::SMALL
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
fn published(folder: &Path, model: &Transformer) -> Vec<u8> {
    let shards: Vec<(Unit, Shard)> = model.layout().all_units().map(|u| (u, shard(model, u))).collect();
    let tensors = huggingface::export(model, &shards).unwrap();
    let mut config = Family::of(&model.features).unwrap().config(model, 10);
    config["eos_token_id"] = json!(3);
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), &tensors).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{\"their\": \"own\"}").unwrap();
    std::fs::write(folder.join("notes.txt"), "of somebody").unwrap();
    tensors
}

/// What it says beside its output.
fn varuna(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_varuna"))
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
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
    let tensors = published(Path::new(&path("in")), &model());
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

/// A job beside `base` that began with it, and has saved a checkpoint of its own since: the same parameters, trained on samples of eight tokens.
fn trained_on(store: &Path, base: &str, job: &str) {
    let (from, to) = (store.join(base), store.join(job));
    let all = names(&from);
    let checkpoint = all.iter().find(|name| name.starts_with("step-")).unwrap();
    let (from, to) = (from.join(checkpoint), to.join(checkpoint));
    std::fs::create_dir_all(&to).unwrap();
    for file in names(&from) {
        std::fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
    let mut manifest = json_of(from.join("manifest.json"));
    manifest["job"] = json!(job);
    manifest["model"]["sequenceLength"] = json!(8);
    std::fs::write(to.join("manifest.json"), manifest.to_string()).unwrap();
    write_origin(store, base, job, &manifest["state"]);
}

/// As a run of the job writes it.
fn write_origin(uri: &Path, base: &str, job: &str, state: &Value) {
    let origin = json!({ "uri": uri, "job": base, "weightsOnly": true, "state": state });
    let path = uri.join(job).join("origin.json");
    std::fs::write(path, origin.to_string()).unwrap();
}

#[test]
fn a_job_that_began_with_an_import_is_exported_with_its_tokenizer_its_end_and_its_length() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    published(Path::new(&path("in")), &rotary());
    varuna(&[
        "checkpoint",
        "import",
        &path("store"),
        &path("in"),
        "--job",
        "base",
    ]);
    let store = PathBuf::from(path("store"));
    trained_on(&store, "base", "first");
    trained_on(&store, "first", "second");
    for job in ["first", "second"] {
        varuna(&["checkpoint", "export", &path(&format!("store/{job}")), &path(job)]);
        let out = PathBuf::from(path(job));
        let tokenizer = std::fs::read_to_string(out.join("tokenizer.json")).unwrap();
        assert_eq!(tokenizer, "{\"their\": \"own\"}");
        let config = json_of(out.join("config.json"));
        let said = |field: &str| config[field].as_u64().unwrap();
        assert_eq!(said("eos_token_id"), 3, "{config}");
        assert_eq!(json_of(out.join("generation_config.json"))["eos_token_id"], 3);
        // It was trained on samples of 8, and reads those of 16 as before.
        assert_eq!(said("max_position_embeddings"), 16, "{config}");
    }
}

#[test]
fn an_export_whose_tokenizer_cannot_be_found_says_so_and_makes_up_no_end() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    published(Path::new(&path("in")), &rotary());
    varuna(&[
        "checkpoint",
        "import",
        &path("store"),
        &path("in"),
        "--job",
        "base",
    ]);
    let store = PathBuf::from(path("store"));
    trained_on(&store, "base", "tuned");
    let export = |name: &str| {
        let said = varuna(&["checkpoint", "export", &path("store/tuned"), &path(name)]);
        let out = PathBuf::from(path(name));
        let expected = ["config.json", "generation_config.json", "model.safetensors"];
        assert_eq!(names(&out), expected, "{said}");
        let generation = json_of(out.join("generation_config.json"));
        for field in ["bos_token_id", "eos_token_id"] {
            assert!(json_of(out.join("config.json"))[field].is_null(), "{field}");
            assert!(generation.get(field).is_none(), "{generation}");
        }
        said
    };
    // A job that is said to have begun with itself.
    let state = json_of(store.join("tuned/origin.json"))["state"].clone();
    write_origin(&store, "tuned", "tuned", &state);
    let said = export("loop");
    assert!(said.contains("more than 16 jobs began with each other"), "{said}");
    let gone = json!({ "uri": path("gone"), "job": "base", "weightsOnly": true, "state": state });
    for (origin, part) in [
        (gone.to_string(), "is no folder"),
        ("{".to_owned(), "it cannot be read"),
    ] {
        std::fs::write(store.join("tuned/origin.json"), origin).unwrap();
        let said = export(part);
        assert!(
            said.contains("cannot be read, so the export goes without"),
            "{said}"
        );
        assert!(said.contains(part), "{said}");
    }
}
