//! The simulated world: everything outside the process, and a record of what happened in it.
//!
//! One value holds API server, kubelets, nodes and registries; the adapters in its children lend it to the product's traits.
//!
//! Invariant: nothing happens by itself but what the agenda says, and the agenda is worked off in order of time, then of entry.
//! Invariant: what the record says was true when it was written; judges read it and change nothing.
//! Absent on purpose: what should happen (the product) and whether it did (`judge`, `invariants`).

mod agenda;
pub(crate) mod api;
pub(crate) mod budget;
pub(crate) mod invariants;
pub(crate) mod pods;
pub(crate) mod record;
pub(crate) mod registry;
pub(crate) mod watch;

use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockstep::config::Configuration;
use lockstep::metrics::Metrics;
use lockstep::reconcile::cluster::{LeaseRecord, NodeView, Stored};
use lockstep::target::{PodKey, PodUid};

use crate::executor::{Exec, ProcessId, Random, lock};
use agenda::Entry;
pub(crate) use agenda::{Agenda, Errand};
use pods::{Pod, PodId};
use record::{Failure, Record, WriteKind};
use registry::SimRegistryState;
use watch::{Connection, LogEntry};

/// A configuration rules on for this long after a newer one came.
const IN_FORCE: Duration = Duration::from_secs(10);
/// More requests than this in one instant mean that the product never comes to rest.
const REQUESTS_IN_AN_INSTANT: u64 = 200_000;
/// More requests than this in one second that reach nobody mean that they are repeated without a pause: worlds have fewer pods than this.
const VAIN_IN_A_SECOND: u64 = 500;

/// What the adapters of all processes share.
pub(crate) struct Shared {
    pub(crate) exec: Arc<Exec>,
    world: Mutex<World>,
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Virtual time.
    pub(crate) at: Duration,
    /// Wall clock.
    pub(crate) wall: jiff::Timestamp,
}

/// One life of a replica.
pub(crate) struct Process {
    /// Its name, which is its identity in the Lease.
    pub(crate) name: Arc<str>,
    /// Whether it still runs.
    pub(crate) alive: bool,
    /// Its metrics, which outlive it here.
    pub(crate) metrics: Arc<Metrics>,
    /// Asks it to stop.
    pub(crate) stop: Option<tokio::sync::oneshot::Sender<()>>,
    /// Whether it was asked to stop.
    pub(crate) stopping: bool,
    /// What it has been shown of each pod.
    pub(crate) shown: HashMap<PodId, invariants::Shown>,
    /// The nodes as it was last shown them.
    pub(crate) nodes: BTreeMap<Arc<str>, NodeView>,
}

/// A rule that answers writes.
pub(crate) struct ApiRule {
    pub(crate) kind: WriteKind,
    pub(crate) code: u16,
    pub(crate) pods: Option<Vec<String>>,
    pub(crate) times: Option<u64>,
    pub(crate) until: Option<Duration>,
    pub(crate) applied: bool,
}

/// A trap that ends a process.
pub(crate) struct Trap {
    pub(crate) replica: String,
    pub(crate) before: bool,
    pub(crate) on: Trigger,
    pub(crate) pods: Option<Vec<String>>,
    pub(crate) starts_after: Option<Duration>,
}

/// What springs a [`Trap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Change(lockstep::registry::Operation),
    Write(WriteKind),
}

/// Disturbances that a seeded world has and a scenario does not.
#[derive(Clone, Debug)]
pub(crate) struct Noise {
    /// Draws all of them.
    pub(crate) random: Random,
    /// A request to the API server takes up to this many milliseconds each way.
    pub(crate) latency: u64,
    /// It takes exactly that.
    pub(crate) steady: bool,
    /// One request in so many fails; 0: none.
    pub(crate) failures: u64,
    /// One watch event in so many comes twice; 0: none.
    pub(crate) repeats: u64,
    /// A watch event comes up to so many milliseconds late.
    pub(crate) late: u64,
    /// A registry answers up to so many milliseconds late.
    pub(crate) slow: u64,
    /// Disturbances end here.
    pub(crate) until: Duration,
}

/// Everything outside the product.
pub(crate) struct World {
    pub(crate) exec: Arc<Exec>,
    pub(crate) now: Duration,
    sequence: u64,
    version: u64,
    pub(crate) pods: Vec<Pod>,
    by_key: BTreeMap<PodKey, PodId>,
    by_uid: HashMap<PodUid, PodId>,
    by_handle: HashMap<Arc<str>, PodId>,
    nodes: BTreeMap<Arc<str>, NodeView>,
    mentioned: std::collections::BTreeSet<Arc<str>>,
    namespaces: BTreeMap<Arc<str>, bool>,
    reflections: watch::Reflections,
    configurations: Vec<InForce>,
    /// Until when the newest text was no good one, the last time that it was none.
    bad_until: Option<Duration>,
    pub(crate) lease: LeaseRecord,
    /// Since when the Lease names whom it names.
    lease_since: Moment,
    stores: [Stored; 2],
    debts: Vec<invariants::Debt>,
    connections: Vec<Connection>,
    log: VecDeque<LogEntry>,
    log_limit: usize,
    pages: api::Pages,
    pub(crate) drops: Vec<watch::Drop>,
    pub(crate) delays: Vec<watch::Delay>,
    pub(crate) api_rules: Vec<ApiRule>,
    pub(crate) traps: Vec<Trap>,
    cuts: HashMap<Arc<str>, Duration>,
    pub(crate) registries: BTreeMap<Arc<str>, SimRegistryState>,
    pub(crate) processes: Vec<Process>,
    agenda: BinaryHeap<Entry>,
    pub(crate) record: Record,
    pub(crate) failures: Vec<Failure>,
    pub(crate) exceptions: invariants::Exceptions,
    /// Who judges by what a process was shown instead of by the clock alone.
    pub(crate) seeded: bool,
    /// Whether the story told something that no cluster does.
    pub(crate) impossible: bool,
    pub(crate) noise: Option<Noise>,
    /// When the wall clock jumped, and to where.
    pub(crate) jumps: Vec<Moment>,
    pub(crate) sabotage: Option<crate::sabotage::Sabotage>,
    pub(crate) requests_now: u64,
    /// The second of the newest requests that reached nobody, and their number in it.
    vain: (u64, u64),
    /// Processes that are to be paused.
    pub(crate) pauses: Vec<ProcessId>,
    /// Counts every change that a judge could see.
    pub(crate) revision: u64,
}

/// A good configuration and until when it was the newest.
struct InForce {
    text: Arc<str>,
    configuration: Arc<Configuration>,
    until: Option<Duration>,
}

impl Shared {
    /// An empty world at time zero.
    pub(crate) fn new() -> Arc<Self> {
        let exec = Exec::new();
        Arc::new(Self { world: Mutex::new(World::new(exec.clone())), exec })
    }

    /// The world; never held across an await.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }
}

impl World {
    fn new(exec: Arc<Exec>) -> Self {
        let wall = exec.wall();
        let lease = LeaseRecord { resource_version: "1".to_owned(), ..LeaseRecord::default() };
        let empty = Stored { resource_version: "1".to_owned(), text: String::new() };
        Self {
            exec,
            now: Duration::ZERO,
            sequence: 0,
            version: 1,
            pods: Vec::new(),
            by_key: BTreeMap::new(),
            by_uid: HashMap::new(),
            by_handle: HashMap::new(),
            nodes: BTreeMap::new(),
            mentioned: std::collections::BTreeSet::new(),
            namespaces: BTreeMap::new(),
            reflections: watch::Reflections::default(),
            configurations: Vec::new(),
            bad_until: None,
            lease,
            lease_since: Moment { at: Duration::ZERO, wall },
            stores: [empty.clone(), empty],
            debts: Vec::new(),
            connections: Vec::new(),
            log: VecDeque::new(),
            log_limit: usize::MAX,
            pages: api::Pages::default(),
            drops: Vec::new(),
            delays: Vec::new(),
            api_rules: Vec::new(),
            traps: Vec::new(),
            cuts: HashMap::new(),
            registries: BTreeMap::new(),
            processes: Vec::new(),
            agenda: BinaryHeap::new(),
            record: Record::default(),
            failures: Vec::new(),
            exceptions: invariants::Exceptions::default(),
            seeded: false,
            impossible: false,
            noise: None,
            jumps: Vec::new(),
            sabotage: None,
            requests_now: 0,
            vain: (0, 0),
            pauses: Vec::new(),
            revision: 0,
        }
    }

    /// This moment on both clocks.
    pub(crate) fn moment(&self) -> Moment {
        Moment { at: self.now, wall: self.exec.wall() }
    }

    /// The next number in the order of what happens.
    pub(crate) fn tick(&mut self) -> u64 {
        self.sequence += 1;
        self.revision += 1;
        self.sequence
    }

    /// The next resource version.
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Puts something on the agenda.
    pub(crate) fn later(&mut self, at: Duration, what: Agenda) {
        self.sequence += 1;
        self.agenda.push(Entry { at, sequence: self.sequence, what });
    }

    /// When the world acts next by itself.
    pub(crate) fn next_entry(&self) -> Option<Duration> {
        self.agenda.peek().map(|entry| entry.at)
    }

    /// Begins an instant.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.now = now;
        self.requests_now = 0;
    }

    /// Does what is due; whether there was anything, and what is left for the runner.
    pub(crate) fn act(&mut self, errands: &mut Vec<Errand>) -> bool {
        let mut acted = false;
        while self.agenda.peek().is_some_and(|entry| entry.at <= self.now) {
            let Some(entry) = self.agenda.pop() else { break };
            acted = true;
            match entry.what {
                Agenda::Target(clock) => self.run_out(&clock),
                Agenda::Duplicate(repeat) => self.repeat(&repeat),
                Agenda::Start(name) => errands.push(Errand::Start(name)),
                Agenda::Resume(process) => errands.push(Errand::Resume(process)),
                Agenda::Kill(process) => self.end(process),
                Agenda::Deliver(connection) => self.wake_connection(connection),
                Agenda::Bookmark(connection, life) => self.bookmark(connection, life),
                Agenda::Reconnect => self.reflections.wake_all(),
                Agenda::Nothing => {}
            }
        }
        acted
    }

    /// Notes that a rule did not hold.
    pub(crate) fn fail(&mut self, rule: &str, wanted: impl Into<String>, found: impl Into<String>) {
        self.failures.push(Failure { at: self.now, rule: rule.to_owned(), wanted: wanted.into(), found: found.into() });
    }

    /// Counts a request and guards against a product that never rests.
    fn count_request(&mut self) {
        self.requests_now += 1;
        assert!(
            self.requests_now <= REQUESTS_IN_AN_INSTANT,
            "more than {REQUESTS_IN_AN_INSTANT} requests in one instant: the product does not come to rest"
        );
    }

    /// Counts a request that reached nobody.
    fn count_vain_request(&mut self) {
        let second = self.now.as_secs();
        self.vain = if self.vain.0 == second { (second, self.vain.1 + 1) } else { (second, 1) };
        if self.vain.1 == VAIN_IN_A_SECOND + 1 {
            self.fail("what fails is repeated after a pause", format!("at most {VAIN_IN_A_SECOND} vain requests a second"), "more");
        }
    }

    /// The live process of a replica.
    pub(crate) fn process_of(&self, replica: &str) -> Option<ProcessId> {
        self.processes.iter().rposition(|process| process.alive && &*process.name == replica)
    }

    /// The name that a step's replica has now.
    pub(crate) fn replica_named<'a>(&'a self, name: &'a str) -> &'a str {
        if name == "leader" { &self.lease.holder } else { name }
    }

    /// Ends a process where it stands.
    pub(crate) fn end(&mut self, process: ProcessId) {
        if !std::mem::replace(&mut self.processes[process].alive, false) {
            return;
        }
        self.tick();
        for connection in &mut self.connections {
            if connection.process == process {
                connection.close();
            }
        }
        self.exec.doom(process);
    }

    /// The product of a process returned: the process has ended, and a kubelet starts it again if nobody asked for it.
    pub(crate) fn returned(&mut self, process: ProcessId) {
        let asked = self.processes[process].stopping;
        if self.processes[process].alive && !asked {
            let name = self.processes[process].name.clone();
            self.later(self.now + Duration::from_secs(1), Agenda::Start(name));
        }
        self.end(process);
    }

    /// Watches forget all but the newest changes.
    pub(crate) fn forget_after(&mut self, changes: usize) {
        self.log_limit = changes;
    }

    /// Asks a process to stop; a kubelet waits half a minute for it.
    pub(crate) fn stop(&mut self, process: ProcessId) {
        self.processes[process].stopping = true;
        if let Some(stop) = self.processes[process].stop.take() {
            let _ = stop.send(());
        }
        self.later(self.now + Duration::from_secs(30), Agenda::Kill(process));
    }

    /// Springs the first trap that this would set off; whether the process is dead now.
    fn sprung(&mut self, process: ProcessId, before: bool, on: impl Fn(&Self, &Trap) -> bool) -> bool {
        let name = self.processes[process].name.clone();
        let Some(index) =
            self.traps.iter().position(|trap| trap.before == before && self.replica_named(&trap.replica) == &*name && on(self, trap))
        else {
            return false;
        };
        let trap = self.traps.remove(index);
        self.end(process);
        if let Some(delay) = trap.starts_after {
            self.later(self.now + delay, Agenda::Start(name));
        }
        true
    }

    /// Cuts a replica off from the API server.
    pub(crate) fn cut(&mut self, replica: &Arc<str>, until: Duration) {
        self.cuts.insert(replica.clone(), until);
        for connection in &mut self.connections {
            if self.processes[connection.process].name == *replica {
                connection.silence();
            }
        }
        self.later(until, Agenda::Reconnect);
    }

    /// Whether a process cannot reach the API server now.
    pub(crate) fn is_cut(&self, process: ProcessId) -> bool {
        self.cuts.get(&self.processes[process].name).is_some_and(|until| self.now < *until)
    }

    /// A new configuration text; `configuration` is what it says where it is good.
    pub(crate) fn set_configuration(&mut self, text: &str, configuration: Option<Configuration>) {
        self.tick();
        if let Some(configuration) = configuration {
            self.bad_until = self.bad_until.map(|until| until.min(self.now));
            if let Some(last) = self.configurations.last_mut() {
                last.until = Some(self.now);
            }
            self.configurations.push(InForce { text: Arc::from(text), configuration: Arc::new(configuration), until: None });
        } else {
            self.bad_until = Some(Duration::MAX);
        }
        self.reflections.set_configuration(Some(Arc::from(text)));
    }

    /// Every configuration that was the newest good one in the last ten seconds, newest first. A process that was started beside a bad one
    /// knows only what a leader had kept, and nobody may have led while the newest good one was there.
    pub(crate) fn in_force(&self) -> impl Iterator<Item = &Configuration> {
        let recent = |until: Duration| until.saturating_add(IN_FORCE) >= self.now;
        let kept = self.seeded && self.bad_until.is_some_and(recent);
        let is_kept = move |one: &InForce| kept && *one.text == *self.last_good();
        self.configurations.iter().rev().filter(move |one| one.until.is_none_or(recent) || is_kept(one)).map(|one| &*one.configuration)
    }

    /// A node from its first mention on.
    pub(crate) fn mention_node(&mut self, name: &Arc<str>) {
        if self.mentioned.insert(name.clone()) {
            self.put_node(name, |_| {});
        }
    }

    /// Changes a node, or makes it.
    pub(crate) fn put_node(&mut self, name: &Arc<str>, change: impl FnOnce(&mut NodeView)) {
        self.tick();
        self.mentioned.insert(name.clone());
        let node = self.nodes.entry(name.clone()).or_insert_with(|| NodeView {
            name: name.clone(),
            ready: true,
            unreachable: false,
            out_of_service: false,
            kubelet_version: "v1.34.0".to_owned(),
        });
        change(node);
        let node = node.clone();
        self.reflections.node(lockstep::reconcile::cluster::NodeChange::Applied(node));
    }

    /// Takes a node away.
    pub(crate) fn remove_node(&mut self, name: &Arc<str>) {
        self.tick();
        self.mentioned.insert(name.clone());
        if self.nodes.remove(name).is_some() {
            self.reflections.node(lockstep::reconcile::cluster::NodeChange::Gone(name.clone()));
        }
    }

    /// A namespace from its first mention on.
    pub(crate) fn mention_namespace(&mut self, name: &Arc<str>) {
        self.namespaces.entry(name.clone()).or_insert(false);
    }

    /// Whether a namespace is opted in.
    pub(crate) fn is_opted_in(&self, name: &str) -> bool {
        self.namespaces.get(name).copied().unwrap_or(false)
    }

    /// Opts a namespace in or out.
    pub(crate) fn opt(&mut self, name: &Arc<str>, opted_in: bool) {
        self.tick();
        let before = self.namespaces.insert(name.clone(), opted_in).unwrap_or(false);
        if before != opted_in {
            self.reflections.namespace(name, opted_in);
        }
    }
}
