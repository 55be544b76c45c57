//! Connections whose peer has not proven itself: how many there may be, and which of them makes room for a new one.
//!
//! Anyone who reaches the port can open connections and say nothing. They must not keep true peers out: a new connection is
//! always let in, and where there is no room the oldest one of the source with the most goes. A true peer says its hello at
//! once, so it is the oldest only for as long as a packet travels; and it dials again.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::Arc;

/// Greetings at the same time. Each has a thread and a file descriptor.
const MAX: usize = 256;
/// Of them from one source. All workers of a node come from one, and dial together when a plan comes.
const OF_ONE_SOURCE: usize = 128;

/// All connections whose greeting has not ended.
#[derive(Default)]
pub(super) struct Greetings(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Number of the next greeting.
    next: u64,
    /// By number, so by age.
    sockets: BTreeMap<u64, (IpAddr, Arc<TcpStream>)>,
}

/// A connection whose peer has not proven itself.
pub(super) struct Greeting {
    all: Arc<Greetings>,
    number: u64,
}

impl Greetings {
    /// Lets a connection in, and closes another one if there is no room for both.
    pub(super) fn begin(all: &Arc<Greetings>, socket: &Arc<TcpStream>) -> io::Result<Greeting> {
        let source = source(socket.peer_addr()?.ip());
        let mut waiting = all.0.lock();
        let sources = waiting
            .sockets
            .iter()
            .map(|(number, (source, _))| (*number, *source));
        let displaced = displaced(sources, source, OF_ONE_SOURCE, MAX);
        if let Some((_, socket)) = displaced.and_then(|number| waiting.sockets.remove(&number)) {
            // An error means that its peer has closed it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.sockets.insert(number, (source, Arc::clone(socket)));
        Ok(Greeting {
            all: Arc::clone(all),
            number,
        })
    }
}

impl Greeting {
    /// Ends the greeting: the peer has proven itself. False: it had to make room for another one.
    pub(super) fn end(self) -> bool {
        self.all.0.lock().sockets.remove(&self.number).is_some()
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.all.0.lock().sockets.remove(&self.number);
    }
}

/// Who can choose the rest of an address of version 6 is one source: networks are given out by their first 64 bits.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Which greeting makes room for a new one of this source, if one has to. `waiting` is in order of age, the oldest first.
fn displaced(
    waiting: impl Iterator<Item = (u64, IpAddr)>,
    source: IpAddr,
    of_one_source: usize,
    max: usize,
) -> Option<u64> {
    // Of each source: how many, and the oldest.
    let mut sources: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
    let mut all = 0;
    for (number, source) in waiting {
        all += 1;
        sources.entry(source).or_insert((0, number)).0 += 1;
    }
    match sources.get(&source) {
        Some((count, oldest)) if *count >= of_one_source => Some(*oldest),
        _ if all < max => None,
        _ => sources
            .values()
            .max_by_key(|(count, _)| *count)
            .map(|(_, oldest)| *oldest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_oldest_of_the_most_frequent_source_makes_room() {
        let (a, b, c) = (ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.3"));
        let waiting = [(1, b), (2, a), (5, a), (6, a), (9, b)];
        let who = |source, of_one, max| displaced(waiting.into_iter(), source, of_one, max);
        assert_eq!(who(c, 4, 6), None, "there is room");
        assert_eq!(
            who(c, 4, 5),
            Some(2),
            "a flood makes room, the quiet source does not"
        );
        assert_eq!(who(b, 4, 5), Some(2));
        assert_eq!(who(a, 3, 6), Some(2), "the source has its share");
        assert_eq!(who(b, 2, 6), Some(1));
        assert_eq!(displaced([].into_iter(), a, 4, 5), None);
    }

    #[test]
    fn addresses_of_one_network_are_one_source() {
        assert_eq!(source(ip("2001:db8::1")), source(ip("2001:db8::ffff:2")));
        assert_ne!(source(ip("2001:db8:0:1::1")), source(ip("2001:db8:0:2::1")));
        assert_eq!(source(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(source(ip("10.0.0.1")), source(ip("10.0.0.2")));
    }
}
