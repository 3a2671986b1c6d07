//! Which addresses a driver may connect to, and how their names are looked up.
//!
//! Who writes the configuration must not be able to make Lockstep talk to a node's metadata service, by address or by name.
//!
//! Invariant: no driver connects to an address that is off limits, whatever name leads there.
//! Absent on purpose: which addresses those are (`config`); a cache of names; a registry's address may change at any time and lookups are rare.

use std::net::SocketAddr;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::config::off_limits;

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
    #[error("{0} means {1}; nothing is sent there")]
    Forbidden(String, &'static str),
}

/// The addresses that `host` means and that may be connected to.
pub async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, ReachError> {
    let found = tokio::net::lookup_host((host, port)).await.map_err(|error| ReachError::Lookup(host.to_owned(), error))?;
    let (mut allowed, mut refused) = (Vec::new(), None);
    for address in found {
        match off_limits(address.ip()) {
            Some(what) => refused = Some(what),
            None => allowed.push(address),
        }
    }
    match refused {
        Some(what) if allowed.is_empty() => Err(ReachError::Forbidden(host.to_owned(), what)),
        _ => Ok(allowed),
    }
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
    use super::*;

    #[tokio::test]
    async fn a_name_that_means_only_forbidden_ones_means_nothing() {
        for host in ["169.254.169.254", "168.63.129.16", "fd20:ce::254"] {
            let found = look_up(host, 80).await;
            assert!(matches!(found, Err(ReachError::Forbidden(..))), "{found:?}");
        }
        assert_eq!(look_up("127.0.0.1", 80).await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
    }
}
