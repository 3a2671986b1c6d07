//! Beginning and end of a term of leadership, and what a leader does now and then.
//!
//! Invariant: nothing that a leader knows of registries outlives its term; the next one reads again.
//! Absent on purpose: the Lease itself (`lease`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::Drivers;
use super::actor::Actor;
use super::adoption::Adoption;
use super::clock::{Clock, Instant};
use super::cluster::{Cluster, Store, Stored, Subject};
use super::debts::Debts;
use super::events::Teller;
use super::input::Input;
use super::limits::{Backoff, RETRY_CAP};
use super::service::Service;
use crate::registration::Reason;
use crate::target::{PodUid, ServiceId};

/// A stop waits this long for answers to what was sent: as long as a call can take.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Giving the Lease back may take this long on top.
const GIVE_BACK_LIMIT: Duration = Duration::from_secs(4);
/// What has no event of its own is looked at this often.
const CHORES: Duration = Duration::from_secs(10);

/// One term of leadership.
#[derive(Debug)]
pub(super) struct Term {
    /// Its number, in this process.
    pub(super) number: u64,
    /// When it began.
    pub(super) since: Timestamp,
    /// All pods were listed since it began: what a watch told before may be old.
    pub(super) listed: bool,
    /// Every service that is bound, claimed or owed to.
    pub(super) services: BTreeMap<ServiceId, Service>,
    /// Claims whose pods are gone.
    pub(super) debts: Debts,
    /// The looks for pods to adopt.
    pub(super) adoption: Adoption,
    /// Events that are to be written.
    pub(super) events: Teller,
    /// Writes to pods that are on their way.
    pub(super) writes: usize,
    /// Pods whose write waits for one of those to end.
    pub(super) write_queue: VecDeque<PodUid>,
    /// Calls that are on their way.
    pub(super) calls: usize,
    /// Pods that are held beyond their time.
    pub(super) held: BTreeSet<PodUid>,
    /// The last good configuration, as it is kept for the next process.
    pub(super) last_good: LastGood,
    /// What was said about the configuration.
    pub(super) said: Option<String>,
    /// When the next chores are due.
    pub(super) chores: Instant,
}

/// The last good configuration, as it is kept for the next process.
#[derive(Debug, Default)]
pub(super) struct LastGood {
    kept: Option<Stored>,
    busy: bool,
    backoff: Backoff,
}

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// This replica leads from now on.
    pub(super) fn gain(&mut self) {
        self.terms += 1;
        let now = self.clock.now();
        tracing::info!("this replica reconciles from now on");
        self.metrics.reconcile.leader.set(1);
        self.resign_pods();
        self.settings.forget();
        self.term = Some(Term {
            number: self.terms,
            since: self.clock.wall(),
            listed: false,
            services: BTreeMap::new(),
            debts: Debts::default(),
            adoption: Adoption::default(),
            events: Teller::default(),
            writes: 0,
            write_queue: VecDeque::new(),
            calls: 0,
            held: BTreeSet::new(),
            last_good: LastGood::default(),
            said: None,
            chores: now,
        });
        for mourned in self.pods.mourned(now) {
            self.add_debts(&mourned.uid, &mourned.key, &mourned.claims);
        }
        self.wires.wish.send_replace(self.terms);
        self.load(Store::Debts, now);
        self.load(Store::LastGood, now);
        self.configuration_taken(true);
    }

    /// This replica does not lead any more.
    pub(super) fn lose(&mut self) {
        tracing::info!("this replica does not reconcile any more");
        self.metrics.reconcile.leader.set(0);
        self.metrics.reconcile.held_pods.set(0);
        self.metrics.reconcile.debts.set(0);
        self.hide_gauges();
        self.term = None;
        self.resign_pods();
        self.settings.forget();
        self.agenda.clear();
        self.armed.clear();
        self.touched.clear();
        self.wakes.clear();
        self.retries.clear();
    }

    /// The configuration in force, or what is said of the newest one, may be another.
    pub(super) fn configuration_taken(&mut self, changed: bool) {
        if changed {
            self.dirty.extend(self.pods.iter().map(|(uid, _)| uid.clone()));
        }
        if self.term.is_none() {
            return;
        }
        if changed {
            self.refresh_services();
            self.want_adoption();
        }
        self.say_about_configuration();
        self.keep_last_good();
    }

    /// What has no event of its own.
    pub(super) fn keep_house(&mut self, now: Instant) {
        let (managed, ungated) = self.pods.counts();
        self.metrics.reconcile.managed_pods.set(i64::try_from(managed).unwrap_or(i64::MAX));
        self.metrics.reconcile.adopted_pods.set(i64::try_from(ungated).unwrap_or(i64::MAX));
        self.tell_events();
        let Some(term) = &mut self.term else { return };
        self.metrics.reconcile.held_pods.set(i64::try_from(term.held.len()).unwrap_or(i64::MAX));
        self.metrics.reconcile.debts.set(i64::try_from(term.debts.recorded_count()).unwrap_or(i64::MAX));
        if now < term.chores {
            return;
        }
        term.chores = now.after(CHORES);
        self.drop_old_debts();
        self.write_debts();
        self.keep_last_good();
        self.adopt_when_due();
        self.show_gauges();
    }

    /// When chores are due.
    pub(super) fn next_chore(&self) -> Option<Instant> {
        self.term.as_ref().map(|term| term.chores)
    }

    /// Stops beginning anything; when to stop waiting for what is on its way.
    pub(super) fn begin_stop(&mut self) -> Instant {
        tracing::info!("stopping");
        self.stopping = true;
        self.clock.now().after(STOP_LIMIT)
    }

    /// Whether nothing that was sent waits for an answer.
    pub(super) fn is_quiet(&self) -> bool {
        self.term.as_ref().is_none_or(|term| term.calls == 0 && term.writes == 0)
    }

    /// Gives the Lease back; when to stop waiting for that.
    pub(super) fn finish_stop(&mut self) -> Instant {
        if !*self.wires.give_back.borrow() {
            self.wires.give_back.send_replace(true);
            self.term = None;
        }
        self.clock.now().after(GIVE_BACK_LIMIT)
    }

    /// Reads a store, not before `at`.
    pub(super) fn load(&self, store: Store, at: Instant) {
        let (cluster, clock, term) = (self.cluster.clone(), self.clock.clone(), self.term.as_ref().map_or(0, |term| term.number));
        self.post(async move {
            clock.sleep_until(at).await;
            let answer = super::calls::api_limited(&clock, cluster.read_store(store)).await;
            Input::Loaded { term, store, answer }
        });
    }

    /// A store was read.
    pub(super) fn loaded(&mut self, term: u64, store: Store, answer: Result<Stored, super::cluster::ApiError>) {
        match store {
            Store::Debts => self.debts_loaded(term, answer),
            Store::LastGood => {
                if let Ok(stored) = &answer
                    && self.settings.fall_back(&stored.text, &self.drivers)
                {
                    tracing::warn!("the last good configuration of an earlier process is in force");
                    self.metrics.reconcile.in_force(&stored.text);
                    self.configuration_taken(true);
                }
                match (&mut self.term, answer) {
                    (Some(current), Ok(stored)) if current.number == term => current.last_good.kept = Some(stored),
                    (Some(current), Err(_)) if current.number == term => self.retry_last_good(),
                    (None, Err(_)) if self.settings.current.is_none() => self.load(Store::LastGood, self.clock.now().after(RETRY_CAP)),
                    _ => {}
                }
                self.keep_last_good();
            }
        }
    }

    /// A store was written.
    pub(super) fn stored(&mut self, term: u64, store: Store, answer: Option<Result<Stored, super::cluster::ApiError>>) {
        match store {
            Store::Debts => self.debts_stored(term, answer),
            Store::LastGood => {
                let Some(current) = self.term.as_mut().filter(|current| current.number == term) else { return };
                current.last_good.busy = false;
                match answer {
                    Some(Ok(stored)) => {
                        current.last_good.kept = Some(stored);
                        current.last_good.backoff.succeed();
                    }
                    Some(Err(_)) => self.retry_last_good(),
                    None => {}
                }
            }
        }
    }

    /// Reads the store again before it is written again.
    fn retry_last_good(&mut self) {
        let (now, jitter) = (self.clock.now(), self.clock.jitter());
        let Some(term) = &mut self.term else { return };
        term.last_good.kept = None;
        term.last_good.backoff.fail(now, jitter);
        let at = term.last_good.backoff.until();
        self.load(Store::LastGood, at);
    }

    fn keep_last_good(&mut self) {
        let now = self.clock.now();
        let Some(text) = self.settings.text.clone().filter(|_| !self.stopping) else { return };
        let Some(term) = &mut self.term else { return };
        let LastGood { kept: Some(kept), busy: false, backoff } = &term.last_good else { return };
        if *kept.text == *text || now < backoff.until() {
            return;
        }
        let value = Stored { resource_version: kept.resource_version.clone(), text: text.to_string() };
        term.last_good.busy = true;
        let number = term.number;
        self.write_store(number, Store::LastGood, value);
    }

    /// Writes a store.
    pub(super) fn write_store(&self, term: u64, store: Store, value: Stored) {
        let (cluster, clock, tenure) = (self.cluster.clone(), self.clock.clone(), self.tenure.clone());
        self.post(async move {
            let answer = if tenure.holds(clock.now()) {
                Some(super::calls::api_limited(&clock, cluster.write_store(store, &value)).await)
            } else {
                None
            };
            Input::Stored { term, store, answer }
        });
    }

    fn say_about_configuration(&mut self) {
        let unusable = self
            .settings
            .clients()
            .filter(|(name, _)| self.settings.current.as_ref().is_some_and(|current| current.registry(name).is_some()));
        let registries: Vec<&str> = unusable.filter_map(|(_, client)| client.opened.as_ref().err().map(String::as_str)).collect();
        let (reason, problem) = match &self.settings.problem {
            Some(problem) => (Reason::ConfigurationInvalid, problem.clone()),
            None if registries.is_empty() => {
                if let Some(term) = &mut self.term {
                    term.said = None;
                }
                return;
            }
            None => (Reason::RegistryUnusable, registries.join("; ")),
        };
        let Some(term) = &mut self.term else { return };
        if term.said.as_ref() != Some(&problem) {
            term.said = Some(problem.clone());
            term.events.tell(Subject::Configuration, reason, problem, String::new());
        }
    }

    fn resign_pods(&mut self) {
        for (_, entry) in self.pods.iter_mut() {
            entry.resign();
        }
    }
}
