//! `varuna checkpoint save`: a checkpoint on demand.

use crate::failure::Failure;
use crate::io::print_line;
use crate::remote::{contact, reach, status_of};
use std::path::Path;
use std::time::{Duration, Instant};
use varuna_wire::v1::SaveRequest;

/// How often the run's status is asked for.
const POLL: Duration = Duration::from_millis(200);

pub(super) async fn save(run: &Path, timeout_s: u64) -> Result<(), Failure> {
    let contact = contact(run)?;
    let reply = reach(&contact).await?.save(SaveRequest {}).await;
    let reply = reply.map_err(|status| Failure::Input(status.message().to_owned()))?;
    let requested_at = reply.into_inner().step;
    let start = Instant::now();
    loop {
        let status = status_of(&contact).await?;
        let last = status.run.last_step;
        let saved = status.checkpoint.unwrap_or_default();
        // The last step of a run has no later one.
        if let (Some(name), Some(step)) = (saved.newest, saved.newest_step)
            && (step.0 > requested_at || step >= last)
        {
            print_line(&name);
            return Ok(());
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
