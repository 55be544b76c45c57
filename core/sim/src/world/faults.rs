//! Faults: drawn ones, and aimed ones that hit whoever has just done something that matters.

use super::{Ev, World, index};
use crate::check::Violation;
use crate::net::{Channel, Load, Ms, Node};
use crate::rng::Rng;
use varuna_plan::WorkerId;
use varuna_plan::state::mix;
use varuna_protocol::MemberInput;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Crash,
    Pause,
    Block,
    Reset,
    Break,
    CrashCoordinator,
    Failover,
    PauseCoordinator,
    Join,
    Drain,
    StoreCut,
}

impl World {
    pub(super) fn schedule_faults(&mut self, seed: u64) {
        let span = self.rng.range(200, 3000);
        let count = self.rng.range(0, 12);
        self.aim = self.rng.pick(&[0, 0, 2, 10]).unwrap_or(0);
        self.calm = self.slow == 0 && self.aim == 0 && self.rng.chance(30);
        if self.calm {
            for _ in 0..self.rng.range(1, 4) {
                let at = self.rng.range(20, span);
                self.at(at, Ev::Fault(Fault::Join));
            }
        } else {
            for _ in 0..count {
                let at = self.rng.range(20, span);
                let fault = match self.rng.below(22) {
                    0..4 => Fault::Crash,
                    4..6 => Fault::Pause,
                    6..9 => Fault::Block,
                    9..11 => Fault::Reset,
                    11..13 => Fault::Break,
                    13 => Fault::CrashCoordinator,
                    14 => Fault::Failover,
                    15 => Fault::PauseCoordinator,
                    16..19 => Fault::Join,
                    19..21 => Fault::Drain,
                    _ => Fault::StoreCut,
                };
                self.at(at, Ev::Fault(fault));
            }
        }
        let mut own = Rng(mix(seed, 1234));
        self.aim_load = !self.calm && own.chance(16);
        if self.aim_load {
            for _ in 0..own.range(1, 4) {
                let at = own.range(20, span);
                self.at(at, Ev::Fault(Fault::Pause));
            }
        }
        self.at(span + 1, Ev::Heal);
    }

    /// Perhaps hits a worker that has just committed, accepted, freed, or (`loaded`) rolled forward or fetched.
    pub(super) fn shoot(&mut self, w: WorkerId, loaded: bool) {
        if self.healed.is_some() {
            return;
        }
        let late = self.record.highest.0 > 1;
        if self.aim_load && loaded && late && self.shots < 6 && self.rng.chance(40) {
            self.shots += 1;
            self.stats.faults += 1;
            self.after(0, 30, Ev::Kill(w));
        }
        if self.shots < 4 && self.rng.below(1000) < self.aim * 5 {
            self.shots += 1;
            self.stats.faults += 1;
            match self.rng.below(4) {
                0 => self.workers[index(w)].paused = self.now + self.rng.range(200, 2500),
                1 => self.after(1, 20, Ev::Kill(w)),
                _ => self.crash(w),
            }
        }
    }

    fn all_workers(&self) -> Vec<WorkerId> {
        (0..self.workers.len() as u64).map(WorkerId).collect()
    }

    fn pick_worker(&mut self) -> Option<WorkerId> {
        let mut live = self.all_workers();
        live.retain(|w| self.workers[index(*w)].alive);
        self.rng.pick(&live)
    }

    pub(super) fn fault(&mut self, fault: Fault) -> Result<(), Violation> {
        self.stats.faults += 1;
        if self.trace {
            println!("{:6} FAULT {fault:?}", self.now);
        }
        let Some(w) = self.pick_worker() else {
            return Ok(());
        };
        let Some(c) = self.newest_leader() else {
            return Ok(());
        };
        let long = self.now + self.rng.range(50, 2500);
        match fault {
            Fault::Crash => self.crash(w),
            Fault::Pause => self.workers[index(w)].paused = long,
            Fault::Block => self.block(w, c, long),
            Fault::Reset => self.reset(w),
            Fault::Break => self.break_stream(w),
            Fault::CrashCoordinator => self.stop_leader(c),
            Fault::Failover => {
                // the old one lives on and knows nothing
                self.add_leader();
                for w in self.all_workers() {
                    if self.rng.chance(80) {
                        self.after(5, 300, Ev::Stream(w));
                    }
                }
            }
            Fault::PauseCoordinator => {
                self.leaders[c].paused = long;
                if self.rng.chance(60) {
                    self.add_leader();
                    for w in self.all_workers() {
                        self.after(5, 300, Ev::Stream(w));
                    }
                }
            }
            Fault::Join => {
                if self.workers.iter().filter(|s| s.alive).count() < 7 {
                    self.add_worker();
                }
            }
            Fault::Drain => {
                self.after(30, 700, Ev::Kill(w));
                return self.member(w, MemberInput::Drain);
            }
            Fault::StoreCut => {
                self.blocked.insert((Node::Coordinator(c), Node::Store), long);
            }
        }
        Ok(())
    }

    fn block(&mut self, w: WorkerId, c: usize, until: Ms) {
        let other = match self.rng.below(3) {
            0 => Node::Coordinator(c),
            _ => Node::Worker(self.pick_worker().unwrap_or(w)),
        };
        self.blocked.insert((Node::Worker(w), other), until);
        if self.rng.chance(60) {
            self.blocked.insert((other, Node::Worker(w)), until);
        }
    }

    fn reset(&mut self, w: WorkerId) {
        let highest = self.record.highest;
        let of_now = |c: &&Channel| matches!(c, Channel::Peer(a, _, g) if *a == w && *g == highest);
        let Some(Channel::Peer(a, b, g)) = self.channels.keys().find(of_now).copied() else {
            return;
        };
        self.dead.insert((a.min(b), a.max(b), g));
        for channel in [Channel::Peer(a, b, g), Channel::Peer(b, a, g)] {
            if let Some(queue) = self.channels.get_mut(&channel) {
                queue.items.clear();
            }
            self.send(channel, Load::Closed);
        }
    }

    pub(super) fn stop_leader(&mut self, c: usize) {
        self.leaders[c].alive = false;
        if self.newest_leader().is_none() {
            self.after(20, 400, Ev::NewCoordinator);
        }
        for w in self.all_workers() {
            if self.workers[index(w)].coordinator == Some(c) {
                self.break_stream(w);
            }
        }
    }

    fn break_stream(&mut self, w: WorkerId) {
        let Some(c) = self.workers[index(w)].coordinator else {
            return;
        };
        let number = self.workers[index(w)].stream;
        for channel in [Channel::Up(w, c, number), Channel::Down(c, w, number)] {
            let keep = usize::try_from(self.rng.below(4)).unwrap_or(0);
            let late = self.now + self.rng.range(1, 150);
            let queue = self.channels.entry(channel).or_default();
            queue.items.truncate(keep);
            queue.last = queue.last.max(late);
        }
        self.send(Channel::Up(w, c, number), Load::Closed);
        self.workers[index(w)].stream += 1; // nothing more is sent on, or taken from, the old one
        self.after(5, 80, Ev::Stream(w));
    }

    pub(super) fn crash(&mut self, w: WorkerId) {
        if !self.workers[index(w)].alive {
            return;
        }
        if self.trace {
            println!("{:6} {w:?} dies", self.now);
        }
        self.workers[index(w)].alive = false;
        let silent = self.rng.chance(15);
        let mine = |c: &&Channel| match c {
            Channel::Peer(a, _, _) | Channel::Up(a, _, _) => *a == w,
            Channel::Down(..) => false,
        };
        let out: Vec<Channel> = self.channels.keys().filter(mine).copied().collect();
        for channel in out {
            if self.rng.chance(50) {
                let keep = usize::try_from(self.rng.below(3)).unwrap_or(0);
                if let Some(queue) = self.channels.get_mut(&channel) {
                    queue.items.truncate(keep);
                }
            }
            if !silent || matches!(channel, Channel::Up(..)) {
                self.send(channel, Load::Closed);
            }
        }
        for c in 0..self.leaders.len() {
            if self.rng.chance(30) {
                self.after(1, 60, Ev::Gone(c, w));
            }
        }
    }

    /// The faults stop: old leaders may stay, one link may stay cut, enough workers live.
    pub(super) fn heal(&mut self) {
        self.healed = Some(self.now);
        self.blocked.clear();
        for worker in &mut self.workers {
            worker.paused = worker.paused.min(self.now);
        }
        for leader in &mut self.leaders {
            leader.paused = leader.paused.min(self.now);
        }
        let last = self.newest_leader().unwrap_or(0);
        for c in 0..last {
            if self.leaders[c].alive && self.rng.chance(50) {
                self.stop_leader(c);
            }
        }
        for w in self.all_workers() {
            let worker = &self.workers[index(w)];
            if worker.alive && worker.coordinator != Some(last) {
                self.after(5, 100, Ev::Stream(w));
            }
        }
        let min = self.min_workers();
        let firm = |world: &World| {
            let mut live = world.all_workers();
            live.retain(|w| {
                let worker = &world.workers[index(*w)];
                worker.alive && !worker.member.status().draining
            });
            live
        };
        while firm(self).len() < min {
            self.add_worker();
        }
        let live = firm(self);
        if live.len() > min && !self.calm && self.rng.chance(40) {
            let (a, b) = (self.rng.pick(&live), self.rng.pick(&live));
            if let (Some(a), Some(b)) = (a, b)
                && a != b
            {
                self.blocked.insert((Node::Worker(a), Node::Worker(b)), Ms::MAX);
                self.blocked.insert((Node::Worker(b), Node::Worker(a)), Ms::MAX);
            }
        }
    }
}
