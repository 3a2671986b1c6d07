//! The last answer to a read, by address.
//!
//! Invariant: a target is told from another's at the same address by its stamp, where there are stamps.
//! Absent on purpose: whether the read counts for a target (`service`, `book`).

use std::sync::Arc;

use super::{Key, Seq};
use crate::registration::observe::Seen;
use crate::registry::{Listed, Listing};
use crate::target::{PodUid, TargetState};

/// The last answer to a read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) began: Seq,
    /// In order of address.
    listed: Vec<Listed>,
    /// Targets of pods at addresses of which no book is kept, where a pod has one place for all of its addresses; in order of pod and port.
    strays: Vec<(PodUid, u16, TargetState)>,
    pub(super) index: Option<u64>,
    pub(super) unfinished: bool,
}

impl Reading {
    pub(super) fn new(began: Seq, listing: Listing) -> Self {
        let mut listed = listing.targets;
        share_clusters(&mut listed);
        listed.sort_by_key(|one| one.address);
        listed.shrink_to_fit();
        Self { began, listed, strays: Vec::new(), index: listing.index, unfinished: listing.unfinished }
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

    /// Finds the pods whose one place is held at an address of which no book is kept.
    pub(super) fn note_strays(&mut self, has_book: impl Fn(&Key) -> bool) {
        let stamped = self.listed.iter().filter_map(|one| Some((one.stamp.as_ref()?, one)));
        let strays = stamped.filter(|(stamp, one)| !has_book(&Key { address: one.address, uid: stamp.uid.clone() }));
        self.strays = strays.map(|(stamp, one)| (stamp.uid.clone(), one.address.port(), one.state)).collect();
        self.strays.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
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
        match (found, self.stray(key).filter(|_| !observes)) {
            (Some(one), _) => Seen::Listed { state: one.state, ours: stamps && ours(&one) },
            (None, Some(state)) => Seen::Elsewhere(state),
            (None, None) => Seen::Absent,
        }
    }

    /// Whether a target that is not of our cluster stands at the target's address.
    pub(super) fn taken(&self, key: &Key, cluster: &str) -> bool {
        let foreign = |one: &Listed| one.stamp.as_ref().is_none_or(|stamp| stamp.uid != key.uid && &*stamp.cluster != cluster);
        self.at(key).iter().any(foreign)
    }

    /// The state of the target's place, where it is held at an address of which no book is kept.
    fn stray(&self, key: &Key) -> Option<TargetState> {
        let found = self.strays.binary_search_by(|(uid, port, _)| (uid, *port).cmp(&(&key.uid, key.address.port()))).ok()?;
        self.strays.get(found).map(|(_, _, state)| *state)
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::registry::Stamp;

    fn key(last: u8, uid: &str) -> Key {
        Key { address: ([10, 0, 0, last], 80).into(), uid: PodUid::new(uid) }
    }

    /// The registry holds the pod `one` at 10.0.0.1 and books are kept of some of its addresses.
    #[rstest]
    #[case::there(key(1, "one"), &[], Seen::Listed { state: TargetState::Active, ours: true })]
    #[case::at_an_address_without_a_book(key(2, "one"), &[2], Seen::Elsewhere(TargetState::Active))]
    #[case::another_claim_answers_for_it(key(2, "one"), &[1, 2], Seen::Absent)]
    #[case::another_pod(key(2, "two"), &[], Seen::Absent)]
    fn a_place_is_found_at_whatever_address(#[case] asked: Key, #[case] books: &[u8], #[case] seen: Seen) {
        let stamp = Some(Stamp { cluster: "sim".into(), uid: PodUid::new("one") });
        let listed = Listed { address: key(1, "one").address, state: TargetState::Active, stamp };
        let mut reading = Reading::new(Seq(1), Listing { targets: vec![listed], ..Listing::default() });
        reading.note_strays(|kept| books.iter().any(|last| key(*last, "one") == *kept));
        assert_eq!(reading.look(&asked, true, false), seen);
    }
}
