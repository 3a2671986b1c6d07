//! The product's drivers, all simulated: requests that take effect when they are sent and are answered later.
//!
//! Invariant: a request takes effect when it is sent; its answer comes later and describes that moment.
//! Absent on purpose: what a registry holds and does by itself (`registry`).

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use lockstep::config::RegistryConfig;
use lockstep::reconcile::{Drivers, OpenError};
use lockstep::registry::{CALL_TIMEOUT, CallError, Capabilities, Change, ChangeError, Listed, Listing, Operation, Registry, Stamp, Wait};
use lockstep::target::{PodUid, ServiceId};

use super::super::record::{Call, Request, What, meant};
use super::super::{Agenda, Shared, Trigger, World};
use super::{Answer, Behaviour, LISTINGS, Received, Repeat, Seen, SimRegistryState, Snapshot, TargetKey, Track};
use crate::executor::{ProcessId, Sleep, lock};
use crate::sabotage::Sabotage;

/// A registry of this name has no client.
const UNUSABLE: &str = "unusable";

/// The product's drivers, all simulated.
#[derive(Clone)]
pub(crate) struct SimDrivers {
    shared: Arc<Shared>,
    process: ProcessId,
}

impl SimDrivers {
    /// The drivers of one process.
    pub(crate) fn new(shared: Arc<Shared>, process: ProcessId) -> Self {
        Self { shared, process }
    }
}

impl Drivers for SimDrivers {
    type Registry = SimRegistry;

    fn open(&self, config: &RegistryConfig, _cluster: &Arc<str>) -> Result<Arc<SimRegistry>, OpenError> {
        let name = config.name.clone();
        if &*name == UNUSABLE {
            return Err(OpenError::Unusable { name, reason: "it stands for a registry whose settings cannot be used".to_owned() });
        }
        let sabotage = {
            let mut world = self.shared.world();
            world.registries.entry(name.clone()).or_insert_with(|| SimRegistryState::new(Behaviour::default()));
            world.sabotage
        };
        Ok(Arc::new(SimRegistry {
            shared: self.shared.clone(),
            process: self.process,
            name,
            sabotage,
            seen: Mutex::default(),
            rest: Mutex::default(),
        }))
    }
}

/// One registry, as one process reaches it.
pub(crate) struct SimRegistry {
    shared: Arc<Shared>,
    process: ProcessId,
    name: Arc<str>,
    sabotage: Option<Sabotage>,
    /// What was ever seen active; only a deliberate fault asks.
    seen: Mutex<BTreeMap<SocketAddr, Listed>>,
    /// Failures in a row, and until when no call is made; only a deliberate fault asks.
    rest: Mutex<(u32, Duration)>,
}

/// An answer on its way.
struct Answered<T> {
    at: Duration,
    answer: Result<T, CallError>,
}

impl Registry for SimRegistry {
    fn capabilities(&self) -> Capabilities {
        let mut world = self.shared.world();
        let behaviour = &world.registries.entry(self.name.clone()).or_insert_with(|| SimRegistryState::new(Behaviour::default())).behaviour;
        let mut capabilities = Capabilities {
            drain: behaviour.drains,
            keys: behaviour.keys,
            stamps: behaviour.marks,
            blocking_read: behaviour.blocking,
            batch: NonZeroUsize::new(behaviour.batch).unwrap_or(NonZeroUsize::MIN),
            gone_when: behaviour.gone_when(),
            poll: Duration::from_secs(5),
        };
        if let Some(sabotage) = self.sabotage {
            sabotage.capabilities(&mut capabilities);
        }
        capabilities
    }

    async fn list(&self, service: &str, wait: Option<Wait>) -> Result<Listing, CallError> {
        let id = ServiceId::new(self.name.clone(), service);
        if let Some(wait) = wait {
            self.wait(&id, wait).await;
        }
        if self.rests() {
            return Err(CallError::Unavailable("an earlier call failed".to_owned()));
        }
        let asked = self.shared.world().ask(self.process, &id);
        let Some((sent, sent_at, index, asked)) = asked else { return pending().await };
        Sleep::until(&self.shared.exec, asked.at).await;
        super::super::api::Yield::default().await;
        let snapshot = match asked.answer {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.answered(false);
                if matches!(error, CallError::ServiceMissing(_)) {
                    self.shared.world().receive(&id, sent, sent_at, Arc::default());
                }
                return Err(error);
            }
        };
        let marks = self.shared.world().receive(&id, sent, sent_at, snapshot.clone());
        self.answered(true);
        let stamp = |one: &Seen| {
            let (cluster, uid) = one.cluster.clone().zip(one.owner.clone()).filter(|_| marks)?;
            Some(Stamp { cluster, uid })
        };
        let targets = snapshot.iter().map(|one| Listed { address: one.address, state: one.state, stamp: stamp(one) }).collect();
        let mut listing = Listing { targets, index, unfinished: false };
        if let Some(sabotage) = self.sabotage {
            sabotage.listing(&mut listing, &mut lock(&self.seen));
        }
        Ok(listing)
    }

    async fn apply(&self, service: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        let id = ServiceId::new(self.name.clone(), service);
        if self.rests() {
            return Err(CallError::Unavailable("an earlier call failed".to_owned()));
        }
        let sent = self.shared.world().send(self.process, &id, changes);
        let Some((sent, answered)) = sent else { return pending().await };
        if self.sabotage == Some(Sabotage::DoesNotWaitForAnswers) {
            return answered.answer;
        }
        let keys = {
            let mut world = self.shared.world();
            let behaviour = world.service(&id).0;
            changes.iter().map(|change| (change.uid.clone(), behaviour.key(change.address, Some(&change.uid)))).collect()
        };
        let mut flight = Flight { shared: &self.shared, id: &id, keys, sent };
        Sleep::until(&self.shared.exec, answered.at).await;
        super::super::api::Yield::default().await;
        flight.land(changes, &answered.answer);
        self.answered(answered.answer.is_ok());
        let mut answer = answered.answer;
        if let (Some(Sabotage::ReleasesWithoutRead), Ok(results)) = (self.sabotage, &mut answer) {
            let done =
                results.iter_mut().zip(changes).filter(|(result, change)| result.is_ok() && change.operation == Operation::Deregister);
            done.for_each(|(result, _)| *result = Err(ChangeError::NotFound));
        }
        answer
    }

    async fn drain_delay(&self, _service: &str) -> Result<Option<Duration>, CallError> {
        Ok(None)
    }
}

impl SimRegistry {
    /// Whether a deliberate fault keeps a call back: after each failure for six times as long.
    fn rests(&self) -> bool {
        self.sabotage == Some(Sabotage::RetriesUncapped) && self.shared.exec.now() < lock(&self.rest).1
    }

    /// A call was answered, well or badly.
    fn answered(&self, well: bool) {
        let mut rest = lock(&self.rest);
        let failures = if well { 0 } else { rest.0.saturating_add(1).min(6) };
        let pause = Duration::from_secs(if well { 0 } else { 6_u64.pow(failures) });
        *rest = (failures, self.shared.exec.now() + pause);
    }

    /// Waits until the service differs from that index, or the time is over.
    async fn wait(&self, id: &ServiceId, wait: Wait) {
        let until = self.shared.exec.now() + wait.at_most;
        let differs = Differs { shared: &self.shared, id, index: wait.index };
        futures_util::future::select(differs, Sleep::until(&self.shared.exec, until)).await;
    }
}

struct Differs<'a> {
    shared: &'a Shared,
    id: &'a ServiceId,
    index: u64,
}

impl Future for Differs<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut world = self.shared.world();
        let (behaviour, service) = world.service(self.id);
        if !behaviour.blocking || service.index != self.index {
            return Poll::Ready(());
        }
        if !service.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            service.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Changes that were sent and not answered; given up when dropped.
struct Flight<'a> {
    shared: &'a Arc<Shared>,
    id: &'a ServiceId,
    keys: Vec<(PodUid, TargetKey)>,
    sent: u64,
}

impl Flight<'_> {
    fn land(&mut self, changes: &[Change], answer: &Result<Vec<Result<(), ChangeError>>, CallError>) {
        let mut world = self.shared.world();
        let seq = world.tick();
        let (_, service) = world.service(self.id);
        for (index, key) in self.keys.iter().enumerate() {
            let Some(track) = service.tracks.get_mut(key).filter(|track| track.sent == self.sent) else { continue };
            track.in_flight = None;
            track.answered = seq;
            let result = answer.as_ref().map(|results| &results[index]);
            let done = matches!(result, Ok(Ok(())));
            let operation = changes[index].operation;
            track.accepted = operation == Operation::Register && done;
            track.deregistered = operation == Operation::Deregister && done;
            let refused = match &result {
                Ok(Err(error)) => !matches!(error, ChangeError::NotFound),
                Err(error) => matches!(error, CallError::Unavailable(_) | CallError::Throttled(_) | CallError::Denied(_)),
                Ok(Ok(())) => false,
            };
            if refused {
                track.out = track.out_before;
            }
            track.absent = operation != Operation::Register
                && (matches!(result, Ok(Err(ChangeError::NotFound))) || matches!(result, Err(CallError::ServiceMissing(_))));
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut world = self.shared.world();
        let (_, service) = world.service(self.id);
        for key in &self.keys {
            if let Some(track) = service.tracks.get_mut(key).filter(|track| track.sent == self.sent) {
                track.in_flight = None;
            }
        }
    }
}

impl World {
    /// A listing was received; whether it shows marks.
    fn receive(&mut self, id: &ServiceId, sent: u64, sent_at: Duration, snapshot: Arc<Snapshot>) -> bool {
        self.tick();
        let (behaviour, service) = self.service(id);
        if service.received.len() == LISTINGS {
            service.received.pop_front();
        }
        service.received.push_back(Received { sent, sent_at, snapshot });
        behaviour.marks
    }

    /// When an answer to what is sent now arrives; `None`: never within the product's patience.
    fn arrival(&mut self, latency: Duration) -> Option<Duration> {
        let now = self.now;
        let slow = self.noise.as_mut().filter(|noise| noise.until > now).map_or(0, |noise| noise.random.below(noise.slow + 1));
        let latency = latency + Duration::from_millis(slow);
        (latency < CALL_TIMEOUT).then(|| now + latency)
    }

    /// A `list` request is sent; `None` where the process is dead.
    #[expect(clippy::type_complexity, reason = "one caller takes it apart at once")]
    fn ask(&mut self, process: ProcessId, id: &ServiceId) -> Option<(u64, Duration, Option<u64>, Answered<Arc<Snapshot>>)> {
        self.count_request();
        if !self.processes[process].alive {
            return None;
        }
        let sent = self.tick();
        let now = self.now;
        self.record.requests.push(Request { at: now, registry: id.registry.clone(), service: id.service.clone(), apply: false });
        let (behaviour, service) = self.service(id);
        let (answer, lag, latency) = (behaviour.answers.list, behaviour.list_lag, behaviour.latency);
        let index = behaviour.blocking.then_some(service.index);
        let snapshot = if lag == Duration::ZERO { service.snapshot() } else { service.past(now.checked_sub(lag)) };
        let arrival = self.arrival(latency);
        self.met(answer);
        let answered = match (answer, arrival) {
            (Answer::Unavailable, _) => Answered { at: now, answer: Err(CallError::Unavailable("connection refused".to_owned())) },
            (Answer::Timeout | Answer::Lost, _) | (_, None) => Answered { at: now + CALL_TIMEOUT, answer: Err(CallError::Timeout) },
            (Answer::Ok, Some(at)) => Answered { at, answer: Ok(snapshot) },
            (Answer::Throttled, Some(at)) => Answered { at, answer: Err(CallError::Throttled("slow down".to_owned())) },
            (Answer::Denied, Some(at)) => Answered { at, answer: Err(CallError::Denied("not allowed".to_owned())) },
            (Answer::Missing, Some(at)) => Answered { at, answer: Err(CallError::ServiceMissing(id.service.to_string())) },
        };
        Some((sent, now, index, answered))
    }

    fn met(&mut self, answer: Answer) {
        let name = match answer {
            Answer::Ok => return,
            Answer::Throttled => "registry throttled",
            Answer::Unavailable => "registry unavailable",
            Answer::Denied => "registry denied",
            Answer::Timeout => "registry silent, change not done",
            Answer::Lost => "registry silent, change done",
            Answer::Missing => "service missing",
        };
        self.record.fault(name);
    }

    /// An `apply` request is sent; `None` where the process is dead.
    #[expect(clippy::type_complexity, reason = "one caller takes it apart at once")]
    fn send(&mut self, process: ProcessId, id: &ServiceId, changes: &[Change]) -> Option<(u64, Answered<Vec<Result<(), ChangeError>>>)> {
        self.count_request();
        let owner = |world: &World, change: &Change| world.pod_of_uid(&change.uid);
        let sets_off = |world: &World, trap: &super::super::Trap| {
            changes.iter().any(|change| {
                let handle = owner(world, change).map_or("", |pod| &*world.pods[pod].handle);
                trap.on == Trigger::Change(change.operation) && meant(trap.pods.as_deref(), handle)
            })
        };
        if !self.processes[process].alive || self.sprung(process, true, sets_off) {
            return None;
        }
        let sent = self.tick();
        let now = self.now;
        self.record.requests.push(Request { at: now, registry: id.registry.clone(), service: id.service.clone(), apply: true });
        for change in changes {
            let pod = owner(self, change);
            let (registry, service, operation) = (id.registry.clone(), id.service.clone(), change.operation);
            self.record.calls.push(Call { at: now, operation, pod, registry: registry.clone(), service });
            if let Some(pod) = pod {
                self.milestone(pod, What::Sent(operation), Some(registry));
            }
        }
        let behaviour = self.service(id).0;
        let (answers, latency, duplicates) = (behaviour.answers, behaviour.latency, behaviour.duplicates);
        let too_many = changes.len() > behaviour.batch;
        let words: Vec<Answer> = changes.iter().map(|change| answers.of(change.operation)).collect();
        for word in &words {
            self.met(*word);
        }
        if words.contains(&Answer::Unavailable) {
            return Some((sent, Answered { at: now, answer: Err(CallError::Unavailable("connection refused".to_owned())) }));
        }
        let silent = words.iter().any(|word| matches!(word, Answer::Timeout | Answer::Lost));
        let arrival = self.arrival(latency).filter(|_| !silent);
        let answered_at = arrival.unwrap_or(now + CALL_TIMEOUT);
        let mut results = Vec::with_capacity(changes.len());
        for (change, word) in changes.iter().zip(&words) {
            self.judge_change(process, id, change);
            self.track(process, id, change, sent, answered_at);
            results.push(self.answer_change(id, change, if too_many { Answer::Denied } else { *word }, duplicates));
        }
        if self.sprung(process, false, sets_off) {
            return None;
        }
        let answer = match arrival {
            None => Err(CallError::Timeout),
            Some(_) if too_many => Err(CallError::Failed("too many changes in one request".to_owned())),
            Some(_) if words.iter().all(|word| *word == Answer::Missing) => Err(CallError::ServiceMissing(id.service.to_string())),
            Some(_) => Ok(results),
        };
        Some((sent, Answered { at: answered_at, answer }))
    }

    fn answer_change(&mut self, id: &ServiceId, change: &Change, word: Answer, duplicates: Option<Duration>) -> Result<(), ChangeError> {
        match word {
            Answer::Ok | Answer::Lost => {
                let done = self.effect(id, change);
                if let (Ok(()), Some(after)) = (&done, duplicates) {
                    self.later(self.now + after, Agenda::Duplicate(Repeat { at: id.clone(), change: change.clone() }));
                }
                done
            }
            Answer::Throttled => Err(ChangeError::Throttled("slow down".to_owned())),
            Answer::Denied => Err(ChangeError::Denied("not allowed".to_owned())),
            Answer::Missing if change.operation == Operation::Register => Err(ChangeError::Refused("no such service".to_owned())),
            Answer::Missing => Err(ChangeError::NotFound),
            Answer::Timeout | Answer::Unavailable => Err(ChangeError::Refused("not done".to_owned())),
        }
    }

    fn track(&mut self, process: ProcessId, id: &ServiceId, change: &Change, sent: u64, answered_at: Duration) {
        if change.operation == Operation::Register
            && let Some(pod) = self.pod_of_uid(&change.uid)
        {
            self.pods[pod].registered.insert((id.clone(), change.address));
        }
        let in_flight = Some((process, self.now + CALL_TIMEOUT));
        let operation = change.operation;
        let (behaviour, service) = self.service(id);
        let key = (change.uid.clone(), behaviour.key(change.address, Some(&change.uid)));
        let out_before = service.tracks.get(&key).is_some_and(|before| before.out);
        let track = Track {
            sent,
            answered: sent,
            answered_at,
            in_flight,
            accepted: false,
            absent: false,
            deregistered: false,
            out: operation != Operation::Register,
            out_before,
        };
        service.tracks.insert(key, track);
    }
}
