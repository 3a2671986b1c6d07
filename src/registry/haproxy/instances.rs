//! The processes behind the addresses of one registry: which of them count, and whether they agree.
//!
//! Every change must reach each process that counts. One that cannot be reached makes calls fail, until it has been away for
//! `instanceTimeout` while another could be reached: then it is counted out. When it comes back, or when a new process is seen (a reload,
//! another address behind the name), it is made like the others before it counts again. A driver that has just begun knows none of them: it
//! believes those that have run for a while, for one that was started just now may have an old state file.
//!
//! Invariant: at least one process counts, or the call fails.
//! Invariant: an error is [`CallError::Unavailable`] only where no command reached any process.
//! Absent on purpose: what is done in a session (`super`), which commands make servers alike (`backend`).

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, timeout};

use super::answer;
use super::backend::Backend;
use super::runtime::{Place, Session};
use crate::config::{HaproxyConfig, off_limits};
use crate::reconcile::OpenError;
use crate::registry::CallError;
use crate::registry::credentials::Credential;
use crate::registry::reach::{ReachError, look_up};
use crate::registry::text::bounded;

/// A process that was counted out is tried again this often.
const PROBE: Duration = Duration::from_secs(5);
/// And holds a call up no longer than this.
const PROBE_PATIENCE: Duration = Duration::from_millis(500);

/// Seconds after which a process has been made like the others by whoever led then: an audit comes once a minute.
const SETTLED: u64 = 180;

/// A name that is not looked up by then means no address for now; shorter than a call, so that the others are still asked.
const LOOK_UP: Duration = Duration::from_secs(2);

/// The processes of one registry.
#[derive(Debug)]
pub(super) struct Instances {
    addresses: Vec<Address>,
    timeout: Duration,
    ca: Option<Credential>,
    known: Mutex<HashMap<Place, Health>>,
    out: Gauge,
}

/// A process that counts, with its backend as it was read.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) place: Place,
    pub(super) session: Session,
    pub(super) backend: Backend,
    /// It may lack what the others have: it was away, or is new.
    pub(super) fresh: bool,
    process: Process,
    /// Seconds since it was started.
    age: u64,
    /// Whether it misses anything is not known yet.
    strange: bool,
}

/// One life of a process: in a container each new one may have the id of the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Process {
    id: u64,
    /// When it was started, in seconds.
    started: u64,
}

/// One of the configuration's addresses.
#[derive(Clone, Debug)]
enum Address {
    Unix(std::path::PathBuf),
    Host(String, u16),
}

/// What is remembered of a process.
#[derive(Debug, Default)]
struct Health {
    away_since: Option<Instant>,
    probed: Option<Instant>,
    out: bool,
    /// It was like the others once, or was counted out: it is no stranger any more.
    met: bool,
    process: Process,
    /// Backends in which it has what the others have.
    alike: HashSet<Arc<str>>,
}

impl Instances {
    /// Those that `config` names. Does no I/O.
    pub(super) fn new(config: &HaproxyConfig, registry: &Arc<str>, credentials: &Path) -> Result<Self, OpenError> {
        let addresses = config.addresses.iter().map(|text| Address::parse(text, registry)).collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(OpenError::Unusable { name: registry.clone(), reason: "addresses is empty".to_owned() });
        }
        let ca = config.tls_ca.as_deref().map(|name| Credential::new(credentials, registry, name)).transpose()?;
        Ok(Self { addresses, timeout: config.instance_timeout, ca, known: Mutex::default(), out: Gauge::default() })
    }

    /// From now on `gauge` shows how many are counted out.
    pub(super) fn show_in(&mut self, gauge: Gauge) {
        self.out = gauge;
    }

    /// Every process that counts, with the backend `service` as it is.
    pub(super) async fn reach(&self, service: &Arc<str>, cluster: &str, deadline: Instant) -> Result<Vec<Reached>, CallError> {
        let places = self.places().await?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|place, _| places.contains(place));
        let tried = places.into_iter().filter(|place| self.is_due(place)).map(|place| async move {
            let patience = if self.is_out(&place) { deadline.min(Instant::now() + PROBE_PATIENCE) } else { deadline };
            let reached = self.read(&place, service, cluster, patience).await;
            (place, reached)
        });
        let mut counted = self.count(join_all(tried).await, service)?;
        counted.iter_mut().for_each(|one| one.session.deadline = deadline);
        Ok(counted)
    }

    /// Reads the backend of a process again.
    pub(super) async fn read_again(reached: &mut Reached, service: &str, cluster: &str) -> Result<(), CallError> {
        (reached.backend, _, _) = read(&mut reached.session, service, cluster).await?;
        Ok(())
    }

    /// Says that these processes have the same servers of ours in `service` now.
    pub(super) fn alike(&self, reached: &[Reached], service: &Arc<str>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for one in reached {
            let health = known.entry(one.place.clone()).or_default();
            if health.process != one.process {
                *health = Health { process: one.process, ..Health::default() };
            }
            health.met = true;
            health.alike.insert(service.clone());
        }
    }

    /// Forgets that processes are alike in services of which that is true no more.
    pub(super) fn forget_alike(&self, changed: impl Fn(&str) -> bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values_mut().for_each(|health| health.alike.retain(|service| !changed(service)));
    }

    async fn read(&self, place: &Place, service: &str, cluster: &str, deadline: Instant) -> Result<Reached, CallError> {
        let mut session = Session::open(place, self.ca.as_ref(), deadline).await?;
        let (backend, process, age) = read(&mut session, service, cluster).await?;
        Ok(Reached { place: place.clone(), session, backend, fresh: true, process, age, strange: true })
    }

    /// Decides which count, from what came of trying them.
    fn count(&self, tried: Vec<(Place, Result<Reached, CallError>)>, service: &Arc<str>) -> Result<Vec<Reached>, CallError> {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let some_reached = tried.iter().any(|(_, reached)| reached.is_ok());
        let missing_everywhere = tried.iter().all(|(_, reached)| matches!(reached, Err(CallError::ServiceMissing(_))));
        let (mut counted, mut failed) = (Vec::new(), None);
        for (place, reached) in tried {
            let health = known.entry(place.clone()).or_default();
            match reached {
                Ok(mut reached) => {
                    if health.out {
                        tracing::info!(target = place.show(), service = &**service, "the instance is back");
                    }
                    let same = health.process == reached.process && !health.out;
                    reached.fresh = !same || !health.alike.contains(service);
                    reached.strange = !health.met;
                    let alike = if same { std::mem::take(&mut health.alike) } else { HashSet::new() };
                    *health = Health { process: reached.process, alike, met: health.met, ..Health::default() };
                    counted.push(reached);
                }
                Err(error) => {
                    let away = now.duration_since(*health.away_since.get_or_insert(now));
                    health.probed = Some(now);
                    let unreachable = matches!(error, CallError::Unavailable(_) | CallError::Timeout);
                    if unreachable && some_reached && (health.out || away >= self.timeout) {
                        if !health.out {
                            tracing::warn!(target = place.show(), service = &**service, %error, "the instance is counted out");
                        }
                        (health.out, health.met) = (true, true);
                    } else {
                        failed.get_or_insert_with(|| match error {
                            // The others may send to its servers, so that it lacks them says nothing of the service as a whole.
                            CallError::ServiceMissing(text) if !missing_everywhere => {
                                CallError::Failed(format!("{}: {text}", place.show()))
                            }
                            error => error,
                        });
                    }
                }
            }
        }
        // Of one that was away it is known that it missed something, however long it runs.
        if counted.iter().all(|one| one.strange) {
            let believed = believed(&counted.iter().map(|one| one.age).collect::<Vec<_>>());
            counted.iter_mut().zip(believed).for_each(|(one, believed)| one.fresh = !believed);
        }
        let out = known.values().filter(|health| health.out).count();
        self.out.set(i64::try_from(out).unwrap_or(i64::MAX));
        match failed {
            Some(error) => Err(error),
            None if counted.is_empty() => Err(CallError::Unavailable("no instance can be reached".to_owned())),
            None => Ok(counted),
        }
    }

    fn is_out(&self, place: &Place) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(place).is_some_and(|health| health.out)
    }

    /// Whether it is to be tried now: those that are out are tried now and then, or always where no other is left.
    fn is_due(&self, place: &Place) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let all_out = !known.is_empty() && known.values().all(|health| health.out);
        let waits = |health: &Health| health.out && health.probed.is_some_and(|probed| probed.elapsed() < PROBE);
        all_out || !known.get(place).is_some_and(waits)
    }

    async fn places(&self) -> Result<Vec<Place>, CallError> {
        let mut places = try_join_all(self.addresses.iter().map(Address::places)).await?.concat();
        places.sort();
        places.dedup();
        Ok(places)
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        // Of a registry that is no more, nothing is out.
        self.out.set(0);
    }
}

impl Address {
    /// What it means now. A name that means nothing is a place too, where nobody can be reached: it waits to be counted out as any other.
    async fn places(&self) -> Result<Vec<Place>, CallError> {
        let (host, port) = match self {
            Self::Unix(path) => return Ok(vec![Place::Unix(path.clone())]),
            Self::Host(host, port) => (host, *port),
        };
        match timeout(LOOK_UP, look_up(host, port)).await {
            Ok(Ok(found)) => Ok(found.into_iter().map(|address| Place::Tcp(address, host.clone())).collect()),
            Ok(Err(error @ ReachError::Forbidden(..))) => Err(CallError::Unavailable(bounded(&error.to_string()))),
            Ok(Err(ReachError::Lookup(..))) | Err(_) => Ok(vec![Place::Nowhere(format!("{host}:{port}"))]),
        }
    }

    fn parse(text: &str, registry: &Arc<str>) -> Result<Self, OpenError> {
        let unusable = |reason: &str| OpenError::Unusable { name: registry.clone(), reason: format!("{}: {reason}", bounded(text)) };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(unusable("write unix:/path")) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| unusable("write host:port or unix:/path"))?;
        let port = port.parse().map_err(|_| unusable("its port is none"))?;
        let host = host.trim_matches(['[', ']']);
        if let Some(what) = host.parse().ok().and_then(off_limits) {
            return Err(unusable(&format!("this is {what}; nothing is sent there")));
        }
        Ok(Self::Host(host.to_owned(), port))
    }
}

/// Which of several unknown processes are believed, from how long each runs: those that have run for a while, where others have not.
fn believed(ages: &[u64]) -> Vec<bool> {
    let some_young = ages.iter().any(|age| *age < SETTLED);
    ages.iter().map(|age| some_young && *age >= SETTLED).collect()
}

/// The backend, the process, and how long it runs.
async fn read(session: &mut Session, service: &str, cluster: &str) -> Result<(Backend, Process, u64), CallError> {
    let answers = session.ask(&format!("show stat {service} 4 -1; show servers state {service}; show info")).await?;
    let [stat, state, info] = &answers[..] else { return Err(unlike(&answers.concat())) };
    if stat.trim() == "No such proxy." || state.trim().starts_with("Can't find backend") {
        return Err(CallError::ServiceMissing(format!("there is no backend {}", bounded(service))));
    }
    let servers = answer::servers(stat, state, cluster).ok_or_else(|| unlike(stat))?;
    let (process, age) = process(info)?;
    Ok((Backend { servers }, process, age))
}

/// The process that answers to `show info`, and how long it runs. One that is about to end has nothing to say any more: what it acknowledges, its
/// successor may not have.
fn process(info: &str) -> Result<(Process, u64), CallError> {
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse::<u64>().ok());
    if value("Stopping").is_some_and(|stopping| stopping != 0) {
        return Err(CallError::Unavailable("the process is ending; its successor answers next".to_owned()));
    }
    let id = value("Pid").ok_or_else(|| unlike(info))?;
    Ok((Process { id, started: value("Start_time_sec").unwrap_or_default() }, value("Uptime_sec").unwrap_or_default()))
}

fn unlike(text: &str) -> CallError {
    CallError::Failed(format!("this is not the runtime API of HAProxy: {}", bounded(text)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::runs("Name: HAProxy\nPid: 1\nUptime_sec: 5\nStopping: 0\nStart_time_sec: 1700\n", Ok((1, 1700, 5)))]
    #[case::another_with_its_id("Pid: 1\nUptime_sec: 5\nStart_time_sec: 1800\n", Ok((1, 1800, 5)))]
    #[case::of_another_version("Pid: 17\n", Ok((17, 0, 0)))]
    #[case::ends("Pid: 17\nUptime_sec: 5\nStopping: 1\nStart_time_sec: 1700\n", Err(true))]
    #[case::is_none("Name: other\n", Err(false))]
    fn a_process_is_known_by_its_start(#[case] info: &str, #[case] expected: Result<(u64, u64, u64), bool>) {
        let read = process(info).map(|(process, age)| (process.id, process.started, age));
        assert_eq!(read.map_err(|error| matches!(error, CallError::Unavailable(_))), expected);
    }

    #[rstest]
    #[case::all_have_run(&[9000, 8000], &[false, false])]
    #[case::in_the_middle_of_a_reload(&[9000, 3], &[true, false])]
    #[case::all_were_just_started(&[2, 3], &[false, false])]
    #[case::alone(&[9000], &[false])]
    fn one_that_may_have_an_old_state_is_not_believed_where_nothing_is_known(#[case] ages: &[u64], #[case] expected: &[bool]) {
        assert_eq!(believed(ages), expected);
    }
}
