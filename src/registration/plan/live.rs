//! Pods that are neither deleted nor ended: claim, register, take out of use while they do not serve.
//!
//! Invariant: a claim is written before the first register, and the gate is False before a drain is sent.
//! Absent on purpose: what a target needs by itself (`registration::desire`).

use super::gate::{self, Gate};
use super::{Draft, Notice, Plan, Step, claimed};
use crate::config::{Ack, Mode, OnUnbound, OnUnready};
use crate::pod::Condition;
use crate::registration::claim::{self, Claim};
use crate::registration::life::Stage;
use crate::registration::observe::{Observation, Outcome, Role, TargetView};
use crate::registration::reason::Reason;
use crate::registry::{DrainKind, Operation, TargetKeys};

/// What a target of a live pod should have happen to it.
enum Need {
    /// Nothing.
    Nothing,
    /// This change, now.
    Change(Operation),
    /// This change, which takes a target out of use that a gate may vouch for.
    Out(Operation),
    /// Leave of the budget first.
    Leave,
}

/// The plan of a live pod.
pub(super) fn plan(mut draft: Draft<'_>) -> Plan {
    let o = draft.o;
    draft.patch.adopt = !o.finalizer || !o.labelled;
    let claims_full = write_claims(&mut draft);

    let needs: Vec<Need> = o.targets.iter().map(|target| need(o, target)).collect();
    let closing = needs.iter().any(|need| matches!(need, Need::Out(_)));
    let open = o.gated && o.gate.as_ref().is_some_and(|gate| gate.status);
    let next = gate::gate(&mut draft, closing, claims_full);
    let stays_open = open && next.as_ref().is_none_or(|next| next.status);
    let mut changes = Vec::new();
    for (index, need) in needs.iter().enumerate() {
        let target = &o.targets[index];
        match need {
            Need::Nothing => {}
            Need::Change(operation) => changes.push((index, *operation)),
            // While the gate is True, or is being turned False, the drain waits for what the next look says of it.
            Need::Out(operation) if !open => changes.push((index, *operation)),
            Need::Out(operation) if target.role == Role::Stale && stays_open => changes.push((index, *operation)),
            Need::Out(_) => {}
            Need::Leave => draft.steps.push(Step::Ask { service: target.service.clone(), address: target.address }),
        }
    }
    reads(&mut draft, &changes);
    let reason = match next {
        Some(gate) if o.gated => write_gate(&mut draft, gate),
        Some(gate) => gate.reason,
        None => o.gate.as_ref().and_then(|gate| Reason::parse(&gate.reason)).unwrap_or(Reason::Nothing),
    };
    draft.finish(reason, &changes)
}

/// Puts what is wanted among the claims and takes what is gone out; `true` where they are full.
fn write_claims(draft: &mut Draft<'_>) -> bool {
    let o = draft.o;
    let mut claims: Vec<Claim> = Vec::with_capacity(o.targets.len());
    for (_, target, mut claim) in claimed(o) {
        let dropped = match target.role {
            Role::Stale | Role::Superseded | Role::Unbound(OnUnbound::Deregister) => target.gone(false),
            Role::Wanted | Role::Kept | Role::Unbound(OnUnbound::Keep) => false,
        };
        if dropped {
            continue;
        }
        if target.role == Role::Wanted {
            claim.mode = target.mode;
        }
        claims.push(claim);
    }
    let mut full = false;
    for target in o.targets.iter().filter(|target| target.claim.is_none()) {
        if o.life.stage != Stage::Serving || target.facts.traits.is_none() {
            continue;
        }
        claims.push(Claim { service: target.service.clone(), address: target.address, mode: target.mode });
        if !claim::fits(&claims) {
            claims.pop();
            full = true;
        }
    }
    if full {
        draft.tell(Reason::ClaimsFull, || "The pod has as many claims as a condition may hold.".to_owned());
    }
    draft.write_claims(&claims);
    full
}

fn need(o: &Observation, target: &TargetView) -> Need {
    match (target.role, o.life.stage) {
        (Role::Wanted, Stage::Serving) => {
            let closed = o.gated && !o.gate.as_ref().is_some_and(|gate| gate.status);
            if target.wants_register(closed) { Need::Change(Operation::Register) } else { Need::Nothing }
        }
        (Role::Wanted | Role::Kept | Role::Superseded, Stage::NotServing(_)) => out_of_use(target),
        (Role::Superseded, Stage::Serving) => match replaced(o, target).then(|| target.wants_deregister(false)).flatten() {
            Some(operation) => Need::Change(operation),
            None => Need::Nothing,
        },
        (Role::Stale, _) if !address_slot_is_ours_again(o, target) => target.wants_deregister(false).map_or(Need::Nothing, Need::Out),
        (Role::Unbound(OnUnbound::Deregister), _) => match target.wants_deregister(false) {
            Some(operation) if target.facts.granted => Need::Change(operation),
            Some(_) => Need::Leave,
            None => Need::Nothing,
        },
        _ => Need::Nothing,
    }
}

/// What `onUnready` says, within the budget.
fn out_of_use(target: &TargetView) -> Need {
    let explicit = target.facts.traits.is_some_and(|traits| traits.drain == DrainKind::Explicit);
    let operation = match target.on_unready {
        OnUnready::Drain if explicit => target.wants_drain(),
        // There is no drain to send where draining is deregistering: that must be spelled out.
        OnUnready::Drain | OnUnready::Keep => None,
        OnUnready::Deregister => target.wants_deregister(false),
    };
    match operation {
        Some(operation) if target.facts.granted => Need::Out(operation),
        Some(_) => Need::Leave,
        None => Need::Nothing,
    }
}

/// Whether every target that replaces `old` in its service is acknowledged.
fn replaced(o: &Observation, old: &TargetView) -> bool {
    o.targets.iter().filter(|target| target.role == Role::Wanted && target.service == old.service).all(TargetView::acknowledged)
}

/// Where pod UID and port name a target, a change of the old address would hit the target at the new one.
fn address_slot_is_ours_again(o: &Observation, old: &TargetView) -> bool {
    let by_uid = old.facts.traits.is_some_and(|traits| traits.keys == TargetKeys::Uid);
    by_uid
        && o.targets.iter().any(|target| {
            target.role != Role::Stale
                && target.service == old.service
                && target.address.port() == old.address.port()
                && (target.claim.is_some() || o.life.stage == Stage::Serving)
        })
}

/// Which services are read because something of this pod waits for them.
fn reads(draft: &mut Draft<'_>, changes: &[(usize, Operation)]) {
    let o = draft.o;
    let settled = o.gate.as_ref().is_some_and(Condition::is_registered);
    let moving = o.targets.iter().any(|target| target.role == Role::Superseded);
    for (index, target, _) in claimed(o) {
        let changing = changes.iter().any(|(of, _)| *of == index);
        let ambiguous = matches!(target.facts.last, Some((_, Outcome::Unknown)));
        let waits = match target.role {
            Role::Wanted if o.life.stage == Stage::Serving => {
                let about_to_be_accepted = target.ack == Ack::Accepted && target.facts.last.is_none() && changing;
                let unacknowledged = !target.acknowledged() && !about_to_be_accepted;
                unacknowledged && (ambiguous || target.must_read_first() || (o.gated && !settled) || moving)
            }
            Role::Wanted | Role::Kept => ambiguous || target.must_read_first(),
            Role::Superseded => ambiguous || (replaced(o, target) && !target.gone(false)),
            Role::Stale => !target.gone(false),
            Role::Unbound(OnUnbound::Deregister) => (target.facts.granted || target.facts.seen.is_none()) && !target.gone(false),
            Role::Unbound(OnUnbound::Keep) => false,
        };
        if waits && !(changing && target.mode == Mode::Own) {
            draft.read(target, false);
        }
        if waits {
            draft.tell_trouble(target);
        }
    }
}

/// Writes the gate's condition where it differs.
fn write_gate(draft: &mut Draft<'_>, next: Gate) -> Reason {
    let current = draft.o.gate.as_ref();
    let before = current.is_some_and(|gate| gate.status);
    let same_reason = current.is_some_and(|gate| gate.status == next.status && gate.reason == next.reason.as_str());
    let same = same_reason && current.is_some_and(|gate| says_as_much(&gate.message, &next));
    if !same {
        let transition = (current.is_none() || before != next.status).then_some(draft.now);
        if !same_reason && next.reason != Reason::WaitingForContainers {
            draft.patch.tell = Some(Notice { reason: next.reason, note: next.message.clone() });
        }
        if next.exception {
            draft.patch.exception = Some(next.reason);
        }
        draft.patch.as_seen = next.status;
        draft.patch.gate = Some(super::ConditionChange { status: next.status, reason: next.reason, message: next.message, transition });
    }
    next.reason
}

/// Whether a condition of the same status and reason need not be written again: only a problem that is news is worth a write.
fn says_as_much(message: &str, next: &Gate) -> bool {
    message == next.message || !next.message.contains('(')
}
