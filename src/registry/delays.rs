//! What registries say about drain delays, asked in the background.
//!
//! Admission needs the delay at once and must not wait for a registry, so every replica keeps the last answers.
//! Each registry is asked one question at a time, first of the service whose answer is missing or the oldest, so that a registry that answers
//! only now and then tells of every service in the end.
//!
//! Invariant: an answer counts for [`STALE`] after it came; then it is as if it had never come, and the fallback counts.
//! Invariant: a registry that answers nobody is asked once in [`RETRY_CAP`](crate::reconcile::limits::RETRY_CAP), however many services it has.
//! Absent on purpose: the fallback (`config`), the sleep that follows from a delay (`admission`), how fast a registry may be asked (drivers).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::sync::watch;

use super::{CallError, Registry, in_time};
use crate::config::{Configuration, RegistryConfig};
use crate::metrics::delays::DelayMetrics;
use crate::reconcile::Drivers;
use crate::reconcile::clock::{Clock, Instant};
use crate::reconcile::limits::Backoff;
use crate::target::ServiceId;

/// Time between two questions about a service.
pub const REFRESH: Duration = Duration::from_secs(5 * 60);
/// Time until a question that a registry refused for its service is asked again; doubled each time, up to [`REFRESH`].
pub const RETRY: Duration = Duration::from_secs(15);
/// Longer than [`REFRESH`] already.
const DOUBLINGS: u32 = 5;
/// By how much a service comes later where its registry answers nobody: longer than such a question and the pause behind it take, so that
/// one that is never answered for comes to stand behind all that are due.
const STEP_BACK: Duration = Duration::from_secs(30);
/// Answers older than this no longer count.
pub const STALE: Duration = Duration::from_secs(3600);
/// Part of a pause by which it is spread: replicas start together; they need not ask together ever after.
const SPREAD: f64 = 0.1;

/// Last answers.
#[derive(Clone, Debug, Default)]
pub struct Known {
    answers: BTreeMap<ServiceId, Told>,
}

/// One answer.
#[derive(Clone, Copy, Debug)]
struct Told {
    delay: Duration,
    at: Instant,
    /// The same moment for people.
    wall: Timestamp,
}

/// Where answers go.
#[derive(Debug)]
pub struct Answers {
    /// For admission.
    pub known: watch::Sender<Known>,
    /// For people.
    pub metrics: DelayMetrics,
}

/// One registry, and when its services are to be asked about.
struct Questions<R> {
    config: RegistryConfig,
    cluster: Arc<str>,
    client: Option<Arc<R>>,
    services: BTreeMap<ServiceId, Due>,
    backoff: Backoff,
}

/// When a service is to be asked about; at once where it never was.
#[derive(Clone, Copy, Default)]
struct Due {
    at: Instant,
    refusals: u32,
}

impl Answers {
    fn forget(&self, service: &ServiceId) {
        self.known.send_modify(|known| _ = known.answers.remove(service));
        self.metrics.forget(service);
    }

    fn keep<K: Clock>(&self, service: &ServiceId, delay: Duration, clock: &K) {
        let told = Told { delay, at: clock.now(), wall: clock.wall() };
        self.known.send_modify(|known| _ = known.answers.insert(service.clone(), told));
        self.metrics.answered(service, delay, told.wall);
    }
}

impl Known {
    /// The registry's answer for `service`, unless it is stale.
    pub fn answer(&self, service: &ServiceId, now: Instant) -> Option<Duration> {
        let told = self.answers.get(service)?;
        (now.since(told.at) <= STALE).then_some(told.delay)
    }

    /// When the registry's last answer for `service` came.
    pub fn told_at(&self, service: &ServiceId) -> Option<Timestamp> {
        self.answers.get(service).map(|told| told.wall)
    }
}

/// Runs for good: asks about every service whose delay comes from its registry, and keeps `answers` up to date.
pub async fn run<D: Drivers, K: Clock>(
    drivers: Arc<D>,
    clock: K,
    mut configuration: watch::Receiver<Option<Arc<Configuration>>>,
    answers: Answers,
) {
    let mut registries = BTreeMap::new();
    loop {
        let current = configuration.borrow_and_update().clone();
        if let Some(current) = &current {
            follow(&mut registries, &*drivers, current, &answers);
        }
        let asked = join_all(registries.values_mut().map(|questions| questions.ask(&clock, &answers)));
        let for_good = async {
            asked.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = for_good => {}
            changed = configuration.changed() => if changed.is_err() { return },
        }
    }
}

/// Makes `registries` those of the configuration; what goes on as it was keeps its client and its times.
fn follow<D: Drivers>(
    registries: &mut BTreeMap<Arc<str>, Questions<D::Registry>>,
    drivers: &D,
    configuration: &Configuration,
    answers: &Answers,
) {
    let services = services(configuration);
    let dropped: Vec<_> = answers.known.borrow().answers.keys().filter(|service| !services.contains(*service)).cloned().collect();
    dropped.iter().for_each(|service| answers.forget(service));
    let mut before = std::mem::take(registries);
    for config in &configuration.registries {
        let wanted: BTreeSet<_> = services.iter().filter(|service| service.registry == config.name).cloned().collect();
        if wanted.is_empty() {
            continue;
        }
        let same = |questions: &Questions<D::Registry>| questions.config == *config && questions.cluster == configuration.cluster;
        let mut questions = match before.remove(&config.name).filter(same) {
            Some(questions) => questions,
            None => Questions::open(drivers, config, &configuration.cluster),
        };
        questions.services.retain(|service, _| wanted.contains(service));
        wanted.into_iter().for_each(|service| _ = questions.services.entry(service).or_default());
        registries.insert(config.name.clone(), questions);
    }
}

impl<R: Registry> Questions<R> {
    fn open<D: Drivers<Registry = R>>(drivers: &D, config: &RegistryConfig, cluster: &Arc<str>) -> Self {
        let client = drivers.open(config, cluster);
        if let Err(error) = &client {
            tracing::warn!(registry = %config.name, %error, "no drain delays; the fallback counts");
        }
        Self {
            config: config.clone(),
            cluster: cluster.clone(),
            client: client.ok(),
            services: BTreeMap::new(),
            backoff: Backoff::default(),
        }
    }

    /// Asks for good, one question at a time.
    async fn ask<K: Clock>(&mut self, clock: &K, answers: &Answers) {
        let Some(client) = self.client.clone() else { return };
        while let Some((service, at)) = self.next() {
            clock.sleep_until(at.max(self.backoff.until())).await;
            let answer = in_time(client.drain_delay(&service.service)).await;
            self.take(&service, answer, clock, answers);
        }
    }

    /// The service whose answer is missing or the oldest.
    fn next(&self) -> Option<(ServiceId, Instant)> {
        let first = self.services.iter().min_by_key(|(_, due)| due.at);
        first.map(|(service, due)| (service.clone(), due.at))
    }

    fn take<K: Clock>(&mut self, service: &ServiceId, answer: Result<Option<Duration>, CallError>, clock: &K, answers: &Answers) {
        let (now, jitter) = (clock.now(), clock.jitter());
        let Some(due) = self.services.get_mut(service) else { return };
        let after = |pause: Duration| now.after(pause.mul_f64(1.0 - SPREAD + 2.0 * SPREAD * jitter));
        match &answer {
            Ok(delay) => {
                match delay {
                    Some(delay) => answers.keep(service, *delay, clock),
                    None => answers.forget(service),
                }
                *due = Due { at: after(REFRESH), refusals: 0 };
                self.backoff.ease();
            }
            Err(CallError::Denied(_) | CallError::ServiceMissing(_) | CallError::Failed(_)) => {
                let pause = (RETRY * (1 << due.refusals.min(DOUBLINGS))).min(REFRESH);
                *due = Due { at: after(pause), refusals: due.refusals.saturating_add(1) };
                self.backoff.ease();
            }
            // All will have to wait. This one steps back a little among them, so that it cannot hold the others up for good.
            Err(CallError::Throttled(_) | CallError::Unavailable(_) | CallError::Timeout) => {
                due.at = due.at.after(STEP_BACK).min(now);
                self.backoff.fail(now, jitter);
            }
        }
        if let Err(error) = &answer {
            let (registry, service) = (&service.registry, &service.service);
            tracing::warn!(%registry, %service, %error, "no drain delay; the last one or the fallback counts");
        }
    }
}

fn services(configuration: &Configuration) -> BTreeSet<ServiceId> {
    let asked = configuration.bindings.iter().filter(|binding| binding.drain.is_asked());
    asked.map(|binding| binding.service.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::config;
    use crate::metrics::Metrics;
    use crate::reconcile::OpenError;
    use crate::reconcile::limits::RETRY_CAP;
    use crate::reconcile::tokio_clock::TokioClock;
    use crate::registry::{CALL_TIMEOUT, Capabilities, Change, ChangeError, Listing, Wait};

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

    /// A registry whose answers a test sets, and which notes the questions.
    #[derive(Clone)]
    struct Fake {
        answer: Arc<Mutex<Answer>>,
        asked: Arc<Mutex<Vec<String>>>,
    }

    type Answer = Box<dyn FnMut(&str) -> Option<Result<Option<Duration>, CallError>> + Send>;

    impl Fake {
        fn told(&self) -> usize {
            self.asked.lock().unwrap().len()
        }
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
            let answer = self.answer.lock().unwrap()(service);
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }
    }

    struct Ground {
        fake: Fake,
        clock: TokioClock,
        known: watch::Receiver<Known>,
        metrics: Metrics,
        configuration: watch::Sender<Option<Arc<Configuration>>>,
    }

    fn ground(answer: Result<Option<Duration>, CallError>) -> Ground {
        answering(TEXT, Box::new(move |_| Some(answer.clone())))
    }

    fn answering(text: &str, answer: Answer) -> Ground {
        let fake = Fake { answer: Arc::new(Mutex::new(answer)), asked: Arc::default() };
        let clock = TokioClock::start();
        let (configuration, configured) = watch::channel(Some(Arc::new(config::parse(text).unwrap())));
        let (sender, known) = watch::channel(Known::default());
        let metrics = Metrics::new();
        let answers = Answers { known: sender, metrics: metrics.delays.clone() };
        clock.spawn(run(Arc::new(fake.clone()), clock.clone(), configured, answers));
        Ground { fake, clock, known, metrics, configuration }
    }

    /// A configuration with so many services.
    fn many(services: usize) -> String {
        let bindings = (0..services).map(|n| {
            format!(
                "  - {{name: b{n}, namespaces: ['*'], podSelector: {{matchLabels: {{app: a}}}}, registry: first, service: s{n}, port: 80, \
                 drain: {{from: registry, fallback: 60s}}}}\n"
            )
        });
        let (head, _) = TEXT.split_once("  - {name: a,").unwrap();
        head.to_owned() + &bindings.collect::<String>()
    }

    impl Ground {
        async fn after(&self, time: Duration) -> Option<Duration> {
            self.clock.sleep_until(self.clock.now().after(time)).await;
            self.known.borrow().answer(&ServiceId::new("first", "a"), self.clock.now())
        }

        fn answers(&self, answer: Result<Option<Duration>, CallError>) {
            *self.fake.answer.lock().unwrap() = Box::new(move |_| Some(answer.clone()));
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

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_answers_seldom_tells_of_every_service_in_the_end() {
        let clock = TokioClock::start();
        let mut free = Instant::default();
        let seldom = move |_: &str| {
            let now = clock.now();
            if now < free {
                return Some(Err(CallError::Throttled("slowly".into())));
            }
            free = now.after(30 * SECOND);
            Some(Ok(Some(20 * SECOND)))
        };
        let ground = answering(&many(40), Box::new(seldom));
        let known = |ground: &Ground| {
            let now = ground.clock.now();
            (0..40).filter(|n| ground.known.borrow().answer(&ServiceId::new("first", format!("s{n}")), now).is_some()).count()
        };
        for _ in 0..3 {
            ground.after(STALE).await;
            assert_eq!(known(&ground), 40, "and none is stale before it is told again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_is_away_is_asked_now_and_then_however_many_services_it_has() {
        let ground = answering(&many(40), Box::new(|_| Some(Err(CallError::Unavailable("down".into())))));
        ground.after(REFRESH).await;
        let asked = ground.fake.told();
        assert!((15..=35).contains(&asked), "{asked}");
        ground.answers(Ok(Some(SECOND)));
        ground.after(RETRY_CAP).await;
        assert_eq!(ground.fake.told(), asked + 40, "then all are told of at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_is_not_answered_for_keeps_no_other_waiting() {
        let ground = answering(&many(40), Box::new(|service| (service != "s0").then_some(Ok(Some(SECOND)))));
        ground.after(CALL_TIMEOUT + 2 * SECOND).await;
        let known = (1..40).filter(|n| {
            let service = ServiceId::new("first", format!("s{n}"));
            ground.known.borrow().answer(&service, ground.clock.now()).is_some()
        });
        assert_eq!(known.count(), 39);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_never_answered_for_lets_no_other_grow_stale() {
        let throttled = || Some(Err(CallError::Throttled("slowly".into())));
        for never in [Box::new(|| None) as Box<dyn Fn() -> _ + Send>, Box::new(throttled)] {
            let ground = answering(&many(40), Box::new(move |service| if service == "s0" { never() } else { Some(Ok(Some(SECOND))) }));
            for _ in 0..5 * 60 {
                ground.after(60 * SECOND).await;
                let answers = &ground.known.borrow().answers;
                let oldest = answers.values().map(|told| ground.clock.now().since(told.at)).max();
                assert!(oldest < Some(REFRESH * 2) && answers.len() == 39, "{oldest:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_service_is_asked_for_less_and_less() {
        let ground = answering(
            &many(2),
            Box::new(|service| Some(if service == "s0" { Err(CallError::ServiceMissing("s0".into())) } else { Ok(Some(SECOND)) })),
        );
        ground.after(REFRESH * 10).await;
        let asked = ground.fake.asked.lock().unwrap().iter().filter(|service| *service == "s0").count();
        assert!((10..=20).contains(&asked), "{asked}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_configuration_asks_only_for_what_is_new() {
        let ground = answering(&many(2), Box::new(|_| Some(Ok(Some(SECOND)))));
        ground.after(SECOND).await;
        ground.configuration.send_replace(Some(Arc::new(config::parse(&many(3)).unwrap())));
        ground.after(SECOND).await;
        assert_eq!(*ground.fake.asked.lock().unwrap(), ["s0", "s1", "s2"]);
        ground.configuration.send_replace(Some(Arc::new(config::parse(&many(1)).unwrap())));
        ground.after(SECOND).await;
        assert_eq!(ground.fake.told(), 3);
        assert!(!ground.metrics.encode().contains("service=\"s2\""), "{}", ground.metrics.encode());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_binding_says_of_its_service_brings_no_question_back() {
        let group = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/web/0123456789abcdef";
        let text = |mode: &str| {
            let (head, _) = TEXT.split_once("registries:").unwrap();
            format!(
                "{head}registries: [{{name: first, aws: {{region: eu-west-1}}}}]\nbindings:\n  - {{name: a, namespaces: ['*'], \
                 podSelector: {{matchLabels: {{app: a}}}}, registry: first, service: '{group}', port: 80, mode: {mode}}}\n"
            )
        };
        let ground = answering(&text("own"), Box::new(|_| Some(Ok(Some(SECOND)))));
        ground.after(SECOND).await;
        ground.configuration.send_replace(Some(Arc::new(config::parse(&text("observe")).unwrap())));
        ground.after(SECOND).await;
        assert_eq!(*ground.fake.asked.lock().unwrap(), [group]);
    }
}
