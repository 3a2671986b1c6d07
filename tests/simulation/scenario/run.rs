//! Runs a story: moves virtual time from instant to instant, and asks the judges at the end of each.
//!
//! An instant runs its steps, then what the registries do by themselves, then the product until it rests; then it is judged.
//!
//! Invariant: the same story and the same product give the same run.
//! Absent on purpose: what is judged (`judge`, `world::invariants`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lockstep::metrics::Metrics;
use tokio::sync::oneshot;

use super::grammar::Scenario;
use super::judge::Judge;
use super::steps::{self, Setting};
use crate::executor::{BoxFuture, Broken, Executor, SimClock};
use crate::product::Instance;
use crate::world::api::Api;
use crate::world::record::Failure;
use crate::world::registry::SimDrivers;
use crate::world::{Agenda, Errand, Noise, Process, Shared, World};

/// Rounds of one instant between world and product before it counts as restless.
const ROUNDS: usize = 10_000;
/// Whether nothing is left to happen is asked this often.
const CALM_CHECK: Duration = Duration::from_secs(60);

/// How a story is run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    /// Disturbances, in a seeded world.
    pub(crate) noise: Option<Noise>,
    /// Whether invariants allow for what a process could not know.
    pub(crate) seeded: bool,
    /// A deliberate fault.
    pub(crate) sabotage: Option<crate::sabotage::Sabotage>,
    /// Where the run ends; the last time in the story if left out.
    pub(crate) end: Option<Duration>,
    /// Something to judge at the end of that instant.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// From when on the run ends early, once this says that nothing is left to happen.
    pub(crate) calm: Option<Calm>,
    /// Whether watches forget what is long ago, and registries can answer blocking reads.
    pub(crate) forgetful: bool,
    pub(crate) blocking: bool,
}

/// A moment, and what is judged at its end.
pub(crate) type Checkpoint = (Duration, fn(&mut World));

/// A moment, and what says from then on whether nothing is left to happen.
pub(crate) type Calm = (Duration, fn(&mut World) -> bool);

/// A story that was run to its end.
pub(crate) struct Ran {
    pub(crate) shared: Arc<Shared>,
    pub(crate) polls: u64,
}

/// Runs a scenario with this product; what did not hold, in order of time.
pub(crate) fn run(scenario: &Scenario, launch: impl Fn(Instance) -> BoxFuture) -> Vec<Failure> {
    let ran = play(scenario, &Conditions::default(), launch);
    let mut world = ran.shared.world();
    let mut failures = std::mem::take(&mut world.failures);
    failures.sort_by_key(|failure| failure.at);
    let mut seen = std::collections::BTreeSet::new();
    failures.retain(|failure| seen.insert((failure.at, failure.rule.clone(), failure.wanted.clone())));
    failures
}

/// Runs a story to its end.
pub(crate) fn play(scenario: &Scenario, conditions: &Conditions, launch: impl Fn(Instance) -> BoxFuture) -> Ran {
    let shared = Shared::new();
    let mut stage = Stage {
        executor: Executor::new(shared.exec.clone()),
        setting: Setting::of(scenario),
        launch,
        paused: HashMap::new(),
        shared: shared.clone(),
    };
    let times = scenario.times();
    let end = conditions.end.or_else(|| times.last().copied()).unwrap_or_default();
    stage.set(scenario, conditions, &times);
    let mut judge = Judge::new(scenario);
    let mut next_step = 0;
    let mut calm = conditions.calm;
    let mut now = Duration::ZERO;
    loop {
        stage.executor.advance(now);
        shared.world().begin(now);
        while let Some(step) = scenario.steps.get(next_step).filter(|step| step.at.0 <= now) {
            stage.step(step, next_step);
            next_step += 1;
        }
        if let Err(broken) = stage.rest() {
            let (wanted, found) = match broken {
                Broken::Panic(text) => ("no panic", text),
                Broken::Restless => ("the product comes to rest", "it runs on and on in one instant".to_owned()),
            };
            shared.world().fail("run", wanted, found);
            break;
        }
        {
            let mut world = shared.world();
            world.judge_instant();
            judge.instant(&mut world);
            if let Some((_, check)) = conditions.checkpoint.filter(|(at, _)| *at == now) {
                check(&mut world);
            }
            if let Some((_, is_calm)) = calm.filter(|(at, _)| *at <= now) {
                if is_calm(&mut world) {
                    break;
                }
                calm = Some((now + CALM_CHECK, is_calm));
            }
        }
        let upcoming = [stage.executor.next_timer(), shared.world().next_entry(), scenario.steps.get(next_step).map(|step| step.at.0)];
        match upcoming.into_iter().flatten().min() {
            Some(next) if next <= end => now = next.max(now),
            _ => break,
        }
    }
    let polls = stage.executor.polls();
    let count = shared.world().processes.len();
    for process in 0..count {
        stage.executor.kill(process);
    }
    Ran { shared, polls }
}

struct Stage<L> {
    executor: Executor,
    setting: Setting,
    launch: L,
    paused: HashMap<usize, (u32, Duration)>,
    shared: Arc<Shared>,
}

impl<L: Fn(Instance) -> BoxFuture> Stage<L> {
    fn set(&self, scenario: &Scenario, conditions: &Conditions, times: &[Duration]) {
        let mut world = self.shared.world();
        world.noise = conditions.noise.clone();
        world.seeded = conditions.seeded;
        world.sabotage = conditions.sabotage;
        if conditions.forgetful {
            world.forget_after(64);
        }
        steps::set_up(&mut world, scenario);
        if conditions.blocking {
            for state in world.registries.values_mut() {
                state.behaviour.blocking = true;
            }
        }
        match self.setting.configuration(&scenario.config) {
            Ok((text, configuration)) => world.set_configuration(&text, Some(configuration)),
            Err(error) => world.fail("config", "a configuration that parses", error),
        }
        if let Some((at, _)) = conditions.checkpoint {
            world.later(at, Agenda::Nothing);
        }
        for at in times {
            world.later(*at, Agenda::Nothing);
        }
        for (index, name) in ["a", "b", "c"].into_iter().take(scenario.replicas).enumerate() {
            world.later(Duration::from_secs(index as u64), Agenda::Start(Arc::from(name)));
        }
    }

    fn step(&mut self, step: &super::grammar::Step, index: usize) {
        let mut world = self.shared.world();
        let done = steps::apply(&mut world, &self.setting, step);
        // In a drawn world a controller waits until a name is free.
        if let Err(problem) = done
            && !world.seeded
        {
            world.fail(&format!("steps[{index}]"), "a step that can be done", problem);
        }
    }

    /// Runs world and product until neither has anything left to do now.
    fn rest(&mut self) -> Result<(), Broken> {
        for _ in 0..ROUNDS {
            let mut errands = Vec::new();
            let (acted, pauses) = {
                let mut world = self.shared.world();
                (world.act(&mut errands), std::mem::take(&mut world.pauses))
            };
            for process in pauses {
                let now = self.shared.exec.now();
                self.paused.entry(process).or_insert((0, now)).0 += 1;
                self.executor.pause(process, true);
            }
            for errand in errands {
                self.run_errand(errand);
            }
            let before = self.executor.polls();
            self.executor.run()?;
            if !acted && self.executor.polls() == before {
                return Ok(());
            }
        }
        Err(Broken::Restless)
    }

    fn run_errand(&mut self, errand: Errand) {
        match errand {
            Errand::Resume(process) => {
                let Some((count, since)) = self.paused.get_mut(&process) else { return };
                *count -= 1;
                if *count == 0 {
                    self.shared.exec.note_pause(process, self.shared.exec.now().saturating_sub(*since));
                    self.paused.remove(&process);
                    self.executor.pause(process, false);
                }
            }
            Errand::Start(name) => self.start(name),
        }
    }

    fn start(&mut self, name: Arc<str>) {
        let metrics = Arc::new(Metrics::new());
        let (sender, stop) = oneshot::channel();
        let process = {
            let mut world = self.shared.world();
            if let Some(running) = world.process_of(&name) {
                // Asked to stop, and not gone yet: its successor comes after it.
                if world.processes[running].stopping {
                    let at = world.now + Duration::from_secs(1);
                    world.later(at, Agenda::Start(name));
                }
                return;
            }
            world.processes.push(Process {
                name: name.clone(),
                alive: true,
                metrics: metrics.clone(),
                stop: Some(sender),
                stopping: false,
                shown: HashMap::new(),
                nodes: BTreeMap::new(),
            });
            world.processes.len() - 1
        };
        let sabotage = self.shared.world().sabotage;
        let instance = Instance {
            api: Api::new(self.shared.clone(), process),
            drivers: SimDrivers::new(self.shared.clone(), process),
            clock: SimClock::new(self.shared.exec.clone(), process, process as u64 + 1).spoiled(sabotage),
            name,
            metrics,
            stop,
        };
        let product = (self.launch)(instance);
        let shared = self.shared.clone();
        let whole = async move {
            product.await;
            shared.world().returned(process);
        };
        self.shared.exec.spawn(process, Box::pin(whole));
    }
}
