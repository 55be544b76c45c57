//! Where a run's time went: recoveries, and goodput by cause. Pure.

use super::history::History;
use std::time::Duration;
use varuna_coordinator::Event;
use varuna_coordinator::recoveries::{Cause, Phase, Recoveries};

/// A recovery: from the fence to the first step after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Recovery {
    /// When it was over, since the first step.
    pub(super) at: Duration,
    pub(super) cause: Cause,
    /// How long nothing was trained.
    pub(super) took: Duration,
    /// How much of it training waited for workers. It is in none of the phases.
    pub(super) waited: Duration,
    /// Phases of the recovery, in order.
    pub(super) phases: Vec<(Phase, Duration)>,
    /// The plan that followed.
    pub(super) plan: String,
    /// Published steps that were run again because of it.
    pub(super) steps_lost: u64,
}

/// A time in which no coordinator led the run, or none that fenced: the run was stopped, or all of it was gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stop {
    /// The last commit before it, since the first step.
    pub(super) from: Duration,
    /// When the next coordinator began a recovery, since the first step.
    pub(super) until: Duration,
}

/// What time was spent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spent {
    /// Steps that stayed.
    Steps,
    /// Steps that were given up and run again.
    Again,
    /// Nobody trained until another coordinator had begun: the run was stopped, or all of it was gone.
    Stopped,
    /// In a recovery training waited for workers: there were fewer than the job needs, or too few for a plan.
    Waiting,
    /// Recoveries, without the time in which they waited for workers.
    Recovery(Cause),
}

/// Where the time between a run's first and last published step went.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Account {
    pub(super) recoveries: Vec<Recovery>,
    /// In order.
    pub(super) stops: Vec<Stop>,
    /// Each kind that took any time, the steps that stayed first.
    pub(super) spent: Vec<(Spent, Duration)>,
}

impl Account {
    pub(super) fn of(history: &History) -> Account {
        let (recoveries, stops) = (recoveries(history), stops(history));
        let (first, last) = history.span_ms();
        let all = Duration::from_millis(last.saturating_sub(first));
        let mut lost = vec![
            (Spent::Again, run_again(history)),
            (
                Spent::Stopped,
                stops.iter().map(|s| s.until.saturating_sub(s.from)).sum(),
            ),
            (Spent::Waiting, recoveries.iter().map(|r| r.waited).sum()),
        ];
        for cause in [
            Cause::Lost,
            Cause::Notice,
            Cause::Takeover,
            Cause::Joined,
            Cause::Other,
        ] {
            let of = recoveries.iter().filter(|r| r.cause == cause);
            lost.push((
                Spent::Recovery(cause),
                of.map(|r| r.took.saturating_sub(r.waited)).sum(),
            ));
        }
        lost.retain(|(_, took)| !took.is_zero());
        let stayed = all.saturating_sub(lost.iter().map(|(_, took)| *took).sum());
        let mut spent = vec![(Spent::Steps, stayed)];
        spent.extend(lost);
        Account {
            recoveries,
            stops,
            spent,
        }
    }

    /// The share of the time that was spent on steps that were not rolled back: 0 to 1.
    pub(super) fn goodput(&self) -> f64 {
        self.share(self.spent[0].1)
    }

    /// A time as a share of all of it.
    pub(super) fn share(&self, took: Duration) -> f64 {
        let all: Duration = self.spent.iter().map(|(_, took)| *took).sum();
        match all.is_zero() {
            true => 1.0,
            false => took.as_secs_f64() / all.as_secs_f64(),
        }
    }
}

/// The time of published steps that did not stay. The first one of a generation has none of its own: the time before it is the recovery's.
fn run_again(history: &History) -> Duration {
    let steps: Vec<_> = history.published().collect();
    let given_up = steps.windows(2).filter_map(|two| {
        let ((before, _), (step, stayed)) = (two[0], two[1]);
        let own = step.generation == before.generation && !stayed;
        own.then(|| step.time_ms.saturating_sub(before.time_ms))
    });
    Duration::from_millis(given_up.sum())
}

/// From the last commit before another coordinator took over until it began a recovery; none where workers went on under it, and none after
/// the last published step: that time is not in the report.
fn stops(history: &History) -> Vec<Stop> {
    let (first, _) = history.span_ms();
    let (mut last_commit, mut waits_since, mut open) = (None, None, None);
    let mut stops = Vec::new();
    for (time_ms, event) in history.by_time() {
        let at = Duration::from_millis(time_ms.saturating_sub(first));
        match event {
            Event::TookOver { .. } => waits_since = last_commit,
            Event::Committed { .. } => {
                last_commit = Some(at);
                waits_since = None;
                stops.extend(open.take());
            }
            // A run that was stopped again before its first step was stopped until the later fence.
            Event::Fenced { .. } => {
                open = waits_since.take().map(|from| Stop { from, until: at }).or(open);
            }
            _ => {}
        }
    }
    stops
}

/// How long the recovery that is going on has waited for workers.
#[derive(Default)]
struct Waits {
    since: Option<Duration>,
    all: Duration,
}

impl Waits {
    /// Takes an event. Returns how much of the phase that it ends was spent on waiting.
    fn observe(&mut self, at: Duration, event: &Event) -> Duration {
        match event {
            // Its time counts as that of a stopped run.
            Event::TookOver { .. } => *self = Waits::default(),
            Event::BelowMinimum { .. } | Event::NoPlan { .. } => self.since = self.since.or(Some(at)),
            // What was waited until now is in no phase: the phases begin anew.
            Event::Fenced { .. } => {
                if let Some(since) = &mut self.since {
                    self.all += at.saturating_sub(std::mem::replace(since, at));
                }
            }
            Event::Collected { .. } | Event::Planned { change: false, .. } => {
                let waited = self
                    .since
                    .take()
                    .map_or(Duration::ZERO, |since| at.saturating_sub(since));
                self.all += waited;
                return waited;
            }
            _ => {}
        }
        Duration::ZERO
    }
}

fn recoveries(history: &History) -> Vec<Recovery> {
    let (first, _) = history.span_ms();
    let (mut observed, mut found) = (Recoveries::default(), Vec::new());
    let (mut phases, mut plan, mut steps_lost) = (Vec::new(), String::new(), 0);
    let (mut waits, mut reached) = (Waits::default(), 0);
    for (time_ms, event) in history.by_time() {
        let time_ms = *time_ms;
        match event {
            Event::Planned { plan: name, .. } => plan.clone_from(name),
            Event::Resumed { base, .. } => steps_lost = u64::saturating_sub(reached, base.step.0),
            Event::Committed { step, .. } => reached = step.0,
            _ => {}
        }
        let at = Duration::from_millis(time_ms);
        let waited = waits.observe(at, event);
        for measured in observed.observe(at, event) {
            match (measured.phase, event) {
                (Phase::Total, Event::Committed { .. }) if time_ms > first => found.push(Recovery {
                    at: at.saturating_sub(Duration::from_millis(first)),
                    cause: measured.cause,
                    took: measured.took,
                    waited: std::mem::take(&mut waits).all.min(measured.took),
                    phases: std::mem::take(&mut phases),
                    plan: plan.clone(),
                    steps_lost: std::mem::take(&mut steps_lost),
                }),
                // A planned change: training did not stop.
                (Phase::Total, _) => {}
                (phase, _) => phases.push((phase, measured.took.saturating_sub(waited))),
            }
        }
        // Before the first published step: the start of the run.
        if time_ms <= first {
            phases.clear();
            waits.all = Duration::ZERO;
        }
    }
    found
}

#[cfg(test)]
mod tests;
