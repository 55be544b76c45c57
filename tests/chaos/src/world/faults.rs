//! How each fault begins, and how it is undone.

use super::{Ending, World};
use crate::disk::SmallDisk;
use crate::fault::{Condition, Fault, Part, Planned, Victim};
use crate::judge::Life;
use crate::links::rules;
use crate::needed::Needed;
use crate::processes::{Worker, signal};
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use varuna_plan::WorkerId;
use varuna_run_folder::now_ms;

impl World {
    /// The number of the worker that a victim stands for at present.
    fn number(&self, victim: Victim) -> u32 {
        let count = u32::try_from(self.workers.len()).unwrap_or(u32::MAX).max(1);
        let worker = self.workers.get((victim.0 % count) as usize);
        // Without workers there is no victim.
        worker.map_or(u32::MAX, |w| w.number)
    }

    fn worker(&self, number: u32) -> Option<&Worker> {
        self.workers.iter().find(|w| w.number == number)
    }

    fn send(&self, number: u32, what: Signal) {
        if let Some(worker) = self.worker(number) {
            signal(&worker.child, what);
        }
    }

    fn life(&mut self, number: u32) -> Option<&mut Life> {
        self.lives.get_mut(&number)
    }

    /// Begins a fault with the number `name`. Returns the workers that it affects.
    ///
    /// # Errors
    /// The fault cannot be injected.
    pub fn begin(&mut self, name: usize, planned: &Planned) -> Result<Vec<u32>> {
        let mut about = Vec::new();
        let ending = match &planned.fault {
            Fault::Kill { victims, reckless } => {
                about = self.victims(victims, *reckless);
                self.kill(&about)
            }
            Fault::KillCoordinator => self.kill_coordinator(),
            Fault::Pause { victim } => {
                about.push(self.number(*victim));
                self.impair(&about);
                self.send(about[0], Signal::SIGSTOP);
                Ending::Continue(about[0])
            }
            Fault::PauseCoordinator => {
                self.signal_coordinator(Signal::SIGSTOP);
                Ending::ContinueCoordinator
            }
            Fault::Notice { victim } => {
                about.push(self.number(*victim));
                self.notice(about[0]);
                Ending::Nothing
            }
            Fault::Join => {
                self.target += 1;
                Ending::Leave
            }
            Fault::Network { part, condition } => {
                about = self.disturb(name, *part, *condition);
                Ending::Mend(about.clone())
            }
            Fault::DiskFull => {
                self.parts.disk.as_ref().map_or(Ok(()), SmallDisk::fill)?;
                Ending::FreeDisk
            }
            Fault::FsyncFails => {
                self.parts.fsync.as_ref().map_or(Ok(()), |f| f.fail(true))?;
                Ending::MendFsync
            }
            Fault::StoreDown => {
                self.take_store_away()?;
                Ending::MendStore
            }
            Fault::NoMemory { victim } => {
                about.push(self.number(*victim));
                self.starve(about[0]);
                Ending::GiveMemory(about[0])
            }
        };
        self.endings.insert(name, ending);
        Ok(about)
    }

    /// Ends a fault.
    ///
    /// # Errors
    /// The fault cannot be undone.
    pub fn end(&mut self, name: usize) -> Result<()> {
        match self.endings.remove(&name) {
            Some(Ending::Replace(count)) => self.missing -= count,
            Some(Ending::StartCoordinator) => {
                self.coordinator_away = false;
                if self.exit.is_none() {
                    self.start_coordinator()?;
                }
            }
            Some(Ending::Continue(number)) => {
                self.send(number, Signal::SIGCONT);
                self.recover(&[number]);
            }
            Some(Ending::ContinueCoordinator) => self.signal_coordinator(Signal::SIGCONT),
            Some(Ending::Leave) => {
                self.target -= 1;
                if let Some(worker) = self.workers.first().filter(|_| self.workers.len() > self.target) {
                    self.notice(worker.number);
                }
            }
            Some(Ending::Mend(about)) => {
                self.links.remove_rules(name);
                self.recover(&about);
            }
            Some(Ending::FreeDisk) => {
                if let Some(disk) = &self.parts.disk {
                    disk.free();
                }
            }
            Some(Ending::MendFsync) => self.parts.fsync.as_ref().map_or(Ok(()), |f| f.fail(false))?,
            Some(Ending::MendStore) => self.give_store_back()?,
            Some(Ending::GiveMemory(number)) => {
                self.limit_memory(number, "unlimited");
                self.recover(&[number]);
            }
            Some(Ending::Nothing) | None => {}
        }
        Ok(())
    }

    /// Ends all faults in progress.
    ///
    /// # Errors
    /// As for [`World::end`].
    pub fn end_all(&mut self) -> Result<()> {
        let names: Vec<usize> = self.endings.keys().copied().collect();
        names.into_iter().try_for_each(|name| self.end(name))
    }

    /// The workers to kill. Instead of the last holder of a unit, another worker is killed, or none, unless `reckless`.
    fn victims(&self, victims: &[Victim], reckless: bool) -> Vec<u32> {
        let healthy = |w: &&Worker| {
            let life = self.lives.get(&w.number);
            life.is_some_and(|l| !l.noticed && l.impaired_ms.iter().all(|(_, end)| *end < u64::MAX))
        };
        let mut left: BTreeSet<WorkerId> = self.workers.iter().filter(healthy).filter_map(|w| w.id).collect();
        let needed = Needed::read(&self.parts.paths.run);
        let mut chosen = BTreeSet::new();
        let count = self.workers.len();
        for victim in victims {
            let order = (0..count).map(|i| &self.workers[(victim.0 as usize + i) % count]);
            let free = |w: &&Worker| !chosen.contains(&w.number) && (reckless || needed.without(&left, w.id));
            if let Some(worker) = order.clone().find(free) {
                chosen.insert(worker.number);
                worker.id.map(|id| left.remove(&id));
            }
        }
        chosen.into_iter().collect()
    }

    fn kill(&mut self, numbers: &[u32]) -> Ending {
        let before = self.workers.len();
        let now = now_ms();
        for number in numbers {
            if self.worker(*number).is_some()
                && let Some(life) = self.life(*number)
            {
                life.killed = true;
                life.ended_ms = Some(now);
            }
            self.send(*number, Signal::SIGKILL);
        }
        // Dropping a worker waits for the end of its process.
        self.workers.retain(|w| !numbers.contains(&w.number));
        let killed = before - self.workers.len();
        self.kills[0] += killed as u64;
        self.missing += killed;
        Ending::Replace(killed)
    }

    fn kill_coordinator(&mut self) -> Ending {
        if let Some(mut child) = self.coordinator.take() {
            signal(&child, Signal::SIGKILL);
            let _ = child.wait();
            self.kills[1] += 1;
        }
        self.coordinator_away = true;
        self.restart_at = None;
        Ending::StartCoordinator
    }

    fn signal_coordinator(&self, what: Signal) {
        if let Some(child) = &self.coordinator {
            signal(child, what);
        }
    }

    fn notice(&mut self, number: u32) {
        if let Some(life) = self.life(number) {
            life.noticed = true;
        }
        self.send(number, Signal::SIGTERM);
    }

    /// Disturbs a part of the network. Returns the workers from which the coordinator may receive nothing because of it.
    fn disturb(&mut self, name: usize, part: Part, condition: Condition) -> Vec<u32> {
        let number = |victim| self.number(victim);
        self.links.disturb(name, rules(part, condition, number));
        let about = match part {
            Part::OneWay { .. } | Part::Between { .. } => vec![],
            Part::ToCoordinator(v) | Part::FromCoordinator(v) | Part::Around(v) => vec![self.number(v)],
            Part::AroundCoordinator | Part::Everything => self.workers.iter().map(|w| w.number).collect(),
        };
        self.impair(&about);
        about
    }

    fn impair(&mut self, numbers: &[u32]) {
        for number in numbers {
            if let Some(life) = self.life(*number) {
                life.impaired_ms.push((now_ms(), u64::MAX));
            }
        }
    }

    fn recover(&mut self, numbers: &[u32]) {
        for number in numbers {
            // If several faults overlap, the first end closes the last period: a period may look shorter, but is not lost.
            let open = self
                .life(*number)
                .and_then(|l| l.impaired_ms.iter_mut().find(|i| i.1 == u64::MAX));
            if let Some(open) = open {
                open.1 = now_ms();
            }
        }
    }

    fn starve(&mut self, number: u32) {
        if let Some(life) = self.life(number) {
            life.starved = true;
        }
        self.impair(&[number]);
        let Some(id) = self.worker(number).map(|w| w.child.id()) else {
            return;
        };
        let pages = std::fs::read_to_string(format!("/proc/{id}/statm")).unwrap_or_default();
        let pages: Option<u64> = pages.split(' ').next().and_then(|p| p.parse().ok());
        if let Some(pages) = pages {
            // The process keeps its memory but can allocate no more.
            self.limit_memory(number, &(pages * 4096).to_string());
        }
    }

    fn limit_memory(&self, number: u32, limit: &str) {
        if let Some(worker) = self.worker(number) {
            let (pid, limit) = (worker.child.id().to_string(), format!("--as={limit}:unlimited"));
            // Without the program `prlimit`, this fault has no effect.
            let _ = Command::new("prlimit").args(["--pid", &pid, &limit]).status();
        }
    }

    fn renamed_store(&self) -> PathBuf {
        self.parts.store.with_extension("away")
    }

    /// Replaces the store's folder with a file, so that every request fails.
    fn take_store_away(&self) -> Result<()> {
        let store = &self.parts.store;
        std::fs::rename(store, self.renamed_store()).context("cannot take the store away")?;
        std::fs::write(store, "").context("cannot take the store away")
    }

    fn give_store_back(&self) -> Result<()> {
        let store = &self.parts.store;
        std::fs::remove_file(store).context("cannot give the store back")?;
        std::fs::rename(self.renamed_store(), store).context("cannot give the store back")
    }
}
