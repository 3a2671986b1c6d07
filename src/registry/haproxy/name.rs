//! Names of servers: how a dynamic server carries its stamp, and which servers are slots.
//!
//! HAProxy keeps nothing for us but a name, and shows it in its statistics, logs and metrics; so people find the pod in it too.
//!
//! Invariant: every name is made of characters that HAProxy takes, and reading it back gives the same stamp.
//! Absent on purpose: the address, which may be changed by command; it is in the name only so that names differ.

use super::server::Owner;
use crate::registry::{Change, Stamp};
use crate::target::PodUid;

/// First part of the names of dynamic servers, and the prefix of the slots' names in `server-template`, whole or with a cluster behind it.
pub(super) const SLOT: &str = "lockstep";

/// The name of the dynamic server of a target: `lockstep:CLUSTER:NAMESPACE:POD:UID:ADDRESS:PORT`.
pub(super) fn of(change: &Change) -> String {
    let address = change.address.ip().to_string().replace(':', "-");
    let parts = [&*change.cluster, &*change.pod.namespace, &*change.pod.name, change.uid.as_str()];
    let parts: Vec<String> = parts.into_iter().map(encode).collect();
    format!("{SLOT}:{}:{address}:{}", parts.join(":"), change.address.port())
}

/// Whose the server of that name is.
pub(super) fn owner(name: &str, cluster: &str) -> Owner {
    let Some(rest) = name.strip_prefix(SLOT) else { return Owner::Foreign(None) };
    let prefix = rest.trim_end_matches(|one: char| one.is_ascii_digit());
    let numbered = prefix.len() < rest.len();
    if numbered && prefix.is_empty() {
        return Owner::Slot;
    }
    if numbered && let Some(of) = prefix.strip_prefix('.').and_then(|rest| rest.strip_suffix('.')) {
        return match decode(of) {
            Some(of) if of == cluster => Owner::Slot,
            of => Owner::Foreign(of.map(|of| Stamp { cluster: of.into(), uid: PodUid::new("") })),
        };
    }
    match stamp(rest) {
        Some(stamp) if &*stamp.cluster == cluster => Owner::Ours(stamp),
        stamp => Owner::Foreign(stamp),
    }
}

fn stamp(rest: &str) -> Option<Stamp> {
    let parts: Vec<&str> = rest.split(':').collect();
    let ["", cluster, _, _, uid, _, _] = parts[..] else { return None };
    Some(Stamp { cluster: decode(cluster)?.into(), uid: PodUid::new(decode(uid)?) })
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => encoded.push(char::from(byte)),
            other => encoded.push_str(&format!("_{other:02x}")),
        }
    }
    encoded
}

fn decode(text: &str) -> Option<String> {
    let mut parts = text.split('_');
    let mut decoded = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        decoded.push(u8::from_str_radix(code, 16).ok()?);
        decoded.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::registry::Operation;
    use crate::target::PodKey;

    fn change(cluster: &str, uid: &str, address: &str) -> Change {
        let (address, pod) = (address.parse().unwrap(), PodKey::new("shop", "web-1"));
        Change { operation: Operation::Register, address, uid: PodUid::new(uid), pod, cluster: cluster.into(), weight: 100 }
    }

    #[rstest]
    #[case("prod", "6f-1", "10.0.0.1:80", "lockstep:prod:shop:web-1:6f-1:10.0.0.1:80")]
    #[case("prod", "6f-1", "[fd00::1]:80", "lockstep:prod:shop:web-1:6f-1:fd00--1:80")]
    #[case("a:b/c_d é", "u", "10.0.0.1:80", "lockstep:a_3ab_2fc_5fd_20_c3_a9:shop:web-1:u:10.0.0.1:80")]
    fn a_name_brings_its_stamp_back(#[case] cluster: &str, #[case] uid: &str, #[case] address: &str, #[case] name: &str) {
        assert_eq!(of(&change(cluster, uid, address)), name);
        let stamp = Stamp { cluster: cluster.into(), uid: PodUid::new(uid) };
        assert_eq!(owner(name, cluster), Owner::Ours(stamp.clone()));
        assert_eq!(owner(name, "another"), Owner::Foreign(Some(stamp)));
    }

    #[rstest]
    #[case("lockstep1", true)]
    #[case("lockstep042", true)]
    #[case("lockstep", false)]
    #[case("lockstep1a", false)]
    #[case("web1", false)]
    #[case::with_our_name("lockstep.prod.12", true)]
    #[case::with_anothers("lockstep.test.12", false)]
    #[case::with_a_name_that_begins_as_ours("lockstep.prod.eu.12", false)]
    #[case::without_a_number("lockstep.prod.", false)]
    #[case::without_an_end("lockstep.prod12", false)]
    #[case::without_a_name("lockstep..12", false)]
    fn slots(#[case] name: &str, #[case] slot: bool) {
        assert_eq!(owner(name, "prod") == Owner::Slot, slot);
    }

    #[rstest]
    #[case("prod", "lockstep.prod.1")]
    #[case("eu.prod-1", "lockstep.eu.prod-1.1")]
    #[case("a b", "lockstep.a_20b.1")]
    fn a_slot_may_have_its_clusters_name(#[case] cluster: &str, #[case] name: &str) {
        assert_eq!(owner(name, cluster), Owner::Slot);
        let stamp = Stamp { cluster: cluster.into(), uid: PodUid::new("") };
        assert_eq!(owner(name, "another"), Owner::Foreign(Some(stamp)));
    }

    #[rstest]
    #[case("lockstep.a_zz.1")]
    #[case("lockstep:")]
    #[case("lockstep:a:b:c")]
    #[case("lockstep:a_:b:c:d:e:f")]
    #[case("lockstep:a_zz:b:c:d:e:f")]
    #[case("lockstep:a_é:b:c:d:e:f")]
    fn what_only_looks_like_ours_is_foreign(#[case] name: &str) {
        assert_eq!(owner(name, "a"), Owner::Foreign(None));
    }
}
