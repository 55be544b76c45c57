//! What several tests of this crate begin with.

use crate::decide::{ObservedJob, Settings};
use varuna_api::crd::Status;

/// A job of this name and uid in the namespace `n`, whose spec is of no interest.
pub(crate) fn job(name: &str, uid: &str) -> ObservedJob {
    ObservedJob {
        name: name.into(),
        namespace: "n".into(),
        uid: uid.into(),
        generation: 1,
        spec: Err("of no interest".into()),
        save_at: None,
        status: Status::default(),
        deleting: false,
    }
}

/// Settings of an operator that knows no images, and no signals of nodes.
pub(crate) fn settings() -> Settings {
    Settings {
        image: None,
        coordinator_image: None,
        coordinator_priority_class: None,
        gpu_resource: None,
        node_signals: vec![],
        topology_labels: vec![],
    }
}
