//! Puts the steps and events of a run into one order, with times that never go back. Pure.
//!
//! Each log is in order by itself. Between the two times decide, unless a clock was set back, or the next coordinator's is behind. Then generations
//! decide: an event that names one says which steps came before it and which after it. How long the clock was set back is not known, so no time
//! passes there.

use varuna_coordinator::Event;
use varuna_plan::Generation;
use varuna_run_folder::Metric;

/// Times may be in disorder by as much without a clock that was set back: the two logs are written one after the other.
const SLACK_MS: u64 = 1_000;
/// An event so shortly before a fence is taken for its cause.
const CAUSE_MS: u64 = 60_000;

/// Which steps an event came between, as far as generations tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bounds {
    /// Steps of earlier generations came before it, except those that were reported late.
    earlier: Generation,
    /// Steps from this generation on came after it.
    later: Option<Generation>,
}

/// The generation that no step before this event has, and none after it is below.
fn earlier_than(event: &Event) -> Option<Generation> {
    match event {
        Event::Fenced { upto, .. } => Some(upto.next()),
        Event::Resumed { generation, .. }
        | Event::Running { generation }
        | Event::Switched { generation } => Some(*generation),
        _ => None,
    }
}

/// The generation whose steps came after this event.
fn later_than(event: &Event) -> Option<Generation> {
    match event {
        Event::Fenced { upto, .. } => Some(upto.next()),
        Event::Planned { generation, .. }
        | Event::Resumed { generation, .. }
        | Event::Running { generation } => Some(*generation),
        _ => None,
    }
}

/// The bounds of each event; none if the generations do not grow.
fn bounds(events: &[(u64, Event)]) -> Option<Vec<Bounds>> {
    let mut bounds = Vec::with_capacity(events.len());
    // From the end: which steps came after the event, and the next event that steps of earlier generations came before.
    let (mut later, mut next): (Option<Generation>, Option<(u64, Generation)>) = (None, None);
    for (time, event) in events.iter().rev() {
        if let Some(own) = later_than(event) {
            // A plan that was called off has no steps.
            later = Some(later.map_or(own, |later| later.min(own)));
        }
        if let Some(own) = earlier_than(event) {
            if next.is_some_and(|(_, next)| own > next) {
                return None;
            }
            next = Some((*time, own));
        }
        let is_cause = |(at, _): &(u64, Generation)| at.checked_sub(*time).is_some_and(|by| by <= CAUSE_MS);
        let earlier = next.filter(is_cause).map_or(Generation(0), |(_, own)| own);
        bounds.push(Bounds { earlier, later });
    }
    bounds.reverse();
    let mut earlier = Generation(0);
    for (own, (_, event)) in bounds.iter_mut().zip(events) {
        earlier = earlier.max(earlier_than(event).unwrap_or_default());
        own.earlier = own.earlier.max(earlier);
    }
    Some(bounds)
}

/// The time of a run, from times by a clock that may be set back.
#[derive(Default)]
struct Clock {
    /// What was lost so far when the clock was set back.
    offset: u64,
    last: u64,
}

impl Clock {
    fn of(&self, time: u64) -> u64 {
        time.saturating_add(self.offset)
    }

    /// Whether something of this time cannot come next unless the clock was set back.
    fn is_set_back(&self, time: u64) -> bool {
        self.of(time).saturating_add(SLACK_MS) < self.last
    }

    /// The next time.
    fn advance(&mut self, time: u64) -> u64 {
        if self.is_set_back(time) {
            self.offset += self.last - self.of(time);
        }
        self.last = self.last.max(self.of(time));
        self.last
    }

    /// Whether the next event comes before the next step. `set_back_later`: the clock is, before a later step that may come before the event.
    fn is_first(&self, (time, bounds): (u64, Bounds), step: &Metric, set_back_later: bool) -> bool {
        if bounds.later.is_some_and(|later| step.generation >= later) {
            return true;
        }
        let set_back = (self.is_set_back(time), self.is_set_back(step.time_ms));
        let is_unclear = set_back_later || set_back != (false, false);
        if is_unclear && step.generation < bounds.earlier {
            return false;
        }
        match set_back {
            (true, false) => !set_back_later,
            // By the clock as it was before, it came in the time of this step or much later; in that case by the clock as it is now.
            (false, true) => self.of(time).saturating_sub(self.last) <= step.step_ms as u64 + SLACK_MS,
            _ => time <= step.time_ms,
        }
    }
}

/// All steps, which get their time in the run, and events in one order, with these times.
pub(super) fn in_order(
    published: &mut [Metric],
    events: Vec<(u64, Event)>,
    committed: impl Fn(&Metric) -> Event,
) -> Vec<(u64, Event)> {
    let grow = published
        .windows(2)
        .all(|two| two[0].generation <= two[1].generation);
    let Some(bounds) = bounds(&events).filter(|_| grow) else {
        // The folder has two runs: times are all there is.
        let commits = published.iter().map(|m| (m.time_ms, committed(m)));
        let mut all: Vec<_> = events.into_iter().chain(commits).collect();
        all.sort_by_key(|(time, _)| *time);
        return all;
    };
    let set_back = |two: &[Metric]| two[1].time_ms.saturating_add(SLACK_MS) < two[0].time_ms;
    let pairs = published.windows(2).enumerate().filter(|(_, two)| set_back(two));
    let set_back: Vec<(usize, Generation)> = pairs.map(|(i, two)| (i + 1, two[1].generation)).collect();
    let mut clock = Clock::default();
    let mut all = Vec::with_capacity(published.len() + events.len());
    let mut events = events.into_iter().zip(bounds).peekable();
    for (i, step) in published.iter_mut().enumerate() {
        let set_back_later = |bounds: &Bounds| {
            let may_be_before = |of: Generation| bounds.later.is_none_or(|later| of < later);
            set_back.iter().any(|(at, of)| *at > i && may_be_before(*of))
        };
        while let Some(((time, event), _)) = events
            .next_if(|((time, _), bounds)| clock.is_first((*time, *bounds), step, set_back_later(bounds)))
        {
            all.push((clock.advance(time), event));
        }
        step.time_ms = clock.advance(step.time_ms);
        all.push((step.time_ms, committed(step)));
    }
    all.extend(events.map(|((time, event), _)| (clock.advance(time), event)));
    all
}
