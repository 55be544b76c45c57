//! Addresses as text: `host:port`. An IPv6 host is in brackets, as in a URI. The same form is used in a hello, in plans and on command
//! lines. Names are resolved by the dialer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `host:port`. The host may be a name, an IPv4 address, or an IPv6 address with or without brackets.
#[must_use]
pub fn host_port(host: &str, port: u16) -> String {
    match host_ip(host) {
        Some(ip) => SocketAddr::new(ip, port).to_string(),
        None => format!("{host}:{port}"),
    }
}

/// Host and port of an address, the host without brackets. None if it is not such an address: it has no port, or it is an IPv6 address
/// whose end could be mistaken for one.
#[must_use]
pub fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let inside = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match inside {
        Some(inside) => inside.parse::<Ipv6Addr>().is_ok().then_some((inside, port)),
        None => (!host.is_empty() && !host.contains([':', '[', ']'])).then_some((host, port)),
    }
}

/// The loopback address of the address family of `peer` (`host:port`); IPv4's if that is a name.
#[must_use]
pub fn loopback_beside(peer: &str) -> IpAddr {
    match split(peer).and_then(|(host, _)| host_ip(host)) {
        Some(IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    }
}

/// The wildcard address of the family of `host`. For a name it is that of IPv6, which accepts connections of both families unless the
/// system is configured otherwise.
#[must_use]
pub fn any_beside(host: &str) -> IpAddr {
    match host_ip(host) {
        Some(IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        Some(IpAddr::V6(_)) | None => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn host_ip(host: &str) -> Option<IpAddr> {
    let inside = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    inside.unwrap_or(host).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(ip: IpAddr, port: u16) {
            let written = host_port(&ip.to_string(), port);
            prop_assert_eq!(written.parse::<SocketAddr>(), Ok(SocketAddr::new(ip, port)));
            let host = ip.to_string();
            prop_assert_eq!(split(&written), Some((host.as_str(), port)));
            prop_assert_eq!(host_port(&format!("[{ip}]"), port), written);
        }

        #[test]
        fn names_are_left_as_they_are(name in "[a-z][a-z0-9.-]{0,20}", port: u16) {
            let written = format!("{name}:{port}");
            prop_assert_eq!(host_port(&name, port), written.clone());
            prop_assert_eq!(split(&written), Some((name.as_str(), port)));
        }

        #[test]
        fn no_text_makes_it_fail(text in ".{0,40}") {
            let _ = (split(&text), loopback_beside(&text), any_beside(&text));
        }
    }

    #[test]
    fn an_address_without_brackets_or_port_is_none() {
        for text in [
            "::1:4000",
            "fd00::7:80",
            "[::1]",
            "host",
            ":80",
            "[host]:80",
            "[::1]x:80",
            "h:65536",
            "",
        ] {
            assert_eq!(split(text), None, "{text}");
        }
    }

    #[test]
    fn a_worker_listens_in_the_family_of_those_whom_it_reaches() {
        assert_eq!(loopback_beside("[::1]:7070").to_string(), "::1");
        assert_eq!(loopback_beside("[fd00::2]:7070").to_string(), "::1");
        assert_eq!(loopback_beside("10.1.2.3:7070").to_string(), "127.0.0.1");
        assert_eq!(loopback_beside("job-coordinator:7070").to_string(), "127.0.0.1");
        assert_eq!(any_beside("10.1.2.3").to_string(), "0.0.0.0");
        assert_eq!(any_beside("fd00::2").to_string(), "::");
        assert_eq!(any_beside("node").to_string(), "::");
    }
}
