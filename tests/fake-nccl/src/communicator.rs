//! A communicator of one rank: its state, and the operations that wait to run.

use crate::connection::Connection;
pub(crate) use crate::connection::Kind;
use crate::driver::Address;
use crate::faults::{self, Fault};
use crate::mesh::{Mesh, Revoked};
use crate::numbers::{Element, add};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const SYSTEM_ERROR: c_int = 2;
pub(crate) const INVALID_ARGUMENT: c_int = 4;
pub(crate) const INVALID_USAGE: c_int = 5;
pub(crate) const REMOTE_ERROR: c_int = 6;
pub(crate) const IN_PROGRESS: c_int = 7;

/// Content of the memory of an operation that failed.
const GARBAGE: u8 = 0xff;

/// One operation.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) count: usize,
    pub(crate) element: Element,
}

/// Why an operation ended without its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Revoked,
    /// It waits until it is revoked, after the communicator has reported this error.
    Failed(c_int),
}

impl From<Revoked> for Ended {
    fn from(_: Revoked) -> Ended {
        Ended::Revoked
    }
}

struct Turns {
    /// The result of `ncclCommGetAsyncError`.
    state: c_int,
    issued: u64,
    ended: u64,
}

/// One rank's side of a communicator.
pub(crate) struct Communicator {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    mesh: OnceLock<Mesh>,
    turns: Mutex<Turns>,
    changed: Condvar,
    pub(crate) revoked: AtomicBool,
    /// The connections that exist.
    connected: Mutex<BTreeSet<Connection>>,
    /// Whether a call that uses it is in progress.
    pub(crate) entered: AtomicBool,
}

impl Operation {
    fn bytes(&self) -> usize {
        self.count * self.element.bytes()
    }

    fn input(&self) -> &[u8] {
        // SAFETY: the caller that issued the operation promises that the memory has this many elements and lives until the operation has
        // ended.
        unsafe { std::slice::from_raw_parts(self.from.0, self.bytes()) }
    }

    /// Calls `with` with the memory that the operation writes to.
    fn write<R>(&self, with: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: as above, and no other code uses the memory meanwhile; input and output are never borrowed at the same time.
        with(unsafe { std::slice::from_raw_parts_mut(self.to.0, self.bytes()) })
    }

    /// Whether this rank's memory is never written. The root of a broadcast in place only sends, as with NCCL (`broadcast.h` of its device code).
    fn is_only_read(&self, rank: usize) -> bool {
        match self.kind {
            Kind::Send(_) => true,
            Kind::Broadcast(root) => root == rank && self.from.0 == self.to.0,
            Kind::Receive(_) | Kind::AllReduce | Kind::Reduce(_) => false,
        }
    }

    /// What both ends must agree on.
    fn header(&self, collective: bool) -> [u8; 16] {
        let mut header = [0; 16];
        header[..8].copy_from_slice(&(self.count as u64).to_ne_bytes());
        header[8] = self.element as u8;
        header[9] = u8::from(collective);
        header
    }
}

impl Communicator {
    /// A rank that has not met the others yet; [`Communicator::join`] waits for them.
    pub(crate) fn new(ranks: usize, rank: usize) -> Arc<Communicator> {
        Arc::new(Communicator {
            rank,
            ranks,
            mesh: OnceLock::new(),
            turns: Mutex::new(Turns {
                state: IN_PROGRESS,
                issued: 0,
                ended: 0,
            }),
            changed: Condvar::new(),
            revoked: AtomicBool::new(false),
            connected: Mutex::default(),
            entered: AtomicBool::new(false),
        })
    }

    pub(crate) fn join(&self, folder: &std::path::Path, id: &str) {
        match Mesh::join(folder, id, (self.ranks, self.rank), &self.revoked) {
            Ok(Some(mesh)) => {
                let _ = self.mesh.set(mesh);
                self.set_state(SUCCESS);
            }
            Ok(None) => self.set_state(INVALID_USAGE),
            Err(Revoked) => {}
        }
    }

    /// The result of `ncclCommGetAsyncError`. For a revoked communicator it says whether operations are still running.
    pub(crate) fn state(&self) -> c_int {
        let turns = self.turns.lock();
        match self.is_revoked() {
            true if turns.ended < turns.issued => IN_PROGRESS,
            true => SUCCESS,
            false => turns.state,
        }
    }

    pub(crate) fn set_state(&self, state: c_int) {
        self.turns.lock().state = state;
    }

    /// The work in the background has ended: successfully, unless an error was recorded before.
    pub(crate) fn finish_setup(&self) {
        let mut turns = self.turns.lock();
        if turns.state == IN_PROGRESS {
            turns.state = SUCCESS;
        }
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// The connections that these operations need and that did not exist yet. They count as existing from now on.
    pub(crate) fn connect(&self, operations: &[Operation]) -> Vec<Connection> {
        let mut connected = self.connected.lock();
        let all = operations.iter().map(|o| o.kind.connection(self.rank));
        all.filter(|connection| connected.insert(*connection)).collect()
    }

    /// Announces that this rank is ready for these connections.
    pub(crate) fn announce(&self, connections: &[Connection]) {
        if let Some(mesh) = self.mesh.get() {
            connections
                .iter()
                .for_each(|connection| mesh.announce(*connection));
        }
    }

    /// Waits until the other ranks are ready for these connections, too.
    pub(crate) fn meet(&self, connections: &[Connection]) {
        // If the communicator is revoked meanwhile, the operation ends when it would run.
        let wait = |mesh: &Mesh| connections.iter().try_for_each(|c| mesh.meet(*c, &self.revoked));
        let _ = self.mesh.get().map(wait);
    }

    /// The place in the order of execution for operations that are issued now.
    pub(crate) fn issue(&self) -> u64 {
        let mut turns = self.turns.lock();
        turns.issued += 1;
        turns.issued - 1
    }

    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits until no operation is running.
    pub(crate) fn drain(&self) {
        let mut turns = self.turns.lock();
        while turns.ended < turns.issued {
            self.changed.wait_for(&mut turns, Duration::from_millis(2));
        }
    }

    /// Runs operations that were issued together, when their turn comes. This is called on a stream's thread.
    pub(crate) fn run(&self, turn: u64, operations: &[Operation]) {
        let result = self.wait_for(turn).and_then(|()| self.together(operations));
        if let Err(ended) = result {
            if let Ended::Failed(code) = ended {
                self.set_state(code);
                self.hang();
            }
            for operation in operations {
                if !operation.is_only_read(self.rank) {
                    operation.write(|bytes| bytes.fill(GARBAGE));
                }
            }
        }
        self.turns.lock().ended += 1;
        self.changed.notify_all();
    }

    fn wait_for(&self, turn: u64) -> Result<(), Ended> {
        let mut turns = self.turns.lock();
        while turns.ended < turn {
            // Operations keep their order even if the communicator is revoked: it never runs two at the same time.
            self.changed.wait_for(&mut turns, Duration::from_millis(2));
        }
        if self.is_revoked() {
            return Err(Ended::Revoked);
        }
        Ok(())
    }

    /// Waits until the communicator is revoked.
    fn hang(&self) {
        let mut turns = self.turns.lock();
        while !self.is_revoked() {
            self.changed.wait_for(&mut turns, Duration::from_millis(2));
        }
    }

    fn together(&self, operations: &[Operation]) -> Result<(), Ended> {
        match faults::next() {
            Some(Fault::Hang) => {
                self.hang();
                return Err(Ended::Revoked);
            }
            Some(Fault::Fail) => return Err(Ended::Failed(REMOTE_ERROR)),
            None => {}
        }
        let (collectives, pairs): (Vec<&Operation>, Vec<_>) =
            operations.iter().partition(|o| o.kind.is_collective());
        for operation in collectives {
            match operation.kind {
                Kind::Reduce(root) => self.reduce(operation, root)?,
                Kind::Broadcast(root) => self.broadcast(operation, root)?,
                _ => self.all_reduce(operation)?,
            }
        }
        // Operations with the same peer and direction run in order, all others in parallel.
        let mut lanes: Vec<Vec<&Operation>> = Vec::new();
        for operation in pairs {
            match lanes.iter_mut().find(|l| l[0].kind == operation.kind) {
                Some(lane) => lane.push(operation),
                None => lanes.push(vec![operation]),
            }
        }
        std::thread::scope(|scope| {
            let run = |lane: Vec<&Operation>| lane.into_iter().try_for_each(|o| self.pair(o));
            let threads: Vec<_> = lanes
                .into_iter()
                .map(|lane| scope.spawn(move || run(lane)))
                .collect();
            let ends = threads
                .into_iter()
                .map(|t| t.join().unwrap_or(Err(Ended::Failed(SYSTEM_ERROR))));
            // All of them are waited for before the first failure is returned.
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }

    fn pair(&self, operation: &Operation) -> Result<(), Ended> {
        match operation.kind {
            Kind::Send(to) => self.give(to, operation.header(false), operation.input()),
            Kind::Receive(from) => operation.write(|bytes| self.take(from, operation.header(false), bytes)),
            Kind::AllReduce | Kind::Reduce(_) | Kind::Broadcast(_) => Ok(()),
        }
    }

    /// Sends bytes and waits until the peer has received them.
    fn give(&self, to: usize, header: [u8; 16], bytes: &[u8]) -> Result<(), Ended> {
        let lane = self.mesh()?.to(to);
        lane.write(&header, &self.revoked)?;
        let mut fits = [0];
        lane.read(&mut fits, &self.revoked)?;
        if fits == [0] {
            return Err(Ended::Failed(INVALID_USAGE));
        }
        lane.write(bytes, &self.revoked)?;
        lane.read(&mut fits, &self.revoked)?;
        Ok(())
    }

    /// Receives bytes whose header must be the one that this rank expects.
    fn take(&self, from: usize, header: [u8; 16], bytes: &mut [u8]) -> Result<(), Ended> {
        let lane = self.mesh()?.from(from);
        let mut sent = [0; 16];
        lane.read(&mut sent, &self.revoked)?;
        lane.write(&[u8::from(sent == header)], &self.revoked)?;
        if sent != header {
            return Err(Ended::Failed(INVALID_USAGE));
        }
        lane.read(bytes, &self.revoked)?;
        lane.write(&[1], &self.revoked)?;
        Ok(())
    }

    /// The first rank adds up all values in the order of the ranks, and sends the sum to each rank, so that all have the same bits.
    fn all_reduce(&self, operation: &Operation) -> Result<(), Ended> {
        let header = operation.header(true);
        let mut sum = operation.input().to_vec();
        if self.rank > 0 {
            self.give(0, header, &sum)?;
            self.take(0, header, &mut sum)?;
        } else {
            let mut other = vec![0; sum.len()];
            for rank in 1..self.ranks {
                self.take(rank, header, &mut other)?;
                add(operation.element, &mut sum, &other);
            }
            for rank in 1..self.ranks {
                self.give(rank, header, &sum)?;
            }
        }
        operation.write(|bytes| bytes.copy_from_slice(&sum));
        Ok(())
    }

    /// The root adds up all values, beginning with its own. The memory of the other ranks has undefined content afterwards, as with NCCL.
    fn reduce(&self, operation: &Operation, root: usize) -> Result<(), Ended> {
        let header = operation.header(true);
        if self.rank != root {
            self.give(root, header, operation.input())?;
            operation.write(|bytes| bytes.fill(GARBAGE));
            return Ok(());
        }
        let mut sum = operation.input().to_vec();
        let mut other = vec![0; sum.len()];
        for rank in (0..self.ranks).filter(|rank| *rank != root) {
            self.take(rank, header, &mut other)?;
            add(operation.element, &mut sum, &other);
        }
        operation.write(|bytes| bytes.copy_from_slice(&sum));
        Ok(())
    }

    /// The root sends its value to all ranks.
    fn broadcast(&self, operation: &Operation, root: usize) -> Result<(), Ended> {
        let header = operation.header(true);
        if self.rank != root {
            return operation.write(|bytes| self.take(root, header, bytes));
        }
        let own = operation.input().to_vec();
        let mut others = (0..self.ranks).filter(|rank| *rank != root);
        others.try_for_each(|rank| self.give(rank, header, &own))?;
        if !operation.is_only_read(root) {
            operation.write(|bytes| bytes.copy_from_slice(&own));
        }
        Ok(())
    }

    fn mesh(&self) -> Result<&Mesh, Ended> {
        self.mesh.get().ok_or(Ended::Failed(INVALID_USAGE))
    }
}
