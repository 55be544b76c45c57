//! Links and rings between processes over the real transport, and how much neighbours slow each other's compute.
//!
//! All processes go through the same script in step; a ring of one element among all of them is the barrier. The leader
//! starts its peers and speaks to them by one line each way; they end with its pipe.

use super::compute::Bench;
use super::{Arguments, cores, middle};
use crate::backend::Platform;
use crate::transport::ring::Reducer;
use crate::transport::tcp::{Mesh, PeerEvent};
use crate::transport::{Link, Tag};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use varuna_api::Job;
use varuna_plan::profile::{LinkRow, RingRow};
use varuna_plan::{Generation, Step, Unit, WorkerId};

const GENERATION: Generation = Generation(1);
/// Time limit of everything between two processes of one machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of the longest line: the addresses of many workers.
const LINE_MAX: u64 = 1 << 20;
/// Elements of messages and how often each is sent back and forth: from latency to the largest boundaries.
const MESSAGES: [(usize, usize); 6] = [
    (1, 200),
    (1 << 10, 100),
    (1 << 14, 60),
    (1 << 17, 30),
    (1 << 20, 12),
    (1 << 22, 6),
];
/// Elements of rings and how often: from one small segment to a few large ones.
const RINGS: [(usize, usize); 4] = [(1 << 12, 30), (1 << 18, 15), (1 << 21, 8), (1 << 23, 5)];
/// Rounds of compute alone and in parallel with others. Each takes a few seconds, because a machine that shares its cores with others is
/// slow for short times.
const ROUNDS: usize = 11;

/// The figures that the script measures.
pub(super) struct Figures {
    pub(super) links: Vec<LinkRow>,
    pub(super) rings: Vec<RingRow>,
    /// Compute time in parallel with 0, 1, ... others, relative to alone.
    pub(super) slowdown: Vec<f64>,
}

/// What the leader tells a peer.
#[derive(Serialize, Deserialize)]
struct PeerSetup {
    /// Addresses by place.
    addresses: Vec<String>,
    secret: String,
}

/// Address of a peer.
#[derive(Serialize, Deserialize)]
struct Place {
    address: String,
}

fn id(place: usize) -> WorkerId {
    WorkerId(place as u64 + 1)
}

fn later() -> Instant {
    Instant::now() + PATIENCE
}

/// Peers of the leader; killed with it.
struct Peers(Vec<Child>);

impl Drop for Peers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One process of the script.
struct Station {
    place: usize,
    count: usize,
    link: Arc<dyn Link>,
    /// Numbers all exchanges, alike in all processes.
    number: u64,
    _mesh: Mesh,
}

/// How many compute at once at most.
fn concurrent_max(arguments: &Arguments, job: &Job) -> usize {
    // GPUs share no cores with each other.
    if !arguments.shares_cores() {
        return 1;
    }
    let beside = cores() / arguments.threads(job);
    arguments.workers.min(beside.max(1) as usize)
}

/// Starts the peers, goes through the script and measures.
pub(super) fn lead(arguments: &Arguments, job: &Job, bench: &mut Bench) -> Result<Figures> {
    let (mesh, events) = listen(0)?;
    let mut peers = Peers(Vec::new());
    let mut addresses = vec![mesh.address().to_string()];
    for place in 1..arguments.workers {
        let mut child = start_peer(arguments, place)?;
        let stdout = child.stdout.take().context("a peer has no output")?;
        peers.0.push(child);
        let line = one_line(BufReader::new(stdout)).context("a peer says nothing")?;
        let said: Place = serde_json::from_str(&line).context("a peer did not say where it listens")?;
        addresses.push(said.address);
    }
    let secret = format!("{:032x}", rand::random::<u128>());
    let setup = PeerSetup { addresses, secret };
    let line = serde_json::to_string(&setup)?;
    for child in &mut peers.0 {
        let stdin = child.stdin.as_mut().context("a peer takes no input")?;
        writeln!(stdin, "{line}").context("a peer takes no input")?;
    }
    let mut station = Station::join(0, mesh, &events, &setup)?;
    let links = station.messages()?;
    let rings = station.rings()?;
    let slowdown = station.slowdowns(concurrent_max(arguments, job), Some(bench))?;
    Ok(Figures {
        links,
        rings,
        slowdown,
    })
}

/// Reads a line, which must not be longer than any that is said here.
fn one_line(from: impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    let read = from.take(LINE_MAX).read_line(&mut line)?;
    if read as u64 == LINE_MAX && !line.ends_with('\n') {
        let why = format!("a line of more than {LINE_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(line)
}

/// Goes through the script as a peer.
pub(super) fn follow((arguments, platform): (&Arguments, Platform), job: &Job, place: usize) -> Result<()> {
    let (mesh, events) = listen(place)?;
    let own = Place {
        address: mesh.address().to_string(),
    };
    println!("{}", serde_json::to_string(&own)?);
    let line = one_line(io::stdin().lock()).context("the leader has gone")?;
    let setup: PeerSetup = serde_json::from_str(&line).context("the leader has gone")?;
    let mut station = Station::join(place, mesh, &events, &setup)?;
    let _ = station.messages()?;
    let _ = station.rings()?;
    let concurrent_max = concurrent_max(arguments, job);
    let mut bench = (place < concurrent_max)
        .then(|| arguments.bench(job, platform))
        .transpose()?;
    let _ = station.slowdowns(concurrent_max, bench.as_mut())?;
    // A process that ends closes its connections, so the leader ends all others.
    let _ = one_line(io::stdin().lock());
    Ok(())
}

fn listen(place: usize) -> Result<(Mesh, Receiver<PeerEvent>)> {
    let (tell, events) = channel();
    // The second where this machine has no IPv4.
    let loopback = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
    ];
    let mesh = Mesh::listen(id(place), &loopback[..], move |event| {
        // Nobody listens at the end.
        let _ = tell.send(event);
    })
    .context("cannot listen on 127.0.0.1 or ::1")?;
    Ok((mesh, events))
}

fn start_peer(arguments: &Arguments, place: usize) -> Result<Child> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let sizes: Vec<String> = arguments.micro_batch_sizes.iter().map(u32::to_string).collect();
    let mut command = Command::new(own);
    command.arg("profile-peer").arg("--job").arg(&arguments.job);
    for (name, value) in [
        ("--workers", arguments.workers.to_string()),
        ("--micro-batch-sizes", sizes.join(",")),
        ("--place", place.to_string()),
        ("--device", arguments.device.to_string()),
    ] {
        command.args([name, &value]);
    }
    if let Some(threads) = arguments.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a peer")
}

impl Station {
    /// Connects to all others.
    fn join(place: usize, mesh: Mesh, events: &Receiver<PeerEvent>, setup: &PeerSetup) -> Result<Station> {
        mesh.open(GENERATION, &setup.secret);
        let others = (0..).zip(&setup.addresses).filter(|(other, _)| *other != place);
        let mut missing = 0;
        for (other, address) in others {
            mesh.dial(GENERATION, id(other), address);
            missing += 1;
        }
        while missing > 0 {
            match events
                .recv_timeout(PATIENCE)
                .context("the peers do not connect")?
            {
                PeerEvent::Connected { .. } => missing -= 1,
                PeerEvent::Closed { peer, .. } => bail!("peer {peer} has gone"),
                _ => {}
            }
        }
        Ok(Station {
            place,
            count: setup.addresses.len(),
            link: mesh.link(GENERATION).context("the generation is not open")?,
            number: 0,
            _mesh: mesh,
        })
    }

    /// Sums this many elements among the first `holders` places. Returns the time in milliseconds.
    fn ring(&mut self, holders: usize, elements: usize) -> Result<f64> {
        self.number += 1;
        if self.place >= holders {
            return Ok(0.0);
        }
        let group: Vec<WorkerId> = (0..holders).map(id).collect();
        let buffer = vec![1.0f32; elements];
        let mut reducer = Reducer::start(Arc::clone(&self.link), id(self.place))?;
        let start = Instant::now();
        reducer.begin(Step(self.number), Unit(0), group, buffer, later());
        let _ = reducer.wait()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    fn barrier(&mut self) -> Result<()> {
        let all = self.count;
        self.ring(all, 1).map(drop)
    }

    /// One-way times between the first two places.
    fn messages(&mut self) -> Result<Vec<LinkRow>> {
        let mut rows = Vec::new();
        for (elements, times) in MESSAGES {
            let mut found = Vec::new();
            for _ in 0..times {
                found.push(self.round_trip(elements)? / 2.0);
            }
            let (ms, _) = middle(&found);
            if self.place == 0 && self.count > 1 {
                let bytes = elements as u64 * 4;
                rows.push(LinkRow { bytes, ms });
            }
            self.barrier()?;
        }
        if rows.is_empty() {
            // One worker sends nothing; a plan of more would be an extrapolation, and memory is the best there is.
            rows.push(LinkRow {
                bytes: 1 << 30,
                ms: 1e3,
            });
        }
        Ok(rows)
    }

    fn round_trip(&mut self, elements: usize) -> Result<f64> {
        self.number += 1;
        let tag = Tag::Activation {
            stage: 0,
            step: Step(self.number),
            micro_batch: 0,
        };
        let (start, payload) = (Instant::now(), vec![1.0f32; elements]);
        match self.place {
            0 if self.count > 1 => {
                self.link.send(id(1), tag, payload.into(), later())?;
                let _ = self.link.recv(id(1), tag, later())?;
            }
            1 => {
                let payload = self.link.recv(id(0), tag, later())?;
                self.link.send(id(0), tag, payload, later())?;
            }
            _ => {}
        }
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    fn rings(&mut self) -> Result<Vec<RingRow>> {
        let mut rows = Vec::new();
        for holders in 2..=self.count {
            for (elements, times) in RINGS {
                let mut found = Vec::new();
                // The first one makes the buffers.
                for round in 0..=times {
                    let ms = self.ring(holders, elements)?;
                    if round > 0 {
                        found.push(ms);
                    }
                }
                self.barrier()?;
                rows.push(RingRow {
                    holders: u32::try_from(holders).unwrap_or(u32::MAX),
                    bytes: elements as u64 * 4,
                    ms: middle(&found).0,
                });
            }
        }
        Ok(rows)
    }

    /// Compute time of the leader in parallel with this many others, relative to alone, measured in turn.
    fn slowdowns(&mut self, most: usize, mut bench: Option<&mut Bench>) -> Result<Vec<f64>> {
        let mut found = vec![Vec::new(); most];
        for round in 0..=ROUNDS {
            for (others, found) in found.iter_mut().enumerate() {
                self.barrier()?;
                let took = match bench.as_mut().filter(|_| self.place <= others) {
                    Some(bench) => bench.step_work_ms()?,
                    None => 0.0,
                };
                if round > 0 {
                    found.push(took);
                }
            }
        }
        self.barrier()?;
        let alone = middle(&found[0]).0.max(1e-9);
        // Being quicker in company is noise.
        Ok(found
            .iter()
            .map(|times| (middle(times).0 / alone).max(1.0))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_does_not_end_is_not_read_for_ever() {
        assert_eq!(one_line("one\ntwo\n".as_bytes()).unwrap(), "one\n");
        assert_eq!(one_line("".as_bytes()).unwrap(), "");
        let endless = BufReader::new(io::repeat(b'x'));
        assert_eq!(one_line(endless).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
