//! The last answer to a read, by address.
//!
//! Invariant: a target is told from another's at the same address by its stamp, where there are stamps.
//! Absent on purpose: whether the read counts for a target (`service`, `book`).

use std::sync::Arc;

use super::{Key, Seq};
use crate::registration::observe::Seen;
use crate::registry::{Listed, Listing};
use crate::target::TargetState;

/// The last answer to a read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) began: Seq,
    /// In order of address.
    listed: Vec<Listed>,
    pub(super) index: Option<u64>,
    pub(super) unfinished: bool,
}

impl Reading {
    pub(super) fn new(began: Seq, listing: Listing) -> Self {
        let mut listed = listing.targets;
        share_clusters(&mut listed);
        listed.sort_by_key(|one| one.address);
        listed.shrink_to_fit();
        Self { began, listed, index: listing.index, unfinished: listing.unfinished }
    }

    /// All of it.
    pub(super) fn all(&self) -> impl Iterator<Item = &Listed> {
        self.listed.iter()
    }

    /// Keeps one text of the target's UID, the one in `key`.
    pub(super) fn share(&mut self, key: &Key) {
        let from = self.listed.partition_point(|one| one.address < key.address);
        let rest = self.listed.get_mut(from..).unwrap_or_default().iter_mut().take_while(|one| one.address == key.address);
        for stamp in rest.filter_map(|one| one.stamp.as_mut()).filter(|stamp| stamp.uid == key.uid) {
            stamp.uid = key.uid.clone();
        }
    }

    /// What it says of a target. `observes`: whoever owns it counts.
    pub(super) fn look(&self, key: &Key, stamps: bool, observes: bool) -> Seen {
        let here = self.at(key);
        let ours = |one: &&Listed| one.stamp.as_ref().is_some_and(|stamp| stamp.uid == key.uid);
        let best = |state: TargetState| match state {
            TargetState::Active => 3,
            TargetState::Initial | TargetState::Unhealthy | TargetState::Unused => 2,
            TargetState::Draining => 1,
        };
        let found = if stamps && !observes { here.iter().find(ours) } else { here.iter().max_by_key(|one| best(one.state)) };
        found.map_or(Seen::Absent, |one| Seen::Listed { state: one.state, ours: stamps && ours(&one) })
    }

    /// Whether a target that is not of our cluster stands at the target's address.
    pub(super) fn taken(&self, key: &Key, cluster: &str) -> bool {
        let foreign = |one: &Listed| one.stamp.as_ref().is_none_or(|stamp| stamp.uid != key.uid && &*stamp.cluster != cluster);
        self.at(key).iter().any(foreign)
    }

    /// What stands at the target's address.
    fn at(&self, key: &Key) -> &[Listed] {
        let from = self.listed.partition_point(|one| one.address < key.address);
        let rest = self.listed.get(from..).unwrap_or_default();
        rest.get(..rest.partition_point(|one| one.address == key.address)).unwrap_or_default()
    }
}

/// Stamps of one cluster keep one text of its name.
fn share_clusters(listed: &mut [Listed]) {
    let mut last: Option<Arc<str>> = None;
    for stamp in listed.iter_mut().filter_map(|one| one.stamp.as_mut()) {
        match &last {
            Some(known) if *known == stamp.cluster => stamp.cluster = Arc::clone(known),
            _ => last = Some(Arc::clone(&stamp.cluster)),
        }
    }
}
