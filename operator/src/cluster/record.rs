//! A coordinator's record in the cluster: one Secret, replaced by compare-and-swap of its resource version.
//!
//! A Secret, not a ConfigMap: the plans in a record hold the secret of a generation's connections. The plan without it is in the
//! job's ConfigMap, for users.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Handle;
use varuna_coordinator::record_format;
use varuna_coordinator::store::{RecordStore, StoreError};
use varuna_protocol::Record;

/// Key of the record in the Secret. Also where the record is compressed: an earlier release then refuses it by its content, while
/// under another key it would find none and begin anew.
const KEY: &str = "record.json";
/// A call that takes longer has failed; a later read shows whether it was carried out.
const DEADLINE: Duration = Duration::from_secs(5);

/// The record of one job. Blocks: call it on a thread of its own, outside the runtime.
pub struct ClusterStore {
    secrets: Api<Secret>,
    name: String,
    /// Metadata for the object where it has to be created.
    metadata: Value,
    runtime: Handle,
}

impl ClusterStore {
    /// The record in the Secret of this name; `metadata` names its owner.
    #[must_use]
    pub fn new(secrets: Api<Secret>, name: String, metadata: Value, runtime: Handle) -> ClusterStore {
        ClusterStore {
            secrets,
            name,
            metadata,
            runtime,
        }
    }

    fn error(&self, action: &'static str, why: impl ToString) -> StoreError {
        StoreError::Remote {
            action,
            name: self.name.clone(),
            why: why.to_string(),
        }
    }

    fn wait<T>(
        &self,
        action: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<kube::Result<T>, StoreError> {
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout(DEADLINE, call).await });
        answer.map_err(|_| self.error(action, format!("no answer within {} s", DEADLINE.as_secs())))
    }

    fn get(&self) -> Result<Option<Secret>, StoreError> {
        self.wait("read", self.secrets.get_opt(&self.name))?
            .map_err(|e| self.error("read", e))
    }

    fn parse(&self, secret: &Secret) -> Result<Record, StoreError> {
        let Some(bytes) = secret.data.as_ref().and_then(|d| d.get(KEY)) else {
            return Ok(Record::default());
        };
        record_format::decode(&bytes.0).map_err(|e| self.error("understand", e))
    }
}

impl RecordStore for ClusterStore {
    fn read(&mut self) -> Result<Record, StoreError> {
        self.get()?
            .map_or(Ok(Record::default()), |secret| self.parse(&secret))
    }

    fn compare_and_swap(&mut self, expect: u64, record: &Record) -> Result<bool, StoreError> {
        let present = self.get()?;
        let version = match &present {
            Some(secret) => self.parse(secret)?.version,
            None => Record::default().version,
        };
        if version != expect {
            return Ok(false);
        }
        let stored = record_format::encode(record).map_err(|e| self.error("write", e))?;
        let data = BTreeMap::from([(KEY.to_owned(), ByteString(stored))]);
        let params = PostParams::default();
        let answer = match present {
            Some(mut secret) => {
                debug_assert!(secret.resource_version().is_some(), "what was read has a version");
                secret.data = Some(data);
                self.wait("write", self.secrets.replace(&self.name, &params, &secret))?
            }
            None => {
                let metadata =
                    serde_json::from_value(self.metadata.clone()).map_err(|e| self.error("write", e))?;
                let secret = Secret {
                    metadata,
                    data: Some(data),
                    type_: Some("Opaque".into()),
                    ..Secret::default()
                };
                self.wait("make", self.secrets.create(&params, &secret))?
            }
        };
        match answer {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(self.error("write", error)),
        }
    }
}
