//! Debts: claims whose pods are gone, kept in a ConfigMap until the registry has let their targets go.
//!
//! Invariant: a pod is let go with targets left only once its claims are written here; a debt waits while a live pod claims or should have the same target.
//! Absent on purpose: the budget; what is owed serves nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Drivers;
use super::actor::Actor;
use super::clock::Clock;
use super::cluster::{ApiError, Cluster, Store, Stored, Subject};
use super::limits::Backoff;
use super::service::{Entry, Key, Owner, Seq};
use crate::config::Mode;
use crate::registration::Reason;
use crate::registration::claim::{Claim, Debt, MAX_DEBTS, parse_debts, print_debts};
use crate::registration::life::{self, later};
use crate::registration::observe::wants;
use crate::target::{PodKey, PodUid, ServiceId};

/// A debt that nobody could pay for this long is dropped.
const DROP_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Which target is owed.
type Owed = (ServiceId, Key);

/// Claims whose pods are gone.
#[derive(Debug, Default)]
pub(super) struct Debts {
    /// As the store has them; `None` until it was read.
    written: Option<Written>,
    /// To be put in.
    adding: BTreeMap<Owed, Debt>,
    /// To be taken out.
    removing: BTreeSet<Owed>,
    /// Where in the order each became known to this term.
    known: BTreeMap<Owed, Seq>,
    writing: Option<BTreeMap<Owed, Debt>>,
    backoff: Backoff,
}

#[derive(Debug)]
struct Written {
    version: String,
    debts: BTreeMap<Owed, Debt>,
}

impl Debts {
    /// Whether the store has the debt, and goes on having it.
    pub(super) fn recorded(&self, service: &ServiceId, key: &Key) -> bool {
        // The lookup needs an owned pair; debts are few and mostly there are none.
        let any = self.written.as_ref().is_some_and(|written| !written.debts.is_empty());
        any && self.is_kept(&(service.clone(), key.clone()))
    }

    /// Debts that the store has.
    pub(super) fn recorded_count(&self) -> usize {
        self.written.as_ref().map_or(0, |written| written.debts.len())
    }

    /// Whether no more fit.
    pub(super) fn full(&self) -> bool {
        self.recorded_count() + self.adding.len() >= MAX_DEBTS
    }

    /// Whether the store was read.
    pub(super) fn loaded(&self) -> bool {
        self.written.is_some()
    }

    /// Whether the target is owed, written or not.
    pub(super) fn owes(&self, service: &ServiceId, key: &Key) -> bool {
        self.adding.contains_key(&(service.clone(), key.clone())) || self.recorded(service, key)
    }

    fn add(&mut self, debt: Debt, seq: Seq) {
        let owed = (debt.claim.service.clone(), Key { address: debt.claim.address, uid: debt.uid.clone() });
        self.removing.remove(&owed);
        self.known.entry(owed.clone()).or_insert(seq);
        if !self.is_kept(&owed) {
            self.adding.entry(owed).or_insert(debt);
        }
    }

    /// Whether the store has the debt, and what is written to it or will be does not take it out.
    fn is_kept(&self, owed: &Owed) -> bool {
        let has = |debts: &BTreeMap<Owed, Debt>| debts.contains_key(owed);
        let written = self.written.as_ref().is_some_and(|written| has(&written.debts));
        written && self.writing.as_ref().is_none_or(has) && !self.removing.contains(owed)
    }

    fn remove(&mut self, owed: &Owed) {
        self.known.remove(owed);
        self.adding.remove(owed);
        self.removing.insert(owed.clone());
    }

    /// All that are owed, written or not.
    fn all(&self) -> impl Iterator<Item = (&Owed, &Debt)> {
        let written = self.written.iter().flat_map(|written| &written.debts);
        written.chain(&self.adding).filter(|(owed, _)| !self.removing.contains(*owed))
    }

    fn wanted(&self) -> BTreeMap<Owed, Debt> {
        self.all().map(|(owed, debt)| (owed.clone(), debt.clone())).collect()
    }
}

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// Claims of a pod are to be among the debts before it is let go.
    pub(super) fn record_debts(&mut self, uid: &PodUid, claims: &[Claim]) {
        if let Some(key) = self.pods.get(uid).map(|entry| entry.view.key.clone()) {
            self.add_debts(uid, &key, claims);
        }
    }

    /// Claims of a pod that is gone are owed from now on.
    pub(super) fn add_debts(&mut self, uid: &PodUid, pod: &PodKey, claims: &[Claim]) {
        let (seq, since) = (self.next_seq(), self.clock.wall());
        let Some(term) = &mut self.term else { return };
        for claim in claims {
            if term.debts.full() {
                tracing::error!(namespace = %pod.namespace, pod = %pod.name, target = %claim.address, "the debts are full; a target is left behind");
                continue;
            }
            term.debts.add(Debt { claim: claim.clone(), uid: uid.clone(), pod: pod.clone(), since }, seq);
        }
        self.write_debts();
    }

    /// Writes what changed, where nothing is being written.
    pub(super) fn write_debts(&mut self) {
        let now = self.clock.now();
        if self.stopping {
            return;
        }
        let Some(term) = &mut self.term else { return };
        let debts = &mut term.debts;
        let wanted = debts.wanted();
        let Some(written) = &debts.written else {
            return;
        };
        if debts.writing.is_some() || now < debts.backoff.until() || wanted == written.debts {
            return;
        }
        let lines: Vec<Debt> = wanted.values().cloned().collect();
        let value = Stored { resource_version: written.version.clone(), text: print_debts(&lines) };
        debts.writing = Some(wanted);
        let number = term.number;
        self.write_store(number, Store::Debts, value);
    }

    /// The store was read.
    pub(super) fn debts_loaded(&mut self, term: u64, answer: Result<Stored, ApiError>) {
        let (seq, now, jitter) = (self.next_seq(), self.clock.now(), self.clock.jitter());
        let Some(current) = self.term.as_mut().filter(|current| current.number == term) else { return };
        match answer {
            Ok(stored) => {
                let debts: BTreeMap<Owed, Debt> = parse_debts(&stored.text)
                    .into_iter()
                    .map(|debt| ((debt.claim.service.clone(), Key { address: debt.claim.address, uid: debt.uid.clone() }), debt))
                    .collect();
                for owed in debts.keys() {
                    current.debts.known.entry(owed.clone()).or_insert(seq);
                }
                current.debts.adding.retain(|owed, _| !debts.contains_key(owed));
                current.debts.removing.retain(|owed| debts.contains_key(owed));
                let services: BTreeSet<ServiceId> = debts.keys().map(|(service, _)| service.clone()).collect();
                current.debts.written = Some(Written { version: stored.resource_version, debts });
                for service in services {
                    self.service_mut(&service);
                }
                self.look_at_owed();
                self.write_debts();
            }
            Err(error) => {
                tracing::warn!(error = %error, "the debts cannot be read");
                current.debts.backoff.fail(now, jitter);
                current.debts.written = None;
                self.retry_debts();
            }
        }
    }

    /// The store was written.
    pub(super) fn debts_stored(&mut self, term: u64, answer: Option<Result<Stored, ApiError>>) {
        let (now, jitter) = (self.clock.now(), self.clock.jitter());
        let Some(current) = self.term.as_mut().filter(|current| current.number == term) else { return };
        let debts = &mut current.debts;
        let sent = debts.writing.take();
        match (answer, sent) {
            (Some(Ok(stored)), Some(sent)) => {
                debts.backoff.succeed();
                debts.adding.retain(|owed, _| !sent.contains_key(owed));
                debts.removing.retain(|owed| sent.contains_key(owed));
                debts.written = Some(Written { version: stored.resource_version, debts: sent });
                self.look_at_owed();
                self.write_debts();
            }
            (Some(Err(error)), _) => {
                tracing::debug!(error = %error, "the debts cannot be written");
                debts.backoff.fail(now, jitter);
                self.retry_debts();
            }
            _ => {}
        }
    }

    /// A service was read: debts that it does not show have ended, others are paid where nothing stands against it.
    pub(super) fn settle_debts(&mut self, id: &ServiceId) {
        let seq = self.next_seq();
        let now = self.clock.now();
        let Some(term) = &self.term else { return };
        let owed: Vec<(Owed, Debt)> =
            term.debts.all().filter(|((service, _), _)| service == id).map(|(owed, debt)| (owed.clone(), debt.clone())).collect();
        let observed = self.is_observed(id);
        let mut ended = false;
        for (owed, debt) in owed {
            let Some(term) = &mut self.term else { return };
            let Some(service) = term.services.get_mut(id) else { return };
            let Some((began, state)) = service.shows(&owed.1, debt.claim.mode == Mode::Observe) else { continue };
            if term.debts.known.get(&owed).is_none_or(|known| began < *known) {
                continue;
            }
            if state.is_none() {
                service.close_book(&owed.1);
                term.debts.remove(&owed);
                ended = true;
                continue;
            }
            let waits = observed || debt.claim.mode == Mode::Observe || self.has_heir(id, &owed.1);
            let Some(service) = self.term.as_mut().and_then(|term| term.services.get_mut(id)) else { return };
            if waits {
                service.withdraw(&owed.1);
                continue;
            }
            service.keep_book(&owed.1, &Entry { pod: &debt.pod, owner: Owner::Debt, seq, observes: false, fresh: false, owned: false });
            if let Some(operation) = service.still_to_take_out(&owed.1) {
                service.enqueue(&owed.1, operation, 0, now);
                self.touched.insert(id.clone());
            }
        }
        if ended {
            self.write_debts();
        }
    }

    /// Takes changes of targets without a pod out of the queue where a pod has come to the address meanwhile.
    pub(super) fn spare_living(&mut self, id: &ServiceId) {
        let Some(service) = self.term.as_ref().and_then(|term| term.services.get(id)) else { return };
        let queued = service.queued_without_pod();
        let spared: Vec<Key> = queued
            .into_iter()
            .filter(|(key, owner)| match owner {
                Owner::Pod => false,
                Owner::Debt => self.has_heir(id, key),
                Owner::Orphan => self.is_claimed(id, key),
            })
            .map(|(key, _)| key)
            .collect();
        let Some(service) = self.term.as_mut().and_then(|term| term.services.get_mut(id)) else { return };
        for key in spared {
            service.withdraw(&key);
        }
    }

    /// Whether a live pod claims the endpoint or should have it: what stands there may be its own by now.
    fn has_heir(&self, id: &ServiceId, key: &Key) -> bool {
        let Some(current) = &self.settings.current else { return true };
        let mut pods = self.pods.at(key.address.ip()).filter(|(uid, pod)| **uid != key.uid && life::live(&pod.view));
        pods.any(|(_, pod)| {
            let claims = pod.claims.iter().any(|claim| claim.address == key.address && claim.service == *id);
            claims || wants(&pod.view, current, id, key.address)
        })
    }

    /// Whether a pod claims the endpoint.
    pub(super) fn is_claimed(&self, id: &ServiceId, key: &Key) -> bool {
        let mut pods = self.pods.at(key.address.ip());
        pods.any(|(_, pod)| pod.claims.iter().any(|claim| claim.address == key.address && claim.service == *id))
    }

    /// Gives up debts that nobody could pay.
    pub(super) fn drop_old_debts(&mut self) {
        let wall = self.clock.wall();
        let Some(term) = &mut self.term else { return };
        let old: Vec<(Owed, Debt)> = term
            .debts
            .all()
            .filter(|(_, debt)| wall >= later(debt.since, DROP_AFTER))
            .map(|(owed, debt)| (owed.clone(), debt.clone()))
            .collect();
        for (owed, debt) in old {
            term.debts.remove(&owed);
            if let Some(service) = term.services.get_mut(&owed.0) {
                service.close_book(&owed.1);
            }
            let note = format!("{} of {} was owed for a day and could not be taken out; it is given up.", debt.claim, debt.pod);
            term.events.tell(Subject::Debts, Reason::DebtDropped, note, format!("{} {}", debt.claim, debt.uid));
        }
    }

    /// Whether the configuration only observes a service.
    pub(super) fn is_observed(&self, id: &ServiceId) -> bool {
        let bindings = self.settings.current.iter().flat_map(|current| &current.bindings);
        let mut of_service = bindings.filter(|binding| binding.service == *id).peekable();
        of_service.peek().is_some() && of_service.all(|binding| binding.mode == Mode::Observe)
    }

    /// Pods that wait for their debts to be written.
    fn look_at_owed(&mut self) {
        let Some(term) = &self.term else { return };
        let uids: Vec<PodUid> = term.debts.all().map(|((_, key), _)| key.uid.clone()).collect();
        self.dirty.extend(uids.into_iter().filter(|uid| self.pods.get(uid).is_some()));
    }

    /// Reads the store again before it is written again.
    fn retry_debts(&mut self) {
        if let Some(term) = &self.term {
            self.load(Store::Debts, term.debts.backoff.until());
        }
    }
}
