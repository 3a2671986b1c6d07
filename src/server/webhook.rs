//! What the HTTPS port answers: reviews of pods, and reviews of our ConfigMap.
//!
//! Invariant: nothing here waits for the network save the body of the request; reviews are answered from a snapshot.
//! Absent on purpose: what a review is answered (`admission`, `validate`).

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::routing::post;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use super::body::Bodies;
use super::validate::{self, Ours};
use crate::admission::{self, Answered, Refusal, Snapshot};
use crate::metrics::Metrics;
use crate::names::{MUTATE_PATH, VALIDATE_PATH};

/// Longer bodies are answered on a thread of their own: a pod of megabytes must not hold up the others for milliseconds.
const INLINE_BYTES: usize = 256 << 10;

/// Said beside a status that says more.
const BODY_REFUSED: &str = "the body was not taken";

/// What answers need.
#[derive(Debug)]
pub struct Webhook {
    /// What reviews of pods are answered from; nothing until there is a configuration.
    pub snapshot: Arc<ArcSwapOption<Snapshot>>,
    /// Room for bodies.
    pub bodies: Bodies,
    /// Which ConfigMap is ours.
    pub ours: Ours,
    /// Where answers are counted.
    pub metrics: Arc<Metrics>,
}

/// The routes of the HTTPS port.
pub fn router(webhook: Arc<Webhook>) -> Router {
    Router::new().route(MUTATE_PATH, post(mutate)).route(VALIDATE_PATH, post(validate)).with_state(webhook)
}

async fn mutate(State(webhook): State<Arc<Webhook>>, request: Request) -> Response<Body> {
    let body = match webhook.bodies.read(request).await {
        Ok(body) => body,
        Err(status) => return webhook.refuse(status, BODY_REFUSED),
    };
    let started = Instant::now();
    let Some(snapshot) = webhook.snapshot.load_full() else {
        return webhook.refuse(StatusCode::SERVICE_UNAVAILABLE, "there is no valid configuration yet");
    };
    match answer(body.bytes.clone(), snapshot).await {
        Ok(answered) => {
            let reason = answered.reason.as_str();
            webhook.metrics.admission.answered(&answered, started.elapsed());
            tracing::debug!(namespace = answered.namespace, pod = answered.pod, reason, "review answered");
            json(answered.body.into())
        }
        Err(refusal) => webhook.refuse(StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST), refusal.message),
    }
}

async fn answer(body: Bytes, snapshot: Arc<Snapshot>) -> Result<Answered, Refusal> {
    if body.len() <= INLINE_BYTES {
        return admission::answer(&body, &snapshot);
    }
    let answered = tokio::task::spawn_blocking(move || admission::answer(&body, &snapshot)).await;
    answered.unwrap_or_else(|_| Err(Refusal { status: 500, message: "the review could not be worked on".into() }))
}

async fn validate(State(webhook): State<Arc<Webhook>>, request: Request) -> Response<Body> {
    let body = match webhook.bodies.read(request).await {
        Ok(body) => body,
        Err(status) => return webhook.refuse(status, BODY_REFUSED),
    };
    match validate::answer(&body.bytes, &webhook.ours) {
        Some(review) => json(review.to_string().into()),
        None => webhook.refuse(StatusCode::BAD_REQUEST, "no AdmissionReview of admission.k8s.io/v1 with a uid"),
    }
}

impl Webhook {
    fn refuse(&self, status: StatusCode, message: impl Into<String>) -> Response<Body> {
        self.metrics.admission.refused(status.as_u16());
        let mut response = Response::new(Body::from(message.into()));
        *response.status_mut() = status;
        // What is left of the body, if anything, is not worth reading.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

fn json(body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
