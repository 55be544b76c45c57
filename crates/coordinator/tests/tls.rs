//! A coordinator that shows a certificate: only over TLS, and only to those that trust this one.

use varuna_api::parse_job;
use varuna_coordinator::{Identity, Options, RunFolder, Timing, serve};
use varuna_wire::v1::StatusRequest;

const JOB: &str = "apiVersion: varuna.dev/v1alpha1\nkind: VarunaJob\nmetadata: {name: j}\nspec:\n  model: {preset: gpt2-tiny}\n  \
                   data: {path: d}\n  training: {globalBatchSize: 8, steps: 10, optimizer: {learningRate: 1e-3}}\n";
const TOKEN: &str = "a-token";

#[tokio::test]
async fn only_who_trusts_its_certificate_reaches_the_coordinator() {
    let temp = tempfile::TempDir::new().unwrap();
    let identity = Identity::self_signed().unwrap();
    let options = Options {
        job: parse_job(JOB).unwrap(),
        job_text: JOB.into(),
        data_fingerprint: String::new(),
        bind: "127.0.0.1:0".into(),
        token: TOKEN.into(),
        identity: Some(identity.clone()),
        timing: Timing::default(),
        host: None,
        expected_workers: None,
        checkpoints: None,
        costs: None,
        scale: None,
    };
    let folder = RunFolder::open(temp.path(), JOB).unwrap();
    let control = serve(options, folder).await.unwrap();
    let address = control.address.to_string();
    let status = async |certificate: Option<&str>| {
        let mut client = varuna_wire::connect(&address, certificate, TOKEN)
            .await
            .map_err(|e| e.to_string())?;
        let request = StatusRequest { token: TOKEN.into() };
        client.status(request).await.map_err(|e| e.to_string())
    };
    status(Some(&identity.certificate)).await.unwrap();
    assert!(status(None).await.is_err(), "in the clear");
    let other = Identity::self_signed().unwrap();
    assert!(
        status(Some(&other.certificate)).await.is_err(),
        "another's certificate"
    );
    assert!(status(Some("no certificate")).await.is_err());
    // Commands find it in the run folder.
    let contact = varuna_run_folder::RunFiles::new(temp.path()).contact().unwrap();
    assert_eq!(contact.certificate, Some(identity.certificate));
    control.outcome.abort();
}
