//! Makes a world out of a seed: configuration, registries, pods with their lives, and what goes wrong.
//!
//! The story is told in the steps of the scenario grammar, so that it can be shrunk, printed and run as a scenario.
//!
//! Invariant: faults end before the last part of a world; from then on nothing is touched but what kubelets and controllers still owe.
//! Absent on purpose: reactions; kubelets and controllers follow the story, whatever the product does.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::cast::{self, Life};
use super::{ending, faults};
use crate::executor::Random;
use crate::scenario::grammar::{
    ActiveAs, ConfigSpec, Drains, Expectation, GoneWord, Keys, Number, Preloaded, RegistrySpec, Scenario, Span, SpanOrNever, StateWord,
    Step,
};
use crate::scenario::run::Conditions;

/// Faults and rollouts happen for at least this long.
const SHORTEST: u64 = 60;
/// And for up to so much more.
const LONGER: u64 = 180;
/// After faults have ended the world is watched for this long: a lost event, a look for pods to adopt, three audits and their retries.
const AFTERWARDS: Duration = Duration::from_secs(900);
/// Most worlds end sooner, once nothing is left to happen; then an audit must have passed.
const AUDITED: Duration = Duration::from_secs(90);
/// One world in so many is watched to the end all the same.
const WATCHED: u64 = 4;

/// A world to be played.
#[derive(Clone, Debug)]
pub(crate) struct Tale {
    pub(crate) scenario: Scenario,
    pub(crate) conditions: Conditions,
    /// Kinds of fault that were drawn.
    pub(crate) kinds: Vec<faults::Kind>,
}

/// Everything that is drawn.
pub(crate) struct Author {
    pub(crate) random: Random,
    pub(crate) steps: Vec<Step>,
    /// Faults happen until then.
    pub(crate) busy: u64,
    pub(crate) replicas: usize,
    pub(crate) bindings: Vec<Bound>,
    pub(crate) registries: BTreeMap<String, RegistrySpec>,
    pub(crate) config: ConfigSpec,
    pub(crate) lives: Vec<Life>,
    pub(crate) conditions: Conditions,
}

/// A binding, as far as the story needs it.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) app: &'static str,
    pub(crate) registry: String,
    pub(crate) service: String,
    pub(crate) port: u16,
    pub(crate) observed: bool,
}

impl Tale {
    /// The disturbances around the story, for people.
    pub(crate) fn disturbances(&self) -> String {
        let noise = self.conditions.noise.as_ref().map_or_else(
            || "none".to_owned(),
            |noise| {
                format!(
                    "answers of the API server up to {} ms late, one request in {} fails, one event in {} twice, events up to {} ms late, registries up to {} ms slower",
                    noise.latency, noise.failures, noise.repeats, noise.late, noise.slow
                )
            },
        );
        format!("{noise}; watches forget: {}; blocking reads: {}", self.conditions.forgetful, self.conditions.blocking)
    }
}

/// The world of a seed.
pub(crate) fn tale(seed: u64) -> Tale {
    let mut random = Random(seed ^ 0x5eed_5eed_5eed_5eed);
    let busy = (SHORTEST + random.below(LONGER)) * 1000;
    let replicas = 1 + usize::try_from(random.below(3)).unwrap_or(0);
    let mut author = Author {
        random,
        steps: Vec::new(),
        busy,
        replicas,
        bindings: Vec::new(),
        registries: BTreeMap::new(),
        config: ConfigSpec::default(),
        lives: Vec::new(),
        conditions: Conditions { seeded: true, ..Conditions::default() },
    };
    author.set_up();
    author.tell_exactly(seed);
    cast::tell(&mut author);
    let kinds = faults::tell(&mut author);
    author.finish(seed, kinds)
}

impl Author {
    /// A moment before the faults end, in milliseconds.
    pub(crate) fn sometime(&mut self) -> u64 {
        2000 + self.random.below(self.busy - 2000)
    }

    /// One of several.
    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        let index = self.random.below(choices.len() as u64);
        choices[usize::try_from(index).unwrap_or(0)].clone()
    }

    /// Adds a step.
    pub(crate) fn step(&mut self, at: u64, fill: impl FnOnce(&mut Step)) {
        let mut step = Step { at: Span(Duration::from_millis(at)), ..Step::default() };
        fill(&mut step);
        self.steps.push(step);
    }

    fn seconds(&mut self, choices: &[u64]) -> Duration {
        Duration::from_secs(self.pick(choices))
    }

    fn set_up(&mut self) {
        let names: Vec<&str> = if self.random.chance(2) { vec!["sim"] } else { vec!["sim", "lan"] };
        for name in &names {
            let spec = self.registry();
            self.registries.insert((*name).to_owned(), spec);
        }
        let mut bindings = Vec::new();
        for (app, service, port) in [("web", "web", 8080), ("api", "api", 8080), ("web", "admin", 9090)] {
            if service != "web" && self.random.chance(2) {
                continue;
            }
            let registry = self.pick(&names).to_owned();
            let observed = service != "web" && self.random.chance(3);
            bindings.push(self.binding(app, service, port, &registry, observed));
            self.bindings.push(Bound { app, registry, service: service.to_owned(), port, observed });
        }
        let registries = names.iter().map(|name| json!({"name": name, "http": {"url": format!("http://{name}.invalid")}})).collect();
        let registration = self.registration();
        self.config =
            ConfigSpec { cluster: None, registration: Some(registration), registries: Some(registries), bindings: Some(bindings) };
        self.conditions.blocking = self.random.chance(3);
    }

    fn binding(&mut self, app: &str, service: &str, port: u16, registry: &str, observed: bool) -> Value {
        let named = self.random.chance(3);
        let port = if named { json!(if port == 8080 { "http" } else { "admin" }) } else { json!(port) };
        let mut binding = json!({
            "name": format!("{app}-{service}"), "namespaces": ["shop"], "podSelector": {"matchLabels": {"app": app}},
            "registry": registry, "service": service, "port": port
        });
        let Some(fields) = binding.as_object_mut() else { return binding };
        if observed {
            fields.insert("mode".to_owned(), json!("observe"));
            return binding;
        }
        if self.random.chance(8) {
            fields.insert("ack".to_owned(), json!("accepted"));
        }
        if self.random.chance(3) {
            let by_deregistering = self.registries.get(registry).is_some_and(|spec| spec.drains == Some(Drains::ByDeregistering));
            let word = if by_deregistering { self.pick(&["keep", "deregister"]) } else { self.pick(&["drain", "keep", "deregister"]) };
            fields.insert("onUnready".to_owned(), json!(word));
        }
        if self.random.chance(3) {
            fields.insert("onUnbound".to_owned(), json!("deregister"));
        }
        if self.random.chance(8) {
            fields.insert("family".to_owned(), json!(self.pick(&["ipv4", "ipv6"])));
        }
        binding
    }

    fn registration(&mut self) -> Value {
        let span = |seconds: Duration| format!("{}s", seconds.as_secs());
        let gate = self.seconds(&[20, 60, 480]);
        let drain = self.seconds(&[30, 120, 600]);
        let force = self.seconds(&[10, 30, 30]);
        let unreachable = self.seconds(&[20, 60]);
        json!({
            "gateTimeout": span(gate),
            "onGateTimeout": self.pick(&["hold", "hold", "open"]),
            "drainTimeout": span(drain),
            "onDrainTimeout": self.pick(&["hold", "hold", "release"]),
            "forceTimeout": span(force),
            "unreachableAfter": span(unreachable),
            "panicThreshold": self.pick(&["50%", "50%", "0%", "25%", "67%", "100%"]),
        })
    }

    fn registry(&mut self) -> RegistrySpec {
        let by_address = self.random.chance(2);
        let mut spec = RegistrySpec::default();
        if by_address {
            spec.keys = Some(Keys::Address);
            spec.marks = self.random.chance(2).then_some(false);
        }
        if self.random.chance(3) {
            spec.drains = Some(Drains::ByDeregistering);
        }
        if self.random.chance(6) {
            spec.gone_when = Some(self.pick(&[GoneWord::Absent, GoneWord::Draining]));
        }
        let after = |author: &mut Self, longest: u64| {
            let drawn = author.random.below(longest * 2);
            Some(SpanOrNever(Some(Duration::from_millis(drawn.saturating_sub(longest)))))
        };
        spec.active_after = after(self, 6000);
        spec.draining_after = after(self, 3000);
        spec.gone_after = after(self, 20_000);
        if self.random.chance(20) {
            spec.active_as = Some(ActiveAs::Active);
        }
        if self.random.chance(3) {
            let batch = 1 + self.random.below(5);
            spec.batch = usize::try_from(batch).ok();
        }
        for number in 0..self.random.below(4).saturating_sub(1) {
            // Strangers, and what an earlier life of ours left where marks tell.
            let (uid, cluster) = match self.random.below(3) {
                0 if spec.marks != Some(false) => (Some(format!("u-left-{number}")), Some("sim".to_owned())),
                1 => (Some(format!("u-other-{number}")), Some("other".to_owned())),
                _ => (None, None),
            };
            let address = std::net::IpAddr::from([10, 9, 9, u8::try_from(number).unwrap_or(0) + 1]);
            spec.holds.push(Preloaded { address, port: 80, service: "web".to_owned(), state: StateWord::Active, uid, cluster });
        }
        if self.random.chance(3) {
            spec.latency = Some(Span(Duration::from_millis(self.random.below(1500))));
        }
        spec
    }

    /// Most registries that tell targets by their pods tell the pod's addresses apart, too. Drawn apart, so that all else stays as it was.
    fn tell_exactly(&mut self, seed: u64) {
        let mut random = Random(seed ^ 0xe8ac_7e8a_c7e8_ac7e);
        for spec in self.registries.values_mut().filter(|spec| spec.keys.is_none()) {
            spec.keys = (!random.chance(3)).then_some(Keys::Exact);
        }
    }

    fn finish(mut self, seed: u64, kinds: Vec<faults::Kind>) -> Tale {
        self.steps.sort_by_key(|step| step.at);
        let last = self.steps.last().map_or(Duration::ZERO, |step| step.at.0);
        let quiet = last.max(Duration::from_millis(self.busy));
        if let Some(noise) = &mut self.conditions.noise {
            noise.until = quiet;
        }
        if ending::is_prompt(&kinds) {
            self.conditions.checkpoint = Some((quiet + ending::PROMPT, ending::prompt));
        }
        self.conditions.end = Some(quiet + AFTERWARDS);
        self.conditions.calm = (!seed.is_multiple_of(WATCHED)).then_some((quiet + AUDITED, ending::is_in_order));
        let scenario = Scenario {
            name: format!("seed-{seed}"),
            why: "A world that was drawn, not written.".to_owned(),
            covers: vec!["crash".to_owned()],
            replicas: self.replicas,
            config: self.config,
            registries: self.registries,
            steps: self.steps,
            expect: vec![Expectation {
                at: Some(Span(quiet + AFTERWARDS)),
                debts: Some(Number::Between(crate::scenario::grammar::Bounds { at_least: Some(0), at_most: None })),
                ..Expectation::default()
            }],
        };
        Tale { scenario, conditions: self.conditions, kinds }
    }
}
