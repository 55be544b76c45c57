//! The objects of jobs on which no decision depends (Services, roles and the like), by their metadata only: whether they exist, who owns
//! them, and what they were last applied as. So an object that is as it should be is neither read nor written, and one that somebody
//! deletes or changes is applied again.

use super::documents::{controller_uid, job_of, resource_version};
use super::recently_gone::RecentlyGone;
use super::relist::Relist;
use super::{Fill, Index};
use crate::decide::objects::APPLIED_ANNOTATION;
use crate::resource::{JobRef, MANAGER, job_ref};
use kube::api::{DynamicObject, ObjectMeta};
use kube::core::PartialObjectMeta;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A kind of object that jobs own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ObjectKind {
    /// API group of the kind; empty for the core group.
    pub group: &'static str,
    /// Version of that.
    pub version: &'static str,
    /// The value of `kind`.
    pub kind: &'static str,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [ObjectKind; 7] = [
        ObjectKind::new("", "v1", "Service"),
        ObjectKind::new("", "v1", "ServiceAccount"),
        ObjectKind::new("rbac.authorization.k8s.io", "v1", "Role"),
        ObjectKind::new("rbac.authorization.k8s.io", "v1", "RoleBinding"),
        ObjectKind::new("discovery.k8s.io", "v1", "EndpointSlice"),
        ObjectKind::new("policy", "v1", "PodDisruptionBudget"),
        ObjectKind::new("networking.k8s.io", "v1", "NetworkPolicy"),
    ];

    const fn new(group: &'static str, version: &'static str, kind: &'static str) -> ObjectKind {
        ObjectKind { group, version, kind }
    }
}

/// Kind, namespace and name of an object.
pub type ObjectKey = (String, String, String);

/// An object, as it was seen last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownObject {
    /// UID of the object.
    pub uid: String,
    /// The uid of its controller; none where it has none.
    pub owner: Option<String>,
    /// Identity of what it was applied as; none if it has no such annotation.
    pub applied: Option<String>,
    /// Identity of the fields of it that are this program's: it changes when somebody else sets or removes one.
    pub fields: u64,
    /// Somebody else has written it later than this program.
    pub is_touched: bool,
    /// Name of the job that controls it, if one does.
    job: Option<String>,
    version: Option<u64>,
}

impl KnownObject {
    /// The object with this metadata.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> KnownObject {
        let annotations = metadata.annotations.as_ref();
        // A written status changes none of our fields.
        let written = metadata.managed_fields.iter().flatten();
        let written = written.filter(|entry| entry.subresource.is_none());
        let (ours, others): (Vec<_>, Vec<_>) =
            written.partition(|entry| entry.manager.as_deref() == Some(MANAGER));
        let mut fields = DefaultHasher::new();
        for entry in &ours {
            let set = entry.fields_v1.as_ref().map(|fields| fields.0.to_string());
            set.hash(&mut fields);
        }
        let ours = ours.iter().filter_map(|entry| entry.time.as_ref()).max();
        let others = others.iter().filter_map(|entry| entry.time.as_ref()).max();
        KnownObject {
            fields: fields.finish(),
            is_touched: others > ours,
            uid: metadata.uid.clone().unwrap_or_default(),
            owner: controller_uid(metadata).map(str::to_owned),
            applied: annotations.and_then(|a| a.get(APPLIED_ANNOTATION).cloned()),
            job: job_of(metadata).map(|job| job.name),
            version: resource_version(metadata),
        }
    }
}

/// The objects of all jobs.
#[derive(Debug, Default)]
pub struct OwnedIndex {
    objects: BTreeMap<ObjectKey, KnownObject>,
    relists: BTreeMap<&'static str, Relist<ObjectKey>>,
    gone: RecentlyGone,
}

impl OwnedIndex {
    /// An object, where there is one.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<&KnownObject> {
        self.objects.get(key)
    }

    /// The answer to a write has shown this version of an object. It is ignored if the watch was faster, and has shown a later one, which
    /// somebody else has written, or that the object is gone.
    pub fn written(&mut self, key: ObjectKey, object: KnownObject) {
        let is_later = |known: &KnownObject| known.uid == object.uid && known.version > object.version;
        if !self.gone.has(&object.uid) && !self.objects.get(&key).is_some_and(is_later) {
            self.objects.insert(key, object);
        }
    }

    /// An object does not exist, or is not as it was known.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.objects.remove(key);
    }
}

/// The part of an index that a watch of one kind of object fills.
#[derive(Clone, Copy, Debug)]
pub struct KindIndex<'a>(pub &'a Index, pub ObjectKind);

impl KindIndex<'_> {
    fn key(&self, metadata: &ObjectMeta) -> ObjectKey {
        (
            self.1.kind.to_owned(),
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }
}

impl Fill<PartialObjectMeta<DynamicObject>> for KindIndex<'_> {
    fn begin(&self) {
        let mut owned = self.0.owned.lock();
        owned.relists.entry(self.1.kind).or_default().begin();
    }

    fn seen(&self, object: &PartialObjectMeta<DynamicObject>) -> Vec<JobRef> {
        let (key, known) = (self.key(&object.metadata), KnownObject::of(&object.metadata));
        let mut owned = self.0.owned.lock();
        owned.relists.entry(self.1.kind).or_default().seen(&key);
        let before = owned.objects.get(&key).filter(|before| before.uid == known.uid);
        // What we have written ourselves is known already, and this may be what was there before.
        if before.is_some_and(|before| before.version >= known.version) {
            return vec![];
        }
        let is_changed = before.is_some_and(|before| before.fields != known.fields);
        owned.objects.insert(key, known);
        let job = is_changed.then(|| job_of(&object.metadata)).flatten();
        job.into_iter().collect()
    }

    fn gone(&self, object: &PartialObjectMeta<DynamicObject>) -> Vec<JobRef> {
        let key = self.key(&object.metadata);
        let mut owned = self.0.owned.lock();
        owned.gone.note(&object.metadata);
        // The answer to a write may have shown another one of that name already.
        let known = owned.objects.get(&key);
        if known.is_none_or(|known| Some(&known.uid) == object.metadata.uid.as_ref()) {
            owned.objects.remove(&key);
        }
        job_of(&object.metadata).into_iter().collect()
    }

    fn complete(&self) -> Vec<JobRef> {
        let mut owned = self.0.owned.lock();
        let owned = &mut *owned;
        let of_kind = owned.objects.keys().filter(|key| key.0 == self.1.kind);
        let gone = owned.relists.entry(self.1.kind).or_default().complete(of_kind);
        let jobs = gone.iter().filter_map(|key| {
            let removed = owned.objects.remove(key)?;
            owned.gone.note_uid(&removed.uid);
            Some(job_ref(&key.1, &removed.job?))
        });
        jobs.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answer_to_a_write_hides_no_later_version() {
        let version = |uid: &str, version: &str| {
            KnownObject::of(&ObjectMeta {
                uid: Some(uid.into()),
                resource_version: Some(version.into()),
                ..ObjectMeta::default()
            })
        };
        let key: ObjectKey = ("Service".into(), "n".into(), "j".into());
        let mut owned = OwnedIndex::default();
        let mut known_after = |object: KnownObject| {
            owned.written(key.clone(), object);
            owned.get(&key).cloned()
        };
        assert_eq!(known_after(version("a", "9")), Some(version("a", "9")));
        assert_eq!(known_after(version("a", "7")), Some(version("a", "9")));
        assert_eq!(known_after(version("a", "10")), Some(version("a", "10")));
        assert_eq!(
            known_after(version("b", "8")),
            Some(version("b", "8")),
            "made anew"
        );
    }
}
