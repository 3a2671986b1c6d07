//! The sweep: targets that are ours and belong to nobody are taken out.
//!
//! A pod object may vanish while nobody looks; what it leaves in a registry with stamps says itself that it is ours.
//!
//! Invariant: only a target with our cluster's stamp, or any of a service that is ours alone, is swept; never one of a pod that exists,
//! of a debt, or of a service that is only observed; and never before it was seen in [`AUDITS`] audits.
//! Absent on purpose: targets of pods (`registration`) and debts (`debts`).

use std::collections::BTreeMap;

use super::Drivers;
use super::actor::Actor;
use super::calls::nameless;
use super::clock::Clock;
use super::cluster::Cluster;
use super::service::{Entry, Key};
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
        if !term.debts.loaded() {
            return;
        }
        let Some(service) = term.services.get_mut(id) else { return };
        let audited = service.audited();
        let stamps = service.traits.is_some_and(|traits| traits.stamps);
        let Some((_, listed)) = service.last_listing() else { return };
        let mut orphans: BTreeMap<Key, u8> = BTreeMap::new();
        for one in listed {
            let uid = match &one.stamp {
                Some(stamp) if stamp.cluster == current.cluster => stamp.uid.clone(),
                None if exclusive && !stamps => PodUid::new(""),
                Some(_) | None => continue,
            };
            let key = Key { address: one.address, uid };
            let claimed = self
                .pods
                .at(key.address.ip())
                .any(|(_, pod)| pod.claims.iter().any(|claim| claim.address == key.address && claim.service == *id));
            let owned = self.pods.get(&key.uid).is_some() || claimed || term.debts.owes(id, &key);
            if !owned {
                let seen = service.orphans.get(&key).copied().unwrap_or(0);
                orphans.insert(key, seen.saturating_add(u8::from(audited)));
            }
        }
        let gone: Vec<Key> = service.orphans.keys().filter(|key| !orphans.contains_key(*key)).cloned().collect();
        for key in gone {
            service.close_book(&key);
        }
        for (key, _) in orphans.iter().filter(|(_, seen)| **seen >= AUDITS) {
            let leave = stamps || service.budget.ask(key, current.registration.panic_threshold);
            service.keep_book(key, &Entry { pod: &nameless(&key.uid), seq, observes: false, fresh: false, owned: false });
            if let Some(operation) = service.still_to_take_out(key).filter(|_| leave) {
                service.enqueue(key, operation, 0, now);
                self.touched.insert(id.clone());
            }
        }
        service.orphans = orphans;
    }
}
