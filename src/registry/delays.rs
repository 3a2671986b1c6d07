//! What registries say about drain delays, asked in the background.
//!
//! Admission needs the delay at once and must not wait for a registry, so every replica keeps the last answers.
//!
//! Invariant: an answer counts for [`STALE`] after it came; then it is as if it had never come, and the fallback counts.
//! Absent on purpose: the fallback (`config`), the sleep that follows from a delay (`admission`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;

use super::{CALL_TIMEOUT, CallError, Registry};
use crate::config::{Configuration, Drain, RegistryConfig};
use crate::metrics::delays::DelayMetrics;
use crate::reconcile::Drivers;
use crate::reconcile::clock::{Clock, Instant};
use crate::target::ServiceId;

/// Time between two questions about a service.
pub const REFRESH: Duration = Duration::from_secs(5 * 60);
/// Time until a question that brought no answer is asked again; doubled each time, up to [`REFRESH`].
pub const RETRY: Duration = Duration::from_secs(15);
/// Answers older than this no longer count.
pub const STALE: Duration = Duration::from_secs(3600);
/// Questions at the same time.
const AT_ONCE: usize = 8;

/// Last answers.
#[derive(Clone, Debug, Default)]
pub struct Known {
    answers: BTreeMap<ServiceId, (Duration, Instant)>,
}

/// Where answers go.
#[derive(Debug)]
pub struct Answers {
    /// For admission.
    pub known: watch::Sender<Known>,
    /// For people.
    pub metrics: DelayMetrics,
}

impl Answers {
    fn forget(&self, service: &ServiceId) {
        self.known.send_modify(|known| _ = known.answers.remove(service));
        self.metrics.forget(service);
    }
}

impl Known {
    /// The registry's answer for `service`, unless it is stale.
    pub fn answer(&self, service: &ServiceId, now: Instant) -> Option<Duration> {
        let (delay, at) = self.answers.get(service)?;
        (now.since(*at) <= STALE).then_some(*delay)
    }
}

/// Runs for good: asks about every service whose delay comes from its registry, and keeps `answers` up to date.
pub async fn run<D: Drivers, K: Clock>(
    drivers: Arc<D>,
    clock: K,
    mut configuration: watch::Receiver<Option<Arc<Configuration>>>,
    answers: Answers,
) {
    let mut retry = RETRY;
    loop {
        let current = configuration.borrow_and_update().clone();
        let answered = match &current {
            Some(current) => ask_all(&*drivers, &clock, current, &answers).await,
            None => true,
        };
        let pause = if answered { REFRESH } else { retry };
        retry = if answered { RETRY } else { (retry * 2).min(REFRESH) };
        // Replicas start together; they need not ask together ever after.
        let waited = clock.sleep_until(clock.now().after(pause.mul_f64(0.9 + clock.jitter() / 5.0)));
        tokio::select! {
            () = waited => {}
            changed = configuration.changed() => if changed.is_err() { return } else { retry = RETRY },
        }
    }
}

/// Asks about each service once; answers whether all of them answered.
async fn ask_all<D: Drivers, K: Clock>(drivers: &D, clock: &K, configuration: &Configuration, answers: &Answers) -> bool {
    let services = services(configuration);
    let dropped: Vec<_> = answers.known.borrow().answers.keys().filter(|service| !services.contains(*service)).cloned().collect();
    dropped.iter().for_each(|service| answers.forget(service));
    let opened = open(drivers, configuration, &services);
    let clients: Vec<_> = services.into_iter().filter_map(|service| Some((opened.get(&service.registry)?.clone(), service))).collect();
    let mut all = true;
    for some in clients.chunks(AT_ONCE) {
        let asked = some.iter().map(|(registry, service)| ask(registry.clone(), service.clone()));
        for (service, answer) in join_all(asked).await {
            all &= take(&service, answer, clock, answers);
        }
    }
    all
}

/// A client for each registry that can have one.
fn open<D: Drivers>(drivers: &D, configuration: &Configuration, services: &BTreeSet<ServiceId>) -> BTreeMap<Arc<str>, Arc<D::Registry>> {
    let asked = |registry: &&RegistryConfig| services.iter().any(|service| service.registry == registry.name);
    let mut opened = BTreeMap::new();
    for registry in configuration.registries.iter().filter(asked) {
        match drivers.open(registry, &configuration.cluster) {
            Ok(client) => _ = opened.insert(registry.name.clone(), client),
            Err(error) => tracing::warn!(registry = %registry.name, %error, "no drain delays; the fallback counts"),
        }
    }
    opened
}

async fn ask<R: Registry>(registry: Arc<R>, service: ServiceId) -> (ServiceId, Result<Option<Duration>, CallError>) {
    let answer = tokio::time::timeout(CALL_TIMEOUT, registry.drain_delay(&service.service)).await;
    (service, answer.unwrap_or(Err(CallError::Timeout)))
}

fn take<K: Clock>(service: &ServiceId, answer: Result<Option<Duration>, CallError>, clock: &K, answers: &Answers) -> bool {
    match answer {
        Ok(Some(delay)) => {
            answers.known.send_modify(|known| _ = known.answers.insert(service.clone(), (delay, clock.now())));
            answers.metrics.answered(service, delay, clock.wall());
            true
        }
        Ok(None) => {
            answers.forget(service);
            true
        }
        Err(error) => {
            let (registry, service) = (&service.registry, &service.service);
            tracing::warn!(%registry, %service, %error, "no drain delay; the last one or the fallback counts");
            false
        }
    }
}

fn services(configuration: &Configuration) -> BTreeSet<ServiceId> {
    let asked = configuration.bindings.iter().filter(|binding| matches!(binding.drain, Drain::FromRegistry { .. }));
    asked.map(|binding| binding.service.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::config;
    use crate::metrics::Metrics;
    use crate::reconcile::OpenError;
    use crate::reconcile::tokio_clock::TokioClock;
    use crate::registry::{Capabilities, Change, ChangeError, Listing, Wait};

    const TEXT: &str = "
apiVersion: lockstep.dev/v1alpha1
kind: Configuration
cluster: c
registries:
  - name: first
    http: {url: 'http://first.example'}
bindings:
  - {name: a, namespaces: ['*'], podSelector: {matchLabels: {app: a}}, registry: first, service: a, port: 80, drain: {from: registry, fallback: 60s}}
  - {name: b, namespaces: ['*'], podSelector: {matchLabels: {app: b}}, registry: first, service: b, port: 80, drain: {fixed: 5s}}
";

    /// A registry whose answer a test sets, and which counts the questions.
    #[derive(Clone)]
    struct Fake {
        answer: Arc<Mutex<Result<Option<Duration>, CallError>>>,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl Drivers for Fake {
        type Registry = Self;

        fn open(&self, _: &RegistryConfig, _: &Arc<str>) -> Result<Arc<Self>, OpenError> {
            Ok(Arc::new(self.clone()))
        }
    }

    impl Registry for Fake {
        fn capabilities(&self) -> Capabilities {
            unreachable!("nobody asks")
        }

        async fn list(&self, _: &str, _: Option<Wait>) -> Result<Listing, CallError> {
            unreachable!("nobody lists")
        }

        async fn apply(&self, _: &str, _: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
            unreachable!("nobody changes")
        }

        async fn drain_delay(&self, service: &str) -> Result<Option<Duration>, CallError> {
            self.asked.lock().unwrap().push(service.into());
            self.answer.lock().unwrap().clone()
        }
    }

    struct Ground {
        fake: Fake,
        clock: TokioClock,
        known: watch::Receiver<Known>,
        metrics: Metrics,
        _configuration: watch::Sender<Option<Arc<Configuration>>>,
    }

    fn ground(answer: Result<Option<Duration>, CallError>) -> Ground {
        let fake = Fake { answer: Arc::new(Mutex::new(answer)), asked: Arc::default() };
        let clock = TokioClock::start();
        let (configuration, configured) = watch::channel(Some(Arc::new(config::parse(TEXT).unwrap())));
        let (sender, known) = watch::channel(Known::default());
        let metrics = Metrics::new();
        let answers = Answers { known: sender, metrics: metrics.delays.clone() };
        clock.spawn(run(Arc::new(fake.clone()), clock.clone(), configured, answers));
        Ground { fake, clock, known, metrics, _configuration: configuration }
    }

    impl Ground {
        async fn after(&self, time: Duration) -> Option<Duration> {
            self.clock.sleep_until(self.clock.now().after(time)).await;
            self.known.borrow().answer(&ServiceId::new("first", "a"), self.clock.now())
        }

        fn answers(&self, answer: Result<Option<Duration>, CallError>) {
            *self.fake.answer.lock().unwrap() = answer;
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn asks_only_where_the_registry_shall_say_and_follows_its_changes() {
        let ground = ground(Ok(Some(30 * SECOND)));
        assert_eq!(ground.after(SECOND).await, Some(30 * SECOND));
        assert_eq!(*ground.fake.asked.lock().unwrap(), ["a"]);
        ground.answers(Ok(Some(90 * SECOND)));
        assert_eq!(ground.after(REFRESH * 2).await, Some(90 * SECOND));
        let shown = "lockstep_drain_delay_seconds{registry=\"first\",service=\"a\"} 90.0\n";
        assert!(ground.metrics.encode().contains(shown), "{}", ground.metrics.encode());
        ground.answers(Ok(None));
        assert_eq!(ground.after(REFRESH * 2).await, None);
        assert!(!ground.metrics.encode().contains("lockstep_drain_delay_seconds{"));
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_an_answer_for_an_hour_without_another() {
        let ground = ground(Ok(Some(30 * SECOND)));
        assert_eq!(ground.after(SECOND).await, Some(30 * SECOND));
        ground.answers(Err(CallError::Unavailable("down".into())));
        assert_eq!(ground.after(STALE - REFRESH).await, Some(30 * SECOND));
        assert_eq!(ground.after(REFRESH * 3).await, None);
        ground.answers(Ok(Some(31 * SECOND)));
        assert_eq!(ground.after(REFRESH * 2).await, Some(31 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_question_is_asked_again_soon() {
        let ground = ground(Err(CallError::Timeout));
        assert_eq!(ground.after(SECOND).await, None);
        ground.answers(Ok(Some(31 * SECOND)));
        assert_eq!(ground.after(RETRY * 2).await, Some(31 * SECOND));
    }
}
