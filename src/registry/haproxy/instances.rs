//! The processes behind the addresses of one registry: which of them count, and whether they agree.
//!
//! Every change must reach each process that counts. While one cannot be reached, nothing is acknowledged, until it has been away for
//! `instanceTimeout` while another could be reached: then it is counted out. When it comes back, or when a new process is seen (a reload,
//! another address behind the name), it is made like the others before it counts again. A driver that has just begun knows none of them: it
//! believes those that have run for a while, for one that was started just now may have an old state file.
//!
//! A place where several processes answer by turns is reached and lacks something all the time: what is done there is done by one of them.
//!
//! Invariant: at least one process was reached, or the call fails.
//! Invariant: an error is [`CallError::Unavailable`] only where no command reached any process.
//! Absent on purpose: what is done in a session (`super`), which commands make servers alike (`backend`).

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, timeout};

use super::answer;
use super::backend::Backend;
use super::process::{Answering, Met, Process};
use super::runtime::{OffLimits, Place, Session};
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
/// Nor does one longer than this that was away a moment ago and counts still.
const AWAY_PATIENCE: Duration = Duration::from_secs(1);
/// It may only be slow: this often one that is away is waited for as long as any other, by one call.
const AWAY_PATIENTLY: Duration = Duration::from_secs(10);
/// The same for one that was counted out, which may be gone for good.
const PROBE_PATIENTLY: Duration = Duration::from_secs(30);
/// Part of a call's time in which each of several processes must have answered; the rest is for what the others can be told.
const READING: f64 = 0.7;

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

/// What came of trying to reach all that count.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Those that were reached: one at least.
    pub(super) reached: Vec<Reached>,
    /// Why these are not all.
    pub(super) lacking: Option<String>,
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
    /// When it was asked.
    asked: Instant,
    /// Seconds since it was started.
    age: u64,
    /// Whether it misses anything is not known yet.
    strange: bool,
}

/// What came of trying to reach one.
struct Tried {
    place: Place,
    /// It was waited for less long than the others.
    hurried: bool,
    came: Result<Reached, CallError>,
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
    /// When it was last waited for in vain as long as any other.
    waited: Option<Instant>,
    out: bool,
    /// It was counted out since: in no backend it is a stranger any more.
    was_out: bool,
    /// Nor is it in these, in which it was like the others once, or missed what they were told.
    met: HashSet<Arc<str>>,
    answering: Answering,
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

    /// Every process that counts and can be reached, with the backend `service` as it is.
    pub(super) async fn reach(&self, service: &Arc<str>, cluster: &str, deadline: Instant) -> Result<Gathered, CallError> {
        let places = self.places().await;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|place, _| places.contains(place));
        let several = places.len() > 1;
        let left = deadline.saturating_duration_since(Instant::now());
        let whole = if several { left.mul_f64(READING) } else { left };
        let tried = places.into_iter().filter(|place| self.is_due(place)).map(|place| async move {
            let hurried = if several { self.hurry(&place) } else { None };
            let patience = hurried.map_or(whole, |hurried| hurried.min(whole));
            let came = self.read(&place, service, cluster, Instant::now() + patience).await;
            Tried { place, hurried: hurried.is_some(), came }
        });
        let mut gathered = self.count(join_all(tried).await, service)?;
        gathered.reached.iter_mut().for_each(|one| one.session.deadline = deadline);
        Ok(gathered)
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
            health.met.insert(service.clone());
            // Of another that was seen there meanwhile it says nothing.
            if health.answering.is(&one.process) {
                health.alike.insert(service.clone());
            }
        }
    }

    /// Knows no process any more, as a driver that has just begun.
    pub(super) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.out.set(0);
    }

    /// Says that whoever is not among these misses what they are told now. Strangers among these that have run for a while are complete.
    pub(super) fn miss(&self, reached: &[Reached], service: &Arc<str>) {
        let settled = |one: &&Reached| one.strange && one.age >= SETTLED;
        let some_complete = reached.iter().any(|one| !one.fresh || settled(&one));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, health) in known.iter_mut() {
            match reached.iter().find(|one| one.place == *place) {
                Some(one) if settled(&one) && health.answering.is(&one.process) && !health.answering.is_shared() => {
                    health.met.insert(service.clone());
                    health.alike.insert(service.clone());
                }
                Some(_) => {}
                None => {
                    health.alike.remove(service);
                    // Where nobody else is complete, it may be the one that knows best.
                    if some_complete {
                        health.met.insert(service.clone());
                    }
                }
            }
        }
    }

    /// Forgets that processes are alike in services of which that is true no more.
    pub(super) fn forget_alike(&self, changed: impl Fn(&str) -> bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values_mut().for_each(|health| health.alike.retain(|service| !changed(service)));
    }

    async fn read(&self, place: &Place, service: &str, cluster: &str, deadline: Instant) -> Result<Reached, CallError> {
        let asked = Instant::now();
        let reached = async {
            let mut session = Session::open(place, self.ca.as_ref(), deadline).await?;
            let (backend, process, age) = read(&mut session, service, cluster).await?;
            Ok(Reached { place: place.clone(), session, backend, fresh: true, process, asked, age, strange: true })
        };
        reached.await.map_err(|error| there(place, error))
    }

    /// Decides which count, from what came of trying them.
    fn count(&self, tried: Vec<Tried>, service: &Arc<str>) -> Result<Gathered, CallError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let some_reached = tried.iter().any(|one| one.came.is_ok());
        let missing_everywhere = tried.iter().all(|one| matches!(one.came, Err(CallError::ServiceMissing(_))));
        let (mut reached, mut failed, mut lacking) = (Vec::new(), None, None);
        for Tried { place, hurried, came } in tried {
            let health = known.entry(place.clone()).or_default();
            match came {
                Ok(mut one) => {
                    health.meet(&mut one, service);
                    if health.answering.is_shared() {
                        lacking.get_or_insert_with(|| shared(&place));
                    }
                    reached.push(one);
                }
                Err(error) => {
                    let away = health.away(hurried);
                    let unreachable = matches!(error, CallError::Unavailable(_) | CallError::Timeout);
                    if unreachable && some_reached && (health.out || away >= self.timeout) {
                        if !health.out {
                            tracing::warn!(target = place.show(), service = &**service, %error, "the instance is counted out");
                        }
                        (health.out, health.was_out) = (true, true);
                        continue;
                    }
                    lacking.get_or_insert_with(|| self.lacking(&place, &error));
                    failed.get_or_insert(error);
                }
            }
        }
        // Of one that was away it is known that it missed something, however long it runs.
        if reached.iter().all(|one| one.strange) {
            let believed = believed(&reached.iter().map(|one| one.age).collect::<Vec<_>>());
            reached.iter_mut().zip(believed).for_each(|(one, believed)| one.fresh = !believed);
        }
        let out = known.values().filter(|health| health.out).count();
        self.out.set(i64::try_from(out).unwrap_or(i64::MAX));
        match failed {
            _ if !reached.is_empty() => Ok(Gathered { reached, lacking }),
            // The others may send to its servers, so that one lacks them says nothing of the service as a whole.
            Some(CallError::ServiceMissing(text)) if !missing_everywhere => Err(CallError::Failed(text)),
            Some(error) => Err(error),
            None => Err(CallError::Unavailable("no instance can be reached".to_owned())),
        }
    }

    /// What is said of a process that counts and was not reached.
    fn lacking(&self, place: &Place, error: &CallError) -> String {
        match error {
            CallError::Unavailable(text) => format!("{text}; it counts until it has been away for {:?}", self.timeout),
            CallError::Timeout => format!("{}: no answer in time; it counts until it has been away for {:?}", place.show(), self.timeout),
            CallError::Throttled(text) | CallError::Denied(text) | CallError::ServiceMissing(text) | CallError::Failed(text) => {
                text.clone()
            }
        }
    }

    /// How long a process is waited for, where it is less than the others.
    fn hurry(&self, place: &Place) -> Option<Duration> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_mut(place).and_then(|health| health.hurry(Instant::now()))
    }

    /// Whether it is to be tried now: those that are out are tried now and then, or always where no other is left.
    fn is_due(&self, place: &Place) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let all_out = !known.is_empty() && known.values().all(|health| health.out);
        let waits = |health: &Health| health.out && health.probed.is_some_and(|probed| probed.elapsed() < PROBE);
        all_out || !known.get(place).is_some_and(waits)
    }

    async fn places(&self) -> Vec<Place> {
        let mut places = join_all(self.addresses.iter().map(Address::places)).await.concat();
        places.sort();
        places.dedup();
        places
    }
}

impl Health {
    /// Its process was reached.
    fn meet(&mut self, reached: &mut Reached, service: &Arc<str>) {
        if self.out {
            tracing::info!(target = reached.place.show(), service = &**service, "the instance is back");
        }
        let met = self.answering.meet(&reached.process, reached.asked);
        if met == Met::Rival && self.answering.is_news() {
            tracing::warn!(target = reached.place.show(), "several processes answer at one address; give each an address of its own");
        }
        if met != Met::Same || self.out {
            self.alike.clear();
        }
        reached.fresh = !self.alike.contains(service);
        reached.strange = !self.was_out && !self.met.contains(service);
        (self.out, self.away_since, self.probed, self.waited) = (false, None, None, None);
    }

    /// Its process was not reached; for how long now. One that was waited for in a hurry only while another call reached it was not away.
    fn away(&mut self, hurried: bool) -> Duration {
        let now = Instant::now();
        if hurried && self.away_since.is_none() {
            return Duration::ZERO;
        }
        self.probed = Some(now);
        now.duration_since(*self.away_since.get_or_insert(now))
    }

    /// How long it is waited for now, where it is less than for one that is not away.
    fn hurry(&mut self, now: Instant) -> Option<Duration> {
        let since = self.away_since?;
        let (hurried, patiently) = if self.out { (PROBE_PATIENCE, PROBE_PATIENTLY) } else { (AWAY_PATIENCE, AWAY_PATIENTLY) };
        if now.saturating_duration_since(self.waited.unwrap_or(since)) < patiently {
            return Some(hurried);
        }
        self.waited = Some(now);
        None
    }
}

impl Address {
    /// What it means now. A name that means nothing, or only what is off limits, is a place too, where nobody can be reached: it waits to be
    /// counted out as any other.
    async fn places(&self) -> Vec<Place> {
        let (host, port) = match self {
            Self::Unix(path) => return vec![Place::Unix(path.clone())],
            Self::Host(host, port) => (host, *port),
        };
        let nowhere = |forbidden| vec![Place::Nowhere(format!("{host}:{port}"), OffLimits(forbidden))];
        match timeout(LOOK_UP, look_up(host, port)).await {
            Ok(Ok(found)) => found.into_iter().map(|address| Place::Tcp(address, host.clone())).collect(),
            Ok(Err(ReachError::Forbidden(_, what))) => nowhere(Some(what)),
            Ok(Err(ReachError::Lookup(..))) | Err(_) => nowhere(None),
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
    let (process, age) = Process::of(info)?;
    Ok((Backend { servers }, process, age))
}

/// An error with the place where it came about.
fn there(place: &Place, error: CallError) -> CallError {
    let there = |text: String| format!("{}: {text}", place.show());
    match error {
        CallError::Unavailable(text) => CallError::Unavailable(there(text)),
        CallError::Throttled(text) => CallError::Throttled(there(text)),
        CallError::Denied(text) => CallError::Denied(there(text)),
        CallError::ServiceMissing(text) => CallError::ServiceMissing(there(text)),
        CallError::Timeout => CallError::Timeout,
        CallError::Failed(text) => CallError::Failed(there(text)),
    }
}

/// What is said of a place where nobody knows whom the next session meets.
fn shared(place: &Place) -> String {
    let remedy = "give each an address of its own, as the name of a headless Service does";
    format!("{}: several processes answer at this address by turns; {remedy}", place.show())
}

pub(super) fn unlike(text: &str) -> CallError {
    CallError::Failed(format!("this is not the runtime API of HAProxy: {}", bounded(text)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// One that is away holds each call up for a moment, and now and then one for as long as an answer may take.
    #[rstest]
    #[case::counts(false, AWAY_PATIENCE, AWAY_PATIENTLY)]
    #[case::out(true, PROBE_PATIENCE, PROBE_PATIENTLY)]
    #[tokio::test(start_paused = true)]
    async fn one_that_is_away_may_be_slow(#[case] out: bool, #[case] hurried: Duration, #[case] patiently: Duration) {
        let mut health = Health { out, ..Health::default() };
        assert_eq!(health.hurry(Instant::now()), None, "it was not away yet");
        health.away(false);
        for _ in 0..2 {
            assert_eq!(health.hurry(Instant::now()), Some(hurried));
            tokio::time::advance(patiently).await;
            assert_eq!(health.hurry(Instant::now()), None);
            health.away(false);
        }
    }

    /// Another call was patient, and reached it.
    #[tokio::test(start_paused = true)]
    async fn a_call_in_a_hurry_makes_nobody_away_who_was_reached_meanwhile() {
        let mut health = Health::default();
        health.away(true);
        assert_eq!((health.away_since, health.probed), (None, None));
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
