//! Traces of single pods: each handshake as spans, for whoever collects OpenTelemetry. Off unless somebody asks for them.
//!
//! The id of a trace follows from the pod's UID, so the parts that several replicas tell come together, and who has the pod finds the
//! trace. The way in and the way out are traces of their own: days lie between them.
//!
//! Invariant: where nobody collects, nothing is made; where somebody does, nobody waits: what there is no room for is counted and dropped.
//! Invariant: names of spans are reasons and operations, from closed sets; what differs from pod to pod is an attribute.
//! Absent on purpose: how spans are sent (`exporter`).

pub mod exporter;

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use crate::pod::PodView;
use crate::registration::Reason;
use crate::registry::{CallError, Change, ChangeError, Operation};
use crate::target::{PodKey, PodUid, ServiceId};

/// Spans that wait to be sent: those of a thousand pods, some hundred bytes each.
const ROOM: usize = 8192;

/// Where spans go; its default takes none.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    open: Option<Open>,
}

#[derive(Clone, Debug)]
struct Open {
    spans: mpsc::Sender<Span>,
    dropped: Counter<u64, AtomicU64>,
}

/// A part of a pod's life that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose.
    pub uid: PodUid,
    /// Its name.
    pub pod: PodKey,
    /// To which of its two traces it belongs.
    pub way: Way,
    /// What it was.
    pub part: Part,
    /// When it began.
    pub begun: Timestamp,
    /// When it was over.
    pub ended: Timestamp,
    /// What was wrong with it.
    pub problem: Option<String>,
}

/// The two handshakes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Registration.
    In,
    /// Deregistration.
    Out,
}

/// What a span tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A whole handshake, and with which reason it ended.
    Whole(Reason),
    /// A state that the pod was in.
    State(Reason),
    /// One change of one target, as its registry answered it.
    Change {
        /// What was to be done.
        operation: Operation,
        /// In which service.
        service: ServiceId,
        /// With which target.
        target: SocketAddr,
    },
}

/// Changes that are on their way in one call.
#[derive(Debug)]
pub struct Batch {
    traces: Traces,
    spans: Vec<Span>,
}

impl Traces {
    /// Takes spans for the one who receives them; what there is no room for is counted in `dropped`.
    pub fn open(dropped: Counter<u64, AtomicU64>) -> (Self, mpsc::Receiver<Span>) {
        let (spans, received) = mpsc::channel(ROOM);
        (Self { open: Some(Open { spans, dropped }) }, received)
    }

    /// Whether anybody collects.
    pub fn is_on(&self) -> bool {
        self.open.is_some()
    }

    /// Tells of what is over, where anybody collects.
    pub fn tell(&self, span: impl FnOnce() -> Span) {
        if let Some(open) = &self.open
            && open.spans.try_send(span()).is_err()
        {
            open.dropped.inc();
        }
    }

    /// Notes changes that are sent now; `leaving` says whether a pod is on its way out. `None` where nobody collects.
    pub fn batch(&self, service: &ServiceId, changes: &[Change], now: Timestamp, leaving: impl Fn(&PodUid) -> bool) -> Option<Batch> {
        self.is_on().then(|| {
            let span = |change: &Change| Span {
                uid: change.uid.clone(),
                pod: change.pod.clone(),
                way: if leaving(&change.uid) { Way::Out } else { Way::In },
                part: Part::Change { operation: change.operation, service: service.clone(), target: change.address },
                begun: now,
                ended: now,
                problem: None,
            };
            Batch { traces: self.clone(), spans: changes.iter().map(span).collect() }
        })
    }
}

impl Batch {
    /// Tells what came of the changes.
    pub fn answered(self, answer: &Result<Vec<Result<(), ChangeError>>, CallError>, now: Timestamp) {
        let Self { traces, spans } = self;
        for (place, span) in spans.into_iter().enumerate() {
            let problem = match answer {
                Ok(results) => results.get(place).and_then(|result| result.as_ref().err()).map(ToString::to_string),
                Err(error) => Some(error.to_string()),
            };
            traces.tell(|| Span { ended: now, problem, ..span });
        }
    }
}

impl Span {
    /// Of a state, or of a whole handshake: they differ in their part only.
    pub fn of(uid: &PodUid, pod: &PodKey, way: Way, part: Part, begun: Timestamp, ended: Timestamp) -> Self {
        let unacknowledged = matches!(part, Part::Whole(reason) if !matches!(reason, Reason::Registered | Reason::Deregistered));
        let problem = unacknowledged.then(|| "it ended without the registry's acknowledgement".to_owned());
        Self { uid: uid.clone(), pod: pod.clone(), way, part, begun, ended, problem }
    }
}

impl Way {
    /// The one that a pod is in.
    pub fn of(pod: &PodView) -> Self {
        if pod.deletion.is_some() { Self::Out } else { Self::In }
    }

    /// The name of the whole.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::In => "registration",
            Self::Out => "deregistration",
        }
    }
}

impl Part {
    /// The name of the span.
    pub fn name(&self, way: Way) -> &'static str {
        match self {
            Self::Whole(_) => way.as_str(),
            Self::State(reason) => reason.as_str(),
            Self::Change { operation, .. } => operation.as_str(),
        }
    }
}
