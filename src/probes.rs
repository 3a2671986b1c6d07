//! /livez, /readyz and /metrics on a plain port of their own.
//!
//! Invariant: ready means certificate loaded, configuration read and caches filled, and not stopping; a page that is not ready says
//! which of them is missing.
//! Absent on purpose: health of registries and of the API server. A replica that still can answer reviews must go on doing so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};

use crate::certificates::Serving;
use crate::metrics::Metrics;

/// Content type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What readiness is made of.
#[derive(Debug, Default)]
pub struct Readiness {
    /// What is served.
    pub certificate: Arc<Serving>,
    /// There is a valid configuration, the present one or the last good one.
    pub configuration: AtomicBool,
    /// Nodes and the API server told their versions.
    pub versions: AtomicBool,
    /// The reconciler knows pods, nodes and namespaces, so that it can take over at once.
    pub caches: Arc<AtomicBool>,
    /// The process was told to stop.
    pub stopping: AtomicBool,
}

impl Readiness {
    /// What is missing, in words; empty when ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let parts = [
            (self.certificate.is_loaded(), "no certificate is loaded"),
            (self.configuration.load(Ordering::Relaxed), "no valid configuration was read"),
            (self.versions.load(Ordering::Relaxed), "the versions of nodes and API server were not read"),
            (self.caches.load(Ordering::Relaxed), "caches are not filled"),
            (!self.stopping.load(Ordering::Relaxed), "stopping"),
        ];
        parts.into_iter().filter(|(there, _)| !there).map(|(_, missing)| missing).collect()
    }
}

/// The routes of the probes' port.
pub fn router(readiness: Arc<Readiness>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(expose).with_state(metrics))
}

async fn ready(State(readiness): State<Arc<Readiness>>) -> (StatusCode, String) {
    let missing = readiness.missing();
    if missing.is_empty() {
        return (StatusCode::OK, "ok\n".into());
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join("; ")))
}

async fn expose(State(metrics): State<Arc<Metrics>>) -> Response<Body> {
    let mut response = Response::new(Body::from(metrics.encode()));
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(OPEN_METRICS));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_named_until_it_is_there() {
        let readiness = Readiness::default();
        assert_eq!(readiness.missing().len(), 4);
        readiness.configuration.store(true, Ordering::Relaxed);
        readiness.versions.store(true, Ordering::Relaxed);
        readiness.caches.store(true, Ordering::Relaxed);
        assert_eq!(readiness.missing(), ["no certificate is loaded"]);
        readiness.stopping.store(true, Ordering::Relaxed);
        assert_eq!(readiness.missing(), ["no certificate is loaded", "stopping"]);
    }
}
