//! How a job's workers and its coordinator recognise each other: a token, and the certificate that the coordinator shows.
//!
//! Made once for a job and kept in its Secret, so that another leader uses the same. They must never be logged.

use super::ownership::verify;
use crate::decide::objects::{CERTIFICATE_KEY, PRIVATE_KEY, TOKEN_KEY, token_name, token_secret};
use crate::decide::{Credentials, JobPart, ObservedJob};
use crate::error::Error;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use varuna_coordinator::Identity;

/// A Secret is looked for again after this time: somebody may have deleted it, and new pods need it.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// The credentials of all jobs, read or made once each.
pub struct CredentialStore {
    client: Client,
    /// By the job's uid, each with the time when its Secret was seen.
    known: Mutex<BTreeMap<String, (Credentials, Instant)>>,
}

impl CredentialStore {
    /// A store that has read nothing yet.
    #[must_use]
    pub fn new(client: Client) -> CredentialStore {
        CredentialStore {
            client,
            known: Mutex::default(),
        }
    }

    /// A job's credentials: those in its Secret, or new ones where there is none, in a Secret that is made for them.
    ///
    /// # Errors
    /// The API server refuses or does not answer, the Secret's name is another's, or no key can be made.
    pub async fn credentials(&self, job: &ObservedJob) -> Result<Credentials, Error> {
        let known = self.known.lock().get(&job.uid).cloned();
        let before = match known {
            Some((known, seen)) if seen.elapsed() < LOOK_AGAIN => return Ok(known),
            Some((known, _)) => Some(known),
            None => None,
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &job.namespace);
        let credentials = match secrets.get_opt(&token_name(job)).await? {
            Some(secret) => {
                verify("Secret", &secret.metadata, job)?;
                read(secret).ok_or_else(|| {
                    let name = token_name(job);
                    Error::coordinator(format!(
                        "Secret {name} has no token: delete it and the job's pods"
                    ))
                })?
            }
            None => {
                let made = before.map_or_else(make, Ok)?;
                let secret = serde_json::from_value(token_secret(job, &made));
                let secret: Secret = secret.map_err(kube::Error::SerdeError)?;
                // Where another was quicker, the next reconciliation reads that one's.
                secrets
                    .create(&PostParams::default(), &secret)
                    .await
                    .map_err(Error::refused(JobPart::Objects))?;
                made
            }
        };
        let seen = (credentials.clone(), Instant::now());
        self.known.lock().insert(job.uid.clone(), seen);
        Ok(credentials)
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.known.lock().retain(|uid, _| exists(uid));
    }
}

fn make() -> Result<Credentials, Error> {
    let identity = Identity::self_signed()
        .map_err(|e| Error::coordinator(format!("no certificate can be made: {e}")))?;
    Ok(Credentials {
        token: hex::encode(rand::random::<[u8; 16]>()),
        identity: Some(identity),
    })
}

/// None where there is no token in it.
fn read(secret: Secret) -> Option<Credentials> {
    let mut data = secret.data.unwrap_or_default();
    let mut text = |key: &str| {
        let value = data.remove(key).and_then(|v| String::from_utf8(v.0).ok());
        value.filter(|v| !v.is_empty())
    };
    Some(Credentials {
        token: text(TOKEN_KEY)?,
        identity: text(CERTIFICATE_KEY)
            .zip(text(PRIVATE_KEY))
            .map(|(certificate, key)| Identity { certificate, key }),
    })
}
