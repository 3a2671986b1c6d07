//! The managed pods as this process knows them, with the indexes that keep every step cheap.
//!
//! Lists, watches, reads and answers to our own patches all bring pods, in any order; the newest version wins.
//!
//! Invariant: an older version never replaces a newer one, and a pod that is gone does not come back by a late event.
//! Absent on purpose: I/O (`watch`, `execute`), decisions (`registration`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::clock::Instant;
use super::limits::Backoff;
use super::service::Seq;
use crate::pod::PodView;
use crate::registration::Reason;
use crate::registration::claim::Claim;
use crate::registration::observe::{Memory, Told, claims_of};
use crate::registration::plan::Notice;
use crate::target::{PodKey, PodUid, ServiceId};
use crate::traces::Way;

/// How long the UID of a pod that is gone is remembered: longer than any event is late.
const GRAVE_TIME: Duration = Duration::from_secs(600);
/// The most such UIDs: more deletions than that in ten minutes would be a cluster on fire.
const GRAVES: usize = 20_000;
/// The most pods that are mourned: one leader follows the other within seconds.
const MOURNED: usize = 1000;
/// The most bindings of the past that are remembered of one pod.
const FORMER: usize = 16;

/// The managed pods.
#[derive(Debug, Default)]
pub struct Pods {
    /// Boxed, since a node of the map keeps room for as many as it has not.
    entries: BTreeMap<PodUid, Box<Entry>>,
    by_key: BTreeMap<PodKey, PodUid>,
    /// Nearly always one.
    by_address: BTreeMap<IpAddr, Vec<PodUid>>,
    by_node: BTreeMap<Arc<str>, BTreeSet<PodUid>>,
    graves: BTreeMap<PodUid, Instant>,
    mourned: VecDeque<Mourned>,
    ungated: usize,
}

/// A pod that went away with claims while this process did not lead.
#[derive(Debug)]
pub struct Mourned {
    /// Its UID.
    pub uid: PodUid,
    /// Its name.
    pub key: PodKey,
    /// Its claims.
    pub claims: Vec<Claim>,
    since: Instant,
}

/// One managed pod.
#[derive(Debug)]
pub struct Entry {
    /// The pod.
    pub view: Arc<PodView>,
    /// Its claims.
    pub claims: Vec<Claim>,
    /// Bindings that selected it at some time.
    pub former: Vec<Arc<str>>,
    /// What no object keeps.
    pub memory: Memory,
    /// When its end was first seen by this leader.
    pub ended: Option<Seq>,
    /// When this leader first saw that it claims a target at an address that it does not have, or that another live pod has.
    pub contested: Option<Seq>,
    /// Where in the order the last read of it began that found it.
    pub confirmed: Seq,
    /// A write or a read of the pod is on its way.
    pub busy: Busy,
    /// It stands in the queue for a write.
    pub queued: bool,
    /// What is told once its write is done.
    pub tell: Option<Notice>,
    /// Back-off of its writes.
    pub backoff: Backoff,
    /// The last write failed: the pod is read before the next one.
    pub doubtful: bool,
    /// The last write met another version than it was meant for.
    pub conflicted: bool,
    /// What the last plan was for.
    pub reason: Option<Reason>,
    /// Since when it was that, and in which handshake; only where handshakes are traced.
    pub entered: Option<(jiff::Timestamp, Way)>,
    /// Services it waits for.
    pub waits: Vec<ServiceId>,
    /// Services and addresses it has a book of.
    pub booked: Vec<(ServiceId, SocketAddr)>,
    /// Claims that this process wrote and that the condition does not show yet.
    pub writing: Vec<(ServiceId, SocketAddr)>,
    /// Claims that a write takes out; whether it was taken is not known yet.
    pub dropping: Vec<(ServiceId, SocketAddr)>,
    /// Wall time at which it is looked at again.
    pub wake: Option<jiff::Timestamp>,
    /// Its exceptions that were counted.
    pub counted: Told,
    /// A list or a watch says that it is gone; only a read tells whether it is.
    pub missing: bool,
    /// It does not carry our label any more, so no watch speaks of it: when it is read next.
    pub unwatched: Option<Instant>,
}

/// What is on its way for one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Busy {
    /// Nothing.
    #[default]
    No,
    /// A write.
    Writing,
    /// A read, to see whether it is still there.
    Reading,
}

/// What a pod that was brought in changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Upserted {
    /// Pods to look at again.
    pub touched: Vec<PodUid>,
    /// A pod whose name this one has now.
    pub displaced: Option<PodUid>,
}

impl Pods {
    /// Takes a pod in; one that is older than what is known is ignored.
    pub fn upsert(&mut self, view: PodView) -> Upserted {
        if self.graves.contains_key(&view.uid) {
            return Upserted::default();
        }
        let displaced = self.by_key.get(&view.key).filter(|uid| **uid != view.uid).cloned();
        if displaced.as_ref().and_then(|uid| self.entries.get(uid)).is_some_and(|entry| is_older(&view, &entry.view)) {
            return Upserted::default();
        }
        let uid = view.uid.clone();
        let mut touched: BTreeSet<PodUid> = BTreeSet::new();
        if let Some(known) = self.entries.get(&uid) {
            if is_older(&view, &known.view) || *known.view == view {
                return Upserted::default();
            }
            touched.extend(self.neighbours(&uid));
            self.unindex(&uid);
        }
        let claims = claims_of(&view);
        let view = Arc::new(view);
        self.ungated += usize::from(!view.gated);
        match self.entries.get_mut(&uid) {
            Some(entry) => {
                self.ungated -= usize::from(!entry.view.gated);
                entry.claims = claims;
                entry.view = view;
            }
            None => {
                self.entries.insert(uid.clone(), Box::new(Entry::new(view, claims)));
            }
        }
        self.index(&uid);
        touched.extend(self.neighbours(&uid));
        touched.insert(uid);
        Upserted { touched: touched.into_iter().collect(), displaced }
    }

    /// Takes a pod out; those that may care.
    pub fn remove(&mut self, uid: &PodUid, now: Instant) -> Option<(Entry, Vec<PodUid>)> {
        let neighbours = self.neighbours(uid);
        self.unindex(uid);
        let entry = self.entries.remove(uid)?;
        self.ungated -= usize::from(!entry.view.gated);
        if self.graves.len() >= GRAVES {
            self.graves.clear();
        }
        self.graves.insert(uid.clone(), now);
        Some((*entry, neighbours))
    }

    /// Remembers a pod that went away while this process did not lead: maybe nobody did.
    pub fn mourn(&mut self, uid: &PodUid, entry: &Entry, now: Instant) {
        if entry.claims.is_empty() {
            return;
        }
        self.mourned.retain(|mourned| now.since(mourned.since) < GRAVE_TIME);
        if self.mourned.len() >= MOURNED {
            self.mourned.pop_front();
        }
        let (key, claims) = (entry.view.key.clone(), entry.claims.clone());
        self.mourned.push_back(Mourned { uid: uid.clone(), key, claims, since: now });
    }

    /// Those who went away so, and not too long ago; they are told once.
    pub fn mourned(&mut self, now: Instant) -> Vec<Mourned> {
        let mourned = std::mem::take(&mut self.mourned);
        mourned.into_iter().filter(|mourned| now.since(mourned.since) < GRAVE_TIME).collect()
    }

    /// Forgets graves that are old.
    pub fn tend(&mut self, now: Instant) {
        self.graves.retain(|_, buried| now.since(*buried) < GRAVE_TIME);
    }

    /// The pod of that UID.
    pub fn get(&self, uid: &PodUid) -> Option<&Entry> {
        self.entries.get(uid).map(Box::as_ref)
    }

    /// The pod of that UID.
    pub fn get_mut(&mut self, uid: &PodUid) -> Option<&mut Entry> {
        self.entries.get_mut(uid).map(Box::as_mut)
    }

    /// The UID of the pod of that name.
    pub fn named(&self, key: &PodKey) -> Option<&PodUid> {
        self.by_key.get(key)
    }

    /// How many there are, and how many of them without our gate.
    pub fn counts(&self) -> (usize, usize) {
        (self.entries.len(), self.ungated)
    }

    /// All pods.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &Entry)> {
        self.entries.iter().map(|(uid, entry)| (uid, &**entry))
    }

    /// All pods.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&PodUid, &mut Entry)> {
        self.entries.iter_mut().map(|(uid, entry)| (uid, &mut **entry))
    }

    /// Pods on a node.
    pub fn on_node(&self, node: &str) -> Vec<PodUid> {
        self.by_node.get(node).map(|uids| uids.iter().cloned().collect()).unwrap_or_default()
    }

    /// Pods that have the address or claim a target at it.
    pub fn at(&self, address: IpAddr) -> impl Iterator<Item = (&PodUid, &Entry)> {
        let known = |uid| self.entries.get_key_value(uid).map(|(uid, entry)| (uid, &**entry));
        self.by_address.get(&address).into_iter().flatten().filter_map(known)
    }

    /// Pods at one of the addresses that the pod has or claims, but for itself.
    pub fn neighbours(&self, uid: &PodUid) -> Vec<PodUid> {
        let Some(entry) = self.entries.get(uid) else { return Vec::new() };
        let others = entry.addresses().into_iter().filter_map(|address| self.by_address.get(&address)).flatten();
        others.filter(|other| *other != uid).cloned().collect()
    }

    fn index(&mut self, uid: &PodUid) {
        let Some(entry) = self.entries.get(uid) else { return };
        for address in entry.addresses() {
            self.by_address.entry(address).or_insert_with(|| Vec::with_capacity(1)).push(uid.clone());
        }
        if let Some(node) = &entry.view.node {
            self.by_node.entry(Arc::clone(node)).or_default().insert(uid.clone());
        }
        self.by_key.insert(entry.view.key.clone(), uid.clone());
    }

    fn unindex(&mut self, uid: &PodUid) {
        let Some(entry) = self.entries.get(uid) else { return };
        for address in entry.addresses() {
            if let Some(uids) = self.by_address.get_mut(&address) {
                uids.retain(|one| one != uid);
                if uids.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
        if let Some(node) = &entry.view.node
            && let Some(uids) = self.by_node.get_mut(node)
        {
            uids.remove(uid);
            if uids.is_empty() {
                self.by_node.remove(node);
            }
        }
        if self.by_key.get(&entry.view.key) == Some(uid) {
            self.by_key.remove(&entry.view.key);
        }
    }
}

impl Entry {
    fn new(view: Arc<PodView>, claims: Vec<Claim>) -> Self {
        Self {
            view,
            claims,
            former: Vec::new(),
            memory: Memory::default(),
            ended: None,
            contested: None,
            confirmed: Seq::default(),
            busy: Busy::No,
            queued: false,
            tell: None,
            backoff: Backoff::default(),
            doubtful: false,
            conflicted: false,
            reason: None,
            entered: None,
            waits: Vec::new(),
            booked: Vec::new(),
            writing: Vec::new(),
            dropping: Vec::new(),
            wake: None,
            counted: Told::default(),
            missing: false,
            unwatched: None,
        }
    }

    /// Forgets what only a leader knows.
    pub fn resign(&mut self) {
        self.memory.forced_since = None;
        self.memory.told = Default::default();
        self.ended = None;
        self.contested = None;
        self.busy = Busy::No;
        self.queued = false;
        self.backoff.succeed();
        self.doubtful = false;
        self.reason = None;
        self.entered = None;
        self.waits.clear();
        self.booked.clear();
        self.writing.clear();
        self.dropping.clear();
        self.wake = None;
        self.counted = Told::default();
    }

    /// Remembers that a binding selected the pod.
    pub fn remember(&mut self, binding: &Arc<str>) {
        if self.former.len() < FORMER && !self.former.contains(binding) {
            self.former.push(Arc::clone(binding));
        }
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.view.addresses.iter().copied().chain(self.claims.iter().map(|claim| claim.address.ip())).collect()
    }
}

/// Whether `version` is older than `than`; versions that are no numbers say nothing.
pub fn version_is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

fn is_older(view: &PodView, than: &PodView) -> bool {
    version_is_older(&view.resource_version, &than.resource_version)
}
