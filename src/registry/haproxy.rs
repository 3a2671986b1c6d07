//! The haproxy driver: servers of a backend, through the runtime API of every process that has it.
//!
//! Facts (tried on 2.6.12 of Debian 12, most of them on 3.2 too; the order is the one that a load of requests came through without a loss):
//! - a new server begins in maintenance; right after `state ready` it counts as up and takes traffic before any check has passed. So it
//!   is made ready with weight 0, at which its check runs, and gets its weight once the check has passed;
//! - `state drain` lets running requests end and sends new ones elsewhere at once; in `state maint` running ones still end, checks stop;
//! - `del server` is refused unless the server is in maintenance and has no session, idle ones included;
//! - a request that is tried again on a server that does not answer is no session of it: 2.6.12 crashes where the server is deleted then (six
//!   removals of dead servers under load were enough; none of 220 that were drained before, none of 224 that had rested six seconds);
//! - `shutdown sessions server` cuts a running request;
//! - dynamic servers need a dynamic balance algorithm, take nothing of `default-server`, and are lost at a reload;
//! - slots of a `server-template` keep port, weight and state through a reload, given a state file, but their address only where the line
//!   has a host name and `init-addr last`: from `127.0.0.1:1` all of them come back as 127.0.0.1 with the port of their pod;
//! - what is changed between the writing of the state file and the end of the old process is lost by the reload, and answered as done;
//! - a `stats socket` takes `ssl crt …` in its line without an error and speaks plain text all the same; a `listen` section in tcp mode
//!   with `server … unix@/path` of the socket speaks TLS;
//! - no server shows who put it there, except in the name of a dynamic server.
//!
//! HAProxy does nothing by itself that other registries do: taking a server into use once its check has passed, removing it once its last
//! session has ended. So every call does that first, and a read shows what came of it.
//!
//! Slots carry nothing but an address, so they are one cluster's: all of them, by their names (which may have the cluster's in them) and by
//! the binding that says `servers: template`. So one that is in use and that nobody claims is listed as ours too, and the sweep empties it.
//!
//! Invariant: a server is listed as active only if every process that counts has it so; any doubt is shown as the more careful state.
//! Invariant: a server that is neither stamped as ours nor a slot of ours is never named in a command that changes it.
//! Absent on purpose: a drain delay (the configuration has it), reloads (their loss of dynamic servers is put back by the next read).

mod answer;
mod backend;
mod instances;
mod leaving;
mod name;
mod process;
mod runtime;
mod server;
mod slots;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, timeout_at};

use self::backend::{Backend, Told};
use self::instances::{Gathered, Instances, Reached};
use self::leaving::Leaving;
use self::server::{Owner, Phase, Server, Steps};
use self::slots::Slots;
use crate::config::{HaproxyBackend, HaproxyConfig, Servers, Services};
use crate::reconcile::OpenError;
use crate::registry::text::bounded;
use crate::registry::{
    CALL_TIMEOUT, CallError, Capabilities, Change, ChangeError, DrainKind, GoneWhen, Listed, Listing, Operation, Registry, Stamp,
    TargetKeys, Wait,
};
use crate::target::{PodUid, TargetState};

/// Each change is a line of its own in each session, so a call with more would take too long.
const BATCH: usize = 50;
/// Reads are local and cheap.
const POLL: Duration = Duration::from_secs(1);
/// How HAProxy refuses a name that a server has already.
const EXISTS: &str = "Already exists a server with the same name";
/// Of a backend that no binding of ours owns (any more), as debts may name one: its slots are not looked after. What is taken out there is
/// that of pods which have ended, or at addresses which they have lost, so no drain delay is left to be waited for.
const UNNAMED: HaproxyBackend = HaproxyBackend { servers: Servers::Dynamic, check: true, weight: None, drain: Duration::ZERO };

/// One or several HAProxy processes.
#[derive(Debug)]
pub struct Haproxy {
    cluster: Arc<str>,
    backends: ArcSwap<BTreeMap<Arc<str>, HaproxyBackend>>,
    instances: Instances,
    /// One call at a time in a backend: a call decides from what it read.
    turns: Mutex<HashMap<Arc<str>, Arc<tokio::sync::Mutex<()>>>>,
    slots: Slots,
    leaving: Leaving,
}

/// A target, as far as processes can agree on it.
type Key = (Option<SocketAddr>, String);

impl Haproxy {
    /// The registry that `config` describes; credential files are those of `credentials`. Does no I/O.
    pub fn new(config: &HaproxyConfig, registry: &Arc<str>, cluster: &Arc<str>, credentials: &Path) -> Result<Self, OpenError> {
        let instances = Instances::new(config, registry, credentials)?;
        Ok(Self {
            cluster: cluster.clone(),
            backends: ArcSwap::default(),
            instances,
            turns: Mutex::default(),
            slots: Slots::default(),
            leaving: Leaving::default(),
        })
    }

    /// The same, showing in `gauge` how many processes are counted out.
    pub fn showing(mut self, gauge: Gauge) -> Self {
        self.instances.show_in(gauge);
        self
    }

    fn backend(&self, service: &str) -> HaproxyBackend {
        self.backends.load().get(service).copied().unwrap_or(UNNAMED)
    }

    /// The share of the traffic that the target at that address is to have, where that is known.
    fn share(&self, service: &Arc<str>, config: HaproxyBackend, address: SocketAddr) -> Option<u16> {
        self.slots.share(service, address).or(config.weight)
    }

    /// Every process that counts, each looked after where none is lacking; one call at a time for a backend.
    async fn enter(
        &self,
        service: &Arc<str>,
        config: HaproxyBackend,
        deadline: Instant,
    ) -> Result<(Gathered, tokio::sync::OwnedMutexGuard<()>), CallError> {
        check_name(service)?;
        let turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner).entry(service.clone()).or_default().clone();
        let busy = |_| CallError::Unavailable("an earlier call has not ended yet".to_owned());
        let turn = timeout_at(deadline, turn.lock_owned()).await.map_err(busy)?;
        let reaching = self.instances.reach(service, &self.cluster, deadline);
        let mut gathered = timeout_at(deadline, reaching).await.map_err(|_| CallError::Timeout)??;
        if gathered.lacking.is_some() {
            return Ok((gathered, turn));
        }
        let reached = &mut gathered.reached;
        let forgetful = |one: &Reached| one.fresh && one.backend.forgets_slots();
        if config.servers == Servers::Template && reached.iter().any(forgetful) {
            tracing::warn!(
                service = &**service,
                "the slots lose their addresses at a reload, since their server-template line has no host name"
            );
        }
        self.look_after(reached, service, config).await?;
        self.instances.alike(reached, service);
        Ok((gathered, turn))
    }

    /// Makes processes agree and takes due steps; what is decided is read again.
    async fn look_after(&self, reached: &mut [Reached], service: &Arc<str>, config: HaproxyBackend) -> Result<(), CallError> {
        let agreed = agreement(reached, config);
        self.slots.keep(service, |address| agreed.contains_key(&(Some(address), String::new())));
        self.leaving.keep(service, |key| agreed.get(key).is_some_and(|agreed| agreed.phase == Phase::Leaving));
        let share = |address| self.share(service, config, address);
        let over = |server: &Server| self.leaving.is_over(service, key(server), config.drain);
        let cluster = &self.cluster;
        let looking = reached.iter_mut().map(|one| {
            let mut all = self.agree(one, &agreed, (service, config));
            all.extend(one.backend.upkeep(service, config, share, over));
            async move {
                if all.is_empty() {
                    return Ok(());
                }
                for steps in &all {
                    // What is refused here shows in what is read next.
                    let _ = take(one, steps).await?;
                }
                Instances::read_again(one, service, cluster).await
            }
        });
        join_all(looking).await.into_iter().collect()
    }

    /// Steps that bring the servers of one process to what was agreed.
    fn agree(&self, one: &Reached, agreed: &BTreeMap<Key, Agreed>, (service, config): (&Arc<str>, HaproxyBackend)) -> Vec<Steps> {
        let mut all = Vec::new();
        let given_back = |server: &Server| {
            server.owner == Owner::Slot && server.address.is_some_and(|address| self.slots.was_given_back(service, address))
        };
        let own: BTreeMap<Key, &Server> = ours(one, config).collect();
        let mut free = one.backend.free();
        for (key, wanted) in agreed {
            match own.get(key) {
                None if wanted.phase == Phase::Leaving || given_back(&wanted.server) => {}
                None => {
                    let share = key.0.and_then(|address| self.share(service, config, address));
                    all.extend(Backend::copy(service, config, (&wanted.server, share), &mut free));
                }
                // It took no part in what the others put in again, or this did not come to its end.
                Some(server)
                    if wanted.phase <= Phase::Registering
                        && (server.is_half_made() || (one.fresh && server.phase() >= Phase::Draining)) =>
                {
                    let share = server.address.and_then(|address| self.share(service, config, address));
                    all.extend(server.put_in(service, config, share, false));
                }
                Some(server) if server.phase() >= wanted.phase => {}
                Some(server) if wanted.phase == Phase::Draining => all.extend(server.drain(service)),
                Some(server) if wanted.phase == Phase::Leaving => all.extend(server.take_out(service)),
                Some(_) => {}
            }
        }
        // It kept what the others have let go while it was away, or has from its state file what was let go after that was written.
        let left = own.iter().filter(|(key, server)| given_back(server) || (one.fresh && !agreed.contains_key(*key)));
        left.for_each(|(_, server)| all.extend(server.take_out(service)));
        all
    }

    /// A slot does not say whose it is: what stands at an address is whoever's registered it last.
    fn capabilities_with(slots: bool) -> Capabilities {
        Capabilities {
            drain: DrainKind::Explicit,
            keys: if slots { TargetKeys::Address } else { TargetKeys::Exact },
            stamps: !slots,
            blocking_read: false,
            batch: NonZeroUsize::new(BATCH).expect("a batch is not empty"),
            gone_when: GoneWhen::Absent,
            poll: POLL,
        }
    }

    async fn listing(&self, service: &str, deadline: Instant) -> Result<Listing, CallError> {
        let service: Arc<str> = service.into();
        let config = self.backend(&service);
        let (Gathered { reached, lacking }, _turn) = self.enter(&service, config, deadline).await?;
        if let Some(lacking) = lacking {
            return Err(CallError::Failed(lacking));
        }
        let unfinished = reached.iter().flat_map(|one| one.backend.ours(config)).any(Server::is_underway);
        let slot = Stamp { cluster: self.cluster.clone(), uid: PodUid::new("") };
        let mut merged: BTreeMap<Key, (Listed, usize)> = BTreeMap::new();
        for server in reached.iter().flat_map(|one| &one.backend.servers) {
            let (Some(address), Some(state)) = (server.address, server.state()) else { continue };
            let stamp = match &server.owner {
                Owner::Ours(stamp) => Some(stamp.clone()),
                Owner::Slot => Some(slot.clone()).filter(|_| config.servers == Servers::Template),
                Owner::Foreign(stamp) => stamp.clone(),
            };
            let listed = Listed { address, state, stamp };
            match merged.get_mut(&key(server)) {
                Some((known, count)) => {
                    known.state = doubtful(known.state, state);
                    *count += 1;
                }
                None => drop(merged.insert(key(server), (listed, 1))),
            }
        }
        let everywhere = |(mut listed, count): (Listed, usize)| {
            if count < reached.len() && listed.state == TargetState::Active {
                listed.state = TargetState::Initial;
            }
            listed
        };
        Ok(Listing { targets: merged.into_values().map(everywhere).collect(), index: None, unfinished })
    }

    async fn changes(&self, service: &str, changes: &[Change], deadline: Instant) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        let service: Arc<str> = service.into();
        let config = self.backend(&service);
        let (Gathered { mut reached, lacking }, _turn) = self.enter(&service, config, deadline).await.map_err(nothing_left)?;
        let own = |change: &Change| self.slots.is_of(&service, change.address, &change.uid);
        let told: Vec<Told<'_>> = changes.iter().map(|change| Told { change, its_own: own(change) }).collect();
        if let Some(lacking) = lacking {
            self.instances.miss(&reached, &service);
            return Ok(change_some(&mut reached, &service, &told, &lacking).await.into_iter().map(Err).collect());
        }
        changes.iter().for_each(|change| self.remember(&reached, &service, config, change));
        let cluster = &self.cluster;
        let making = reached.iter_mut().map(|one| {
            let (service, told) = (&service, &told);
            async move {
                let mut results = Vec::with_capacity(changes.len());
                for (place, Told { change, its_own }) in told.iter().copied().enumerate() {
                    // What an earlier change did decides too, where it may concern the same server or took a slot.
                    let slots = config.servers == Servers::Template && place > 0;
                    if slots || changes[..place].iter().any(|earlier| earlier.address == change.address) {
                        Instances::read_again(one, service, cluster).await?;
                    }
                    results.push(make(one, service, (config, cluster), Told { change, its_own }).await?);
                }
                Ok::<_, CallError>(results)
            }
        });
        let made = join_all(making).await.into_iter().collect::<Result<Vec<_>, _>>();
        // Some process may have done it by now, so nothing is certain any more.
        let made = made.map_err(|error| match error {
            CallError::Unavailable(text) => CallError::Failed(text),
            other => other,
        })?;
        let results: Vec<_> = (0..changes.len()).map(|place| together(made.iter().map(|results| &results[place]))).collect();
        for (change, _) in changes.iter().zip(&results).filter(|(change, result)| change.operation == Operation::Register && result.is_ok())
        {
            self.slots.put_in(&service, change.address, &change.uid);
        }
        Ok(results)
    }

    /// Keeps what of a change HAProxy does not.
    fn remember(&self, reached: &[Reached], service: &Arc<str>, config: HaproxyBackend, change: &Change) {
        match change.operation {
            Operation::Register if config.servers == Servers::Template => {
                self.slots.taken(service, change.address, change.weight, &change.uid);
            }
            Operation::Register | Operation::Drain => {}
            Operation::Deregister => {
                if config.servers == Servers::Template {
                    self.slots.given_back(service, change.address);
                }
                let there = reached.iter().filter_map(|one| one.backend.find(change.address, &change.uid));
                if let Some(server) = there.filter(|server| server.phase() != Phase::Leaving).min_by_key(|server| server.quiet()) {
                    self.leaving.begin(service, key(server), config.drain, server.quiet());
                }
            }
        }
    }
}

impl Registry for Haproxy {
    fn bind(&self, services: Services) {
        let after = Arc::new(services.backends);
        let before = self.backends.swap(after.clone());
        let kind = |all: &BTreeMap<Arc<str>, HaproxyBackend>, service: &str| all.get(service).copied().unwrap_or(UNNAMED).servers;
        // Processes were found alike in servers of the other kind.
        self.instances.forget_alike(|service| kind(&before, service) != kind(&after, service));
        self.slots.forget_shares(|service| !after.contains_key(service));
        let used = |service: &Arc<str>, turn: &mut Arc<_>| after.contains_key(service) || Arc::strong_count(turn) > 1;
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).retain(used);
    }

    fn forget(&self) {
        self.instances.forget();
        self.slots.forget();
        self.leaving.forget();
    }

    fn capabilities(&self) -> Capabilities {
        let slots = self.backends.load().values().any(|backend| backend.servers == Servers::Template);
        Self::capabilities_with(slots)
    }

    fn capabilities_of(&self, service: &str) -> Capabilities {
        // One that no binding owns any more may have slots of ours still.
        Self::capabilities_with(self.backends.load().get(service).is_none_or(|backend| backend.servers == Servers::Template))
    }

    async fn list(&self, service: &str, _wait: Option<Wait>) -> Result<Listing, CallError> {
        self.listing(service, Instant::now() + CALL_TIMEOUT).await
    }

    async fn apply(&self, service: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.changes(service, changes, Instant::now() + CALL_TIMEOUT).await
    }

    async fn drain_delay(&self, _service: &str) -> Result<Option<Duration>, CallError> {
        Ok(None)
    }
}

/// While not all that count are reached, the others are told at once what takes traffic away, or gives back what a drain took, and no more:
/// a deregister only drains, since one that has let a target go would be given it again by one that was away meanwhile.
async fn change_some(reached: &mut [Reached], service: &str, told: &[Told<'_>], lacking: &str) -> Vec<ChangeError> {
    let all = |one: &Reached| told.iter().map(|told| one.backend.change_in_part(service, *told)).collect::<Vec<_>>();
    let begun: Vec<Vec<Vec<Steps>>> = reached.iter().map(all).collect();
    let changing = reached.iter_mut().zip(&begun).map(|(one, steps)| async move {
        for steps in steps.iter().flatten() {
            // What is refused here is refused again when all are reached.
            if take(one, steps).await.is_err() {
                return;
            }
        }
    });
    join_all(changing).await;
    let put_back = |place: usize| begun.iter().any(|steps| !steps[place].is_empty());
    let outcome = |(place, told): (usize, &Told<'_>)| match told.change.operation {
        Operation::Register if !put_back(place) => ChangeError::Refused(format!("it waits until every instance is reached: {lacking}")),
        Operation::Register | Operation::Drain | Operation::Deregister => ChangeError::Unfinished(lacking.to_owned()),
    };
    told.iter().enumerate().map(outcome).collect()
}

/// What hinders a call before its first change leaves hinders it for certain.
fn nothing_left(error: CallError) -> CallError {
    match error {
        CallError::Timeout => CallError::Unavailable("no answer in time".to_owned()),
        CallError::Failed(text) => CallError::Unavailable(text),
        other => other,
    }
}

/// What the processes that have been there all the time say of a target.
struct Agreed {
    phase: Phase,
    server: Server,
}

/// The most careful phase of each target of ours, from the processes that count as complete; from all, where none is.
fn agreement(reached: &[Reached], config: HaproxyBackend) -> BTreeMap<Key, Agreed> {
    let complete = reached.iter().any(|one| !one.fresh);
    let mut agreed: BTreeMap<Key, Agreed> = BTreeMap::new();
    for one in reached.iter().filter(|one| !complete || !one.fresh) {
        for (key, server) in ours(one, config).filter(|(_, server)| !server.is_half_made()) {
            match agreed.get_mut(&key) {
                Some(known) if known.phase >= server.phase() => {}
                Some(known) => known.phase = server.phase(),
                None => drop(agreed.insert(key, Agreed { phase: server.phase(), server: server.clone() })),
            }
        }
    }
    agreed
}

fn ours(one: &Reached, config: HaproxyBackend) -> impl Iterator<Item = (Key, &Server)> {
    one.backend.ours(config).map(|server| (key(server), server))
}

/// Slots are alike where they have one address, whatever their numbers.
fn key(server: &Server) -> Key {
    (server.address, if server.owner == Owner::Slot { String::new() } else { server.name.clone() })
}

/// What two processes say of one target, where a doubt must not pass for an acknowledgement.
fn doubtful(one: TargetState, other: TargetState) -> TargetState {
    use TargetState::{Active, Draining, Initial, Unhealthy, Unused};
    match (one, other) {
        (one, other) if one == other => one,
        (Initial, _) | (_, Initial) | (Active, Draining) | (Draining, Active) => Initial,
        (Unhealthy, _) | (_, Unhealthy) => Unhealthy,
        (Unused, _) | (_, Unused) => Unused,
        (one, _) => one,
    }
}

/// The results of one change in every process, as one.
fn together<'r>(results: impl Iterator<Item = &'r Result<(), ChangeError>>) -> Result<(), ChangeError> {
    let mut missing = true;
    for result in results {
        match result {
            Ok(()) => missing = false,
            Err(ChangeError::NotFound) => {}
            Err(error) => return Err(error.clone()),
        }
    }
    if missing { Err(ChangeError::NotFound) } else { Ok(()) }
}

/// Makes a change, from what was read; once more where that was not true any more: a process that is reached under two addresses has done
/// meanwhile what it was told at the other.
async fn make(
    one: &mut Reached,
    service: &str,
    (config, cluster): (HaproxyBackend, &str),
    told: Told<'_>,
) -> Result<Result<(), ChangeError>, CallError> {
    match try_to_make(one, service, config, told).await? {
        Err(ChangeError::Refused(text)) if text.starts_with(EXISTS) => {
            Instances::read_again(one, service, cluster).await?;
            try_to_make(one, service, config, told).await
        }
        result => Ok(result),
    }
}

async fn try_to_make(
    one: &mut Reached,
    service: &str,
    config: HaproxyBackend,
    told: Told<'_>,
) -> Result<Result<(), ChangeError>, CallError> {
    let all = match one.backend.change(service, config, told) {
        Ok(all) => all,
        Err(error) => return Ok(Err(error)),
    };
    for steps in &all {
        if let Some(error) = take(one, steps).await? {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// Takes steps; what HAProxy has against one of them, unless they were only an attempt.
async fn take(one: &mut Reached, steps: &Steps) -> Result<Option<ChangeError>, CallError> {
    for command in &steps.commands {
        let answer = one.session.ask(command).await?.concat();
        if !is_done(answer.trim()) {
            return Ok((!steps.attempt).then(|| refusal(answer.trim())));
        }
    }
    Ok(None)
}

/// Whether an answer says that the command was done. Most commands say nothing then.
fn is_done(answer: &str) -> bool {
    const DONE: [&str; 5] = ["New server registered", "Server deleted", "IP changed", "no need to change the addr", "port changed"];
    answer.is_empty() || DONE.iter().any(|done| answer.starts_with(done))
}

fn refusal(answer: &str) -> ChangeError {
    if answer.starts_with("Backend must use a dynamic load balancing") {
        let remedy = "give it one (`balance roundrobin` or `leastconn`), or slots and `servers: template`";
        return ChangeError::Refused(format!("the backend's balance algorithm takes no dynamic servers; {remedy}"));
    }
    if answer.starts_with("Health check was not configured") || answer.starts_with("Health checks are not configured") {
        return ChangeError::Refused("the slot has no check; add `check` to its server-template line, or set `check: false`".to_owned());
    }
    if answer.starts_with("Backend is using a static LB algorithm") {
        let remedy = "give it one that does (`balance roundrobin` or `leastconn`), or leave `weight` out of the binding";
        return ChangeError::Refused(format!("the backend's balance algorithm takes no weights; {remedy}"));
    }
    if answer == "No such server." {
        return ChangeError::NotFound;
    }
    ChangeError::Refused(bounded(answer))
}

/// A name goes into a command line, so it must be one word of what HAProxy takes for names.
fn check_name(service: &str) -> Result<(), CallError> {
    let fits = !service.is_empty() && service.bytes().all(|one| one.is_ascii_alphanumeric() || b"-_.:".contains(&one));
    if fits { Ok(()) } else { Err(CallError::ServiceMissing(format!("{} can be no name of a backend", bounded(service)))) }
}
