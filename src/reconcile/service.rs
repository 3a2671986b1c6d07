//! One service of one registry: what was sent, what was answered, what the last read showed.
//!
//! Whether an answer may be believed depends on the order of requests and answers, so that order is kept here, as numbers and not as times.
//!
//! Invariant: a read counts for a target only if it began after our last change to that target was settled; one batch is under way at a time.
//! Absent on purpose: I/O (`calls`), what should be sent (`registration`), debts and orphans (`debts`, `sweep`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::budget::Budget;
use super::clock::Instant;
use super::limits::{Backoff, Request};
use crate::registration::observe::{Doing, Facts, Outcome, Traits};
use crate::registry::{CallError, Capabilities, Change, ChangeError, DrainKind, Listed, Operation, TargetKeys};
use crate::target::{PodUid, ServiceId, TargetState};

mod book;
mod complaint;
mod reading;
mod reads;

use book::Book;
pub use book::{Entry, Owner};
use complaint::Complaint;
use reading::Reading;

/// Changes of one service are gathered this long, so that pods that become ready together are one call.
pub const GATHER: Duration = Duration::from_millis(5);
/// Failures in a row until they are shown to people: one is noise.
pub const SHOWN_AFTER: u32 = 2;
/// Position in the order of all requests and answers of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seq(pub u64);

/// One endpoint of one pod within a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Address and port.
    pub address: SocketAddr,
    /// The pod.
    pub uid: PodUid,
}

/// One service of one registry.
#[derive(Debug)]
pub struct Service {
    /// Which.
    pub id: ServiceId,
    /// What its registry can do; `None` where there is no client.
    pub traits: Option<Traits>,
    /// Its drain budget.
    pub budget: Budget,
    /// Pods that wait for a read.
    pub waiting: BTreeSet<PodUid>,
    /// Back-off of reads.
    pub list_backoff: Backoff,
    /// Back-off of changes.
    pub apply_backoff: Backoff,
    /// Targets that nobody owns, and in how many audits they were seen.
    pub orphans: BTreeMap<Key, u8>,
    audit_due: Instant,
    audit_open: bool,
    /// Boxed, since a node of the map keeps room for as many as it has not.
    books: BTreeMap<Key, Box<Book>>,
    queued: BTreeSet<Key>,
    sent: Option<Vec<(Key, Operation)>>,
    reading: Option<Reading>,
    /// A read that is on its way, and where in the order it began.
    listing: Option<Seq>,
    blocking: Option<Seq>,
    /// A read that waited for a change was answered while that read was on its way: it may say what is newer.
    overtaken: bool,
    read_needed: bool,
    complaint: Option<Complaint>,
    last_read: Option<Instant>,
}

/// What is due for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A batch of changes, from then on.
    Apply(Instant),
    /// A read, from then on.
    Read(Instant),
}

impl Due {
    /// From when on.
    pub fn at(self) -> Instant {
        match self {
            Self::Apply(at) | Self::Read(at) => at,
        }
    }

    /// What the request does.
    pub fn request(self) -> Request {
        match self {
            Self::Apply(_) => Request::Change,
            Self::Read(_) => Request::Read,
        }
    }
}

/// The answer to a batch.
pub type Applied = Result<Vec<Result<(), ChangeError>>, CallError>;

impl Service {
    /// A service of which nothing is known.
    pub fn new(id: ServiceId) -> Self {
        Self {
            id,
            traits: None,
            budget: Budget::default(),
            waiting: BTreeSet::new(),
            list_backoff: Backoff::default(),
            apply_backoff: Backoff::default(),
            orphans: BTreeMap::new(),
            audit_due: Instant::default(),
            audit_open: false,
            books: BTreeMap::new(),
            queued: BTreeSet::new(),
            sent: None,
            reading: None,
            listing: None,
            blocking: None,
            overtaken: false,
            read_needed: true,
            complaint: None,
            last_read: None,
        }
    }

    /// Keeps book of a target from now on.
    pub fn keep_book(&mut self, key: &Key, entry: &Entry<'_>) {
        match self.books.get_mut(key) {
            Some(book) => {
                book.observes = entry.observes;
                book.owner = entry.owner;
            }
            None => {
                let mut book = Book::new(entry);
                book.settled = book.settled.max(self.place_settled(key));
                self.books.insert(key.clone(), Box::new(book));
            }
        }
    }

    /// Whether there is a book of the target.
    pub fn has_book(&self, key: &Key) -> bool {
        self.books.contains_key(key)
    }

    /// Forgets a target that nobody claims any more. A change on its way is answered to nobody.
    pub fn close_book(&mut self, key: &Key) {
        self.books.remove(key);
        self.queued.remove(key);
        self.budget.forget(key);
    }

    /// Forgets a target that was nobody's; its book may be a pod's or a debt's by now.
    pub fn close_orphan(&mut self, key: &Key) {
        if self.books.get(key).is_some_and(|book| book.owner == Owner::Orphan) {
            self.close_book(key);
        }
    }

    /// What is known of a target, but for what other pods say of it. `ended`: when the end of its pod was first seen.
    pub fn facts(&self, key: &Key, ended: Option<Seq>, cluster: &str) -> Facts {
        let traits = self.traits;
        let unknown = Facts {
            traits,
            service_read: self.reading.is_some(),
            trouble: self.complaint(key).map(|complaint| complaint.trouble),
            ..Facts::default()
        };
        let Some(book) = self.books.get(key) else { return unknown };
        let stamps = traits.is_some_and(|traits| traits.stamps);
        let after_end = |seq: Seq| ended.is_none_or(|ended| seq > ended);
        let reading = self.reading.as_ref().filter(|reading| reading.began > book.settled);
        let by_address = traits.is_some_and(|traits| traits.keys == TargetKeys::Address);
        Facts {
            doing: self.shared_doing(key).unwrap_or(book.doing),
            last: book.last.map(|(operation, outcome, _)| (operation, outcome)),
            last_fresh: book.last.is_some_and(|(_, _, seq)| after_end(seq)),
            seen: reading.map(|reading| reading.look(key, stamps, book.observes)),
            seen_fresh: reading.is_some_and(|reading| after_end(reading.began)),
            taken: stamps && by_address && !book.observes && self.reading.as_ref().is_some_and(|reading| reading.taken(key, cluster)),
            owned: book.owned,
            fresh_claim: book.fresh_claim,
            granted: self.budget.granted(key),
            ..unknown
        }
    }

    /// What the registry itself says of what keeps failing for a target; as long as little changes, the same.
    pub fn words(&self, key: &Key) -> Option<Arc<str>> {
        self.complaint(key)?.words.clone()
    }

    fn complaint(&self, key: &Key) -> Option<&Complaint> {
        self.books.get(key).and_then(|book| book.complaint.as_ref()).or(self.complaint.as_ref())
    }

    /// The entries that the last read showed, with where in the order it began.
    pub fn last_listing(&self) -> Option<(Seq, impl Iterator<Item = &Listed>)> {
        self.reading.as_ref().map(|reading| (reading.began, reading.all()))
    }

    /// Queues a change; one of the same target that has not left is replaced.
    pub fn enqueue(&mut self, key: &Key, operation: Operation, weight: u16, now: Instant) {
        if let Some(book) = self.books.get_mut(key)
            && !matches!(book.doing, Doing::Sent(_))
        {
            if book.doing == Doing::Nothing {
                book.queued_at = now;
            }
            book.doing = Doing::Queued(operation);
            book.weight = weight;
            self.queued.insert(key.clone());
        }
    }

    /// Takes a change that has not left out of the queue.
    pub fn withdraw(&mut self, key: &Key) {
        if let Some(book) = self.books.get_mut(key)
            && matches!(book.doing, Doing::Queued(_))
        {
            book.doing = Doing::Nothing;
            self.queued.remove(key);
        }
    }

    /// Whether a change of ours keeps the target out of use, as far as is known: its drain is outstanding, whatever its pod does meanwhile.
    pub fn may_be_out(&self, key: &Key) -> bool {
        self.books.get(key).is_some_and(|book| book.may_be_out())
    }

    /// Takes back leave of the budget that there is no room for any more and that nothing was sent by; the pods it concerns.
    pub fn take_back_leave(&mut self, panic_threshold: u8) -> Vec<PodUid> {
        let books = &self.books;
        let back = self.budget.take_back(panic_threshold, |key| books.get(key).is_some_and(|book| book.may_be_out()));
        for key in &back {
            self.withdraw(key);
        }
        back.into_iter().map(|key| key.uid).collect()
    }

    /// Queued changes of targets without a pod.
    pub fn queued_without_pod(&self) -> Vec<(Key, Owner)> {
        let owner = |key: &Key| self.books.get(key).map(|book| book.owner).filter(|owner| *owner != Owner::Pod);
        self.queued.iter().filter_map(|key| Some((key.clone(), owner(key)?))).collect()
    }

    /// The service must be read, at once; a read that is on its way will do.
    pub fn need_read(&mut self) {
        self.read_needed |= self.listing.is_none();
    }

    /// What is due, and when.
    pub fn due(&self, capabilities: &Capabilities) -> [Option<Due>; 2] {
        [self.apply_due().map(Due::Apply), self.read_due(capabilities).map(Due::Read)]
    }

    /// The batch that is due, marked as sent: what frees a place first, what needs one last, and one change of a slot.
    pub fn batch(&mut self, now: Instant, capabilities: &Capabilities, cluster: &Arc<str>) -> Vec<Change> {
        let mut ready: Vec<(u8, Key, Operation)> = self
            .queued
            .iter()
            .filter_map(|key| {
                let book = self.books.get(key)?;
                let Doing::Queued(operation) = book.doing else { return None };
                (book.not_before(operation) <= now).then(|| (order(operation), key.clone(), operation))
            })
            .collect();
        ready.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        let mut slots = BTreeSet::new();
        let mut sent = Vec::new();
        let mut changes = Vec::new();
        for (_, key, operation) in ready {
            if changes.len() >= capabilities.batch.get() {
                break;
            }
            let Some(book) = self.books.get_mut(&key) else { continue };
            if !slots.insert(slot(&key, capabilities.keys)) {
                continue;
            }
            book.doing = Doing::Sent(operation);
            self.queued.remove(&key);
            changes.push(Change {
                operation,
                address: key.address,
                uid: key.uid.clone(),
                pod: book.pod.clone(),
                cluster: Arc::clone(cluster),
                weight: book.weight,
            });
            sent.push((key, operation));
        }
        if !sent.is_empty() {
            self.sent = Some(sent);
        }
        changes
    }

    /// Whether the last change of the target that was answered was this one, and it was done.
    pub fn has_done(&self, key: &Key, operation: Operation) -> bool {
        self.books.get(key).and_then(|book| book.last).is_some_and(|(last, outcome, _)| last == operation && outcome == Outcome::Accepted)
    }

    /// Takes the answer to the batch, `None` where it was not sent after all; the pods it concerns.
    pub fn applied(&mut self, answer: Option<&Applied>, seq: Seq, now: Instant, jitter: f64) -> Vec<PodUid> {
        let sent = self.sent.take().unwrap_or_default();
        match answer {
            None => {}
            Some(Ok(_)) => self.apply_backoff.succeed(),
            Some(Err(_)) => self.apply_backoff.fail(now, jitter),
        }
        self.read_needed |= !matches!(answer, None | Some(Err(CallError::Unavailable(_))));
        let shown = match answer {
            Some(Err(error)) if self.apply_backoff.failures() >= SHOWN_AFTER => Some(Complaint::of_call(error, now)),
            _ => None,
        };
        let mut concerned = Vec::with_capacity(sent.len());
        for (index, (key, operation)) in sent.into_iter().enumerate() {
            let Some(book) = self.books.get_mut(&key) else { continue };
            book.doing = Doing::Nothing;
            // No plan asks for it again; the next read does.
            self.read_needed |= book.owner != Owner::Pod;
            match answer {
                None => {}
                Some(Err(error)) => book.call_failed(operation, error, seq, shown.clone()),
                Some(Ok(results)) => match results.get(index) {
                    Some(Ok(())) => book.accepted(operation, seq, now),
                    Some(Err(error)) => book.refused(operation, error, seq, now, jitter),
                    None => book.note(operation, Outcome::Unknown, seq),
                },
            }
            if let Some((operation, outcome, _)) = book.last.filter(|(_, _, at)| *at == seq) {
                self.share_slot(&key, operation, outcome, seq);
                self.share_place(&key, seq);
            }
            concerned.push(key.uid);
        }
        concerned
    }

    /// Notes a change in the books of the pod's other addresses, where a registry has one place for all of them: to those a register is
    /// the end of what stood there.
    fn share_slot(&mut self, key: &Key, operation: Operation, outcome: Outcome, seq: Seq) {
        if !self.one_place_a_pod() || outcome == Outcome::Refused || (operation, outcome) == (Operation::Register, Outcome::NotFound) {
            return;
        }
        let operation = if operation == Operation::Register { Operation::Deregister } else { operation };
        let others = self.books.iter_mut().filter(|(other, _)| *other != key && is_one_place(other, key));
        others.for_each(|(_, book)| book.note(operation, outcome, seq));
    }

    /// Where an address is one place, whoever is there, a change of one owner is the last of every owner: no read before it says what stands
    /// there now.
    fn share_place(&mut self, key: &Key, seq: Seq) {
        if self.one_place_an_address() {
            let others = self.books.range_mut(first_at(key.address)..).take_while(|(other, _)| other.address == key.address);
            others.for_each(|(_, book)| book.settled = book.settled.max(seq));
        }
    }

    /// When the last change of the target's place was settled that another owner of it sent.
    fn place_settled(&self, key: &Key) -> Seq {
        let others = self.books.range(first_at(key.address)..).take_while(|(other, _)| other.address == key.address);
        let last = others.map(|(_, book)| book.settled).max().filter(|_| self.one_place_an_address());
        last.unwrap_or_default()
    }

    /// The change that is under way of the target's place, where it has that in common with the pod's other addresses.
    fn shared_doing(&self, key: &Key) -> Option<Doing> {
        let sent = self.sent.iter().flatten().find(|(sent, _)| is_one_place(sent, key)).filter(|_| self.one_place_a_pod())?;
        Some(Doing::Sent(sent.1))
    }

    /// Whether a change of the target's place is under way, whoever sent it.
    fn is_changing(&self, key: &Key) -> bool {
        let keys = self.traits.map_or(TargetKeys::Exact, |traits| traits.keys);
        let place = slot(key, keys);
        self.sent.iter().flatten().any(|(sent, _)| slot(sent, keys) == place)
    }

    fn one_place_a_pod(&self) -> bool {
        self.traits.is_some_and(|traits| traits.keys == TargetKeys::Uid)
    }

    fn one_place_an_address(&self) -> bool {
        self.traits.is_some_and(|traits| traits.keys == TargetKeys::Address)
    }

    /// Whether the last read that counts for the target shows its place held: by its stamp where there are stamps, else by its address, as
    /// for one that is only observed.
    pub fn shows(&self, key: &Key, observes: bool) -> Option<(Seq, Option<TargetState>)> {
        if self.is_changing(key) {
            return None;
        }
        let settled = self.books.get(key).map_or(Seq::default(), |book| book.settled);
        let reading = self.reading.as_ref().filter(|reading| reading.began > settled)?;
        Some((reading.began, reading.look(key, self.stamps(), observes).held()))
    }

    /// The change that takes out a target without a pod, where one is needed and none is on its way.
    pub fn still_to_take_out(&self, key: &Key) -> Option<Operation> {
        let book = self.books.get(key)?;
        let (_, state) = self.shows(key, false)?;
        let traits = self.traits?;
        let on_its_way = state == Some(TargetState::Draining) && traits.drain == DrainKind::ByDeregistering;
        (state.is_some() && !on_its_way && book.doing == Doing::Nothing).then_some(Operation::Deregister)
    }

    /// The pace of changes after trouble is over.
    pub fn recover(&mut self) {
        self.apply_backoff.succeed();
        self.list_backoff.succeed();
    }

    fn stamps(&self) -> bool {
        self.traits.is_some_and(|traits| traits.stamps)
    }

    fn apply_due(&self) -> Option<Instant> {
        if self.sent.is_some() {
            return None;
        }
        let first = self
            .queued
            .iter()
            .filter_map(|key| self.books.get(key))
            .filter_map(|book| match book.doing {
                Doing::Queued(operation) => Some(book.not_before(operation).max(book.queued_at.after(GATHER))),
                Doing::Nothing | Doing::Sent(_) => None,
            })
            .min()?;
        Some(first.max(self.apply_backoff.until()))
    }
}

/// What frees a place is not queued behind what needs one.
fn order(operation: Operation) -> u8 {
    match operation {
        Operation::Deregister => 0,
        Operation::Drain => 1,
        Operation::Register => 2,
    }
}

/// Whether two targets have one place in a registry that tells targets by pod and port.
fn is_one_place(one: &Key, other: &Key) -> bool {
    one.uid == other.uid && one.address.port() == other.address.port()
}

/// Where the targets at an address begin in the order of keys.
fn first_at(address: SocketAddr) -> Key {
    Key { address, uid: PodUid::new("") }
}

/// The place of a target, as the registry tells places apart: two changes of one request must not both name one.
fn slot(key: &Key, keys: TargetKeys) -> (Option<PodUid>, Option<SocketAddr>, u16) {
    match keys {
        TargetKeys::Exact => (Some(key.uid.clone()), Some(key.address), key.address.port()),
        TargetKeys::Uid => (Some(key.uid.clone()), None, key.address.port()),
        TargetKeys::Address => (None, Some(key.address), key.address.port()),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use rstest::rstest;

    use super::*;
    use crate::registry::GoneWhen;
    use crate::target::PodKey;

    #[rstest]
    #[case::accepted(Some(Ok(vec![Ok(())])), true)]
    #[case::not_there(Some(Ok(vec![Err(ChangeError::NotFound)])), false)]
    #[case::no_answer(Some(Err(CallError::Timeout)), false)]
    #[case::not_sent(None, false)]
    fn only_what_was_accepted_is_done(#[case] answer: Option<Applied>, #[case] done: bool) {
        let capabilities = Capabilities {
            drain: DrainKind::Explicit,
            keys: TargetKeys::Exact,
            stamps: true,
            blocking_read: true,
            batch: NonZeroUsize::MIN,
            gone_when: GoneWhen::Absent,
            poll: Duration::from_secs(1),
        };
        let mut service = Service::new(ServiceId::new("lan", "web"));
        let key = Key { address: ([10, 0, 0, 1], 80).into(), uid: PodUid::new("uid-1") };
        let pod = PodKey::new("shop", "web-1");
        let entry = Entry { pod: &pod, owner: Owner::Pod, seq: Seq(0), observes: false, fresh: true, owned: true };
        service.keep_book(&key, &entry);
        service.enqueue(&key, Operation::Drain, 100, Instant::default());
        assert_eq!(service.batch(Instant::default(), &capabilities, &"blue".into()).len(), 1);
        service.applied(answer.as_ref(), Seq(1), Instant::default(), 0.5);
        assert_eq!([Operation::Drain, Operation::Deregister].map(|operation| service.has_done(&key, operation)), [done, false]);
    }
}
