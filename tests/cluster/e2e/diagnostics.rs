//! Information about the cluster after a failed case.

use crate::world::{OPERATOR, World};
use anyhow::Result;
use kube::ResourceExt;
use std::path::PathBuf;
use varuna_cluster_tests::root;

impl World {
    /// The state of the cluster in a few lines, because CI keeps only the end of the output.
    pub(crate) async fn summary(&self) -> String {
        let kubectl = |arguments: &[&str]| {
            self.cluster
                .kubectl(arguments, "")
                .unwrap_or_else(|e| format!("{e:#}\n"))
        };
        let mut text = kubectl(&["get", "pods", "-A", "-o", "wide", "--no-headers"]);
        let conditions = "jsonpath={range .items[*]}{.metadata.name}{range .status.conditions[*]} {.type}={.status}{end} \
                          {.spec.taints[*].key}{\"\\n\"}{end}";
        text += &kubectl(&["get", "nodes", "-o", conditions]);
        let warnings = [
            "get",
            "events",
            "-A",
            "--field-selector=type=Warning",
            "--sort-by=.metadata.creationTimestamp",
        ];
        text += &last(&kubectl(&warnings), 8);
        for pod in self.operators().await.unwrap_or_default() {
            let name = pod.name_any();
            text += &format!("-- {name}\n");
            text += &last(&kubectl(&["-n", OPERATOR, "logs", "--tail=6", &name]), 6);
        }
        text
    }

    /// Saves information about a failure in a folder, and returns the folder.
    pub(crate) async fn save_diagnostics(&self, case: &str, namespace: &str) -> PathBuf {
        let folder = root().join("runs/e2e").join(case);
        let _ = std::fs::create_dir_all(&folder);
        let write = |name: &str, text: Result<String>| {
            let text = text.unwrap_or_else(|e| e.to_string());
            let _ = std::fs::write(folder.join(name), text);
        };
        let kubectl = |arguments: &[&str]| self.cluster.kubectl(arguments, "");
        write("job.yaml", kubectl(&["-n", namespace, "get", "vj", "-o", "yaml"]));
        write(
            "events",
            kubectl(&[
                "-n",
                namespace,
                "get",
                "events",
                "--sort-by=.metadata.creationTimestamp",
            ]),
        );
        write("pods", kubectl(&["-n", namespace, "describe", "pods"]));
        write("nodes", kubectl(&["describe", "nodes"]));
        for pod in self.operators().await.unwrap_or_default() {
            let name = pod.name_any();
            write(&format!("{name}.log"), kubectl(&["-n", OPERATOR, "logs", &name]));
            write(
                &format!("{name}.previous.log"),
                kubectl(&["-n", OPERATOR, "logs", "--previous", &name]),
            );
        }
        let arguments = [
            "-n",
            namespace,
            "logs",
            "-l",
            "varuna.dev/job=j",
            "--prefix",
            "--tail=200",
        ];
        write("workers.log", kubectl(&arguments));
        write(
            "run.yaml",
            kubectl(&["-n", namespace, "get", "varunaruns", "-o", "yaml"]),
        );
        folder
    }
}

/// The last lines of a text, each shortened.
fn last(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    let short = |line: &&str| line.chars().take(240).chain(['\n']).collect::<String>();
    all[from..].iter().map(short).collect()
}
