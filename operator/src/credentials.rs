//! What a job's workers and its coordinator know each other by: a token, and the certificate that the coordinator shows.
//!
//! Made once for a job and kept in its Secret, so that another leader shows the same. It must never be logged.

use crate::context::Context;
use crate::decide::objects::{CERTIFICATE_KEY, PRIVATE_KEY, TOKEN_KEY, token_name};
use crate::decide::{Credentials, JobSeen};
use crate::reconcile::Error;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use varuna_coordinator::{Identity, SERVER_NAME};

/// A job's credentials: those that are there, or new ones.
///
/// # Errors
/// The API server does not answer, or no key can be made.
pub async fn credentials(context: &Context, job: &JobSeen) -> Result<Credentials, Error> {
    if let Some(known) = context.runs.credentials(&job.uid) {
        return Ok(known);
    }
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &job.namespace);
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
        // Workers of a job without a certificate are running: they expect none.
        (Some(token), certificate, key) => Credentials {
            token,
            identity: certificate
                .zip(key)
                .map(|(certificate, key)| Identity { certificate, key }),
        },
        (None, ..) => Credentials {
            token: token(),
            identity: Some(identity()?),
        },
    };
    context.runs.keep_credentials(&job.uid, &found);
    Ok(found)
}

fn token() -> String {
    let bytes: [u8; 16] = rand::random();
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A key, and a certificate signed with it: its own authority, since nobody but this job's workers needs to trust it.
fn identity() -> Result<Identity, Error> {
    let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]);
    let made = made.map_err(|e| Error::coordinator(&format!("no certificate can be made: {e}")))?;
    Ok(Identity {
        certificate: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
    })
}
