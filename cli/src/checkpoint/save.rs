//! `varuna checkpoint save`: a checkpoint on demand.

use crate::failure::Failure;
use crate::io::print_line;
use crate::remote::{contact, ended_or, in_time, reach, request_failure, status_of};
use std::path::Path;
use std::time::{Duration, Instant};
use varuna_run_folder::{Contact, RunFiles, RunStatus};
use varuna_wire::is_refusal;
use varuna_wire::v1::SaveRequest;

/// How often the run's status is asked for.
const POLL: Duration = Duration::from_millis(200);

pub(super) async fn save(run: &Path, timeout_s: u64) -> Result<(), Failure> {
    let contact = contact(run)?;
    let client = reach(&contact).await;
    let mut client = client.map_err(|failure| ended_or(run, failure))?;
    let reply = in_time(&contact, client.save(SaveRequest {})).await?;
    let reply = reply.map_err(|s| request_failure(&contact, is_refusal(&s), s.message()))?;
    let requested_at = reply.into_inner().step;
    let start = Instant::now();
    loop {
        let (status, gone) = status_or_last(run, &contact).await?;
        let last = status.run.last_step;
        let saved = status.checkpoint.unwrap_or_default();
        // The last step of a run has no later one.
        if let (Some(name), Some(step)) = (saved.newest, saved.newest_step)
            && (step.0 > requested_at || step >= last)
        {
            print_line(&name);
            return Ok(());
        }
        if let Some(failure) = gone {
            return Err(failure);
        }
        if start.elapsed().as_secs() >= timeout_s {
            let why = saved.failing.map_or(String::new(), |why| format!(": {why}"));
            return Err(Failure::Internal(format!(
                "no checkpoint after step {requested_at} is complete after {timeout_s} s{why}"
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The run's status, or else the last one that it has written and why there is no newer one: a run that ends with a checkpoint answers no more.
async fn status_or_last(run: &Path, contact: &Contact) -> Result<(RunStatus, Option<Failure>), Failure> {
    match status_of(contact).await {
        Ok(status) => Ok((status, None)),
        Err(failure) => match RunFiles::new(run).status() {
            Ok(last) => Ok((last, Some(failure))),
            Err(_) => Err(failure),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::runtime;
    use serde_json::json;
    use std::net::TcpListener;

    #[test]
    fn a_run_that_has_ended_with_a_checkpoint_says_so_in_its_folder() {
        let temp = tempfile::tempdir().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let contact = Contact {
            address: closed.unwrap().to_string(),
            token: String::new(),
            certificate: None,
            pid: 1,
        };
        let runtime = runtime().unwrap();
        let look = || runtime.block_on(status_or_last(temp.path(), &contact));
        assert!(look().is_err(), "nothing was written");
        let last = json!({
            "job": "j", "mode": "done", "term": 1, "generation": 1, "next": null, "step": 10, "lastStep": 10, "plan": null,
            "predictedMs": null, "observedMs": null, "members": 0, "minWorkers": 1, "maxWorkers": null, "loss": null,
            "checkpoint": { "newest": "name", "newestStep": 10, "stepsBehind": 0, "failing": null }, "workers": [],
        });
        let files = RunFiles::new(temp.path());
        std::fs::write(files.status_path(), last.to_string()).unwrap();
        let (status, gone) = look().unwrap();
        assert_eq!(status.checkpoint.unwrap().newest.as_deref(), Some("name"));
        assert!(gone.is_some_and(|why| why.to_string().contains("no coordinator answers")));
    }
}
