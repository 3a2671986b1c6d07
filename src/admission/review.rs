//! From AdmissionReview bytes to an answer's bytes.
//!
//! Every pod creation of a cluster waits for this: one pass over the bytes, borrowed, and the patch written straight into the answer.
//!
//! Invariant: what is refused is no AdmissionReview v1 with a uid; everything else is allowed, and the answer carries the uid.
//! Invariant: without a patch neither `patch` nor `patchType` stands in the answer.
//! Absent on purpose: HTTP (`server`), the decision (`decide`).

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::MapAccess;

use super::decide::{Decision, PodRequest, Reason, decide};
use super::part::{Key, Part, Shape, skip};
use super::pod::Pod;
use super::{Finding, Snapshot, patch};

/// The most bytes of a body: more than an API server can store of one object, review included.
pub const BODY_BYTES: usize = 8 << 20;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The review to send back.
    pub body: Vec<u8>,
    /// Why it is what it is.
    pub reason: Reason,
    /// Namespace of the request.
    pub namespace: String,
    /// Name of the pod, or what its name will begin with.
    pub pod: String,
    /// What a person should fix; empty where nothing is changed.
    pub findings: Vec<Finding>,
    /// The sleep that our containers carry; 0 where none does.
    pub sleep_seconds: u64,
}

/// Why there is no answer; the cluster's failurePolicy decides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP status: 400, 413 or 415.
    pub status: u16,
    /// What is wrong, in one line.
    pub message: String,
}

/// Answers a review.
pub fn answer(body: &[u8], snapshot: &Snapshot) -> Result<Answered, Refusal> {
    let review = Review::read(body)?;
    let decision = review.decide(snapshot);
    let body = respond(review.uid(), &decision);
    Ok(Answered {
        body,
        reason: decision.reason,
        namespace: review.request.namespace.text().to_owned(),
        pod: review.request.object.found().map_or("", Pod::name).to_owned(),
        findings: match decision.reason {
            Reason::Injected => decision.findings().iter().map(|(finding, _)| *finding).collect(),
            _ => Vec::new(),
        },
        sleep_seconds: decision.injection.as_ref().map_or(0, |injection| injection.sleep_seconds),
    })
}

/// Whether a text begins with a JSON object that calls itself a review, readable to its end or not.
pub fn is_review(text: &str) -> bool {
    #[derive(Default)]
    struct Head<'a> {
        api_version: Part<Cow<'a, str>>,
        kind: Part<Cow<'a, str>>,
    }
    impl<'de> Shape<'de> for Head<'de> {
        fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
            let mut head = Self::default();
            while let Some(Key(key)) = map.next_key()? {
                match &*key {
                    "apiVersion" => head.api_version = map.next_value()?,
                    "kind" => head.kind = map.next_value()?,
                    _ => skip(&mut map)?,
                }
            }
            Ok(Part::Found(head))
        }
    }
    let head = Part::<Head<'_>>::deserialize(&mut serde_json::Deserializer::from_str(text));
    head.ok().as_ref().and_then(Part::found).is_some_and(|head| calls_itself_a_review(head.api_version.text(), head.kind.text()))
}

/// Whether an object with these names is meant to be a review, of whatever version.
pub fn calls_itself_a_review(api_version: &str, kind: &str) -> bool {
    kind == KIND || api_version.split_once('/').is_some_and(|(group, _)| API_VERSION.split_once('/').is_some_and(|(ours, _)| group == ours))
}

impl Refusal {
    /// Bytes that are no review.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into() }
    }

    /// More than [`BODY_BYTES`].
    pub fn too_large() -> Self {
        Self { status: 413, message: format!("the body is larger than {BODY_BYTES} bytes") }
    }

    /// A content type that no API server sends.
    pub fn content_type() -> Self {
        Self { status: 415, message: "the content type is not application/json".to_owned() }
    }
}

/// A review that can be answered.
pub(super) struct Review<'a> {
    pub(super) request: Request<'a>,
}

impl<'a> Review<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Refusal> {
        if body.len() > BODY_BYTES {
            return Err(Refusal::too_large());
        }
        let text = std::str::from_utf8(body).map_err(|_| Refusal::malformed("the body is not UTF-8"))?;
        let mut reader = serde_json::Deserializer::from_str(text);
        let envelope = Part::<Envelope<'a>>::deserialize(&mut reader).and_then(|envelope| reader.end().map(|()| envelope));
        let envelope = envelope.map_err(|error| Refusal::malformed(format!("the body is not JSON: {error}")))?;
        let Part::Found(envelope) = envelope else {
            return Err(Refusal::malformed("the body is no AdmissionReview"));
        };
        if envelope.api_version.text() != API_VERSION || envelope.kind.text() != KIND {
            return Err(Refusal::malformed(format!("the body is no {KIND} of {API_VERSION}")));
        }
        let Part::Found(request) = envelope.request else {
            return Err(Refusal::malformed("the review has no request"));
        };
        if request.uid.text().is_empty() {
            return Err(Refusal::malformed("the request has no uid"));
        }
        Ok(Self { request })
    }

    fn uid(&self) -> &str {
        self.request.uid.text()
    }

    pub(super) fn decide(&self, snapshot: &Snapshot) -> Decision {
        let request = &self.request;
        if !request.is_pod_create() {
            return Decision::leave(Reason::NotPodCreate);
        }
        decide(&PodRequest { namespace: request.namespace.text(), pod: &request.object, job: false }, snapshot)
    }
}

/// Writes the answer.
pub(super) fn respond(uid: &str, decision: &Decision) -> Vec<u8> {
    let mut body = Vec::with_capacity(2048);
    body.extend_from_slice(br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"#);
    quote(uid, &mut body);
    body.extend_from_slice(br#","allowed":true"#);
    if !decision.changes().is_empty() {
        let mut patch = Vec::with_capacity(1024);
        patch::write(decision.changes(), "", &mut patch);
        body.extend_from_slice(br#","patchType":"JSONPatch","patch":""#);
        let start = body.len();
        body.resize(start + patch.len().div_ceil(3) * 4, 0);
        STANDARD.encode_slice(&patch, &mut body[start..]).expect("the place was made for it");
        body.push(b'"');
    }
    let warnings = decision.warnings();
    for (i, warning) in warnings.iter().enumerate() {
        body.extend_from_slice(if i == 0 { br#","warnings":["# } else { b"," });
        quote(warning, &mut body);
    }
    body.extend_from_slice(if warnings.is_empty() { b"}}" } else { b"]}}" });
    body
}

fn quote(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("text always serialises, and a Vec always takes it");
}

#[derive(Debug, Default)]
struct Envelope<'a> {
    api_version: Part<Cow<'a, str>>,
    kind: Part<Cow<'a, str>>,
    request: Part<Request<'a>>,
}

/// `request`.
#[derive(Debug, Default)]
pub(super) struct Request<'a> {
    uid: Part<Cow<'a, str>>,
    operation: Part<Cow<'a, str>>,
    sub_resource: Part<Cow<'a, str>>,
    resource: Part<Resource<'a>>,
    pub(super) namespace: Part<Cow<'a, str>>,
    pub(super) object: Part<Pod<'a>>,
}

#[derive(Debug, Default)]
struct Resource<'a> {
    group: Part<Cow<'a, str>>,
    version: Part<Cow<'a, str>>,
    resource: Part<Cow<'a, str>>,
}

impl Request<'_> {
    /// Whether no sub-resource is meant.
    fn is_whole(&self) -> bool {
        !self.sub_resource.is_wrong() && self.sub_resource.text().is_empty()
    }

    fn is_pod_create(&self) -> bool {
        let pods = |resource: &Resource<'_>| {
            resource.group.text().is_empty() && resource.version.text() == "v1" && resource.resource.text() == "pods"
        };
        self.operation.text() == "CREATE" && self.is_whole() && self.resource.found().is_some_and(pods)
    }
}

impl<'de> Shape<'de> for Envelope<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut envelope = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "apiVersion" => envelope.api_version = map.next_value()?,
                "kind" => envelope.kind = map.next_value()?,
                "request" => envelope.request = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(envelope))
    }
}

impl<'de> Shape<'de> for Request<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut request = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "uid" => request.uid = map.next_value()?,
                "operation" => request.operation = map.next_value()?,
                "subResource" => request.sub_resource = map.next_value()?,
                "resource" => request.resource = map.next_value()?,
                "namespace" => request.namespace = map.next_value()?,
                "object" => request.object = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(request))
    }
}

impl<'de> Shape<'de> for Resource<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut resource = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "group" => resource.group = map.next_value()?,
                "version" => resource.version = map.next_value()?,
                "resource" => resource.resource = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(resource))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::whole(r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#, true)]
    #[case::by_its_kind(r#"{"kind":"AdmissionReview","request":{}}"#, true)]
    #[case::of_an_older_version(r#"{"more":[1],"apiVersion":"admission.k8s.io/v1beta1"}"#, true)]
    #[case::not_the_end_of_the_text(r#"{"kind":"AdmissionReview"} and more"#, true)]
    #[case::a_pod(r#"{"apiVersion":"v1","kind":"Pod"}"#, false)]
    #[case::nothing_of_it("{}", false)]
    #[case::no_object("[]", false)]
    #[case::cut_off(r#"{"kind":"AdmissionReview""#, false)]
    fn what_calls_itself_a_review(#[case] text: &str, #[case] review: bool) {
        assert_eq!(is_review(text), review);
    }

    #[rstest]
    #[case(BODY_BYTES, 400)]
    #[case(BODY_BYTES + 1, 413)]
    fn the_limit_itself_is_within_it(#[case] bytes: usize, #[case] status: u16) {
        assert_eq!(Review::read(&vec![b' '; bytes]).map(drop).unwrap_err().status, status);
    }
}
