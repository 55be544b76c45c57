//! Clients of the API server: with all rights, and with the rights of a service account.

use crate::Cluster;
use anyhow::Result;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use varuna_operator::cluster::connection;

impl Cluster {
    /// A token of a service account that is valid for longer than any test or benchmark takes.
    ///
    /// # Errors
    /// There is no such account.
    pub fn token(&self, namespace: &str, account: &str) -> Result<String> {
        let make = ["-n", namespace, "create", "token", account, "--duration=12h"];
        Ok(self.kubectl(&make, "")?.trim().to_owned())
    }

    /// A client with the rights of a service account.
    ///
    /// # Errors
    /// There is no such account.
    pub async fn client_as(&self, namespace: &str, account: &str) -> Result<Client> {
        let token = self.token(namespace, account)?;
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.auth_info = AuthInfo {
            token: Some(token.into()),
            ..AuthInfo::default()
        };
        // The operator's own client is used, so that the tests cover it as well.
        Ok(connection::client(connection::bounded(config))?)
    }

    /// A client with all rights.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }
}
