//! A collector of traces: takes spans by OTLP over HTTP and keeps them, or refuses them.
//!
//! Invariant: a span is kept as it came over the wire.
//! Absent on purpose: what the spans should be (the tests).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use http::StatusCode;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
pub(crate) use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

/// What it was told, shared by its clones.
#[derive(Clone, Default)]
pub(crate) struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    resources: Arc<Mutex<Vec<BTreeMap<String, String>>>>,
    refuses: bool,
}

impl Collector {
    /// One that takes nothing.
    pub(crate) fn that_refuses() -> Self {
        Self { refuses: true, ..Self::default() }
    }

    /// It listens at a free port of that address; its URL.
    pub(crate) async fn start_at(&self, address: &str) -> String {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/v1/traces", post(take)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    /// All spans so far.
    pub(crate) fn told(&self) -> Vec<Span> {
        self.spans.lock().unwrap().clone()
    }

    /// Who has told spans so far, once for each message.
    pub(crate) fn resources(&self) -> Vec<BTreeMap<String, String>> {
        self.resources.lock().unwrap().clone()
    }
}

/// Attributes that are texts, by their names.
pub(crate) fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |one: &KeyValue| match one.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some((one.key.clone(), text.clone())),
        _ => None,
    };
    attributes.iter().filter_map(text).collect()
}

/// An id as people write it.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn take(State(collector): State<Collector>, body: Bytes) -> StatusCode {
    if collector.refuses {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for of_resource in request.resource_spans {
        collector.resources.lock().unwrap().extend(of_resource.resource.map(|resource| texts(&resource.attributes)));
        collector.spans.lock().unwrap().extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    StatusCode::OK
}
