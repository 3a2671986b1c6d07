//! Every way in which the registry server says no: status, reason and remedy.
//!
//! A person reads the message and the remedy, a program the status and the reason; the OpenAPI file lists the same reasons.
//!
//! Invariant: an answer that is not a success has one of these reasons, whatever part of the server gives it.
//! Absent on purpose: details of the store's and the system's errors, which go to the log and not to callers.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};

use crate::registry::http::contract::{Refusal, SERVICE_FULL};

/// A no, with its sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) reason: Reason,
    pub(super) message: Cow<'static, str>,
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    PathInvalid,
    QueryInvalid,
    BodyInvalid,
    Unauthorized,
    Denied,
    NoSuchPath,
    ServiceNotFound,
    TargetNotFound,
    MethodNotAllowed,
    BodyTooSlow,
    ForeignTarget,
    ServiceFull,
    TooManyServices,
    ServiceNotEmpty,
    BodyTooLarge,
    ContentTypeUnsupported,
    Throttled,
    Unavailable,
    TokenUnreadable,
    StoreFailed,
    BackupFailed,
}

impl Refused {
    pub(super) fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, message: message.into() }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.reason.parts().0
    }

    pub(super) fn on_the_wire(&self) -> Refusal {
        let (_, reason, remedy) = self.reason.parts();
        Refusal { reason: reason.into(), message: self.message.clone().into_owned(), remedy: remedy.into() }
    }
}

impl Reason {
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::PathInvalid => (
                StatusCode::BAD_REQUEST,
                "PathInvalid",
                "Write the address as 10.1.2.3:8080 or [fd00::1]:8080, and encode what a path may not hold.",
            ),
            Self::QueryInvalid => (StatusCode::BAD_REQUEST, "QueryInvalid", "Give index and wait together, as in ?index=7&wait=30s."),
            Self::BodyInvalid => (StatusCode::BAD_REQUEST, "BodyInvalid", "Send JSON as the OpenAPI file describes it."),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "Unauthorized",
                "Send the header Authorization: Bearer TOKEN with a token of the server's token file.",
            ),
            Self::Denied => (StatusCode::FORBIDDEN, "Denied", "The behaviour says refuse: denied. PUT another one."),
            Self::NoSuchPath => (StatusCode::NOT_FOUND, "NoSuchPath", "Look the path up in the OpenAPI file."),
            Self::ServiceNotFound => {
                (StatusCode::NOT_FOUND, "ServiceNotFound", "PUT the service first, or start the server without --require-services.")
            }
            Self::TargetNotFound => {
                (StatusCode::NOT_FOUND, "TargetNotFound", "Nothing to do for a deregister; register it before a drain.")
            }
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "Look the methods of this path up in the OpenAPI file.")
            }
            Self::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, "BodyTooSlow", "Send the body at once."),
            Self::ForeignTarget => {
                (StatusCode::CONFLICT, "ForeignTarget", "Give each cluster a name of its own, or name the one that registered the target.")
            }
            Self::ServiceFull => (StatusCode::CONFLICT, SERVICE_FULL, "Deregister targets, or divide the service."),
            Self::TooManyServices => (StatusCode::CONFLICT, "TooManyServices", "DELETE services that nobody uses."),
            Self::ServiceNotEmpty => (StatusCode::CONFLICT, "ServiceNotEmpty", "Deregister its targets first."),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "BodyTooLarge", "Send fewer changes in one request."),
            Self::ContentTypeUnsupported => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "ContentTypeUnsupported", "Send the header Content-Type: application/json.")
            }
            Self::Throttled => (StatusCode::TOO_MANY_REQUESTS, "Throttled", "The behaviour says refuse: throttled. PUT another one."),
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "Unavailable", "The behaviour says refuse: unavailable. PUT another one.")
            }
            Self::TokenUnreadable => {
                (StatusCode::SERVICE_UNAVAILABLE, "TokenUnreadable", "Put the token file back where the server was told to look.")
            }
            Self::StoreFailed => {
                (StatusCode::SERVICE_UNAVAILABLE, "StoreFailed", "Look at the server's log and its disk, then restart it.")
            }
            Self::BackupFailed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "BackupFailed",
                "Look at the server's log; a copy needs as much room as the store, beside it.",
            ),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let text = serde_json::to_vec(&self.on_the_wire()).expect("a refusal is three texts");
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        if self.reason == Reason::Unauthorized {
            response.headers_mut().insert(WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
        }
        response
    }
}
