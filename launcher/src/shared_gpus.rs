//! What follows if a pod has fewer GPUs than workers. Pure.
//!
//! Workers share GPUs only if their command says so, whether or not this program can count the GPUs. Without that, each is told its place, and one that finds
//! a GPU ends with an error. Whether it finds one, only the worker knows: a pod without GPUs may see the folders of its node's driver.

use std::ffi::OsString;
use varuna_machine::Gpus;

/// The argument with which a worker shares its GPU.
const SHARE: &str = "--share-gpus";

/// The GPUs as the workers of this command are given them, and a sentence for people if there are fewer than workers.
#[must_use]
pub fn settle(gpus: Gpus, workers: usize, command: &[OsString]) -> (Gpus, Option<String>) {
    let Some(count) = gpus.fewer_than(workers) else {
        return (gpus, None);
    };
    if command.iter().any(|argument| argument == SHARE) {
        let most = workers.div_ceil(count);
        let said = format!(
            "there are fewer GPUs ({count}) than workers ({workers}): up to {most} workers share one, as their command has {SHARE}"
        );
        return (gpus, Some(said));
    }
    let said = format!(
        "there are fewer GPUs ({count}) than workers ({workers}), which must not share them: a worker that computes on a GPU ends with an error, unless \
         it has {SHARE}; allowed are as many workers as GPUs, or {SHARE} in the workers' command"
    );
    (Gpus::Uncounted, Some(said))
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::WorkerDevice;

    /// What workers of this command are given of so many GPUs, and what is said.
    fn settled(present: usize, workers: usize, command: &[&str]) -> (Gpus, String) {
        let gpus = Gpus::choose(WorkerDevice::Auto, None, present);
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let (gpus, said) = settle(gpus, workers, &command);
        (gpus, said.unwrap_or_default())
    }

    #[test]
    fn workers_share_gpus_only_if_told_to_and_either_is_logged() {
        let named = |names: &[&str]| Gpus::Named(names.iter().map(|&n| n.to_owned()).collect());
        let (gpus, said) = settled(2, 5, &["varuna-worker", SHARE]);
        assert_eq!(gpus, named(&["0", "1"]));
        assert!(
            said.contains("GPUs (2) than workers (5): up to 3 workers"),
            "{said}"
        );
        let (gpus, said) = settled(2, 5, &["varuna-worker", "--share-gpus=no"]);
        assert_eq!(gpus, Gpus::Uncounted, "each worker is told its place");
        assert!(
            said.contains("GPUs (2) than workers (5)") && said.contains("must not share"),
            "{said}"
        );
    }

    #[test]
    fn enough_gpus_none_or_an_unknown_number_change_nothing() {
        for (present, workers) in [(4, 4), (8, 2), (0, 3)] {
            let (gpus, said) = settled(present, workers, &["varuna-worker"]);
            assert_eq!(gpus, Gpus::choose(WorkerDevice::Auto, None, present));
            assert_eq!(said, "");
        }
        let hidden = Gpus::choose(WorkerDevice::Auto, Some(""), 4);
        assert_eq!(settle(hidden, 2, &[]), (Gpus::Named(Vec::new()), None));
    }
}
