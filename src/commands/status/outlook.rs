//! What a pod waits for, until when, what happens then, and the command that helps.
//!
//! It is what somebody asks who was called at night: is this one stuck, on whom, and what can be done.
//!
//! Invariant: pure; where a pod stands is decided by the reconciler's own `life`, and times by the configuration's own rules.
//! Absent on purpose: times that are past (`timeline`), how it looks (`text`).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use super::sight::{Sight, Told};
use crate::config::{Binding, OnDrainTimeout, OnGateTimeout, Registration};
use crate::reconcile::cluster::NodeView;
use crate::registration::Reason;
use crate::registration::life::{self, Cause, Life, Node, Stage, gone_since, later};
use crate::registration::plan::gate::{IN_NO_USE, UNHEALTHY};
use crate::target::PodKey;

/// A pod whose targets are all gone is let go within this; longer, and nobody reconciles.
const LET_GO: SignedDuration = SignedDuration::from_secs(60);
/// What a gate says of a target that its registry checks and does not use yet: nothing strange in a pod that has just started.
const CHECKED: [&str; 2] = [UNHEALTHY, IN_NO_USE];

/// What holds for all pods.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct Ground {
    /// How long to wait for what.
    pub(in crate::commands) rules: Registration,
    /// The bindings.
    pub(in crate::commands) bindings: Vec<Binding>,
    /// The nodes; `None` where they may not be read.
    pub(in crate::commands) nodes: Option<BTreeMap<Arc<str>, NodeView>>,
}

/// How a pod is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) enum Standing {
    /// It needs a person.
    Stuck,
    /// On its way, within its time.
    Waiting,
    /// At rest.
    Settled,
}

/// Where a pod stands, and what comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct Outlook {
    /// Where it stands, in the word of conditions, Events and metrics.
    pub(in crate::commands) state: Reason,
    /// How bad that is.
    pub(in crate::commands) standing: Standing,
    /// Since when.
    pub(in crate::commands) since: Option<Timestamp>,
    /// What the registry says.
    pub(in crate::commands) registry: String,
    /// What it waits for.
    pub(in crate::commands) waits_for: Option<String>,
    /// How long at most.
    pub(in crate::commands) until: Option<Timestamp>,
    /// What happens then.
    pub(in crate::commands) then: Option<String>,
    /// What a person can do, the mildest first.
    pub(in crate::commands) help: Vec<Help>,
    /// Who keeps it, where the doctor is asked to say what is wrong there.
    pub(in crate::commands) kept_by: Option<Keeper>,
}

/// Who keeps a pod that needs the doctor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Keeper {
    /// A registry does not do, or does not say, what is wanted.
    Registry,
    /// Lockstep itself does nothing, though it could.
    Lockstep,
}

/// A command that helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) struct Help {
    /// The command.
    pub(in crate::commands) command: String,
    /// What it does, or shows.
    pub(in crate::commands) effect: String,
}

/// Looks ahead for one pod.
pub(in crate::commands) fn outlook(sight: &Sight, told: &[&Told], ground: &Ground, now: Timestamp) -> Outlook {
    let pod = &sight.pod;
    let served = !sight.claims.is_empty() || pod.is_open();
    let life = life::life(pod, served, ground.node_of(sight), now, ground.rules.unreachable_after);
    let look = Look { sight, told, ground, life, now };
    if pod.released {
        return look.released();
    }
    match life.stage {
        Stage::Waiting => look.waiting(),
        Stage::Serving => look.serving(),
        Stage::NotServing(cause) => look.not_serving(cause),
        Stage::Terminating if !life.forced => look.terminating(),
        Stage::Terminating | Stage::Gone => look.ending(),
    }
}

impl Ground {
    /// What is known of a pod's node; one that may not be looked at counts as well.
    fn node_of(&self, sight: &Sight) -> Node {
        match (&sight.pod.node, &self.nodes) {
            (None, _) => Node::None,
            (Some(_), None) => Node::Well,
            (Some(name), Some(nodes)) => NodeView::judge(nodes.get(name)),
        }
    }
}

impl Standing {
    /// The word for it.
    pub(in crate::commands) fn as_str(self) -> &'static str {
        match self {
            Self::Stuck => "stuck",
            Self::Waiting => "waiting",
            Self::Settled => "settled",
        }
    }
}

impl Outlook {
    fn at_rest(state: Reason, since: Option<Timestamp>, registry: &str) -> Self {
        let registry = registry.to_owned();
        let standing = Standing::Settled;
        Self { state, standing, since, registry, waits_for: None, until: None, then: None, help: Vec::new(), kept_by: None }
    }

    fn waits(state: Reason, since: Option<Timestamp>, registry: String, waits_for: String) -> Self {
        let (standing, waits_for) = (Standing::Waiting, Some(waits_for));
        Self { state, standing, since, registry, waits_for, until: None, then: None, help: Vec::new(), kept_by: None }
    }

    /// It is over, or not over yet, at `until`; `late` says what holds from then on.
    fn by(mut self, until: Timestamp, now: Timestamp, then: &str, late: &str) -> Self {
        if now < until {
            self.until = Some(until);
            self.then = Some(then.to_owned());
        } else {
            self.standing = Standing::Stuck;
            self.then = Some(late.to_owned());
        }
        self
    }

    fn stuck_if(mut self, stuck: bool) -> Self {
        if stuck {
            self.standing = Standing::Stuck;
        }
        self
    }

    fn helped(mut self, help: impl IntoIterator<Item = Help>) -> Self {
        self.help.extend(help);
        self
    }

    /// The doctor says what is wrong with who keeps it.
    fn kept_by(mut self, keeper: Keeper) -> Self {
        self.kept_by = Some(keeper);
        self.helped([help("lockstep doctor".to_owned(), "says which link of the chain is broken")])
    }
}

struct Look<'a> {
    sight: &'a Sight,
    told: &'a [&'a Told],
    ground: &'a Ground,
    life: Life,
    now: Timestamp,
}

impl Look<'_> {
    fn released(&self) -> Outlook {
        let leaving = self.sight.pod.deletion.is_some() && !self.sight.other_finalizers.is_empty();
        if leaving {
            self.held_by_others(Reason::Released)
        } else {
            Outlook::at_rest(Reason::Released, self.gate_since(), "left as it was")
        }
    }

    fn waiting(&self) -> Outlook {
        let sight = self.sight;
        let (since, what) = match (&sight.unscheduled, sight.scheduled, &sight.troubled[..]) {
            (Some(why), _, _) => (sight.created, format!("a node: {why}")),
            (None, None, _) if sight.pod.node.is_none() => (sight.created, "a node".to_owned()),
            (None, scheduled, []) => (scheduled.or(sight.created), "its containers to be ready".to_owned()),
            (None, scheduled, troubled) => (scheduled.or(sight.created), format!("its containers to be ready: {}", troubled.join(", "))),
        };
        let troubled = !sight.troubled.is_empty();
        Outlook::waits(Reason::WaitingForContainers, since, "not told yet".into(), what).stuck_if(troubled).helped([self.describe()])
    }

    fn serving(&self) -> Outlook {
        let pod = &self.sight.pod;
        let Some(gate) = pod.gate.as_ref().filter(|_| pod.gated) else {
            return if pod.gated { self.not_seen_yet() } else { self.ungated() };
        };
        let reason = Reason::parse(&gate.reason).unwrap_or(Reason::Nothing);
        if gate.status {
            let says = match reason {
                Reason::Registered => "acknowledged",
                Reason::GateTimeout => "did not acknowledge in time",
                _ => "not asked",
            };
            return Outlook::at_rest(reason, gate.since, says);
        }
        let since = pod.containers_ready.as_ref().and_then(|ready| ready.since).or(gate.since);
        let problems = problems(&gate.message);
        let says = if problems.is_empty() { "not acknowledged yet".to_owned() } else { problems.join(", ") };
        let waits_for = gate.message.trim_end_matches('.');
        let waits_for =
            waits_for.strip_prefix("Waiting for ").map_or_else(|| decapitalised(waits_for), |what| format!("{what} to be acknowledged"));
        let stuck = reason.warns() || problems.iter().any(|problem| !CHECKED.contains(problem));
        let outlook = self.gate_deadline(Outlook::waits(reason, since, says, waits_for), since).stuck_if(stuck);
        self.gate_help(outlook, !problems.is_empty())
    }

    fn gate_deadline(&self, outlook: Outlook, since: Option<Timestamp>) -> Outlook {
        let rules = &self.ground.rules;
        let Some(since) = since else { return outlook };
        let (then, late) = match rules.on_gate_timeout {
            OnGateTimeout::Hold => (
                "a Warning Event; the pod goes on waiting (onGateTimeout: hold)",
                "nothing by itself: the pod waits until the registry acknowledges (onGateTimeout: hold)",
            ),
            OnGateTimeout::Open => (
                "the gate opens without an acknowledgement (onGateTimeout: open)",
                "the gate opens without an acknowledgement, once a replica looks (onGateTimeout: open)",
            ),
        };
        outlook.by(later(since, rules.gate_timeout), self.now, then, late)
    }

    /// Its containers are ready, and Lockstep has not written a word.
    fn not_seen_yet(&self) -> Outlook {
        let since = self.sight.pod.containers_ready.as_ref().and_then(|ready| ready.since);
        let outlook = Outlook::waits(Reason::Registering, since, "not told yet".into(), "Lockstep to look at it".into());
        outlook
            .stuck_if(since.is_some_and(|since| self.now.duration_since(since) > LET_GO))
            .kept_by(Keeper::Lockstep)
            .helped([self.release("opens its gate")])
    }

    /// A pod that ran before the opt-in: the acknowledgement is not written on it.
    fn ungated(&self) -> Outlook {
        if self.sight.claims.is_empty() && !self.sight.pod.finalizer {
            return self.unmanaged();
        }
        let since = self.sight.pod.claims.as_ref().and_then(|claims| claims.since);
        match self.trouble(since) {
            None => Outlook::at_rest(Reason::Adopted, since, "told; the pod has no gate to show more"),
            Some(note) => Outlook::waits(Reason::Adopted, since, note.to_owned(), self.targets("to be acknowledged"))
                .stuck_if(true)
                .kept_by(Keeper::Registry),
        }
    }

    /// Lockstep does not know the pod, and may never have to.
    fn unmanaged(&self) -> Outlook {
        let pod = &self.sight.pod;
        let bindings = &self.ground.bindings;
        if !bindings.is_empty() && !bindings.iter().any(|binding| pod.is_selected_by(binding)) {
            return Outlook::at_rest(Reason::NoBinding, None, "never told of it: no binding selects the pod's namespace and labels");
        }
        if bindings.is_empty() || pod.is_opted_out() || pod.completes {
            return Outlook::at_rest(Reason::Nothing, None, "never told of it; Lockstep does not manage the pod");
        }
        let what = "Lockstep to adopt it, within ten minutes where its namespace is opted in".to_owned();
        Outlook::waits(Reason::Nothing, self.sight.created, "never told of it".to_owned(), what).kept_by(Keeper::Lockstep)
    }

    fn not_serving(&self, cause: Cause) -> Outlook {
        let pod = &self.sight.pod;
        let (state, what) = match cause {
            Cause::Unready => (Reason::NotServing, "its containers to be ready again"),
            Cause::NodeLost => (Reason::NodeLost, "its node to come back"),
        };
        let says = if pod.is_open() || !pod.gated { "left in" } else { "taken out of use" };
        let since = pod.containers_ready.as_ref().filter(|ready| !ready.status).and_then(|ready| ready.since).or(self.gate_since());
        let what = match &self.sight.troubled[..] {
            [] => what.to_owned(),
            troubled => format!("{what}: {}", troubled.join(", ")),
        };
        Outlook::waits(state, since, says.to_owned(), what).stuck_if(true).helped([self.describe()])
    }

    fn terminating(&self) -> Outlook {
        let pod = &self.sight.pod;
        let requested = pod.deletion.and_then(|deletion| deletion.requested());
        let sleep = self.sight.pod.record.sleep_seconds.unwrap_or_default();
        let sleeps = requested.map(|at| later(at, std::time::Duration::from_secs(sleep.unsigned_abs()))).filter(|end| self.now < *end);
        let trouble = self.trouble(requested);
        let says = match (trouble, self.sight.claims.is_empty()) {
            (Some(note), _) => note,
            (None, true) => "nothing is registered",
            (None, false) => "no new traffic",
        };
        let what = match sleeps {
            Some(end) => format!("its containers: they serve what the outside still sends, in their preStop sleep until {}", clock(end)),
            None => "its containers to stop".to_owned(),
        };
        let outlook = Outlook::waits(Reason::Draining, requested, says.to_owned(), what).stuck_if(trouble.is_some());
        let outlook = if trouble.is_some() { outlook.kept_by(Keeper::Registry) } else { outlook };
        let Some(deletion) = pod.deletion else { return outlook };
        let given_up = later(deletion.at, self.ground.rules.unreachable_after);
        if self.now < deletion.at {
            let then = "the kubelet kills what still runs; then the targets are taken out";
            return outlook.by(deletion.at, self.now, then, then);
        }
        let then = "the containers count as gone, and the targets are taken out";
        outlook.by(given_up, self.now, then, then).helped([self.describe()])
    }

    fn ending(&self) -> Outlook {
        let pod = &self.sight.pod;
        if !pod.finalizer {
            let leaving = pod.deletion.is_some() && !self.sight.other_finalizers.is_empty();
            let since = pod.deletion.and_then(|deletion| deletion.requested()).or(pod.finished);
            return if leaving {
                self.held_by_others(Reason::Deregistered)
            } else {
                Outlook::at_rest(Reason::Deregistered, since, "let go")
            };
        }
        let rules = &self.ground.rules;
        let since = gone_since(pod, self.now, rules.unreachable_after);
        let trouble = self.trouble(pod.deletion.and_then(|deletion| deletion.requested()));
        let release = self.release("lets the object go; its targets stay registered until you take them out");
        if self.sight.claims.is_empty() {
            let late = self.now.duration_since(since) > LET_GO;
            let outlook =
                Outlook::waits(Reason::Deregistering, Some(since), "nothing is registered".into(), "Lockstep to let it go".into());
            return outlook.stuck_if(late).kept_by(Keeper::Lockstep).helped([release]);
        }
        let says = trouble.unwrap_or("not let go yet").to_owned();
        let outlook = Outlook::waits(Reason::Deregistering, Some(since), says, self.targets("to be let go"));
        let outlook = outlook.kept_by(Keeper::Registry).helped([release]);
        let outlook = if self.life.forced && self.life.stage != Stage::Gone {
            let requested = pod.deletion.and_then(|deletion| deletion.requested()).unwrap_or(since);
            let then = "the pod goes, and its targets become debts (forceTimeout)";
            outlook.by(later(requested, rules.force_timeout), self.now, then, then)
        } else {
            self.drain_deadline(outlook, since)
        };
        outlook.stuck_if(trouble.is_some())
    }

    fn drain_deadline(&self, outlook: Outlook, since: Timestamp) -> Outlook {
        let rules = &self.ground.rules;
        let (then, late) = match rules.on_drain_timeout {
            OnDrainTimeout::Hold => (
                "a Warning Event; the object stays until the registry lets go (onDrainTimeout: hold)",
                "nothing by itself: the object stays until the registry lets go (onDrainTimeout: hold)",
            ),
            OnDrainTimeout::Release => (
                "the pod goes, and its targets become debts (onDrainTimeout: release)",
                "the pod goes, and its targets become debts, once a replica looks (onDrainTimeout: release)",
            ),
        };
        outlook.by(later(since, rules.drain_timeout), self.now, then, late)
    }

    fn held_by_others(&self, state: Reason) -> Outlook {
        let since = self.sight.pod.deletion.and_then(|deletion| deletion.requested());
        let names = self.sight.other_finalizers.join(", ");
        let outlook = Outlook::waits(state, since, "let go".into(), format!("finalizers of others: {names}"));
        outlook.helped([help(format!("kubectl get pod {} --output yaml", named(&self.sight.pod.key)), "shows whose finalizers hold it")])
    }

    /// What Lockstep last said of a registry that fails, where it said so since then.
    fn trouble(&self, since: Option<Timestamp>) -> Option<&str> {
        let failing = |told: &&Told| told.ours && told.reason == Reason::RegistryFailing.as_str();
        let recent = |told: &&Told| since.is_none_or(|since| told.last.is_none_or(|last| last >= since));
        let latest = self.told.iter().copied().filter(failing).filter(recent).max_by_key(|told| told.last)?;
        Some(latest.note.trim_end_matches('.'))
    }

    fn targets(&self, what: &str) -> String {
        let targets: Vec<String> = self.sight.claims.iter().map(|claim| format!("{} {}", claim.service, claim.address)).collect();
        format!("{} {what}", targets.join(", "))
    }

    fn gate_since(&self) -> Option<Timestamp> {
        self.sight.pod.gate.as_ref().and_then(|gate| gate.since)
    }

    fn gate_help(&self, outlook: Outlook, troubled: bool) -> Outlook {
        let key = &self.sight.pod.key;
        let outlook = match outlook.state {
            Reason::PortNotFound => outlook.helped([help(
                format!("kubectl get pod {} --output jsonpath='{{.spec.containers[*].ports}}'", named(key)),
                "shows the ports that the pod names; `port` of the binding in the ConfigMap must be one of them",
            )]),
            Reason::NoMatchingAddress => outlook.helped([help(
                format!("kubectl get pod {} --output jsonpath='{{.status.podIPs}}'", named(key)),
                "shows its addresses; the binding's family must be among them",
            )]),
            _ if troubled || outlook.standing == Standing::Stuck => outlook.kept_by(Keeper::Registry),
            _ => outlook,
        };
        outlook.helped([self.release("opens its gate although nothing was acknowledged")])
    }

    fn describe(&self) -> Help {
        help(format!("kubectl describe pod {}", named(&self.sight.pod.key)), "says what keeps its containers")
    }

    fn release(&self, effect: &str) -> Help {
        help(format!("lockstep release {}", self.sight.pod.key), &format!("break glass: {effect}"))
    }
}

/// An age or a distance in time as kubectl shows it.
pub(in crate::commands) fn span(span: SignedDuration) -> String {
    let seconds = span.as_secs().unsigned_abs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => format!("{}m{}s", seconds / 60, seconds % 60),
        600..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A time of day, in UTC as all that Kubernetes prints.
pub(in crate::commands) fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%SZ").to_string()
}

/// What a gate's message says of its targets, in its parentheses, each once; a registry's own words may hold some too.
fn problems(message: &str) -> Vec<&str> {
    let mut problems: Vec<&str> = Vec::new();
    let (mut depth, mut begin) = (0_usize, 0);
    for (at, c) in message.char_indices() {
        match c {
            '(' => {
                depth += 1;
                if depth == 1 {
                    begin = at + 1;
                }
            }
            ')' if depth == 1 => {
                depth = 0;
                if !problems.contains(&&message[begin..at]) {
                    problems.push(&message[begin..at]);
                }
            }
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    problems
}

fn decapitalised(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

fn help(command: String, effect: &str) -> Help {
    Help { command, effect: effect.to_owned() }
}

/// A pod as kubectl takes it.
fn named(key: &PodKey) -> String {
    format!("{} --namespace {}", key.name, key.namespace)
}

#[cfg(test)]
mod tests;
