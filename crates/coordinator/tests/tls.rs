//! A coordinator with a certificate: clients connect only over TLS, and only if they trust this certificate.

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod server;

use server::{TOKEN, coordinator, status};
use varuna_coordinator::Identity;

#[tokio::test]
async fn only_who_trusts_its_certificate_reaches_the_coordinator() {
    let temp = tempfile::TempDir::new().unwrap();
    let identity = Identity::self_signed().unwrap();
    let (control, address) = coordinator(&temp, Some(identity.clone())).await;
    let status = async |certificate: Option<&str>| status(&address, certificate, TOKEN).await;
    status(Some(&identity.certificate)).await.unwrap();
    assert!(status(None).await.is_err(), "in the clear");
    let other = Identity::self_signed().unwrap();
    assert!(
        status(Some(&other.certificate)).await.is_err(),
        "another's certificate"
    );
    assert!(status(Some("no certificate")).await.is_err());
    // Commands find the certificate in the run folder.
    let contact = varuna_run_folder::RunFiles::new(temp.path()).contact().unwrap();
    assert_eq!(contact.certificate, Some(identity.certificate));
    control.outcome.abort();
}
