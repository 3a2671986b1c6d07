//! What a target group is, and whether Lockstep may work on it.
//!
//! Invariant: no change is sent to a group that another controller's tag claims, or whose targets are no addresses.
//! Absent on purpose: waiting for a change of these facts; they are asked again now and then, and hardly ever change.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_elasticloadbalancingv2::types::{ProtocolEnum, TargetGroup, TargetGroupIpAddressTypeEnum, TargetTypeEnum};
use tokio::time::Instant;

use super::api::Api;
use super::zones::Zones;
use crate::config::{Family, Mode};
use crate::registry::CallError;

/// What is known of a group counts that long; it is set when the group is made, but for its tags.
const FRESH: Duration = Duration::from_secs(5 * 60);
/// What an NLB takes to stop sending to a deregistered target whatever the group's delay says: users measured two minutes and more
/// (aws-load-balancer-controller, issues 1834 and 2366).
const NLB_FLOOR: Duration = Duration::from_secs(120);
/// A longer delay cannot be set.
const LONGEST_DELAY: Duration = Duration::from_secs(3600);
const DELAY: &str = "deregistration_delay.timeout_seconds";
/// Tags with which other controllers mark the groups whose targets they keep: AWS Load Balancer Controller of today and of before 2.0,
/// the cloud provider in Kubernetes, EKS Auto Mode.
const FOREIGN: [&str; 4] = ["elbv2.k8s.aws/cluster", "ingress.k8s.aws/cluster", "kubernetes.io/service-name", "eks:eks-cluster-name"];

/// One target group, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Group {
    facts: Mutex<Option<(Facts, Instant)>>,
    zones: Mutex<Zones>,
}

/// What a target group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Its targets are of an NLB.
    pub(super) network: bool,
    /// Its targets have IPv6 addresses.
    pub(super) ipv6: bool,
    /// Why it can have no target of ours.
    pub(super) unfit: Option<String>,
    /// Why its targets are not ours to change.
    pub(super) foreign: Option<String>,
}

impl Group {
    /// What the group `arn` is; asked of AWS where it is not known or known for long.
    pub(super) async fn facts(&self, api: &Api, arn: &str, mode: Mode) -> Result<Facts, CallError> {
        let known = self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((facts, asked)) = &known
            && asked.elapsed() < FRESH
        {
            return Ok(facts.clone());
        }
        match (ask(api, arn, mode).await, known) {
            (Ok(facts), _) => {
                *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some((facts.clone(), Instant::now()));
                Ok(facts)
            }
            // Old facts are better than an outage.
            (Err(error), Some((facts, _))) => {
                tracing::debug!(service = arn, %error, "a target group could not be looked at again; what was known counts");
                Ok(facts)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// The family of its addresses, where it was asked for already.
    pub(super) fn family(&self) -> Option<Family> {
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.as_ref().map(|(facts, _)| if facts.ipv6 { Family::Ipv6 } else { Family::Ipv4 })
    }

    /// Which of its addresses are outside its VPC.
    pub(super) fn zones(&self) -> MutexGuard<'_, Zones> {
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Facts {
    /// Why a target at `address` cannot be registered.
    pub(super) fn misfit(&self, address: IpAddr) -> Option<String> {
        let (has, takes) = if self.ipv6 { ("IPv4", "ipv6") } else { ("IPv6", "ipv4") };
        (address.is_ipv6() != self.ipv6)
            .then(|| format!("{address} is an {has} address and the target group takes {takes}; write family: {takes} in the binding"))
    }
}

/// How long the load balancer may still send to a deregistered target.
pub(super) async fn drain_delay(api: &Api, arn: &str, facts: &Facts) -> Result<Option<Duration>, CallError> {
    let Some(text) = api.attribute(arn, DELAY).await? else { return Ok(None) };
    let unreadable = || CallError::Failed(format!("{DELAY} is no number of seconds"));
    let delay = text.parse().map(Duration::from_secs).ok().filter(|delay| *delay <= LONGEST_DELAY).ok_or_else(unreadable)?;
    Ok(Some(if facts.network { delay.max(NLB_FLOOR) } else { delay }))
}

async fn ask(api: &Api, arn: &str, mode: Mode) -> Result<Facts, CallError> {
    let group = api.group(arn).await?;
    // Who only observes needs no right to read tags.
    let tags = match mode {
        Mode::Own => api.tags(arn).await?,
        Mode::Observe => Vec::new(),
    };
    let unfit = unfit(&group);
    if let Some(reason) = &unfit {
        tracing::warn!(service = arn, reason, "a target group can have no pods as targets");
    }
    let tag = FOREIGN.iter().find(|foreign| tags.iter().any(|tag| tag == *foreign));
    Ok(Facts {
        network: !matches!(group.protocol, Some(ProtocolEnum::Http | ProtocolEnum::Https)),
        ipv6: group.ip_address_type == Some(TargetGroupIpAddressTypeEnum::Ipv6),
        unfit,
        foreign: tag.map(|tag| {
            format!("the tag {tag} says that another controller keeps the targets of this group; write mode: observe, or name a group without it")
        }),
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
    use super::*;

    #[test]
    fn an_address_of_the_other_family_is_told() {
        let facts = |ipv6| Facts { network: false, ipv6, unfit: None, foreign: None };
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!((facts(false).misfit(v4), facts(true).misfit(v6)), (None, None));
        assert!(facts(true).misfit(v4).unwrap().contains("family: ipv6"));
        assert!(facts(false).misfit(v6).unwrap().contains("family: ipv4"));
    }
}
