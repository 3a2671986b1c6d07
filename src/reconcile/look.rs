//! One look at a pod: gather what is known, observe, plan, start the steps.
//!
//! Invariant: leave of the drain budget is asked for only when every pod that may have changed was looked at, so that all are counted.
//! Absent on purpose: what is decided (`registration`), how steps are carried out (`execute`).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Drivers;
use super::actor::Actor;
use super::clock::Clock;
use super::cluster::Cluster;
use super::pods::{Busy, Entry as Pod};
use super::service::{Entry, Key, Owner};
use crate::config::{Mode, OnUnbound};
use crate::pod::Condition;
use crate::registration::claim::Claim;
use crate::registration::life::{self, Life, Stage};
use crate::registration::observe::{Facts, Heir, Observation, Role, Sighting, observe};
use crate::registration::plan::plan;
use crate::target::{PodUid, ServiceId};

/// A target for which leave of the budget is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asked {
    pub(super) service: ServiceId,
    pub(super) key: Key,
}

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// Looks at every pod that may have changed, until nothing more follows from it.
    pub(super) fn look_at_dirty(&mut self) {
        loop {
            let mut asked = BTreeSet::new();
            while let Some(uid) = self.dirty.pop_first() {
                self.look(&uid, &mut asked);
            }
            self.grant(asked);
            self.call_up_writers();
            if self.dirty.is_empty() {
                return;
            }
        }
    }

    fn look(&mut self, uid: &PodUid, asked: &mut BTreeSet<Asked>) {
        let now = self.clock.now();
        let Some(entry) = self.pods.get(uid) else { return };
        let unsure = entry.doubtful && !entry.dropping.is_empty();
        if entry.missing || unsure || entry.unwatched.is_some_and(|at| now >= at) {
            if entry.busy == Busy::No && now >= entry.backoff.until() {
                self.fetch(uid);
            }
            if self.pods.get(uid).is_some_and(|entry| entry.missing) {
                return;
            }
        }
        let Some(life) = self.note_life(uid) else { return };
        self.confirm_heirs(uid);
        if self.stopping || !self.term.as_ref().is_some_and(|term| term.listed) {
            return;
        }
        self.keep_books(uid);
        let Some(observation) = self.observation(uid, life) else { return };
        self.classify(uid, &observation);
        self.tell_findings(uid);
        let wall = self.clock.wall();
        let plan = plan(&observation, wall);
        self.execute(uid, plan, asked);
    }

    /// Grants the budget, one by one, and looks again at those for whom there is room now, or none any more.
    fn grant(&mut self, asked: BTreeSet<Asked>) {
        let Some(threshold) = self.settings.current.as_ref().map(|current| current.registration.panic_threshold) else { return };
        let Some(term) = &mut self.term else { return };
        for Asked { service, key } in asked {
            if let Some(service) = term.services.get_mut(&service)
                && service.budget.ask(&key, threshold)
            {
                self.dirty.insert(key.uid.clone());
            }
        }
        for service in term.services.values_mut() {
            self.dirty.extend(service.take_back_leave(threshold));
            self.dirty.extend(service.budget.hopeful(threshold).into_iter().map(|key| key.uid));
        }
    }

    /// Where the pod stands, and since when; all replicas keep this, so that a new leader knows it.
    fn note_life(&mut self, uid: &PodUid) -> Option<Life> {
        let current = Arc::clone(self.settings.current.as_ref()?);
        let wall = self.clock.wall();
        let seq = self.next_seq();
        let leads = self.term.is_some();
        let entry = self.pods.get(uid)?;
        let node = self.node_of(&entry.view);
        let served = !entry.claims.is_empty() || entry.view.is_open();
        let rules = &current.registration;
        let life = life::life(&entry.view, served, node, wall, rules.unreachable_after);
        let shared = self.has_rival(uid, entry);
        let entry = self.pods.get_mut(uid)?;
        let view = Arc::clone(&entry.view);
        let memory = &mut entry.memory;
        let gone = (life.stage == Stage::Gone)
            .then(|| memory.gone_since.unwrap_or_else(|| life::gone_since(&view, wall, rules.unreachable_after)));
        memory.gone_since = gone.map(|since| since.min(wall));
        let forced = (life.forced && leads).then(|| memory.forced_since.unwrap_or(wall));
        memory.forced_since = forced.map(|since| since.min(wall));
        let ended = life.stage == Stage::Gone || life.forced;
        entry.ended = (ended && leads).then(|| entry.ended.unwrap_or(seq));
        let moved = entry.claims.iter().any(|claim| !view.addresses.contains(&claim.address.ip()));
        entry.contested = ((moved || shared) && leads).then(|| entry.contested.unwrap_or(seq));
        for binding in current.bindings_of(&view.key.namespace, |key| view.labels.get(key)) {
            entry.remember(&binding.name);
        }
        Some(life)
    }

    /// Opens a book for every claim and closes those of claims that are dropped.
    fn keep_books(&mut self, uid: &PodUid) {
        let seq = self.next_seq();
        let Some(entry) = self.pods.get(uid) else { return };
        let claims = entry.claims.clone();
        let view = Arc::clone(&entry.view);
        let writing = entry.writing.clone();
        let dropped: Vec<(ServiceId, SocketAddr)> = entry
            .booked
            .iter()
            .filter(|(service, address)| !claims.iter().any(|claim| claim.service == *service && claim.address == *address))
            .cloned()
            .collect();
        for (service, address) in dropped {
            if let Some(service) = self.service_mut(&service) {
                service.close_book(&Key { address, uid: uid.clone() });
            }
        }
        let vouched = view.gate.as_ref().is_some_and(Condition::is_registered);
        for claim in &claims {
            let fresh = writing.iter().any(|(service, address)| *service == claim.service && *address == claim.address);
            let key = Key { address: claim.address, uid: uid.clone() };
            let observes = claim.mode == Mode::Observe;
            let book = Entry { pod: &view.key, owner: Owner::Pod, seq, observes, fresh, owned: vouched && !fresh && !observes };
            if let Some(service) = self.service_mut(&claim.service) {
                service.keep_book(&key, &book);
            }
        }
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.booked = claims.iter().map(|claim| (claim.service.clone(), claim.address)).collect();
            entry.writing.retain(|written| !entry.booked.contains(written));
        }
    }

    /// What is known of a pod and its targets.
    pub(super) fn observation(&self, uid: &PodUid, life: Life) -> Option<Observation> {
        let entry = self.pods.get(uid)?;
        let configuration = self.settings.current.as_deref()?;
        let term = self.term.as_ref()?;
        let sighting = Sighting {
            pod: &entry.view,
            claims: &entry.claims,
            former: &entry.former,
            configuration,
            life,
            memory: entry.memory,
            debts_full: term.debts.full(),
        };
        let words = |service: &ServiceId, address| term.services.get(service)?.words(&Key { address, uid: uid.clone() });
        Some(observe(&sighting, |service, address| (self.facts(uid, entry, service, address), words(service, address))))
    }

    fn facts(&self, uid: &PodUid, entry: &Pod, service: &ServiceId, address: SocketAddr) -> Facts {
        let key = Key { address, uid: uid.clone() };
        let Some(term) = &self.term else { return Facts::default() };
        let Some(current) = &self.settings.current else { return Facts::default() };
        let facts = match term.services.get(service) {
            Some(service) => service.facts(&key, entry.ended, &current.cluster),
            None => Facts { traits: self.settings.traits(service), ..Facts::default() },
        };
        let dropping = entry.dropping.iter().any(|(of, at)| of == service && *at == address);
        Facts { heir: self.heir(uid, entry, service, address), owed: term.debts.recorded(service, &key), dropping, ..facts }
    }

    /// The live pod that has taken over an address that `entry` does not serve at any more. Two live pods have no address in common:
    /// where it looks so, one of them has ended, and which of them is doubtful until both were read.
    fn heir(&self, uid: &PodUid, entry: &Pod, service: &ServiceId, address: SocketAddr) -> Option<Heir> {
        let ip = address.ip();
        if life::live(&entry.view) && entry.view.addresses.contains(&ip) {
            let claim = entry.claims.iter().find(|claim| claim.address == address && claim.service == *service)?;
            let doubtful = |(_, rival): (&PodUid, &Pod)| !is_confirmed(entry, rival) || !is_confirmed(entry, entry);
            return self.rivals(uid, claim).any(doubtful).then_some(Heir::Doubtful);
        }
        self.others_at(uid, ip)
            .filter_map(|(_, pod)| {
                let claims = pod.claims.iter().any(|claim| claim.address == address && claim.service == *service);
                match (claims, is_confirmed(entry, pod)) {
                    (true, true) => Some(Heir::Claims),
                    (true, false) => Some(Heir::Doubtful),
                    (false, true) => Some(Heir::Has),
                    (false, false) => None,
                }
            })
            .max()
    }

    /// Live pods, but for that one, that have the address.
    fn others_at<'a>(&'a self, uid: &'a PodUid, ip: IpAddr) -> impl Iterator<Item = (&'a PodUid, &'a Pod)> {
        self.pods.at(ip).filter(move |(other, pod)| *other != uid && life::live(&pod.view) && pod.view.addresses.contains(&ip))
    }

    /// Whether a live pod seems to share a target with another one.
    fn has_rival(&self, uid: &PodUid, entry: &Pod) -> bool {
        life::live(&entry.view) && entry.claims.iter().any(|claim| self.rivals(uid, claim).next().is_some())
    }

    /// Other live pods that have the address of a claim, and the same claim.
    fn rivals<'a>(&'a self, uid: &'a PodUid, claim: &'a Claim) -> impl Iterator<Item = (&'a PodUid, &'a Pod)> {
        self.others_at(uid, claim.address.ip()).filter(|(_, pod)| pod.claims.iter().any(|other| other.same_target(claim)))
    }

    /// Reads the pods that seem to have taken over an address of a pod that has ended or moved: a watch may have lost their own end.
    /// Where both seem to live, it may have lost that of either.
    fn confirm_heirs(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid).filter(|entry| entry.ended.or(entry.contested).is_some()) else { return };
        let addresses: BTreeSet<IpAddr> = entry.claims.iter().map(|claim| claim.address.ip()).collect();
        let shared = self.has_rival(uid, entry);
        let doubtful: Vec<PodUid> = addresses
            .into_iter()
            .flat_map(|ip| self.others_at(uid, ip))
            .chain(shared.then_some((uid, entry)))
            .filter(|(_, pod)| !is_confirmed(entry, pod))
            .map(|(other, _)| other.clone())
            .collect();
        for other in doubtful {
            self.fetch(&other);
        }
    }

    /// Counts the pod's claims in the budgets of their services.
    fn classify(&mut self, uid: &PodUid, o: &Observation) {
        let live = o.life.stage.live();
        let Some(term) = &mut self.term else { return };
        for target in o.targets.iter().filter(|target| target.ours_to_change()) {
            let Some(service) = term.services.get_mut(&target.service) else { continue };
            let key = Key { address: target.address, uid: uid.clone() };
            let drained = service.may_be_out(&key);
            let budget = &mut service.budget;
            let in_place = matches!(target.role, Role::Wanted | Role::Kept);
            let counts = live && o.bound && in_place;
            budget.count(&key, counts);
            let away = drained || target.may_be_out(o.gate.as_ref());
            match (target.role, o.life.stage) {
                (Role::Wanted | Role::Kept | Role::Superseded, Stage::NotServing(_)) => budget.note_away(&key, counts && away),
                (Role::Unbound(OnUnbound::Deregister), _) if live => budget.note_away(&key, away),
                _ => {
                    budget.settle(&key);
                    // A pod that serves again is put back, one that was released never is.
                    budget.note_away(&key, counts && (drained || (o.released && away)));
                }
            }
        }
    }
}

/// Whether `heir` was read since it was first seen that `pod` has ended, or that its address is another's.
fn is_confirmed(pod: &Pod, heir: &Pod) -> bool {
    pod.ended.or(pod.contested).is_none_or(|since| heir.confirmed > since)
}
