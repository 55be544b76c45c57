//! Encryption between workers: it transports the same as the plain data plane, and prevents downgrades and men in the middle.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use varuna_frames::{
    Answer, HELLO_BYTES, Hello, Refusal, StateHeader, Tls, VERSIONS, read_answer, read_proof, write_answer,
    write_proof,
};
use varuna_plan::{Generation, StateId, Step, Unit, WorkerId};
use varuna_worker::transport::tcp::{Mesh, PeerEvent};
use varuna_worker::transport::{Link, Tag};

const G: Generation = Generation(3);
const PATIENCE: Duration = Duration::from_secs(60);

struct Peer {
    id: WorkerId,
    mesh: Mesh,
    events: Receiver<PeerEvent>,
}

fn peer(id: u64, encrypts: bool) -> Peer {
    let (tell, events) = channel();
    let told = move |event| drop(tell.send(event));
    let mesh = Mesh::listen(WorkerId(id), "127.0.0.1:0", told).unwrap();
    if encrypts {
        mesh.encrypt().unwrap();
    }
    mesh.open(G, "secret");
    Peer {
        id: WorkerId(id),
        mesh,
        events,
    }
}

impl Peer {
    fn next(&self) -> PeerEvent {
        self.events.recv_timeout(PATIENCE).expect("the event comes")
    }
    fn dial(&self, to: WorkerId, address: SocketAddr) {
        self.mesh.dial(G, to, &address.to_string());
    }
    /// The outcome of a dial.
    fn outcome(&self) -> Result<(), Refusal> {
        match self.next() {
            PeerEvent::Connected { .. } => Ok(()),
            PeerEvent::Refused { why, .. } => Err(why),
            other => panic!("{other:?}"),
        }
    }
    fn link(&self) -> Arc<dyn Link> {
        self.mesh.link(G).unwrap()
    }
}

fn activation(micro_batch: u32) -> Tag {
    Tag::Activation {
        stage: 0,
        step: Step(1),
        micro_batch,
    }
}

#[test]
fn large_encrypted_transfers_go_both_ways() {
    const FRAMES: u32 = 24;
    const ELEMENTS: usize = 1_000_003;
    let peers = [peer(1, true), peer(2, true)];
    let pairs = [(&peers[0], &peers[1]), (&peers[1], &peers[0])];
    for (a, b) in pairs {
        a.dial(b.id, b.mesh.address());
    }
    peers.iter().for_each(|p| p.outcome().unwrap());
    let later = Instant::now() + 2 * PATIENCE;
    let value = |from: WorkerId, frame: u32| from.0 as f32 * 100.0 + frame as f32;
    std::thread::scope(|scope| {
        for (a, b) in pairs {
            let data = vec![a.id.0 as f32; 10 * ELEMENTS];
            let header = StateHeader {
                unit: Unit(4),
                id: StateId::INITIAL,
                decision: None,
                progress: varuna_plan::OptimizerProgress {
                    adam_steps: 9,
                    ..varuna_plan::OptimizerProgress::START
                },
                elements: data.len() as u64,
            };
            a.mesh.send_state(G, b.id, header, Box::new(data));
            let (from, to, sending, receiving) = (a.id, b.id, a.link(), b.link());
            scope.spawn(move || {
                for frame in 0..FRAMES {
                    let values = vec![value(from, frame); ELEMENTS];
                    let sent = sending.send(to, activation(frame), values.into(), later);
                    sent.unwrap();
                }
            });
            scope.spawn(move || {
                for frame in 0..FRAMES {
                    let packet = receiving.recv(from, activation(frame), later).unwrap();
                    assert!(packet == vec![value(from, frame); ELEMENTS].into());
                }
            });
        }
    });
    for (a, b) in pairs {
        let data = loop {
            match b.next() {
                PeerEvent::State { data, .. } => break data,
                PeerEvent::StateProgress { .. } | PeerEvent::StateSent { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(data.len() == 10 * ELEMENTS && data.iter().all(|v| *v == a.id.0 as f32));
    }
}

#[test]
fn both_connections_notice_an_encrypted_peers_end() {
    let (a, b) = (peer(1, true), peer(2, true));
    a.dial(b.id, b.mesh.address());
    a.outcome().unwrap();
    drop(b);
    assert!(matches!(a.next(), PeerEvent::Closed { generation: G, .. }));
}

#[test]
fn who_encrypts_and_who_does_not_refuse_each_other() {
    for encrypts in [true, false] {
        let (a, b) = (peer(1, encrypts), peer(2, !encrypts));
        a.dial(b.id, b.mesh.address());
        assert_eq!(a.outcome(), Err(Refusal::Encryption));
        assert!(b.events.try_recv().is_err(), "nobody has come");
    }
    let said = Refusal::Encryption.to_string();
    assert!(said.contains("network.encryption"), "{said}");
}

#[test]
fn an_answer_in_the_clear_gets_no_proof_in_the_clear() {
    let a = peer(1, true);
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    a.dial(WorkerId(2), impostor.local_addr().unwrap());
    let mut socket = impostor.accept().unwrap().0;
    assert!(Hello::read(&mut socket).unwrap().unwrap().0.encrypted);
    let answer = Answer {
        version: VERSIONS.newest,
        nonce: [3; 32],
    };
    write_answer(&mut socket, Ok(answer)).unwrap();
    let mut next = [0; 2];
    socket.read_exact(&mut next).unwrap();
    assert_eq!(next, [22, 3], "the first record of a TLS handshake");
    write_proof(&mut socket, &[3; 32]).unwrap();
    // The dialer closes the connection, and connects again.
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest);
    assert!(Hello::read(&mut impostor.accept().unwrap().0).unwrap().is_ok());
    assert!(a.events.try_recv().is_err());
}

/// A man in the middle. He forwards the handshakes of both sides, and if they encrypt, has a TLS session with each.
fn in_the_middle(of: SocketAddr, encrypts: bool) -> (SocketAddr, JoinHandle<std::io::Result<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let man = std::thread::spawn(move || {
        let (mut dialer, mut acceptor) = (listener.accept()?.0, TcpStream::connect(of)?);
        for socket in [&dialer, &acceptor] {
            socket.set_read_timeout(Some(PATIENCE))?;
        }
        let mut hello = [0; HELLO_BYTES];
        dialer.read_exact(&mut hello)?;
        acceptor.write_all(&hello)?;
        write_answer(&mut dialer, read_answer(&mut acceptor)?)?;
        let mut heard = vec![0; 64];
        if encrypts {
            let own = Tls::new().unwrap();
            let (mut to_dialer, mut to_acceptor) = (own.accept(dialer)?, own.dial(acceptor)?);
            write_proof(&mut to_dialer, &read_proof(&mut to_acceptor)?)?;
            write_proof(&mut to_acceptor, &read_proof(&mut to_dialer)?)?;
            to_dialer.read_exact(&mut heard)?;
        } else {
            write_proof(&mut dialer, &read_proof(&mut acceptor)?)?;
            write_proof(&mut acceptor, &read_proof(&mut dialer)?)?;
            dialer.read_exact(&mut heard)?;
        }
        Ok(heard)
    });
    (address, man)
}

#[test]
fn man_in_the_middle_gets_no_proof_with_encryption() {
    let (a, b) = (peer(1, false), peer(2, false));
    let (address, man) = in_the_middle(b.mesh.address(), false);
    a.dial(b.id, address);
    assert_eq!(a.outcome(), Ok(()), "why there is a switch");
    let later = Instant::now() + PATIENCE;
    a.link()
        .send(b.id, activation(0), vec![1.5; 8].into(), later)
        .unwrap();
    let heard = man.join().unwrap().unwrap();
    assert_eq!(heard[32..36], 1.5f32.to_le_bytes());

    let (a, b) = (peer(1, true), peer(2, true));
    let (address, man) = in_the_middle(b.mesh.address(), true);
    a.dial(b.id, address);
    assert_eq!(
        a.outcome(),
        Err(Refusal::Secret),
        "b's proof is of another session"
    );
    assert!(man.join().unwrap().is_err(), "the dialer's proof never came");
    assert!(b.events.try_recv().is_err(), "nobody has come");
    // Without him they connect.
    let (c, d) = (peer(3, true), peer(4, true));
    c.dial(d.id, d.mesh.address());
    assert_eq!(c.outcome(), Ok(()));
}
