//! Which addresses a driver may connect to, and how their names are looked up.
//!
//! Who writes the configuration must not be able to make Lockstep talk to a node's metadata service, by address or by name.
//!
//! Invariant: no driver connects to a link-local or metadata address, whatever name leads there.
//! Absent on purpose: a cache of names; a registry's address may change at any time and lookups are rare.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// The metadata service of AWS over IPv6, which is not link-local.
const AWS_METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Looks names up for an HTTP client, without what is forbidden.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resolver;

/// Why there is no address.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The name cannot be looked up.
    #[error("{0} cannot be looked up: {1}")]
    Lookup(String, std::io::Error),
    /// Nothing is left of what the name means.
    #[error("{0} means a link-local address; those are refused")]
    Forbidden(String),
}

/// Whether nothing may connect there.
pub fn is_forbidden(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => {
            let embedded = address.to_ipv4().is_some_and(|inner| inner.is_link_local());
            address.is_unicast_link_local() || address == AWS_METADATA || embedded
        }
    }
}

/// The addresses that `host` means and that may be connected to.
pub async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, ReachError> {
    let found = tokio::net::lookup_host((host, port)).await.map_err(|error| ReachError::Lookup(host.to_owned(), error))?;
    let allowed: Vec<_> = found.filter(|address| !is_forbidden(address.ip())).collect();
    if allowed.is_empty() { Err(ReachError::Forbidden(host.to_owned())) } else { Ok(allowed) }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // The client puts its own port in.
            let found = look_up(name.as_str(), 0).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("169.254.169.254", true)]
    #[case("169.254.0.1", true)]
    #[case("::ffff:169.254.169.254", true)]
    #[case("::169.254.169.254", true)]
    #[case("fe80::1", true)]
    #[case("fd00:ec2::254", true)]
    #[case("10.0.0.1", false)]
    #[case("127.0.0.1", false)]
    #[case("fd00::1", false)]
    #[case("::1", false)]
    fn forbidden_addresses(#[case] address: IpAddr, #[case] forbidden: bool) {
        assert_eq!(is_forbidden(address), forbidden);
    }

    #[tokio::test]
    async fn a_name_that_means_only_forbidden_ones_means_nothing() {
        let found = look_up("169.254.169.254", 80).await;
        assert!(matches!(found, Err(ReachError::Forbidden(_))), "{found:?}");
        assert_eq!(look_up("127.0.0.1", 80).await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
    }
}
