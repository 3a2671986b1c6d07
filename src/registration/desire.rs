//! What one target needs: is it acknowledged, is it gone, which change would bring it further.
//!
//! Every rule about stale reads, ambiguous answers and foreign targets stands here, once, for all stages of a pod.
//!
//! Invariant: an answer is believed only where it says what the registry holds after our last change to the target; a target of somebody
//! else is never named in a change.
//! Absent on purpose: when a change may be sent (gate first, budget: `plan`; pace: `reconcile::service`).

use super::observe::{Doing, Facts, Heir, Outcome, Seen, TargetView, Traits};
use super::reason::Reason;
use crate::config::{Ack, Mode, OnUnready};
use crate::pod::Condition;
use crate::registry::{DrainKind, GoneWhen, Operation, TargetKeys};
use crate::target::TargetState;

impl TargetView {
    /// Whether the claim gives leave to send changes.
    pub fn ours_to_change(&self) -> bool {
        self.claim == Some(Mode::Own) && self.mode == Mode::Own
    }

    /// Whether the registry has acknowledged that the target is in use.
    pub fn acknowledged(&self) -> bool {
        let facts = &self.facts;
        if self.claim != Some(self.mode) || matches!(facts.doing, Doing::Sent(_)) {
            return false;
        }
        if self.mode == Mode::Observe {
            return matches!(facts.seen, Some(Seen::Listed { state: TargetState::Active, .. }));
        }
        match self.ack {
            Ack::Accepted => {
                facts.last == Some((Operation::Register, Outcome::Accepted))
                    || matches!(facts.seen, Some(Seen::Listed { state, ours }) if state != TargetState::Draining && self.is_ours(ours))
            }
            Ack::Acknowledged => matches!(facts.seen, Some(Seen::Listed { state: TargetState::Active, ours }) if self.is_ours(ours)),
        }
    }

    /// Whether nothing of the target is left in the registry.
    pub fn gone(&self, containers_gone: bool) -> bool {
        let facts = &self.facts;
        if matches!(facts.doing, Doing::Sent(_)) {
            return false;
        }
        let let_go = match facts.seen.filter(|_| facts.seen_fresh).map(Seen::held) {
            Some(None) => !self.may_still_appear(),
            Some(Some(TargetState::Draining)) => {
                containers_gone && facts.traits.is_some_and(|traits| traits.gone_when == GoneWhen::Draining) && self.was_told_to_go()
            }
            Some(Some(_)) | None => false,
        };
        if self.mode == Mode::Observe {
            return let_go || facts.heir.is_some_and(|heir| heir != Heir::Doubtful);
        }
        let not_found = facts.last_fresh && facts.last == Some((Operation::Deregister, Outcome::NotFound));
        let_go || not_found || (facts.heir == Some(Heir::Claims) && facts.keys_by_address())
    }

    /// Whether a register that may have been done was our last word: a registry whose reads lag does not show it yet.
    fn may_still_appear(&self) -> bool {
        matches!(self.facts.last, Some((Operation::Register, Outcome::Accepted | Outcome::Unknown))) && self.changeable().is_some()
    }

    /// Whether a target that is draining is on its way out: our own drain leaves it in.
    fn was_told_to_go(&self) -> bool {
        let by_deregistering = self.facts.traits.is_some_and(|traits| traits.drain == DrainKind::ByDeregistering);
        self.mode == Mode::Observe || by_deregistering || self.facts.last == Some((Operation::Deregister, Outcome::Accepted))
    }

    /// Whether the registry has let the target go, as far as the binding asks: with `ack: accepted` an accepted deregister is enough.
    pub fn let_go(&self, containers_gone: bool) -> bool {
        let accepted = self.facts.last_fresh && self.facts.last == Some((Operation::Deregister, Outcome::Accepted));
        self.gone(containers_gone) || (accepted && self.ack == Ack::Accepted && !matches!(self.facts.doing, Doing::Sent(_)))
    }

    /// The change that puts the target in, where one is needed. `closed`: the pod waits for it behind a gate that is not True.
    pub fn wants_register(&self, closed: bool) -> bool {
        use Outcome::{Accepted, NotFound, Refused, Unknown};
        let facts = &self.facts;
        let contested = facts.heir == Some(Heir::Doubtful);
        let barred = facts.taken || facts.dropping || contested;
        if !self.ours_to_change() || facts.traits.is_none() || barred || self.must_read_first() {
            return false;
        }
        let missing = facts.seen.is_some_and(Seen::is_missing);
        let here_and_ours = matches!(facts.seen, Some(Seen::Listed { ours, .. }) if self.is_ours(ours)) && !missing;
        let unused = matches!(facts.seen, Some(Seen::Listed { state: TargetState::Unused, .. }));
        match facts.last {
            None if facts.seen.is_none() => facts.fresh_claim || closed,
            // There and in no use, whoever led before may have been cut short; the gate may open on it with `ack: accepted`.
            None => missing || (closed && unused) || (!here_and_ours && (closed || facts.fresh_claim)),
            // Where it was lost and came back, it is anybody's until it is registered anew; an open gate does not wait for that.
            Some((Operation::Register, Accepted)) => missing || (facts.seen.is_some() && !here_and_ours && closed),
            Some((Operation::Register, Refused | NotFound)) => !here_and_ours,
            Some((Operation::Drain | Operation::Deregister, Refused)) => missing || (facts.seen.is_some() && !here_and_ours && closed),
            Some((Operation::Drain | Operation::Deregister, Accepted | NotFound)) => true,
            // It is to be in use whether that was done or not, and while part of a registry is away no read tells.
            Some((Operation::Drain | Operation::Deregister, Unknown)) => !here_and_ours,
            // There and in no use, it may have been done by half; behind an open gate somebody has taken it out of use since.
            Some((Operation::Register, Unknown)) => facts.seen.is_some() && (!here_and_ours || (unused && closed)),
        }
    }

    /// The change that stops new traffic to the target, where one is needed.
    pub fn wants_drain(&self) -> Option<Operation> {
        let traits = self.changeable()?;
        let operation = traits.drain.operation();
        let done = matches!(self.facts.last, Some((Operation::Drain | Operation::Deregister, Outcome::Accepted | Outcome::NotFound)));
        let wanted = match self.facts.seen.map(Seen::held) {
            Some(None | Some(TargetState::Draining)) => false,
            Some(Some(_)) => true,
            None => !done,
        };
        wanted.then_some(operation)
    }

    /// The change that takes the target out, where one is needed.
    pub fn wants_deregister(&self, containers_gone: bool) -> Option<Operation> {
        let traits = self.changeable()?;
        if self.gone(containers_gone) {
            return None;
        }
        let done = matches!(self.facts.last, Some((Operation::Deregister, Outcome::Accepted | Outcome::NotFound)));
        let wanted = match self.facts.seen.map(Seen::held) {
            Some(None) => self.may_still_appear(),
            Some(Some(TargetState::Draining)) if traits.drain == DrainKind::ByDeregistering => false,
            Some(Some(_)) => true,
            None => !done,
        };
        wanted.then_some(Operation::Deregister)
    }

    /// Whether the target of a pod that does not serve may be out of use, as its registry and the pod's gate tell: what an earlier leader took
    /// out may not show yet, and until a read only a gate that vouches for the target says that it is in.
    pub fn may_be_out(&self, gate: Option<&Condition>) -> bool {
        let closed_for_it =
            |gate: &Condition| !gate.status && matches!(Reason::parse(&gate.reason), Some(Reason::NotServing | Reason::NodeLost));
        match self.facts.seen {
            Some(seen) if seen.is_missing() => true,
            Some(_) => self.on_unready != OnUnready::Keep && gate.is_some_and(closed_for_it),
            None => !gate.is_some_and(Condition::is_registered),
        }
    }

    /// Whether the service must be read before anything can be said or sent: a change that names an address would hit whoever stands there.
    pub fn must_read_first(&self) -> bool {
        !self.facts.service_read && self.facts.traits.is_some_and(|traits| traits.stamps && traits.keys == TargetKeys::Address)
    }

    /// What its registry can do, where a change that takes the target out may be sent at all.
    fn changeable(&self) -> Option<Traits> {
        let facts = &self.facts;
        let inherited = facts.keys_by_address() && matches!(facts.heir, Some(Heir::Doubtful | Heir::Claims));
        facts.traits.filter(|_| self.ours_to_change() && !facts.taken && !inherited && !self.must_read_first())
    }

    /// A listing without stamps shows an address; that the target behind it is this pod's, only an accepted register says.
    fn is_ours(&self, stamped: bool) -> bool {
        stamped || (self.facts.owned && self.facts.traits.is_some_and(|traits| !traits.stamps))
    }
}

impl Facts {
    fn keys_by_address(&self) -> bool {
        self.traits.is_some_and(|traits| traits.keys == TargetKeys::Address)
    }
}
