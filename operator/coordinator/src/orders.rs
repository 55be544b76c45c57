//! What the operator has ordered: the spec of the job's `VarunaRun`, watched.

use futures::StreamExt as _;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use varuna_api::crd::{RunGoal, RunSpec, VarunaRun};

/// A dead connection is noticed a few seconds after this time.
pub(crate) const WATCH_SECONDS: u32 = 45;

/// What is known of the orders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Orders {
    /// The orders were not read yet.
    Unknown,
    /// The job is deleted, and they with it.
    Gone,
    /// The orders as they were last read.
    Given(RunSpec),
}

/// What a coordinator has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Another coordinator is in charge, or none yet: wait.
    Wait,
    /// This coordinator is in charge.
    Lead,
    /// A later one is in charge, or none is wanted any more: end.
    Leave,
}

impl Orders {
    /// The role of the coordinator with this number.
    #[must_use]
    pub fn role(&self, number: i64) -> Role {
        match self {
            Orders::Unknown => Role::Wait,
            Orders::Gone => Role::Leave,
            Orders::Given(spec) => role(spec, number),
        }
    }

    /// The orders as they were last read; none if they were not read yet or are gone.
    #[must_use]
    pub fn given(&self) -> Option<&RunSpec> {
        match self {
            Orders::Given(spec) => Some(spec),
            Orders::Unknown | Orders::Gone => None,
        }
    }

    /// What the coordinator in charge is to do.
    #[must_use]
    pub fn goal(&self) -> Option<RunGoal> {
        self.given().map(|spec| spec.goal)
    }
}

/// The role of the coordinator with this number.
#[must_use]
pub fn role(spec: &RunSpec, number: i64) -> Role {
    match number.cmp(&spec.coordinator) {
        std::cmp::Ordering::Greater => Role::Wait,
        std::cmp::Ordering::Less => Role::Leave,
        std::cmp::Ordering::Equal if spec.goal == RunGoal::None => Role::Leave,
        std::cmp::Ordering::Equal => Role::Lead,
    }
}

/// The resource `VarunaRun`. Runs are read untyped: a field of a later release must not hide the rest.
#[must_use]
pub fn resource() -> ApiResource {
    ApiResource::erase::<VarunaRun>(&())
}

/// The runs of a namespace.
#[must_use]
pub fn runs(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource())
}

/// The orders in an object; none where this release does not understand them.
#[must_use]
pub fn orders_of(object: &DynamicObject) -> Option<RunSpec> {
    let spec = serde_json::from_value(object.data.get("spec")?.clone());
    spec.inspect_err(
        |error| tracing::warn!(%error, "orders that this release does not understand are not followed"),
    )
    .ok()
}

/// Orders, and the version of the object in which they were seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenOrders {
    /// The orders.
    pub spec: RunSpec,
    /// The object's `resourceVersion`, as the number that it is.
    pub version: u64,
}

/// Follows the orders until `orders` has no reader. If orders cannot be understood, or the API server does not answer, the last orders stay
/// in force.
pub async fn follow(
    runs: Api<DynamicObject>,
    name: String,
    orders: watch::Sender<Orders>,
    seen: watch::Sender<Option<SeenOrders>>,
) {
    let config = watcher::Config::default()
        .timeout(WATCH_SECONDS)
        .fields(&format!("metadata.name={name}"));
    let mut events = watcher(runs, config).default_backoff().boxed();
    let mut listed = false;
    while !orders.is_closed() {
        let Some(event) = events.next().await else { return };
        let given = |object: &DynamicObject| {
            let Some(spec) = orders_of(object) else { return };
            if let Ok(version) = object
                .metadata
                .resource_version
                .as_deref()
                .unwrap_or_default()
                .parse()
            {
                let spec = spec.clone();
                seen.send_replace(Some(SeenOrders { spec, version }));
            }
            orders.send_if_modified(|known| {
                let given = Orders::Given(spec);
                let is_new = *known != given;
                if is_new {
                    *known = given;
                }
                is_new
            });
        };
        match event {
            Ok(watcher::Event::Init) => listed = false,
            Ok(watcher::Event::InitApply(object)) => {
                listed = true;
                given(&object);
            }
            Ok(watcher::Event::InitDone) if !listed => {
                orders.send_replace(Orders::Gone);
            }
            Ok(watcher::Event::InitDone) => {}
            Ok(watcher::Event::Apply(object)) => given(&object),
            Ok(watcher::Event::Delete(_)) => {
                orders.send_replace(Orders::Gone);
            }
            Err(error) => tracing::warn!(%error, "the orders cannot be watched"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// Orders for this coordinator that say nothing of nodes and workers.
    pub(crate) fn written(goal: RunGoal, coordinator: i64) -> RunSpec {
        RunSpec {
            uid: "u".into(),
            goal,
            coordinator,
            newest_coordinator: coordinator,
            steps: 0,
            allow_state_loss: false,
            save_at: None,
            leaving: vec![],
            ends_at: std::collections::BTreeMap::new(),
            written_at: None,
            ended: vec![],
            domains: std::collections::BTreeMap::new(),
        }
    }

    fn given(goal: RunGoal, coordinator: i64) -> Orders {
        Orders::Given(written(goal, coordinator))
    }

    #[test]
    fn ordered_coordinator_leads_and_others_leave_or_wait() {
        let orders = given(RunGoal::Run, 3);
        assert_eq!(
            [2, 3, 4].map(|n| orders.role(n)),
            [Role::Leave, Role::Lead, Role::Wait]
        );
        let none = given(RunGoal::None, 3);
        assert_eq!(
            [2, 3, 4].map(|n| none.role(n)),
            [Role::Leave, Role::Leave, Role::Wait]
        );
        assert_eq!(given(RunGoal::Stop, 3).role(3), Role::Lead);
        assert_eq!(
            (Orders::Unknown.role(3), Orders::Gone.role(3)),
            (Role::Wait, Role::Leave)
        );
    }

    #[test]
    fn orders_of_another_release_are_partly_read() {
        let object = |spec: serde_json::Value| -> DynamicObject {
            serde_json::from_value(json!({ "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaRun", "metadata": { "name": "j" }, "spec": spec }))
                .unwrap()
        };
        let more = object(json!({ "uid": "u", "goal": "Save", "coordinator": 2, "new": {} }));
        assert_eq!(
            orders_of(&more).map(|o| (o.goal, o.coordinator, o.allow_state_loss)),
            Some((RunGoal::Save, 2, false)),
            "an operator of an earlier release allows nothing"
        );
        assert_eq!(
            orders_of(&object(
                json!({ "uid": "u", "goal": "Hibernate", "coordinator": 2 })
            )),
            None
        );
    }
}
