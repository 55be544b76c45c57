//! Forwarders in front of the workers and the coordinator, which disturb the data that passes, according to the rules.
//!
//! Both ends of each connection are known: a worker reaches the coordinator through a forwarder of its own, and a process that connects to
//! a worker sends its id in its first bytes.

use crate::links::{Place, Rule, Treatment, treatment};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use varuna_frames::{HELLO_BYTES, Hello};
use varuna_plan::WorkerId;

/// Maximum bytes that are forwarded at a time.
const PIECE: usize = 32 << 10;

/// The rules in force, and the numbers of the workers.
#[derive(Debug)]
pub struct Links {
    rules: watch::Sender<BTreeMap<usize, Vec<Rule>>>,
    numbers: Mutex<BTreeMap<WorkerId, u32>>,
}

impl Default for Links {
    fn default() -> Self {
        Links {
            rules: watch::Sender::new(BTreeMap::new()),
            numbers: Mutex::default(),
        }
    }
}

impl Links {
    /// Adds these rules, under the number of a fault.
    pub fn disturb(&self, fault: usize, rules: Vec<Rule>) {
        self.rules.send_modify(|all| {
            all.insert(fault, rules);
        });
    }

    /// Removes the rules of this fault.
    pub fn remove_rules(&self, fault: usize) {
        self.rules.send_modify(|all| {
            all.remove(&fault);
        });
    }

    /// Records that the worker with this id was started with the number `number`.
    pub fn name(&self, worker: WorkerId, number: u32) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.insert(worker, number);
    }

    fn place(&self, worker: WorkerId) -> Place {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.get(&worker).map_or(Place::Unknown, |n| Place::Worker(*n))
    }
}

/// The process behind a forwarder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForwardTarget {
    /// A worker's listener for its peers.
    Worker(u32),
    /// The coordinator, for connections of this worker only.
    Coordinator(u32),
}

/// The process that has opened a connection, with its id if it has sent one.
#[derive(Clone, Copy)]
enum Dialer {
    Known(Place),
    Worker(WorkerId),
}

/// A fault has reset the connection.
struct Reset;

/// Forwards connections until the task is aborted.
pub async fn forward(links: Arc<Links>, listener: TcpListener, target: ForwardTarget, to: SocketAddr) {
    loop {
        // An error concerns only one connection, or is temporary.
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let links = Arc::clone(&links);
        tokio::spawn(async move {
            let mut stream = stream;
            if connection(&links, &mut stream, target, to).await.is_none() {
                // With this option, dropping the socket resets the connection instead of closing it.
                let _ = stream.set_zero_linger();
            }
        });
    }
}

/// Forwards one connection until it ends. None if it should be reset.
async fn connection(
    links: &Links,
    stream: &mut TcpStream,
    target: ForwardTarget,
    to: SocketAddr,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut first = Vec::new();
    let (dialer, acceptor) = match target {
        ForwardTarget::Coordinator(number) => (Dialer::Known(Place::Worker(number)), Place::Coordinator),
        ForwardTarget::Worker(number) => {
            first.resize(HELLO_BYTES, 0);
            stream.read_exact(&mut first).await.ok()?;
            let (hello, _) = Hello::read(&mut first.as_slice()).ok()?.ok()?;
            (Dialer::Worker(hello.from), Place::Worker(number))
        }
    };
    let forth = ForwardDirection {
        links,
        ends: Ends::From(dialer, acceptor),
    };
    let back = ForwardDirection {
        links,
        ends: Ends::To(acceptor, dialer),
    };
    forth.pass(first.len()).await.ok()?;
    let mut target = TcpStream::connect(to).await.ok()?;
    target.set_nodelay(true).ok()?;
    target.write_all(&first).await.ok()?;
    let ended = {
        let (from_dialer, to_dialer) = stream.split();
        let (from_acceptor, to_acceptor) = target.split();
        tokio::try_join!(
            forth.carry(from_dialer, to_acceptor),
            back.carry(from_acceptor, to_dialer)
        )
    };
    if ended.is_err() {
        let _ = target.set_zero_linger();
        return None;
    }
    Some(())
}

#[derive(Clone, Copy)]
enum Ends {
    From(Dialer, Place),
    To(Place, Dialer),
}

/// One direction of a connection.
struct ForwardDirection<'a> {
    links: &'a Links,
    ends: Ends,
}

impl ForwardDirection<'_> {
    fn treatment(&self, bytes: usize, chance: f64) -> Treatment {
        let known = |dialer| match dialer {
            Dialer::Known(place) => place,
            Dialer::Worker(id) => self.links.place(id),
        };
        let (from, to) = match self.ends {
            Ends::From(dialer, to) => (known(dialer), to),
            Ends::To(from, dialer) => (from, known(dialer)),
        };
        let rules = self.links.rules.borrow();
        let all: Vec<Rule> = rules.values().flatten().copied().collect();
        treatment(&all, from, to, bytes, chance)
    }

    /// Waits until a piece of this length may pass.
    async fn pass(&self, bytes: usize) -> Result<(), Reset> {
        let mut changes = self.links.rules.subscribe();
        let chance = rand::random();
        loop {
            match self.treatment(bytes, chance) {
                Treatment::Reset => return Err(Reset),
                Treatment::After(wait) if wait.is_zero() => return Ok(()),
                Treatment::After(wait) => {
                    tokio::time::sleep(wait).await;
                    return Ok(());
                }
                // The sender exists as long as the links.
                Treatment::Hold => drop(changes.changed().await),
            }
        }
    }

    /// Waits until connections are reset.
    async fn reset(&self) {
        let mut changes = self.links.rules.subscribe();
        while self.treatment(0, 1.0) != Treatment::Reset {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn carry(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), Reset> {
        let mut piece = vec![0; PIECE];
        loop {
            let read = tokio::select! {
                read = from.read(&mut piece) => read.unwrap_or(0),
                () = self.reset() => return Err(Reset),
            };
            // The end of a connection is treated like a piece of data: a disconnected process does not notice it.
            self.pass(read).await?;
            if read == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
            if to.write_all(&piece[..read]).await.is_err() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Condition;

    async fn pair(links: &Arc<Links>) -> (TcpStream, TcpStream) {
        let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, to) = (front.local_addr().unwrap(), behind.local_addr().unwrap());
        tokio::spawn(forward(
            Arc::clone(links),
            front,
            ForwardTarget::Coordinator(3),
            to,
        ));
        let dialer = TcpStream::connect(address).await.unwrap();
        (dialer, behind.accept().await.unwrap().0)
    }

    fn rule(from: Option<Place>, condition: Condition) -> Vec<Rule> {
        vec![Rule {
            from,
            to: None,
            condition,
        }]
    }

    #[tokio::test]
    async fn held_direction_resumes_and_the_other_is_free() {
        let links = Arc::new(Links::default());
        let (mut dialer, mut acceptor) = pair(&links).await;
        let mut byte = [0];
        dialer.write_all(&[1]).await.unwrap();
        acceptor.read_exact(&mut byte).await.unwrap();
        links.disturb(1, rule(Some(Place::Worker(3)), Condition::Held));
        dialer.write_all(&[2]).await.unwrap();
        acceptor.write_all(&[3]).await.unwrap();
        dialer.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, [3]);
        assert_eq!(
            acceptor.try_read(&mut byte).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
        links.remove_rules(1);
        acceptor.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, [2]);
    }

    #[tokio::test]
    async fn a_reset_reaches_both_ends_and_a_close_is_forwarded() {
        let links = Arc::new(Links::default());
        let (mut dialer, mut acceptor) = pair(&links).await;
        links.disturb(1, rule(None, Condition::Reset));
        assert!(dialer.read(&mut [0]).await.is_err());
        assert!(acceptor.read(&mut [0]).await.is_err());
        links.remove_rules(1);
        let (dialer, mut acceptor) = pair(&links).await;
        drop(dialer);
        assert_eq!(acceptor.read(&mut [0]).await.unwrap(), 0);
    }
}
