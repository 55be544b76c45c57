//! The `VarunaRecord` of a job. The operator creates it when the run begins, with the text of the job. The coordinator writes only its
//! status.

use super::ownership::verify;
use crate::decide::objects::{metadata, record_name, token_name};
use crate::decide::{JobPart, ObservedJob};
use crate::error::Error;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use varuna_api::crd::{RecordSpec, VarunaRecord};
use varuna_api::with_steps_of;

/// Annotation of a record: the name of the job's Secret, if a Secret of this name existed already when the credentials were to be created.
/// The annotation stays as long as that Secret does.
const SECRET_TAKEN: &str = "varuna.dev/secret-name-taken";

/// Who owns the Secret with the job's credentials, if there is one. The Secret itself cannot be asked, because the operator may not read
/// Secrets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SecretOwner {
    /// Somebody else's: no operator has tried to make the job's yet.
    Another,
    /// The job's, as far as can be known: an operator has made it, or was about to when it ended.
    Job,
}

/// Makes sure that the job has a record, with the text of the job that its run uses: `text` if the run begins, or if `takes_text` says that
/// no worker holds another one; else the text with which the run began. The record is created before the job's credentials. So a Secret
/// that exists when the record is created is not ours.
///
/// # Errors
/// The API server refuses or does not answer, the name is another's, or the record is gone although plans were made.
pub async fn begin_run(
    client: &Client,
    job: &ObservedJob,
    text: &str,
    takes_text: bool,
) -> Result<SecretOwner, Error> {
    let records: Api<VarunaRecord> = Api::namespaced(client.clone(), &job.namespace);
    let name = record_name(job);
    let params = PostParams::default();
    let Some(mut record) = records.get_opt(&name).await? else {
        let plans = job.status.plan.as_ref().map_or(0, |p| p.generation);
        if plans > 0 {
            return Err(Error::coordinator(format!(
                "VarunaRecord {name} is gone, although plan {plans} was made: without it numbers of plans would be used twice; restore it, \
                 or make the job anew (it begins from its newest checkpoint)"
            )));
        }
        let spec = RecordSpec {
            uid: job.uid.clone(),
            job: text.to_owned(),
        };
        let mut record = VarunaRecord::new(&name, spec);
        record.metadata = serde_json::from_value(metadata(job, &name)).map_err(kube::Error::SerdeError)?;
        return match records.create(&params, &record).await {
            Ok(_) => Ok(SecretOwner::Another),
            // It came since it was read: whose it is, the next reconciliation finds.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Err(Error::Stale),
            Err(error) => Err(Error::refused(JobPart::Coordinator)(error)),
        };
    };
    verify("VarunaRecord", &record.metadata, job)?;
    // The note goes once the name is free, before the Secret is made: whenever this process ends, somebody else's Secret is not taken for
    // the job's, nor the job's for somebody else's.
    let was_taken = record.annotations_mut().remove(SECRET_TAKEN).is_some();
    if was_taken && !is_secret_name_free(client, job).await? {
        return Err(secret_taken(job));
    }
    let text = continued(&record.spec.job, text);
    let is_another = takes_text && record.spec.job != text;
    if is_another {
        record.spec.job = text;
    }
    if is_another || was_taken {
        records
            .replace(&name, &params, &record)
            .await
            .map_err(Error::changed_or_refused(JobPart::Coordinator))?;
    }
    Ok(if was_taken {
        SecretOwner::Another
    } else {
        SecretOwner::Job
    })
}

/// Notes that the Secret of this name belongs to somebody else, so that the next try does not take it for the job's. Returns the message.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn note_taken_secret(client: &Client, job: &ObservedJob) -> Result<Error, Error> {
    let records: Api<VarunaRecord> = Api::namespaced(client.clone(), &job.namespace);
    let name = record_name(job);
    let record = records.get(&name).await;
    let mut record = record.map_err(Error::changed_or_refused(JobPart::Coordinator))?;
    verify("VarunaRecord", &record.metadata, job)?;
    let annotations = record.annotations_mut();
    annotations.insert(SECRET_TAKEN.to_owned(), token_name(job));
    records
        .replace(&name, &PostParams::default(), &record)
        .await
        .map_err(Error::changed_or_refused(JobPart::Coordinator))?;
    Ok(secret_taken(job))
}

/// Whether the name of the job's Secret is free. Since Secrets are not read, the API server is asked to create one in a dry run.
///
/// # Errors
/// The API server refuses or does not answer.
async fn is_secret_name_free(client: &Client, job: &ObservedJob) -> Result<bool, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &job.namespace);
    let metadata =
        serde_json::from_value(metadata(job, &token_name(job))).map_err(kube::Error::SerdeError)?;
    let secret = Secret {
        metadata,
        ..Secret::default()
    };
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match secrets.create(&dry_run, &secret).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        Err(error) => Err(Error::refused(JobPart::Objects)(error)),
    }
}

fn secret_taken(job: &ObservedJob) -> Error {
    Error::Refused {
        part: JobPart::Names,
        message: format!(
            "the job (uid {}) needs the name of Secret {}, which was there before the job's was made",
            job.uid,
            token_name(job)
        ),
    }
}

/// The text of a run that continues. It keeps the number of steps with which the run began. Otherwise the learning rate's curve would
/// change, and its checkpoints would belong to another job.
fn continued(begun: &str, now: &str) -> String {
    match (serde_json::from_str(begun), serde_json::from_str(now)) {
        (Ok(begun), Ok(now)) => with_steps_of(&begun, now).to_string(),
        _ => now.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::fixtures;

    #[tokio::test]
    async fn record_that_came_while_it_was_made_is_read_again() {
        let (client, _) = server(|asked: &ReceivedRequest| match asked.method.as_str() {
            "GET" => refusal(404, "NotFound"),
            _ => refusal(409, "AlreadyExists"),
        });
        let begun = begin_run(&client, &fixtures::job("j", "uid-j"), "{}", true).await;
        assert!(matches!(begun, Err(Error::Stale)), "{begun:?}");
    }

    #[tokio::test]
    async fn note_in_a_record_that_went_is_decided_anew() {
        let (client, _) = server(|_: &ReceivedRequest| refusal(404, "NotFound"));
        let noted = note_taken_secret(&client, &fixtures::job("j", "uid-j")).await;
        assert!(matches!(noted, Err(Error::Stale)), "{noted:?}");
    }

    #[test]
    fn resumed_run_keeps_its_initial_steps() {
        let begun = r#"{"spec":{"checkpoint":{"uri":"a"},"training":{"seed":1,"steps":10}}}"#;
        let now = r#"{"spec":{"checkpoint":{"uri":"b"},"training":{"seed":1,"steps":25}}}"#;
        let expected = now.replace("25", "10");
        assert_eq!(continued(begun, now), expected);
        assert_eq!(
            continued(begun, begun),
            begun,
            "byte for byte: the run's identity hangs on it"
        );
        assert_eq!(continued("no document", now), now);
    }
}
