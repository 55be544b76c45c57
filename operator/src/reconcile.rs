//! One look at one job: observe -> decide -> apply -> publish.

use crate::context::{Context, JobRef};
use crate::credentials::credentials;
use crate::decide::{Credentials, Desired, Note, Observed, Refused, decide};
use crate::{apply, observe, publish, run};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::controller::Action;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A look at a job takes no longer: an API server that does not answer must not hold it for ever.
const DEADLINE: Duration = Duration::from_secs(30);
/// Without any event a job is looked at so often: no watch promises every event.
const AGAIN: Duration = Duration::from_secs(300);

/// Why a look at a job failed; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not answer.
    #[error("API server: {0}")]
    Api(#[from] kube::Error),
    /// Something will not be done, however often it is tried.
    #[error("{what:?} refused: {words}")]
    Refused {
        /// What.
        what: Refused,
        /// Why, in the words of whoever refuses.
        words: String,
    },
    /// It took too long.
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Late,
}

impl Error {
    /// The job's coordinator cannot be started.
    pub(crate) fn coordinator(why: &dyn std::fmt::Display) -> Error {
        Error::Refused {
            what: Refused::Coordinator,
            words: why.to_string(),
        }
    }

    /// In a word, for metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Api(_) => "api",
            Error::Refused { .. } => "refused",
            Error::Late => "late",
        }
    }
}

/// Looks at a job.
///
/// # Errors
/// Something could not be carried out; all of it is tried again.
pub async fn reconcile(object: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, Error> {
    let began = Instant::now();
    let result = tokio::time::timeout(DEADLINE, look(&object, &context)).await;
    let result = result.unwrap_or(Err(Error::Late));
    let kind = result.as_ref().err().map(Error::kind);
    context.health.metrics.reconciled(began.elapsed(), kind);
    result
}

async fn look(object: &DynamicObject, context: &Arc<Context>) -> Result<Action, Error> {
    let mut seen = observed(object, context).await?;
    let mut desired = decide(&seen);
    let mut fresh = None;
    if !desired.create.is_empty() || !desired.delete.is_empty() {
        // What was watched may be old: pods are made and deleted only on what the API server has now.
        let Some(now) = context.jobs(&seen.job.namespace).get_opt(&seen.job.name).await? else {
            return Ok(Action::await_change());
        };
        seen.job = observe::job(&now);
        let pods = apply::pods(context, &seen.job).await?;
        seen.pods = pods.iter().filter_map(observe::pod).collect();
        desired = decide(&seen);
        fresh = Some(now);
    }
    match carry_out(context, &seen, fresh.as_ref().unwrap_or(object), &desired).await {
        Ok(()) => context.setbacks.went_well(&seen.job, &seen.setbacks),
        Err(Error::Refused { what, words }) => context.setbacks.hit(&seen.job, what, &words),
        Err(error) => return Err(error),
    }
    let setbacks = context.setbacks.seen(&seen.job);
    if setbacks != seen.setbacks {
        // What is said of the job includes what has just been refused.
        seen.setbacks = setbacks;
        desired = decide(&seen);
    }
    measure(context, &seen, &desired);
    publish::publish(context, &seen.job, &desired).await?;
    for (reason, text) in context.runs.diary(&seen.job) {
        let note = Note {
            warning: false,
            once: false,
            reason,
            text,
        };
        publish::event(context, &seen.job, &note).await;
    }
    let again = desired.again_after.and_then(|s| u64::try_from(s).ok());
    let again = again.map_or(AGAIN, Duration::from_secs);
    Ok(Action::requeue(again.clamp(Duration::from_secs(1), AGAIN)))
}

async fn carry_out(
    context: &Arc<Context>,
    seen: &Observed,
    object: &DynamicObject,
    desired: &Desired,
) -> Result<(), Error> {
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    run::carry_out(context, &seen.job, &spec, desired.coordinator).await?;
    context.runs.tell(&seen.job, &desired.known);
    apply::apply(context, &seen.job, desired).await
}

fn measure(context: &Context, seen: &Observed, desired: &Desired) {
    let key = (seen.job.namespace.clone(), seen.job.name.clone());
    let steps = seen.job.spec.as_ref().map_or(0, |j| j.training.steps);
    let jobs = &context.health.metrics.jobs;
    jobs.decided(&key, &desired.status, steps, desired.pods.clone());
}

async fn observed(object: &DynamicObject, context: &Context) -> Result<Observed, Error> {
    let job = observe::job(object);
    let ours = |pod: &Arc<Pod>| {
        pod.namespace().as_deref() == Some(&job.namespace) && observe::job_of(pod) == Some(&job.name)
    };
    let pods = context
        .pods
        .state()
        .iter()
        .filter(|p| ours(p))
        .filter_map(|p| observe::pod(p))
        .collect();
    let nodes = context
        .nodes
        .state()
        .iter()
        .map(|n: &Arc<Node>| (n.name_any(), observe::node(n)))
        .collect();
    Ok(Observed {
        credentials: if job.deleting {
            Credentials::default()
        } else {
            credentials(context, &job).await?
        },
        run: context.runs.seen(&job, &context.place.address),
        setbacks: context.setbacks.seen(&job),
        pods,
        nodes,
        now: jiff::Timestamp::now().as_second(),
        settings: context.settings.clone(),
        job,
    })
}

/// A failed look is repeated after a while; the job says why.
pub fn failed(object: Arc<DynamicObject>, error: &Error, context: Arc<Context>) -> Action {
    let reference = JobRef::from_obj_with(object.as_ref(), crate::context::resource());
    tracing::warn!(%error, job = %reference, "will be tried again");
    if matches!(error, Error::Refused { .. }) {
        let (job, text) = (observe::job(&object), error.to_string());
        tokio::spawn(async move {
            let note = Note {
                warning: true,
                once: true,
                reason: "CannotRun",
                text,
            };
            publish::event(&context, &job, &note).await;
        });
    }
    Action::requeue(Duration::from_secs(10))
}
