//! Pods that are being deleted or have ended: drain, take out, let go.
//!
//! Invariant: the finalizer goes only when every claim is gone, or into the debts as a counted exception.
//! Absent on purpose: the gate, which in-cluster traffic to a serving, terminating endpoint may still follow.

use super::{Draft, Notice, Plan, Step, claimed};
use crate::config::OnDrainTimeout;
use crate::registration::claim::Claim;
use crate::registration::life::{Stage, later};
use crate::registration::observe::Outcome;
use crate::registration::reason::Reason;

/// Deleted, containers running: new traffic is stopped at once, and nothing else.
pub(super) fn terminating(mut draft: Draft<'_>) -> Plan {
    let o = draft.o;
    let mut changes = Vec::new();
    for (index, target, _) in claimed(o) {
        if let Some(operation) = target.wants_drain() {
            changes.push((index, operation));
        }
        if target.must_read_first() || matches!(target.facts.last, Some((_, Outcome::Unknown))) {
            draft.read(target, false);
        }
        draft.tell_trouble(target);
        draft.tell(Reason::Draining, || "The pod is being deleted; its targets get no new traffic.".to_owned());
    }
    if let Some(cut) = o.grace_cut {
        draft.tell(Reason::GraceOverridden, || {
            format!("The deletion gives {} s where the drain needs {} s; traffic may be cut.", cut.given, cut.needed)
        });
    }
    if let Some(deletion) = o.deletion {
        draft.due(later(deletion, o.rules.unreachable_after));
    }
    draft.finish(Reason::Draining, &changes)
}

/// Containers gone, or a forced deletion: everything is taken out, then the pod is let go.
pub(super) fn ending(mut draft: Draft<'_>) -> Plan {
    let o = draft.o;
    let containers_gone = o.life.stage == Stage::Gone;
    let mut changes = Vec::new();
    let mut left = Vec::new();
    let mut accepted = Vec::new();
    let mut only_while_gone = false;
    for (index, target, claim) in claimed(o) {
        if target.gone(containers_gone) {
            only_while_gone |= !target.gone(false);
            continue;
        }
        if target.let_go(containers_gone) {
            draft.read(target, true);
            accepted.push(claim);
            continue;
        }
        if let Some(operation) = target.wants_deregister(containers_gone) {
            changes.push((index, operation));
        }
        draft.read(target, true);
        draft.tell_trouble(target);
        left.push((claim, target.facts.owed));
    }
    if left.is_empty() {
        let tell = o.finalizer && claimed(o).next().is_some();
        draft.patch.tell = tell.then(|| notice(Reason::Deregistered, "Every registry has let the pod's targets go."));
        draft.patch.release = o.finalizer;
        draft.write_claims(&accepted);
        draft.patch.as_seen = only_while_gone;
        return draft.finish(Reason::Deregistered, &changes);
    }
    match timed_out(&mut draft) {
        Some(exception) if o.finalizer => give_up(&mut draft, &left, &accepted, exception),
        _ => {}
    }
    draft.finish(Reason::Deregistering, &changes)
}

/// The time that has passed, where it ends the wait.
fn timed_out(draft: &mut Draft<'_>) -> Option<Reason> {
    let o = draft.o;
    let forced = o.memory.forced_since.filter(|_| o.life.forced).is_some_and(|since| draft.due(later(since, o.rules.force_timeout)));
    let gone = o.life.stage == Stage::Gone;
    let held = o.memory.gone_since.filter(|_| gone).is_some_and(|since| draft.due(later(since, o.rules.drain_timeout)));
    if held && o.finalizer {
        draft.held = true;
        draft.tell(Reason::DrainTimeout, || {
            "The registry has not let the pod's targets go in time; see the other Events for why.".to_owned()
        });
    }
    if forced && o.finalizer {
        draft.tell(Reason::ForceTimeout, || {
            "The deletion was forced and the registry has not let the pod's targets go; they become debts.".to_owned()
        });
        return Some(Reason::ForceTimeout);
    }
    (held && o.rules.on_drain_timeout == OnDrainTimeout::Release).then_some(Reason::DrainTimeout)
}

/// Lets the pod go though claims are left: first they become debts. `accepted`: claims that hold nobody and are not known to be gone.
fn give_up(draft: &mut Draft<'_>, left: &[(Claim, bool)], accepted: &[Claim], exception: Reason) {
    let missing: Vec<Claim> = left.iter().filter(|(_, owed)| !owed).map(|(claim, _)| claim.clone()).collect();
    if missing.is_empty() {
        draft.patch.exception = Some(exception);
        draft.patch.as_seen = exception == Reason::DrainTimeout;
        draft.patch.release = draft.o.finalizer;
        draft.write_claims(accepted);
    } else if draft.o.debts_full {
        draft.tell(Reason::DebtsFull, || "The debts are as many as may be; the pod is held until some are paid.".to_owned());
    } else {
        draft.steps.push(Step::Record(missing));
    }
}

fn notice(reason: Reason, note: &str) -> Notice {
    Notice { reason, note: note.to_owned() }
}
