//! A run whose claim of a checkpoint location reached the store owns it, although the store's answer did not come.

use std::sync::atomic::{AtomicBool, Ordering};
use varuna_checkpoint::{CheckpointError, Claim, LeaseState, Location};
use varuna_store_tests::{Answer, FaultyProxy, Server, minio};

fn place(server: &Server, proxy: &FaultyProxy, folder: &str) -> Result<Location, CheckpointError> {
    let settings = server.settings_by(&proxy.endpoint);
    let settings = settings.into_iter().map(|(k, v)| (k.to_ascii_lowercase(), v));
    Location::open_with(&format!("{}/{folder}", server.uri), settings)
}

fn claim(run: &str) -> Claim {
    Claim {
        run: run.to_owned(),
        machine: String::new(),
        process: 0,
        started: 0,
    }
}

#[tokio::test]
async fn a_run_knows_its_own_claim_when_the_answer_to_it_was_lost() {
    let server = minio().await;
    let proxy = FaultyProxy::start(&server.endpoint).await;
    let alive = |_: &Claim| false;
    for (folder, instead) in [("proxy", Some(502)), ("reset", None)] {
        let is_first = AtomicBool::new(true);
        proxy.rule(move |method, path| {
            let claims = method == "PUT" && path.contains("/owner/");
            (claims && is_first.swap(false, Ordering::Relaxed)).then_some(Answer::Lost(instead))
        });
        let place = place(&server, &proxy, folder).unwrap();
        let owner = place.claim(claim("own"), alive).await.unwrap();
        assert_eq!(owner.renew().await.unwrap(), LeaseState::Owner, "{folder}");
        let other = place.claim(claim("other"), alive).await;
        assert!(
            matches!(&other, Err(CheckpointError::Owned { run, .. }) if run == "own"),
            "{folder}: {other:?}"
        );
    }
}
