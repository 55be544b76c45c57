//! What failed for a job, with exponential backoff: calls that are refused again and again must not keep the operator or the API server
//! busy. This is kept in memory only: another leader tries everything once.

use crate::decide::{Failure, JobPart, ObservedJob};
use crate::error::Error;
use crate::resource::job_ref;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The longest delay; the first is a second.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// The longest delay while the API server does not answer: nothing reports when it answers again, and all jobs wait for it.
const DELAY_SERVER_MAX: Duration = Duration::from_secs(10);
/// A failure this long after the last one counts as the first again.
const FORGOTTEN: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct LastFailure {
    message: String,
    /// Generation of the spec: another spec is tried at once.
    generation: i64,
    times: u32,
    at: Instant,
    /// Which try failed, where tries are numbered.
    attempt: Option<i64>,
    /// Whether a later try has succeeded.
    over: bool,
}

impl LastFailure {
    fn delay(&self, part: JobPart) -> Duration {
        let longest = match part {
            JobPart::Server => DELAY_SERVER_MAX,
            _ => DELAY_MAX,
        };
        Duration::from_secs(1 << (self.times - 1).min(10)).min(longest)
    }
}

/// The failures of all jobs, by uid.
#[derive(Debug, Default)]
pub struct Backoff(Mutex<BTreeMap<String, BTreeMap<JobPart, LastFailure>>>);

impl Backoff {
    /// Notes what has failed, for the report, and for when it is tried again. Returns the kind of the error.
    ///
    /// # Errors
    /// The error itself, if something has changed in the meantime: then there is nothing to report, and all is decided again.
    pub fn note(&self, job: &ObservedJob, error: Error) -> Result<&'static str, Error> {
        let Some((part, message)) = error.failure() else {
            return Err(error);
        };
        tracing::warn!(%error, job = %job_ref(&job.namespace, &job.name), "will be tried again");
        self.failed(job, part, &message);
        Ok(error.kind())
    }

    /// A part failed.
    pub fn failed(&self, job: &ObservedJob, part: JobPart, message: &str) {
        self.failed_at(Instant::now(), job, part, message);
    }

    /// A try with a number failed (for example a numbered coordinator): however often that is seen, it counts once.
    pub fn attempt_failed(&self, job: &ObservedJob, part: JobPart, attempt: i64, message: &str) {
        self.attempt_failed_at(Instant::now(), job, part, attempt, message);
    }

    fn attempt_failed_at(&self, now: Instant, job: &ObservedJob, part: JobPart, attempt: i64, message: &str) {
        let known = {
            let all = self.0.lock();
            let of_part = all.get(&job.uid).and_then(|of_job| of_job.get(&part));
            of_part.and_then(|failure| failure.attempt)
        };
        if known.is_none_or(|known| known < attempt) {
            self.failed_at(now, job, part, message);
            if let Some(failure) = self
                .0
                .lock()
                .get_mut(&job.uid)
                .and_then(|of_job| of_job.get_mut(&part))
            {
                failure.attempt = Some(attempt);
            }
        }
    }

    fn failed_at(&self, now: Instant, job: &ObservedJob, part: JobPart, message: &str) {
        let mut all = self.0.lock();
        let of_job = all.entry(job.uid.clone()).or_default();
        let before = of_job.get(&part).filter(|k| k.generation == job.generation);
        let times = before.filter(|k| now.duration_since(k.at) < FORGOTTEN);
        let failure = LastFailure {
            message: message.to_owned(),
            generation: job.generation,
            times: times.map_or(0, |k| k.times).saturating_add(1),
            at: now,
            attempt: of_job.get(&part).and_then(|k| k.attempt),
            over: false,
        };
        of_job.insert(part, failure);
    }

    /// What could not be carried out for the present spec, and when it is tried again.
    #[must_use]
    pub fn failures(&self, job: &ObservedJob) -> Vec<Failure> {
        self.failures_at(Instant::now(), job)
    }

    fn failures_at(&self, now: Instant, job: &ObservedJob) -> Vec<Failure> {
        let all = self.0.lock();
        let failure = all.get(&job.uid).into_iter().flatten();
        failure
            .filter(|(_, k)| k.generation == job.generation && !k.over)
            .map(|(part, k)| Failure {
                part: *part,
                message: k.message.clone(),
                // Rounded up: a reconciliation after this time finds that it is over.
                retry_in: i64::try_from((k.at + k.delay(*part)).saturating_duration_since(now).as_millis())
                    .map_or(i64::MAX, |ms| (ms + 999) / 1000),
            })
            .collect()
    }

    /// Everything was carried out, including what had failed before and was due (`tried`). A part that failed again in the meantime
    /// (a coordinator may end at any time) still counts as failed.
    pub fn succeeded(&self, job: &ObservedJob, tried: &[Failure]) {
        self.succeeded_at(Instant::now(), job, tried);
    }

    fn succeeded_at(&self, now: Instant, job: &ObservedJob, tried: &[Failure]) {
        let mut all = self.0.lock();
        let Some(of_job) = all.get_mut(&job.uid) else {
            return;
        };
        for tried in tried.iter().filter(|f| f.retry_in <= 0) {
            if let Some(failure) = of_job.get_mut(&tried.part) {
                failure.over = failure.at + failure.delay(tried.part) <= now;
            }
        }
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().retain(|uid, _| exists(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(generation: i64) -> ObservedJob {
        ObservedJob {
            name: "j".into(),
            namespace: "n".into(),
            uid: "u".into(),
            generation,
            spec: Err(String::new()),
            save_at: None,
            status: varuna_api::crd::Status::default(),
            deleting: false,
        }
    }

    #[test]
    fn refused_parts_back_off_until_the_spec_changes() {
        let (backoff, start) = (Backoff::default(), Instant::now());
        let mut now = start;
        let mut waits = vec![];
        for _ in 0..8 {
            backoff.failed_at(now, &job(1), JobPart::Pods, "quota");
            let seen = backoff.failures_at(now, &job(1));
            waits.push(seen[0].retry_in);
            now += Duration::from_secs(u64::try_from(seen[0].retry_in).unwrap());
            assert_eq!(backoff.failures_at(now, &job(1))[0].retry_in, 0);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        let mut of_server = vec![];
        for _ in 0..6 {
            backoff.failed_at(now, &job(3), JobPart::Server, "connection refused");
            of_server.push(backoff.failures_at(now, &job(3))[0].retry_in);
        }
        assert_eq!(of_server, [1, 2, 4, 8, 10, 10]);
        assert_eq!(backoff.failures_at(now, &job(2)), []);
        backoff.failed_at(now + FORGOTTEN, &job(1), JobPart::Pods, "quota");
        assert_eq!(backoff.failures_at(now + FORGOTTEN, &job(1))[0].retry_in, 1);
    }

    #[test]
    fn a_refusal_is_noted_and_a_change_in_the_meantime_is_not() {
        let backoff = Backoff::default();
        let changed = backoff.note(&job(1), Error::Stale);
        assert!(matches!(changed, Err(Error::Stale)), "{changed:?}");
        assert_eq!(backoff.failures(&job(1)), []);
        let refused = backoff.note(&job(1), Error::coordinator("no certificate"));
        assert_eq!(refused.unwrap(), "refused");
        let noted = backoff.failures(&job(1));
        assert_eq!(
            (noted[0].part, noted[0].message.as_str()),
            (JobPart::Coordinator, "no certificate")
        );
    }

    #[test]
    fn only_what_was_tried_again_is_over_and_it_still_counts() {
        let (backoff, now) = (Backoff::default(), Instant::now());
        backoff.failed_at(now, &job(1), JobPart::Pods, "a");
        backoff.failed_at(now, &job(1), JobPart::Coordinator, "b");
        backoff.succeeded_at(now, &job(1), &backoff.failures_at(now, &job(1)));
        assert_eq!(
            backoff.failures_at(now, &job(1)).len(),
            2,
            "neither's time had come"
        );
        let later = now + Duration::from_secs(1);
        let mut tried = backoff.failures_at(later, &job(1));
        tried.retain(|s| s.part == JobPart::Pods);
        backoff.succeeded_at(later, &job(1), &tried);
        let left: Vec<_> = backoff
            .failures_at(later, &job(1))
            .into_iter()
            .map(|s| s.part)
            .collect();
        assert_eq!(left, [JobPart::Coordinator]);
        backoff.failed_at(later, &job(1), JobPart::Pods, "a");
        assert!(
            backoff
                .failures_at(later, &job(1))
                .iter()
                .any(|s| s.part == JobPart::Pods && s.retry_in == 2)
        );
    }

    #[test]
    fn what_breaks_again_while_the_rest_is_carried_out_is_not_over() {
        let (backoff, now) = (Backoff::default(), Instant::now());
        backoff.failed_at(now, &job(1), JobPart::Coordinator, "a");
        let later = now + Duration::from_secs(1);
        let tried = backoff.failures_at(later, &job(1));
        assert_eq!(tried[0].retry_in, 0);
        backoff.failed_at(later, &job(1), JobPart::Coordinator, "a");
        backoff.succeeded_at(later, &job(1), &tried);
        assert_eq!(backoff.failures_at(later, &job(1))[0].retry_in, 2);
    }
}
