//! I2 and the second part of A6: a pod is let go, and a claim dropped, only once the registries have let go.
//!
//! Invariant: what nobody could know is not held against the product: a registry's own repetition, listings of the past, a moment not yet shown.
//! Absent on purpose: what may be sent to a registry meanwhile (`changes`).

use std::net::{IpAddr, SocketAddr};

use lockstep::config::{Ack, OnDrainTimeout};
use lockstep::pod::Condition;
use lockstep::reconcile::cluster::ConditionPatch;
use lockstep::registry::{GoneWhen, TargetKeys};
use lockstep::target::{ServiceId, TargetState};

use super::{Claim, Shown, claims_of};
use crate::executor::ProcessId;
use crate::world::World;
use crate::world::pods::{Pod, PodId};
use crate::world::registry::{Held, Seen, SimRegistryState, Track, at_address};

impl World {
    /// I2: the finalizer goes only once the registries have let go.
    pub(super) fn judge_finalizer(&mut self, process: ProcessId, id: PodId) {
        let pod = &self.pods[id];
        let handle = pod.handle.clone();
        if pod.deletion.is_none() && !pod.is_terminal() {
            self.fail("I2", format!("{handle}: the finalizer stays until the pod is deleted or has ended"), "it was taken off");
            return;
        }
        let held = self.still_held(process, id);
        if held.is_empty() {
            return;
        }
        let owed = held.iter().all(|(service, address, _)| match address {
            Some(address) => self.owes(service, *address, &pod.uid),
            None => true,
        });
        let release = self.in_force().any(|one| {
            let since = [pod.deleted_first, pod.ended].into_iter().flatten().map(|since| self.since(since)).max().unwrap_or_default();
            one.registration.on_drain_timeout == OnDrainTimeout::Release && since >= one.registration.drain_timeout
        });
        let forced = self.in_force().any(|one| {
            let limit = one.registration.force_timeout;
            let leads = *self.lease.holder == *self.processes[process].name && self.since(self.lease_since) >= limit;
            leads && pod.forced.is_some_and(|since| self.since(since) >= limit)
        });
        if owed && (release || forced) {
            self.exceptions.use_one(if forced && !release { "ForceTimeout" } else { "any" }, id, process);
            return;
        }
        let found: Vec<String> = held.into_iter().map(|(service, _, why)| format!("{service}: {why}")).collect();
        let found = format!("{}{}", found.join("; "), if owed { "" } else { "; not among the debts" });
        self.fail("I2", format!("{handle}: every registry was read to have let go before the finalizer goes"), found);
    }

    /// What of a pod the registries still hold, or were not read to have let go.
    fn still_held(&self, process: ProcessId, id: PodId) -> Vec<(ServiceId, Option<SocketAddr>, String)> {
        let pod = &self.pods[id];
        let mut found = Vec::new();
        for (service_id, address) in &pod.registered {
            if let Some(why) = self.why_held(process, id, service_id, *address) {
                found.push((service_id.clone(), Some(*address), why));
            }
        }
        for claim in pod.claims.iter().filter(|claim| claim.observed) {
            let Some(service) = self.registries.get(&claim.service.registry).and_then(|one| one.services.get(&claim.service.service))
            else {
                continue;
            };
            let stands =
                service.targets.values().any(|held| held.address == claim.address && !self.counts_as_gone(pod, &claim.service, held.state));
            if stands && !self.has_newer_owner(id, claim.address.ip()) && !self.was_read_as_gone(id, claim) {
                found.push((claim.service.clone(), None, format!("{} still stands there", claim.address)));
            }
        }
        found
    }

    fn why_held(&self, process: ProcessId, id: PodId, service_id: &ServiceId, address: SocketAddr) -> Option<String> {
        let pod = &self.pods[id];
        let registry = self.registries.get(&service_id.registry)?;
        let service = registry.services.get(&service_id.service)?;
        let track = registry.track(&service_id.service, &pod.uid, address);
        let told = |track: &Track| track.absent || (track.deregistered && self.accepts(service_id));
        if track.is_some_and(told) || self.is_inherited(process, id, service_id, address) {
            return None;
        }
        let key = registry.behaviour.key(address, Some(&pod.uid));
        let still = |held: &Held| !(self.counts_as_gone(pod, service_id, held.state) || self.is_hidden(registry, held));
        if let Some(held) = service.targets.get(&key).filter(|held| held.owner.as_ref() == Some(&pod.uid) && still(held)) {
            return Some(format!("{} is still held as {}", held.address, held.state.as_str()));
        }
        let newer = |held: &Held| {
            let owner = held.owner.as_ref().and_then(|uid| self.pod_of_uid(uid));
            owner.is_some_and(|owner| owner > id && self.pods[owner].is_live())
        };
        if registry.behaviour.keys == TargetKeys::Address && service.targets.get(&key).is_some_and(newer) {
            return None;
        }
        let mine = |one: &Seen| one.owner.as_ref() == Some(&pod.uid) && one.address == address;
        let shown = service.received.iter().rev().any(|listing| {
            track.is_none_or(|track| listing.sent > track.answered.max(track.sent) && listing.sent_at >= track.answered_at)
                && listing.snapshot.iter().filter(|one| mine(one)).all(|one| self.counts_as_gone(pod, service_id, one.state))
        });
        (!shown).then(|| format!("no answer after the last change showed that {address} is gone"))
    }

    /// Whether a live pod that has the address claims the same target, so that whatever stands there is worked off from its claim.
    /// It may have ended, or moved, without the process having been shown that; its claim stays its own to work off.
    fn is_inherited(&self, process: ProcessId, id: PodId, service: &ServiceId, address: SocketAddr) -> bool {
        let by_address = self.registries.get(&service.registry).is_some_and(|one| one.behaviour.keys == TargetKeys::Address);
        let claims = |pod: &Pod| pod.claims.iter().any(|claim| claim.service == *service && claim.address == address && !claim.observed);
        let shown = &self.processes[process].shown;
        let is_live = |of: PodId, pod: &Pod| pod.is_live() || (self.seeded && shown.get(&of).is_some_and(Shown::is_live));
        let seen_there = |of: PodId| self.seeded && shown.get(&of).is_some_and(|shown| shown.has(address.ip()));
        let is_there = |of: PodId, pod: &Pod| pod.ips.contains(&address.ip()) || seen_there(of);
        let heir = |(of, pod): (PodId, &Pod)| of != id && is_there(of, pod) && claims(pod) && is_live(of, pod);
        by_address && self.pods.iter().enumerate().any(heir)
    }

    /// Whether the last listing that was asked for after the pod's end, if any, did not show its observed target any more: the other
    /// controller may have put it there since, and nobody could know.
    fn was_read_as_gone(&self, id: PodId, claim: &Claim) -> bool {
        let pod = &self.pods[id];
        let Some(end) = [pod.deleted_first, pod.ended].into_iter().flatten().map(|one| one.at).min().filter(|_| self.seeded) else {
            return false;
        };
        let registry = self.registries.get(&claim.service.registry);
        let Some(service) = registry.and_then(|one| one.services.get(&claim.service.service)) else { return false };
        let last = service.received.iter().filter(|listing| listing.sent_at >= end).max_by_key(|listing| listing.sent);
        let gone = |one: &Seen| self.counts_as_gone(pod, &claim.service, one.state);
        last.is_some_and(|listing| at_address(&listing.snapshot, claim.address).iter().all(gone))
    }

    /// Whether nobody could know that it is held: a change was done once more, or listings show the past.
    fn is_hidden(&self, registry: &SimRegistryState, held: &Held) -> bool {
        self.seeded && (held.repeated || registry.keeps_history)
    }

    /// Whether a successful send is an acknowledgement in that service.
    fn accepts(&self, service: &ServiceId) -> bool {
        self.in_force().any(|one| one.bindings.iter().any(|binding| binding.service == *service && binding.ack == Ack::Accepted))
    }

    fn counts_as_gone(&self, pod: &Pod, service: &ServiceId, state: TargetState) -> bool {
        let when = self.registries.get(&service.registry).map(|one| one.behaviour.gone_when());
        when == Some(GoneWhen::Draining) && state == TargetState::Draining && self.containers_gone(pod)
    }

    fn has_newer_owner(&self, id: PodId, ip: IpAddr) -> bool {
        self.pods[id + 1..].iter().any(|pod| pod.is_live() && pod.ips.contains(&ip))
    }

    /// A6, second part: no claim is dropped while its target is held.
    pub(super) fn judge_dropped(&mut self, process: ProcessId, id: PodId, condition: &ConditionPatch) {
        let now = Condition { status: condition.status, reason: String::new(), message: condition.message.clone(), since: None };
        let kept = claims_of(Some(&now));
        let pod = &self.pods[id];
        let mut found = Vec::new();
        for claim in pod.claims.iter().filter(|claim| !kept.contains(claim)) {
            let Some(service) = self.registries.get(&claim.service.registry).and_then(|one| one.services.get(&claim.service.service))
            else {
                continue;
            };
            let here = |held: &&Held| held.address == claim.address && !self.counts_as_gone(pod, &claim.service, held.state);
            let held = if claim.observed {
                service.targets.values().filter(here).any(|held| held.state != TargetState::Draining)
                    && !self.has_newer_owner(id, claim.address.ip())
                    && !self.was_read_as_gone(id, claim)
            } else {
                let registry = &self.registries[&claim.service.registry];
                let holds = |held: &Held| here(&held) && !self.is_hidden(registry, held);
                service.held_by(&pod.uid).any(holds)
            };
            let held = held
                && !self.is_inherited(process, id, &claim.service, claim.address)
                && !self.owes(&claim.service, claim.address, &pod.uid);
            if held {
                found.push(claim.to_string());
            }
        }
        if !found.is_empty() {
            let handle = pod.handle.clone();
            self.fail("A6", format!("{handle}: no claim is dropped while its target is held"), found.join(", "));
        }
    }
}
