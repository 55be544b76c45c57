//! Connections between the ranks of a communicator, and transfers of bytes over them. Every wait ends when the communicator is revoked, and
//! not before: even if a peer is gone, the wait continues.

use crate::connection::Connection;
use parking_lot::Mutex;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a wait checks whether the communicator was revoked.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The error of a wait whose communicator was revoked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Revoked;

/// One direction between two ranks: the data that one rank sends, and the answers to it.
pub(crate) struct Lane(Mutex<UnixStream>);

/// All connections of one rank.
pub(crate) struct Mesh {
    /// Outgoing connections by rank; none for this rank itself.
    outgoing: Vec<Option<Lane>>,
    incoming: Vec<Option<Lane>>,
    /// Folder with a file for each connection that a rank is ready for.
    folder: PathBuf,
    id: String,
    rank: usize,
    /// The files of this rank.
    own: Mutex<Vec<PathBuf>>,
}

fn place(folder: &Path, id: &str, rank: usize) -> PathBuf {
    folder.join(format!("{id}.{rank}"))
}

fn lane(stream: UnixStream) -> Option<Lane> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(POLL_INTERVAL)).ok()?;
    stream.set_write_timeout(Some(POLL_INTERVAL)).ok()?;
    Some(Lane(Mutex::new(stream)))
}

impl Mesh {
    /// Meets the other ranks. None if another process has this rank already.
    pub(crate) fn join(
        folder: &Path,
        id: &str,
        (ranks, rank): (usize, usize),
        revoked: &AtomicBool,
    ) -> Result<Option<Mesh>, Revoked> {
        let own = place(folder, id, rank);
        let Ok(listener) = UnixListener::bind(&own) else {
            return Ok(None);
        };
        let _ = listener.set_nonblocking(true);
        let none = || (0..ranks).map(|_| None).collect::<Vec<Option<Lane>>>();
        let (mut outgoing, mut incoming) = (none(), none());
        let is_whole = |lanes: &[Option<Lane>]| lanes.iter().flatten().count() + 1 >= ranks;
        while !is_whole(&outgoing) || !is_whole(&incoming) {
            if revoked.load(Ordering::Relaxed) {
                let _ = std::fs::remove_file(&own);
                return Err(Revoked);
            }
            for peer in (0..ranks).filter(|p| *p != rank) {
                if outgoing[peer].is_none() {
                    outgoing[peer] = connect(&place(folder, id, peer), rank);
                }
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    let Some(lane) = lane(stream) else { continue };
                    let mut number = [0; 8];
                    lane.read(&mut number, revoked)?;
                    let peer = usize::try_from(u64::from_ne_bytes(number)).unwrap_or(ranks);
                    if let Some(place) = incoming.get_mut(peer) {
                        *place = Some(lane);
                    }
                }
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
        let _ = std::fs::remove_file(&own);
        Ok(Some(Mesh {
            outgoing,
            incoming,
            folder: folder.to_owned(),
            id: id.to_owned(),
            rank,
            own: Mutex::default(),
        }))
    }

    fn arrival(&self, of: Connection, rank: usize) -> PathBuf {
        let what = match of {
            Connection::Pair { from, to } => format!("{from}-{to}"),
            collective => format!("{collective:?}"),
        };
        place(&self.folder, &format!("{}.{what}", self.id), rank)
    }

    /// Announces that this rank is ready for a connection.
    pub(crate) fn announce(&self, connection: Connection) {
        let file = self.arrival(connection, self.rank);
        let _ = std::fs::write(&file, "");
        self.own.lock().push(file);
    }

    /// Waits until all ranks that it needs are ready.
    pub(crate) fn meet(&self, connection: Connection, revoked: &AtomicBool) -> Result<(), Revoked> {
        let ranks = match connection {
            Connection::Pair { from, to } => vec![from, to],
            Connection::AllReduce | Connection::Reduce | Connection::Broadcast => {
                (0..self.outgoing.len()).collect()
            }
        };
        let files: Vec<PathBuf> = ranks
            .into_iter()
            .map(|rank| self.arrival(connection, rank))
            .collect();
        while !files.iter().all(|file| file.exists()) {
            if revoked.load(Ordering::Relaxed) {
                return Err(Revoked);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The lane to a peer, on which data is sent and answers are received.
    pub(crate) fn to(&self, peer: usize) -> &Lane {
        self.outgoing[peer].as_ref().expect("a lane to each other rank")
    }

    /// The lane from a peer.
    pub(crate) fn from(&self, peer: usize) -> &Lane {
        self.incoming[peer].as_ref().expect("a lane from each other rank")
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        for file in self.own.lock().drain(..) {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn connect(place: &Path, rank: usize) -> Option<Lane> {
    let mut stream = UnixStream::connect(place).ok()?;
    stream.write_all(&(rank as u64).to_ne_bytes()).ok()?;
    lane(stream)
}

impl Lane {
    /// Repeats `step` on the stream until all bytes are transferred. On a closed connection this never ends.
    fn all(
        &self,
        length: usize,
        revoked: &AtomicBool,
        mut step: impl FnMut(&mut UnixStream, usize) -> std::io::Result<usize>,
    ) -> Result<(), Revoked> {
        let (mut stream, mut done) = (self.0.lock(), 0);
        while done < length {
            if revoked.load(Ordering::Relaxed) {
                return Err(Revoked);
            }
            match step(&mut stream, done) {
                Ok(n) if n > 0 => done += n,
                Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => {}
                Ok(_) | Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self, bytes: &[u8], revoked: &AtomicBool) -> Result<(), Revoked> {
        self.all(bytes.len(), revoked, |stream, done| stream.write(&bytes[done..]))
    }

    pub(crate) fn read(&self, bytes: &mut [u8], revoked: &AtomicBool) -> Result<(), Revoked> {
        self.all(bytes.len(), revoked, |stream, done| {
            stream.read(&mut bytes[done..])
        })
    }
}
