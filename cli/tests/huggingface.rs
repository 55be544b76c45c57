//! `varuna checkpoint import` and `export`: an imported model can be exported again, in other formats and files, and with its own
//! tokenizer.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use varuna_checkpoint::huggingface;
use varuna_checkpoint::{Facts, Manifest, Shard, ShardTensor, parse_folder};
use varuna_model::{
    Biases, Family, Features, Mlp, Positions, Real, Rotary, Scaling, Transformer, bert, gpt2, llama3, qwen3,
};
use varuna_plan::{StateId, Unit};

/// A tokenizer of somebody's own.
const TOKENIZER: &str =
    r#"{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}}"#;

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

/// A model whose positions are not learned.
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

/// A unit whose elements count upwards. Numbers below 256 are exact in 16 bits.
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

/// A published folder with an unknown tokenizer.
fn published(folder: &Path, model: &Transformer) -> Vec<u8> {
    let shards: Vec<(Unit, Shard)> = model.layout().all_units().map(|u| (u, shard(model, u))).collect();
    let tensors = huggingface::export(model, &shards).unwrap();
    let mut config = Family::of(model).unwrap().config(model, 10);
    config["eos_token_id"] = json!(3);
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), &tensors).unwrap();
    std::fs::write(folder.join("tokenizer.json"), TOKENIZER).unwrap();
    std::fs::write(folder.join("notes.txt"), "of somebody").unwrap();
    tensors
}

fn output(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_varuna"))
        .args(arguments)
        .output()
        .unwrap()
}

/// The standard output and the standard error of a command, which must succeed.
fn succeeded(output: Output) -> (String, String) {
    let [printed, said] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{printed}{said}");
    (printed, said)
}

/// The standard error of a command, which must succeed.
fn varuna(arguments: &[&str]) -> String {
    succeeded(output(arguments)).1
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
fn import_exports_with_tokenizer_in_any_format_and_file_count() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let tensors = published(Path::new(&path("in")), &model());
    varuna(&["checkpoint", "import", &path("store"), &path("in"), "--job", "j"]);
    let store = path("store/j");

    // As an export that was killed leaves it.
    std::fs::create_dir(path("whole.partial")).unwrap();
    std::fs::write(path("whole.partial/old"), "").unwrap();
    std::fs::write(path("whole.partial/.varuna-export"), "").unwrap();
    varuna(&["checkpoint", "export", &store, &path("whole")]);
    assert!(!Path::new(&path("whole.partial")).exists());
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
        TOKENIZER
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

/// A job that began with the job `base`, and has saved a checkpoint of its own: the same parameters, trained on samples of eight tokens.
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

/// The store into which the job `base` was imported from a folder.
fn import_rotary(path: &impl Fn(&str) -> String) -> PathBuf {
    published(Path::new(&path("in")), &rotary());
    let (store, from) = (path("store"), path("in"));
    varuna(&["checkpoint", "import", &store, &from, "--job", "base"]);
    PathBuf::from(store)
}

/// Writes `origin.json` like a run of the job.
fn write_origin(uri: &Path, base: &str, job: &str, state: &Value) {
    let origin = json!({ "uri": uri, "job": base, "weightsOnly": true, "state": state });
    let path = uri.join(job).join("origin.json");
    std::fs::write(path, origin.to_string()).unwrap();
}

#[test]
fn job_from_an_import_exports_its_tokenizer_end_and_length() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let store = import_rotary(&path);
    trained_on(&store, "base", "first");
    trained_on(&store, "first", "second");
    for job in ["first", "second"] {
        varuna(&["checkpoint", "export", &path(&format!("store/{job}")), &path(job)]);
        let out = PathBuf::from(path(job));
        let tokenizer = std::fs::read_to_string(out.join("tokenizer.json")).unwrap();
        assert_eq!(tokenizer, TOKENIZER);
        let config = json_of(out.join("config.json"));
        let said = |field: &str| config[field].as_u64().unwrap();
        assert_eq!(said("eos_token_id"), 3, "{config}");
        assert_eq!(json_of(out.join("generation_config.json"))["eos_token_id"], 3);
        // The job was trained on samples of 8 tokens, and still reads samples of 16.
        assert_eq!(said("max_position_embeddings"), 16, "{config}");
    }
}

#[test]
fn export_uses_the_imported_tokenizer_and_reports_guesses() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let model = Transformer {
        vocabulary_size: 257,
        ..model()
    };
    published(Path::new(&path("in")), &model);
    for (name, content) in varuna_dataset::Tokenizer::Byte.published(16).unwrap() {
        std::fs::write(temp.path().join("in").join(name), content).unwrap();
    }
    std::fs::write(
        path("in/generation_config.json"),
        json!({ "eos_token_id": [3, 9], "temperature": 0.6 }).to_string(),
    )
    .unwrap();
    succeeded(import(&temp, "in", "j"));
    let export = |job: &str, folder: &str, more: &[&str]| {
        let (from, to) = (path(&format!("store/{job}")), path(folder));
        varuna(&[&["checkpoint", "export", &from, &to], more].concat())
    };
    let said = export("j", "kept", &[]);
    assert!(!said.contains("a guess"), "{said}");
    export("j", "named", &["--tokenizer", &path("in")]);
    let [kept, named] = ["kept", "named"].map(|name| contents(&temp.path().join(name)));
    let both = |files: &[(String, Vec<u8>)]| -> Vec<(String, Vec<u8>)> {
        let is_json = |name: &str| name.ends_with("config.json");
        files.iter().filter(|(name, _)| is_json(name)).cloned().collect()
    };
    assert_eq!(both(&kept), both(&named));
    let generation = json_of(temp.path().join("named/generation_config.json"));
    assert_eq!(generation, json!({ "eos_token_id": [3, 9], "temperature": 0.6 }));
    // Another tokenizer has other tokens.
    export("j", "other", &["--tokenizer", "byte"]);
    let generation = json_of(temp.path().join("other/generation_config.json"));
    assert_eq!(generation["eos_token_id"], 256, "{generation}");

    std::fs::remove_file(path("in/tokenizer.json")).unwrap();
    std::fs::remove_file(path("in/tokenizer_config.json")).unwrap();
    succeeded(import(&temp, "in", "k"));
    let said = export("k", "guessed", &[]);
    assert!(said.contains("the tokenizer byte is a guess"), "{said}");
    assert!(said.contains("--tokenizer names"), "{said}");
    let said = export("k", "told", &["--tokenizer", "byte"]);
    assert!(!said.contains("a guess"), "{said}");
}

#[test]
fn export_without_a_tokenizer_says_so_and_names_no_end_token() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let store = import_rotary(&path);
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
    // A job whose origin is itself.
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

/// Models of every family, with sizes that no preset has, and with features that a job can set.
fn of_all_families() -> Vec<Transformer> {
    let sized = |like: &Transformer| Transformer {
        layers: 2,
        hidden_size: 8,
        heads: 2,
        sequence_length: 16,
        vocabulary_size: 11,
        ..like.clone()
    };
    let narrow = |like: &Transformer| {
        let mut model = sized(like);
        model.features.kv_heads = Some(1);
        model.features.inner_size = Some(12);
        model
    };
    let untied = Transformer {
        tied_head: false,
        ..model()
    };
    let mut other_llama = narrow(&llama3::LARGE);
    other_llama.features.head_size = Some(6);
    other_llama.features.epsilon = Real::new(1e-6);
    other_llama.features.bias = Biases::ALL;
    other_llama.features.positions = Positions::Rotary(Rotary {
        theta: Real::new(1e4),
        scaling: Some(Scaling {
            low_turns: Real::new(2.0),
            original_length: 64,
            ..Scaling::llama3(8.0)
        }),
    });
    let mut qwen = narrow(&qwen3::SMALL);
    qwen.features.head_size = Some(4);
    let mut other_bert = sized(&bert::BASE);
    other_bert.features.inner_size = Some(24);
    other_bert.features.mlp = Mlp::Gelu;
    other_bert.features.epsilon = Real::new(1e-5);
    let usual = [model(), untied, rotary(), sized(&bert::BASE)];
    usual.into_iter().chain([other_llama, qwen, other_bert]).collect()
}

/// The folder of a job's only checkpoint.
fn checkpoint_of(job: &Path) -> PathBuf {
    let all = names(job);
    let mut checkpoints = all.iter().filter(|name| name.starts_with("step-"));
    let name = checkpoints.next().unwrap();
    assert_eq!(checkpoints.next(), None);
    job.join(name)
}

/// Imports a folder as a job.
fn import(temp: &TempDir, folder: &str, job: &str) -> Output {
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    output(&[
        "checkpoint",
        "import",
        &path("store"),
        &path(folder),
        "--job",
        job,
    ])
}

/// Imports the model as job `j`. Returns the folder of its checkpoint, and the output.
fn imported(temp: &TempDir, model: &Transformer) -> (PathBuf, String) {
    published(&temp.path().join("in"), model);
    let (printed, _) = succeeded(import(temp, "in", "j"));
    (checkpoint_of(&temp.path().join("store/j")), printed)
}

#[test]
fn an_import_for_a_name_that_no_job_can_have_is_refused() {
    let temp = TempDir::new().unwrap();
    published(&temp.path().join("in"), &model());
    for job in ["My_Job", "a/b", "..", "-a"] {
        let path = |name: &str| temp.path().join(name).display().to_string();
        let job = format!("--job={job}");
        let refused = output(&["checkpoint", "import", &path("store"), &path("in"), &job]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(
            said.contains("--job: ") && said.contains("1 to 63 of a-z"),
            "{said}"
        );
        assert!(!temp.path().join("store").exists(), "nothing was written");
    }
}

#[test]
fn an_import_of_another_model_or_a_broken_tokenizer_is_refused() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    published(&path("in"), &model());
    let refused = |part: &str| {
        let output = import(&temp, "in", "j");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
        assert!(!path("store/j").exists(), "nothing was written");
    };
    std::fs::write(path("in/tokenizer.json"), "{}").unwrap();
    refused("in/tokenizer.json: tokenizer: ");
    std::fs::write(path("in/tokenizer.json"), TOKENIZER).unwrap();
    let mut config = json_of(path("in/config.json"));
    config["n_layer"] = json!(1);
    std::fs::write(path("in/config.json"), config.to_string()).unwrap();
    refused("of its tensors are not of the model that config.json describes, such as transformer.h.1.");
}

#[test]
fn an_import_prints_what_a_job_file_has_to_say_to_go_on_from_it() {
    for model in of_all_families() {
        let temp = TempDir::new().unwrap();
        let (checkpoint, printed) = imported(&temp, &model);
        let (_, part) = printed
            .split_once("\n\nspec:\n")
            .unwrap_or_else(|| panic!("{printed}"));
        let masking = match model.features.bidirectional {
            true => "masking: {maskToken: 3}, ",
            false => "",
        };
        let text = format!(
            "apiVersion: varuna.dev/v1alpha1\nkind: VarunaJob\nmetadata: {{name: j}}\nspec:\n{part}  data: {{path: d}}\n  training: \
             {{{masking}globalBatchSize: 1, steps: 1, optimizer: {{learningRate: 0.1}}}}\n"
        );
        let job = varuna_api::parse_job(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let manifest: Manifest = serde_json::from_value(json_of(checkpoint.join("manifest.json"))).unwrap();
        let facts = Facts {
            model: serde_json::to_value(&job.model).unwrap(),
            ..manifest.facts.clone()
        };
        assert_eq!(facts.model, manifest.facts.model, "{printed}");
        manifest.suits(&facts, job.model.layout()).unwrap();
        // The number of learned positions cannot be changed.
        let longer = printed.contains("(sequenceLength may be another one)");
        assert_eq!(
            longer,
            model.features.positions != Positions::Learned,
            "{printed}"
        );
    }
}

#[test]
fn an_import_says_that_no_job_can_have_its_model_where_none_can() {
    let mut model = Transformer {
        features: bert::BASE.features,
        ..model()
    };
    model.features.token_types = Some(1);
    let temp = TempDir::new().unwrap();
    let (_, printed) = imported(&temp, &model);
    assert!(
        printed.contains("spec.model has no field for some of its features"),
        "{printed}"
    );
    assert!(printed.contains("\"tokenTypes\":1"), "{printed}");
    assert!(!printed.contains("spec:"), "{printed}");
}

/// The files of a folder, with their content.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| {
        let content = std::fs::read(folder.join(&name)).unwrap();
        (name, content)
    };
    names(folder).into_iter().map(read).collect()
}

/// Checks that the files of a checkpoint, joined, have exactly these bytes.
fn check_checkpoint(checkpoint: &Path, files: &[u8]) {
    let digest = Sha256::digest(files);
    let chain = u64::from_be_bytes(digest[..8].try_into().unwrap());
    let name = format!("step-00000000-g0-{chain:016x}");
    assert_eq!(checkpoint.file_name().unwrap().to_str().unwrap(), name);
    let id = parse_folder(&name).unwrap();
    let shards = model().layout().all_units().map(|unit| {
        let shard = Shard {
            id,
            ..shard(&model(), unit)
        };
        let content = shard.encode().unwrap().to_vec();
        (format!("{}.safetensors", shard.unit), content)
    });
    let mut expected: Vec<_> = shards.collect();
    expected.sort();
    let mut found = contents(checkpoint);
    found.retain(|(name, _)| name != "manifest.json");
    assert_eq!(found, expected);
}

#[test]
fn import_equals_its_files_byte_for_byte() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let (whole, _) = imported(&temp, &model());
    check_checkpoint(
        &whole,
        &std::fs::read(temp.path().join("in/model.safetensors")).unwrap(),
    );
    varuna(&[
        "checkpoint",
        "export",
        &path("store/j"),
        &path("parts"),
        "--max-shard-size",
        "1KB",
    ]);
    let parts = contents(&temp.path().join("parts"));
    let tensors: Vec<Vec<u8>> = parts
        .into_iter()
        .filter(|(name, _)| name.ends_with(".safetensors"))
        .map(|(_, content)| content)
        .collect();
    assert!(tensors.len() > 2, "{} files", tensors.len());
    succeeded(import(&temp, "parts", "k"));
    check_checkpoint(&checkpoint_of(&temp.path().join("store/k")), &tensors.concat());
}

#[test]
fn interrupted_import_resumes_only_with_the_same_files() {
    let temp = TempDir::new().unwrap();
    let (checkpoint, _) = imported(&temp, &model());
    published(&temp.path().join("others"), &rotary());
    let is_taken = |folder: &str| {
        let output = import(&temp, folder, "j");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{folder}: {said}");
        let taken = "job j already has checkpoints in this location";
        assert!(said.contains(taken), "{folder}: {said}");
    };
    is_taken("in");
    let before = contents(&checkpoint);
    for file in ["manifest.json", "segment-003.safetensors"] {
        std::fs::remove_file(checkpoint.join(file)).unwrap();
    }
    is_taken("others");
    succeeded(import(&temp, "in", "j"));
    assert_eq!(contents(&checkpoint), before);
}
