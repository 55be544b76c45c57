//! Kueue's definitions in a cluster of tests.

use crate::{Cluster, eventually, root};
use anyhow::Result;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use varuna_operator::cluster::workloads::resource;
use varuna_operator::decide::KueueVersion;

/// A resource of Kueue, in the version that its definitions here serve.
#[must_use]
pub fn kueue_resource(kind: &str) -> ApiResource {
    resource(KueueVersion::V1Beta2, kind)
}

impl Cluster {
    /// Installs Kueue's definitions, without its controller.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn define_kueue(&self, client: &Client) -> Result<()> {
        let file = root().join("tests/cluster/kueue/crds.yaml");
        self.kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()], "")?;
        eventually("Kueue's resources are served", || async {
            for kind in ["Workload", "ResourceFlavor", "ClusterQueue", "LocalQueue"] {
                let all: Api<DynamicObject> = Api::all_with(client.clone(), &kueue_resource(kind));
                all.list(&ListParams::default().limit(1)).await?;
            }
            Ok(())
        })
        .await
    }
}
