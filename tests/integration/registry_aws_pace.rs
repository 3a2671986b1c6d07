//! Questions about many target groups: what they cost, and how long it takes until all drain delays are known.
//!
//! Time is virtual and passes while the sockets rest; the simulator's passes with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lockstep::config::{self, Configuration, DriverConfig, RegistryConfig};
use lockstep::metrics::Metrics;
use lockstep::reconcile::clock::Clock;
use lockstep::reconcile::limits::{Limiter, Request};
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::reconcile::{Drivers, OpenError};
use lockstep::registry::aws::Aws;
use lockstep::registry::delays::{self, Answers, Known};
use lockstep::registry::{CallError, Operation, Registry};
use lockstep::target::ServiceId;
use tokio::sync::watch;

use crate::elbv2::Simulator;
use crate::elbv2::model::Group;
use crate::registry_aws_ground::{changes, driver};

const SECOND: Duration = Duration::from_secs(1);
/// Steps in which time passes; a call to the simulator takes a few of them.
const TICK: Duration = Duration::from_millis(20);
/// The kernel has work to do for the sockets, and virtual time does not wait for it: so it gets the processor now and then.
const TICKS_OF_A_BREATH: usize = 10;
const GROUPS: usize = 60;
/// What is asked of groups besides health: the driver's own numbers, written down again so that nobody raises them unseen.
const QUESTIONS_PER_SECOND: f64 = 1.5;
const QUESTIONS_AT_ONCE: f64 = 6.0;
/// Of those the drain delays leave two to who waits.
const KEPT: f64 = 2.0;
/// Sixty groups, twenty a call, and each one's delay.
const CALLS: f64 = 3.0 + 60.0;

/// A simulator with many groups, and what a replica of Lockstep knows of them.
struct Ground {
    simulator: Simulator,
    clock: TokioClock,
    configuration: Arc<Configuration>,
    _configured: watch::Sender<Option<Arc<Configuration>>>,
    configured: watch::Receiver<Option<Arc<Configuration>>>,
}

/// Gives the one that is there, as one process has it.
struct Shared(Arc<Aws>);

impl Drivers for Shared {
    type Registry = Aws;

    fn open(&self, _: &RegistryConfig, _: &Arc<str>) -> Result<Arc<Aws>, OpenError> {
        Ok(self.0.clone())
    }
}

impl Ground {
    async fn start() -> Self {
        Self::with_binding(0, "").await
    }

    /// One of whose bindings says more.
    async fn with_binding(place: usize, more: &str) -> Self {
        let simulator = Simulator::start().await;
        simulator.model().quotas = true;
        let arns: Vec<_> = (0..GROUPS).map(|n| simulator.model().add(&format!("web-{n:02}"), Group::default())).collect();
        let bindings: String = arns.iter().enumerate().map(|(n, arn)| binding(n, arn, if n == place { more } else { "" })).collect();
        let text = format!(
            "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: here\n\
             registries: [{{name: edge, aws: {{region: eu-west-1, endpoint: '{}'}}}}]\nbindings:\n{bindings}",
            simulator.url
        );
        let configuration = Arc::new(config::parse(&text).unwrap());
        let (sender, configured) = watch::channel(Some(configuration.clone()));
        let ground = Self { simulator, clock: TokioClock::start(), configuration, _configured: sender, configured };
        ground.clock.spawn(pass(ground.simulator.model_handle()));
        ground
    }

    /// The reader of drain delays of one replica.
    fn replica(&self, drivers: impl Drivers) -> watch::Receiver<Known> {
        let (sender, known) = watch::channel(Known::default());
        let answers = Answers { known: sender, metrics: Metrics::new().delays.clone() };
        self.clock.spawn(delays::run(Arc::new(drivers), self.clock.clone(), self.configured.clone(), answers));
        known
    }

    fn driver(&self) -> Arc<Aws> {
        let DriverConfig::Aws(config) = &self.configuration.registries[0].driver else { panic!("edge is aws") };
        let driver = driver(config);
        driver.bind(self.configuration.services("edge"));
        Arc::new(driver)
    }

    fn services(&self) -> impl Iterator<Item = &ServiceId> {
        self.configuration.bindings.iter().map(|binding| &binding.service)
    }

    /// Lets time pass, tick by tick, until `done`; how long that was.
    async fn until(&self, what: &str, at_most: Duration, mut done: impl FnMut(&Self) -> bool) -> Duration {
        let begun = self.clock.now();
        while !done(self) {
            let passed = self.clock.now().since(begun);
            assert!(passed <= at_most, "{what}: not within {at_most:?}");
            self.clock.sleep_until(self.clock.now().after(TICK)).await;
        }
        self.clock.now().since(begun)
    }

    fn all_known(&self, known: &watch::Receiver<Known>) -> bool {
        let now = self.clock.now();
        self.services().all(|service| known.borrow().answer(service, now) == Some(300 * SECOND))
    }

    /// Calls of each kind so far.
    fn calls(&self) -> BTreeMap<String, usize> {
        let mut calls = BTreeMap::new();
        self.simulator.model().calls.iter().for_each(|call| *calls.entry(call.action().to_owned()).or_default() += 1);
        calls
    }

    fn questions(&self) -> usize {
        self.simulator.model().calls.iter().filter(|call| call.action() != "DescribeTargetHealth").count()
    }
}

/// Reads every group over and over, as a leader does that has pods waiting in each of them.
async fn lead(driver: Arc<Aws>, services: Vec<ServiceId>, clock: TokioClock) {
    let mut limiter = Limiter::new(driver.pace());
    for service in services.iter().cycle() {
        clock.sleep_until(limiter.free_at(Request::Read, clock.now())).await;
        limiter.take(Request::Read, clock.now());
        let (driver, service) = (driver.clone(), service.service.clone());
        clock.spawn(async move {
            match driver.list(&service, None).await {
                Ok(_) | Err(CallError::Throttled(_)) => {}
                other => panic!("{other:?}"),
            }
        });
    }
}

fn seconds(count: f64) -> Duration {
    Duration::from_secs_f64(count)
}

fn binding(n: usize, arn: &str, more: &str) -> String {
    format!(
        "- {{name: b{n}, namespaces: ['*'], podSelector: {{matchLabels: {{app: a{n}}}}}, registry: edge, service: '{arn}', port: 80{more}}}\n"
    )
}

#[tokio::test(start_paused = true)]
async fn the_drain_delays_of_many_groups_come_within_the_pace_and_soon() {
    let ground = Ground::start().await;
    let (begun, driver) = (ground.clock.now(), ground.driver());
    let known = ground.replica(Shared(driver.clone()));
    ground.clock.spawn(lead(driver, ground.services().cloned().collect(), ground.clock.clone()));
    let within_pace = |ground: &Ground| {
        let passed = ground.clock.now().since(begun);
        let allowed = QUESTIONS_AT_ONCE + passed.as_secs_f64() * QUESTIONS_PER_SECOND;
        assert!(ground.questions() as f64 <= allowed, "{:?} after {passed:?}", ground.calls());
    };
    let expected = seconds((CALLS - QUESTIONS_AT_ONCE + KEPT) / QUESTIONS_PER_SECOND);
    let all_known = |ground: &Ground| {
        within_pace(ground);
        ground.all_known(&known)
    };
    let took = ground.until("all delays are known", expected + 3 * SECOND, all_known).await;
    assert!(took >= expected - SECOND, "it is a pace: {took:?}");
    let calls = ground.calls();
    assert_eq!((calls["DescribeTargetGroups"], calls["DescribeTargetGroupAttributes"]), (3, 60), "{calls:?}");
    assert_eq!(ground.simulator.model().throttled, 0);
}

#[tokio::test(start_paused = true)]
async fn three_replicas_that_start_together_stay_within_the_quotas_of_an_account() {
    let ground = Ground::start().await;
    let driver = ground.driver();
    let all = [ground.replica(Shared(driver.clone())), ground.replica(Shared(ground.driver())), ground.replica(Shared(ground.driver()))];
    ground.clock.spawn(lead(driver, ground.services().cloned().collect(), ground.clock.clone()));
    ground.until("all delays are known to all", 60 * SECOND, |ground| all.iter().all(|known| ground.all_known(known))).await;
    assert_eq!(ground.simulator.model().throttled, 0);
}

#[tokio::test(start_paused = true)]
async fn where_others_leave_hardly_a_call_every_drain_delay_is_known_in_the_end() {
    const LEFT: f64 = 0.5;
    let ground = Ground::start().await;
    {
        let mut model = ground.simulator.model();
        model.others = 10.0 - LEFT;
        model.use_up();
    }
    let known = ground.replica(Shared(ground.driver()));
    // Every call that is left is used; the slack is for those that come together in a pause.
    let expected = seconds(CALLS / LEFT);
    ground.until("all delays are known", expected + 60 * SECOND, |ground| ground.all_known(&known)).await;
    let throttled = ground.simulator.model().throttled;
    assert!(throttled <= GROUPS + GROUPS / 2, "{throttled} calls for nothing");
}

#[tokio::test(start_paused = true)]
async fn who_reads_and_changes_many_groups_at_once_asks_about_twenty_in_one_call() {
    let ground = Ground::start().await;
    ground.simulator.model().quotas = false;
    let driver = ground.driver();
    let reads = ground.services().map(|service| driver.list(&service.service, None));
    for listed in futures_util::future::join_all(reads).await {
        assert_eq!(listed.unwrap().targets, []);
    }
    assert_eq!(ground.calls()["DescribeTargetGroups"], 3, "those who asked at the same time waited for the first");
    let change = changes(Operation::Register, &["10.0.0.1:80".parse().unwrap()]);
    for service in ground.services() {
        assert_eq!(driver.apply(&service.service, &change).await.unwrap(), [Ok(())]);
    }
    assert_eq!(ground.calls()["DescribeTags"], 3, "{:?}", ground.calls());
}

#[tokio::test(start_paused = true)]
async fn a_missing_group_keeps_no_other_from_being_known() {
    let ground = Ground::start().await;
    let missing = ground.configuration.bindings[7].service.clone();
    ground.simulator.model().groups.remove(&*missing.service);
    let known = ground.replica(Shared(ground.driver()));
    // Each time a page is refused one group is asked about alone, and the missing one is in half a page then; it is retried too.
    const MORE: usize = 2 * 5 + 3;
    let expected = seconds((CALLS + MORE as f64) / QUESTIONS_PER_SECOND);
    let others = |ground: &Ground| {
        let (known, now) = (known.borrow(), ground.clock.now());
        ground.services().filter(|service| **service != missing).all(|service| known.answer(service, now).is_some())
    };
    ground.until("the others are known", expected, others).await;
    assert_eq!(known.borrow().answer(&missing, ground.clock.now()), None);
    let calls = ground.calls();
    assert!(calls["DescribeTargetGroups"] <= 3 + MORE, "{calls:?}");
}

/// As on a replica that does not lead, where the drain delay of the group is fixed.
#[tokio::test(start_paused = true)]
async fn a_missing_group_that_nobody_asks_about_is_soon_left_out_of_questions() {
    const PLACE: usize = 7;
    let ground = Ground::with_binding(PLACE, ", drain: {fixed: 30s}").await;
    let missing = ground.configuration.bindings[PLACE].service.clone();
    ground.simulator.model().groups.remove(&*missing.service);
    let known = ground.replica(Shared(ground.driver()));
    let others = |ground: &Ground| {
        let (known, now) = (known.borrow(), ground.clock.now());
        ground.services().filter(|service| **service != missing).all(|service| known.answer(service, now).is_some())
    };
    ground.until("the others are known", 60 * SECOND, others).await;
    let first = ground.calls()["DescribeTargetGroups"];
    // Each time the page with it is refused it goes into one of half the size, and one group is asked about alone.
    assert!(first <= 3 + 2 * 5, "{first}");
    ground.clock.sleep_until(ground.clock.now().after(50 * 60 * SECOND)).await;
    let later = ground.calls()["DescribeTargetGroups"] - first;
    assert!(later <= 10 * 4, "three pages each five minutes, and one more where they come late: {later}");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_asked_about_again_costs_no_more_for_that() {
    let ground = Ground::start().await;
    ground.simulator.model().quotas = false;
    let driver = ground.driver();
    let read_all = || async {
        for service in ground.services() {
            assert_eq!(driver.list(&service.service, None).await.unwrap().targets, []);
        }
    };
    read_all().await;
    let before = ground.calls()["DescribeTargetGroups"];
    ground.clock.sleep_until(ground.clock.now().after(300 * SECOND)).await;
    ground.simulator.model().denied = vec!["DescribeTargetGroups"];
    for _ in 0..5 {
        read_all().await;
    }
    assert_eq!(ground.calls()["DescribeTargetGroups"] - before, 3, "what was known counts, and is asked again later");
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_read_tags_nothing_is_changed_and_all_is_read() {
    let ground = Ground::start().await;
    ground.simulator.model().denied = vec!["DescribeTags"];
    let (driver, service) = (ground.driver(), &ground.configuration.bindings[0].service.service);
    assert_eq!(driver.list(service, None).await.unwrap().targets, []);
    assert_eq!(driver.drain_delay(service).await, Ok(Some(300 * SECOND)));
    let applied = driver.apply(service, &changes(Operation::Register, &["10.0.0.1:80".parse().unwrap()])).await;
    assert!(matches!(&applied, Err(CallError::Denied(text)) if text.contains("DescribeTags")), "{applied:?}");
    assert!(!ground.calls().contains_key("RegisterTargets"));
}

/// As the doctor asks, who has but one look at each.
#[tokio::test(start_paused = true)]
async fn a_few_that_ask_for_drain_delays_at_once_stand_in_line() {
    const AT_ONCE: usize = 3;
    let ground = Ground::start().await;
    let driver = ground.driver();
    let asked = ground.services().map(|service| driver.drain_delay(&service.service));
    let answers: Vec<_> = futures_util::stream::iter(asked).buffered(AT_ONCE).collect().await;
    assert!(answers.iter().all(|answer| *answer == Ok(Some(300 * SECOND))), "{answers:?}");
}

/// Lets the simulator's time pass with the tests'.
async fn pass(model: Arc<std::sync::Mutex<crate::elbv2::model::Model>>) {
    for tick in 0.. {
        tokio::time::sleep(TICK).await;
        model.lock().unwrap().pass(TICK);
        if tick % TICKS_OF_A_BREATH == 0 {
            std::thread::yield_now();
        }
    }
}
