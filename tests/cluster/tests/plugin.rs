//! `kubectl varuna` on a real API server, with a job whose status is written by the test.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use varuna_cluster_tests::{cluster, job, root};

/// The program, with the name by which kubectl finds it: `VARUNA`, or else the one that `make test-kube` builds.
struct Plugin {
    folder: tempfile::TempDir,
    namespace: String,
}

impl Plugin {
    fn in_namespace(name: &str) -> Plugin {
        let built = root().join("target/debug/varuna");
        let program = std::env::var_os("VARUNA").map_or(built, PathBuf::from);
        assert!(
            program.exists(),
            "{} is missing: run `make test-kube`",
            program.display()
        );
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(program, folder.path().join("kubectl-varuna")).unwrap();
        Plugin {
            folder,
            namespace: cluster().namespace(name).unwrap(),
        }
    }

    /// The exit code and the output.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(self.folder.path().join("kubectl-varuna"))
            .args(arguments)
            .args(["--namespace", &self.namespace])
            .env("KUBECONFIG", cluster().kubeconfig())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    }

    fn says(&self, arguments: &[&str]) -> String {
        let (code, said) = self.run(arguments);
        assert_eq!(code, Some(0), "{said}");
        said
    }

    fn refuses(&self, arguments: &[&str], words: &str) {
        let (code, said) = self.run(arguments);
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.starts_with("kubectl varuna: ") && said.contains(words),
            "{said}"
        );
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let all = [&["-n", &self.namespace], arguments].concat();
        cluster().kubectl(&all, input).unwrap()
    }

    fn job(&self) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "vj", "j", "-o", "json"], "")).unwrap()
    }

    /// Creates the job with this status.
    fn make(&self, document: &Value, status: &Value) {
        self.kubectl(&["create", "-f", "-"], &document.to_string());
        let patch = json!({ "status": status }).to_string();
        self.kubectl(
            &[
                "patch",
                "vj",
                "j",
                "--subresource=status",
                "--type=merge",
                "-p",
                &patch,
            ],
            "",
        );
    }
}

fn saving() -> Value {
    let mut document = job("j");
    document["spec"]["checkpoint"] = json!({ "uri": "s3://bucket/runs", "intervalSteps": 10 });
    document
}

fn status() -> Value {
    json!({
        "phase": "Training", "step": 40, "steps": 100, "progress": "40/100", "loss": "2.5", "tokensPerSecond": 512, "eta": "1m4s",
        "goodput": "90.0%", "workers": 4, "newestPod": 4, "conditions": [],
        "time": { "until": "2026-11-23T12:00:00Z", "trainingSeconds": 90, "recoveringSeconds": 4, "waitingSeconds": 6 },
        "plan": { "generation": 2, "shape": "P2xD2", "rankMap": "0,2;1,3;", "workers": 4, "idle": 0 },
        "history": [{ "at": "2026-11-23T11:00:00Z", "reason": "Planned", "text": "plan 2: P2xD2 with 4 workers" }],
    })
}

#[test]
fn status_plan_and_events_tell_what_the_api_server_has() {
    let plugin = Plugin::in_namespace("plugin-tells");
    plugin.make(&saving(), &status());
    let uid = plugin.job()["metadata"]["uid"].clone();
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "j.1", "namespace": plugin.namespace },
        "involvedObject": { "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "name": "j", "namespace": plugin.namespace, "uid": uid },
        "reason": "Resumed", "message": "training goes on 1.32 s after the loss of a worker", "type": "Normal",
        "lastTimestamp": "2026-11-23T11:00:05Z",
    });
    plugin.kubectl(&["create", "-f", "-"], &event.to_string());
    let told = plugin.says(&["status", "j"]);
    for part in [
        "/j: Training  step 40/100  loss 2.5  512 tok/s  ETA 1m4s",
        "90.0%  (90 s training; 4 s recovering, 6 s waiting for workers)",
        "2 (P2xD2) with 4 workers",
        "training goes on 1.32 s after the loss of a worker",
    ] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    let plan = plugin.says(&["plan", "j"]);
    assert!(
        plan.contains("rank map 0,2;1,3;") && plan.contains("stage 1   ranks 1, 3"),
        "{plan}"
    );
    let events = plugin.says(&["events", "j"]);
    let lines: Vec<&str> = events.lines().collect();
    assert_eq!(lines.len(), 2, "{events}");
    assert!(
        lines[0].contains("plan 2: P2xD2") && lines[1].contains("Resumed"),
        "{events}"
    );
    let columns = plugin.kubectl(&["get", "vj", "j"], "");
    for part in [
        "STEP", "40/100", "TOK/S", "512", "GOODPUT", "90.0%", "ETA", "1m4s",
    ] {
        assert!(columns.contains(part), "no {part} in {columns}");
    }
}

#[test]
fn scale_and_save_change_the_job_and_nothing_else() {
    let plugin = Plugin::in_namespace("plugin-changes");
    plugin.make(&saving(), &status());
    plugin.says(&["scale", "j", "12"]);
    assert_eq!(plugin.job()["spec"]["elasticity"]["maxWorkers"], 12);
    plugin.refuses(&["scale", "j", "0"], "maxWorkers");
    plugin.refuses(&["scale", "j", "100001"], "100000");
    plugin.says(&["save", "j"]);
    let asked = |plugin: &Plugin| plugin.job()["metadata"]["annotations"]["varuna.dev/save-at"].clone();
    let first = asked(&plugin);
    assert!(first.as_str().is_some_and(|at| at.ends_with('Z')), "{first}");
    plugin.says(&["save", "j"]);
    assert_ne!(asked(&plugin), first, "each is a request of its own");
    assert_eq!(plugin.job()["spec"]["training"]["steps"], 100);
}

#[test]
fn what_cannot_be_done_is_said_with_the_name_of_the_job() {
    let plugin = Plugin::in_namespace("plugin-refuses");
    plugin.refuses(
        &["status", "j"],
        &format!("there is no VarunaJob j in namespace {}", plugin.namespace),
    );
    plugin.make(
        &job("j"),
        &json!({ "workers": 0, "newestPod": 0, "conditions": [] }),
    );
    plugin.refuses(&["save", "j"], "j names no location for checkpoints");
    plugin.refuses(&["plan", "j"], "j has no plan yet");
}
