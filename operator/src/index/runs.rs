//! The `VarunaRun`s of all jobs: orders and reports.

use super::documents::{job_of, resource_version};
use super::recently_gone::RecentlyGone;
use super::relist::Relist;
use super::{Fill, Index};
use crate::resource::JobRef;
use crate::run_object::RunObject;
use kube::ResourceExt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Namespace and name of a run.
type RunKey = (String, String);

/// The runs of all jobs.
#[derive(Debug, Default)]
pub struct RunIndex {
    runs: BTreeMap<RunKey, Arc<RunObject>>,
    relist: Relist<RunKey>,
    gone: RecentlyGone,
}

impl RunIndex {
    /// A run.
    #[must_use]
    pub fn of(&self, namespace: &str, name: &str) -> Option<Arc<RunObject>> {
        self.runs.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// The answer to a write has shown this version of a run. It is ignored if a watch was faster, and has shown a later one or that the run is gone.
    pub fn written(&mut self, run: &RunObject) {
        if !self.gone.has(run.metadata.uid.as_deref().unwrap_or_default()) {
            self.seen(run);
        }
    }

    /// This version of a run was shown. Older versions are ignored. Returns the job, if something has changed.
    fn seen(&mut self, run: &RunObject) -> Option<JobRef> {
        let key = (run.namespace()?, run.name_any());
        self.relist.seen(&key);
        let is_old = |known: &Arc<RunObject>| {
            let same = known.metadata.uid == run.metadata.uid;
            same && resource_version(&known.metadata) >= resource_version(&run.metadata)
        };
        if self.runs.get(&key).is_some_and(is_old) {
            return None;
        }
        self.runs.insert(key, Arc::new(run.clone()));
        job_of(&run.metadata)
    }

    /// Forgets the runs of deleted jobs, which a late answer to a write may have brought back.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        let uid = |run: &RunObject| super::documents::controller_uid(&run.metadata).map(str::to_owned);
        self.runs
            .retain(|_, run| uid(run).is_some_and(|uid| exists(&uid)));
    }
}

impl Fill<RunObject> for Index {
    fn begin(&self) {
        self.runs.lock().relist.begin();
    }

    fn seen(&self, run: &RunObject) -> Vec<JobRef> {
        self.runs.lock().seen(run).into_iter().collect()
    }

    fn gone(&self, run: &RunObject) -> Vec<JobRef> {
        let key = (run.namespace().unwrap_or_default(), run.name_any());
        let mut all = self.runs.lock();
        all.gone.note(&run.metadata);
        // The answer to a write may have shown another one of that name already.
        let known = all.runs.get(&key);
        if known.is_none_or(|known| known.metadata.uid != run.metadata.uid) {
            return vec![];
        }
        all.runs.remove(&key);
        job_of(&run.metadata).into_iter().collect()
    }

    fn complete(&self) -> Vec<JobRef> {
        let mut all = self.runs.lock();
        let all = &mut *all;
        let gone = all.relist.complete(all.runs.keys());
        let removed = gone.iter().filter_map(|key| all.runs.remove(key));
        let removed = removed.inspect(|run| all.gone.note(&run.metadata));
        removed.filter_map(|run| job_of(&run.metadata)).collect()
    }
}
