//! A digest of all effects of the protocol's two state machines: equal for equal behaviour.
//!
//! It does not depend on names of types and fields or on text for people, so it stays the same while code is renamed and moved. All fields
//! that a machine acts on are included. Every variant has a tag here that never changes. Fields are destructured by name, so that a new
//! field does not compile until it is decided here whether it counts.

use varuna_plan::state::{Chain, UnitNorm, mix};
use varuna_plan::{
    Base, Decision, EvaluationSteps, Generation, Layout, LossScale, OptimizerProgress, Pipeline, Plan,
    Prediction, Recompute, SampleRange, ScaleFactor, ScheduleKind, ScheduleSpec, SegmentRange, Shape, Spare,
    Stage, StateId, Step, StepDeadline, Unit, WorkerId,
};
use varuna_protocol::ExitReason;
use varuna_protocol::{
    ComparisonRecord, Conclusion, CoordinatorEffect, Digests, Divergence, Event, Following, Inventory,
    MemberEffect, MemoryShortage, MinorityHolder, Norms, Order, Outcome, PeerMessage, Phase, Prepared, Ran,
    Record, Report, Rollback, Status, Suspicion,
};

use std::collections::BTreeMap;
use std::sync::Arc;

/// The digest so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EffectsDigest(pub u64);

impl EffectsDigest {
    /// An effect of coordinator number `coordinator` at `now` (milliseconds of the world).
    pub fn coordinator(&mut self, now: u64, coordinator: usize, effect: &CoordinatorEffect) {
        self.add(&(1u64, now));
        self.add(&coordinator);
        self.add(effect);
    }

    /// An effect of a worker at `now` (milliseconds of the world).
    pub fn member(&mut self, now: u64, worker: WorkerId, effect: &MemberEffect) {
        self.add(&(2u64, now));
        self.add(&worker);
        self.add(effect);
    }

    /// The mode that a coordinator shows to people, by its serialized name.
    pub fn mode(&mut self, mode: &str) {
        self.add(mode);
    }

    fn add(&mut self, value: &(impl Digest + ?Sized)) {
        value.digest(self);
    }

    /// The tag of a variant.
    fn tag(&mut self, tag: u64) {
        self.add(&tag);
    }
}

trait Digest {
    fn digest(&self, d: &mut EffectsDigest);
}

impl Digest for std::time::Duration {
    fn digest(&self, d: &mut EffectsDigest) {
        d.add(&self.as_secs());
        d.add(&self.subsec_nanos());
    }
}

impl Digest for u64 {
    fn digest(&self, d: &mut EffectsDigest) {
        d.0 = mix(d.0, *self);
    }
}

/// Types that are numbers, or can be converted to one.
macro_rules! numbers {
    ($($type:ty: |$value:ident| $number:expr),* $(,)?) => {
        $(impl Digest for $type {
            fn digest(&self, d: &mut EffectsDigest) {
                let $value = self;
                let number: u64 = $number;
                d.add(&number);
            }
        })*
    };
}

numbers! {
    u32: |n| u64::from(*n),
    usize: |n| *n as u64,
    bool: |b| u64::from(*b),
    f64: |x| x.to_bits(),
    WorkerId: |w| w.0,
    Generation: |g| g.0,
    Step: |s| s.0,
    Chain: |c| c.0,
    ScaleFactor: |f| f.value(),
    Unit: |u| u64::from(u.0),
    Recompute: |r| match r {
        Recompute::None => 1,
        Recompute::Selective => 2,
        Recompute::Full => 3,
    },
    Phase: |p| match p {
        Phase::Idle => 1,
        Phase::Source => 2,
        Phase::Loading => 3,
        Phase::Ready => 4,
        Phase::Running => 5,
    },
}

/// Structs: the fields that count, then those for people.
macro_rules! structs {
    ($($type:ident { $($field:ident),* $(; $ignored:ident)* }),* $(,)?) => {
        $(impl Digest for $type {
            fn digest(&self, d: &mut EffectsDigest) {
                let $type { $($field,)* $($ignored: _),* } = self;
                $(d.add($field);)*
            }
        })*
    };
}

structs! {
    StateId { run_gen, step, chain },
    Decision { parent, id, norm2, overflow, before, loss, eval_loss, switch },
    UnitNorm { norm2, overflow, loss, eval_loss, before },
    OptimizerProgress { adam_steps, loss_scale, failed_in_a_row },
    LossScale { factor, clean_steps },
    Divergence { step, failed_in_a_row, loss_scale },
    Layout { segments, tied, ranges },
    SegmentRange { start, end },
    SampleRange { start, end },
    Stage { worker, segments, recompute },
    Pipeline { stages, samples },
    Spare { worker; reason },
    ScheduleSpec { kind, recompute },
    Prediction { step_ms, bubble, move_ms, calibrated },
    Shape { pipelines, spares, micro_batch_size, schedule, predicted },
    Plan {
        generation, parent, base, layout, shape, sources, addresses, deadline, relay, tree_fan_out,
        evidence; reason; index; following; keepers; parameters_first
    },
    StepDeadline { step_ns, doublings, evaluation; floor_ns },
    EvaluationSteps { interval_steps, batches },
    Digests { id, saved, units },
    Rollback { to, generation },
    MinorityHolder { worker, name },
    Record { version, term, highest, plan, next, done, trust, waited_ms, puts_anew; last_step; stopped },
    Status { generation, fenced, phase, based, connected, next, next_connected, at, draining, following; last_step; keeping; parameters_first },
    Prepared { run_gen, step, norm },
    MemoryShortage { needed_bytes, free_bytes },
    Ran { generation, step, norm_put_in },
    Inventory { upto, units, prepared, ran, decision },
    Norms { step, units, armed, save, store_busy },
    Conclusion { decision, save, store_busy },
}

impl Digest for str {
    fn digest(&self, d: &mut EffectsDigest) {
        d.add(&self.len());
        self.bytes().for_each(|byte| d.add(&u64::from(byte)));
    }
}

impl Digest for String {
    fn digest(&self, d: &mut EffectsDigest) {
        d.add(self.as_str());
    }
}

impl<T: Digest> Digest for Option<T> {
    fn digest(&self, d: &mut EffectsDigest) {
        d.add(&self.is_some());
        self.iter().for_each(|value| d.add(value));
    }
}

impl<T: Digest> Digest for Vec<T> {
    fn digest(&self, d: &mut EffectsDigest) {
        d.add(&self.len());
        self.iter().for_each(|value| d.add(value));
    }
}

impl<T: Digest> Digest for Arc<T> {
    fn digest(&self, d: &mut EffectsDigest) {
        d.add(self.as_ref());
    }
}

impl<A: Digest, B: Digest> Digest for (A, B) {
    fn digest(&self, d: &mut EffectsDigest) {
        d.add(&self.0);
        d.add(&self.1);
    }
}

impl<K: Digest, V: Digest> Digest for BTreeMap<K, V> {
    fn digest(&self, d: &mut EffectsDigest) {
        d.add(&self.len());
        for (key, value) in self {
            d.add(key);
            d.add(value);
        }
    }
}

/// Adds nothing if there was no comparison, as in jobs that compare nothing.
impl Digest for ComparisonRecord {
    fn digest(&self, d: &mut EffectsDigest) {
        let ComparisonRecord {
            compared,
            rollbacks,
            odd,
        } = self;
        if !self.is_empty() {
            d.add(compared);
            d.add(rollbacks);
            d.add(odd);
        }
    }
}

/// Adds nothing if workers cannot follow: the digests of such schedules are the same as before following existed.
impl Digest for Following {
    fn digest(&self, d: &mut EffectsDigest) {
        match self {
            Following::Unable => {}
            Following::Able => d.tag(1),
            Following::CaughtUp => d.tag(2),
            Following::Copied(step) => {
                d.tag(3);
                d.add(step);
            }
        }
    }
}

/// Enums: a tag for each variant, then the fields that count, then those for people.
macro_rules! enums {
    ($($type:ident { $($tag:literal $variant:ident $({ $($field:ident),* $(; $ignored:ident)* })? $(( $($part:ident),* ))?),* $(,)? })*) => {
        $(impl Digest for $type {
            fn digest(&self, d: &mut EffectsDigest) {
                match self {
                    $($type::$variant $({ $($field,)* $($ignored: _),* })? $(( $($part),* ))? => {
                        d.tag($tag);
                        $($(d.add($field);)*)?
                        $($(d.add($part);)*)?
                    })*
                }
            }
        })*
    };
}

enums! {
    ScheduleKind {
        1 Gpipe,
        2 OneForwardOneBackward { warmup_factor },
        3 Interleaved { chunks },
    }
    Base {
        1 Fixed { id, decision, checkpoint },
        2 AtSwitch { from },
    }
    Order {
        1 Fence { upto },
        2 Prepare(plan),
        3 Arm { generation },
        4 Save { after },
        5 Go { generation },
        6 Release,
        7 Tell { after },
        8 LastStep { step },
    }
    Report {
        1 Status(status),
        2 Suspect { generation, about, why },
        3 Inventory(inventory),
        4 Committed { decision },
        5 Commits { after, decisions },
        6 Digests(digests),
    }
    PeerMessage {
        1 Norm(norms),
        2 Fetch { unit },
        3 Decided(conclusion),
        4 Follow { unit, held },
    }
    ExitReason {
        1 Released,
        2 Finished,
        3 Orphaned,
        4 EngineStuck,
    }
    Suspicion {
        1 Gone,
        2 Unreachable,
        3 Damaged,
        4 NoData,
        5 NoMemory(shortage),
    }
    Outcome {
        1 Done,
        2 Deposed,
        3 Stopped,
        4 StateLost { units },
        5 Diverged(divergence),
    }
    CoordinatorEffect {
        1 Send { to, order },
        2 Write { expect, record },
        3 ReadRecord,
        4 ListCheckpoints,
        5 Event(event),
        6 Finish(outcome),
        7 DiscardCheckpoint { id },
    }
    MemberEffect {
        1 Accepted(plan),
        2 Connect { generation, peer, address },
        3 Disconnect { generation },
        4 Send { generation, to, message },
        5 Serve { generation, to, unit, id, decision },
        6 Report(report),
        7 Load { generation, id, unit },
        8 Adopt { unit, id },
        9 Run { plan, step, deadline },
        10 Abort,
        11 Apply { decision, units },
        12 Free { keep },
        13 SaveUnit { id, unit },
        14 Exit(reason),
        15 StopServing { generation },
        16 Digest { id, saved, units },
        17 Copy { generation, to, unit, id, decision },
        18 Forward { generation, to, unit, decision },
        19 ApplyForwarded { unit, decision },
        20 ForwardPrepared { generation, to, unit, prepared },
        21 KeepGradient { unit, step },
    }
    Event {
        1 TookOver { term },
        2 WorkerJoined { worker, address; name },
        3 WorkerLost { worker; name },
        4 WorkerDraining { worker; name },
        5 WorkerReleased { worker; name },
        6 Planned { generation, workers, predicted_ms, change; plan; reason },
        7 Fenced { upto; because },
        8 Collected { answered, missing },
        9 Resumed { generation, base, finished, restored },
        10 Connected { generation },
        11 Running { generation },
        12 Switched { generation },
        13 Cancelled { generation; because },
        14 Committed { id, generation, step, loss, eval_loss, gradient_norm, overflow, progress },
        15 StepTimeOff { generation, predicted_ms, observed_ms, calibrated },
        16 BelowMinimum { have, need },
        17 NoPlan {; reason },
        18 WriteFailed { version },
        19 Lost { units },
        20 Done { step },
        21 Deposed { by_term },
        22 StatesDiffer { step, units, replaced },
        23 Diverged(divergence),
        24 CostsCorrected { generation, predicted_ms, observed_ms, factor },
        25 FinalCheckpointDamaged { state, again },
        26 FollowersLate { generation, workers },
        27 FollowersCaughtUp { generation, workers },
        28 SpareCopies { generation, kept; verdict },
        29 CheckpointInterval { seconds },
    }
}
