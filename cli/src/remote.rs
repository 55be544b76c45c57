//! Commands that talk to the coordinator of a run: `scale`, `status`.

use crate::coordinator::runtime;
use crate::failure::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use varuna_coordinator::folder::Contact;
use varuna_wire::v1::{ScaleRequest, StatusRequest};

/// Starts or stops workers of a run.
#[derive(clap::Args)]
pub(crate) struct ScaleArguments {
    /// The run folder.
    run: PathBuf,
    /// How many workers there shall be.
    workers: u32,
}

/// Says what a run is doing.
#[derive(clap::Args)]
pub(crate) struct StatusArguments {
    /// The run folder.
    run: PathBuf,
    /// The whole status as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn contact(run: &Path) -> Result<Contact, Failure> {
    let path = run.join("coordinator.json");
    let bad = |why: String| {
        Failure::Input(format!(
            "{} is not a run folder: {}: {why}",
            run.display(),
            path.display()
        ))
    };
    let text = std::fs::read_to_string(&path).map_err(|e| bad(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| bad(e.to_string()))
}

pub(crate) async fn reach(contact: &Contact) -> Result<varuna_wire::Client, Failure> {
    varuna_wire::connect(&contact.address, None)
        .await
        .map_err(|e| Failure::Internal(format!("no coordinator answers at {}: {e}", contact.address)))
}

/// The run's status, from its coordinator.
pub(crate) async fn status_of(contact: &Contact) -> Result<Value, Failure> {
    let request = StatusRequest {
        token: contact.token.clone(),
    };
    let reply = reach(contact).await?.status(request).await;
    let reply = reply.map_err(|status| Failure::Internal(status.message().to_owned()))?;
    serde_json::from_str(&reply.into_inner().json).map_err(|e| Failure::Internal(format!("status: {e}")))
}

pub(crate) fn scale(arguments: &ScaleArguments) -> Result<(), Failure> {
    let contact = contact(&arguments.run)?;
    runtime()?.block_on(async {
        let request = ScaleRequest {
            workers: arguments.workers,
            token: contact.token.clone(),
        };
        let reply = reach(&contact).await?.scale(request).await;
        let reply = reply.map_err(|status| Failure::Input(status.message().to_owned()))?;
        println!("{}", reply.into_inner().message);
        Ok(())
    })
}

pub(crate) fn status(arguments: &StatusArguments) -> Result<(), Failure> {
    let contact = contact(&arguments.run)?;
    // A run that has ended left its last status.
    let last = std::fs::read_to_string(arguments.run.join("status.json"));
    let now = runtime()?.block_on(status_of(&contact));
    let status = match (now, last) {
        (Ok(status), _) => status,
        (Err(failure), Err(_)) => return Err(failure),
        (Err(_), Ok(text)) => {
            serde_json::from_str(&text).map_err(|e| Failure::Internal(format!("status.json: {e}")))?
        }
    };
    if arguments.json {
        println!("{status:#}");
    } else {
        print!("{}", text(&status));
    }
    Ok(())
}

fn text(status: &Value) -> String {
    let of = |key: &str| status.get(key).map_or(String::new(), plain);
    let ms = |key: &str| {
        status
            .get(key)
            .and_then(Value::as_f64)
            .map_or("-".into(), |v| format!("{v:.0} ms"))
    };
    let mut text = format!(
        "{}: {}  step {}/{}  loss {}\nplan {} (generation {})  step predicted {} observed {}\n",
        of("job"),
        of("mode"),
        of("step"),
        of("lastStep"),
        status
            .get("loss")
            .and_then(Value::as_f64)
            .map_or("-".into(), |l| format!("{l:.4}")),
        of("plan"),
        of("generation"),
        ms("predictedMs"),
        ms("observedMs"),
    );
    for worker in status
        .get("workers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let of = |key: &str| worker.get(key).map_or(String::new(), plain);
        let ranges = worker.get("segments").and_then(Value::as_array);
        let ranges: Vec<String> = ranges.into_iter().flatten().map(range).collect();
        let segments = match ranges.as_slice() {
            [] => "-".into(),
            some => some.join(","),
        };
        text.push_str(&format!(
            "  {:<8} {:<8} pipeline {:<3} segments {:<8} step {:<6} pid {} on {}{}\n",
            of("name"),
            of("phase"),
            of("pipeline"),
            segments,
            of("step"),
            of("pid"),
            of("host"),
            if worker.get("draining").and_then(Value::as_bool) == Some(true) {
                "  (leaving)"
            } else {
                ""
            },
        ));
    }
    text
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// `3..5`.
fn range(segments: &Value) -> String {
    let of = |key: &str| segments.get(key).map_or(String::new(), plain);
    format!("{}..{}", of("start"), of("end"))
}
