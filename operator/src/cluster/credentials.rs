//! How a job's workers and its coordinator recognise each other: a token, and the certificate that the coordinator shows.
//!
//! Made once for a job and kept in its Secret, so that another leader uses the same. They must never be logged.

use crate::decide::objects::{CERTIFICATE_KEY, PRIVATE_KEY, TOKEN_KEY, token_name};
use crate::decide::{Credentials, ObservedJob};
use crate::error::Error;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use varuna_coordinator::Identity;

/// The credentials of all jobs, read or made once each.
pub struct CredentialStore {
    client: Client,
    /// By the job's uid.
    known: Mutex<BTreeMap<String, Credentials>>,
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

    /// A job's credentials: those in its Secret, or new ones where there is none.
    ///
    /// # Errors
    /// The API server does not answer, or no key can be made.
    pub async fn credentials(&self, job: &ObservedJob) -> Result<Credentials, Error> {
        if let Some(known) = self.known.lock().get(&job.uid) {
            return Ok(known.clone());
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &job.namespace);
        let mut data = secrets
            .get_opt(&token_name(&job.name))
            .await?
            .and_then(|s| s.data)
            .unwrap_or_default();
        let mut text = |key: &str| {
            let value = data.remove(key).and_then(|v| String::from_utf8(v.0).ok());
            value.filter(|v| !v.is_empty())
        };
        let found = match (text(TOKEN_KEY), text(CERTIFICATE_KEY), text(PRIVATE_KEY)) {
            // The workers of a job without a certificate are running: they expect none.
            (Some(token), certificate, key) => Credentials {
                token,
                identity: certificate
                    .zip(key)
                    .map(|(certificate, key)| Identity { certificate, key }),
            },
            (None, ..) => Credentials {
                token: hex::encode(rand::random::<[u8; 16]>()),
                identity: Some(
                    Identity::self_signed()
                        .map_err(|e| Error::coordinator(format!("no certificate can be made: {e}")))?,
                ),
            },
        };
        self.known.lock().insert(job.uid.clone(), found.clone());
        Ok(found)
    }
}
