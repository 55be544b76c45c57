//! Jobs that have ended and whose spec cannot be read any more, because its label was changed, or because another release wrote it.

use super::*;

const UNREADABLE: &str = "a job in a queue needs spec.checkpoint, or spec.allowStateLoss";

fn unreadable(observed: &Observed) -> Observed {
    let mut unreadable = observed.clone();
    unreadable.job.spec = Err(UNREADABLE.into());
    unreadable.now += 500;
    unreadable
}

fn is_wrong(desired: &Decided) {
    let accepted = condition(desired, ConditionType::Accepted);
    assert_eq!(
        (accepted.status.as_str(), accepted.reason.as_str()),
        ("False", "InvalidSpec")
    );
    assert_eq!(accepted.message, UNREADABLE);
    assert!(
        desired.create.is_empty() && desired.starts.is_none(),
        "{desired:?}"
    );
}

#[test]
fn complete_job_stays_complete_when_the_spec_is_readable() {
    let mut observed = observed(1);
    observed.job.status.start_time = Some(decision::time(NOW - 100));
    observed.run = Some(ObservedRun {
        ended: Some(RunEnd::Done),
        ..run(RunMode::Done, 1, 10)
    });
    let mut known = carried_out(&observed, &decide(&observed));
    known.run = None;
    for before in [observed, known] {
        let unreadable = unreadable(&before);
        let desired = decide(&unreadable);
        is_wrong(&desired);
        assert_eq!(condition(&desired, ConditionType::Complete).reason, "LastStep");
        assert_eq!(desired.status.phase, Some(JobPhase::Complete));
        assert_eq!(desired.coordinator, CoordinatorGoal::Absent);
        let ended = desired.status.completion_time.clone();
        assert!(ended.is_some());
        let mut again = carried_out(&unreadable, &desired);
        again.run = None;
        again.job.spec = Ok(spec(1, "  activeDeadlineSeconds: 60\n"));
        let desired = decide(&again);
        assert_eq!(condition(&desired, ConditionType::Complete).status, "True");
        assert_eq!(condition(&desired, ConditionType::Failed).status, "False");
        assert_eq!(desired.status.completion_time, ended);
        assert!(desired.create.is_empty() && desired.starts.is_none());
    }
}

#[test]
fn failed_job_is_retried_under_another_readable_spec() {
    let mut observed = observed(1);
    observed.pods = (1..=6).map(|i| ended(i, 1, "Error", 120 - 20 * i)).collect();
    let failed = decide(&observed);
    let mut known = carried_out(&observed, &failed);
    known.pods.clear();
    let failure = |desired: &Decided| {
        let failed = condition(desired, ConditionType::Failed);
        (
            failed.status.clone(),
            failed.reason.clone(),
            failed.message.clone(),
        )
    };
    let mut unread = unreadable(&known);
    // With the same generation of the spec and another label, and with another generation.
    for generation in [1, 2] {
        unread.job.generation = generation;
        let desired = decide(&unread);
        is_wrong(&desired);
        assert_eq!(failure(&desired), failure(&failed), "generation {generation}");
        assert_eq!(desired.status.phase, Some(JobPhase::Failed));
        assert_eq!(desired.status.completion_time, failed.status.completion_time);
        let next = decide(&carried_out(&unread, &desired));
        assert_eq!(next.status, desired.status, "a reconciliation changes nothing");
        unread = carried_out(&unread, &desired);
    }
    unread.job.spec = Ok(spec(1, ""));
    let again = decide(&unread);
    assert_eq!(names(&again), ["j-w7-u"]);
    assert_eq!(condition(&again, ConditionType::Failed).status, "False");
}

#[test]
fn evictions_are_allowed_one_by_one_under_an_unreadable_spec() {
    let mut running = observed(4);
    running.pods = (1..=4).map(|i| pod(i, PodPhase::Running)).collect();
    let names: Vec<String> = running.pods.iter().map(|pod| pod.name.clone()).collect();
    let placed = |names: &[String]| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Some(all_placed(with_workers(training(5), &names, &[])))
    };
    running.run = placed(&names);
    let mut unread = unreadable(&running);
    let stays = |of: &Observed| {
        let objects = decide(of).objects;
        assert_eq!(objects.len(), 1, "nothing else follows from what is observed");
        objects[0]["spec"]["minAvailable"].clone()
    };
    assert_eq!(stays(&unread), 3);
    unread.pods.remove(0);
    assert_eq!(stays(&unread), 3, "there is no plan without the first pod yet");
    unread.run = placed(&names[1..]);
    assert_eq!(stays(&unread), 2, "the next one may be evicted");
    unread.run = None;
    assert!(decide(&unread).objects.is_empty());
}
