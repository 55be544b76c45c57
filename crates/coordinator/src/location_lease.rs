//! Claims of this host's processes to a checkpoint location, and the check whether the process of an earlier claim, or another one, has ended.

use std::io::ErrorKind;
use varuna_checkpoint::Claim;

/// The claim of a run whose coordinator is this process.
#[must_use]
pub fn claim_of_this_process(run: String) -> Claim {
    let process = std::process::id();
    let started = started(process).ok().flatten();
    Claim {
        run,
        // Process ids are reused: without its start time, a process cannot be distinguished from a later one.
        machine: started.and_then(|_| machine()).unwrap_or_default(),
        process,
        started: started.unwrap_or(0),
    }
}

/// Whether the process of the claim ran on this machine and has certainly ended.
#[must_use]
pub fn claimant_has_ended(claim: &Claim) -> bool {
    process_has_ended(&claim.machine, claim.process, claim.started)
}

/// Whether a process ran on this machine and has certainly ended.
pub(crate) fn process_has_ended(on: &str, process: u32, since: u64) -> bool {
    let here = !on.is_empty() && machine().is_some_and(|m| m == on);
    here && started(process).is_ok_and(|start| start != Some(since))
}

/// When a child of this process was started, in clock ticks since boot; none if there is no such child.
pub(crate) fn started_as_child(process: u32) -> Option<u64> {
    let stat = stat(process).ok().flatten()?;
    (stat.parent == std::process::id()).then_some(stat.started)
}

/// Identifies this boot of this machine and this process's PID namespace (containers have their own).
pub(crate) fn machine() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let table = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), table.display()))
}

/// When a process started, in clock ticks since boot; none if there is no such process.
fn started(process: u32) -> Result<Option<u64>, std::io::Error> {
    Ok(stat(process)?.map(|stat| stat.started))
}

/// What the system says about a process.
struct Stat {
    parent: u32,
    started: u64,
}

/// What the system says about a process; none if there is no such process.
fn stat(process: u32) -> Result<Option<Stat>, std::io::Error> {
    let text = match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name, in parentheses, may contain any characters; the parent is the second field after it, and the start time the 20th (proc(5)).
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace();
    let parent = fields.nth(1).and_then(|f| f.parse().ok());
    let started = fields.nth(17).and_then(|f| f.parse().ok());
    match (parent, started) {
        (Some(parent), Some(started)) => Ok(Some(Stat { parent, started })),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_of_this_machine_that_is_gone_has_ended() {
        let mine = claim_of_this_process("run".into());
        assert!(!mine.machine.is_empty() && mine.started > 0, "{mine:?}");
        assert!(!claimant_has_ended(&mine));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = child.id();
        child.wait().unwrap();
        let gone = Claim {
            process,
            ..mine.clone()
        };
        assert!(claimant_has_ended(&gone));
        let elsewhere = Claim {
            machine: "another".into(),
            ..gone
        };
        assert!(!claimant_has_ended(&elsewhere));
        // The process id is used again by another process.
        let again = Claim {
            started: mine.started + 1,
            ..mine
        };
        assert!(claimant_has_ended(&again));
    }
}
