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

use super::body::Bodies;
use super::validate::{self, Ours};
use crate::metrics::Metrics;
use crate::names::VALIDATE_PATH;

/// What answers need.
#[derive(Debug)]
pub struct Webhook {
    /// Room for bodies.
    pub bodies: Bodies,
    /// Which ConfigMap is ours.
    pub ours: Ours,
    /// Where answers are counted.
    pub metrics: Arc<Metrics>,
}

/// The routes of the HTTPS port.
pub fn router(webhook: Arc<Webhook>) -> Router {
    Router::new().route(VALIDATE_PATH, post(validate)).with_state(webhook)
}

async fn validate(State(webhook): State<Arc<Webhook>>, request: Request) -> Response<Body> {
    let body = match webhook.bodies.read(request).await {
        Ok(body) => body,
        Err(status) => return webhook.refuse(status, "the body cannot be taken"),
    };
    match validate::answer(&body.bytes, &webhook.ours) {
        Some(review) => json(review.to_string().into()),
        None => webhook.refuse(StatusCode::BAD_REQUEST, "no AdmissionReview of admission.k8s.io/v1 with a uid"),
    }
}

impl Webhook {
    fn refuse(&self, status: StatusCode, message: &'static str) -> Response<Body> {
        self.metrics.admission.refused(status.as_u16());
        let mut response = Response::new(Body::from(message));
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
