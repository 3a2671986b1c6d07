//! Which addresses are outside the VPC of a target group.
//!
//! Such an address must be registered with the zone `all`, any other must not: AWS refuses both mistakes, and the whole request with
//! them. The VPC's ranges could be asked of EC2, which would take another right; so it is learnt from what listings and refusals say.
//!
//! Invariant: what AWS said of an address counts more than any guess.
//! Absent on purpose: forgetting one by one; what is known is small, and worth little.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Zone of a target that is outside the VPC.
pub(super) const ALL: &str = "all";
/// More addresses than targets that a load balancer takes by default, several times over.
const MOST: usize = 10_000;

/// Addresses that share fewer leading bits say nothing of each other.
const NEAR: u32 = 8;

/// What is known of addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct Zones {
    outside: BTreeMap<IpAddr, bool>,
}

impl Zones {
    /// A listing shows a target in `zone`.
    pub(super) fn listed(&mut self, address: IpAddr, zone: &str) {
        self.learn(address, zone == ALL);
    }

    /// It is known on which side an address is.
    pub(super) fn learn(&mut self, address: IpAddr, outside: bool) {
        if self.outside.len() >= MOST {
            self.outside.clear();
        }
        self.outside.insert(address, outside);
    }

    /// Whether an address is outside, as far as can be told: subnets are ranges, so the nearest known address says it best.
    pub(super) fn is_outside(&self, address: IpAddr) -> bool {
        let same = |other: &IpAddr| other.is_ipv4() == address.is_ipv4();
        let below = self.outside.range(..=address).next_back().filter(|(other, _)| same(other));
        let above = self.outside.range(address..).next().filter(|(other, _)| same(other));
        let near = below.into_iter().chain(above).map(|(other, outside)| (common_bits(*other, address), *outside));
        near.filter(|(bits, _)| *bits >= NEAR).max_by_key(|(bits, _)| *bits).is_some_and(|(_, outside)| outside)
    }
}

fn common_bits(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_nearest_known_address_says_it() {
        let mut zones = Zones::default();
        assert!(!zones.is_outside(ip("10.0.0.1")), "inside until something else is known");
        zones.listed(ip("100.64.0.9"), ALL);
        zones.listed(ip("10.0.3.7"), "eu-west-1a");
        assert!(zones.is_outside(ip("100.64.200.1")));
        assert!(zones.is_outside(ip("100.127.0.1")));
        assert!(!zones.is_outside(ip("10.0.200.1")));
        assert!(!zones.is_outside(ip("192.168.0.1")), "too far away to say anything");
        assert!(!zones.is_outside(ip("fd00::1")), "the other family says nothing");
        zones.learn(ip("10.0.200.1"), true);
        assert!(zones.is_outside(ip("10.0.200.1")));
        assert!(!zones.is_outside(ip("10.0.3.8")));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut zones = Zones::default();
        (0..=MOST as u32).for_each(|n| zones.learn(IpAddr::V4(n.into()), true));
        assert!(zones.outside.len() <= MOST);
    }
}
