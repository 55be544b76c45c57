//! Writes a coordinator's orders into the spec of its job's `VarunaRun`. The coordinator writes only the status.

use super::ownership::{is_of, verify};
use crate::decide::objects::{metadata, record_name};
use crate::decide::{JobPart, ObservedJob};
use crate::error::Error;
use crate::run_object::RunObject;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use varuna_api::crd::RunSpec;

/// How often orders are written over the object as it was just read, before the next reconciliation decides again.
const TRIES: u32 = 3;

/// Writes orders: into a new object if there is none, else over the version on which the decision was based (`present`). A report that the
/// coordinator has written in the meantime does not matter; other orders do. Returns the object as it is now.
///
/// # Errors
/// The API server refuses or does not answer, the name is another's, or the orders have changed since: then a watch shows it soon.
pub async fn write(
    client: &Client,
    job: &ObservedJob,
    orders: &RunSpec,
    present: Option<&RunObject>,
) -> Result<RunObject, Error> {
    let runs: Api<RunObject> = Api::namespaced(client.clone(), &job.namespace);
    let name = record_name(job);
    let Some(present) = present else {
        return create(&runs, &name, job, orders).await;
    };
    let mut object = document(present.metadata.clone(), orders);
    for _ in 0..TRIES {
        match runs.replace(&name, &PostParams::default(), &object).await {
            // The coordinator may report every second, and the watch shows each report a moment later. So the known version is often an old
            // one.
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            written => return written.map_err(Error::changed_or_refused(JobPart::Coordinator)),
        }
        object.metadata = metadata_of_same(&runs, &name, job, present).await?;
    }
    Err(Error::Stale)
}

async fn create(
    runs: &Api<RunObject>,
    name: &str,
    job: &ObservedJob,
    orders: &RunSpec,
) -> Result<RunObject, Error> {
    let metadata = serde_json::from_value(metadata(job, name)).map_err(kube::Error::SerdeError)?;
    let object = document(metadata, orders);
    match runs.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let found = runs.get_opt(name).await?;
            found.map_or(Ok(()), |found| verify("VarunaRun", &found.metadata, job))?;
            Err(Error::Stale)
        }
        created => created.map_err(Error::changed_or_refused(JobPart::Coordinator)),
    }
}

/// The metadata of the object as it is now, if its orders are still those on which the decision was based: only operators write them.
async fn metadata_of_same(
    runs: &Api<RunObject>,
    name: &str,
    job: &ObservedJob,
    present: &RunObject,
) -> Result<ObjectMeta, Error> {
    let Some(found) = runs.get_opt(name).await? else {
        return Err(Error::Stale);
    };
    if found.orders.is_none() || found.orders != present.orders || !is_of(&found.metadata, job) {
        return Err(Error::Stale);
    }
    Ok(found.metadata)
}

fn document(metadata: ObjectMeta, orders: &RunSpec) -> RunObject {
    RunObject {
        metadata,
        orders: Some(orders.clone()),
        reports: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::fixtures;
    use serde_json::{Value, json};
    use varuna_api::manifest::{API_VERSION, KIND};

    fn job() -> ObservedJob {
        fixtures::job("j", "uid-j")
    }

    /// The object with these orders and with a report of a step, as a server has it.
    fn run(version: u64, coordinator: i64, step: u64) -> Value {
        let owner = json!([{ "apiVersion": API_VERSION, "kind": KIND, "name": "j", "uid": "uid-j", "controller": true }]);
        json!({
            "apiVersion": API_VERSION, "kind": "VarunaRun",
            "metadata": { "name": "j-uid-j", "namespace": "n", "uid": "r", "resourceVersion": version.to_string(), "ownerReferences": owner },
            "spec": { "uid": "uid-j", "goal": "Run", "coordinator": coordinator },
            "status": { "coordinator": coordinator, "skippedSteps": step },
        })
    }

    /// The result of writing orders if the watch has shown version 5 and the server has version 9 with these orders; and the requests.
    async fn written_over(now: Value) -> (Result<RunObject, Error>, Vec<ReceivedRequest>) {
        let answer = move |asked: &ReceivedRequest| match asked.method.as_str() {
            "GET" => Some((200, now.clone())),
            _ if asked.body["metadata"]["resourceVersion"] == "9" => Some((200, asked.body.clone())),
            _ => refusal(409, "Conflict"),
        };
        let (client, asked) = server(answer);
        let before: RunObject = serde_json::from_value(run(5, 1, 40)).unwrap();
        let orders = RunSpec {
            leaving: vec!["j-w1".into()],
            ..before.orders.clone().unwrap()
        };
        let written = write(&client, &job(), &orders, Some(&before)).await;
        let asked = asked.lock().clone();
        (written, asked)
    }

    fn methods(asked: &[ReceivedRequest]) -> Vec<&str> {
        asked.iter().map(|one| one.method.as_str()).collect()
    }

    #[tokio::test]
    async fn orders_are_written_over_a_newer_report() {
        let (written, asked) = written_over(run(9, 1, 41)).await;
        assert_eq!(written.unwrap().orders.unwrap().leaving, ["j-w1"]);
        assert_eq!(methods(&asked), ["PUT", "GET", "PUT"]);
    }

    #[tokio::test]
    async fn orders_of_another_operator_are_not_overwritten() {
        let (written, asked) = written_over(run(9, 2, 41)).await;
        assert!(matches!(written, Err(Error::Stale)), "{written:?}");
        assert_eq!(methods(&asked), ["PUT", "GET"]);
        let mut other_job = run(9, 1, 41);
        other_job["metadata"]["ownerReferences"][0]["uid"] = "another".into();
        let (written, asked) = written_over(other_job).await;
        assert!(matches!(written, Err(Error::Stale)), "{written:?}");
        assert_eq!(methods(&asked), ["PUT", "GET"]);
    }
}
