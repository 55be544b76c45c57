//! Connections whose peer has not proven itself: limits their number, and decides which of them makes room for a new one.
//!
//! Anyone who reaches a port can open connections and send nothing. Such connections must not keep legitimate peers out: a new connection
//! is always accepted, and if there is no room, the oldest connection of the source with the most connections is dropped. A legitimate peer
//! sends its hello at once, so it is the oldest only for the travel time of a packet; and it dials again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// All connections of a port whose peer has not proven itself, each with a handle that ends it.
#[derive(Debug)]
pub struct UnauthenticatedConnections<T> {
    max: usize,
    of_one_source: usize,
    /// Number of the next one.
    next: u64,
    /// Waiting connections by number, and so by age.
    waiting: BTreeMap<u64, (IpAddr, T)>,
}

impl<T> UnauthenticatedConnections<T> {
    /// No connections yet. At most `max` may exist at the same time, and at most `of_one_source` from one source.
    #[must_use]
    pub fn new(max: usize, of_one_source: usize) -> UnauthenticatedConnections<T> {
        UnauthenticatedConnections {
            max,
            of_one_source,
            next: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// Accepts a connection. Returns its number, and the connection that has to make room for it, if any.
    pub fn begin(&mut self, from: IpAddr, connection: T) -> (u64, Option<T>) {
        let source = source(from);
        let sources = self
            .waiting
            .iter()
            .map(|(number, (source, _))| (*number, *source));
        let displaced = displaced(sources, source, self.of_one_source, self.max);
        let displaced = displaced.and_then(|number| self.end(number));
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, (source, connection));
        (number, displaced)
    }

    /// A connection has ended, or its peer has proven itself. Returns its handle; none if it had to make room for another one.
    pub fn end(&mut self, number: u64) -> Option<T> {
        self.waiting.remove(&number).map(|(_, connection)| connection)
    }
}

/// The source of a connection. Networks are assigned by the first 64 bits of an IPv6 address, so all addresses that differ only in the rest
/// count as one source.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// The connection that has to make room for a new one of this source, if any. `waiting` is in order of age, the oldest first.
fn displaced(
    waiting: impl Iterator<Item = (u64, IpAddr)>,
    source: IpAddr,
    of_one_source: usize,
    max: usize,
) -> Option<u64> {
    // By source: the number of connections, and the oldest.
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
