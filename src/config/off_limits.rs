//! Addresses that no registry can have: those at which a cloud tells its machines who they are, credentials included.
//!
//! Who writes the configuration must not be able to make Lockstep talk to the metadata service of its node.
//!
//! Invariant: an address is refused in whatever form IPv6 can wrap it.
//! Absent on purpose: names; one that leads to such an address (`metadata.google.internal`) is refused once it is looked up (`reach`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services of AWS, Google Cloud, Azure, Oracle, OpenStack, DigitalOcean, Tencent and others are link-local (RFC 3927, RFC 4291).
const LINK_LOCAL: &str = "a link-local address";
/// AWS keeps this network for what its machines ask of it: the metadata service at `::254`, the agent of EKS Pod Identity at `::23`
/// ("Use the Instance Metadata Service" in the user guide of EC2, "EKS Pod Identity" in that of EKS).
const AWS: [u16; 2] = [0xfd00, 0xec2];
const AWS_METADATA: &str = "where AWS keeps the credentials of its machines";

/// Metadata services that are not link-local, with what is said of them.
const ELSEWHERE: [(IpAddr, &str); 8] = [
    // "What is IP address 168.63.129.16?" in Azure's documentation: goal state and certificates of the machine.
    (IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), "where Azure keeps what its machines run with"),
    // The data source of cloud-init for Alibaba Cloud, which has both.
    (IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), ALIBABA),
    (IpAddr::V6(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200)), ALIBABA),
    // "Retrieve Predefined Instance Metadata" of Oracle Cloud at Customer; the other is in the signer of Oracle's SDKs.
    (IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)), ORACLE),
    (IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)), ORACLE),
    // "About VM metadata" of Compute Engine, for machines that have IPv6 alone.
    (IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)), "where Google Cloud keeps the credentials of its machines"),
    // The data source of cloud-init for Scaleway.
    (IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)), "where Scaleway keeps the data of its machines"),
    // The data source of cloud-init for Akamai's cloud.
    (IpAddr::V6(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1)), "where Akamai keeps the data of its machines"),
];
const ALIBABA: &str = "where Alibaba Cloud keeps the credentials of its machines";
const ORACLE: &str = "where Oracle keeps the credentials of its machines";

/// What is at an address that nothing may connect to; `None` where a registry may be.
pub fn off_limits(address: IpAddr) -> Option<&'static str> {
    let known = |address: IpAddr| ELSEWHERE.iter().find(|(other, _)| *other == address).map(|(_, what)| *what);
    match address {
        IpAddr::V4(v4) => v4.is_link_local().then_some(LINK_LOCAL).or_else(|| known(address)),
        IpAddr::V6(v6) => {
            let aws = v6.segments()[..2] == AWS;
            let own = v6.is_unicast_link_local().then_some(LINK_LOCAL).or(aws.then_some(AWS_METADATA)).or_else(|| known(address));
            own.or_else(|| wrapped(v6).and_then(|inner| off_limits(inner.into())))
        }
    }
}

/// The IPv4 address to which a packet for `address` may be turned on its way.
fn wrapped(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let all = address.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match all {
        // Mapped (RFC 4291), compatible (the same, before), translated (RFC 2765), NAT64 (RFC 6052, RFC 8215).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low] => Some(joined(high, low)),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => Some(joined(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("169.254.169.254")]
    #[case("169.254.0.1")]
    #[case("fe80::a9fe:a9fe")]
    #[case("168.63.129.16")]
    #[case("100.100.100.200")]
    #[case("192.0.0.192")]
    #[case("fd00:ec2::254")]
    #[case("fd00:ec2::23")]
    #[case("fd20:ce::254")]
    #[case("fd00:c1::a9fe:a9fe")]
    #[case("fd00:42::42")]
    #[case("fd00:a9fe:a9fe::1")]
    #[case("fd00:100::100:200")]
    #[case::mapped("::ffff:169.254.169.254")]
    #[case::mapped_outlier("::ffff:168.63.129.16")]
    #[case::compatible("::169.254.169.254")]
    #[case::translated("::ffff:0:169.254.169.254")]
    #[case::nat64("64:ff9b::169.254.169.254")]
    #[case::nat64_of_a_site("64:ff9b:1::100.100.100.200")]
    #[case::six_to_four("2002:a9fe:a9fe::1")]
    fn refused(#[case] address: IpAddr) {
        assert!(off_limits(address).is_some());
    }

    #[rstest]
    #[case("10.0.0.1")]
    #[case("127.0.0.1")]
    #[case("168.63.129.17")]
    #[case("100.100.100.201")]
    #[case("fd00::1")]
    #[case("fd00:ec3::254")]
    #[case("fd20:ce::255")]
    #[case("::1")]
    #[case::nat64("64:ff9b::10.0.0.1")]
    fn taken(#[case] address: IpAddr) {
        assert_eq!(off_limits(address), None);
    }
}
