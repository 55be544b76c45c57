//! A coordinator to which clients connect, or try to connect.

use varuna_api::parse_job;
use varuna_coordinator::{Control, Identity, Options, RunFolder, Timing, serve};
use varuna_wire::v1::StatusRequest;

const JOB: &str = "apiVersion: varuna.dev/v1alpha1\nkind: VarunaJob\nmetadata: {name: j}\nspec:\n  model: {preset: gpt2-tiny}\n  \
                   data: {path: d}\n  training: {globalBatchSize: 8, steps: 10, optimizer: {learningRate: 1e-3}}\n";
pub(crate) const TOKEN: &str = "a-token";

/// A coordinator without attached workers, and its address.
pub(crate) async fn coordinator(folder: &tempfile::TempDir, identity: Option<Identity>) -> (Control, String) {
    let options = Options {
        job: parse_job(JOB).unwrap(),
        steps: 10,
        job_text: JOB.into(),
        run: "a-run".into(),
        data_fingerprint: String::new(),
        bind: "127.0.0.1:0".into(),
        token: TOKEN.into(),
        identity,
        timing: Timing::default(),
        host: None,
        expected_workers: None,
        allow_state_loss: false,
        checkpoints: None,
        costs: None,
        scale: None,
    };
    let folder = RunFolder::open(folder.path(), JOB).unwrap();
    let control = serve(options, folder).await.unwrap();
    let address = control.address.to_string();
    (control, address)
}

/// Connects and requests the status.
pub(crate) async fn status(
    address: &str,
    certificate: Option<&str>,
    token: &str,
) -> Result<(), tonic::Status> {
    let client = varuna_wire::connect(address, certificate, token).await;
    let mut client = client.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
    client.status(StatusRequest {}).await.map(drop)
}
