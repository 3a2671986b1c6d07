//! What the registry server knows, and what each request makes of it.
//!
//! Pure: time is an argument, and what must become durable is handed out as rows. So every rule is testable without a disk.
//!
//! ```text
//!            register            drain               deregister
//! (absent) ──────────▶ initial ────────▶ draining ──────────────▶ (absent)
//!                        │ acknowledged     ▲
//!                        └─────▶ active ────┘         register turns a draining target active again
//! ```
//!
//! Each arrow is taken at once, unless the behaviour delays or holds it; then the old state is shown until it is taken.
//!
//! Invariant: what is listed changes only together with the index of its service.
//! Invariant: an index is never used again, a restart included.
//! Absent on purpose: durability (`store`), names and sizes of what a request may say (`api`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::refusal::{Reason, Refused};
use crate::registry::http::contract::{
    Behaviour, ChangeSpec, ListedTarget, OperationWord, PodName, Refuse, Service, ServiceSpec, TargetList,
};
use crate::target::TargetState;

/// One service holds no more targets: a listing stays small enough to be read in one piece.
pub(super) const MAX_TARGETS: usize = 5_000;
/// The server holds no more services: names come from callers, and memory is finite.
pub(super) const MAX_SERVICES: usize = 1_000;

/// Everything the server knows.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// Services must be made before they are used.
    strict: bool,
    index: u64,
    behaviour: Behaviour,
    services: BTreeMap<Arc<str>, ServiceState>,
    /// Targets that wait for an acknowledgement, with the time since when.
    waiting: BTreeMap<(Arc<str>, Key), Duration>,
    unsaved: Unsaved,
}

/// Name of a target within a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) address: SocketAddr,
    pub(super) uid: Arc<str>,
}

/// What is kept of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TargetRecord {
    state: Shown,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    becomes: Option<Becomes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<PodName>,
    weight: u16,
}

/// What is kept of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServiceRecord {
    index: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spec: Option<ServiceSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    behaviour: Option<Behaviour>,
}

/// One row to be made durable; `None` takes it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Row {
    Index(u64),
    Behaviour(Behaviour),
    Service(Arc<str>, Option<ServiceRecord>),
    Target(Arc<str>, Key, Option<TargetRecord>),
}

/// State of a target as callers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Shown {
    Initial,
    Active,
    Draining,
}

/// What a target will be once that is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Becomes {
    Active,
    Draining,
    Gone,
}

#[derive(Debug, Default)]
struct ServiceState {
    record: ServiceRecord,
    targets: BTreeMap<Key, TargetRecord>,
}

#[derive(Debug, Default)]
struct Unsaved {
    behaviour: bool,
    services: BTreeSet<Arc<str>>,
    targets: BTreeSet<(Arc<str>, Key)>,
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Something new is there.
    Created,
    /// It is as asked.
    Done,
}

impl Model {
    /// An empty one; `strict` ones take targets only for services that were made.
    pub(super) fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Takes a row that was kept. What waits begins to wait at zero.
    pub(super) fn restore(&mut self, row: Row) {
        match row {
            Row::Index(index) => self.index = index,
            Row::Behaviour(behaviour) => self.behaviour = behaviour,
            Row::Service(name, record) => self.services.entry(name).or_default().record = record.unwrap_or_default(),
            Row::Target(service, key, Some(record)) => {
                if record.becomes.is_some() {
                    self.waiting.insert((service.clone(), key.clone()), Duration::ZERO);
                }
                self.services.entry(service).or_default().targets.insert(key, record);
            }
            Row::Target(_, _, None) => {}
        }
    }

    /// What changed since it was last asked.
    pub(super) fn take_unsaved(&mut self) -> Vec<Row> {
        let unsaved = std::mem::take(&mut self.unsaved);
        let mut rows = Vec::new();
        if unsaved.behaviour {
            rows.push(Row::Behaviour(self.behaviour));
        }
        for name in unsaved.services {
            let record = self.services.get(&name).map(|service| service.record.clone());
            rows.push(Row::Service(name, record));
        }
        for (name, key) in unsaved.targets {
            let record = self.services.get(&name).and_then(|service| service.targets.get(&key)).cloned();
            rows.push(Row::Target(name, key, record));
        }
        if !rows.is_empty() {
            rows.push(Row::Index(self.index));
        }
        rows
    }

    /// Does one change of one target.
    pub(super) fn change(&mut self, service: &str, change: ChangeSpec, now: Duration) -> Result<Done, Refused> {
        self.may_change(service)?;
        let key = Key { address: change.address, uid: change.uid.as_str().into() };
        let known = self.services.get(service).and_then(|service| service.targets.get(&key));
        if let (Some(known), Some(_)) = (known, &change.cluster)
            && known.cluster != change.cluster
        {
            let owner = known.cluster.as_deref().unwrap_or("nobody");
            return Err(Refused::new(Reason::ForeignTarget, format!("the target belongs to {owner}")));
        }
        match (change.operation, known.is_some()) {
            (OperationWord::Register, false) => self.add(service, key, change, now),
            (_, false) => Err(Refused::new(Reason::TargetNotFound, format!("{service} has no target {} of {}", key.address, key.uid))),
            (operation, true) => {
                self.turn(service, key, operation, change, now);
                Ok(Done::Done)
            }
        }
    }

    /// Takes every acknowledgement whose time has come, and answers when the next one does.
    pub(super) fn settle(&mut self, now: Duration) -> Option<Duration> {
        let due: Vec<_> = self
            .waiting
            .iter()
            .filter(|(name, since)| self.due(name, **since).is_some_and(|due| due <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for (service, key) in due {
            self.acknowledge(&service, &key);
        }
        self.waiting.iter().filter_map(|(name, since)| self.due(name, *since)).min()
    }

    /// Makes a service, or changes what is said of it.
    pub(super) fn put_service(&mut self, name: &str, spec: ServiceSpec) -> Result<Done, Refused> {
        let done = if self.services.get(name).is_some_and(|service| service.record.spec.is_some()) { Done::Done } else { Done::Created };
        let service = self.service_mut(name)?;
        if service.record.spec.as_ref() != Some(&spec) {
            service.record.spec = Some(spec);
            self.changed(name);
        }
        Ok(done)
    }

    /// Forgets a service that has no targets.
    pub(super) fn delete_service(&mut self, name: &str) -> Result<Done, Refused> {
        let service = self.services.get(name).ok_or_else(|| no_service(name))?;
        if !service.targets.is_empty() {
            return Err(Refused::new(Reason::ServiceNotEmpty, format!("{name} has {} targets", service.targets.len())));
        }
        self.changed(name);
        self.services.remove(name);
        Ok(Done::Done)
    }

    /// Says how acknowledgements go, for one service or for all that have none of their own; `None` goes back to those.
    pub(super) fn put_behaviour(&mut self, service: Option<&str>, behaviour: Option<Behaviour>) -> Result<(), Refused> {
        match service {
            None => {
                self.behaviour = behaviour.unwrap_or_default();
                self.unsaved.behaviour = true;
            }
            Some(name) if behaviour.is_none() && !self.services.contains_key(name) => {}
            Some(name) => {
                self.service_mut(name)?.record.behaviour = behaviour;
                let (name, _) = self.services.get_key_value(name).expect("it was found just now");
                self.unsaved.services.insert(name.clone());
            }
        }
        Ok(())
    }

    /// What was said of the acknowledgements of a service itself, or of all.
    pub(super) fn own_behaviour(&self, service: Option<&str>) -> Option<Behaviour> {
        match service {
            Some(name) => self.services.get(name).and_then(|service| service.record.behaviour),
            None => Some(self.behaviour),
        }
    }

    /// The index of a service's last change; 0 of one that is not known.
    pub(super) fn index(&self, service: &str) -> u64 {
        self.services.get(service).map_or(0, |service| service.record.index)
    }

    /// Names of the services.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.services.keys()
    }

    /// One service and its targets, as callers see them.
    pub(super) fn show(&self, name: &str) -> Option<(Service, TargetList)> {
        let service = self.services.get(name)?;
        let index = service.record.index;
        let targets = service.targets.iter().map(|(key, record)| record.listed(key)).collect();
        let list = TargetList { service: name.to_owned(), index, targets };
        let drain_delay = service.record.spec.as_ref().and_then(|spec| spec.drain_delay);
        Some((Service { service: name.to_owned(), index, targets: list.targets.len(), drain_delay }, list))
    }

    fn behaviour_of(&self, service: &str) -> Behaviour {
        self.own_behaviour(Some(service)).unwrap_or(self.behaviour)
    }

    fn may_change(&self, service: &str) -> Result<(), Refused> {
        match self.behaviour_of(service).refuse {
            None => {}
            Some(Refuse::Denied) => return Err(Refused::new(Reason::Denied, "the server was told to deny changes")),
            Some(Refuse::Throttled) => return Err(Refused::new(Reason::Throttled, "the server was told to throttle changes")),
            Some(Refuse::Unavailable) => return Err(Refused::new(Reason::Unavailable, "the server was told to take no changes")),
        }
        let made = self.services.get(service).is_some_and(|service| service.record.spec.is_some());
        if self.strict && !made { Err(no_service(service)) } else { Ok(()) }
    }

    fn add(&mut self, name: &str, key: Key, change: ChangeSpec, now: Duration) -> Result<Done, Refused> {
        let service = self.service_mut(name)?;
        if service.targets.len() >= MAX_TARGETS {
            return Err(Refused::new(Reason::ServiceFull, format!("{name} has {MAX_TARGETS} targets, the most that a service may have")));
        }
        let ChangeSpec { cluster, pod, weight, .. } = change;
        service.targets.insert(key.clone(), TargetRecord { state: Shown::Initial, becomes: Some(Becomes::Active), cluster, pod, weight });
        self.wait(name, key, now);
        Ok(Done::Created)
    }

    fn turn(&mut self, name: &str, key: Key, operation: OperationWord, change: ChangeSpec, now: Duration) {
        let service = self.services.get_mut(name).expect("the caller found the target in it");
        let record = service.targets.get_mut(&key).expect("the caller found it");
        let before = record.clone();
        match operation {
            OperationWord::Register => {
                record.becomes = if record.state == Shown::Active { None } else { Some(Becomes::Active) };
                record.pod = change.pod;
                record.weight = change.weight;
            }
            OperationWord::Drain if record.becomes == Some(Becomes::Gone) => {}
            OperationWord::Drain => {
                record.becomes = if record.state == Shown::Draining { None } else { Some(Becomes::Draining) };
            }
            OperationWord::Deregister => {
                record.state = Shown::Draining;
                record.becomes = Some(Becomes::Gone);
            }
        }
        if *record == before {
            return;
        }
        if record.becomes == before.becomes {
            self.touch(name, &key);
        } else {
            self.wait(name, key, now);
        }
    }

    /// Begins, or ends, the wait of a target for what it becomes.
    fn wait(&mut self, name: &str, key: Key, now: Duration) {
        self.touch(name, &key);
        let (name, service) = self.services.get_key_value(name).expect("the caller changed a target in it");
        let waits = service.targets.get(&key).is_some_and(|record| record.becomes.is_some());
        let full = (name.clone(), key);
        if !waits {
            self.waiting.remove(&full);
        } else if self.due(&full, now).is_some_and(|due| due <= now) {
            self.acknowledge(&full.0, &full.1);
        } else {
            self.waiting.insert(full, now);
        }
    }

    /// When what waits since then is acknowledged; `None` while it is held.
    fn due(&self, (service, key): &(Arc<str>, Key), since: Duration) -> Option<Duration> {
        let behaviour = self.behaviour_of(service);
        let record = self.services.get(service)?.targets.get(key)?;
        let delay = match record.becomes? {
            Becomes::Active => behaviour.register_delay,
            Becomes::Draining => behaviour.drain_delay,
            Becomes::Gone => behaviour.deregister_delay,
        };
        (!behaviour.hold).then(|| since.saturating_add(delay))
    }

    fn acknowledge(&mut self, name: &Arc<str>, key: &Key) {
        self.waiting.remove(&(name.clone(), key.clone()));
        let Some(service) = self.services.get_mut(name) else { return };
        let Some(record) = service.targets.get_mut(key) else { return };
        match record.becomes.take() {
            Some(Becomes::Active) => record.state = Shown::Active,
            Some(Becomes::Draining) => record.state = Shown::Draining,
            Some(Becomes::Gone) => drop(service.targets.remove(key)),
            None => return,
        }
        self.touch(name, key);
    }

    fn service_mut(&mut self, name: &str) -> Result<&mut ServiceState, Refused> {
        if !self.services.contains_key(name) && self.services.len() >= MAX_SERVICES {
            return Err(Refused::new(Reason::TooManyServices, format!("there are {MAX_SERVICES} services, the most that may be")));
        }
        Ok(self.services.entry(name.into()).or_default())
    }

    fn touch(&mut self, name: &str, key: &Key) {
        let name = self.changed(name);
        self.unsaved.targets.insert((name, key.clone()));
    }

    fn changed(&mut self, name: &str) -> Arc<str> {
        self.index += 1;
        let name = self.services.get_key_value(name).map_or_else(|| name.into(), |(name, _)| name.clone());
        if let Some(service) = self.services.get_mut(&name) {
            service.record.index = self.index;
        }
        self.unsaved.services.insert(name.clone());
        name
    }
}

impl TargetRecord {
    fn listed(&self, key: &Key) -> ListedTarget {
        let state = match self.state {
            Shown::Initial => TargetState::Initial,
            Shown::Active => TargetState::Active,
            Shown::Draining => TargetState::Draining,
        };
        let (address, uid) = (key.address, key.uid.to_string());
        ListedTarget { address, uid, state, cluster: self.cluster.clone(), pod: self.pod.clone(), weight: self.weight }
    }
}

fn no_service(name: &str) -> Refused {
    Refused::new(Reason::ServiceNotFound, format!("there is no service {name}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn change(operation: OperationWord, uid: &str) -> ChangeSpec {
        let address = "10.0.0.1:80".parse().unwrap();
        ChangeSpec { operation, address, uid: uid.to_owned(), cluster: Some("c".to_owned()), pod: None, weight: 100 }
    }

    fn states(model: &Model) -> Vec<(String, &'static str)> {
        let (_, list) = model.show("web").unwrap_or_else(|| panic!("the service is known"));
        list.targets.into_iter().map(|target| (target.uid, target.state.as_str())).collect()
    }

    /// Steps: `r`egister, d`r`ain written as `d`, deregister as `x`; what is shown after each.
    #[rstest]
    #[case::a_life("rdx", &["active", "draining", ""])]
    #[case::without_drain("rx", &["active", ""])]
    #[case::back_again("rdr", &["active", "draining", "active"])]
    #[case::repeated("rrddr", &["active", "active", "draining", "draining", "active"])]
    fn acknowledged_at_once(#[case] steps: &str, #[case] shown: &[&str]) {
        let mut model = Model::new(false);
        for (step, shown) in steps.chars().zip(shown) {
            model.change("web", change(operation(step), "u"), Duration::ZERO).unwrap();
            let now: Vec<_> = states(&model).into_iter().map(|(_, state)| state).collect();
            assert_eq!(now.concat(), *shown, "after {step}");
        }
    }

    /// The same with acknowledgements held: the old state stays, a later step replaces an earlier one.
    #[rstest]
    #[case::register("r", "initial", "active")]
    #[case::drain_before_active("rd", "initial", "draining")]
    #[case::deregister("rx", "draining", "")]
    #[case::changed_mind("rxr", "draining", "active")]
    #[case::drain_of_a_leaving_one("rxd", "draining", "")]
    fn held(#[case] steps: &str, #[case] shown: &str, #[case] at_last: &str) {
        let mut model = Model::new(false);
        model.put_behaviour(None, Some(Behaviour { hold: true, ..Behaviour::default() })).unwrap();
        for step in steps.chars() {
            model.change("web", change(operation(step), "u"), Duration::ZERO).unwrap();
        }
        assert_eq!(model.settle(SECOND * 3600), None, "nothing comes by itself");
        assert_eq!(states(&model)[0].1, shown);
        model.put_behaviour(None, None).unwrap();
        model.settle(SECOND * 3600);
        assert_eq!(states(&model).into_iter().map(|(_, state)| state).collect::<String>(), at_last);
    }

    #[test]
    fn delays_are_kept_to_and_repeats_do_not_prolong_them() {
        let mut model = Model::new(false);
        model.put_behaviour(Some("web"), Some(Behaviour { register_delay: SECOND * 5, ..Behaviour::default() })).unwrap();
        model.change("web", change(OperationWord::Register, "u"), SECOND).unwrap();
        assert_eq!(model.settle(SECOND * 3), Some(SECOND * 6));
        model.change("web", change(OperationWord::Register, "u"), SECOND * 3).unwrap();
        assert_eq!(model.settle(SECOND * 3), Some(SECOND * 6));
        let index = model.index("web");
        assert_eq!(model.settle(SECOND * 6), None);
        assert_eq!(states(&model)[0].1, "active");
        assert!(model.index("web") > index, "a listing that changed has another index");
    }

    #[test]
    fn a_newcomer_on_a_used_address_has_a_life_of_its_own() {
        let mut model = Model::new(false);
        model.change("web", change(OperationWord::Register, "old"), SECOND).unwrap();
        model.change("web", change(OperationWord::Register, "new"), SECOND).unwrap();
        model.change("web", change(OperationWord::Deregister, "old"), SECOND).unwrap();
        assert_eq!(states(&model), [("new".to_owned(), "active")]);
        let again = model.change("web", change(OperationWord::Deregister, "old"), SECOND).unwrap_err();
        assert_eq!(again.reason, Reason::TargetNotFound);
    }

    #[test]
    fn another_cluster_cannot_touch_a_target() {
        let mut model = Model::new(false);
        model.change("web", change(OperationWord::Register, "u"), SECOND).unwrap();
        for step in ['r', 'd', 'x'] {
            let foreign = ChangeSpec { cluster: Some("other".to_owned()), ..change(operation(step), "u") };
            assert_eq!(model.change("web", foreign, SECOND).unwrap_err().reason, Reason::ForeignTarget);
        }
        assert_eq!(states(&model)[0].1, "active");
    }

    #[test]
    fn what_changed_nothing_is_not_written_again() {
        let mut model = Model::new(false);
        model.change("web", change(OperationWord::Register, "u"), SECOND).unwrap();
        assert_eq!(model.take_unsaved().len(), 3, "target, service and index");
        let index = model.index("web");
        model.change("web", change(OperationWord::Register, "u"), SECOND).unwrap();
        assert_eq!(model.take_unsaved(), []);
        assert_eq!(model.index("web"), index);
    }

    #[test]
    fn rows_bring_back_the_same_model() {
        let mut model = Model::new(false);
        let behaviour = Behaviour { deregister_delay: SECOND, ..Behaviour::default() };
        model.put_behaviour(None, Some(behaviour)).unwrap();
        model.put_service("web", ServiceSpec { drain_delay: Some(SECOND) }).unwrap();
        for (step, uid) in [('r', "a"), ('r', "b"), ('d', "b"), ('x', "a")] {
            model.change("web", change(operation(step), uid), SECOND).unwrap();
        }
        let mut again = Model::new(false);
        model.take_unsaved().into_iter().for_each(|row| again.restore(row));
        assert_eq!(again.show("web"), model.show("web"));
        assert_eq!(again.own_behaviour(None), Some(behaviour));
        assert_eq!(again.settle(Duration::ZERO), Some(SECOND), "what waited, waits again");
        again.settle(SECOND);
        assert_eq!(states(&again), [("b".to_owned(), "draining")]);
    }

    #[test]
    fn strict_ones_want_services_made() {
        let mut model = Model::new(true);
        let early = model.change("web", change(OperationWord::Register, "u"), SECOND).unwrap_err();
        assert_eq!(early.reason, Reason::ServiceNotFound);
        assert_eq!(model.put_service("web", ServiceSpec::default()).unwrap(), Done::Created);
        assert_eq!(model.put_service("web", ServiceSpec::default()).unwrap(), Done::Done);
        model.change("web", change(OperationWord::Register, "u"), SECOND).unwrap();
        assert_eq!(model.delete_service("web").unwrap_err().reason, Reason::ServiceNotEmpty);
        model.change("web", change(OperationWord::Deregister, "u"), SECOND).unwrap();
        let index = model.index("web");
        model.delete_service("web").unwrap();
        assert_eq!(model.delete_service("web").unwrap_err().reason, Reason::ServiceNotFound);
        model.put_service("web", ServiceSpec::default()).unwrap();
        assert!(model.index("web") > index, "an index is never used again");
    }

    fn operation(step: char) -> OperationWord {
        match step {
            'r' => OperationWord::Register,
            'd' => OperationWord::Drain,
            _ => OperationWord::Deregister,
        }
    }
}
