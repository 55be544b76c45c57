//! The host name that a worker reports together with its process id.

use varuna_fixtures::{JobFile, Run};

/// Pods that use their node's network have the host name of the node, but number their processes separately.
#[test]
fn a_worker_in_a_pod_gives_the_name_of_its_pod_as_its_host() {
    let job = JobFile {
        steps: 1_000_000,
        ..JobFile::default()
    };
    let pod = ("VARUNA_WORKER_NAME".to_owned(), "j-w7".to_owned());
    let mut run = Run::start_with(&job, 1, &[pod]);
    assert_eq!(run.wait_for_workers(1)[0].host, "j-w7");
}
