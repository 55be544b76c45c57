//! Every store supports what checkpoints need: in memory, in a folder, and on real servers.

use object_store::memory::InMemory;
use std::sync::Arc;
use varuna_checkpoint::Location;
use varuna_store_tests::{conforms, minio};

#[tokio::test]
async fn memory_conforms() {
    conforms(Location::over(Arc::new(InMemory::new()))).await;
}

#[tokio::test]
async fn a_local_folder_conforms() {
    let folder = tempfile::tempdir().unwrap();
    conforms(Location::open(folder.path().join("made/on/the/way").to_str().unwrap()).unwrap()).await;
    conforms(Location::open(&format!("file://{}/other", folder.path().display())).unwrap()).await;
}

#[tokio::test]
async fn minio_conforms() {
    let server = minio().await;
    conforms(server.place("deep/inside")).await;
}

#[cfg(feature = "all")]
#[tokio::test]
async fn azurite_conforms() {
    let server = varuna_store_tests::azurite().await;
    conforms(server.place("deep/inside")).await;
}

#[cfg(feature = "all")]
#[tokio::test]
async fn fake_gcs_server_conforms() {
    let server = varuna_store_tests::google().await;
    conforms(server.place("deep/inside")).await;
}
