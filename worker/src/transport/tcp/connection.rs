//! The threads of connections: accept and receive, dial and send.

use super::handshake::{Session, accept, dial};
use super::pending_handshakes::PendingHandshakes;
use super::queue::{Queue, Sent};
use super::{Open, PeerEvent, Shared};
use backon::{BackoffBuilder, ExponentialBuilder};
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use varuna_frames::{Frame, Incoming, Refusal, StateError, TransferHeader};
use varuna_plan::{Generation, Unit, WorkerId};

/// Pauses between two attempts to dial. A peer refuses until it knows the plan, typically for milliseconds.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(2))
    .with_max_delay(Duration::from_millis(100))
    .without_max_times();
/// Pause after a failed accept: without file descriptors it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

pub(super) fn accept_loop(shared: &Arc<Shared>, listener: &TcpListener) {
    for socket in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let socket = Arc::new(socket);
        let pending = match PendingHandshakes::begin(&shared.pending_handshakes, &socket) {
            Ok(pending) => pending,
            Err(error) => {
                tracing::debug!(%error, "a connection ended at once");
                continue;
            }
        };
        let own = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("peer-in".into()).spawn(move || {
            match accept(&own, pending, &socket) {
                Ok(Some((from, open, session))) => serve(&own, &open, from, (&socket, session)),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a connection was not accepted"),
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start a thread for a connection");
        }
    }
}

/// Receives frames until the connection ends.
fn serve(shared: &Shared, open: &Open, from: WorkerId, (socket, session): (&TcpStream, Session)) {
    let generation = open.generation;
    let input = BufReader::with_capacity(1 << 16, socket);
    // Below TLS, which reads 4 KiB at a time.
    let received = match session {
        Some(session) => receive(shared, open, from, session.on(input)),
        None => receive(shared, open, from, input),
    };
    let damaged = received
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::InvalidData);
    match received {
        Err(error) if damaged => {
            tracing::warn!(%generation, %from, %error, "a peer's connection is closed: what came is no frame");
        }
        ended => tracing::debug!(%generation, %from, why = ?ended.err(), "a peer's connection ended"),
    }
    // The generation holds another handle: without a shutdown the peer would not see the end.
    let _ = socket.shutdown(Shutdown::Both);
    report_loss(shared, open, from, damaged);
}

/// `damaged`: what came from the peer was no sound frame.
fn report_loss(shared: &Shared, open: &Open, peer: WorkerId, damaged: bool) {
    if open.lost(peer) {
        if damaged {
            (shared.emit)(PeerEvent::Damaged {
                generation: open.generation,
                from: peer,
            });
        }
        (shared.emit)(PeerEvent::Closed {
            generation: open.generation,
            peer,
        });
    }
}

fn receive(shared: &Shared, open: &Open, from: WorkerId, mut input: impl Read) -> io::Result<()> {
    let generation = open.generation;
    let limits = Arc::clone(&shared.limits.lock());
    let mut transfer: Option<Incoming> = None;
    loop {
        match Frame::read(&mut input, &limits)? {
            Frame::Tensor(tag, packet) => {
                // Fails after a fence. The connection stays, to notice the peer's end.
                let _ = open.mailbox.put(from, tag, packet, None);
            }
            Frame::Message(bytes) => {
                let message = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
                (shared.emit)(PeerEvent::Message {
                    generation,
                    from,
                    message,
                });
            }
            Frame::State(bytes) => transfer = Some(Incoming::announced(&bytes, &limits)?),
            Frame::UnitGradient(bytes) => transfer = Some(Incoming::gradient_announced(&bytes, &limits)?),
            Frame::PreparedGradient(bytes) => transfer = Some(Incoming::prepared_announced(&bytes, &limits)?),
            Frame::Part(unit, step, part) => {
                let incoming = transfer.as_mut().ok_or(StateError::Unannounced { unit, step })?;
                incoming.extend(unit, step, &part)?;
                (shared.emit)(PeerEvent::StateProgress {
                    generation,
                    from,
                    unit,
                });
            }
            Frame::End(unit, step, digest) => {
                let incoming = transfer.take().ok_or(StateError::Unannounced { unit, step })?;
                (shared.emit)(ended(
                    generation,
                    from,
                    incoming.finish(unit, step, &digest),
                    unit,
                )?);
            }
        }
    }
}

/// What a transfer that has ended is to the agent.
fn ended(
    generation: Generation,
    from: WorkerId,
    finished: Result<(TransferHeader, Vec<f32>), StateError>,
    unit: Unit,
) -> io::Result<PeerEvent> {
    Ok(match finished {
        Ok((TransferHeader::State(header), data)) => PeerEvent::State {
            generation,
            from,
            header,
            data,
        },
        Ok((TransferHeader::Gradient(header), data)) => PeerEvent::Gradient {
            generation,
            from,
            header,
            data,
        },
        Ok((TransferHeader::Prepared(header), data)) => PeerEvent::PreparedGradient {
            generation,
            from,
            header,
            data,
        },
        // The connection is sound: others may come.
        Err(why @ StateError::Digest { .. }) => PeerEvent::StateFailed {
            generation,
            from,
            unit,
            why,
        },
        Err(error) => return Err(error.into()),
    })
}

/// Dials until the peer accepts, then waits for the end of the connection.
pub(super) fn dial_loop(shared: &Arc<Shared>, open: &Arc<Open>, peer: WorkerId, address: &str) {
    let generation = open.generation;
    let mut backoff = BACKOFF.build();
    loop {
        match dial(shared, open, peer, address) {
            Ok(Ok(connection)) => return watch(shared, open, peer, connection),
            Ok(Err(Refusal::Generation)) => {}
            Ok(Err(why)) => {
                return (shared.emit)(PeerEvent::Refused {
                    generation,
                    peer,
                    why,
                });
            }
            Err(error) => tracing::debug!(%error, %generation, %peer, address, "a dial failed"),
        }
        let mut peers = open.peers.lock();
        if peers.ended {
            return;
        }
        open.closing
            .wait_for(&mut peers, backoff.next().unwrap_or_default());
        if peers.ended {
            return;
        }
    }
}

/// Starts the writer, then waits for the end of the connection: the acceptor sends nothing more, within TLS neither.
fn watch(shared: &Arc<Shared>, open: &Arc<Open>, peer: WorkerId, connection: (TcpStream, Session)) {
    let handle = connection.0.try_clone();
    watch_with(shared, open, peer, connection, handle);
}

/// The same with another handle of the socket, if there is one.
fn watch_with(
    shared: &Arc<Shared>,
    open: &Arc<Open>,
    peer: WorkerId,
    (mut socket, session): (TcpStream, Session),
    handle: io::Result<TcpStream>,
) {
    let generation = open.generation;
    match open.keep(handle) {
        Ok(true) => {}
        Ok(false) => return,
        // The peer has accepted this connection, and accepts no other one in this generation.
        Err(error) => {
            tracing::error!(%error, %peer, "cannot use a connection to a peer");
            return report_loss(shared, open, peer, false);
        }
    }
    let queue = Arc::new(Queue::default());
    let started = socket.try_clone().and_then(|writer| {
        let (own, queue) = (Arc::clone(shared), Arc::clone(&queue));
        std::thread::Builder::new()
            .name("peer-out".into())
            .spawn(move || {
                match session {
                    Some(session) => {
                        send_frames(&own, (generation, peer), &queue, session.on(&writer));
                    }
                    None => send_frames(&own, (generation, peer), &queue, &writer),
                }
                // Both the peer and the thread in `watch` see the end at once.
                let _ = writer.shutdown(Shutdown::Both);
            })
    });
    match started {
        Ok(_) => {
            open.peers.lock().outgoing.insert(peer, Arc::clone(&queue));
            (shared.emit)(PeerEvent::Connected { generation, peer });
            let _ = socket.read(&mut [0u8]);
        }
        Err(error) => tracing::error!(%error, %peer, "cannot start a thread to write to a peer"),
    }
    queue.close();
    let _ = socket.shutdown(Shutdown::Both);
    report_loss(shared, open, peer, false);
}

fn send_frames(shared: &Shared, to: (Generation, WorkerId), queue: &Queue, mut out: impl Write) {
    let (generation, to) = to;
    while let Some((frame, sent)) = queue.pop() {
        if frame.write(&mut out).is_err() {
            break;
        }
        match sent {
            Some(Sent::State(unit)) => (shared.emit)(PeerEvent::StateSent { generation, to, unit }),
            Some(Sent::Gradient(unit)) => (shared.emit)(PeerEvent::GradientSent { generation, to, unit }),
            None => {}
        }
    }
    queue.close();
}

#[cfg(test)]
mod tests {
    use super::super::Mesh;
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_connection_without_a_file_descriptor_is_told_as_closed() {
        let (generation, peer) = (Generation(1), WorkerId(2));
        let (tell, events) = channel();
        let told = move |event| drop(tell.send(event));
        let mesh = Mesh::listen(WorkerId(1), "127.0.0.1:0", told).unwrap();
        mesh.open(generation, "secret");
        let open = mesh.shared.open(generation).unwrap();
        let socket = TcpStream::connect(mesh.address()).unwrap();
        let refused = Err(io::Error::other("too many open files"));
        watch_with(&mesh.shared, &open, peer, (socket, None), refused);
        let event = events.try_recv();
        assert!(
            matches!(
                event,
                Ok(PeerEvent::Closed {
                    peer: WorkerId(2),
                    ..
                })
            ),
            "{event:?}"
        );
    }
}
