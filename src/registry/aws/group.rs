//! What a target group is, and whether Lockstep may work on it.
//!
//! Invariant: no change is sent to a group that another controller's tag claims, or whose targets are no addresses.
//! Absent on purpose: when AWS is asked (`groups`).

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_elasticloadbalancingv2::types::{ProtocolEnum, TargetGroup, TargetGroupIpAddressTypeEnum, TargetTypeEnum};
use tokio::time::Instant;

use super::zones::Zones;
use crate::config::Family;
use crate::registry::{CallError, HealthCheck};

/// What is known of a group counts that long; it is set when the group is made, but for its tags.
const FRESH: Duration = Duration::from_secs(5 * 60);
/// What is known but could not be asked again is asked after that.
const RETRY: Duration = Duration::from_secs(30);
/// What an NLB takes to stop sending to a deregistered target whatever the group's delay says: users measured two minutes and more
/// (aws-load-balancer-controller, issues 1834 and 2366).
const NLB_FLOOR: Duration = Duration::from_secs(120);
/// A longer delay cannot be set.
const LONGEST_DELAY: Duration = Duration::from_secs(3600);
/// Tags with which other controllers mark the groups whose targets they keep: AWS Load Balancer Controller of today and of before 2.0,
/// the cloud provider in Kubernetes, EKS Auto Mode.
const FOREIGN: [&str; 4] = ["elbv2.k8s.aws/cluster", "ingress.k8s.aws/cluster", "kubernetes.io/service-name", "eks:eks-cluster-name"];

/// One target group, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Group {
    kind: Fact<Kind>,
    owner: Fact<Owner>,
    zones: Mutex<Zones>,
}

/// What a target group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Its targets are of an NLB.
    pub(super) network: bool,
    /// Its targets have IPv6 addresses.
    pub(super) ipv6: bool,
    /// Why it can have no target of ours.
    pub(super) unfit: Option<String>,
    /// What its health check asks.
    pub(super) check: Option<HealthCheck>,
}

/// Who keeps its targets: the tag of another controller, where it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner(pub(super) Option<&'static str>);

/// What AWS told in answer to one question about one group.
#[derive(Debug)]
pub(super) struct Fact<T>(Mutex<Told<T>>);

#[derive(Debug)]
struct Told<T> {
    /// The last answer, and when it came.
    answer: Option<(T, Instant)>,
    /// Why there was none since.
    failure: Option<(CallError, Instant)>,
    /// The most groups, this one included, that one call may ask about: fewer where it may be for this one that a call was refused.
    company: usize,
}

impl Group {
    /// What it is.
    pub(super) fn kind(&self) -> &Fact<Kind> {
        &self.kind
    }

    /// Who keeps its targets.
    pub(super) fn owner(&self) -> &Fact<Owner> {
        &self.owner
    }

    /// The family of its addresses, where it was asked for already.
    pub(super) fn family(&self) -> Option<Family> {
        self.kind.answer().map(|kind| if kind.ipv6 { Family::Ipv6 } else { Family::Ipv4 })
    }

    /// Which of its addresses are outside its VPC.
    pub(super) fn zones(&self) -> MutexGuard<'_, Zones> {
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    /// What AWS's description of a group means.
    pub(super) fn of(group: &TargetGroup) -> Self {
        Self {
            network: !matches!(group.protocol, Some(ProtocolEnum::Http | ProtocolEnum::Https)),
            ipv6: group.ip_address_type == Some(TargetGroupIpAddressTypeEnum::Ipv6),
            unfit: unfit(group),
            check: health_check(group),
        }
    }

    /// Why a target at `address` cannot be registered.
    pub(super) fn misfit(&self, address: IpAddr) -> Option<String> {
        let (has, takes) = if self.ipv6 { ("IPv4", "ipv6") } else { ("IPv6", "ipv4") };
        (address.is_ipv6() != self.ipv6)
            .then(|| format!("{address} is an {has} address and the target group takes {takes}; write family: {takes} in the binding"))
    }

    /// How long the load balancer may still send to a deregistered target, from the text of the group's attribute.
    pub(super) fn drain_delay(&self, text: &str) -> Option<Duration> {
        let delay = text.parse().map(Duration::from_secs).ok().filter(|delay| *delay <= LONGEST_DELAY)?;
        Some(if self.network { delay.max(NLB_FLOOR) } else { delay })
    }
}

impl Owner {
    /// What the keys of a group's tags mean.
    pub(super) fn of(tags: &[String]) -> Self {
        Self(FOREIGN.into_iter().find(|foreign| tags.iter().any(|tag| tag == foreign)))
    }

    /// Why the targets are not ours to change.
    pub(super) fn foreign(&self) -> Option<String> {
        self.0.map(|tag| {
            format!("the tag {tag} says that another controller keeps the targets of this group; write mode: observe, or name a group without it")
        })
    }
}

impl<T> Default for Fact<T> {
    fn default() -> Self {
        Self(Mutex::new(Told { answer: None, failure: None, company: usize::MAX }))
    }
}

impl<T: Clone> Fact<T> {
    /// The last answer, however old.
    pub(super) fn answer(&self) -> Option<T> {
        self.told().answer.as_ref().map(|(answer, _)| answer.clone())
    }

    /// When it came.
    pub(super) fn answered_at(&self) -> Option<Instant> {
        self.told().answer.as_ref().map(|(_, at)| *at)
    }

    /// Whether it should be asked (again).
    pub(super) fn is_due(&self) -> bool {
        let told = self.told();
        let fresh = told.answer.as_ref().is_some_and(|(_, at)| at.elapsed() < FRESH);
        let tried = told.answer.is_some() && told.failure.as_ref().is_some_and(|(_, at)| at.elapsed() < RETRY);
        !fresh && !tried
    }

    /// Why there was no answer to the last question.
    pub(super) fn failure(&self) -> Option<CallError> {
        self.told().failure.as_ref().map(|(error, _)| error.clone())
    }

    /// The same, where that was told after `came`.
    pub(super) fn failure_since(&self, came: Instant) -> Option<CallError> {
        self.told().failure.as_ref().filter(|(_, at)| *at > came).map(|(error, _)| error.clone())
    }

    /// The most groups, this one included, that one call may ask about.
    pub(super) fn company(&self) -> usize {
        self.told().company
    }

    /// AWS answered.
    pub(super) fn learn(&self, answer: T) {
        *self.told() = Told { answer: Some((answer, Instant::now())), failure: None, company: usize::MAX };
    }

    /// It did not.
    pub(super) fn fail(&self, error: CallError) {
        self.told().failure = Some((error, Instant::now()));
    }

    /// A call about `asked` groups was refused for one of them, and this was among them.
    pub(super) fn doubt(&self, asked: usize) {
        self.told().company = (asked / 2).max(1);
    }

    fn told(&self) -> MutexGuard<'_, Told<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The port is a number, or `traffic-port` for that of the target
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetGroup.html>).
fn health_check(group: &TargetGroup) -> Option<HealthCheck> {
    Some(HealthCheck {
        protocol: group.health_check_protocol.as_ref()?.as_str().to_lowercase(),
        port: group.health_check_port.as_ref().and_then(|port| port.parse().ok()),
        path: group.health_check_path.clone(),
        interval: Duration::from_secs(u64::try_from(group.health_check_interval_seconds?).ok()?),
        passes: u32::try_from(group.healthy_threshold_count?).ok()?,
    })
}

fn unfit(group: &TargetGroup) -> Option<String> {
    if group.protocol == Some(ProtocolEnum::Geneve) {
        return Some("this is a target group of a Gateway Load Balancer; name one of an ALB or an NLB".to_owned());
    }
    match &group.target_type {
        Some(TargetTypeEnum::Ip) => None,
        other => {
            let other = other.as_ref().map_or("unknown", TargetTypeEnum::as_str);
            Some(format!("this target group is of type {other}; only one of type ip can have pods as targets"))
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn kind(network: bool, ipv6: bool) -> Kind {
        Kind { network, ipv6, unfit: None, check: None }
    }

    #[test]
    fn an_address_of_the_other_family_is_told() {
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!((kind(false, false).misfit(v4), kind(false, true).misfit(v6)), (None, None));
        assert!(kind(false, true).misfit(v4).unwrap().contains("family: ipv6"));
        assert!(kind(false, false).misfit(v6).unwrap().contains("family: ipv4"));
    }

    #[rstest]
    #[case(false, "0", Some(0))]
    #[case(true, "0", Some(120))]
    #[case(true, "300", Some(300))]
    #[case(false, "3600", Some(3600))]
    #[case(false, "3601", None)]
    #[case(false, "-1", None)]
    #[case(false, "soon", None)]
    fn delays(#[case] network: bool, #[case] text: &str, #[case] seconds: Option<u64>) {
        assert_eq!(kind(network, false).drain_delay(text), seconds.map(Duration::from_secs));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_asked_again_now_and_then() {
        let fact = Fact::default();
        let error = || CallError::Throttled("slowly".into());
        assert!(fact.is_due());
        fact.fail(error());
        assert!(fact.is_due(), "nothing is known, so whoever needs it asks");
        fact.learn(1);
        assert_eq!((fact.is_due(), fact.failure()), (false, None));
        tokio::time::advance(FRESH).await;
        assert!(fact.is_due());
        fact.fail(error());
        assert_eq!((fact.is_due(), fact.answer()), (false, Some(1)), "what was known still counts");
        tokio::time::advance(RETRY).await;
        assert!(fact.is_due());
    }

    #[test]
    fn one_that_may_be_at_fault_is_asked_about_with_fewer_until_it_is_answered_for() {
        let fact = Fact::default();
        assert_eq!(fact.company(), usize::MAX);
        for (asked, left) in [(20, 10), (5, 2), (2, 1), (1, 1)] {
            fact.doubt(asked);
            assert_eq!(fact.company(), left);
        }
        fact.learn(());
        assert_eq!(fact.company(), usize::MAX);
    }
}
