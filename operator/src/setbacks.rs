//! What could not be carried out for a job: each is tried again after a while, longer each time, so that nothing that is refused for
//! ever keeps the operator or the API server busy. Kept in memory only: another leader tries all of it once.

use crate::context::lock;
use crate::decide::{JobSeen, Refused, Setback};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The longest wait; the first is a second.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// After so long without another one it is the first again.
const FORGOTTEN: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Kept {
    words: String,
    /// Of the job's spec: another spec is tried at once.
    generation: i64,
    times: u32,
    at: Instant,
    /// It was tried again since, and it went well.
    over: bool,
}

impl Kept {
    fn wait(&self) -> Duration {
        Duration::from_secs(1 << (self.times - 1).min(10)).min(WAIT_MAX)
    }
}

/// The setbacks of all jobs, by their identity.
#[derive(Debug, Default)]
pub struct Setbacks(Mutex<BTreeMap<String, BTreeMap<Refused, Kept>>>);

impl Setbacks {
    /// Something was refused.
    pub fn hit(&self, job: &JobSeen, what: Refused, words: &str) {
        self.hit_at(Instant::now(), job, what, words);
    }

    fn hit_at(&self, now: Instant, job: &JobSeen, what: Refused, words: &str) {
        let mut all = lock(&self.0);
        let of_job = all.entry(job.uid.clone()).or_default();
        let before = of_job.get(&what).filter(|k| k.generation == job.generation);
        let times = before.filter(|k| now.duration_since(k.at) < FORGOTTEN);
        let kept = Kept {
            words: words.to_owned(),
            generation: job.generation,
            times: times.map_or(0, |k| k.times).saturating_add(1),
            at: now,
            over: false,
        };
        of_job.insert(what, kept);
    }

    /// What could not be carried out for the present spec, and when it is to be tried again.
    #[must_use]
    pub fn seen(&self, job: &JobSeen) -> Vec<Setback> {
        self.seen_at(Instant::now(), job)
    }

    fn seen_at(&self, now: Instant, job: &JobSeen) -> Vec<Setback> {
        let all = lock(&self.0);
        let kept = all.get(&job.uid).into_iter().flatten();
        kept.filter(|(_, k)| k.generation == job.generation && !k.over)
            .map(|(what, k)| Setback {
                what: *what,
                words: k.words.clone(),
                // A started second is a second: whoever looks again in time finds that it is over.
                again_in: i64::try_from((k.at + k.wait()).saturating_duration_since(now).as_millis())
                    .map_or(i64::MAX, |ms| (ms + 999) / 1000),
            })
            .collect()
    }

    /// All was carried out, what had waited for its time included. What was refused again meanwhile (a coordinator ends when it
    /// likes) is not over.
    pub fn went_well(&self, job: &JobSeen, tried: &[Setback]) {
        self.went_well_at(Instant::now(), job, tried);
    }

    fn went_well_at(&self, now: Instant, job: &JobSeen, tried: &[Setback]) {
        let mut all = lock(&self.0);
        let Some(of_job) = all.get_mut(&job.uid) else {
            return;
        };
        for setback in tried.iter().filter(|s| s.again_in <= 0) {
            if let Some(kept) = of_job.get_mut(&setback.what) {
                kept.over = kept.at + kept.wait() <= now;
            }
        }
    }

    /// Forgets jobs that are no more.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.0).retain(|uid, _| exists(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(generation: i64) -> JobSeen {
        JobSeen {
            name: "j".into(),
            namespace: "n".into(),
            uid: "u".into(),
            generation,
            spec: Err(String::new()),
            status: varuna_api::crd::Status::default(),
            deleting: false,
        }
    }

    #[test]
    fn what_is_refused_waits_longer_each_time_and_not_at_all_under_another_spec() {
        let (setbacks, start) = (Setbacks::default(), Instant::now());
        let mut now = start;
        let mut waits = vec![];
        for _ in 0..8 {
            setbacks.hit_at(now, &job(1), Refused::Pods, "quota");
            let seen = setbacks.seen_at(now, &job(1));
            waits.push(seen[0].again_in);
            now += Duration::from_secs(u64::try_from(seen[0].again_in).unwrap());
            assert_eq!(setbacks.seen_at(now, &job(1))[0].again_in, 0);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(setbacks.seen_at(now, &job(2)), []);
        setbacks.hit_at(now + FORGOTTEN, &job(1), Refused::Pods, "quota");
        assert_eq!(setbacks.seen_at(now + FORGOTTEN, &job(1))[0].again_in, 1);
    }

    #[test]
    fn only_what_was_tried_again_is_over_and_it_still_counts() {
        let (setbacks, now) = (Setbacks::default(), Instant::now());
        setbacks.hit_at(now, &job(1), Refused::Pods, "a");
        setbacks.hit_at(now, &job(1), Refused::Coordinator, "b");
        setbacks.went_well_at(now, &job(1), &setbacks.seen_at(now, &job(1)));
        assert_eq!(setbacks.seen_at(now, &job(1)).len(), 2, "neither's time had come");
        let later = now + Duration::from_secs(1);
        let mut tried = setbacks.seen_at(later, &job(1));
        tried.retain(|s| s.what == Refused::Pods);
        setbacks.went_well_at(later, &job(1), &tried);
        let left: Vec<_> = setbacks
            .seen_at(later, &job(1))
            .into_iter()
            .map(|s| s.what)
            .collect();
        assert_eq!(left, [Refused::Coordinator]);
        setbacks.hit_at(later, &job(1), Refused::Pods, "a");
        assert!(
            setbacks
                .seen_at(later, &job(1))
                .iter()
                .any(|s| s.what == Refused::Pods && s.again_in == 2)
        );
    }

    #[test]
    fn what_breaks_again_while_the_rest_is_carried_out_is_not_over() {
        let (setbacks, now) = (Setbacks::default(), Instant::now());
        setbacks.hit_at(now, &job(1), Refused::Coordinator, "a");
        let later = now + Duration::from_secs(1);
        let tried = setbacks.seen_at(later, &job(1));
        assert_eq!(tried[0].again_in, 0);
        setbacks.hit_at(later, &job(1), Refused::Coordinator, "a");
        setbacks.went_well_at(later, &job(1), &tried);
        assert_eq!(setbacks.seen_at(later, &job(1))[0].again_in, 2);
    }
}
