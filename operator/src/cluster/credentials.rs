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
    /// For each job, by its uid, when its Secret was known to exist.
    made: Mutex<BTreeMap<String, Instant>>,
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
    /// already has the name.
    ///
    /// # Errors
    /// The API server refuses or does not answer, no key can be made, or the Secret of that name belongs to somebody else.
    pub async fn ensure(&self, job: &ObservedJob, present: SecretOwner) -> Result<(), Error> {
        let known = self.made.lock().get(&job.uid).copied();
        if known.is_some_and(|seen| seen.elapsed() < LOOK_AGAIN) {
            return Ok(());
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &job.namespace);
        let secret = serde_json::from_value(token_secret(job, &make()?));
        let secret: Secret = secret.map_err(kube::Error::SerdeError)?;
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                if present == SecretOwner::Another {
                    return Err(note_taken_secret(&self.client, job).await?);
                }
            }
            Err(error) => return Err(Error::refused(JobPart::Objects)(error)),
        }
        self.made.lock().insert(job.uid.clone(), Instant::now());
        Ok(())
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
