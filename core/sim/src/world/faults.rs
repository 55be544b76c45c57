//! Carries out faults: those drawn in advance, and those that hit workers which have just done something important.

use super::fault_list::{Fault, HITS_MAX, InjectedFault};
use super::network::{Ms, Node};
use super::unreliable::Unreliable;
use super::{Result, Schedule, Timer, Worker};
use crate::host::{Channel, Event, Host, MemberHost, Message, Process};
use crate::rng::Rng;
use crate::timeline::{Kind, Row};
use varuna_plan::WorkerId;
use varuna_protocol::{CoordinatorInput, MemberInput};

/// Whether the worker is alive and has not announced that it will leave.
pub(super) fn stays(m: &MemberHost<Worker>) -> bool {
    m.alive && !m.machine.status().draining && !m.local.announced && m.local.crash_loop.is_none()
}

impl Host<Schedule> {
    /// Perhaps hits a worker that has just committed, accepted, freed, or (`loaded`) rolled forward or fetched.
    pub(super) fn maybe_crash(&mut self, w: WorkerId, loaded: bool) {
        if self.env.faults.ended_at.is_some() {
            return;
        }
        let late = self.env.store.record.highest.0 > 1;
        let Schedule { faults, rng, .. } = &mut self.env;
        if faults.hits_loading
            && loaded
            && late
            && faults.hits < HITS_MAX
            && rng.chance(40)
            && self.count_crash(w)
        {
            self.after_random(0, 30, Timer::Kill(w));
        }
        let Schedule { faults, rng, .. } = &mut self.env;
        if faults.hits < 4 && rng.below(1000) < faults.hit_rate * 5 && self.count_crash(w) {
            match self.env.rng.below(4) {
                0 => {
                    let until = self.now() + self.env.rng.range(200, 2500);
                    self.pause(w, until);
                }
                1 => self.after_random(1, 20, Timer::Kill(w)),
                _ => self.crash(w),
            }
        }
    }

    /// Counts a hit. Returns whether it happens.
    fn count_crash(&mut self, w: WorkerId) -> bool {
        let faults = &mut self.env.faults;
        let number = faults.first_hit + faults.hits;
        faults.hits += 1;
        let happens = faults.happens(number);
        if happens {
            self.note_fault(number, Fault::Hit, Some(w));
        }
        happens
    }

    /// A fault happens now.
    pub(super) fn note_fault(&mut self, number: usize, fault: Fault, worker: Option<WorkerId>) {
        let at = self.now();
        if self.env.print {
            println!("{at:6} FAULT {number} {fault:?} {worker:?}");
        }
        self.env.stats.faults += 1;
        self.env.stats.reach(format!("fault {fault:?}"));
        let injected = InjectedFault {
            number,
            fault,
            at,
            worker,
        };
        if let Some(timeline) = &mut self.env.timeline {
            timeline.add(at, Kind::Fault, worker.map(Row::Worker), injected.to_string());
        }
        self.env.faults.injected.push(injected);
    }

    fn all_workers(&self) -> Vec<WorkerId> {
        self.members.ids(|_| true)
    }

    pub(super) fn pick_worker(&mut self) -> Option<WorkerId> {
        let live = self.members.ids(|m| m.alive);
        self.env.rng.pick(&live)
    }

    /// A fault happens. It has its own random numbers, so that the other faults stay the same if it is left out.
    pub(super) fn fault(&mut self, fault: Fault, number: usize, seed: u64) -> Result {
        if !self.env.faults.happens(number) {
            return Ok(());
        }
        let others = std::mem::replace(&mut self.env.rng, Rng(seed));
        let done = self.inject(fault, number);
        // While faults become rarer, the platform replaces the lost workers.
        self.start_missing_workers();
        self.env.rng = others;
        done
    }

    fn inject(&mut self, fault: Fault, number: usize) -> Result {
        let worker = self.pick_worker();
        self.note_fault(number, fault, worker.filter(|_| fault.is_of_one_worker()));
        let Some(w) = worker else {
            return Ok(());
        };
        let Some(c) = self.newest_coordinator() else {
            return Ok(());
        };
        let long = self.now() + self.env.rng.range(50, 2500);
        match fault {
            Fault::Crash => self.crash(w),
            Fault::Pause => self.pause(w, long),
            Fault::Block => self.block(w, c, long),
            Fault::Reset => self.reset(w),
            Fault::Break => self.break_stream(w),
            Fault::CrashCoordinator => self.stop_coordinator(c),
            Fault::Failover => {
                // the old one lives on and knows nothing
                self.add_coordinator_process();
                for w in self.all_workers() {
                    if self.env.rng.chance(80) {
                        self.after_random(5, 300, Event::OpenStream(w));
                    }
                }
            }
            Fault::PauseCoordinator => {
                let paused = &mut self.coordinators[c].paused;
                *paused = long.max(*paused);
                if self.env.rng.chance(60) {
                    self.add_coordinator_process();
                    for w in self.all_workers() {
                        self.after_random(5, 300, Event::OpenStream(w));
                    }
                }
            }
            Fault::Join => {
                if self.members.ids(|m| m.alive).len() < 7 {
                    self.add_worker();
                }
            }
            Fault::Drain => {
                self.after_random(30, 700, Timer::Kill(w));
                return self.member(w, MemberInput::Drain);
            }
            Fault::StoreCut => {
                self.env
                    .network
                    .blocked
                    .insert((Node::Coordinator(c), Node::Store), long);
            }
            Fault::Isolate => return self.isolate(w, long),
            Fault::LoseNode => self.lose_node(),
            Fault::Grow => self.grow(),
            Fault::CrashLoop => self.begin_crash_loop(),
            Fault::Announce => self.announce(w, c),
            Fault::Save => return self.coordinator(c, CoordinatorInput::Save),
            Fault::LimitWorkers => {
                let most = usize::try_from(self.env.rng.range(1, 6)).ok();
                return self.coordinator(c, CoordinatorInput::MaxWorkers(most));
            }
            Fault::Stop => return self.coordinator(c, CoordinatorInput::Stop),
            other => return self.disturb(other, w, c, long),
        }
        Ok(())
    }

    fn disturb(&mut self, fault: Fault, w: WorkerId, c: usize, long: Ms) -> Result {
        match fault {
            Fault::LoseZone => self.lose_zone(c),
            Fault::Storm => self.storm(),
            Fault::Slow => self.slow_down(w, long),
            Fault::Flap => {
                let times = self.env.rng.range(3, 12);
                return self.flap(w, u32::try_from(times).unwrap_or(3));
            }
            Fault::JumpClock => self.jump_clock(Process::Worker(w)),
            Fault::JumpCoordinatorClock => self.jump_clock(Process::Coordinator(c)),
            Fault::StoreDown => self.env.outage.down_until = long,
            Fault::StoreFull => self.env.outage.full_until = long,
            Fault::LateNotice => self.notice_late(w, c),
            Fault::FlipBits => self.flip_bits(w),
            Fault::MoreSteps => return self.order_more_steps(c),
            Fault::LoneLoss => self.begin_lone_loss(),
            _ => {} // not drawn in advance
        }
        Ok(())
    }

    fn block(&mut self, w: WorkerId, c: usize, until: Ms) {
        let other = match self.env.rng.below(3) {
            0 => Node::Coordinator(c),
            _ => Node::Worker(self.pick_worker().unwrap_or(w)),
        };
        self.env.network.blocked.insert((Node::Worker(w), other), until);
        if self.env.rng.chance(60) {
            self.env.network.blocked.insert((other, Node::Worker(w)), until);
        }
    }

    pub(super) fn reset(&mut self, w: WorkerId) {
        let highest = self.env.store.record.highest;
        let of_now = |c: &&Channel| matches!(c, Channel::Peer(a, _, g) if *a == w && *g == highest);
        let Some(Channel::Peer(a, b, g)) = self.env.network.channels.keys().find(of_now).copied() else {
            return;
        };
        self.env.network.reset.insert((a.min(b), a.max(b), g));
        for channel in [Channel::Peer(a, b, g), Channel::Peer(b, a, g)] {
            if let Some(queue) = self.env.network.channels.get_mut(&channel) {
                queue.items.clear();
            }
            self.transmit(channel, Message::Closed);
        }
    }

    pub(super) fn stop_coordinator(&mut self, c: usize) {
        self.coordinators[c].alive = false;
        if self.newest_coordinator().is_none() {
            self.after_random(20, 400, Timer::NewCoordinator);
        }
        for w in self.all_workers() {
            if self.members[w].coordinator == Some(c) {
                self.break_stream(w);
            }
        }
    }

    pub(super) fn break_stream(&mut self, w: WorkerId) {
        let Some(c) = self.members[w].coordinator else {
            return;
        };
        let number = self.members[w].stream;
        for channel in [Channel::Up(w, c, number), Channel::Down(c, w, number)] {
            let keep = usize::try_from(self.env.rng.below(4)).unwrap_or(0);
            let late = self.now() + self.env.rng.range(1, 150);
            let queue = self.env.network.channels.entry(channel).or_default();
            queue.items.truncate(keep);
            queue.last = queue.last.max(late);
        }
        self.transmit(Channel::Up(w, c, number), Message::Closed);
        self.members[w].stream += 1; // nothing more is sent on, or taken from, the old one
        self.after_random(1, 4, Timer::StreamLost(w));
        self.after_random(5, 80, Event::OpenStream(w));
    }

    pub(super) fn crash(&mut self, w: WorkerId) {
        if !self.members[w].alive {
            return;
        }
        if self.env.print {
            println!("{:6} {w:?} dies", self.now());
        }
        self.members[w].alive = false;
        self.another_dies();
        let silent = self.env.rng.chance(15);
        let mine = |c: &&Channel| match c {
            Channel::Peer(a, _, _) | Channel::Up(a, _, _) => *a == w,
            Channel::Down(..) => false,
        };
        let out: Vec<Channel> = self.env.network.channels.keys().filter(mine).copied().collect();
        for channel in out {
            if self.env.rng.chance(50) {
                let keep = usize::try_from(self.env.rng.below(3)).unwrap_or(0);
                if let Some(queue) = self.env.network.channels.get_mut(&channel) {
                    queue.items.truncate(keep);
                }
            }
            if !silent || matches!(channel, Channel::Up(..)) {
                self.transmit(channel, Message::Closed);
            }
        }
        for c in 0..self.coordinators.len() {
            if self.env.rng.chance(30) {
                self.after_random(
                    1,
                    60,
                    Event::Coordinator(c, CoordinatorInput::ProcessEnded { worker: w }),
                );
            }
        }
    }

    /// The process of a drained or hit worker ends. After the faults enough workers must remain.
    pub(super) fn kill(&mut self, w: WorkerId) {
        self.crash(w);
        self.start_missing_workers();
    }

    /// The faults stop: old coordinators may remain, one link may stay cut, and enough workers are alive.
    pub(super) fn end_faults(&mut self) {
        let now = self.now();
        self.env.faults.ended_at = Some(now);
        self.env.unreliable = if self.env.faults.become_rarer {
            self.env.unreliable.rarer()
        } else {
            Unreliable::default()
        };
        let last = self.newest_coordinator().unwrap_or(0);
        self.after_random(
            1,
            60,
            Event::Coordinator(last, CoordinatorInput::MaxWorkers(None)),
        );
        for c in 0..last {
            if self.coordinators[c].alive && self.env.rng.chance(50) {
                self.stop_coordinator(c);
            }
        }
        for w in self.all_workers() {
            let worker = &self.members[w];
            if worker.alive && worker.coordinator != Some(last) {
                self.after_random(5, 100, Event::OpenStream(w));
            }
        }
        self.start_missing_workers();
        let min = self.env.job.min_workers();
        let live = self.members.ids(stays);
        if live.len() > min && !self.env.faults.only_joins && self.env.rng.chance(40) {
            let (a, b) = (self.env.rng.pick(&live), self.env.rng.pick(&live));
            let number = self.env.faults.lasting_cut;
            if let (Some(a), Some(b)) = (a, b)
                && a != b
                && self.env.faults.happens(number)
            {
                self.note_fault(number, Fault::LastingCut, Some(a));
                self.env
                    .network
                    .blocked
                    .insert((Node::Worker(a), Node::Worker(b)), Ms::MAX);
                self.env
                    .network
                    .blocked
                    .insert((Node::Worker(b), Node::Worker(a)), Ms::MAX);
            }
        }
    }
}
