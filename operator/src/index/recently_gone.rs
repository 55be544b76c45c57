//! Which objects the watches have shown to be gone lately, by uid. The answer to a call may be processed after the watch has shown that the object is
//! gone. If it were noted then, the object would seem to exist until the watch lists everything anew, because a watch shows nothing twice.

use kube::api::ObjectMeta;
use std::collections::VecDeque;

/// Objects that are remembered; the one that went first is forgotten first. An answer is processed within moments after it was given, and by far not as
/// many objects of jobs go in that time.
const REMEMBERED_MAX: usize = 1024;

/// The objects that went last.
#[derive(Debug, Default)]
pub(super) struct RecentlyGone(VecDeque<String>);

impl RecentlyGone {
    /// A watch has shown that this object is gone.
    pub(super) fn note(&mut self, object: &ObjectMeta) {
        self.note_uid(object.uid.as_deref().unwrap_or_default());
    }

    /// A watch, or its list, has shown that the object with this uid is gone. Without a uid nothing is noted.
    pub(super) fn note_uid(&mut self, uid: &str) {
        if uid.is_empty() {
            return;
        }
        if self.0.len() >= REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(uid.to_owned());
    }

    /// Whether the object with this uid is gone. Another object of the same name has another uid.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.0.iter().any(|gone| gone == uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_objects_that_went_last_are_remembered() {
        let object = |uid: usize| ObjectMeta {
            uid: Some(uid.to_string()),
            ..ObjectMeta::default()
        };
        let mut gone = RecentlyGone::default();
        gone.note(&ObjectMeta::default());
        for uid in 0..=REMEMBERED_MAX {
            gone.note(&object(uid));
        }
        assert!(!gone.has("") && !gone.has("0") && gone.has("1"));
        assert!(gone.has(&REMEMBERED_MAX.to_string()));
        assert_eq!(gone.0.len(), REMEMBERED_MAX);
    }
}
