//! Sending traces to a collector, by OTLP over HTTP.
//!
//! Facts: a collector takes spans at `/v1/traces`; the id of a trace has 16 bytes, that of a span 8, and neither is all zero
//! (<https://opentelemetry.io/docs/specs/otlp/>, <https://www.w3.org/TR/trace-context/#trace-id>). The UID of a pod is a UUID: 16 bytes.
//!
//! Invariant: whatever the collector does, memory is bounded and the reconciler does not notice; what could not be sent is counted and lost.
//! Absent on purpose: sampling (the collector does that), logs and metrics by OTLP.

use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Part, Span, Way};
use crate::metrics::reconcile::OutcomeLabel;
use crate::target::PodUid;

/// Spans in one request: some hundred KiB.
const BATCH: usize = 512;
/// So long the first span of a request waits for others.
const PATIENCE: Duration = Duration::from_secs(2);
/// A request that takes longer is given up.
const LIMIT: Duration = Duration::from_secs(5);
/// Path of a collector.
const PATH: &str = "v1/traces";

/// Spans that came too fast.
pub const DROPPED: OutcomeLabel = OutcomeLabel { outcome: "dropped" };
const SENT: OutcomeLabel = OutcomeLabel { outcome: "sent" };
const REFUSED: OutcomeLabel = OutcomeLabel { outcome: "refused" };

/// Spans by what became of them.
type Outcomes = Family<OutcomeLabel, Counter>;

/// Sends spans to one collector.
#[derive(Debug)]
pub struct Exporter {
    client: SpanExporter,
    outcomes: Outcomes,
    failing: bool,
}

/// An exporter at work; nothing at all where none is.
#[derive(Debug, Default)]
pub struct Exporting(Option<JoinHandle<()>>);

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The address is none.
    #[error(
        "traces cannot be sent to {0:?}: write the address of a collector of OTLP over HTTP, as in http://collector.observability:4318"
    )]
    Address(String),
    /// There is no client for it.
    #[error("there is no client for traces")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Exporter {
    /// One for the collector at that URL, which hears that `identity` speaks. Does no I/O.
    pub fn new(collector: &str, identity: &str, outcomes: Outcomes) -> Result<Self, TraceError> {
        let address = || TraceError::Address(collector.to_owned());
        let mut url: reqwest::Url = collector.parse().map_err(|_| address())?;
        if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
            return Err(address());
        }
        url.path_segments_mut().map_err(|()| address())?.pop_if_empty().extend(PATH.split('/'));
        let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).timeout(LIMIT).build();
        let http = http.map_err(|error| TraceError::Client(error.into()))?;
        let builder = SpanExporter::builder().with_http().with_http_client(http).with_endpoint(url.as_str()).with_timeout(LIMIT);
        let mut client = builder.build().map_err(|error| TraceError::Client(error.into()))?;
        client.set_resource(&resource(identity));
        Ok(Self { client, outcomes, failing: false })
    }

    /// Sends what comes, until nobody can tell any more.
    pub fn start(mut self, mut spans: mpsc::Receiver<Span>) -> Exporting {
        Exporting(Some(tokio::spawn(async move {
            let mut batch = Vec::with_capacity(BATCH);
            while spans.recv_many(&mut batch, BATCH).await > 0 {
                let until = Instant::now() + PATIENCE;
                while batch.len() < BATCH {
                    let room = BATCH - batch.len();
                    let Ok(1..) = timeout_at(until, spans.recv_many(&mut batch, room)).await else { break };
                }
                self.send(&mut batch).await;
            }
        })))
    }

    async fn send(&mut self, batch: &mut Vec<Span>) {
        let spans: Vec<SpanData> = batch.drain(..).map(data).collect();
        let number = spans.len() as u64;
        let sent = self.client.export(spans).await;
        self.outcomes.get_or_create(if sent.is_ok() { &SENT } else { &REFUSED }).inc_by(number);
        let failed_before = std::mem::replace(&mut self.failing, sent.is_err());
        match sent {
            Err(error) if !failed_before => tracing::warn!(%error, "traces cannot be sent"),
            Ok(()) if failed_before => tracing::info!("traces are sent again"),
            _ => {}
        }
    }
}

impl Exporting {
    /// Waits until the last span is sent, but no longer than one request may take.
    pub async fn finish(self) {
        if let Some(task) = self.0
            && timeout(LIMIT, task).await.is_err()
        {
            tracing::warn!("the last traces could not be sent in time");
        }
    }
}

fn resource(identity: &str) -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let instance = KeyValue::new("service.instance.id", identity.to_owned());
    Resource::builder_empty().with_service_name("lockstep").with_attributes([version, instance]).build()
}

/// A span as the collector gets it. Names of attributes are those of the semantic conventions, where they have one.
fn data(span: Span) -> SpanData {
    let (trace, root) = ids(&span.uid, span.way);
    let is_root = matches!(span.part, Part::Whole(_));
    let own = if is_root { root } else { child(&span) };
    let mut attributes = vec![
        KeyValue::new("k8s.namespace.name", span.pod.namespace.to_string()),
        KeyValue::new("k8s.pod.name", span.pod.name.to_string()),
        KeyValue::new("k8s.pod.uid", span.uid.as_str().to_owned()),
    ];
    match &span.part {
        Part::Whole(reason) => attributes.push(KeyValue::new("lockstep.reason", reason.as_str())),
        Part::State(_) => {}
        Part::Change { service, target, .. } => attributes.extend([
            KeyValue::new("lockstep.registry", service.registry.to_string()),
            KeyValue::new("lockstep.service", service.service.to_string()),
            KeyValue::new("lockstep.target", target.to_string()),
        ]),
    }
    SpanData {
        span_context: SpanContext::new(trace, own, TraceFlags::SAMPLED, false, TraceState::NONE),
        parent_span_id: if is_root { SpanId::INVALID } else { root },
        parent_span_is_remote: false,
        span_kind: if matches!(span.part, Part::Change { .. }) { SpanKind::Client } else { SpanKind::Internal },
        name: span.part.name(span.way).into(),
        start_time: SystemTime::from(span.begun),
        end_time: SystemTime::from(span.ended.max(span.begun)),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.problem.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("lockstep").build(),
    }
}

/// The trace of a pod's handshake, and the span that is its whole. That of the way in is the pod's UID, without its hyphens.
fn ids(uid: &PodUid, way: Way) -> (TraceId, SpanId) {
    let digits: String = uid.as_str().chars().filter(char::is_ascii_hexdigit).collect();
    let hash = hash(&[uid.as_str().as_bytes(), way.as_str().as_bytes()]);
    let trace = match (TraceId::from_hex(&digits), way) {
        (Ok(trace), Way::In) if digits.len() == 32 && trace != TraceId::INVALID => trace,
        _ => TraceId::from_bytes(hash[8..24].try_into().expect("a hash has 32 bytes")),
    };
    (trace, span_id(&hash))
}

/// The id of a part: the same for whoever tells of it, so that what is told twice is one.
fn child(span: &Span) -> SpanId {
    let target = match &span.part {
        Part::Change { service, target, .. } => format!("{service} {target}"),
        Part::Whole(_) | Part::State(_) => String::new(),
    };
    let begun = span.begun.as_nanosecond().to_be_bytes();
    span_id(&hash(&[span.uid.as_str().as_bytes(), span.part.name(span.way).as_bytes(), target.as_bytes(), &begun]))
}

fn span_id(hash: &[u8]) -> SpanId {
    SpanId::from_bytes(hash[..8].try_into().expect("a hash has 32 bytes"))
}

fn hash(parts: &[&[u8]]) -> Vec<u8> {
    digest(&SHA256, &parts.join(&0)).as_ref().to_vec()
}
