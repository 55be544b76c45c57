//! How a job's workers and its coordinator recognize each other: a token, and the certificate that the coordinator shows.
//!
//! They are made once for a job, into its Secret, and the operator never reads them. They must never be logged.

use super::record::{SecretOwner, note_taken_secret};
use crate::decide::objects::token_secret;
use crate::decide::{Credentials, JobPart, ObservedJob};
use crate::error::Error;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use varuna_coordinator::Identity;

/// After this time, the Secret is created again if it is missing: somebody may have deleted it, and new pods need it.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// Knows for which jobs there are credentials.
pub struct CredentialStore {
    client: Client,
    /// What is known of each job's Secret, by the job's uid.
    made: Mutex<BTreeMap<String, KnownSecret>>,
}

/// What is known of a job's Secret. It is kept in memory only: if another leader takes over at the moment when the Secret is made anew, workers
/// with the old credentials stay until they find that no coordinator knows them.
#[derive(Clone, Copy)]
struct KnownSecret {
    /// When it was known to exist.
    seen: Instant,
    /// Pods of workers with numbers up to this have the credentials of the one before it.
    old_pods: i64,
}

impl CredentialStore {
    /// A store that has made nothing yet.
    #[must_use]
    pub fn new(client: Client) -> CredentialStore {
        CredentialStore {
            client,
            made: Mutex::default(),
        }
    }

    /// Makes sure that a job has credentials: creates them unless they exist. They are never read. `present`: who owns a Secret that
    /// already has the name; `newest_pod`: the number of the newest pod of a worker. If the job's Secret is missing, because somebody has
    /// deleted it, the pods up to that one have the old credentials.
    ///
    /// # Errors
    /// The API server refuses or does not answer, no key can be made, or the Secret of that name belongs to somebody else.
    pub async fn ensure(
        &self,
        job: &ObservedJob,
        present: SecretOwner,
        newest_pod: i64,
    ) -> Result<(), Error> {
        let known = self.made.lock().get(&job.uid).copied();
        if known.is_some_and(|known| known.seen.elapsed() < LOOK_AGAIN) {
            return Ok(());
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &job.namespace);
        let secret = serde_json::from_value(token_secret(job, &make()?));
        let secret: Secret = secret.map_err(kube::Error::SerdeError)?;
        let mut old_pods = self.old_pods(&job.uid);
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(_) if present == SecretOwner::Job => old_pods = newest_pod,
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                if present == SecretOwner::Another {
                    return Err(note_taken_secret(&self.client, job).await?);
                }
            }
            Err(error) => return Err(Error::refused(JobPart::Objects)(error)),
        }
        let seen = Instant::now();
        let known = KnownSecret { seen, old_pods };
        self.made.lock().insert(job.uid.clone(), known);
        Ok(())
    }

    /// Pods of a job's workers with numbers up to this have the credentials of a Secret that is gone; 0 where none has.
    #[must_use]
    pub fn old_pods(&self, uid: &str) -> i64 {
        self.made.lock().get(uid).map_or(0, |known| known.old_pods)
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.made.lock().retain(|uid, _| exists(uid));
    }
}

fn make() -> Result<Credentials, Error> {
    let identity = Identity::self_signed()
        .map_err(|e| Error::coordinator(format!("no certificate can be made: {e}")))?;
    Ok(Credentials {
        token: hex::encode(rand::random::<[u8; 16]>()),
        identity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::fixtures;

    /// Up to which pod the credentials are old, if the newest is the seventh when the Secret is looked for.
    async fn old_pods(is_there: bool, present: SecretOwner) -> i64 {
        let (client, _) = server(move |asked: &ReceivedRequest| {
            if is_there {
                refusal(409, "AlreadyExists")
            } else {
                Some((201, asked.body.clone()))
            }
        });
        let (store, job) = (CredentialStore::new(client), fixtures::job("j", "uid-j"));
        store.ensure(&job, present, 7).await.unwrap();
        store.ensure(&job, present, 8).await.unwrap();
        let old = store.old_pods("uid-j");
        store.retain(|_| false);
        assert_eq!(store.old_pods("uid-j"), 0);
        old
    }

    #[tokio::test]
    async fn pods_before_a_secret_that_is_made_anew_are_known() {
        assert_eq!(old_pods(false, SecretOwner::Job).await, 7);
        assert_eq!(old_pods(true, SecretOwner::Job).await, 0, "it is there still");
        assert_eq!(old_pods(false, SecretOwner::Another).await, 0, "the run begins");
    }
}
