//! Difficult cases of the data plane: concurrent transfers, refused data, dead processes, and rings whose members start in different
//! orders.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use varuna_frames::{
    Answer, Digester, ElementFormat, Frame, Handshake, Hello, Limits, Packet, Proof, Refusal, Side,
    StateHeader, VERSIONS, read_answer, read_proof, write_answer, write_proof,
};
use varuna_plan::{Generation, StateId, Step, Unit, WorkerId};
use varuna_worker::transport::ring::Reducer;
use varuna_worker::transport::tcp::{Mesh, PeerEvent};
use varuna_worker::transport::{Link, LinkError, Tag};

const G: Generation = Generation(3);
const SECRET: &str = "secret";

struct Peer {
    id: WorkerId,
    mesh: Mesh,
    events: Receiver<PeerEvent>,
}

fn peer(id: u64) -> Peer {
    bounded_peer(id, 1 << 29)
}

/// A peer that accepts this many bytes of each sender before they are received.
fn bounded_peer(id: u64, bytes: usize) -> Peer {
    let (tell, events) = channel();
    let told = move |event| drop(tell.send(event));
    let mesh = Mesh::listen_bounded(WorkerId(id), "127.0.0.1:0", bytes, told).unwrap();
    Peer {
        id: WorkerId(id),
        mesh,
        events,
    }
}

impl Peer {
    fn wait<T>(&self, mut of: impl FnMut(PeerEvent) -> Option<T>) -> T {
        loop {
            let event = self
                .events
                .recv_timeout(Duration::from_secs(60))
                .expect("the event comes");
            if let Some(found) = of(event) {
                return found;
            }
        }
    }
    fn connected(&self, to: Generation) {
        self.wait(|e| matches!(e, PeerEvent::Connected { generation, .. } if generation == to).then_some(()));
    }
    fn closed(&self, who: WorkerId) {
        self.wait(|e| matches!(e, PeerEvent::Closed { generation: G, peer } if peer == who).then_some(()));
    }
    /// The events up to the end of a peer's connection: the senders of damaged frames, and the peer whose connection ended.
    fn ends(&self) -> (Vec<WorkerId>, WorkerId) {
        let mut damaged = Vec::new();
        let peer = self.wait(|e| match e {
            PeerEvent::Damaged { generation: G, from } => {
                damaged.push(from);
                None
            }
            PeerEvent::Closed { generation: G, peer } => Some(peer),
            _ => None,
        });
        (damaged, peer)
    }
    fn dial(&self, to: &Peer, generation: Generation) {
        self.mesh.dial(generation, to.id, &to.mesh.address().to_string());
    }
    fn link(&self) -> Arc<dyn Link> {
        self.mesh.link(G).unwrap()
    }
}

/// Connects all peers to each other in one generation.
fn connect(peers: &[Peer], generation: Generation) {
    for a in peers {
        a.mesh.open(generation, SECRET);
        peers
            .iter()
            .filter(|b| b.id != a.id)
            .for_each(|b| a.dial(b, generation));
    }
    for a in peers {
        (1..peers.len()).for_each(|_| a.connected(generation));
    }
}

fn mesh(count: u64) -> Vec<Peer> {
    let peers: Vec<Peer> = (1..=count).map(peer).collect();
    connect(&peers, G);
    peers
}

/// Two peers that accept 16 MiB, and a size of messages of which 40 do not fit into all buffers between them.
fn tight_pair() -> (Vec<Peer>, usize) {
    let peers: Vec<Peer> = (1..=2).map(|id| bounded_peer(id, 16 << 20)).collect();
    connect(&peers, G);
    (peers, 1 << 20)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn activation(micro_batch: u32) -> Tag {
    Tag::Activation {
        stage: 0,
        step: Step(1),
        micro_batch,
    }
}

/// Opens a connection by hand, up to the dialer's proof. The proof is sent if the acceptor has proven itself.
fn by_hand(
    to: &Peer,
    from: WorkerId,
    generation: Generation,
    secret: &str,
) -> (TcpStream, Result<Proof, Refusal>) {
    let mut socket = TcpStream::connect(to.mesh.address()).unwrap();
    let hello = Hello {
        versions: VERSIONS,
        generation,
        from,
        to: to.id,
        nonce: [7; 32],
        encrypted: false,
    };
    hello.write(&mut socket).unwrap();
    let Answer { version, nonce } = match read_answer(&mut socket).unwrap() {
        Ok(answer) => answer,
        Err(refusal) => return (socket, Err(refusal)),
    };
    let handshake = Handshake {
        hello,
        version,
        nonce,
        binding: None,
    };
    let theirs = read_proof(&mut socket).unwrap();
    if !handshake.proves(secret, Side::Acceptor, &theirs) {
        return (socket, Err(Refusal::Secret));
    }
    (socket, Ok(handshake.prove(secret, Side::Dialer)))
}

/// Opens a connection by hand that can send frames.
fn connected_by_hand(to: &Peer, from: WorkerId) -> TcpStream {
    let (mut socket, proof) = by_hand(to, from, G, SECRET);
    write_proof(&mut socket, &proof.unwrap()).unwrap();
    socket
}

fn ended(mut socket: TcpStream) -> bool {
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    match socket.read(&mut [0u8]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn states_of_many_units_sent_at_once_arrive_whole_and_unmixed() {
    let peers = mesh(2);
    let (a, b) = (&peers[0], &peers[1]);
    // More data than may wait in a connection, so that the transfers compete.
    let sizes: Vec<usize> = (0..32)
        .map(|i| [700_003, 0, 1_300_000, 1][i % 4] * (1 + i % 3))
        .collect();
    for (unit, size) in sizes.iter().enumerate() {
        let unit = u32::try_from(unit).unwrap();
        let header = StateHeader {
            unit: Unit(unit),
            id: StateId::INITIAL,
            decision: None,
            progress: varuna_plan::OptimizerProgress {
                adam_steps: u64::from(unit),
                ..varuna_plan::OptimizerProgress::START
            },
            elements: *size as u64,
        };
        a.mesh
            .send_state(G, b.id, header, Box::new(vec![unit as f32; *size]));
    }
    // A tensor is sent before them.
    a.link()
        .send(b.id, activation(0), vec![7.0].into(), later())
        .unwrap();
    assert_eq!(b.link().recv(a.id, activation(0), later()), Ok(vec![7.0].into()));
    for (unit, size) in sizes.iter().enumerate() {
        let (header, data) = b.wait(|e| match e {
            PeerEvent::State { header, data, .. } => Some((header, data)),
            _ => None,
        });
        assert_eq!(
            (header.unit.index(), header.progress.adam_steps),
            (unit, unit as u64)
        );
        assert!(
            data.len() == *size && data.iter().all(|v| *v == unit as f32),
            "unit {unit}"
        );
    }
}

#[test]
fn connection_requires_the_secret_and_the_right_worker() {
    let b = peer(2);
    b.mesh.open(G, SECRET);
    let answer = |from, generation, secret| by_hand(&b, from, generation, secret).1.map(drop);
    assert_eq!(answer(WorkerId(1), G, SECRET), Ok(()));
    assert_eq!(
        answer(WorkerId(1), G, "other"),
        Err(Refusal::Secret),
        "the acceptor does not know this secret"
    );
    assert_eq!(
        answer(WorkerId(1), Generation(2), SECRET),
        Err(Refusal::Generation),
        "a zombie"
    );
    // A dialer that wants another worker, which had this address before, is refused with that reason.
    let mut socket = TcpStream::connect(b.mesh.address()).unwrap();
    let hello = Hello {
        versions: VERSIONS,
        generation: G,
        from: WorkerId(1),
        to: WorkerId(9),
        nonce: [7; 32],
        encrypted: false,
    };
    hello.write(&mut socket).unwrap();
    assert_eq!(read_answer(&mut socket).unwrap(), Err(Refusal::Secret));
    // After the generation is closed, its secret opens no connection.
    b.mesh.close(G);
    assert_eq!(answer(WorkerId(1), G, SECRET), Err(Refusal::Generation));
}

#[test]
fn a_dialer_that_does_not_prove_itself_sends_no_frame() {
    let b = peer(2);
    b.mesh.open(G, SECRET);
    let refused = |mut socket: TcpStream, proof: &Proof| {
        write_proof(&mut socket, proof).unwrap();
        let _ = Frame::Tensor(activation(0), vec![666.0].into()).write(&mut socket);
        assert!(ended(socket));
    };
    refused(by_hand(&b, WorkerId(1), G, SECRET).0, &[0; 32]);
    // The proof of another connection, as an eavesdropper would replay it together with the whole handshake.
    let (_, recorded) = by_hand(&b, WorkerId(1), G, SECRET);
    refused(by_hand(&b, WorkerId(1), G, SECRET).0, &recorded.unwrap());
    // The acceptor's own proof, sent back to it.
    let mut socket = TcpStream::connect(b.mesh.address()).unwrap();
    let hello = Hello {
        versions: VERSIONS,
        generation: G,
        from: WorkerId(1),
        to: b.id,
        nonce: [7; 32],
        encrypted: false,
    };
    hello.write(&mut socket).unwrap();
    assert!(read_answer(&mut socket).unwrap().is_ok());
    let reflected = read_proof(&mut socket).unwrap();
    refused(socket, &reflected);
    assert!(b.events.try_recv().is_err(), "nobody has come, so nobody is lost");
    // The real peer can still connect, and its tensor arrives unchanged.
    let a = peer(1);
    connect_one_way(&a, &b);
    a.link()
        .send(b.id, activation(0), vec![1.0].into(), later())
        .unwrap();
    assert_eq!(b.link().recv(a.id, activation(0), later()), Ok(vec![1.0].into()));
}

#[test]
fn who_answers_for_a_peer_without_its_secret_gets_nothing() {
    let a = peer(1);
    a.mesh.open(G, SECRET);
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    a.mesh
        .dial(G, WorkerId(2), &impostor.local_addr().unwrap().to_string());
    let (mut socket, _) = impostor.accept().unwrap();
    let (hello, version) = Hello::read(&mut socket).unwrap().unwrap();
    assert_eq!((hello.from, hello.to), (a.id, WorkerId(2)));
    let nonce = [3; 32];
    write_answer(&mut socket, Ok(Answer { version, nonce })).unwrap();
    write_proof(&mut socket, &[3; 32]).unwrap();
    let why = a.wait(|e| match e {
        PeerEvent::Refused { why, .. } => Some(why),
        PeerEvent::Connected { .. } => panic!("an impostor is connected"),
        _ => None,
    });
    assert_eq!(why, Refusal::Secret);
    assert!(ended(socket), "no proof and no frame came");
}

#[test]
fn silent_connections_do_not_keep_a_true_peer_out() {
    let (a, b) = (peer(1), peer(2));
    b.mesh.open(G, SECRET);
    // More connections than may be in the handshake at the same time. They stay open and send nothing.
    let silent: Vec<TcpStream> = (0..300)
        .map(|_| TcpStream::connect(b.mesh.address()).unwrap())
        .collect();
    let start = Instant::now();
    connect_one_way(&a, &b);
    a.link()
        .send(b.id, activation(0), vec![1.0].into(), later())
        .unwrap();
    assert_eq!(b.link().recv(a.id, activation(0), later()), Ok(vec![1.0].into()));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn a_connection_that_its_dialer_gave_up_is_no_loss_of_the_peer() {
    let (a, b) = (peer(1), peer(2));
    b.mesh.open(G, SECRET);
    let (socket, proof) = by_hand(&b, a.id, G, SECRET);
    assert!(proof.is_ok());
    drop(socket);
    connect_one_way(&a, &b);
    a.link()
        .send(b.id, activation(0), vec![1.0].into(), later())
        .unwrap();
    assert_eq!(b.link().recv(a.id, activation(0), later()), Ok(vec![1.0].into()));
    assert!(b.events.try_recv().is_err(), "nothing has closed");
}

fn connect_one_way(a: &Peer, b: &Peer) {
    a.mesh.open(G, SECRET);
    a.dial(b, G);
    a.connected(G);
}

#[test]
fn a_second_connection_of_a_connected_peer_carries_nothing() {
    let (a, b) = (peer(1), peer(2));
    b.mesh.open(G, SECRET);
    connect_one_way(&a, &b);
    a.link()
        .send(b.id, activation(0), vec![1.0].into(), later())
        .unwrap();
    assert_eq!(b.link().recv(a.id, activation(0), later()), Ok(vec![1.0].into()));
    let mut second = connected_by_hand(&b, a.id);
    let _ = Frame::Tensor(activation(1), vec![666.0].into()).write(&mut second);
    assert!(ended(second));
    a.link()
        .send(b.id, activation(1), vec![2.0].into(), later())
        .unwrap();
    assert_eq!(b.link().recv(a.id, activation(1), later()), Ok(vec![2.0].into()));
    assert!(b.events.try_recv().is_err(), "the true connection lives");
}

#[test]
fn invalid_bytes_end_the_connection_on_both_sides() {
    let b = peer(2);
    b.mesh.open(G, SECRET);
    let part = Frame::Part(Unit(0), Step(0), vec![1.0]);
    let mut socket = connected_by_hand(&b, WorkerId(1));
    part.write(&mut socket).unwrap();
    assert!(ended(socket), "a part without a header is refused");
    b.closed(WorkerId(1));
    let mut unknown = TcpStream::connect(b.mesh.address()).unwrap();
    unknown.write_all(&[b'G'; 64]).unwrap();
    assert!(ended(unknown));
}

#[test]
fn changed_frame_ends_its_connection() {
    let b = peer(2);
    b.mesh.open(G, SECRET);
    let mut socket = connected_by_hand(&b, WorkerId(1));
    let mut bytes = Vec::new();
    Frame::Tensor(activation(0), vec![1.0; 3].into())
        .write(&mut bytes)
        .unwrap();
    *bytes.last_mut().unwrap() ^= 0x40;
    socket.write_all(&bytes).unwrap();
    assert!(ended(socket));
    assert_eq!(b.ends(), (vec![WorkerId(1)], WorkerId(1)));
    assert_eq!(
        b.link().recv(WorkerId(1), activation(0), later()),
        Err(LinkError::Closed(WorkerId(1)))
    );
}

#[test]
fn changed_state_is_a_failed_transfer() {
    let b = peer(2);
    b.mesh.open(G, SECRET);
    let mut socket = connected_by_hand(&b, WorkerId(1));
    let header = StateHeader {
        unit: Unit(4),
        id: StateId::INITIAL,
        decision: None,
        progress: varuna_plan::OptimizerProgress::START,
        elements: 2,
    };
    let encoded = header.encode().unwrap();
    let mut digester = Digester::new(&encoded);
    digester.add(&[1.0, 2.0]);
    let digest = digester.digest();
    // First the elements in another order, each frame with the right checksum; then in the right order.
    for parts in [[2.0, 1.0], [1.0, 2.0]] {
        let parts = parts.map(|value| Frame::Part(Unit(4), Step(0), vec![value]));
        let state = [Frame::State(encoded.clone())].into_iter().chain(parts);
        for frame in state.chain([Frame::End(Unit(4), Step(0), digest)]) {
            frame.write(&mut socket).unwrap();
        }
    }
    let why = b.wait(|e| match e {
        PeerEvent::StateFailed { unit, why, .. } => Some((unit, why.to_string())),
        PeerEvent::State { .. } => panic!("a changed state was taken"),
        _ => None,
    });
    assert!(why.0 == Unit(4) && why.1.contains("another digest"), "{why:?}");
    let data = b.wait(|e| match e {
        PeerEvent::State { data, .. } => Some(data),
        _ => None,
    });
    assert_eq!(data, [1.0, 2.0]);
    // A correct peer never sends an end too early or without a state.
    Frame::End(Unit(4), Step(0), digest).write(&mut socket).unwrap();
    assert!(ended(socket));
    b.closed(WorkerId(1));
}

#[test]
fn two_generations_live_side_by_side_and_end_one_by_one() {
    let peers = mesh(2);
    let (a, b) = (&peers[0], &peers[1]);
    let next = Generation(4);
    connect(&peers, next);
    let (old, new) = (b.link(), b.mesh.link(next).unwrap());
    a.link()
        .send(b.id, activation(0), vec![3.0].into(), later())
        .unwrap();
    a.mesh
        .link(next)
        .unwrap()
        .send(b.id, activation(0), vec![4.0].into(), later())
        .unwrap();
    assert_eq!(new.recv(a.id, activation(0), later()), Ok(vec![4.0].into()));
    assert_eq!(old.recv(a.id, activation(0), later()), Ok(vec![3.0].into()));
    a.mesh.close(G);
    b.closed(a.id);
    assert_eq!(
        old.recv(a.id, activation(1), later()),
        Err(LinkError::Closed(a.id))
    );
    a.mesh
        .link(next)
        .unwrap()
        .send(b.id, activation(1), vec![5.0].into(), later())
        .unwrap();
    assert_eq!(new.recv(a.id, activation(1), later()), Ok(vec![5.0].into()));
}

#[test]
fn a_fence_wakes_every_wait_at_once_and_accuses_nobody() {
    let (peers, _) = tight_pair();
    let (a, b) = (&peers[0], &peers[1]);
    let barrier = Arc::new(Barrier::new(3));
    let waiting = |what: fn(&dyn Link, WorkerId) -> LinkError| {
        let (link, from, barrier) = (a.link(), b.id, Arc::clone(&barrier));
        std::thread::spawn(move || {
            barrier.wait();
            (what(&*link, from), Instant::now())
        })
    };
    let receiver = waiting(|link, from| link.recv(from, activation(0), later()).unwrap_err());
    // The mailbox of b and both queues fill up, because no thread receives the data.
    let sender = waiting(|link, to| {
        let mut sent = 0;
        loop {
            if let Err(error) = link.send(to, activation(sent), vec![0.0; 1 << 20].into(), later()) {
                return error;
            }
            sent += 1;
            assert!(
                sent < 40,
                "the sender is bounded: 40 messages of 4 MiB are more than may wait"
            );
        }
    });
    barrier.wait();
    let told = Instant::now();
    a.link().abort();
    for thread in [receiver, sender] {
        let (error, woken) = thread.join().unwrap();
        assert_eq!(error, LinkError::Aborted);
        assert!(woken.saturating_duration_since(told) < Duration::from_millis(50) * SLACK);
    }
    b.closed(a.id);
    assert!(a.events.try_recv().is_err(), "b has done nothing wrong");
}

/// Factor for timeouts, because other tests may keep the machine busy.
const SLACK: u32 = 10;

#[test]
fn a_sender_is_held_back_by_a_receiver_that_takes_nothing() {
    let (peers, elements) = tight_pair();
    let (a, b) = (&peers[0], &peers[1]);
    let link = a.link();
    let mut sent = 0u32;
    let refused = loop {
        let soon = Instant::now() + Duration::from_millis(300);
        match link.send(b.id, activation(sent), vec![sent as f32; elements].into(), soon) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 40, "bounded");
    };
    assert_eq!(
        refused,
        LinkError::Deadline {
            from: b.id,
            tag: activation(sent)
        }
    );
    for k in 0..sent {
        let payload = b.link().recv(a.id, activation(k), later()).unwrap();
        assert!(payload == vec![k as f32; elements].into());
    }
    link.send(b.id, activation(sent), vec![1.0].into(), later())
        .unwrap();
    assert_eq!(
        b.link().recv(a.id, activation(sent), later()),
        Ok(vec![1.0].into())
    );
}

/// This is no test, but the process that `a_killed_process_is_noticed_at_once` kills.
#[test]
fn the_process_that_is_killed() {
    let Ok(address) = std::env::var("VARUNA_TEST_DIAL") else {
        return;
    };
    let child = peer(2);
    child.mesh.open(G, SECRET);
    child.mesh.dial(G, WorkerId(1), &address);
    child.connected(G);
    println!("LISTENS {}", child.mesh.address());
    // It runs until it is killed, or until its parent is gone.
    let _ = std::io::stdin().read(&mut [0u8]);
}

#[test]
fn a_killed_process_is_noticed_at_once() {
    let a = peer(1);
    a.mesh.open(G, SECRET);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_process_that_is_killed", "--nocapture"])
        .env("VARUNA_TEST_DIAL", a.mesh.address().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let address = lines
        .map_while(Result::ok)
        .find_map(|l| l.split_once("LISTENS ").map(|(_, a)| a.to_owned()))
        .unwrap();
    let from = WorkerId(2);
    a.mesh.dial(G, from, &address);
    a.connected(G);
    let link = a.link();
    let waiter = std::thread::spawn(move || (link.recv(from, activation(0), later()), Instant::now()));
    let killed = Instant::now();
    child.kill().unwrap();
    let (outcome, woken) = waiter.join().unwrap();
    assert_eq!(outcome, Err(LinkError::Closed(from)));
    a.closed(from);
    child.wait().unwrap();
    println!("noticed after {:?}", woken - killed);
    assert!(woken - killed < Duration::from_millis(100) * SLACK);
    assert!(a.events.try_recv().is_err(), "told once");
}

#[test]
fn a_half_closed_connection_counts_as_closed() {
    let b = peer(2);
    b.mesh.open(G, SECRET);
    let mut socket = connected_by_hand(&b, WorkerId(1));
    Frame::Tensor(activation(0), vec![1.0].into())
        .write(&mut socket)
        .unwrap();
    assert_eq!(
        b.link().recv(WorkerId(1), activation(0), later()),
        Ok(vec![1.0].into())
    );
    socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(b.ends(), (vec![], WorkerId(1)), "nothing was damaged");
}

/// Reduces units over sockets. Each member begins with another unit. Returns each member's results by unit.
fn reduce(peers: &[Peer], step: Step, sizes: &'static [usize]) -> Vec<Vec<Vec<f32>>> {
    reduce_timed(peers, step, sizes)
        .into_iter()
        .map(|(out, _)| out)
        .collect()
}

fn reduce_timed(peers: &[Peer], step: Step, sizes: &'static [usize]) -> Vec<(Vec<Vec<f32>>, Duration)> {
    let ready = Arc::new(Barrier::new(peers.len()));
    let ids: Vec<WorkerId> = peers.iter().map(|p| p.id).collect();
    let one = |p: &Peer| {
        let (link, ids, me, ready) = (p.link(), ids.clone(), p.id, Arc::clone(&ready));
        move || {
            let mut reducer = Reducer::start(link, me).unwrap();
            let fill = |unit: usize| -> Vec<f32> {
                (0..sizes[unit])
                    .map(|k| 0.1 * me.0 as f32 + (k % 89) as f32)
                    .collect()
            };
            let mut buffers: Vec<Vec<f32>> = (0..sizes.len()).map(fill).collect();
            ready.wait();
            let start = Instant::now();
            for i in 0..sizes.len() {
                let unit = (i + me.0 as usize) % sizes.len();
                let values = std::mem::take(&mut buffers[unit]);
                reducer.begin(step, Unit(unit as u32), ids.clone(), values, later());
            }
            let mut out = vec![Vec::new(); sizes.len()];
            for _ in 0..sizes.len() {
                let (unit, values) = reducer.wait().unwrap();
                out[unit.index()] = values;
            }
            (out, start.elapsed())
        }
    };
    let threads: Vec<_> = peers.iter().map(|p| std::thread::spawn(one(p))).collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

#[test]
fn rings_give_all_members_the_same_bits() {
    const SIZES: &[usize] = &[0, 1, 7919, 300_007, 64, 65_536];
    for count in [1, 2, 3, 5, 6] {
        let peers = mesh(count);
        for step in 0..2 {
            let all = reduce(&peers, Step(step), SIZES);
            assert!(all.iter().all(|out| out == &all[0]), "{count} members");
            for (unit, size) in SIZES.iter().enumerate() {
                assert_eq!(all[0][unit].len(), *size);
                let wrong = all[0][unit].iter().enumerate().find(|(k, v)| {
                    let exact: f64 = (1..=count).map(|i| 0.1 * i as f64 + (k % 89) as f64).sum();
                    (f64::from(**v) - exact).abs() > 1e-3
                });
                assert_eq!(wrong, None, "unit {unit}, {count} members");
            }
        }
    }
}

/// Prints the speed of the transport on this machine (`--nocapture`, release build). It checks no times.
#[test]
fn throughput_and_latency_are_printed() {
    const UNITS: &[usize] = &[2_000_000; 4];
    let peers = mesh(2);
    let (a, b) = (peers[0].link(), peers[1].link());
    let (ia, ib) = (peers[0].id, peers[1].id);
    let echo = std::thread::spawn(move || {
        for k in 0..200 {
            let payload = b.recv(ia, activation(k), later()).unwrap();
            b.send(ia, activation(k), payload, later()).unwrap();
        }
    });
    let start = Instant::now();
    for k in 0..200 {
        a.send(ib, activation(k), vec![0.0; 16].into(), later()).unwrap();
        a.recv(ib, activation(k), later()).unwrap();
    }
    println!("round trip {:?}", start.elapsed() / 200);
    echo.join().unwrap();
    let mut best = Duration::MAX;
    for step in 0..3 {
        let slowest = reduce_timed(&peers, Step(step), UNITS)
            .into_iter()
            .map(|(_, took)| took)
            .max();
        best = best.min(slowest.unwrap());
    }
    println!("ring of 2, 4 units of 8 MB: {best:?}");
}

#[test]
fn oversized_frames_end_the_connection() {
    let b = peer(2);
    b.mesh.limit(Limits {
        tensor_elements: 4,
        boundary_format: Some(ElementFormat::Float32),
        message_bytes: 8,
        unit_parameters: Some(vec![1]),
        moments: varuna_plan::Moments::Momentum,
    });
    b.mesh.open(G, SECRET);
    let state = |unit, elements| {
        let header = StateHeader {
            unit: Unit(unit),
            id: StateId::INITIAL,
            decision: None,
            progress: varuna_plan::OptimizerProgress::START,
            elements,
        };
        Frame::State(header.encode().unwrap())
    };
    let refused = [
        Frame::Tensor(activation(0), vec![0.0; 5].into()),
        Frame::Tensor(activation(0), Packet::BFloat16(vec![0; 4])),
        Frame::Message(vec![0; 9]),
        state(1, 2),
        state(0, 3),
    ];
    for (i, frame) in refused.into_iter().enumerate() {
        let from = WorkerId(10 + i as u64);
        let mut socket = connected_by_hand(&b, from);
        Frame::Tensor(activation(0), vec![0.0; 4].into())
            .write(&mut socket)
            .unwrap();
        assert_eq!(
            b.link().recv(from, activation(0), later()),
            Ok(vec![0.0; 4].into())
        );
        let _ = frame.write(&mut socket);
        assert!(ended(socket), "frame {i}");
        b.closed(from);
    }
}
