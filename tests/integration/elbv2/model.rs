//! What the simulator holds: target groups, what happened to their targets, keys, quotas, and the time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::query::Query;
use super::{Fault, REGION};

/// Targets of one request, as AWS Load Balancer Controller sends at most.
const TARGETS_OF_A_CALL: usize = 200;
/// Until a target of an ALB was made known to its nodes.
const ALB_REGISTERS: Duration = Duration::from_secs(10);
/// Until one of an NLB was: users report three to five minutes.
const NLB_REGISTERS: Duration = Duration::from_secs(180);
/// An NLB takes that long at least to let a target go.
const NLB_DEREGISTERS: Duration = Duration::from_secs(120);
/// The first health check, at the usual interval and threshold.
const CHECKED: Duration = Duration::from_secs(30);

/// All of one account in one region.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) groups: BTreeMap<String, Group>,
    /// Names of keys that are refused, with the code; every other key is good.
    pub(crate) refused_keys: BTreeMap<String, &'static str>,
    /// Names of the keys that were shown.
    pub(crate) keys: BTreeSet<String>,
    /// Actions that nobody may do.
    pub(crate) denied: Vec<&'static str>,
    /// Reads show what was so long ago.
    pub(crate) lag: Duration,
    /// Time passes by so much with each answer about target health.
    pub(crate) tick: Duration,
    /// Whether the quotas of an account are enforced.
    pub(crate) quotas: bool,
    /// What other programs of the account ask, in calls a second.
    pub(crate) others: f64,
    /// Calls that were refused because a quota was used up.
    pub(crate) throttled: usize,
    /// Every call that came, in order.
    pub(crate) calls: Vec<Query>,
    faults: VecDeque<(&'static str, Fault)>,
    now: Duration,
    asked: Bucket,
    registered: Bucket,
}

/// A target group.
pub(crate) struct Group {
    pub(crate) target_type: &'static str,
    pub(crate) protocol: &'static str,
    pub(crate) family: &'static str,
    pub(crate) tags: BTreeMap<String, String>,
    /// `deregistration_delay.timeout_seconds`.
    pub(crate) delay: u64,
    /// Path of its health check.
    pub(crate) check_path: &'static str,
    /// Seconds between two of its checks, as it says; time passes otherwise here.
    pub(crate) check_interval: u32,
    pub(crate) listener: bool,
    /// The most targets.
    pub(crate) room: usize,
    /// First address and length of each of its VPC's subnets.
    pub(crate) subnets: Vec<(IpAddr, u32)>,
    /// Addresses whose health checks fail.
    pub(crate) ill: Vec<IpAddr>,
    /// Addresses that are refused for whatever reason.
    pub(crate) bad: Vec<IpAddr>,
    /// What happened to its targets.
    pub(crate) targets: Targets,
}

/// What happened to targets, and when.
#[derive(Default)]
pub(crate) struct Targets(BTreeMap<SocketAddr, Vec<(Duration, Event)>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    In { zone: Option<String> },
    Out,
}

/// A target as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) address: SocketAddr,
    pub(crate) zone: Option<String>,
    pub(crate) state: &'static str,
    pub(crate) reason: Option<&'static str>,
}

/// A refusal of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// Tokens of a quota.
#[derive(Default)]
struct Bucket {
    used: f64,
    at: Duration,
}

impl Refusal {
    pub(crate) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }
}

impl Default for Group {
    /// One of an ALB that has a listener, in a VPC with every address.
    fn default() -> Self {
        Self {
            target_type: "ip",
            protocol: "HTTP",
            family: "ipv4",
            tags: BTreeMap::new(),
            delay: 300,
            check_path: "/",
            check_interval: 30,
            listener: true,
            room: 1000,
            subnets: vec![("0.0.0.0".parse().unwrap(), 0), ("::".parse().unwrap(), 0)],
            ill: Vec::new(),
            bad: Vec::new(),
            targets: Targets::default(),
        }
    }
}

impl Model {
    /// A group of that name; its ARN.
    pub(crate) fn add(&mut self, name: &str, group: Group) -> String {
        let arn = format!("arn:aws:elasticloadbalancing:{REGION}:123456789012:targetgroup/{name}/0123456789abcdef");
        self.groups.insert(arn.clone(), group);
        arn
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Others have used up what may be asked at once.
    pub(crate) fn use_up(&mut self) {
        self.asked = Bucket { used: 40.0, at: self.now };
    }

    /// The next call of `action` goes wrong so.
    pub(crate) fn fault(&mut self, action: &'static str, fault: Fault) {
        self.faults.push_back((action, fault));
    }

    /// The targets of a group as they are now, whatever reads show.
    pub(crate) fn truth(&self, arn: &str) -> Vec<Shown> {
        self.groups[arn].shown(self.now)
    }

    /// Puts a target in as somebody else would.
    pub(crate) fn put(&mut self, arn: &str, address: SocketAddr) {
        let now = self.now;
        self.groups.get_mut(arn).unwrap().enter(address, None, now);
    }

    /// Takes one out as somebody else would.
    pub(crate) fn drop_out(&mut self, arn: &str, address: SocketAddr) {
        self.deregister(arn, &[(address.ip(), Some(address.port()), None)]).unwrap();
    }

    /// A call comes: what goes wrong with it.
    pub(super) fn begin(&mut self, query: &Query) -> Option<Fault> {
        self.calls.push(query.clone());
        let place = self.faults.iter().position(|(action, _)| *action == query.action())?;
        self.faults.remove(place).map(|(_, fault)| fault)
    }

    /// Whether a call may be made at all.
    pub(super) fn admit(&mut self, authorization: Option<&str>, query: &Query) -> Result<(), Refusal> {
        let no_key = || Refusal::new(403, "MissingAuthenticationToken", "Request is missing Authentication Token");
        let credential = authorization.and_then(|text| text.split("Credential=").nth(1)).and_then(|rest| rest.split(',').next());
        let scope: Vec<&str> = credential.ok_or_else(no_key)?.split('/').collect();
        let [key, _, REGION, "elasticloadbalancing", "aws4_request"] = scope[..] else {
            return Err(Refusal::new(403, "SignatureDoesNotMatch", "Credential should be scoped to a valid region and service"));
        };
        self.keys.insert(key.to_owned());
        if let Some(code) = self.refused_keys.get(key) {
            return Err(Refusal::new(403, code, "The security token included in the request is invalid"));
        }
        if self.denied.contains(&query.action()) {
            let message = format!("User is not authorized to perform: elasticloadbalancing:{}", query.action());
            return Err(Refusal::new(403, "AccessDenied", message));
        }
        let registers = matches!(query.action(), "RegisterTargets" | "DeregisterTargets");
        let quota = if registers { self.registered.take(self.now, 4.0, 20.0) } else { self.asked.take(self.now, 10.0 - self.others, 40.0) };
        if self.quotas && !quota {
            self.throttled += 1;
            return Err(Refusal::new(400, "ThrottlingException", "Rate exceeded"));
        }
        Ok(())
    }

    /// The group of that ARN.
    pub(super) fn group(&mut self, arn: &str) -> Result<&mut Group, Refusal> {
        let missing = || Refusal::new(400, "TargetGroupNotFound", "One or more target groups not found");
        self.groups.get_mut(arn).ok_or_else(missing)
    }

    /// All the targets, or none.
    pub(super) fn register(&mut self, arn: &str, targets: &[(IpAddr, Option<u16>, Option<String>)]) -> Result<(), Refusal> {
        let now = self.now;
        let group = self.group(arn)?;
        group.check(targets.len())?;
        let mut entering = Vec::new();
        for (ip, port, zone) in targets {
            group.check_target(*ip, zone.as_deref())?;
            entering.push((SocketAddr::new(*ip, port.unwrap_or(80)), zone.clone()));
        }
        let here = group.shown(now);
        let new = entering.iter().filter(|(address, _)| !here.iter().any(|shown| shown.address == *address)).count();
        if here.len() + new > group.room {
            return Err(Refusal::new(400, "TooManyTargets", "You've reached the limit on the number of targets"));
        }
        entering.into_iter().for_each(|(address, zone)| group.enter(address, zone, now));
        Ok(())
    }

    /// All the targets; what is not there is no error.
    pub(super) fn deregister(&mut self, arn: &str, targets: &[(IpAddr, Option<u16>, Option<String>)]) -> Result<(), Refusal> {
        let now = self.now;
        let group = self.group(arn)?;
        group.check(targets.len())?;
        for (ip, port, _) in targets {
            let leaving = |address: &SocketAddr| address.ip() == *ip && port.is_none_or(|port| port == address.port());
            for (_, events) in group.targets.0.iter_mut().filter(|(address, _)| leaving(address)) {
                if matches!(events.last(), Some((_, Event::In { .. }))) {
                    events.push((now, Event::Out));
                }
            }
        }
        Ok(())
    }

    /// The targets as a read shows them.
    pub(super) fn health(&mut self, arn: &str) -> Result<Vec<Shown>, Refusal> {
        let seen = self.now.saturating_sub(self.lag);
        let shown = self.group(arn)?.shown(seen);
        self.now += self.tick;
        Ok(shown)
    }
}

impl Group {
    fn is_network(&self) -> bool {
        !matches!(self.protocol, "HTTP" | "HTTPS")
    }

    fn enter(&mut self, address: SocketAddr, zone: Option<String>, now: Duration) {
        // One that is there already goes on as it is.
        let there = self.look(address, now).is_some_and(|shown| shown.state != "draining");
        if !there {
            let zone = zone.or_else(|| Some(format!("{REGION}a")));
            self.targets.0.entry(address).or_default().push((now, Event::In { zone }));
        }
    }

    fn check(&self, count: usize) -> Result<(), Refusal> {
        if count == 0 || count > TARGETS_OF_A_CALL {
            return Err(Refusal::new(400, "ValidationError", format!("{count} targets are too few or too many")));
        }
        if self.target_type != "ip" {
            return Err(Refusal::new(400, "InvalidTarget", "The target group takes no addresses"));
        }
        Ok(())
    }

    fn check_target(&self, ip: IpAddr, zone: Option<&str>) -> Result<(), Refusal> {
        let refused = |message: String| Err(Refusal::new(400, "ValidationError", message));
        if self.bad.contains(&ip) {
            return Err(Refusal::new(400, "InvalidTarget", format!("The following targets are not valid: {ip}")));
        }
        if ip.is_ipv6() != (self.family == "ipv6") {
            return refused(format!("The IP address '{ip}' is not of the target group's IP address type"));
        }
        let inside = self.subnets.iter().any(|(first, length)| shares(*first, ip, *length));
        match zone {
            None if !inside => refused(format!("The Availability Zone is required for IP address '{ip}' because it is not in the VPC")),
            Some("all") if inside => refused(format!(
                "The IP address '{ip}' is within the VPC, and cannot have its Availability Zone overridden to 'all' from '{REGION}a'"
            )),
            _ => Ok(()),
        }
    }

    fn shown(&self, at: Duration) -> Vec<Shown> {
        self.targets.0.keys().filter_map(|address| self.look(*address, at)).collect()
    }

    fn look(&self, address: SocketAddr, at: Duration) -> Option<Shown> {
        let events: Vec<_> = self.targets.0.get(&address)?.iter().filter(|(when, _)| *when <= at).collect();
        let (when, last) = events.last()?;
        let entered = events.iter().rev().find_map(|(_, event)| match event {
            Event::In { zone } => Some(zone.clone()),
            Event::Out => None,
        })?;
        let age = at - *when;
        let (state, reason) = match last {
            Event::Out => {
                let delay = Duration::from_secs(self.delay);
                let delay = if self.is_network() { delay.max(NLB_DEREGISTERS) } else { delay };
                if age >= delay {
                    return None;
                }
                ("draining", Some("Target.DeregistrationInProgress"))
            }
            Event::In { .. } => self.health_of(address.ip(), age),
        };
        Some(Shown { address, zone: entered, state, reason })
    }

    fn health_of(&self, ip: IpAddr, age: Duration) -> (&'static str, Option<&'static str>) {
        let known = if self.is_network() { NLB_REGISTERS } else { ALB_REGISTERS };
        match () {
            () if !self.listener => ("unused", Some("Target.NotInUse")),
            () if age < known => ("initial", Some("Elb.RegistrationInProgress")),
            () if age < known + CHECKED => ("initial", Some("Elb.InitialHealthChecking")),
            () if self.ill.contains(&ip) => ("unhealthy", Some("Target.FailedHealthChecks")),
            () => ("healthy", None),
        }
    }
}

impl Bucket {
    fn take(&mut self, now: Duration, rate: f64, size: f64) -> bool {
        self.used = (self.used - (now - self.at).as_secs_f64() * rate).max(0.0);
        self.at = now;
        let free = self.used + 1.0 <= size;
        if free {
            self.used += 1.0;
        }
        free
    }
}

fn shares(first: IpAddr, ip: IpAddr, length: u32) -> bool {
    let differs = match (first, ip) {
        (IpAddr::V4(first), IpAddr::V4(ip)) => (first.to_bits() ^ ip.to_bits()).leading_zeros(),
        (IpAddr::V6(first), IpAddr::V6(ip)) => (first.to_bits() ^ ip.to_bits()).leading_zeros(),
        _ => return false,
    };
    differs >= length
}
