//! The gate of a live pod: what it should say, and why.
//!
//! Invariant: it turns True only on an acknowledgement of every target while the containers are ready, or as the counted exception;
//! once True, neither a registry's health nor an edited binding takes it back.
//! Absent on purpose: the gate of a pod that is being deleted or has ended; it is left.

use crate::config::OnGateTimeout;
use crate::registration::life::{Cause, Stage, later};
use crate::registration::observe::{Blocked, Observation, Role, Seen, TargetView};
use crate::registration::reason::Reason;
use crate::target::TargetState;

use super::Draft;

/// What the gate says of a target whose check fails.
pub(crate) const UNHEALTHY: &str = "unhealthy";
/// What the gate says of a target that its registry holds and does not use.
pub(crate) const IN_NO_USE: &str = "registered, but in no use";
/// The most targets that one message names.
const NAMED_TARGETS: usize = 3;

/// What the gate should say.
pub(super) struct Gate {
    pub(super) status: bool,
    pub(super) reason: Reason,
    pub(super) message: String,
    /// It opens though not everything is acknowledged.
    pub(super) exception: bool,
}

/// What the gate should say, from what the pod is; `None`: it is left as it is. `closing`: a drain that will be sent needs it False.
pub(super) fn gate(draft: &mut Draft<'_>, closing: bool, claims_full: bool) -> Option<Gate> {
    let o = draft.o;
    let open = o.gate.as_ref().is_some_and(|gate| gate.status);
    match o.life.stage {
        Stage::Waiting => waiting(o, open),
        Stage::Serving if !o.bound => Some(no_binding()),
        Stage::NotServing(_) if !o.bound => open.then(no_binding),
        Stage::Serving if open => staying_open(draft),
        Stage::Serving => Some(opening(draft, claims_full)),
        Stage::NotServing(cause) if closing => Some(not_serving(cause)),
        // The reasons of `not_serving` tell the next leader that the target may be out of use.
        Stage::NotServing(_) => o.gate.is_none().then(never_ready),
        Stage::Terminating | Stage::Gone => None,
    }
}

/// Whether every target that a binding wants is acknowledged.
pub(super) fn all_acknowledged(o: &Observation) -> bool {
    o.blocked.is_empty() && o.targets.iter().filter(|target| target.role == Role::Wanted).all(TargetView::acknowledged)
}

/// Whether the pod's address changed: it wants a target that is not claimed where it still has one at an address it lost.
pub(super) fn address_changed(o: &Observation) -> bool {
    o.targets.iter().any(|target| {
        target.role == Role::Wanted
            && target.claim.is_none()
            && o.targets.iter().any(|other| other.role == Role::Stale && other.service == target.service)
    })
}

fn waiting(o: &Observation, open: bool) -> Option<Gate> {
    let no_address = o.targets.iter().all(|target| target.role != Role::Wanted);
    if open && !(no_address && o.targets.iter().any(|target| target.role == Role::Stale)) {
        return if o.bound { None } else { Some(no_binding()) };
    }
    Some(never_ready())
}

fn staying_open(draft: &mut Draft<'_>) -> Option<Gate> {
    let o = draft.o;
    if address_changed(o) && !is_let_through(draft) {
        return Some(closed(Reason::Registering, waits_for(o)));
    }
    (all_acknowledged(o) && o.gate.as_ref().is_some_and(|gate| gate.reason != Reason::Registered.as_str())).then(registered)
}

/// Whether the gate is open because its time is over, and would be opened again at once for the same reason.
fn is_let_through(draft: &mut Draft<'_>) -> bool {
    let o = draft.o;
    o.rules.on_gate_timeout == OnGateTimeout::Open
        && o.blocked.is_empty()
        && o.gate.as_ref().is_some_and(|gate| gate.reason == Reason::GateTimeout.as_str())
        && is_overdue(draft)
}

/// Whether the pod has been ready for so long that its gate should be open.
fn is_overdue(draft: &mut Draft<'_>) -> bool {
    let o = draft.o;
    o.ready_since.is_some_and(|since| draft.due(later(since, o.rules.gate_timeout)))
}

fn opening(draft: &mut Draft<'_>, claims_full: bool) -> Gate {
    let o = draft.o;
    if all_acknowledged(o) {
        return registered();
    }
    let overdue = is_overdue(draft);
    if overdue {
        draft.held = true;
        let why = || o.blocked.first().map_or_else(|| waits_for(o), lacks);
        draft.tell(Reason::GateTimeout, || format!("The pod has not become Ready in time. {}", why()));
    }
    if let Some(blocked) = o.blocked.first() {
        return closed(blocked.reason, lacks(blocked));
    }
    if overdue && o.rules.on_gate_timeout == OnGateTimeout::Open {
        draft.held = false;
        return Gate {
            status: true,
            reason: Reason::GateTimeout,
            message: "The registry did not acknowledge in time; the configuration lets the pod through.".to_owned(),
            exception: true,
        };
    }
    if claims_full {
        return closed(Reason::ClaimsFull, "The pod has as many claims as a condition may hold.".to_owned());
    }
    if let Some(target) = o.targets.iter().find(|target| target.role == Role::Wanted && target.facts.traits.is_none()) {
        let note = format!("Registry {} of the configuration cannot be used by this version.", target.service.registry);
        return closed(Reason::RegistryUnusable, note);
    }
    closed(Reason::Registering, waits_for(o))
}

fn registered() -> Gate {
    Gate { status: true, reason: Reason::Registered, message: "Every registry has acknowledged the pod.".to_owned(), exception: false }
}

fn no_binding() -> Gate {
    Gate { status: true, reason: Reason::NoBinding, message: "No binding selects the pod.".to_owned(), exception: false }
}

fn never_ready() -> Gate {
    closed(Reason::WaitingForContainers, "The containers have not been ready yet.".to_owned())
}

fn not_serving(cause: Cause) -> Gate {
    match cause {
        Cause::Unready => closed(Reason::NotServing, "The containers are not ready; the target is taken out of use.".to_owned()),
        Cause::NodeLost => closed(Reason::NodeLost, "The node is lost; the target is taken out of use.".to_owned()),
    }
}

fn closed(reason: Reason, message: String) -> Gate {
    Gate { status: false, reason, message, exception: false }
}

fn lacks(blocked: &Blocked) -> String {
    format!("The pod has no {}, which binding {} wants.", blocked.lacks, blocked.binding)
}

/// One sentence about what is waited for; the same as long as the same keeps it waiting, and registries say the same of it.
fn waits_for(o: &Observation) -> String {
    let waiting = || o.targets.iter().filter(|target| target.role == Role::Wanted && !target.acknowledged());
    let mut message = String::from("Waiting for");
    for (index, target) in waiting().take(NAMED_TARGETS).enumerate() {
        message.push_str(if index == 0 { " " } else { ", " });
        message.push_str(&format!("{} {}", target.service, target.address));
        if let Some(problem) = problem(target) {
            message.push_str(&format!(" ({problem})"));
        }
    }
    let more = waiting().count().saturating_sub(NAMED_TARGETS);
    if more > 0 {
        message.push_str(&format!(" and {more} more"));
    }
    message.push('.');
    message
}

fn problem(target: &TargetView) -> Option<String> {
    if let Some(trouble) = target.trouble() {
        return Some(trouble);
    }
    let problem = match target.facts.seen {
        _ if target.facts.taken => "the registry holds a target of somebody else there",
        Some(Seen::Listed { state: TargetState::Unhealthy, .. }) => UNHEALTHY,
        Some(Seen::Listed { state: TargetState::Unused, .. }) => IN_NO_USE,
        _ => return None,
    };
    Some(problem.to_owned())
}
