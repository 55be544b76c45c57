//! A coordinator's record in the cluster: the status of one `VarunaRecord`, replaced by compare-and-swap of its resource version.
//!
//! The operator creates the object when the run begins, with the text of the job. The coordinator writes only the status.

use k8s_openapi::ByteString;
use kube::Api;
use kube::api::PostParams;
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Handle;
use varuna_api::crd::{RecordStatus, VarunaRecord};
use varuna_coordinator::record_format;
use varuna_coordinator::store::{RecordStore, StoreError};
use varuna_protocol::Record;

/// A call that takes longer has failed; a later read shows whether it was carried out.
const DEADLINE: Duration = Duration::from_secs(5);

/// The record of one job. Blocks: call it on a thread of its own, outside the runtime.
pub struct ClusterStore {
    records: Api<VarunaRecord>,
    name: String,
    /// The job's uid.
    uid: String,
    runtime: Handle,
    /// The newest version that was read or written.
    known: u64,
    /// The object with that version, so that a write need not read it first; none where what is stored is not known for certain.
    newest: Option<VarunaRecord>,
}

impl ClusterStore {
    /// The record in the `VarunaRecord` of this name, of the job with this uid.
    #[must_use]
    pub fn new(records: Api<VarunaRecord>, name: String, uid: String, runtime: Handle) -> ClusterStore {
        ClusterStore {
            records,
            name,
            uid,
            runtime,
            known: 0,
            newest: None,
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

    /// The object and the record in it. A record that is older than the known one is an error: a deleted or reset record does not mean a
    /// new run.
    fn get(&mut self) -> Result<(VarunaRecord, Record), StoreError> {
        let object = self
            .wait("read", self.records.get(&self.name))?
            .map_err(|e| self.error("read", e))?;
        if object.spec.uid != self.uid {
            let why = format!("it is of the job with uid {}, not {}", object.spec.uid, self.uid);
            return Err(self.error("read", why));
        }
        let record = match &object.status {
            None => Record::default(),
            Some(status) => {
                record_format::decode(&status.record.0).map_err(|e| self.error("understand", e))?
            }
        };
        if record.version < self.known {
            let why = format!(
                "it is of version {}, and version {} was known",
                record.version, self.known
            );
            return Err(self.error("read", why));
        }
        self.known = record.version;
        Ok((object, record))
    }

    /// Writes a record over this version of the object; false where there is a newer one.
    fn replace(&mut self, mut object: VarunaRecord, record: &Record) -> Result<bool, StoreError> {
        let stored = record_format::encode(record).map_err(|e| self.error("write", e))?;
        object.status = Some(RecordStatus {
            version: i64::try_from(record.version).unwrap_or(i64::MAX),
            record: ByteString(stored),
        });
        let params = PostParams::default();
        let answer = self.wait("write", self.records.replace_status(&self.name, &params, &object))?;
        match answer {
            Ok(object) => {
                self.known = record.version;
                self.newest = Some(object);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            Err(error) => Err(self.error("write", error)),
        }
    }
}

impl RecordStore for ClusterStore {
    fn read(&mut self) -> Result<Record, StoreError> {
        let (object, record) = self.get()?;
        self.newest = Some(object);
        Ok(record)
    }

    fn compare_and_swap(&mut self, expect: u64, record: &Record) -> Result<bool, StoreError> {
        // Whatever fails below leaves it unknown what is stored.
        if let Some(object) = self.newest.take()
            && self.known == expect
            && self.replace(object, record)?
        {
            return Ok(true);
        }
        // Somebody has written it: another coordinator its status, or anybody a label.
        let (object, present) = self.get()?;
        Ok(present.version == expect && self.replace(object, record)?)
    }
}
