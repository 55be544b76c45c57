//! Faults of many at once, and of workers that go, come back, or are told to.

use super::faults::stays;
use super::network::{Ms, Node};
use super::{Result, Schedule, Timer};
use crate::host::{Channel, Event, Host, Message};
use std::time::Duration;
use varuna_plan::WorkerId;
use varuna_protocol::CoordinatorInput;

/// A worker that dies in its first step, and restarts under the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CrashLoop {
    /// Names the worker.
    pub(super) number: u64,
    /// How often it still comes back.
    pub(super) lives: u32,
}

impl Host<Schedule> {
    /// Isolates the worker until then: nothing reaches it and nothing comes from it. The others see their connections to it end, as with
    /// keepalives; the worker notices nothing and continues in its generation.
    pub(super) fn isolate(&mut self, w: WorkerId, until: Ms) -> Result {
        let here = Node::Worker(w);
        let mut others: Vec<Node> = self.members.ids(|_| true).into_iter().map(Node::Worker).collect();
        others.extend((0..self.coordinators.len()).map(Node::Coordinator));
        for other in others.into_iter().filter(|other| *other != here) {
            self.env.network.blocked.insert((here, other), until);
            self.env.network.blocked.insert((other, here), until);
        }
        let touches = |c: &&Channel| match **c {
            Channel::Peer(a, b, _) => a == w || b == w,
            Channel::Up(a, ..) | Channel::Down(_, a, _) => a == w,
        };
        let lost: Vec<Channel> = self
            .env
            .network
            .channels
            .keys()
            .filter(touches)
            .copied()
            .collect();
        for channel in lost {
            if let Some(queue) = self.env.network.channels.get_mut(&channel) {
                queue.items.clear();
            }
            if let Channel::Peer(a, b, generation) = channel
                && a == w
            {
                self.env.network.reset.insert((a.min(b), a.max(b), generation));
                self.receive_from_peer((a, b, generation), Message::Closed)?;
            }
        }
        if let Some(c) = self.members[w].coordinator {
            self.coordinator(c, CoordinatorInput::StreamDown { from: w })?;
        }
        self.members[w].stream += 1;
        let again = until - self.now() + 5;
        self.after_random(again, again + 100, Event::OpenStream(w));
        Ok(())
    }

    /// Several workers die at once, as those of a node or a zone do.
    pub(super) fn lose_node(&mut self) {
        for _ in 0..self.env.rng.range(2, 4) {
            if let Some(w) = self.pick_worker() {
                self.crash(w);
            }
        }
    }

    /// Many workers come at once.
    pub(super) fn grow(&mut self) {
        for _ in 0..self.env.rng.range(2, 5) {
            if self.members.ids(|m| m.alive).len() < 12 {
                self.add_worker();
            }
        }
    }

    /// A component announces that the worker will leave, which may or may not happen.
    pub(super) fn announce(&mut self, w: WorkerId, c: usize) {
        self.members[w].local.announced = true;
        // It may also announce when, and that may be too early or too late.
        let told = self.env.rng.chance(50);
        let leaves_in = told.then(|| Duration::from_millis(self.env.rng.range(0, 1_500)));
        let notice = CoordinatorInput::Notice { worker: w, leaves_in };
        self.after_random(1, 60, Event::Coordinator(c, notice));
        if self.env.rng.chance(50) {
            self.after_random(30, 700, Timer::Kill(w));
        } else if let Some(time) = leaves_in.filter(|_| self.env.rng.chance(70)) {
            let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            self.after_random(ms.max(1), ms.max(1) + 60, Timer::Kill(w));
        }
    }

    /// Starts workers so that, once the faults have ended, there are enough for a plan, even without one of two workers that a lasting cut
    /// separates.
    pub(super) fn start_missing_workers(&mut self) {
        let cut = self.env.network.blocked.values().any(|until| *until == Ms::MAX);
        let enough = self.env.job.min_workers() + usize::from(cut);
        while self.env.faults.ended_at.is_some() && self.members.ids(stays).len() < enough {
            self.add_worker();
        }
    }

    /// Stops a worker (SIGSTOP). Messages that arrive meanwhile wait until the end of the longest pause.
    pub(super) fn pause(&mut self, w: WorkerId, until: u64) {
        let paused = &mut self.members[w].paused;
        *paused = until.max(*paused);
    }

    /// A worker starts that dies in its first step, again and again.
    pub(super) fn begin_crash_loop(&mut self) {
        let number = self.now();
        let lives = 40;
        self.start_worker(Some(CrashLoop { number, lives }));
    }

    /// The worker of a crash loop begins a step: it dies, and comes back.
    pub(super) fn crash_again(&mut self, w: WorkerId) {
        let Some(CrashLoop { number, lives }) = self.members[w].local.crash_loop else {
            return;
        };
        self.after_random(0, 20, Timer::Kill(w));
        if let Some(lives) = lives.checked_sub(1) {
            self.after_random(40, 500, Timer::ComeBack(CrashLoop { number, lives }));
        }
    }
}
