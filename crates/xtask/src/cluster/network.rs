//! The cluster's addresses, and the cable between the host and the cluster's network namespace.
//!
//! The whole cluster lives in one network namespace. Its bridge, its firewall rules and its listening ports are therefore
//! invisible to the host and vanish with the last process. The host reaches the API server, pods and Services through one
//! veth pair and one route, which vanish too.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// An address range with its prefix length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    first: Ipv4Addr,
    prefix: u32,
}

/// All of the cluster's addresses; the ranges below are parts of it.
pub(crate) const RANGE: Range = Range { first: Ipv4Addr::new(10, 197, 0, 0), prefix: 16 };
pub(crate) const PODS: Range = Range { first: Ipv4Addr::new(10, 197, 0, 0), prefix: 20 };
pub(crate) const SERVICES: Range = Range { first: Ipv4Addr::new(10, 197, 128, 0), prefix: 20 };
/// The first Service address is always the API server's own.
pub(crate) const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 197, 128, 1);
pub(crate) const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 197, 128, 10);
pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(10, 197, 64, 2);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 197, 64, 1);
const CABLE_PREFIX: u32 = 30;

pub(crate) const HOST_INTERFACE: &str = "lockstep0";
const NODE_INTERFACE: &str = "eth0";

impl Range {
    pub(crate) fn overlaps(self, first: Ipv4Addr, mask: Ipv4Addr) -> bool {
        let common = self.mask() & mask.to_bits();
        self.first.to_bits() & common == first.to_bits() & common
    }

    fn mask(self) -> u32 {
        u32::MAX << (u32::BITS - self.prefix)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

/// Host side: a cable into the namespace of the process `pid`, and the route to the cluster.
pub(crate) fn connect(pid: u32) -> Result<()> {
    let pid = pid.to_string();
    ip(&["link", "add", HOST_INTERFACE, "type", "veth", "peer", "name", NODE_INTERFACE, "netns", &pid])?;
    ip(&["address", "add", &format!("{HOST}/{CABLE_PREFIX}"), "dev", HOST_INTERFACE])?;
    ip(&["link", "set", HOST_INTERFACE, "up"])?;
    ip(&["route", "add", &RANGE.to_string(), "via", &NODE.to_string(), "dev", HOST_INTERFACE])
}

/// Namespace side. There is no default route: nothing that a pod sends leaves the machine.
pub(crate) fn configure_node() -> Result<()> {
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", &format!("{NODE}/{CABLE_PREFIX}"), "dev", NODE_INTERFACE])?;
    ip(&["link", "set", NODE_INTERFACE, "up"])?;
    set_kernel_parameter("net/ipv4/ip_forward", "the kernel forwards no packets")?;
    // Packets between two pods on the bridge must pass kube-proxy's rules, or Services fail within the node.
    set_kernel_parameter("net/bridge/bridge-nf-call-iptables", "load the kernel module br_netfilter and start again")
}

fn set_kernel_parameter(name: &str, remedy: &str) -> Result<()> {
    fs::write(format!("/proc/sys/{name}"), "1").with_context(|| format!("cannot set {name}: {remedy}"))
}

fn ip(arguments: &[&str]) -> Result<()> {
    command::output(Command::new("ip").args(arguments)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(outer: Range, inner: Range) -> bool {
        inner.prefix >= outer.prefix && inner.first.to_bits() & outer.mask() == outer.first.to_bits()
    }

    #[test]
    fn the_parts_lie_in_the_range_and_apart_from_each_other() {
        assert!(within(RANGE, PODS) && within(RANGE, SERVICES));
        assert!(!PODS.overlaps(SERVICES.first, Ipv4Addr::from_bits(SERVICES.mask())));
        for address in [API_SERVICE, DNS_SERVICE] {
            assert!(SERVICES.overlaps(address, Ipv4Addr::BROADCAST));
        }
        for address in [NODE, HOST] {
            assert!(!PODS.overlaps(address, Ipv4Addr::BROADCAST) && !SERVICES.overlaps(address, Ipv4Addr::BROADCAST));
        }
    }

    #[test]
    fn ranges_overlap_when_one_contains_the_other() {
        let mask = |prefix: u32| Ipv4Addr::from_bits(u32::MAX << (32 - prefix));
        assert!(RANGE.overlaps(Ipv4Addr::new(10, 0, 0, 0), mask(8)));
        assert!(RANGE.overlaps(Ipv4Addr::new(10, 197, 3, 0), mask(24)));
        assert!(!RANGE.overlaps(Ipv4Addr::new(10, 198, 0, 0), mask(16)));
    }
}
