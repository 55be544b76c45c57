//! Which orders were passed on to the coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};
use varuna_api::crd::{RunGoal, RunSpec};
use varuna_coordinator::{Control, WorkerNotice};

/// Which orders were passed on.
#[derive(Default)]
pub(super) struct ForwardedOrders {
    goal: Option<RunGoal>,
    save_at: Option<String>,
    steps: u64,
    allow_state_loss: Option<bool>,
    leaving: BTreeSet<String>,
    ends_at: BTreeMap<String, i64>,
    ended: BTreeSet<String>,
    domains: BTreeMap<String, String>,
    /// Whether all orders that were there at the beginning were passed on. Those may be old; what comes afterwards was written just now.
    has_caught_up: bool,
}

impl ForwardedOrders {
    /// Passes on orders that were not passed on yet. A worker that is reported twice was away in between. False if a channel was full: what is left has to be
    /// passed on a moment later.
    pub(super) fn forward(&mut self, spec: &RunSpec, control: &Control) -> bool {
        let mut is_whole = true;
        if self.goal != Some(spec.goal) {
            // If a channel is full, it was asked before; if it is closed, the coordinator has ended.
            match spec.goal {
                RunGoal::Save => drop(control.save.try_send(())),
                RunGoal::Stop => drop(control.stop.try_send(())),
                RunGoal::Run | RunGoal::None => {}
            }
            self.goal = Some(spec.goal);
        }
        if spec.save_at.is_some() && spec.save_at != self.save_at {
            // If the channel is full, one is ordered already.
            let _ = control.save.try_send(());
        }
        self.save_at.clone_from(&spec.save_at);
        if spec.steps > self.steps {
            match control.steps.try_send(spec.steps) {
                Ok(()) => self.steps = spec.steps,
                Err(_) => is_whole = false,
            }
        }
        let allow = spec.allow_state_loss;
        if self.allow_state_loss != Some(allow) {
            match control.allow_state_loss.try_send(allow) {
                Ok(()) => self.allow_state_loss = Some(allow),
                Err(_) => is_whole = false,
            }
        }
        if spec.domains != self.domains {
            match control.domains.try_send(spec.domains.clone()) {
                Ok(()) => self.domains.clone_from(&spec.domains),
                Err(_) => is_whole = false,
            }
        }
        is_whole &= self.forward_ends(spec, control);
        let notices = [
            (
                &spec.leaving,
                &mut self.leaving,
                (|name| WorkerNotice::Leaving(name, None)) as fn(String) -> _,
            ),
            (&spec.ended, &mut self.ended, WorkerNotice::Ended),
        ];
        for (names, known, notice) in notices {
            // A job may lose a thousand workers at once, and these orders are compared whenever something changes.
            let named: BTreeSet<&String> = names.iter().collect();
            known.retain(|name| named.contains(name));
            for name in names {
                if known.contains(name) {
                    continue;
                }
                if control.notices.try_send(notice(name.clone())).is_err() {
                    is_whole = false;
                    break;
                }
                known.insert(name.clone());
            }
        }
        self.has_caught_up |= is_whole;
        is_whole
    }

    /// Passes on when workers end. False if there was no room.
    fn forward_ends(&mut self, spec: &RunSpec, control: &Control) -> bool {
        self.ends_at.retain(|name, _| spec.ends_at.contains_key(name));
        for (name, at) in &spec.ends_at {
            if self.ends_at.get(name) == Some(at) {
                continue;
            }
            let told = spec.written_at.map(|written| at.saturating_sub(written));
            let left = time_left(*at, told, !self.has_caught_up, SystemTime::now());
            let notice = WorkerNotice::Leaving(name.clone(), Some(left));
            if control.notices.try_send(notice).is_err() {
                return false;
            }
            self.ends_at.insert(name.clone(), *at);
        }
        true
    }
}

/// The time that a worker has left. `told`: how many seconds it had when the orders were written; an operator of an earlier release does not
/// say. Then this node's clock counts; and for orders that `may_be_old`, where it gives no more time than there was.
fn time_left(at: i64, told: Option<i64>, may_be_old: bool, now: SystemTime) -> Duration {
    let by_clock = time_until(at, now);
    match told.map(|seconds| Duration::from_secs(seconds.try_into().unwrap_or(0))) {
        Some(told) if may_be_old => by_clock.min(told),
        Some(told) => told,
        None => by_clock,
    }
}

/// The time until a moment in seconds since 1970; none where it is over.
pub(super) fn time_until(at: i64, now: SystemTime) -> Duration {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at.try_into().unwrap_or(0));
    at.duration_since(now).unwrap_or_default()
}
