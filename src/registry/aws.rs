//! The aws driver: target groups of type `ip` of an ALB or an NLB, through the ELBv2 API (version 2015-12-01).
//!
//! Facts, from the API reference and the user guides of ELB unless said:
//! - a target is an address and a port; nothing can be noted on it, so whose it is only claims and debts can say;
//! - `DeregisterTargets` drains by itself: the target is `draining` until the group's deregistration delay is over, even when nothing is
//!   left of its connections, and then it is listed no more; deregistering what is not registered succeeds;
//! - `RegisterTargets` and `DeregisterTargets` do all or nothing: one bad target and the whole request is refused;
//! - an address outside the VPC must have the zone `all`, one within must not (the refusals that say so are those that users of other
//!   controllers report: aws-load-balancer-controller, issues 561 and 3084);
//! - `unused` with `Target.NotInUse` is a registered target in a group without a listener or in a zone that is off;
//! - an account may ask 10 times a second in a region, 40 at once ("Request throttling" in the user guide); for (de)registering
//!   aws-load-balancer-controller allows itself 4 and 20, and 200 targets a request, by what ELB's developers told its own;
//! - a question about groups or their tags names 20 of them at most, and is refused whole where one is missing; the drain delay is asked
//!   for each group alone;
//! - the API is eventually consistent: a read may show what was before.
//!
//! Invariant: in `mode: own` no change is sent to a group that carries another controller's tag; in `mode: observe` none at all.
//! Absent on purpose: stamps (there is no place for them), making load balancers, listeners or groups, targets that are instances.

mod api;
mod batch;
mod budget;
mod failure;
mod group;
mod groups;
mod health;
mod wire;
mod zones;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_elasticloadbalancingv2::config::{ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_elasticloadbalancingv2::types::TargetHealthDescription;

use self::api::Api;
use self::batch::Batch;
use self::budget::Budget;
use self::group::Group;
use self::groups::Groups;
use crate::config::{AwsConfig, Family, Mode, Services};
use crate::reconcile::OpenError;
use crate::registry::{
    CallError, Capabilities, Change, ChangeError, DrainKind, GoneWhen, HealthCheck, Listed, Listing, Operation, Pace, Rate, Registry,
    TargetKeys, Wait, in_time,
};

/// Targets of one request.
const BATCH: usize = 200;
/// Between two reads while something waits; an ALB takes longer for most steps.
const POLL: Duration = Duration::from_secs(5);
/// Targets of a group that no binding names any more are ours to change, as its debts are.
const UNBOUND: Mode = Mode::Own;
/// Half of what AWS allows: other programs of the account and the questions about groups (`groups`) need the rest.
const PACE: Pace = Pace { calls: Rate { per_second: 5.0, burst: 20.0 }, changes: Rate { per_second: 2.0, burst: 10.0 } };

/// Calls that a batch may need beyond its first: enough to find one bad target among two hundred in two batches. With the pace above they
/// stay within what AWS allows for changes: 4 calls a second, 20 at once.
const SPARE: Rate = Rate { per_second: 1.0, burst: 10.0 };

/// The target groups of one region, with one set of credentials.
#[derive(Debug)]
pub struct Aws {
    groups: Groups,
    spare: Budget,
}

impl Aws {
    /// The registry that `config` describes, with the credentials of the environment. Does no I/O.
    pub fn new(config: &AwsConfig, registry: &Arc<str>, cluster: &str) -> Result<Self, OpenError> {
        Self::open(config, registry, cluster, None)
    }

    /// The same, with other credentials.
    pub fn with_credentials(
        config: &AwsConfig,
        registry: &Arc<str>,
        cluster: &str,
        credentials: impl ProvideCredentials + 'static,
    ) -> Result<Self, OpenError> {
        Self::open(config, registry, cluster, Some(SharedCredentialsProvider::new(credentials)))
    }

    fn open(
        config: &AwsConfig,
        registry: &Arc<str>,
        cluster: &str,
        credentials: Option<SharedCredentialsProvider>,
    ) -> Result<Self, OpenError> {
        let api = Api::new(config, registry, cluster, credentials)?;
        Ok(Self { groups: Groups::new(api), spare: Budget::new(SPARE) })
    }

    async fn send(&self, arn: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        let kind = self.groups.kind(arn).await.map_err(nothing_left)?;
        let kept = match self.mode(arn) {
            Mode::Observe => Some("the binding only observes this group".to_owned()),
            Mode::Own => self.unusable(arn).await.map_err(nothing_left)?,
        };
        let refused = |change: &Change| {
            let misfit = || (change.operation == Operation::Register).then(|| kind.misfit(change.address.ip())).flatten();
            kept.clone().or_else(misfit).map(ChangeError::Refused)
        };
        Batch::new(changes, refused).send(self.groups.api(), arn, &self.groups.group(arn), &self.spare).await
    }

    fn mode(&self, arn: &str) -> Mode {
        self.groups.bound().get(arn).map_or(UNBOUND, |group| group.mode)
    }

    /// Why nothing may be put into a group that a binding owns.
    async fn unusable(&self, arn: &str) -> Result<Option<String>, CallError> {
        match self.groups.kind(arn).await?.unfit.clone() {
            Some(unfit) => Ok(Some(unfit)),
            None => Ok(self.groups.owner(arn).await?.foreign()),
        }
    }
}

impl Registry for Aws {
    fn bind(&self, services: Services) {
        self.groups.bind(services.groups);
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            drain: DrainKind::ByDeregistering,
            keys: TargetKeys::Address,
            stamps: false,
            blocking_read: false,
            batch: NonZeroUsize::new(BATCH).expect("a batch is not empty"),
            gone_when: GoneWhen::Draining,
            poll: POLL,
        }
    }

    async fn list(&self, service: &str, _: Option<Wait>) -> Result<Listing, CallError> {
        let bound = self.groups.bound();
        let accepted = bound.get(service).map_or(&[][..], |group| &group.accept_states);
        in_time(async {
            self.groups.kind(service).await?;
            let (found, group) = (self.groups.api().health(service).await?, self.groups.group(service));
            let targets = found.iter().filter_map(|one| listed(one, accepted, &group)).collect();
            Ok(Listing { targets, ..Listing::default() })
        })
        .await
    }

    async fn apply(&self, service: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        in_time(self.send(service, changes)).await
    }

    async fn drain_delay(&self, service: &str) -> Result<Option<Duration>, CallError> {
        in_time(self.groups.drain_delay(service)).await
    }

    fn family(&self, service: &str) -> Option<Family> {
        self.groups.group(service).family()
    }

    fn health_check(&self, service: &str) -> Option<HealthCheck> {
        self.groups.group(service).kind().answer()?.check
    }

    async fn refusal(&self, service: &str) -> Result<Option<String>, CallError> {
        match self.mode(service) {
            Mode::Observe => Ok(None),
            Mode::Own => in_time(self.unusable(service)).await,
        }
    }

    fn pace(&self) -> Pace {
        PACE
    }
}

/// A target as it is listed; `None` where it is none, or not one of type `ip`.
fn listed(one: &TargetHealthDescription, accepted: &[String], group: &Group) -> Option<Listed> {
    let target = one.target()?;
    let ip: IpAddr = target.id()?.parse().ok()?;
    let port = target.port().and_then(|port| u16::try_from(port).ok())?;
    if let Some(zone) = target.availability_zone() {
        group.zones().listed(ip, zone);
    }
    let health = one.target_health()?;
    let (state, reason) = (health.state()?.as_str(), health.reason().map_or("", |reason| reason.as_str()));
    Some(Listed { address: SocketAddr::new(ip, port), state: health::state(state, reason, accepted)?, stamp: None })
}

/// A question failed that goes before any change.
fn nothing_left(error: CallError) -> CallError {
    match error {
        CallError::Timeout => CallError::Unavailable("it does not say in time what the target group is".to_owned()),
        error => error,
    }
}
