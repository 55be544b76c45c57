//! Shards of checkpoints on their way to the store and back: through outages, a full store and a slow one.

use super::network::{Ms, Node};
use super::{Schedule, Timer};
use crate::engine::UnitState;
use crate::host::Host;
use varuna_plan::{StateId, Unit, WorkerId};

/// Maximum additional delay of a slow store, milliseconds.
pub(super) const SLOW_STORE_MAX: Ms = 1_500;

/// A shard that a worker uploads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upload {
    pub(super) from: WorkerId,
    pub(super) id: StateId,
    pub(super) unit: Unit,
    pub(super) state: UnitState,
}

impl Host<Schedule> {
    /// How much longer the store takes this time.
    pub(super) fn store_delay(&mut self) -> Ms {
        if self.env.rng.chance(self.env.unreliable.slow_store) {
            self.env.rng.range(100, SLOW_STORE_MAX)
        } else {
            0
        }
    }

    /// Begins an upload.
    pub(super) fn upload(&mut self, upload: Upload) {
        self.members[upload.from].local.uploads += 1;
        let far = if self.env.rng.chance(20) { 900 } else { 60 };
        let late = self.store_delay();
        self.after_random(5 + late, far + late, Timer::PutShard(upload));
    }

    /// The shard reaches the store, which accepts it, or the worker tries again. An upload outlives its worker, which makes it harder if an
    /// old worker continues, and easier for a restore.
    pub(super) fn put_or_retry(&mut self, upload: Upload) {
        if self.env.outage.is_down(self.now()) || self.env.outage.full_until > self.now() {
            return self.after_random(20, 100, Timer::PutShard(upload));
        }
        let uploads = &mut self.members[upload.from].local.uploads;
        *uploads = uploads.saturating_sub(1);
        self.put(upload.id, upload.unit, upload.state);
    }

    /// Until when the coordinator cannot reach the store; none if it can now.
    pub(super) fn store_blocked(&self, c: usize) -> Option<Ms> {
        let down = Some(self.env.outage.down_until).filter(|until| *until > self.now());
        self.blocked_until(Node::Coordinator(c), Node::Store).max(down)
    }
}

/// An outage of the store that affects every process.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Outage {
    /// Nobody reaches it until then.
    pub(super) down_until: Ms,
    /// The store takes no more shards until then.
    pub(super) full_until: Ms,
}

impl Outage {
    pub(super) fn is_down(&self, now: Ms) -> bool {
        self.down_until > now
    }
}
