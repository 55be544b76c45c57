//! State and gradients in transit. One connection for each pair of workers and generation carries one unit after another, as the worker's
//! transport does. Connections share the full-duplex network interfaces at their ends.

use std::collections::{BTreeMap, VecDeque};
use varuna_plan::{Decision, Generation, StateId, Unit, WorkerId};
use varuna_protocol::Prepared;

/// Longest interval between reports of a transfer's progress, nanoseconds.
const REPORT_NS: u64 = 100_000_000;

/// A transfer of one unit.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct UnitTransfer {
    pub(crate) unit: Unit,
    pub(crate) content: Content,
    pub(crate) bytes: f64,
}

/// The content of a transfer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Content {
    /// The unit's state, with the decision that led to it.
    State(StateId, Option<Decision>),
    /// The unit's parameters, for the first step of a plan (ADR 43).
    Parameters,
    /// The gradient of a concluded step, for a follower of the unit.
    Gradient(Decision),
    /// The gradient of a step that was just run, for the keeper of the unit's spare copy.
    PreparedGradient(Prepared),
}

/// Generation, sender (none: the checkpoint store, whose bandwidth is not limited), receiver.
pub(crate) type Route = (Generation, Option<WorkerId>, WorkerId);

/// Whole units, and units of which a part has arrived.
pub(crate) type Arrivals = (Vec<(Route, UnitTransfer)>, Vec<(Route, Unit)>);

pub(crate) struct Network {
    /// Bytes per nanosecond in each direction of each interface.
    rate: f64,
    routes: BTreeMap<Route, VecDeque<UnitTransfer>>,
    /// The generations whose members compute while state is on its way to them, and the fraction of the rate that is left for state then.
    beside: BTreeMap<Generation, f64>,
    at: u64,
    /// Wake-ups of an older version are ignored.
    pub(crate) version: u64,
}

impl Network {
    pub(crate) fn new(rate: f64) -> Network {
        Network {
            rate,
            routes: BTreeMap::new(),
            beside: BTreeMap::new(),
            at: 0,
            version: 0,
        }
    }

    pub(crate) fn idle(&self) -> bool {
        self.routes.is_empty()
    }

    /// Whether the unit waits or is in transit on this route.
    pub(crate) fn carries(&self, route: &Route, unit: Unit) -> bool {
        self.routes
            .get(route)
            .is_some_and(|q| q.iter().any(|p| p.unit == unit))
    }

    /// The units whose gradients wait or are in transit on the way to this worker, once for each gradient.
    pub(crate) fn gradients_to(&self, to: WorkerId) -> impl Iterator<Item = Unit> {
        let routes = self.routes.iter().filter(move |(route, _)| route.2 == to);
        let parcels = routes.flat_map(|(_, queue)| queue);
        let gradients = parcels.filter(|p| !matches!(p.content, Content::State(..) | Content::Parameters));
        gradients.map(|p| p.unit)
    }

    /// Whether parameters are in transit for the first step of this generation.
    pub(crate) fn carries_parameters(&self, generation: Generation) -> bool {
        let of_generation = self.routes.iter().filter(|(route, _)| route.0 == generation);
        let mut parcels = of_generation.flat_map(|(_, queue)| queue);
        parcels.any(|p| p.content == Content::Parameters)
    }

    /// From now on the generation's members compute, and state that is on its way to them gets this fraction of the rate.
    pub(crate) fn begin_beside(&mut self, now: u64, generation: Generation, share: f64) {
        self.advance(now);
        self.beside = BTreeMap::from([(generation, share)]);
        self.version += 1;
    }

    /// They do not compute any more.
    pub(crate) fn end_beside(&mut self, now: u64, generation: Generation) {
        if self.beside.contains_key(&generation) {
            self.advance(now);
            self.beside.clear();
            self.version += 1;
        }
    }

    /// The bandwidth share of each connection: that of the busier of its two ends. It is never more than a fair share would be.
    fn shares(&self) -> BTreeMap<Route, f64> {
        let (mut out, mut into) = (BTreeMap::new(), BTreeMap::new());
        for (_, from, to) in self.routes.keys() {
            if from.is_some() {
                *out.entry(*from).or_insert(0u32) += 1;
            }
            *into.entry(*to).or_insert(0u32) += 1;
        }
        let share = |route: &Route| {
            let busiest = out.get(&route.1).max(into.get(&route.2)).copied().unwrap_or(1);
            let left = self.beside.get(&route.0).copied().unwrap_or(1.0);
            (*route, self.rate * left / f64::from(busiest))
        };
        self.routes.keys().map(share).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "nanoseconds between two events")]
    fn advance(&mut self, now: u64) {
        let took = now.saturating_sub(self.at) as f64;
        self.at = now;
        for (route, share) in self.shares() {
            if let Some(parcel) = self.routes.get_mut(&route).and_then(VecDeque::front_mut) {
                parcel.bytes -= share * took;
            }
        }
    }

    /// Appends a unit to those that wait on its connection. Parameters overtake state.
    pub(crate) fn send(&mut self, now: u64, route: Route, parcel: UnitTransfer) {
        self.advance(now);
        let queue = self.routes.entry(route).or_default();
        let place = match parcel.content {
            Content::Parameters => queue.partition_point(|p| p.content == Content::Parameters),
            _ => queue.len(),
        };
        queue.insert(place, parcel);
        self.version += 1;
    }

    /// Drops transfers on connections that are gone.
    pub(crate) fn cut(&mut self, now: u64, gone: impl Fn(&Route) -> bool) {
        if self.routes.keys().any(&gone) {
            self.advance(now);
            self.routes.retain(|route, _| !gone(route));
            self.version += 1;
        }
    }

    /// The units that have arrived by now, and those that are arriving.
    pub(crate) fn arrivals(&mut self, now: u64) -> Arrivals {
        self.advance(now);
        self.version += 1;
        let mut whole = Vec::new();
        for (route, queue) in &mut self.routes {
            // less than a byte is rounding
            while queue.front().is_some_and(|p| p.bytes < 1.0) {
                whole.extend(queue.pop_front().map(|p| (*route, p)));
            }
        }
        self.routes.retain(|_, queue| !queue.is_empty());
        let parts = self.routes.iter();
        let parts = parts
            .filter_map(|(r, q)| q.front().map(|p| (*r, p)))
            // Of parameters only the engine knows.
            .filter(|(_, p)| p.content != Content::Parameters)
            .map(|(r, p)| (r, p.unit))
            .collect();
        (whole, parts)
    }

    /// When the next unit arrives or a report is due.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most REPORT_NS"
    )]
    pub(crate) fn next(&self) -> Option<u64> {
        let end = |(route, share): (Route, f64)| {
            let left = self.routes.get(&route)?.front()?.bytes;
            Some((left / share).max(0.0))
        };
        let first = self.shares().into_iter().filter_map(end).min_by(f64::total_cmp)?;
        Some(self.at + (first.ceil() as u64).clamp(1, REPORT_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(unit: u32, bytes: f64) -> UnitTransfer {
        UnitTransfer {
            unit: Unit(unit),
            content: Content::State(StateId::INITIAL, None),
            bytes,
        }
    }

    fn route(from: u64, to: u64) -> Route {
        (Generation(1), Some(WorkerId(from)), WorkerId(to))
    }

    fn run(net: &mut Network) -> Vec<(u64, u32)> {
        let mut ends = Vec::new();
        while let Some(at) = net.next() {
            let (whole, _) = net.arrivals(at);
            ends.extend(whole.into_iter().map(|(_, p)| (at, p.unit.0)));
        }
        ends
    }

    #[test]
    fn one_connection_carries_one_unit_after_another() {
        let mut net = Network::new(2.0);
        net.send(0, route(1, 2), parcel(0, 100.0));
        net.send(0, route(1, 2), parcel(1, 100.0));
        assert_eq!(run(&mut net), [(50, 0), (100, 1)]);
    }

    #[test]
    fn connections_share_the_interfaces_at_their_ends() {
        let mut net = Network::new(1.0);
        net.send(0, route(1, 3), parcel(0, 100.0));
        net.send(0, route(2, 3), parcel(1, 100.0));
        net.send(0, route(4, 5), parcel(2, 100.0));
        assert_eq!(run(&mut net), [(100, 2), (200, 0), (200, 1)]);
        net.send(200, route(1, 3), parcel(0, 100.0));
        net.cut(250, |r| r.1 == Some(WorkerId(1)));
        assert!(net.idle() && net.next().is_none());
    }
}
