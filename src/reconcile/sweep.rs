//! The sweep: targets that are ours and belong to nobody are taken out.
//!
//! A pod object may vanish while nobody looks; what it leaves in a registry with stamps says itself that it is ours.
//!
//! Invariant: only a target with our cluster's stamp (of a pod, or of nobody known), or any of a service that is ours alone, is swept; never
//! one that a pod claims, one of a pod that has the address, of a debt, or of a service that is only observed; and never before it was
//! seen in [`AUDITS`] audits.
//! Absent on purpose: targets of pods (`registration`) and debts (`debts`).

use std::collections::BTreeMap;

use super::Drivers;
use super::actor::Actor;
use super::calls::nameless;
use super::clock::Clock;
use super::cluster::Cluster;
use super::service::{Entry, Key, Owner};
use crate::config::Configuration;
use crate::registry::TargetKeys;
use crate::target::{PodUid, ServiceId};

/// A target is swept once that many audits have seen it without an owner.
const AUDITS: u8 = 3;

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// A service was read: looks for targets without an owner.
    pub(super) fn sweep(&mut self, id: &ServiceId) {
        let seq = self.next_seq();
        let now = self.clock.now();
        let Some(current) = self.settings.current.clone() else { return };
        let exclusive = current.bindings.iter().any(|binding| binding.service == *id && binding.exclusive);
        if self.is_observed(id) {
            return;
        }
        let Some(term) = &mut self.term else { return };
        let Some(service) = term.services.get_mut(id) else { return };
        let audited = service.audited();
        // What other replicas have claimed since the last list is not known before the next one.
        if !term.listed || !term.debts.loaded() || !(audited || service.orphans.values().any(|seen| *seen >= AUDITS)) {
            return;
        }
        let orphans = self.orphans(id, &current, exclusive, audited);
        let Some(term) = &mut self.term else { return };
        let Some(service) = term.services.get_mut(id) else { return };
        let stamps = service.traits.is_some_and(|traits| traits.stamps);
        let gone: Vec<Key> = service.orphans.keys().filter(|key| !orphans.contains_key(*key)).cloned().collect();
        for key in gone {
            service.close_orphan(&key);
        }
        for (key, _) in orphans.iter().filter(|(_, seen)| **seen >= AUDITS) {
            let leave = stamps || !exclusive || service.budget.ask(key, current.registration.panic_threshold);
            service.keep_book(
                key,
                &Entry { pod: &nameless(&key.uid), owner: Owner::Orphan, seq, observes: false, fresh: false, owned: false },
            );
            if let Some(operation) = service.still_to_take_out(key).filter(|_| leave) {
                service.enqueue(key, operation, 0, now);
                self.touched.insert(id.clone());
            }
        }
        service.orphans = orphans;
    }

    /// The targets of the last read that belong to nobody, and in how many audits each was seen.
    fn orphans(&self, id: &ServiceId, current: &Configuration, exclusive: bool, audited: bool) -> BTreeMap<Key, u8> {
        let mut orphans = BTreeMap::new();
        let Some(term) = &self.term else { return orphans };
        let Some(service) = term.services.get(id) else { return orphans };
        let Some(traits) = service.traits else { return orphans };
        let Some((_, listed)) = service.last_listing() else { return orphans };
        for one in listed {
            let uid = match &one.stamp {
                Some(stamp) if stamp.cluster == current.cluster => stamp.uid.clone(),
                None if exclusive && !traits.stamps => PodUid::new(""),
                Some(_) | None => continue,
            };
            let key = Key { address: one.address, uid };
            if !(self.is_claimed(id, &key) || self.has_pod(id, traits.keys, &key) || term.debts.owes(id, &key)) {
                let seen = service.orphans.get(&key).copied().unwrap_or(0);
                orphans.insert(key, seen.saturating_add(u8::from(audited)));
            }
        }
        orphans
    }

    /// Whether the target's pod exists and may still have use for it, or a change of it could hit the pod's own target.
    fn has_pod(&self, id: &ServiceId, keys: TargetKeys, key: &Key) -> bool {
        let Some(entry) = self.pods.get(&key.uid) else { return false };
        let mut claims = entry.claims.iter().filter(|claim| claim.service == *id);
        let one_place = keys == TargetKeys::Uid && claims.any(|claim| claim.address.port() == key.address.port());
        one_place || entry.view.released || entry.view.addresses.contains(&key.address.ip())
    }
}
