//! The product in stories for which the format of scenarios has no word: registries that answer blocking reads, a slow API server, the
//! judges of drawn worlds.
//!
//! A blocking read is under way most of the time, so whatever waits for calls to end must not wait for it; and a slow API server makes
//! writes wait for each other, and a renewal of the Lease come late. Drawn worlds are judged by more rules, and by what a process was shown;
//! what they must not take for a fault is told here.
//!
//! Invariant: played by the product itself, under every invariant of the scenarios.
//! Absent on purpose: how a driver asks for such a read (`registry`).

use std::time::Duration;

use crate::executor::Random;
use crate::product;
use crate::scenario::grammar::Scenario;
use crate::scenario::line;
use crate::scenario::run::{Conditions, play};
use crate::world::Noise;

/// What is beyond the format in a story.
#[derive(Clone, Copy)]
enum Beyond {
    /// Registries can answer blocking reads.
    Blocking,
    /// So can they, and the API server answers that many milliseconds late.
    SlowApi(u64),
    /// The same, and what a watch shows is late by up to as many.
    SlowWatch(u64),
    /// It is judged as a drawn world is.
    Drawn,
}

/// Name, what is beyond the format, steps and expectations.
const STORIES: &[(&str, Beyond, &str)] = &[
    (
        "a blocking read brings the acknowledgement when it is there",
        Beyond::Blocking,
        "registries: {sim: {activeAfter: 7s}}
steps:
  - {at: 10s, create: {pod: web, ip: 10.0.0.5, containersReady: true}}
expect:
  - {during: 11s..16s, pod: web, gate: \"False\"}
  - {by: 17100ms, since: 10s, pod: web, gate: \"True\"}
  - {during: 11s..16s, registry: sim, service: web, requests: {list: {atMost: 1}}}
",
    ),
    (
        "a leader that stops does not wait for a blocking read",
        Beyond::Blocking,
        "replicas: 2
registries: {sim: {activeAfter: never}}
steps:
  - {at: 10s, create: {pod: web, ip: 10.0.0.5, containersReady: true}}
  - {at: 30s, replica: {name: a, do: stop}}
expect:
  - {during: 12s..29s, leader: a, pod: web, gate: \"False\"}
  - {by: 32s, since: 30s, leader: b}
",
    ),
    (
        // The plain read at 20 s describes that moment and takes 2 s; the one that waits is answered in between.
        "a plain read does not take back what a read that waited has shown since",
        Beyond::Blocking,
        "config:
  bindings:
    - {name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: sim, service: web, port: 8080, mode: observe}
registries: {sim: {latency: 2s}}
steps:
  - {at: 10s, create: {pod: web, ip: 10.0.0.5, containersReady: true}}
  - {at: 20s, delete: {pod: web, grace: 0s}}
  - {at: 20500ms, registry: {name: sim, latency: 0s}}
  - {at: 21s, registry: {name: sim, adds: [{address: 10.0.0.5}]}}
expect:
  - {during: 20s..40s, pod: web, finalizer: true, claims: [\"sim/web 10.0.0.5:8080 observed\"]}
",
    ),
    (
        // The read that waits was asked for at 10 s, the plain one that shows nothing at 20 s. At 21 s the other controller puts the target in.
        "a read that waited is believed though a plain one was asked for later",
        Beyond::Blocking,
        "config:
  registries:
    - {name: sim, http: {url: \"http://sim.invalid\"}}
    - {name: lan, http: {url: \"http://lan.invalid\"}}
  bindings:
    - {name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: sim, service: web, port: 8080, mode: observe}
    - {name: own, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: lan, service: web, port: 8080}
registries: {sim: {}, lan: {goneAfter: 5s}}
steps:
  - {at: 10s, create: {pod: web, ip: 10.0.0.5, containersReady: true}}
  - {at: 20s, delete: {pod: web, grace: 0s}}
  - {at: 21s, registry: {name: sim, adds: [{address: 10.0.0.5}]}}
expect:
  - {by: 26s, since: 20s, registry: lan, targets: {web: absent}}
  - {during: 20s..40s, pod: web, finalizer: true, claims: [\"sim/web 10.0.0.5:8080 observed\", \"lan/web 10.0.0.5:8080\"]}
",
    ),
    (
        // 64 writes are on their way. Those that wait behind them have no use for their turn any more when it comes.
        "turns to write that nobody needs any more are passed on",
        Beyond::SlowApi(1000),
        "steps:
  - {at: 30s, create: {pod: first, count: 64, ip: 10.0.0.10}}
  - {at: 30s, create: {pod: idle, count: 100, ip: 10.0.1.10}}
  - {at: 30500ms, update: {pod: \"idle-*\", released: true}}
  - {at: 30600ms, create: {pod: last, count: 40, ip: 10.0.2.10}}
expect:
  - {at: 30900ms, pod: \"last-*\", gate: absent}
  - {by: 60s, since: 30s, pod: \"last-*\", gate: \"False\"}
",
    ),
    (
        // The Lease is renewed at 15.4 s; the next attempt that gets through begins at 22.1 s, before that runs out, and is answered at
        // 23 s, after. The acknowledgement comes between the two.
        "a write that a late renewal of the Lease held back is made up for",
        Beyond::SlowApi(900),
        "registries: {sim: {activeAfter: 12700ms}}
steps:
  - {at: 10s, create: {pod: web, ip: 10.0.0.5, containersReady: true}}
  - {at: 17s, cut: {replica: a, for: 5s}}
expect:
  - {at: 22800ms, pod: web, gate: \"False\"}
  - {by: 30s, since: 22s, pod: web, gate: \"True\"}
  - {at: 120s, metrics: {\"lockstep_pod_writes_total{outcome=unsent}\": 1}}
",
    ),
    (
        // While the first of two new configurations is being kept the second one comes, so that the next write begins when nobody is reached.
        "a configuration that cannot be kept is not written without a pause",
        Beyond::SlowApi(1),
        "registries: {sim: {}}
steps:
  - {at: 20s, config: {registries: [{name: sim, http: {url: \"http://sim.invalid\"}}], bindings: []}}
  - {at: 20001ms, config: {registries: [{name: lan, http: {url: \"http://lan.invalid\"}}], bindings: []}}
  - {at: 20002ms, cut: {replica: a, for: 60s}}
expect:
  - {at: 79s, metrics: {\"lockstep_config_valid\": 1}}
",
    ),
    (
        // Read as gone at 32.76 s. The write that drops the claim follows at once and is answered a second later; in between a watch shows
        // the pod as it was just before: bound again, and with its claim.
        "nothing is registered for a claim that a write on its way takes out",
        Beyond::SlowWatch(1000),
        "config:
  bindings:
    - {name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: sim, service: web, port: 8080, onUnbound: deregister}
registries: {sim: {latency: 1s}}
steps:
  - {at: 10s, create: {pod: web, count: 3, ip: 10.0.0.10, containersReady: true}}
  - {at: 30s, update: {pod: web-0, labels: {app: nobody}}}
  - {at: 32740ms, update: {pod: web-0, labels: {app: web}}}
expect:
  - {at: 29s, pod: web-0, gate: \"True\", reason: Registered}
  - {at: 33300ms, pod: web-0, claims: []}
  - {at: 60s, pod: web-0, claims: [\"sim/web 10.0.0.10:8080\"]}
",
    ),
    (
        // The register of 30 s is under way until 34 s; then the drain leaves that was decided on at 31 s. Nobody could tell the leader that
        // the node is back.
        "a leader that is cut off is not told that a node is back",
        Beyond::Drawn,
        "registries: {sim: {}}
steps:
  - {at: 0s, create: {pod: web-0, ip: 10.0.0.10, containersReady: true}}
  - {at: 0s, create: {pod: web-1, node: node-b, ip: 10.0.0.11, containersReady: true}}
  - {at: 29s, registry: {name: sim, latency: 4s}}
  - {at: 30s, create: {pod: late, ip: 10.0.0.12, containersReady: true}}
  - {at: 31s, node: {name: node-b, ready: false}}
  - {at: 32s, cut: {replica: a, for: 10s}}
  - {at: 32500ms, node: {name: node-b, ready: true}}
expect:
  - {at: 35s, registry: sim, targets: {web-1: draining}}
  - {by: 90s, since: 42s, registry: sim, targets: {web-1: active}}
",
    ),
    (
        "a drain that is sent once more has its leave though the pod is ready again, and that is not known yet",
        Beyond::Drawn,
        "registries: {sim: {drainingAfter: 2s}}
steps:
  - {at: 0s, create: {pod: web, count: 2, ip: 10.0.0.10, containersReady: true}}
  - {at: 20s, update: {pod: web-1, containersReady: false}}
  - {at: 21s, finalDelete: {pod: web-0}}
  - {at: 22s, watch: {do: drop, pod: web-1, for: 20s}}
  - {at: 30s, update: {pod: web-1, containersReady: true}}
expect:
  - {during: 31s..40s, pod: web-1, calls: {drain: 1}}
",
    ),
    (
        "what was drained with leave may be taken out once the pod is bound no more, though too few are left",
        Beyond::Drawn,
        "config:
  bindings:
    - {name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: sim, service: web, port: 8080, onUnbound: deregister}
registries: {sim: {}}
steps:
  - {at: 0s, create: {pod: web-0, ip: 10.0.0.10, containersReady: true}}
  - {at: 0s, create: {pod: web-1, node: node-b, ip: 10.0.0.11, containersReady: true}}
  - {at: 20s, node: {name: node-b, ready: false}}
  - {at: 25s, finalDelete: {pod: web-0}}
  - {at: 60s, update: {pod: web-1, labels: {app: nobody}}}
expect:
  - {during: 21s..59s, registry: sim, targets: {web-1: draining}}
  - {by: 62s, registry: sim, targets: {web-1: absent}}
",
    ),
    (
        // The first deregister may have been done; nobody knows.
        "what may be out already is taken out though no pod is bound any more",
        Beyond::Drawn,
        "config:
  bindings:
    - {name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: sim, service: web, port: 8080, onUnbound: deregister}
registries: {sim: {}}
steps:
  - {at: 0s, create: {pod: web, count: 3, ip: 10.0.0.10, containersReady: true}}
  - {at: 20s, registry: {name: sim, answers: timeout}}
  - {at: 30s, update: {pod: web-0, labels: {app: nobody}}}
  - at: 31s
    config:
      bindings:
        - {name: web, namespaces: [shop], podSelector: {matchLabels: {app: nothing}}, registry: sim, service: web, port: 8080, onUnbound: deregister}
expect:
  - {during: 42s..90s, pod: web-0, calls: {deregister: {atLeast: 1}}}
  - {during: 0s..90s, pod: [web-1, web-2], calls: {deregister: 0}}
",
    ),
];

/// How many there are.
pub(super) fn count() -> usize {
    STORIES.len()
}

/// Runs all; what is wrong.
pub(super) fn run_all() -> Vec<String> {
    let check =
        |(name, beyond, text): &(&str, Beyond, &str)| check(*beyond, text).err().map(|problem| format!("story `{name}`: {problem}"));
    STORIES.iter().filter_map(check).collect()
}

fn check(beyond: Beyond, text: &str) -> Result<(), String> {
    let text = format!("name: story\nwhy: A story of the simulation's own checks, played by the product.\ncovers: [ready]\n{text}");
    let scenario = Scenario::parse(&text)?;
    let ran = play(&scenario, &beyond.conditions(), product::launch);
    let world = ran.shared.world();
    if world.failures.is_empty() { Ok(()) } else { Err(world.failures.iter().map(line).collect::<Vec<_>>().join("; ")) }
}

impl Beyond {
    fn conditions(self) -> Conditions {
        let noise = match self {
            Self::Blocking | Self::Drawn => None,
            Self::SlowApi(latency) | Self::SlowWatch(latency) => {
                let (until, late) = (Duration::MAX, if matches!(self, Self::SlowWatch(_)) { latency } else { 0 });
                Some(Noise { random: Random(0), latency, steady: true, failures: 0, repeats: 0, late, slow: 0, until })
            }
        };
        let seeded = matches!(self, Self::Drawn);
        Conditions { noise, blocking: !seeded, seeded, ..Conditions::default() }
    }
}
