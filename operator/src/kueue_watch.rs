//! Watches what Kueue says, while the API server serves it. Kueue may be installed and removed while the operator runs.

use crate::cluster::connection::within;
use crate::cluster::workloads::resource;
use crate::decide::{KueueVersion, PriorityKind};
use crate::error::DEADLINE;
use crate::index::{Flavors, Priorities, Workloads};
use crate::resource::JobRef;
use crate::watches::{Reports, Scope, config, fill, labelled};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use std::time::Duration;
use tokio::sync::watch;

/// An installation of Kueue is noticed within this time.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// When it seems to be gone, it is looked for once more after this time. An API server that has just started may not know all groups and roles
/// yet, and a job whose Workloads are forgotten counts as one without a queue.
const SECOND_LOOK: Duration = Duration::from_secs(5);
/// Delay before the next request when the API server did not answer.
const RETRY: Duration = Duration::from_secs(2);

/// Kinds that are watched: Workloads, flavours and two of classes of priority.
const KINDS: usize = 4;

/// Watches Kueue's objects while the API server serves them. `jobs`: all jobs with a queue, which are reconciled again when that changes.
/// Never ends.
pub(crate) async fn run(
    client: &Client,
    scope: &Scope,
    to: &Reports<'_>,
    jobs: impl Fn() -> Vec<JobRef> + Send + Sync,
) {
    let mut is_counted = false;
    let mut served = usable_version(client, scope).await;
    loop {
        let changed = to.index.queues.lock().set_served(served);
        for job in changed.into_iter().chain(jobs()) {
            // Nobody reads only when the controller has ended.
            let _ = to.changed.send(job).await;
        }
        let (filled, mut listed) = watch::channel(0);
        let count = async {
            let complete = if served.is_some() { KINDS } else { 0 };
            let _ = listed.wait_for(|listed| *listed >= complete).await;
            if !std::mem::replace(&mut is_counted, true) {
                to.filled.send_modify(|filled| *filled += 1);
            }
            std::future::pending::<()>().await;
        };
        let lists = Reports {
            filled: &filled,
            changed: to.changed.clone(),
            ..*to
        };
        served = tokio::select! {
            next = changes(client, scope, served) => next,
            () = count => served,
            () = watch_served(client, scope, served, &lists, &jobs) => served,
        };
    }
}

/// Watches all kinds, of Kueue's in this version; waits for ever where there is none.
async fn watch_served(
    client: &Client,
    scope: &Scope,
    served: Option<KueueVersion>,
    to: &Reports<'_>,
    jobs: &(impl Fn() -> Vec<JobRef> + Send + Sync),
) {
    let Some(version) = served else {
        return std::future::pending().await;
    };
    let apis = Apis::new(client, scope, version);
    let workloads = watcher(apis.workloads, labelled()).default_backoff();
    let flavors = watcher(apis.flavors, config()).default_backoff();
    let classes = apis.classes.map(|(kind, api)| {
        let events = watcher(api, config()).default_backoff();
        async move {
            let index = Priorities {
                index: to.index,
                kind,
                jobs,
            };
            fill::<DynamicObject, _>(kind.kind(), events, &index, to).await;
        }
    });
    let (of_jobs, of_cluster) = (Workloads(to.index), Flavors(to.index));
    futures::join!(
        fill::<DynamicObject, _>("Workload", workloads, &of_jobs, to),
        fill::<DynamicObject, _>("ResourceFlavor", flavors, &of_cluster, to),
        futures::future::join_all(classes),
    );
}

/// The resources that are watched.
struct Apis {
    workloads: Api<DynamicObject>,
    flavors: Api<DynamicObject>,
    classes: [(PriorityKind, Api<DynamicObject>); 2],
}

impl Apis {
    fn new(client: &Client, scope: &Scope, version: KueueVersion) -> Apis {
        let of = |kind: &str| -> ApiResource { resource(version, kind) };
        let of_pods = GroupVersionKind::gvk(PriorityKind::Pod.group(), "v1", PriorityKind::Pod.kind());
        let classes = [
            (PriorityKind::Workload, of(PriorityKind::Workload.kind())),
            (PriorityKind::Pod, ApiResource::from_gvk(&of_pods)),
        ];
        Apis {
            workloads: scope.documents(client, &of("Workload")),
            flavors: Api::all_with(client.clone(), &of("ResourceFlavor")),
            classes: classes.map(|(kind, resource)| (kind, Api::all_with(client.clone(), &resource))),
        }
    }
}

/// Returns when another version is served, or none any more.
async fn changes(client: &Client, scope: &Scope, served: Option<KueueVersion>) -> Option<KueueVersion> {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        // Whether the version that is in use can be read is not tried again: its watches say so.
        let is_served = within(DEADLINE, served_version(client)).await;
        if is_served.is_err() || is_served.is_ok_and(|version| version == served && served.is_some()) {
            continue;
        }
        let mut now = usable_version(client, scope).await;
        if now.is_none() && served.is_some() {
            tokio::time::sleep(SECOND_LOOK).await;
            now = usable_version(client, scope).await;
        }
        if now != served {
            return now;
        }
    }
}

/// The version of Kueue's API that is served and that the operator may read.
async fn usable_version(client: &Client, scope: &Scope) -> Option<KueueVersion> {
    loop {
        match usable(client, scope, DEADLINE).await {
            Ok(version) => return version,
            // The API server has said that there is none for us.
            Err(kube::Error::Api(status)) if status.is_not_found() => return None,
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                tracing::warn!(
                    message = status.message,
                    "Kueue is left out: the operator may not read its objects"
                );
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "whether Kueue is installed is not known");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// The newest version that is served and that this release can use.
async fn served_version(client: &Client) -> kube::Result<Option<KueueVersion>> {
    let groups = client.list_api_groups().await?.groups;
    let Some(group) = groups.into_iter().find(|group| group.name == KueueVersion::GROUP) else {
        return Ok(None);
    };
    let is_served = |version: &KueueVersion| group.versions.iter().any(|v| v.version == version.version());
    Ok(KueueVersion::ALL.into_iter().find(is_served))
}

/// The newest version that is served and that this release can use, once objects of all kinds could be read in it. An error if that takes longer than the
/// deadline: no answer must not hold up the start of the operator for ever.
async fn usable(client: &Client, scope: &Scope, deadline: Duration) -> kube::Result<Option<KueueVersion>> {
    let found = async {
        let Some(version) = served_version(client).await? else {
            return Ok(None);
        };
        let apis = Apis::new(client, scope, version);
        let one = ListParams::default().limit(1);
        apis.workloads.list(&one).await?;
        apis.flavors.list(&one).await?;
        for (_, classes) in &apis.classes {
            classes.list(&one).await?;
        }
        Ok(Some(version))
    };
    within(deadline, found).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, server};
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// What an API server answers that serves Kueue's newest version.
    fn groups() -> Value {
        let version = KueueVersion::ALL[0].version();
        let served =
            json!({ "groupVersion": format!("{}/{version}", KueueVersion::GROUP), "version": version });
        let group = json!({ "name": KueueVersion::GROUP, "versions": [served], "preferredVersion": served });
        json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group] })
    }

    fn asks_for_groups(asked: &ReceivedRequest) -> bool {
        asked.path.trim_end_matches('/') == "/apis"
    }

    /// What `changes` finds within a minute, if the first so many answers lack Kueue.
    async fn found_after(lacking: usize) -> Option<Option<KueueVersion>> {
        let told = Arc::new(AtomicUsize::new(0));
        let (client, _) = server(move |asked: &ReceivedRequest| {
            let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": [] });
            let none = json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [] });
            let answer = match asks_for_groups(asked) {
                true if told.fetch_add(1, Ordering::Relaxed) < lacking => none,
                true => groups(),
                false => list,
            };
            Some((200, answer))
        });
        let scope = Scope { namespace: None };
        let looks = changes(&client, &scope, Some(KueueVersion::ALL[0]));
        tokio::time::timeout(2 * LOOK_INTERVAL, looks).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn kueue_is_gone_only_after_a_second_look() {
        // Each look asks what is served, the first one twice.
        assert_eq!(found_after(2).await, None, "it is there again at the second look");
        assert_eq!(found_after(usize::MAX).await, Some(None));
    }

    #[tokio::test]
    async fn silent_api_server_is_not_awaited_for_ever() {
        // The server answers what it serves, and no other request.
        let groups = groups();
        let (client, _) =
            server(move |asked: &ReceivedRequest| asks_for_groups(asked).then(|| (200, groups.clone())));
        let scope = Scope { namespace: None };
        let found = usable(&client, &scope, Duration::from_millis(50)).await;
        assert!(matches!(found, Err(kube::Error::Service(_))), "{found:?}");
    }
}
