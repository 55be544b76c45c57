//! From a manifest to a job: required fields, defaults, limits; every error of the file at once.
//!
//! This module has the order of the checks; each part of the spec has a module below, and `check` holds the checks of single values.

use crate::error::{Found, JobErrors};
use crate::job::Job;
use crate::lifecycle::Lifecycle;
use crate::limits;
use crate::manifest::{self, VarunaJob};
use crate::read::{self, UnknownFields};
use check::Check;
pub use check::{DNS_LABEL, is_label};

mod check;
mod checkpoint;
mod data;
mod exported;
mod learning_rate;
mod model;
mod pipeline;
mod queue;
mod rotary;
#[cfg(test)]
pub(crate) mod tests;
mod training;
mod worker_groups;
mod workers;

/// Reads, completes and checks a job file.
///
/// # Errors
/// Everything that is wrong with the file: syntax, unknown or missing fields, wrong types, values out of range, fields
/// that contradict each other.
pub fn parse_job(text: &str) -> Result<Job, JobErrors> {
    parse(text, UnknownFields::Refused)
}

/// Like [`parse_job`], for a document that another release may have accepted: fields that this build does not know are omitted.
///
/// # Errors
/// As those of [`parse_job`], except for up to a hundred unknown fields.
pub fn parse_job_of_any_release(text: &str) -> Result<Job, JobErrors> {
    parse(text, UnknownFields::LeftOut)
}

fn parse(text: &str, unknown: UnknownFields) -> Result<Job, JobErrors> {
    let mut check = Check(Found::default());
    let job = read::manifest(text, unknown, &mut check.0).map(|manifest| job(&mut check, manifest));
    check.0.finish(job)
}

fn job(check: &mut Check, file: VarunaJob) -> Job {
    check.one_of("apiVersion", file.api_version, &[(manifest::API_VERSION, ())]);
    check.one_of("kind", file.kind, &[(manifest::KIND, ())]);
    let metadata = check.required("metadata", file.metadata, "a mapping with a name");
    let spec = check.required("spec", file.spec, "a mapping with model, data and training");
    let queue = queue::queue(check, &metadata, &spec);
    let workload_priority_class = queue::workload_priority_class(check, &metadata);
    let name = check.label("metadata.name", metadata.name);
    let namespace = metadata.namespace.unwrap_or("default".into());
    let namespace = check.label("metadata.namespace", Some(namespace));
    let packing = data::packing(spec.data.as_ref());
    let data = data::data(check, spec.data);
    let model = model::model(check, spec.model);
    let allowed = "globalBatchSize, steps and optimizer";
    let written = check.required("spec.training", spec.training, allowed);
    let micro_batch_size = written.micro_batch_size;
    let precision = training::precision(check, written.precision.clone());
    let training = training::training(check, written, precision, (&data, packing, &model));
    let mut pipeline = pipeline::pipelines(check, spec.pipeline.unwrap_or_default(), &model);
    pipeline.micro_batch_size =
        pipeline::micro_batch_size(check, micro_batch_size, training.global_batch_size);
    pipeline::boundary(check, &pipeline, &model, precision);
    let elasticity = spec.elasticity.unwrap_or_default();
    let mut elasticity = workers::elasticity(check, &elasticity, pipeline.min_depth);
    let workers = workers::workers(check, spec.workers.unwrap_or_default());
    let groups = spec.worker_groups.unwrap_or_default();
    let worker_groups = worker_groups::worker_groups(check, groups, &workers, &mut elasticity);
    let network = spec.network.unwrap_or_default();
    let connections = workers::network(check, &network);
    workers::encrypted_transport(check, &workers, connections);
    if let Some(manager) = &spec.managed_by {
        check.manager("spec.managedBy", manager);
    }
    let checkpoint = spec.checkpoint.map(|c| checkpoint::checkpoint(check, c, &name));
    Job {
        name,
        namespace,
        elasticity,
        model,
        training,
        precision,
        data,
        pipeline,
        workers,
        worker_groups,
        checkpoint,
        network: connections,
        network_policy: workers::network_policy(check, network),
        compare_every_steps: checkpoint::compare_every_steps(check, spec.integrity),
        disruption: workers::disruption(check, spec.disruption.unwrap_or_default()),
        suspend: spec.suspend.unwrap_or(false),
        queue,
        workload_priority_class,
        coordinator: workers::coordinator(check, spec.coordinator.unwrap_or_default()),
        lifecycle: Lifecycle {
            failure_policy: workers::failure_policy(check, &spec.failure_policy.unwrap_or_default()),
            active_deadline_seconds: spec
                .active_deadline_seconds
                .map(|s| check.within("spec.activeDeadlineSeconds", s, limits::COUNT)),
            ttl_seconds_after_finished: spec
                .ttl_seconds_after_finished
                .map(|s| check.within("spec.ttlSecondsAfterFinished", s, limits::COUNT_OR_NONE)),
            allow_state_loss: spec.allow_state_loss.unwrap_or(false),
        },
    }
}
