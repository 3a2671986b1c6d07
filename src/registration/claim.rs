//! Claims: the record, on the pod itself, that a target is ours; and debts, the claims whose pods are gone.
//!
//! Registries cannot all say whose a target is, a pod's address can change, and a binding can be edited;
//! so what was registered is written down before it is, and worked off from there.
//!
//! Invariant: printing and reading back gives the same claims; a line that cannot be read is skipped, never an error.
//! Absent on purpose: when a claim is made or dropped (`plan`), where debts are kept (`reconcile::debts`).

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use crate::config::Mode;
use crate::target::{PodKey, PodUid, ServiceId};

/// The most claims of one pod: far above any sane number of bindings, far below what a condition's message can hold.
pub const MAX_CLAIMS: usize = 32;
/// The longest claims message: a condition is sent with every status of the pod.
pub const MAX_CLAIMS_BYTES: usize = 8 * 1024;
/// The most debts in all: with the longest service names they stay under the 1 MiB of a ConfigMap.
pub const MAX_DEBTS: usize = 2000;

/// What stands behind a line whose target is not ours to change.
const OBSERVED: &str = " observed";

/// A target that is ours, or that we watch, of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Where it is registered.
    pub service: ServiceId,
    /// Address and port.
    pub address: SocketAddr,
    /// [`Mode::Observe`] is never leave to send anything.
    pub mode: Mode,
}

/// A claim whose pod is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debt {
    /// What is owed.
    pub claim: Claim,
    /// The pod that is gone.
    pub uid: PodUid,
    /// Its name, for people.
    pub pod: PodKey,
    /// When it was recorded.
    pub since: jiff::Timestamp,
}

/// The claims of a message, in its order; a target that stands twice counts once.
pub fn parse(message: &str) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    for claim in message.lines().filter_map(Claim::parse) {
        if !claims.iter().any(|known| known.same_target(&claim)) {
            claims.push(claim);
        }
    }
    claims
}

/// The message that lists `claims`.
pub fn print(claims: &[Claim]) -> String {
    lines(claims.iter())
}

/// Whether `claims` fit into one condition.
pub fn fits(claims: &[Claim]) -> bool {
    claims.len() <= MAX_CLAIMS && print(claims).len() <= MAX_CLAIMS_BYTES
}

/// The debts of a text.
pub fn parse_debts(text: &str) -> Vec<Debt> {
    text.lines().filter_map(Debt::parse).collect()
}

/// The text that lists `debts`.
pub fn print_debts(debts: &[Debt]) -> String {
    lines(debts.iter())
}

impl Claim {
    /// Whether both speak of the same endpoint of the same service.
    pub fn same_target(&self, other: &Self) -> bool {
        self.address == other.address && self.service == other.service
    }

    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (line, mode) = match line.strip_suffix(OBSERVED) {
            Some(rest) => (rest, Mode::Observe),
            None => (line, Mode::Own),
        };
        let (service, address) = line.rsplit_once(' ')?;
        let (registry, service) = service.split_once('/')?;
        // No service of ours is named so, and a name reaches terminals and logs.
        if registry.is_empty() || service.is_empty() || line.chars().any(char::is_control) {
            return None;
        }
        Some(Self { service: ServiceId::new(registry, service), address: address.parse().ok()?, mode })
    }
}

impl Debt {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim().rsplitn(4, ' ');
        let (since, uid, pod, claim) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let (namespace, name) = pod.split_once('/')?;
        Some(Self { claim: Claim::parse(claim)?, uid: PodUid::new(uid), pod: PodKey::new(namespace, name), since: since.parse().ok()? })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.service, self.address)?;
        match self.mode {
            Mode::Own => Ok(()),
            Mode::Observe => f.write_str(OBSERVED),
        }
    }
}

impl fmt::Display for Debt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.claim, self.pod, self.uid, self.since)
    }
}

fn lines<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    let mut text = String::new();
    for item in items {
        if !text.is_empty() {
            text.push('\n');
        }
        write!(text, "{item}").expect("writing into a String cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("sim/web 10.0.0.5:8080", 1)]
    #[case("sim/web 10.0.0.5:8080\nsim/web [fd00::5]:8080 observed", 2)]
    #[case("edge/arn:aws:elb:eu-west-1:1:targetgroup/web/01 10.0.0.5:80", 1)]
    #[case("sim/web 10.0.0.5:8080\nsim/web 10.0.0.5:8080", 1)]
    #[case("", 0)]
    #[case("sim/web", 0)]
    #[case("web 10.0.0.5:80", 0)]
    #[case("sim/ 10.0.0.5:80\n/web 10.0.0.5:80", 0)]
    #[case("sim/web 10.0.0.5", 0)]
    fn reads(#[case] message: &str, #[case] claims: usize) {
        let parsed = parse(message);
        assert_eq!(parsed.len(), claims, "{parsed:?}");
        assert_eq!(parse(&print(&parsed)), parsed);
    }

    #[test]
    fn prints_as_the_contract_says() {
        let claims = parse("sim/web [fd00:0:0::5]:8080 observed\nsim/web 10.0.0.5:80");
        assert_eq!(print(&claims), "sim/web [fd00::5]:8080 observed\nsim/web 10.0.0.5:80");
    }

    #[test]
    fn debts_read_back() {
        let text = "sim/web 10.0.0.5:80 shop/web-1 uid-1 2026-11-29T16:00:00Z\n\
                    sim/api [fd00::5]:80 observed shop/web-2 uid-2 2026-11-29T16:00:01.5Z";
        let debts = parse_debts(text);
        assert_eq!(debts.len(), 2);
        assert_eq!(debts[1].claim.mode, Mode::Observe);
        assert_eq!(print_debts(&debts), text);
        assert_eq!(parse_debts("nonsense\n\n"), Vec::new());
    }

    proptest! {
        #[test]
        fn any_text_can_be_read(text in "\\PC{0,200}") {
            let claims = parse(&text);
            prop_assert_eq!(parse(&print(&claims)), claims);
            let debts = parse_debts(&text);
            prop_assert_eq!(parse_debts(&print_debts(&debts)), debts);
        }
    }
}
