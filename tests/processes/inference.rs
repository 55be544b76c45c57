//! The result of a training run is used: text is generated from its checkpoint, and evaluated as the run itself evaluated it.

use serde_json::Value;
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Run};

/// A run with two stages that evaluates with the state of step 20, and saves that state.
struct Trained {
    run: Run,
    checkpoints: String,
    data: String,
}

impl Trained {
    fn new(store: &Path, of: JobFile) -> Trained {
        let job = JobFile {
            steps: 22,
            min_depth: 2,
            checkpoint: Some(format!("uri: {}, intervalSteps: 20", store.display())),
            ..of
        };
        let mut run = Run::start(&job, 2);
        assert_eq!(run.exit_code(), 0, "{}", run.report());
        let text = |path: &Path| path.to_str().expect("temporary folders are UTF-8").to_owned();
        let data = text(&run.folder().with_file_name("data"));
        Trained {
            run,
            checkpoints: text(&store.join("elastic")),
            data,
        }
    }

    fn evaluate(&self, more: &[&str]) -> Value {
        let what = ["evaluate", &self.checkpoints, &self.data];
        let how = ["--json", "--validation-fraction", "0.1"];
        json(self.run.varuna(&[&what, &how[..], more].concat()))
    }

    fn generate(&self, tokens: &str, more: &[&str]) -> Output {
        let what = ["generate", &self.checkpoints, "--prompt", PROMPT];
        self.run
            .varuna(&[&what, &["--max-tokens", tokens][..], more].concat())
    }
}

const PROMPT: &str = "In the beginning";

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeeded(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", output_text(&output));
    output.stdout
}

fn json(output: Output) -> Value {
    serde_json::from_slice(&succeeded(output)).expect("JSON")
}

#[test]
fn checkpoint_generates_text_and_reproduces_the_loss() {
    let store = TempDir::new().unwrap();
    let trained = Trained::new(store.path(), JobFile::default());
    its_loss_is_that_of_the_run(&trained);
    its_text_follows_from_prompt_settings_and_seed(&trained);
    check_refusals(&trained);
    another_tokenizer_of_the_dataset_is_said(&trained);
}

/// The loss that the run found before its 21st step.
fn own_loss(trained: &Trained) -> f64 {
    let metrics = trained.run.metrics();
    let own = metrics.iter().find(|m| m.step.0 == 21).and_then(|m| m.eval_loss);
    own.expect("the run evaluates before step 21")
}

#[test]
fn bert_checkpoint_reproduces_the_masked_loss() {
    let store = TempDir::new().unwrap();
    let trained = Trained::new(store.path(), JobFile::bert());
    let own = own_loss(&trained);
    let how = ["--step", "20", "--batch", "8", "--steps", "1"];
    let masked = |more: &[&str]| trained.evaluate(&[&how, more].concat());
    let found = masked(&["--mask-token", "0"]);
    let off = (found["loss"].as_f64().expect("a number") - own).abs();
    assert!(off < 1e-5, "{found}, and the run found {own}");
    let tokens = |found: &Value| found["tokens"].as_u64().expect("a number");
    assert!((1..8 * 64 / 3).contains(&tokens(&found)), "{found}");
    let more = masked(&["--mask-token", "0", "--mask-probability", "0.5"]);
    assert!(tokens(&more) > tokens(&found), "{more} {found}");
    let evaluate = |more: &[&str]| {
        let what = ["evaluate", &trained.checkpoints, &trained.data];
        trained.run.varuna(&[&what, more].concat())
    };
    for (refused, part) in [
        (
            evaluate(&[]),
            "--mask-token is missing: the model is bidirectional",
        ),
        (
            evaluate(&["--mask-token", "257"]),
            "--mask-token is 257, allowed is less than",
        ),
        (
            evaluate(&["--mask-token", "0", "--mask-probability", "1"]),
            "--mask-probability is 1, allowed is",
        ),
        (trained.generate("12", &[]), "the model is bidirectional"),
    ] {
        assert_eq!(refused.status.code(), Some(2), "{}", output_text(&refused));
        assert!(
            output_text(&refused).contains(part),
            "{part}: {}",
            output_text(&refused)
        );
    }
}

fn its_loss_is_that_of_the_run(trained: &Trained) {
    let own = own_loss(trained);
    let loss = |found: &Value| found["loss"].as_f64().expect("a number");
    let found = trained.evaluate(&["--step", "20", "--batch", "8", "--steps", "1"]);
    let off = (loss(&found) - own).abs();
    assert!(off < 1e-5, "{found}, and the run found {own}");
    let counts = (found["windows"].as_u64(), found["tokens"].as_u64());
    assert_eq!(counts, (Some(8), Some(8 * 64)));
    let perplexity = found["perplexity"].as_f64().expect("a number");
    assert!((perplexity - loss(&found).exp()).abs() < 1e-9, "{found}");
    // Batches of another size contain the same windows.
    let threes = trained.evaluate(&["--step", "20", "--batch", "3", "--steps", "2"]);
    let ones = trained.evaluate(&["--step", "20", "--batch", "1", "--steps", "6"]);
    assert!((loss(&threes) - loss(&ones)).abs() < 1e-5, "{threes} {ones}");
    let all = trained.evaluate(&[]);
    assert_eq!(all["step"], 22, "the newest where no step is named: {all}");
    assert_eq!(all["windows"], all["heldOut"], "{all}");
    assert!(all["windows"].as_u64() > Some(8), "{all}");
    // The samples that were held out, a tenth rounded up, are a part of all samples.
    let whole = json(trained.run.varuna(&[
        "evaluate",
        &trained.checkpoints,
        &trained.data,
        "--json",
        "--whole",
    ]));
    let windows = |found: &Value| found["windows"].as_u64().expect("a number");
    assert_eq!(whole["windows"], whole["heldOut"], "{whole}");
    assert_eq!(windows(&whole).div_ceil(10), windows(&all), "{whole} {all}");
}

fn its_text_follows_from_prompt_settings_and_seed(trained: &Trained) {
    let greedy = json(trained.generate("12", &["--temperature", "0", "--json"]));
    let bytes = |name: &str| -> Vec<u8> { serde_json::from_value(greedy[name].clone()).expect("bytes") };
    assert_eq!(bytes("prompt"), PROMPT.as_bytes());
    let tokens = bytes("tokens");
    assert_eq!(tokens.len(), 12, "{greedy}");
    assert_eq!(greedy["end"], "maxTokens", "{greedy}");
    assert_eq!(greedy["text"], String::from_utf8_lossy(&tokens).into_owned());
    let again = json(trained.generate("12", &["--temperature", "0", "--json", "--seed", "9"]));
    assert_eq!(greedy, again, "the most likely tokens have no chance in them");
    let streamed = succeeded(trained.generate("12", &["--temperature", "0"]));
    assert_eq!(streamed, [&tokens[..], b"\n"].concat());

    let drawn = |seed: &str| {
        let settings = ["--temperature", "1.5", "--top-p", "0.9", "--seed", seed, "--json"];
        json(trained.generate("12", &settings))
    };
    assert_eq!(drawn("3"), drawn("3"));
    assert_ne!(drawn("3")["tokens"], drawn("4")["tokens"]);
    let long = json(trained.generate("1000", &["--temperature", "0", "--json"]));
    assert_eq!(long["end"], "sequenceLength", "{long}");
    assert_eq!(long["tokens"].as_array().map(Vec::len), Some(64 - 16 + 1));
}

fn check_refusals(trained: &Trained) {
    for (arguments, part) in [
        (
            ["--step", "7"],
            "--step is 7, of which there is no complete checkpoint",
        ),
        (["--top-p", "0"], "--top-p is 0, allowed is more than 0"),
        (["--tokenizer", "gpt2"], "allowed are at most 257"),
    ] {
        let refused = trained.generate("12", &arguments);
        assert_eq!(refused.status.code(), Some(2), "{}", output_text(&refused));
        assert!(
            output_text(&refused).contains(part),
            "{arguments:?}: {}",
            output_text(&refused)
        );
    }
}

/// The run has kept no tokenizer, since that of its dataset is part of the program. Now there is another one beside its checkpoints.
fn another_tokenizer_of_the_dataset_is_said(trained: &Trained) {
    let evaluate = || {
        let what = ["evaluate", &trained.checkpoints, &trained.data, "--steps", "1"];
        let output = trained.run.varuna(&what);
        assert!(output.status.success(), "{}", output_text(&output));
        output_text(&output)
    };
    let said = "the dataset was built with the tokenizer byte";
    assert!(!evaluate().contains(said));
    let end = serde_json::json!({ "id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": { "<unk>": 0, "</s>": 1 }, "unk_token": "<unk>" },
    });
    let folder = Path::new(&trained.checkpoints).join("published");
    std::fs::create_dir(&folder).expect("a writable folder");
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("a writable folder");
    let text = evaluate();
    assert!(text.contains(said), "{text}");
}
