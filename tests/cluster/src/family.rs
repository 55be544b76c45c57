//! The address family of a test cluster: either IPv4 only, or IPv6 only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// An address family. `node.sh` has the addresses of nodes and pods for each family.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The name of the family in the arguments of `node.sh`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "v4",
            Family::V6 => "v6",
        }
    }

    /// Address at which the API server of a cluster with nodes listens, and at which pods reach other services on this machine.
    #[must_use]
    pub fn bridge(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::new(10, 99, 0, 1).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, 1).into(),
        }
    }

    /// Options of `testcluster up` for the control plane of a cluster with nodes of this family.
    #[must_use]
    pub fn options(self) -> Vec<String> {
        let mut options = vec!["--bind".to_owned(), self.bridge().to_string()];
        if self == Family::V6 {
            // The default addresses are IPv4. The second address is the one at which pods find the API server.
            let more = [
                "--api-args",
                "--service-cluster-ip-range=fd00:96::/112",
                "--san",
                "fd00:96::1",
            ];
            options.extend(more.map(str::to_owned));
        }
        options
    }

    /// Why this machine cannot make a cluster of this family although it can make one with IPv4; none if it can.
    #[must_use]
    pub fn missing(self) -> Option<&'static str> {
        // A new network namespace starts with the default setting.
        let off = Path::new("/proc/sys/net/ipv6/conf/default/disable_ipv6");
        let is_on = std::fs::read_to_string(off).is_ok_and(|text| text.trim() == "0");
        (self == Family::V6 && !is_on).then_some("no IPv6 on this machine")
    }

    /// Whether an address is of this family.
    #[must_use]
    pub fn has(self, address: IpAddr) -> bool {
        address.is_ipv6() == (self == Family::V6)
    }
}
