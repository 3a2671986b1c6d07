//! What is remembered of slots, which carry nothing but an address: the share that each is to get, which pod it was put in for, and which
//! were given back lately.
//!
//! A reload brings back the servers of the state file. What was given back after that file was written is in use again then, at an
//! address that nobody claims any more and that another pod may have by now.
//!
//! Invariant: nothing here is needed: without it a slot gets the weight that its backend's bindings agree on, else its whole one, one that
//! was drained passes its check again before it is in use, and one that a reload brought back stays in use until the sweep has found that
//! nobody claims it.
//! Invariant: of what is in no use any more, nothing is remembered for longer than [`LATELY`].
//! Absent on purpose: what HAProxy itself says (`backend`); claims, of which a driver knows nothing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::target::PodUid;

/// The time from writing a state file to the reload, and from there to the first read after it, which an audit makes at the latest.
const LATELY: Duration = Duration::from_secs(180);

/// The memory of one registry.
#[derive(Debug, Default)]
pub(super) struct Slots {
    known: Mutex<HashMap<(Arc<str>, SocketAddr), Memory>>,
}

#[derive(Clone, Debug)]
enum Memory {
    Taken {
        /// Percent of its own weight that it is to get.
        share: u16,
        /// The pod for which every process that counts has put it in.
        of: Option<PodUid>,
    },
    GivenBack(Instant),
}

impl Slots {
    /// The slot with that address is to get so many percent of its weight, and is about to be put in for that pod.
    pub(super) fn taken(&self, service: &Arc<str>, address: SocketAddr, share: u16, uid: &PodUid) {
        let of = self.is_of(service, address, uid).then(|| uid.clone());
        self.remember(service, address, Memory::Taken { share, of });
    }

    /// Every process that counts has put it in for that pod.
    pub(super) fn put_in(&self, service: &Arc<str>, address: SocketAddr, uid: &PodUid) {
        if let Some(share) = self.share(service, address) {
            self.remember(service, address, Memory::Taken { share, of: Some(uid.clone()) });
        }
    }

    /// Whether what stands at that address was put in for that pod and for no other since, as far as is known.
    pub(super) fn is_of(&self, service: &Arc<str>, address: SocketAddr, uid: &PodUid) -> bool {
        matches!(self.recall(service, address), Some(Memory::Taken { of: Some(of), .. }) if of == *uid)
    }

    /// The slot with that address is not to be used any more.
    pub(super) fn given_back(&self, service: &Arc<str>, address: SocketAddr) {
        self.remember(service, address, Memory::GivenBack(Instant::now()));
    }

    /// The share of the slot with that address, where it is known.
    pub(super) fn share(&self, service: &Arc<str>, address: SocketAddr) -> Option<u16> {
        match self.recall(service, address)? {
            Memory::Taken { share, .. } => Some(share),
            Memory::GivenBack(_) => None,
        }
    }

    /// Forgets the shares of slots that are in no use: `used` says which are.
    pub(super) fn keep(&self, service: &Arc<str>, used: impl Fn(SocketAddr) -> bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(of, address), memory| match memory {
            Memory::Taken { .. } => of != service || used(*address),
            Memory::GivenBack(at) => at.elapsed() < LATELY,
        });
    }

    /// Forgets the shares of slots in services of which that is true: nobody may read them any more.
    pub(super) fn forget_shares(&self, unbound: impl Fn(&str) -> bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(of, _), memory| matches!(memory, Memory::GivenBack(_)) || !unbound(of));
    }

    /// Forgets everything.
    pub(super) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether the slot with that address was given back lately, so that only a reload can have brought it back.
    pub(super) fn was_given_back(&self, service: &Arc<str>, address: SocketAddr) -> bool {
        matches!(self.recall(service, address), Some(Memory::GivenBack(at)) if at.elapsed() < LATELY)
    }

    fn remember(&self, service: &Arc<str>, address: SocketAddr, memory: Memory) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert((service.clone(), address), memory);
    }

    fn recall(&self, service: &Arc<str>, address: SocketAddr) -> Option<Memory> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&(service.clone(), address)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_remembered_until_it_is_long_gone() {
        let (slots, web, address) = (Slots::default(), Arc::from("web"), "10.0.0.1:80".parse().unwrap());
        let (pod, other) = (PodUid::new("u"), PodUid::new("v"));
        let seen = |slots: &Slots| (slots.share(&web, address), slots.was_given_back(&web, address));
        let of = |slots: &Slots| [&pod, &other].map(|uid| slots.is_of(&web, address, uid));
        assert_eq!(seen(&slots), (None, false));
        slots.taken(&web, address, 50, &pod);
        assert_eq!((seen(&slots), of(&slots)), ((Some(50), false), [false, false]), "it may not have been done");
        slots.put_in(&web, address, &pod);
        slots.taken(&web, address, 60, &pod);
        assert_eq!((seen(&slots), of(&slots)), ((Some(60), false), [true, false]));
        slots.taken(&web, address, 50, &other);
        assert_eq!(of(&slots), [false, false], "some process may have put it in for the other");
        slots.put_in(&web, address, &other);
        assert_eq!(of(&slots), [false, true]);
        slots.given_back(&web, address);
        assert_eq!((seen(&slots), of(&slots)), ((None, true), [false, false]));
        assert!(!slots.was_given_back(&Arc::from("other"), address), "each service has slots of its own");
        tokio::time::advance(LATELY).await;
        assert_eq!(seen(&slots), (None, false));
        slots.keep(&web, |_| true);
        assert_eq!(slots.known.lock().unwrap().len(), 0, "what is long gone is forgotten");
    }

    #[test]
    fn a_share_is_forgotten_with_its_slot() {
        let (slots, web, other) = (Slots::default(), Arc::from("web"), Arc::from("other"));
        let [stays, goes] = ["10.0.0.1:80", "10.0.0.2:80"].map(|address| address.parse().unwrap());
        for service in [&web, &other] {
            slots.taken(service, stays, 50, &PodUid::new("u"));
            slots.taken(service, goes, 50, &PodUid::new("v"));
        }
        slots.keep(&web, |address| address == stays);
        assert_eq!((slots.share(&web, stays), slots.share(&web, goes)), (Some(50), None));
        assert_eq!((slots.share(&other, stays), slots.share(&other, goes)), (Some(50), Some(50)), "each service has slots of its own");
    }
}
