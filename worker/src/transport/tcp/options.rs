//! Socket options of a connection. If a peer's machine is gone, or only one direction of the network works, the peer sends no end of the
//! connection. Without these options the connection, its thread and the data that waits to be sent would stay as long as the generation.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::TcpStream;
use std::time::Duration;

/// Silence after which the kernel asks whether the peer is still there.
const IDLE: Duration = Duration::from_secs(10);
/// Time between two such questions.
const INTERVAL: Duration = Duration::from_secs(5);
/// Questions without an answer until the connection ends. The system counts them where the socket has no time limit for its data.
const TRIES: u32 = 4;
/// How long what was sent may stay without an answer, or wait for room at the receiver. A receiver whose mailbox is full receives nothing
/// until it has computed a micro-batch. That is not a fault, and takes less time than this. (The kernel gives up after about 15 minutes by
/// itself.)
const UNSENT: Duration = Duration::from_mins(5);

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The side that sends frames.
    Dialer,
    /// It sends nothing after the handshake, so only keep-alive probes can find a dead peer.
    Acceptor,
}

/// Sets the options of a new connection.
pub(super) fn set(socket: &TcpStream, end: End) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(INTERVAL);
    socket.set_tcp_keepalive(&keepalive.with_retries(TRIES))?;
    match end {
        End::Dialer => socket.set_tcp_user_timeout(Some(UNSENT)),
        // It would take the place of the number of questions.
        End::Acceptor => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mesh, PeerEvent};
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use varuna_plan::{Generation, Unit, WorkerId};
    use varuna_protocol::PeerMessage;

    const G: Generation = Generation(1);

    fn mesh(id: u64) -> (Mesh, Receiver<PeerEvent>) {
        let (tell, events) = channel();
        let told = move |event| drop(tell.send(event));
        let mesh = Mesh::listen(WorkerId(id), "127.0.0.1:0", told).unwrap();
        mesh.open(G, "secret");
        (mesh, events)
    }

    /// The options of a worker's only connection: keepalive, its idle time, interval and number of probes, and the time that data may wait.
    fn options(mesh: &Mesh) -> Option<(bool, Duration, Duration, u32, Option<Duration>)> {
        let open = mesh.shared.open(G).unwrap();
        let peers = open.peers.lock();
        let [socket] = peers.sockets.as_slice() else {
            return None;
        };
        assert!(socket.nodelay().unwrap());
        let socket = SockRef::from(socket);
        Some((
            socket.keepalive().unwrap(),
            socket.tcp_keepalive_time().unwrap(),
            socket.tcp_keepalive_interval().unwrap(),
            socket.tcp_keepalive_retries().unwrap(),
            socket.tcp_user_timeout().unwrap(),
        ))
    }

    #[test]
    fn silent_peer_is_probed_by_both_ends() {
        let (dialer, events) = mesh(1);
        let (acceptor, arrived) = mesh(2);
        dialer.dial(G, WorkerId(2), &acceptor.address().to_string());
        let connected = events.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(matches!(connected, PeerEvent::Connected { .. }));
        let asking = (true, IDLE, INTERVAL, TRIES);
        let with = |unsent| Some((asking.0, asking.1, asking.2, asking.3, unsent));
        assert_eq!(options(&dialer), with(Some(UNSENT)));
        // When data arrives, the acceptor has accepted the connection.
        dialer.send_message(G, WorkerId(2), &PeerMessage::Fetch { unit: Unit(0) });
        let arrived = arrived.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(matches!(arrived, PeerEvent::Message { .. }));
        assert_eq!(options(&acceptor), with(None));
    }
}
