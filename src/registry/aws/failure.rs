//! What a failed call to AWS means.
//!
//! Source of the codes: the API reference of ELBv2 (2015-12-01), its page of common errors, and what users of other controllers report.
//!
//! Invariant: a code that is not known is a failure that leaves it open whether something was done.
//! Absent on purpose: retries; pace and repetition stand above the drivers.

use std::error::Error;

use aws_sdk_elasticloadbalancingv2::config::http::HttpResponse;
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};

use super::wire;
use crate::registry::CallError;
use crate::registry::text::{bounded, cause};

const THROTTLED: [&str; 6] = [
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "TooManyRequestsException",
    "PriorRequestNotComplete",
];
const DENIED: [&str; 8] = [
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "NotAuthorized",
    "OptInRequired",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "RequestExpired",
];
/// The credentials themselves are refused; others may be there by now.
const STALE: [&str; 4] = ["ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"];
/// One of the targets is refused, and with it all of the request.
const TARGET: [&str; 3] = ["InvalidTarget", "ValidationError", "TooManyRegistrationsForTargetId"];

/// A call that brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It says something of the whole call.
    Call(CallError),
    /// The credentials are refused.
    Stale(CallError),
    /// The group takes no more targets; nothing was done.
    Full(String),
    /// A target is refused; nothing was done. The words are whole and as they came: they may name the target at their end.
    Target(String),
}

impl Failure {
    /// What an error of the SDK means.
    pub(super) fn of<E: ProvideErrorMetadata + Error + 'static>(error: &SdkError<E, HttpResponse>) -> Self {
        if let Some(known) = wire::known(error) {
            return Self::Call(known.clone());
        }
        match error {
            SdkError::ServiceError(refusal) => {
                let status = refusal.raw().status().as_u16();
                said(refusal.err().code().unwrap_or_default(), refusal.err().message().unwrap_or_default(), status)
            }
            SdkError::ResponseError(response) => {
                said("", &format!("and its answer cannot be read: {}", cause(error)), response.raw().status().as_u16())
            }
            SdkError::TimeoutError(_) => Self::Call(CallError::Timeout),
            // All that is sent passes the wire, and the wire did not fail: so there were no credentials, or no address.
            _ => Self::Call(CallError::Unavailable(bounded(&format!("nothing can be sent: {}", cause(error))))),
        }
    }

    /// Whether one of those that the call names is at fault; without it the others would be answered.
    pub(super) fn names_one(&self) -> bool {
        matches!(self, Self::Target(_) | Self::Call(CallError::ServiceMissing(_)))
    }

    /// What it means where no target was named.
    pub(super) fn call(self) -> CallError {
        match self {
            Self::Call(error) | Self::Stale(error) => error,
            Self::Full(text) => CallError::Failed(text),
            Self::Target(text) => CallError::Failed(bounded(&text)),
        }
    }
}

fn said(code: &str, message: &str, status: u16) -> Failure {
    let whole = match code {
        "" => format!("{status} {message}"),
        code => format!("{code}: {message}"),
    };
    let text = bounded(&whole);
    match code {
        "TargetGroupNotFound" => Failure::Call(CallError::ServiceMissing(text)),
        "TooManyTargets" => Failure::Full(text),
        code if TARGET.contains(&code) => Failure::Target(whole),
        code if THROTTLED.contains(&code) => Failure::Call(CallError::Throttled(text)),
        code if STALE.contains(&code) => Failure::Stale(CallError::Denied(text)),
        code if DENIED.contains(&code) => Failure::Call(CallError::Denied(text)),
        _ if status == 429 => Failure::Call(CallError::Throttled(text)),
        _ if matches!(status, 401 | 403) => Failure::Call(CallError::Denied(text)),
        _ => Failure::Call(CallError::Failed(text)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("TargetGroupNotFound", 400, Failure::Call(CallError::ServiceMissing("TargetGroupNotFound: no".into())))]
    #[case("Throttling", 400, Failure::Call(CallError::Throttled("Throttling: no".into())))]
    #[case("AccessDenied", 403, Failure::Call(CallError::Denied("AccessDenied: no".into())))]
    #[case("ExpiredToken", 403, Failure::Stale(CallError::Denied("ExpiredToken: no".into())))]
    #[case("ValidationError", 400, Failure::Target("ValidationError: no".into()))]
    #[case("TooManyTargets", 400, Failure::Full("TooManyTargets: no".into()))]
    #[case("InternalFailure", 500, Failure::Call(CallError::Failed("InternalFailure: no".into())))]
    #[case("SomethingNew", 403, Failure::Call(CallError::Denied("SomethingNew: no".into())))]
    #[case("", 429, Failure::Call(CallError::Throttled("429 no".into())))]
    #[case("", 502, Failure::Call(CallError::Failed("502 no".into())))]
    fn codes(#[case] code: &str, #[case] status: u16, #[case] meaning: Failure) {
        assert_eq!(said(code, "no", status), meaning);
    }
}
