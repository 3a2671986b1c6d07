//! Everything that the reconciler is told, as one type.
//!
//! Invariant: an answer carries the term in which it was asked for; one of an earlier term decides nothing.
//! Absent on purpose: what is done about it (`actor`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cluster::{ApiError, NamespaceChange, NodeChange, PodEvent, Store, Stored};
use super::service::{Applied, Seq};
use crate::lease::Leadership;
use crate::metrics::pods::Ends;
use crate::pod::PodView;
use crate::registry::{CallError, Listing};
use crate::target::{PodKey, PodUid, ServiceId};

/// What the reconciler is told.
#[derive(Debug)]
pub enum Input {
    /// Part of a list of pods.
    Page(Vec<PodView>),
    /// A list of pods is complete.
    ListEnd {
        /// The version it describes.
        version: String,
        /// Every pod in it.
        uids: BTreeSet<PodUid>,
        /// The last wish for a list that had been uttered when it began.
        wish: u64,
    },
    /// What a watch of pods says.
    Pod(PodEvent),
    /// What happened to nodes.
    Node(NodeChange),
    /// What happened to namespaces.
    Namespace(NamespaceChange),
    /// The newest text of the configuration.
    Configuration(Option<Arc<str>>),
    /// This replica leads, or does not any more.
    Leadership(Leadership),
    /// The Lease was given back.
    LeaseEnded,
    /// The answer to a write to a pod; `None`: it was not sent, since the tenure had ended.
    Patched {
        /// Which term asked.
        term: u64,
        /// Of which pod.
        uid: PodUid,
        /// The handshakes that the write ends.
        ends: Ends,
        /// The answer.
        answer: Option<Result<PodView, ApiError>>,
    },
    /// The answer to a read of one pod.
    Fetched {
        /// Which pod was looked for.
        uid: PodUid,
        /// Under which name.
        key: PodKey,
        /// Where in the order the read began.
        began: Seq,
        /// The answer.
        answer: Result<Option<PodView>, ApiError>,
    },
    /// The answer to a batch of changes; `None`: it was not sent.
    Applied {
        /// Which term asked.
        term: u64,
        /// Of which service.
        service: ServiceId,
        /// The answer.
        answer: Option<Applied>,
    },
    /// The answer to a read of a service; `None`: it was not sent.
    Read {
        /// Which term asked.
        term: u64,
        /// Of which service.
        service: ServiceId,
        /// Where in the order the read began.
        began: Seq,
        /// It waited for a change.
        blocking: bool,
        /// The answer.
        answer: Option<Result<Listing, CallError>>,
    },
    /// The answer to a read of a store.
    Loaded {
        /// Which term asked; 0 where none did.
        term: u64,
        /// Which store.
        store: Store,
        /// The answer.
        answer: Result<Stored, ApiError>,
    },
    /// The answer to a write to a store; `None`: it was not sent.
    Stored {
        /// Which term asked.
        term: u64,
        /// Which store.
        store: Store,
        /// The answer.
        answer: Option<Result<Stored, ApiError>>,
    },
    /// A pod was adopted.
    Adopted {
        /// Which term did it.
        term: u64,
        /// The pod as it is now.
        pod: Box<PodView>,
    },
    /// A pod with our finalizer that lost our label and cannot get it back.
    Stray(Box<PodView>),
    /// A look for pods to adopt has ended.
    AdoptionEnded {
        /// Which term asked.
        term: u64,
        /// Everything was looked at.
        complete: bool,
    },
    /// An Event was written, or could not be.
    Told,
}

impl Input {
    /// The watch that told it, by name.
    pub fn watch(&self) -> Option<&'static str> {
        match self {
            Self::Pod(_) => Some("pods"),
            Self::Node(_) => Some("nodes"),
            Self::Namespace(_) => Some("namespaces"),
            Self::Configuration(_) => Some("configuration"),
            _ => None,
        }
    }
}
