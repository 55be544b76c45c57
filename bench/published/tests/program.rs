//! Runs the program as `make accuracy` and `make replay` do.

#![expect(clippy::unwrap_used, reason = "a test")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use varuna_plan::profile::Profile;

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data").join(file)
}

/// The output of the program.
fn output(arguments: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_varuna-published"));
    arguments(&mut command);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// From the table of the file that `make replay` writes: the goodput of each system on the p3 trace, "at once / patient".
fn documented() -> Vec<(String, String)> {
    let text = include_str!("../../../docs/guides/replay.md");
    let (_, table) = text.split_once("| system | p3:").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| {
        row.split('|')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    });
    cells.map(|cells| (cells[1].clone(), cells[2].clone())).collect()
}

#[test]
fn published_table_becomes_a_profile_for_plans() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("calibrated.json");
    let found = output(|command| {
        command
            .arg("calibrate")
            .arg("--json")
            .arg("--output")
            .arg(&profile);
        command
            .arg("--profile")
            .arg(data("measured/gpt-1.5b-v100-published.json"));
        command.arg("--links").arg(data("measured/p2p-10gbps.csv"));
        command
            .arg("--measured")
            .arg(data("measured/gpt-1.5b-v100-10gbps.csv"));
    });
    let found: Value = serde_json::from_str(&found).unwrap();
    for (field, documented) in [("medianError", 1.16), ("worstError", 3.60), ("meanRegret", 0.30)] {
        let per_cent = found[field].as_f64().unwrap() * 100.0;
        assert!((per_cent - documented).abs() < 0.005, "{field}: {per_cent}");
    }
    let text = std::fs::read_to_string(&profile).unwrap();
    assert!(
        Profile::read("calibrated", &text, None)
            .unwrap()
            .costs()
            .calibrated
    );

    let job = |command: &mut Command| {
        command
            .arg("--job")
            .arg(data("gpt2-1.5b.yaml"))
            .arg("--profile")
            .arg(&profile);
    };
    let found = output(|command| {
        command
            .arg("restarts")
            .arg(data("traces/aws-p3-spot.csv"))
            .arg("--json");
        job(command);
    });
    let found: Vec<Value> = serde_json::from_str(&found).unwrap();
    let per_cent = |value: &Value| format!("{:.1}", value.as_f64().unwrap() * 100.0);
    let cells = found.iter().map(|system| {
        let goodputs = format!(
            "{} / {}",
            per_cent(&system["goodput"]),
            per_cent(&system["patient"])
        );
        (system["name"].as_str().unwrap().to_owned(), goodputs)
    });
    assert_eq!(cells.collect::<Vec<_>>(), documented());

    let said = output(|command| {
        command.args(["schedules", "--workers", "12"]);
        job(command);
    });
    assert!(
        said.contains("1f1b w=1, to compare") && said.contains("zero-bubble H1"),
        "{said}"
    );
}
