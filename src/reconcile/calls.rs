//! Calls to registries: when one is due, how it is sent, what its answer changes.
//!
//! Invariant: every call begins with a look at the tenure and ends within [`CALL_TIMEOUT`] (a read that waits for a change: a little more
//! than it was told to wait).
//! Invariant: a driver's future is boxed: it is as large as that of the largest driver, and several of that size overflow a stack.
//! Absent on purpose: what a batch holds (`service`), what it is for (`registration`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use prometheus_client::metrics::histogram::Histogram;

use super::Drivers;
use super::actor::Actor;
use super::clock::{Clock, Instant};
use super::cluster::{ApiError, Cluster};
use super::input::Input;
use super::limits::Request;
use super::service::{Applied, Due, Key, Seq, Service};
use crate::metrics::reconcile::{CallLabels, RegistryLabel};
use crate::pod::Deletion;
use crate::registry::{CALL_TIMEOUT, CallError, Change, ChangeError, Listing, Registry as _, Wait};
use crate::target::{PodKey, PodUid, ServiceId};
use crate::traces::Way;

/// A service is read once in this time, give or take.
const AUDIT: Duration = Duration::from_secs(60);
/// Part of [`AUDIT`] by which it is spread.
const AUDIT_SPREAD: f64 = 0.2;
/// How long a registry may keep a read that waits for a change.
const BLOCK: Duration = Duration::from_secs(25);
/// A request to the API server that takes longer is given up: it must be over before the Lease can be.
const API_LIMIT: Duration = Duration::from_secs(5);

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// The service of that name, known from now on.
    pub(super) fn service_mut(&mut self, id: &ServiceId) -> Option<&mut Service> {
        let traits = self.settings.traits(id);
        let term = self.term.as_mut()?;
        if !term.services.contains_key(id) {
            let mut service = Service::new(id.clone());
            service.traits = traits;
            term.services.insert(id.clone(), service);
            self.touched.insert(id.clone());
        }
        term.services.get_mut(id)
    }

    /// Every service that a binding names is known, and what each registry can do.
    pub(super) fn refresh_services(&mut self) {
        let Some(current) = self.settings.current.clone() else { return };
        for binding in &current.bindings {
            self.service_mut(&binding.service);
        }
        let Some(term) = &mut self.term else { return };
        for (id, service) in &mut term.services {
            service.traits = self.settings.traits(id);
            self.touched.insert(id.clone());
        }
    }

    /// Sends what is due for a service, and notes when the rest is.
    pub(super) fn pump(&mut self, id: &ServiceId) {
        if self.stopping {
            return;
        }
        loop {
            let now = self.clock.now();
            let Some(client) = self.settings.client_mut(&id.registry) else { return };
            let Some(capabilities) = client.capabilities() else { return };
            let Some(free) = client.breaker.free_at() else { return };
            let Some(service) = self.term.as_mut().and_then(|term| term.services.get_mut(id)) else { return };
            let mut possible = |due: Due| (due.at().max(free).max(client.limiter.free_at(due.request(), now)), due);
            let first = service.due(&capabilities).into_iter().flatten().map(&mut possible).min_by_key(|(at, _)| *at);
            let Some((at, due)) = first else { return };
            if at > now {
                self.arm(id, at);
                return;
            }
            let sent = match due {
                Due::Apply(_) => self.send_batch(id, now),
                Due::Read(_) => self.send_read(id, now),
            };
            if !sent {
                return;
            }
        }
    }

    /// A batch was answered.
    pub(super) fn applied(&mut self, term: u64, id: &ServiceId, answer: Option<&Applied>) {
        let (seq, now, jitter) = (self.next_seq(), self.clock.now(), self.clock.jitter());
        self.note_call(id, "apply", answer.map(|answer| answer.as_ref().err()), now);
        if !self.call_ended(term, true) {
            return;
        }
        tracing::trace!(elapsed_ms = now.0.as_millis(), service = %id, seq = seq.0, answer = ?answer, "a batch was answered");
        let Some(service) = self.term.as_mut().and_then(|term| term.services.get_mut(id)) else { return };
        let concerned = service.applied(answer, seq, now, jitter);
        self.concern(id, concerned);
        if let Some(error) = answer.and_then(refusal) {
            tracing::warn!(registry = %id.registry, service = %id.service, %error, "a registry refuses a change");
        }
    }

    /// A read was answered.
    pub(super) fn read(&mut self, term: u64, id: &ServiceId, began: Seq, blocking: bool, answer: Option<Result<Listing, CallError>>) {
        let (now, jitter) = (self.clock.now(), self.clock.jitter());
        self.note_call(id, "list", answer.as_ref().map(|answer| answer.as_ref().err()), now);
        if !self.call_ended(term, !blocking) {
            return;
        }
        let Some(service) = self.term.as_mut().and_then(|term| term.services.get_mut(id)) else { return };
        let news = matches!(answer, Some(Ok(_) | Err(CallError::ServiceMissing(_))));
        tracing::trace!(elapsed_ms = now.0.as_millis(), service = %id, began = began.0, answer = ?answer, "a service was read");
        let concerned = service.listed(began, answer, now, jitter);
        self.concern(id, concerned);
        if self.settings.learn_family(id) {
            self.dirty.extend(self.pods.iter().map(|(uid, _)| uid.clone()));
        }
        if news {
            self.settle_debts(id);
            self.sweep(id);
        }
    }

    fn arm(&mut self, id: &ServiceId, at: Instant) {
        if let Some(before) = self.armed.insert(id.clone(), at) {
            self.agenda.remove(&(before, id.clone()));
        }
        self.agenda.insert((at, id.clone()));
    }

    /// Sends the changes that are due; whether there may be more to do for the service.
    fn send_batch(&mut self, id: &ServiceId, now: Instant) -> bool {
        self.spare_living(id);
        let Some(cluster) = self.settings.current.as_ref().map(|current| Arc::clone(&current.cluster)) else { return false };
        let Some(client) = self.settings.client_mut(&id.registry) else { return false };
        let (Some(capabilities), Ok(registry)) = (client.capabilities(), client.opened.as_ref().map(Arc::clone)) else { return false };
        let Some(term) = &mut self.term else { return false };
        let Some(service) = term.services.get_mut(id) else { return false };
        let changes = service.batch(now, &capabilities, &cluster);
        if changes.is_empty() {
            // All that was due was spared just now; what else the service needs is still to be seen to.
            return true;
        }
        for change in &changes {
            let operation = change.operation.as_str();
            tracing::trace!(elapsed_ms = now.0.as_millis(), service = %id, operation, target = %change.address, uid = %change.uid, "a change is sent");
        }
        client.breaker.call();
        client.limiter.take(Request::Change, now);
        term.calls += 1;
        let (number, books, clock, tenure) = (term.number, &*service, self.clock.clone(), self.tenure.clone());
        let pods = &self.pods;
        let leaving = |uid: &PodUid| pods.get(uid).is_none_or(|entry| Way::of(&entry.view) == Way::Out);
        let traced = self.options.traces.batch(id, &changes, self.clock.wall(), leaving);
        // A drain that is sent again, by this leader or by the next one, says nothing about how long the first one took.
        let (drain, since) = (capabilities.drain.operation(), term.since);
        let first = |change: &Change| {
            let key = Key { address: change.address, uid: change.uid.clone() };
            change.operation == drain && !books.has_done(&key, drain)
        };
        let asked = |change: &Change| {
            let requested = pods.get(&change.uid).and_then(|entry| entry.view.deletion).and_then(Deletion::requested);
            requested.filter(|requested| *requested >= since && first(change))
        };
        let drains = self.metrics.pods.drains(changes.iter().map(asked));
        let seconds = self.metrics.reconcile.call_seconds(&id.registry, "apply");
        let service = id.clone();
        self.post(async move {
            let answer = if tenure.holds(clock.now()) {
                let call = Box::pin(registry.apply(&service.service, &changes));
                Some(registry_limited(&clock, CALL_TIMEOUT, &seconds, call).await)
            } else {
                None
            };
            if let (Some(traced), Some(answer)) = (traced, &answer) {
                traced.answered(answer, clock.wall());
            }
            if let Some(Ok(answers)) = &answer {
                drains.answered(answers, clock.wall());
            }
            Input::Applied { term: number, service, answer }
        });
        true
    }

    fn send_read(&mut self, id: &ServiceId, now: Instant) -> bool {
        let (began, jitter) = (self.next_seq(), self.clock.jitter());
        let Some(client) = self.settings.client_mut(&id.registry) else { return false };
        let (Some(capabilities), Ok(registry)) = (client.capabilities(), client.opened.as_ref().map(Arc::clone)) else { return false };
        let Some(term) = &mut self.term else { return false };
        let Some(service) = term.services.get_mut(id) else { return false };
        let next_audit = now.after(AUDIT.mul_f64(1.0 + AUDIT_SPREAD * (2.0 * jitter - 1.0)));
        let wait = service.begin_read(began, now, next_audit, &capabilities).map(|index| Wait { index, at_most: BLOCK });
        client.breaker.call();
        client.limiter.take(Request::Read, now);
        term.calls += usize::from(wait.is_none());
        let (number, service, clock, tenure) = (term.number, id.clone(), self.clock.clone(), self.tenure.clone());
        let limit = if wait.is_some() { BLOCK + CALL_TIMEOUT } else { CALL_TIMEOUT };
        let blocking = wait.is_some();
        let seconds = self.metrics.reconcile.call_seconds(&id.registry, if blocking { "wait" } else { "list" });
        self.post(async move {
            let answer = if tenure.holds(clock.now()) {
                let call = Box::pin(registry.list(&service.service, wait));
                Some(registry_limited(&clock, limit, &seconds, call).await)
            } else {
                None
            };
            Input::Read { term: number, service, began, blocking, answer }
        });
        true
    }

    /// Counts an answer; whether it belongs to the present term.
    fn call_ended(&mut self, number: u64, counted: bool) -> bool {
        match &mut self.term {
            Some(term) if term.number == number => {
                term.calls = term.calls.saturating_sub(usize::from(counted));
                true
            }
            _ => false,
        }
    }

    /// What an answer says of its registry, whichever term asked: the breaker waits for it. `None`: the call was not made after all.
    fn note_call(&mut self, id: &ServiceId, operation: &'static str, answer: Option<Option<&CallError>>, now: Instant) {
        let jitter = self.clock.jitter();
        if let Some(error) = answer {
            let labels = CallLabels { registry: Arc::clone(&id.registry), operation, outcome: outcome(error) };
            self.metrics.reconcile.registry_calls.get_or_create(&labels).inc();
        }
        if let Some(Some(error)) = answer {
            tracing::debug!(registry = %id.registry, service = %id.service, operation, error = %error, "a call to a registry failed");
        }
        let Some(client) = self.settings.client_mut(&id.registry) else { return };
        let was_open = client.breaker.is_open();
        let recovered = match answer {
            None => {
                client.breaker.withdraw();
                false
            }
            Some(Some(CallError::Unavailable(_) | CallError::Timeout)) => {
                client.breaker.fail(now, jitter);
                false
            }
            Some(_) => client.breaker.succeed(),
        };
        let is_open = client.breaker.is_open();
        if is_open != was_open {
            let down = self.metrics.reconcile.registry_down.get_or_create(&RegistryLabel { registry: Arc::clone(&id.registry) });
            down.set(i64::from(is_open));
            tracing::warn!(registry = %id.registry, "{}", if is_open { "a registry cannot be reached" } else { "a registry can be reached again" });
        }
        if !(was_open || is_open) {
            return;
        }
        let Some(term) = &mut self.term else { return };
        for (other, service) in term.services.iter_mut().filter(|(other, _)| other.registry == id.registry) {
            if recovered {
                service.recover();
            }
            self.touched.insert(other.clone());
        }
    }

    fn concern(&mut self, id: &ServiceId, concerned: Vec<PodUid>) {
        self.dirty.extend(concerned);
        self.touched.insert(id.clone());
    }
}

/// The answer of `call`, or `None` where it takes longer than `limit`.
async fn limited<K: Clock, T>(clock: &K, limit: Duration, call: impl Future<Output = T>) -> Option<T> {
    let sleep = clock.sleep_until(clock.now().after(limit));
    match select(std::pin::pin!(call), std::pin::pin!(sleep)).await {
        Either::Left((answer, _)) => Some(answer),
        Either::Right(_) => None,
    }
}

/// The answer of a registry, within `limit`; how long it took is noted.
async fn registry_limited<K: Clock, T>(
    clock: &K,
    limit: Duration,
    seconds: &Histogram,
    call: Pin<Box<impl Future<Output = Result<T, CallError>>>>,
) -> Result<T, CallError> {
    let begun = clock.now();
    let answer = limited(clock, limit, call).await;
    seconds.observe(clock.now().since(begun).as_secs_f64());
    answer.unwrap_or(Err(CallError::Timeout))
}

/// The answer of a request to the API server, within its limit.
pub(super) async fn api_limited<K: Clock, T>(clock: &K, call: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    limited(clock, API_LIMIT, call).await.unwrap_or_else(|| Err(ApiError::Unreachable("no answer in time".to_owned())))
}

/// The first refusal of an answer, in the registry's own words: those of one batch are mostly alike.
fn refusal(answer: &Applied) -> Option<&ChangeError> {
    use ChangeError::{NotFound, Throttled, Unfinished};
    let refused = |result: &&Result<(), ChangeError>| !matches!(result, Ok(()) | Err(NotFound | Throttled(_) | Unfinished(_)));
    answer.as_ref().ok()?.iter().find(refused)?.as_ref().err()
}

/// What came of a call, as a label.
fn outcome(error: Option<&CallError>) -> &'static str {
    match error {
        None => "ok",
        Some(CallError::Unavailable(_)) => "unavailable",
        Some(CallError::Throttled(_)) => "throttled",
        Some(CallError::Denied(_)) => "denied",
        Some(CallError::ServiceMissing(_)) => "missing",
        Some(CallError::Timeout) => "timeout",
        Some(CallError::Failed(_)) => "failed",
    }
}

/// The name of a pod that is known by its UID only.
pub(super) fn nameless(uid: &PodUid) -> PodKey {
    PodKey::new("unknown", uid.as_str())
}
