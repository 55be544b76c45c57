//! The data plane over real sockets: which peers may connect, what arrives, and how the end of a peer is noticed.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use varuna_frames::{
    Answer, Frame, GradientHeader, Handshake, Hello, PreparedHeader, Refusal, Side, StateHeader,
    TransferHeader, VERSIONS, read_answer, read_proof, write_proof,
};
use varuna_plan::{Decision, Generation, StateId, Step, Unit, WorkerId};
use varuna_protocol::{Norms, PeerMessage, Versions};
use varuna_worker::transport::ring::Reducer;
use varuna_worker::transport::tcp::{Mesh, PeerEvent};
use varuna_worker::transport::{Link, LinkError, Tag};

const G: Generation = Generation(3);

struct Peer {
    id: WorkerId,
    mesh: Mesh,
    events: Receiver<PeerEvent>,
}

fn peer(id: u64) -> Peer {
    let (tell, events) = channel();
    let told = move |event| drop(tell.send(event));
    Peer {
        id: WorkerId(id),
        mesh: Mesh::listen(WorkerId(id), "127.0.0.1:0", told).unwrap(),
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
    fn connected(&self) {
        self.wait(|e| matches!(e, PeerEvent::Connected { generation: G, .. }).then_some(()));
    }
    fn link(&self) -> Arc<dyn Link> {
        self.mesh.link(G).unwrap()
    }
}

/// Peers that are all connected to each other in one generation.
fn mesh(count: u64) -> Vec<Peer> {
    let peers: Vec<Peer> = (1..=count).map(peer).collect();
    for a in &peers {
        a.mesh.open(G, "secret");
        for b in peers.iter().filter(|b| b.id != a.id) {
            a.mesh.dial(G, b.id, &b.mesh.address().to_string());
        }
    }
    for a in &peers {
        (1..count).for_each(|_| a.connected());
    }
    peers
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

#[test]
fn tensors_messages_and_states_arrive_as_they_were_sent() {
    let peers = mesh(2);
    let (a, b) = (&peers[0], &peers[1]);
    let big: Vec<f32> = (0..1_000_000u32).map(|i| i as f32).collect();
    let header = StateHeader {
        unit: Unit(4),
        id: StateId::INITIAL,
        decision: None,
        progress: varuna_plan::OptimizerProgress {
            adam_steps: 9,
            ..varuna_plan::OptimizerProgress::START
        },
        elements: big.len() as u64,
    };
    a.mesh.send_state(G, b.id, header, Box::new(big.clone()));
    a.link()
        .send(b.id, activation(1), vec![1.0, 2.0].into(), later())
        .unwrap();
    a.link()
        .send(b.id, activation(0), vec![].into(), later())
        .unwrap();
    let message = PeerMessage::Norm(Norms {
        step: Step(1),
        units: vec![],
        armed: Generation(0),
        save: true,
        store_busy: false,
    });
    a.mesh.send_message(G, b.id, &message);
    assert_eq!(b.link().recv(a.id, activation(0), later()), Ok(vec![].into()));
    assert_eq!(
        b.link().recv(a.id, activation(1), later()),
        Ok(vec![1.0, 2.0].into())
    );
    let (mut state, mut heard) = (None, None);
    b.wait(|event| {
        match event {
            PeerEvent::State { header, data, .. } => state = Some((header, data)),
            PeerEvent::Message { message, .. } => heard = Some(message),
            _ => {}
        }
        (state.is_some() && heard.is_some()).then_some(())
    });
    assert_eq!(state, Some((header, big)));
    assert_eq!(heard, Some(message));
}

#[test]
fn gradients_arrive_after_the_state_in_order() {
    let peers = mesh(2);
    let (a, b) = (&peers[0], &peers[1]);
    let unit = Unit(4);
    let state = StateHeader {
        unit,
        id: StateId::INITIAL,
        decision: None,
        progress: varuna_plan::OptimizerProgress::START,
        elements: 0,
    };
    a.mesh.send_state(G, b.id, state, Box::new(vec![1.0; 600_000]));
    let mut at = StateId::INITIAL;
    let mut sent = Vec::new();
    for step in 1..=3u16 {
        let decision = Decision::conclude(at, G, &[], None);
        at = decision.id;
        let gradient = vec![f32::from(step); 300_000 * usize::from(step - 1)];
        let header = GradientHeader {
            unit,
            decision,
            elements: gradient.len() as u64,
        };
        sent.push((header, gradient.clone()));
        a.mesh
            .send_gradient(G, b.id, TransferHeader::Gradient(header), gradient);
    }
    let (mut states, mut arrived) = (0, Vec::new());
    b.wait(|event| {
        match event {
            PeerEvent::State { .. } => states += 1,
            PeerEvent::Gradient { header, data, .. } => {
                assert_eq!(states, 1, "the state comes first");
                arrived.push((header, data));
            }
            _ => {}
        }
        (arrived.len() == 3).then_some(())
    });
    assert_eq!(arrived, sent);
    gradients_sent(a, b.id, Unit(4), 3);
}

/// Waits until the peer was told that this many gradients of the unit were sent.
fn gradients_sent(from: &Peer, to: WorkerId, of: Unit, count: usize) {
    let mut sent = 0;
    from.wait(|event| {
        let is_one =
            matches!(event, PeerEvent::GradientSent { to: peer, unit, .. } if peer == to && unit == of);
        sent += usize::from(is_one);
        (sent == count).then_some(())
    });
}

/// The gradients for a spare copy are sent before their steps are decided.
#[test]
fn spare_copy_gradients_arrive_with_step_and_norm() {
    let peers = mesh(2);
    let (a, b) = (&peers[0], &peers[1]);
    let unit = Unit(4);
    let state = StateHeader {
        unit,
        id: StateId::INITIAL,
        decision: None,
        progress: varuna_plan::OptimizerProgress::START,
        elements: 0,
    };
    a.mesh.send_state(G, b.id, state, Box::new(vec![1.0; 600_000]));
    let mut sent = Vec::new();
    for step in 0..3u16 {
        let gradient = vec![f32::from(step); 300_000 * usize::from(step)];
        let header = PreparedHeader {
            unit,
            run_gen: G,
            step: Step(u64::from(step)),
            norm: varuna_plan::state::UnitNorm {
                norm2: f64::from(step) + 0.5,
                overflow: step == 0,
                loss: 1.5,
                eval_loss: None,
                before: varuna_plan::OptimizerProgress::START,
            },
            elements: gradient.len() as u64,
        };
        sent.push((header, gradient.clone()));
        a.mesh
            .send_gradient(G, b.id, TransferHeader::Prepared(header), gradient);
    }
    let (mut states, mut arrived) = (0, Vec::new());
    b.wait(|event| {
        match event {
            PeerEvent::State { .. } => states += 1,
            PeerEvent::PreparedGradient { header, data, .. } => {
                assert_eq!(states, 1, "the copy comes first");
                arrived.push((header, data));
            }
            _ => {}
        }
        (arrived.len() == 3).then_some(())
    });
    assert_eq!(arrived, sent);
    gradients_sent(a, b.id, Unit(4), 3);
}

#[test]
fn the_ring_reduces_over_sockets() {
    let peers = mesh(3);
    let ids: Vec<WorkerId> = peers.iter().map(|p| p.id).collect();
    let threads: Vec<_> = peers
        .iter()
        .map(|p| {
            let (link, ids, me) = (p.link(), ids.clone(), p.id);
            std::thread::spawn(move || {
                let mut reducer = Reducer::start(link, me).unwrap();
                for unit in [me.0 as u32 % 2, 1 - me.0 as u32 % 2] {
                    reducer.begin(
                        Step(1),
                        Unit(unit),
                        ids.clone(),
                        vec![me.0 as f32 + unit as f32; 1001],
                        later(),
                    );
                }
                let mut done = [reducer.wait().unwrap(), reducer.wait().unwrap()];
                done.sort_by_key(|(u, _)| *u);
                done
            })
        })
        .collect();
    for thread in threads {
        let [(_, first), (_, second)] = thread.join().unwrap();
        assert!(first.iter().all(|v| *v == 6.0) && second.iter().all(|v| *v == 9.0));
    }
}

#[test]
fn strangers_and_workers_of_another_generation_are_refused() {
    let (a, b) = (peer(1), peer(2));
    b.mesh.open(G, "secret");
    a.mesh.open(G, "guessed");
    a.mesh.dial(G, b.id, &b.mesh.address().to_string());
    let why = a.wait(|e| {
        if let PeerEvent::Refused { why, .. } = e {
            Some(why)
        } else {
            None
        }
    });
    assert_eq!(why, Refusal::Secret);
    // Another generation is not refused finally, because it may become known later, as happens here.
    let next = Generation(4);
    a.mesh.open(next, "other");
    a.mesh.dial(next, b.id, &b.mesh.address().to_string());
    b.mesh.open(next, "other");
    a.wait(|e| matches!(e, PeerEvent::Connected { generation, .. } if generation == next).then_some(()));
}

/// Opens a connection to a worker like a build with these versions. Returns the version that is used then.
fn connect_speaking(to: &Peer, from: WorkerId, versions: Versions) -> Result<u32, Refusal> {
    let mut socket = TcpStream::connect(to.mesh.address()).unwrap();
    let hello = Hello {
        versions,
        generation: G,
        from,
        to: to.id,
        nonce: [7; 32],
        encrypted: false,
    };
    hello.write(&mut socket).unwrap();
    let Answer { version, nonce } = read_answer(&mut socket).unwrap()?;
    let theirs = read_proof(&mut socket).unwrap();
    let handshake = Handshake {
        hello,
        version,
        nonce,
        binding: None,
    };
    assert!(handshake.proves("secret", Side::Acceptor, &theirs));
    write_proof(&mut socket, &handshake.prove("secret", Side::Dialer)).unwrap();
    let tag = activation(u32::try_from(from.0).unwrap());
    Frame::Tensor(tag, vec![1.0].into()).write(&mut socket).unwrap();
    assert_eq!(to.link().recv(from, tag, later()), Ok(vec![1.0].into()));
    Ok(version)
}

#[test]
fn neighbouring_releases_connect_and_others_get_the_range() {
    let b = peer(2);
    b.mesh.open(G, "secret");
    let Versions { oldest, newest } = VERSIONS;
    let speaks = |oldest, newest| Versions { oldest, newest };
    let older = connect_speaking(&b, WorkerId(3), speaks(oldest - 1, oldest));
    assert_eq!(older, Ok(oldest));
    let newer = connect_speaking(&b, WorkerId(4), speaks(newest, newest + 1));
    assert_eq!(newer, Ok(newest));
    let much_newer = connect_speaking(&b, WorkerId(5), speaks(newest + 1, newest + 2));
    assert_eq!(much_newer, Err(Refusal::Versions(VERSIONS)), "what b speaks");
}

#[test]
fn incompatible_peer_is_given_up_for_one_generation() {
    let a = peer(1);
    a.mesh.open(G, "secret");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    a.mesh.dial(G, WorkerId(2), &address);
    let (mut socket, _) = other.accept().unwrap();
    assert!(Hello::read(&mut socket).unwrap().is_ok());
    // The answer of a release whose oldest version is too new: its newest version, then its oldest.
    let (oldest, newest) = (VERSIONS.newest + 1, VERSIONS.newest + 2);
    let mut answer = vec![3];
    answer.extend([newest, oldest].map(u32::to_le_bytes).concat());
    socket.write_all(&answer).unwrap();
    let why = a.wait(|e| match e {
        PeerEvent::Refused { why, .. } => Some(why),
        _ => None,
    });
    assert_eq!(why, Refusal::Versions(Versions { oldest, newest }));
    // It is tried again in the next generation, because the coordinator may have no other worker.
    let next = Generation(G.0 + 1);
    a.mesh.open(next, "secret");
    a.mesh.dial(next, WorkerId(2), &address);
    let (mut socket, _) = other.accept().unwrap();
    let (hello, _) = Hello::read(&mut socket).unwrap().unwrap();
    assert_eq!(hello.generation, next);
}

#[test]
fn the_end_of_a_peer_is_told_once_and_ends_every_wait() {
    let mut peers = mesh(2);
    let b = peers.pop().unwrap();
    let a = &peers[0];
    let link = a.link();
    let from = b.id;
    let waiter = std::thread::spawn(move || link.recv(from, activation(0), later()));
    drop(b);
    a.wait(|e| matches!(e, PeerEvent::Closed { generation: G, peer } if peer == from).then_some(()));
    assert_eq!(waiter.join().unwrap(), Err(LinkError::Closed(from)));
    assert!(a.events.try_recv().is_err(), "told once");
}

#[test]
fn fence_ends_waits_and_close_informs_peers() {
    let peers = mesh(2);
    let (a, b) = (&peers[0], &peers[1]);
    let (link, from) = (a.link(), b.id);
    let waiter = std::thread::spawn(move || link.recv(from, activation(0), later()));
    a.link().abort();
    assert_eq!(waiter.join().unwrap(), Err(LinkError::Aborted));
    assert_eq!(
        a.link().send(b.id, activation(0), vec![].into(), later()),
        Err(LinkError::Aborted)
    );
    a.mesh.close(G);
    b.wait(|e| matches!(e, PeerEvent::Closed { generation: G, .. }).then_some(()));
    assert!(a.mesh.link(G).is_none());
}

#[test]
fn a_silent_peer_is_waited_for_until_the_deadline() {
    let peers = mesh(2);
    let soon = Instant::now() + Duration::from_millis(30);
    let outcome = peers[0].link().recv(peers[1].id, activation(0), soon);
    assert_eq!(
        outcome,
        Err(LinkError::Deadline {
            from: peers[1].id,
            tag: activation(0)
        })
    );
}
