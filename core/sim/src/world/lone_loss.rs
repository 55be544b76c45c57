//! A single worker dies after a quiet period. This checks how long the run takes to recover (m), and what it loses (n).
//!
//! In other schedules faults come too fast for such guarantees: a run that recovers slowly may have been hit again.

use super::fault_list::Fault;
use super::faults::stays;
use super::network::{Ms, Node};
use super::workers::CONNECT_DEADLINE;
use super::{Result, Schedule, Timer};
use crate::check::broken;
use crate::host::Host;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Generation, Plan, StateId, Unit, WorkerId};
use varuna_protocol::{Member, Phase, Timing};

/// The earliest time after the last fault: pauses and cuts have ended.
pub(super) const QUIET: Ms = 3_000;
/// If it is not quiet yet, this is tried again after this time,
const AGAIN: Ms = 100;
/// at most this many times.
const TRIES: u32 = 20;

/// The effects of the loss of a single worker.
#[derive(Default)]
pub(super) struct LoneLoss {
    /// The worker that is to die as soon as it has run a step.
    armed: Option<WorkerId>,
    watch: Option<Watch>,
}

/// A worker that has died alone.
struct Watch {
    at: Ms,
    worker: WorkerId,
    /// The greatest generation at the time.
    highest: Generation,
    /// The longest that a message takes.
    message: Ms,
    /// Whether a link stays cut: the first plan may need it, which shows then.
    link_is_cut: bool,
    /// Where copies of everything that it held are.
    copies: Copies,
    /// A plan was persisted since.
    planned: bool,
}

/// The remaining copies of what the worker held.
enum Copies {
    /// Others hold all of it.
    Held,
    /// What only it held is kept as spare copies that were up to date. By keeper: how many copies it had given up by then.
    Kept(BTreeMap<WorkerId, u32>),
    /// There are no copies: the worker was the last holder of some unit.
    None,
}

fn ms(of: Duration) -> Ms {
    u64::try_from(of.as_millis()).unwrap_or(Ms::MAX)
}

/// The longest time from a death until Go, from the timings: a closed stream counts as a death after `grace`; answers come within
/// `collect`, or holders are waited for until `restore`; all workers are connected, or report the missing ones, after the deadline for
/// connecting. If a link stays cut, a second plan avoids it. Three messages in a row that no timing includes are added: the end of the
/// stream, the plan, and the report that a worker is ready.
fn longest(copies_left: bool, link_is_cut: bool, message: Ms) -> Ms {
    let timing = Timing::model();
    let answers = if copies_left {
        timing.collect
    } else {
        timing.restore
    };
    let again = timing.collect + CONNECT_DEADLINE;
    let first = timing.grace + answers + CONNECT_DEADLINE;
    ms(if link_is_cut { first + again } else { first }) + 3 * message
}

impl Watch {
    fn until(&self) -> Ms {
        let left = !matches!(self.copies, Copies::None);
        self.at + longest(left, self.link_is_cut, self.message)
    }
}

impl Host<Schedule> {
    pub(super) fn begin_lone_loss(&mut self) {
        self.lose_one_alone(TRIES);
    }

    /// One of the running workers dies soon, if all is quiet: preferably one whose units are kept as spare copies, right after it has run a
    /// step.
    pub(super) fn lose_one_alone(&mut self, tries: u32) {
        let plan = self.quiet_plan();
        let members = plan.as_ref().map_or(&[][..], |plan| plan.members());
        let kept = |w: &&WorkerId| {
            let copies = plan.as_ref().map(|plan| self.copies_without(**w, plan));
            matches!(copies, Some(Copies::Kept(_)))
        };
        let kept: Vec<WorkerId> = members.iter().filter(kept).copied().collect();
        let members = members.to_vec();
        // Wait for a while for the copies that are to be kept.
        let keeps = plan.is_some_and(|plan| plan.keepers.iter().any(Option::is_some));
        if members.is_empty() || (keeps && kept.is_empty() && tries > TRIES / 2) {
            if let Some(tries) = tries.checked_sub(1) {
                self.after_random(AGAIN, AGAIN, Timer::LoneLoss(tries));
            }
        } else if let Some(w) = self.env.rng.pick(&kept) {
            self.env.lone_loss.armed = Some(w);
        } else if let Some(w) = self.env.rng.pick(&members) {
            self.after_random(0, 60, Timer::LoneDeath(w));
        }
    }

    /// A worker has run a step, and sends its gradients to a keeper.
    pub(super) fn maybe_die_alone(&mut self, w: WorkerId) {
        if self.env.lone_loss.armed == Some(w) {
            self.env.lone_loss.armed = None;
            self.after_random(0, 12, Timer::LoneDeath(w));
        }
    }

    /// Makes the worker die, if all is still quiet.
    pub(super) fn die_alone(&mut self, w: WorkerId) {
        let Some(plan) = self.quiet_plan().filter(|plan| plan.has(w)) else {
            return;
        };
        if self.reachable_without(w) < self.env.job.min_workers() {
            return; // no plan is possible before another worker has come
        }
        let watch = Watch {
            at: self.now(),
            worker: w,
            highest: self.env.store.record.highest,
            message: self.env.network.longest_delay(),
            link_is_cut: self.env.network.blocked.values().any(|until| *until == Ms::MAX),
            copies: self.copies_without(w, &plan),
            planned: false,
        };
        self.env.stats.reach(match &watch.copies {
            Copies::Held => "lone loss: others hold everything",
            Copies::Kept(_) => "lone loss: keepers hold everything",
            Copies::None => "lone loss: of a last holder",
        });
        self.kill(w);
        self.env.lone_loss.watch = Some(watch);
    }

    /// The plan in force, if nothing else is going on: all its members run, nobody is about to leave or to crash, no change is planned.
    fn quiet_plan(&self) -> Option<Arc<Plan>> {
        let record = &self.env.store.record;
        let injected = &self.env.faults.injected;
        let unsound = injected.iter().any(|f| f.fault == Fault::CrashLoop);
        let ended = self.env.faults.ended_at.is_some() && !self.env.faults.become_rarer;
        if !ended || unsound || record.done || self.env.lone_loss.watch.is_some() {
            return None;
        }
        let plan = record.plan.clone().filter(|p| p.generation == record.highest)?;
        let settled =
            |m: &crate::host::MemberHost<super::Worker>| !m.alive || (stays(m) && m.paused <= self.now());
        let runs = |w: &WorkerId| {
            let member = self.members.alive(*w);
            member.is_some_and(|m| runs_in(&m.machine, plan.generation))
        };
        let quiet = self.members.ids(|m| !settled(m)).is_empty() && plan.members().iter().all(runs);
        quiet.then_some(plan)
    }

    /// How many workers that can all reach one another would be left without this one: at most one link is cut for good.
    fn reachable_without(&self, w: WorkerId) -> usize {
        let mut left = self.members.ids(stays);
        left.retain(|other| *other != w);
        let here = |node: &Node| matches!(node, Node::Worker(id) if left.contains(id));
        let lasting = |((a, b), until): (&(Node, Node), &Ms)| *until == Ms::MAX && here(a) && here(b);
        left.len() - usize::from(self.env.network.blocked.iter().any(lasting))
    }

    /// The copies of a member's units that would be left without it.
    fn copies_without(&self, w: WorkerId, plan: &Plan) -> Copies {
        let holds = |other: &WorkerId, unit: Unit| *other != w && plan.holders(unit).contains(other);
        let alone = |unit: &Unit| {
            plan.holders(*unit).contains(&w) && !plan.members().iter().any(|other| holds(other, *unit))
        };
        let mut keepers = BTreeMap::new();
        for unit in plan.layout.all_units().filter(alone) {
            let keeper = plan.keeper(unit).and_then(|k| Some((k, self.members.alive(k)?)));
            match keeper {
                Some((k, member)) if member.machine.spare_units_in_step().contains(&unit) => {
                    keepers.insert(k, member.machine.spare_copies_given_up());
                }
                _ => return Copies::None,
            }
        }
        if keepers.is_empty() {
            Copies::Held
        } else {
            Copies::Kept(keepers)
        }
    }

    /// Another worker died: the guarantees for a single loss do not apply any more.
    pub(super) fn another_dies(&mut self) {
        self.env.lone_loss = LoneLoss::default();
    }

    /// A generation was told to go.
    pub(super) fn note_go(&mut self, generation: Generation) {
        let lone = &mut self.env.lone_loss;
        if lone.watch.as_ref().is_some_and(|w| generation > w.highest) {
            lone.watch = None;
        }
    }

    /// Checks (m): the run recovers from a death within a stated time.
    pub(super) fn check_lone_loss(&mut self) -> Result {
        let now = self.now();
        let Some(watch) = &mut self.env.lone_loss.watch else {
            return Ok(());
        };
        if let Copies::Kept(keepers) = &watch.copies {
            let gave_up = |(k, before): (&WorkerId, &u32)| {
                let member = self.members.alive(*k).map(|m| &m.machine);
                member.is_some_and(|m| runs_in(m, watch.highest) && m.spare_copies_given_up() > *before)
            };
            if !watch.planned && keepers.iter().any(gave_up) {
                watch.copies = Copies::None;
            }
        }
        // If no state is left to resume from, the run is given up, which takes longer.
        let saved = self.env.store.manifests.iter().any(|id| *id != StateId::INITIAL);
        let left = !matches!(watch.copies, Copies::None) || saved || self.env.job.may_begin_anew;
        if now <= watch.until() || !left {
            return Ok(());
        }
        let (worker, at) = (watch.worker, watch.at);
        broken(
            'm',
            format!("{worker:?} died at {at}, and no generation runs at {now}"),
        )
    }

    /// Checks (n): a unit with an up-to-date spare copy is not lost with its only holder.
    pub(super) fn check_kept(&mut self, plan: &Plan, lost: bool) -> Result {
        let Some(watch) = self.env.lone_loss.watch.as_mut().filter(|w| !w.planned) else {
            return Ok(());
        };
        watch.planned = true;
        match watch.copies {
            Copies::Kept(_) if lost => broken(
                'n',
                format!(
                    "plan {} loses steps, of which keepers had everything",
                    plan.generation
                ),
            ),
            _ => Ok(()),
        }
    }
}

fn runs_in(member: &Member, generation: Generation) -> bool {
    member.generation() == generation && member.status().phase == Phase::Running
}
