//! What is known of one pod and its targets, in one value that decides everything.
//!
//! A decision that looked things up while it was taken could not be replayed or tested alone; so all looking is done here, before.
//!
//! Invariant: pure; the same sighting and facts give the same observation.
//! Absent on purpose: decisions (`plan`), where the facts come from (`reconcile::service`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::claim::{self, Claim};
use super::life::Life;
use super::reason::Reason;
use crate::config::{Ack, Binding, Configuration, Family, Mode, OnUnbound, OnUnready, Port, Registration};
use crate::pod::{Condition, PodView};
use crate::registry::{DrainKind, GoneWhen, Operation, TargetKeys};
use crate::target::{ServiceId, TargetState};

/// A pod and what belongs to it, before it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// The pod.
    pub pod: &'a PodView,
    /// Its claims.
    pub claims: &'a [Claim],
    /// Names of the bindings that are known to have selected it before.
    pub former: &'a [Arc<str>],
    /// The configuration.
    pub configuration: &'a Configuration,
    /// Where it stands.
    pub life: Life,
    /// What the process remembers of it.
    pub memory: Memory,
    /// The debts are as many as may be.
    pub debts_full: bool,
}

/// What no object keeps: times at which this process first saw something, and what it has told already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Since when the containers are gone.
    pub gone_since: Option<jiff::Timestamp>,
    /// Since when this leader knows that the deletion is forced.
    pub forced_since: Option<jiff::Timestamp>,
    /// Events that were told.
    pub told: Told,
}

/// A set of reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told(u32);

/// One pod and its targets, as plan sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// `lockstep release` let it go.
    pub released: bool,
    /// It has our readiness gate.
    pub gated: bool,
    /// It has our managed label.
    pub labelled: bool,
    /// It has our finalizer.
    pub finalizer: bool,
    /// Our gate's condition.
    pub gate: Option<Condition>,
    /// Our claims' condition.
    pub claims: Option<Condition>,
    /// Where it stands.
    pub life: Life,
    /// At least one binding selects it.
    pub bound: bool,
    /// Bindings that select it and have no target.
    pub blocked: Vec<Blocked>,
    /// Its targets: those it has claims for first, in their order, then those it wants besides.
    pub targets: Vec<TargetView>,
    /// Since when its containers are ready, where they are.
    pub ready_since: Option<jiff::Timestamp>,
    /// When its grace is over, where it is being deleted.
    pub deletion: Option<jiff::Timestamp>,
    /// Its deletion gave these seconds where the sleep needs those.
    pub grace_cut: Option<GraceCut>,
    /// What the process remembers.
    pub memory: Memory,
    /// The debts are as many as may be.
    pub debts_full: bool,
    /// How long to wait for what.
    pub rules: Registration,
}

/// A deletion that gives less time than the drain needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraceCut {
    /// Seconds that it gives.
    pub given: i64,
    /// Seconds of the sleep.
    pub needed: i64,
}

/// A binding that selects the pod and has no target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Name of the binding.
    pub binding: Arc<str>,
    /// Why.
    pub reason: Reason,
    /// What the pod does not have, as in `container port named http`.
    pub lacks: String,
}

/// One target of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetView {
    /// Where it belongs.
    pub service: ServiceId,
    /// Address and port.
    pub address: SocketAddr,
    /// How it is claimed; `None`: not yet.
    pub claim: Option<Mode>,
    /// What it is to the pod now.
    pub role: Role,
    /// Whether Lockstep owns it, as the configuration says where it says anything, else as the claim does.
    pub mode: Mode,
    /// What counts as an acknowledgement.
    pub ack: Ack,
    /// What happens while the pod does not serve.
    pub on_unready: OnUnready,
    /// What is known of it.
    pub facts: Facts,
    /// What the registry itself says of the trouble in `facts`: one bounded line.
    pub words: Option<Arc<str>>,
}

/// What a target is to its pod now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A binding wants it.
    Wanted,
    /// A binding selects the pod there, and has no other target in its place.
    Kept,
    /// A binding wants another target of the pod in its place.
    Superseded,
    /// At an address that the pod does not have any more.
    Stale,
    /// No binding selects the pod there any more.
    Unbound(OnUnbound),
}

/// What is known of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What its registry can do; `None` where there is no client for it.
    pub traits: Option<Traits>,
    /// The change that is on its way.
    pub doing: Doing,
    /// Our last change that may have left, and what came of it.
    pub last: Option<(Operation, Outcome)>,
    /// That outcome came after the end of the pod was first seen.
    pub last_fresh: bool,
    /// What a read says that began after our last change was settled.
    pub seen: Option<Seen>,
    /// That read began after the end of the pod was first seen.
    pub seen_fresh: bool,
    /// The service was read at least once by this leader.
    pub service_read: bool,
    /// The last read shows a target of somebody else in its place.
    pub taken: bool,
    /// A register of this pod is known to have been done last.
    pub owned: bool,
    /// This process wrote the claim and has not registered it yet.
    pub fresh_claim: bool,
    /// A write is on its way that takes the claim out, or one whose answer was lost; so the claim may be gone.
    pub dropping: bool,
    /// A live pod that has taken over the address.
    pub heir: Option<Heir>,
    /// The budget allows to take it out.
    pub granted: bool,
    /// It is among the debts.
    pub owed: bool,
    /// What keeps failing.
    pub trouble: Option<Trouble>,
}

/// What a registry can do, as far as plan needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// How it drains.
    pub drain: DrainKind,
    /// What tells its targets apart.
    pub keys: TargetKeys,
    /// Whether a listing says whose a target is.
    pub stamps: bool,
    /// When a target counts as gone once the containers are.
    pub gone_when: GoneWhen,
}

/// The change that is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doing {
    /// None.
    #[default]
    Nothing,
    /// In the queue; nothing has left.
    Queued(Operation),
    /// Sent, without an answer yet.
    Sent(Operation),
}

/// What came of a change that may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Accepted,
    /// The target, or its whole service, is not there.
    NotFound,
    /// Certainly not done.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// What a read says of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Not there.
    Absent,
    /// There.
    Listed {
        /// Its state.
        state: TargetState,
        /// The registry says that it is this pod's.
        ours: bool,
    },
    /// Not there; but the registry has one place for all addresses of the pod, and holds it there in this state at an address that no
    /// claim of the pod names.
    Elsewhere(TargetState),
}

/// A live pod that has taken over a target's address; of several the last in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heir {
    /// It has the address.
    Has,
    /// It claims the same target, as far as is known; nobody has looked since the end of this pod, or that both live, was seen.
    Doubtful,
    /// It claims the same target: whatever stands there is worked off from its claim.
    Claims,
}

/// What keeps failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trouble {
    /// The registry cannot be reached.
    Unreachable,
    /// It does not answer in time.
    NoAnswer,
    /// It asks to slow down.
    Throttled,
    /// It denies access.
    Denied,
    /// It knows no such service.
    ServiceMissing,
    /// The service takes no more targets.
    Full,
    /// It refuses the change.
    Refused,
    /// It failed otherwise.
    Failed,
}

/// Looks at a pod. `known` tells what is known of a target, and the registry's words for what keeps failing there.
pub fn observe(sighting: &Sighting<'_>, mut known: impl FnMut(&ServiceId, SocketAddr) -> (Facts, Option<Arc<str>>)) -> Observation {
    let pod = sighting.pod;
    let selected: Vec<&Binding> = selecting(pod, sighting.configuration).collect();
    let (wanted, blocked) = wanted(pod, &selected);
    let mut targets: Vec<TargetView> = Vec::with_capacity(sighting.claims.len().max(wanted.len()));
    for claim in sighting.claims {
        let want = wanted.iter().find(|want| want.address == claim.address && want.binding.service == claim.service);
        let (facts, words) = known(&claim.service, claim.address);
        targets.push(TargetView {
            service: claim.service.clone(),
            address: claim.address,
            claim: Some(claim.mode),
            role: want.map_or_else(|| role(sighting, claim, &selected, &wanted, &blocked), |_| Role::Wanted),
            mode: mode(sighting, claim, want),
            ack: policy(sighting, claim, want).map_or(Ack::Acknowledged, |binding| binding.ack),
            on_unready: policy(sighting, claim, want).map_or(OnUnready::Keep, |binding| binding.on_unready),
            facts,
            words,
        });
    }
    for want in &wanted {
        if !targets.iter().any(|target| target.address == want.address && target.service == want.binding.service) {
            let (facts, words) = known(&want.binding.service, want.address);
            targets.push(TargetView {
                service: want.binding.service.clone(),
                address: want.address,
                claim: None,
                role: Role::Wanted,
                mode: want.binding.mode,
                ack: want.binding.ack,
                on_unready: want.binding.on_unready,
                facts,
                words,
            });
        }
    }
    Observation {
        released: pod.released,
        gated: pod.gated,
        labelled: pod.is_labelled(),
        finalizer: pod.finalizer,
        gate: pod.gate.clone(),
        claims: pod.claims.clone(),
        life: sighting.life,
        bound: !selected.is_empty(),
        blocked: blocked.into_iter().map(|(binding, reason)| Blocked::new(binding, reason)).collect(),
        targets,
        ready_since: pod.containers_ready.as_ref().filter(|condition| condition.status).and_then(|condition| condition.since),
        deletion: pod.deletion.map(|deletion| deletion.at),
        grace_cut: grace_cut(pod),
        memory: sighting.memory,
        debts_full: sighting.debts_full,
        rules: sighting.configuration.registration.clone(),
    }
}

/// Whether a binding wants that target of a pod.
pub fn wants(pod: &PodView, configuration: &Configuration, service: &ServiceId, address: SocketAddr) -> bool {
    let mut bindings = selecting(pod, configuration).filter(|binding| binding.service == *service);
    bindings.any(|binding| port(pod, &binding.port) == Some(address.port()) && ip(pod, binding.family) == Some(address.ip()))
}

/// The claims of a pod's condition.
pub fn claims_of(pod: &PodView) -> Vec<Claim> {
    pod.claims.as_ref().filter(|condition| condition.status).map(|condition| claim::parse(&condition.message)).unwrap_or_default()
}

impl Told {
    /// Whether `reason` is in it.
    pub fn contains(self, reason: Reason) -> bool {
        self.0 & Self::bit(reason) != 0
    }

    /// With `reason` in it.
    #[must_use]
    pub fn with(self, reason: Reason) -> Self {
        Self(self.0 | Self::bit(reason))
    }

    /// Without `reason`.
    #[must_use]
    pub fn without(self, reason: Reason) -> Self {
        Self(self.0 & !Self::bit(reason))
    }

    fn bit(reason: Reason) -> u32 {
        1 << (reason as u32)
    }
}

impl Seen {
    /// The state in which the registry holds the target's place, at whatever address.
    pub fn held(self) -> Option<TargetState> {
        match self {
            Self::Absent => None,
            Self::Listed { state, .. } | Self::Elsewhere(state) => Some(state),
        }
    }

    /// Whether it is not to be had at its address: nothing stands there, or what does is on its way out.
    pub fn is_missing(self) -> bool {
        match self {
            Self::Absent | Self::Elsewhere(_) => true,
            Self::Listed { state, .. } => state == TargetState::Draining,
        }
    }
}

impl TargetView {
    /// What keeps failing, with the registry's own words; no sentence yet.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.facts.trouble?.as_str();
        Some(match self.words.as_deref().map(|words| words.trim_end_matches('.')) {
            Some(words) if !words.is_empty() => format!("{trouble}: {words}"),
            _ => trouble.to_owned(),
        })
    }
}

impl Trouble {
    /// Every kind.
    pub const ALL: [Self; 8] =
        [Self::Unreachable, Self::NoAnswer, Self::Throttled, Self::Denied, Self::ServiceMissing, Self::Full, Self::Refused, Self::Failed];

    /// In words for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "the registry cannot be reached",
            Self::NoAnswer => "the registry does not answer in time",
            Self::Throttled => "the registry asks to slow down",
            Self::Denied => "the registry denies access",
            Self::ServiceMissing => "the registry knows no such service",
            Self::Full => "the service takes no more targets",
            Self::Refused => "the registry refuses the change",
            Self::Failed => "the registry fails",
        }
    }
}

impl Blocked {
    fn new(binding: &Binding, reason: Reason) -> Self {
        let lacks = match (reason, &binding.port, binding.family) {
            (Reason::PortNotFound, Port::Name(name), _) => format!("container port named {name}"),
            (_, _, Family::Ipv4) => "IPv4 address".to_owned(),
            (_, _, Family::Ipv6) => "IPv6 address".to_owned(),
            (_, _, Family::Auto) => "address".to_owned(),
        };
        Self { binding: binding.name.clone(), reason, lacks }
    }
}

/// A target that a binding wants.
struct Want<'a> {
    binding: &'a Binding,
    address: SocketAddr,
}

fn selecting<'a>(pod: &'a PodView, configuration: &'a Configuration) -> impl Iterator<Item = &'a Binding> {
    configuration.bindings_of(&pod.key.namespace, |key| pod.labels.get(key))
}

/// The targets that `selected` want of `pod`, and the bindings that cannot have one.
fn wanted<'a>(pod: &PodView, selected: &[&'a Binding]) -> (Vec<Want<'a>>, Vec<(&'a Binding, Reason)>) {
    let mut wanted: Vec<Want<'a>> = Vec::with_capacity(selected.len());
    let mut blocked = Vec::new();
    for binding in selected {
        let Some(port) = port(pod, &binding.port) else {
            blocked.push((*binding, Reason::PortNotFound));
            continue;
        };
        match ip(pod, binding.family) {
            Some(ip) => {
                let address = SocketAddr::new(ip, port);
                if !wanted.iter().any(|want| want.address == address && want.binding.service == binding.service) {
                    wanted.push(Want { binding, address });
                }
            }
            None if pod.addresses.is_empty() => {}
            None => blocked.push((*binding, Reason::NoMatchingAddress)),
        }
    }
    (wanted, blocked)
}

fn port(pod: &PodView, port: &Port) -> Option<u16> {
    match port {
        Port::Number(number) => Some(*number),
        Port::Name(name) => pod.ports.iter().find(|port| port.name.as_ref() == Some(name)).map(|port| port.number),
    }
}

fn ip(pod: &PodView, family: Family) -> Option<IpAddr> {
    match family {
        Family::Auto => pod.addresses.first().copied(),
        Family::Ipv4 => pod.addresses.iter().copied().find(IpAddr::is_ipv4),
        Family::Ipv6 => pod.addresses.iter().copied().find(IpAddr::is_ipv6),
    }
}

/// What a claim that no binding wants is to the pod.
fn role(sighting: &Sighting<'_>, claim: &Claim, selected: &[&Binding], wanted: &[Want<'_>], blocked: &[(&Binding, Reason)]) -> Role {
    if !sighting.pod.addresses.contains(&claim.address.ip()) {
        return Role::Stale;
    }
    if !selected.iter().any(|binding| binding.service == claim.service) {
        return Role::Unbound(unbound_policy(sighting, &claim.service));
    }
    let blocked = blocked.iter().any(|(binding, _)| binding.service == claim.service);
    let replaced = wanted.iter().any(|want| want.binding.service == claim.service);
    if replaced && !blocked { Role::Superseded } else { Role::Kept }
}

/// The policy goes with a binding that is deleted; where several bindings speak of the service, the one that keeps wins.
fn unbound_policy(sighting: &Sighting<'_>, service: &ServiceId) -> OnUnbound {
    let mut speaking = sighting.configuration.bindings.iter().filter(|binding| binding.service == *service).peekable();
    let known = |name: &Arc<str>| sighting.former.contains(name) || sighting.pod.record.bindings.contains(name);
    let still_there = sighting.configuration.bindings.iter().any(|binding| binding.service == *service && known(&binding.name));
    if still_there && speaking.peek().is_some() && speaking.all(|binding| binding.on_unbound == OnUnbound::Deregister) {
        OnUnbound::Deregister
    } else {
        OnUnbound::Keep
    }
}

/// A service that a binding observes and none owns is never written to, whatever an old claim says.
fn mode(sighting: &Sighting<'_>, claim: &Claim, want: Option<&Want<'_>>) -> Mode {
    if let Some(want) = want {
        return want.binding.mode;
    }
    let mut speaking = sighting.configuration.bindings.iter().filter(|binding| binding.service == claim.service).peekable();
    let observed = speaking.peek().is_some() && speaking.all(|binding| binding.mode == Mode::Observe);
    if observed { Mode::Observe } else { claim.mode }
}

/// The binding whose policies hold for a claim: the one that wants it, else one that selects the pod there, else one of that service.
fn policy<'a>(sighting: &Sighting<'a>, claim: &Claim, want: Option<&Want<'a>>) -> Option<&'a Binding> {
    want.map(|want| want.binding).or_else(|| {
        let mut of_service = sighting.configuration.bindings.iter().filter(|binding| binding.service == claim.service);
        of_service.clone().find(|binding| sighting.pod.is_selected_by(binding)).or_else(|| of_service.next())
    })
}

fn grace_cut(pod: &PodView) -> Option<GraceCut> {
    let given = pod.deletion?.grace_seconds;
    let needed = pod.record.sleep_seconds?;
    (given > 0 && given < needed).then_some(GraceCut { given, needed })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::name("port: http", Reason::PortNotFound, "container port named http")]
    #[case::family("port: 80, family: ipv6", Reason::NoMatchingAddress, "IPv6 address")]
    #[case::family_of_a_name("port: http, family: ipv4", Reason::NoMatchingAddress, "IPv4 address")]
    fn what_a_pod_lacks_is_named(#[case] wants: &str, #[case] reason: Reason, #[case] lacks: &str) {
        let text = format!(
            "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\nregistries: [{{name: lan, http: {{url: 'http://a:1'}}}}]\n\
            bindings: [{{name: web, namespaces: [shop], podSelector: {{}}, registry: lan, service: web, {wants}, drain: {{fixed: 30s}}}}]\n"
        );
        let configuration = crate::config::parse(&text).unwrap();
        assert_eq!(Blocked::new(&configuration.bindings[0], reason).lacks, lacks);
    }
}
