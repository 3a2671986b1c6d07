//! Requests to the API server: a path in, JSON out, with time limits.
//!
//! kube brings the connection (TLS, tokens, kubeconfig); its typed half is left out, because it keeps whole objects and, where an
//! answer cannot be read, writes it into the log.
//!
//! Invariant: a request ends within its limit, and no answer's body ever reaches a log or an error, save the message of a Status.
//! Absent on purpose: retries (the caller's), whole Kubernetes types (each caller decodes what it needs).

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::names::COMPONENT;
use crate::reconcile::cluster::ApiError;
use crate::text::one_line;

/// A single request; the reconciler's writes and the Lease must fail well before the renew deadline.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A page of a list: large, and the server may have to read it from its store.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// A watch without any line, bookmarks included, is taken for dead; the server sends a bookmark about once a minute.
pub const WATCH_IDLE: Duration = Duration::from_secs(100);
/// The server ends a watch after this long, so that connections spread over its replicas again.
pub const WATCH_LIFE_SECONDS: u32 = 290;
/// No answer and no line of a watch is longer: a page of 100 pods of the largest size that etcd takes (1.5 MiB) would be.
pub const ANSWER_BYTES: usize = 160 << 20;
/// The API server's own messages are cut to this many characters before they reach a log.
const MESSAGE_CHARS: usize = 300;

/// A connection to the API server.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
}

/// How a body changes an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 7386.
    Merge,
    /// Kubernetes' own, which knows the keys of lists.
    StrategicMerge,
    /// Server-side apply.
    Apply,
}

impl Api {
    /// Reads where the API server is (the pod's service account, else the kubeconfig) without calling it.
    pub async fn connect() -> Result<Self, ApiError> {
        let config = kube::Config::infer().await.map_err(|error| ApiError::Unreachable(error.to_string()))?;
        Self::to(config)
    }

    /// The API server of a configuration, which is not called yet.
    pub fn to(mut config: kube::Config) -> Result<Self, ApiError> {
        config.connect_timeout = Some(REQUEST_TIMEOUT);
        config.default_retry = false;
        let client = kube::Client::try_from(config).map_err(|error| ApiError::Unreachable(chain(&error)))?;
        Ok(Self { client })
    }

    /// An API over a client that is there already.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// Reads one object.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        decode(&self.call(Method::GET, path, None, Bytes::new(), REQUEST_TIMEOUT).await?)
    }

    /// Reads a page of a list; `accept` asks for another form than plain JSON.
    pub async fn list(&self, path: &str, accept: Option<&str>) -> Result<Bytes, ApiError> {
        let mut request = Request::get(path);
        if let Some(accept) = accept {
            request = request.header(http::header::ACCEPT, accept);
        }
        self.answer(request, Bytes::new(), LIST_TIMEOUT).await
    }

    /// Creates an object.
    pub async fn create(&self, path: &str, body: &serde_json::Value) -> Result<Bytes, ApiError> {
        let path = format!("{path}?fieldManager={COMPONENT}");
        self.call(Method::POST, &path, Some("application/json"), body.to_string().into(), REQUEST_TIMEOUT).await
    }

    /// Asks what would become of an object that is created, and creates nothing.
    pub async fn try_create(&self, path: &str, body: &serde_json::Value) -> Result<Bytes, ApiError> {
        let path = format!("{path}?dryRun=All");
        self.call(Method::POST, &path, Some("application/json"), body.to_string().into(), REQUEST_TIMEOUT).await
    }

    /// Patches an object.
    pub async fn patch(&self, path: &str, kind: PatchKind, body: &serde_json::Value) -> Result<Bytes, ApiError> {
        let (content, force) = match kind {
            PatchKind::Merge => ("application/merge-patch+json", ""),
            PatchKind::StrategicMerge => ("application/strategic-merge-patch+json", ""),
            PatchKind::Apply => ("application/apply-patch+yaml", "&force=true"),
        };
        let path = format!("{path}?fieldManager={COMPONENT}{force}");
        self.call(Method::PATCH, &path, Some(content), body.to_string().into(), REQUEST_TIMEOUT).await
    }

    /// Deletes an object.
    pub async fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.call(Method::DELETE, path, None, Bytes::new(), REQUEST_TIMEOUT).await.map(drop)
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str) -> Result<Lines, ApiError> {
        let request = Request::get(path).body(Body::empty()).map_err(|error| ApiError::Unreadable(error.to_string()))?;
        let response = within(REQUEST_TIMEOUT, self.client.send(request)).await?;
        if !response.status().is_success() {
            return Err(refusal(response, REQUEST_TIMEOUT).await);
        }
        Ok(Lines { body: response.into_body(), rest: BytesMut::new() })
    }

    async fn call(&self, method: Method, path: &str, content: Option<&str>, body: Bytes, limit: Duration) -> Result<Bytes, ApiError> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(content) = content {
            request = request.header(http::header::CONTENT_TYPE, content);
        }
        self.answer(request, body, limit).await
    }

    async fn answer(&self, request: http::request::Builder, body: Bytes, limit: Duration) -> Result<Bytes, ApiError> {
        let request = request.body(Body::from(body)).map_err(|error| ApiError::Unreadable(error.to_string()))?;
        let response = within(limit, self.client.send(request)).await?;
        if response.status().is_success() { collect(response.into_body(), limit).await } else { Err(refusal(response, limit).await) }
    }
}

/// Decodes an answer without ever quoting it.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| unreadable(&error))
}

/// The error of an answer that is no JSON of the wanted form, without its content.
pub(crate) fn unreadable(error: &serde_json::Error) -> ApiError {
    ApiError::Unreadable(format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column()))
}

/// What a Status object, in an answer or in a watch, says.
pub(crate) fn status(bytes: &[u8], fallback: u16) -> ApiError {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        code: u16,
        message: String,
    }
    let status: Status = serde_json::from_slice(bytes).unwrap_or_default();
    let code = if status.code == 0 { fallback } else { status.code };
    ApiError::Status { code, text: clean(&status.message) }
}

/// Lines of a watch.
pub(crate) struct Lines {
    body: Body,
    rest: BytesMut,
}

impl Lines {
    /// The next line without its end; `None` once the server has ended the watch.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.rest[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line = self.rest.split_to(searched + end + 1);
                line.truncate(searched + end);
                return Ok(Some(line.freeze()));
            }
            searched = self.rest.len();
            if searched > ANSWER_BYTES {
                return Err(ApiError::Unreadable("a line of a watch is too long".into()));
            }
            let frame = tokio::time::timeout(WATCH_IDLE, self.body.frame());
            match frame.await.map_err(|_| ApiError::Unreachable("the watch went silent".into()))? {
                Some(Ok(frame)) => self.rest.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(ApiError::Unreachable(chain(&error))),
                None => return Ok(None),
            }
        }
    }
}

async fn refusal(response: http::Response<Body>, limit: Duration) -> ApiError {
    let code: StatusCode = response.status();
    match collect(response.into_body(), limit).await {
        Ok(body) => status(&body, code.as_u16()),
        Err(_) => ApiError::Status { code: code.as_u16(), text: String::new() },
    }
}

async fn collect(body: Body, limit: Duration) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(limit, Limited::new(body, ANSWER_BYTES).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) => Err(ApiError::Unreachable(chain(&*error))),
        Err(_) => Err(ApiError::Unreachable("the answer did not end in time".into())),
    }
}

async fn within<T>(limit: Duration, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    match tokio::time::timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(ApiError::Unreachable(chain(&error))),
        Err(_) => Err(ApiError::Unreachable("no answer in time".into())),
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    clean(&text)
}

fn clean(text: &str) -> String {
    one_line(text).take(MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body::Frame;
    use http_body_util::StreamBody;
    use kube::client::Body;

    use super::*;

    /// An API that answers every request with these frames.
    fn answering(code: u16, frames: &'static [&'static str]) -> Api {
        let service = tower::service_fn(move |_request: Request<Body>| async move {
            let frames = frames.iter().map(|frame| Ok::<_, Infallible>(Frame::data(Bytes::from_static(frame.as_bytes()))));
            let body = StreamBody::new(futures_util::stream::iter(frames));
            Ok::<_, Infallible>(http::Response::builder().status(code).body(body).unwrap())
        });
        Api::new(kube::Client::new(service, "default"))
    }

    #[test]
    fn a_status_gives_code_and_a_message_without_control_characters() {
        let error = status(br#"{"kind":"Status","code":409,"message":"the object\nhas been modified"}"#, 500);
        assert_eq!(error, ApiError::Status { code: 409, text: "the object has been modified".into() });
        assert_eq!(status(b"<html>", 502), ApiError::Status { code: 502, text: String::new() });
    }

    #[test]
    fn an_unreadable_answer_is_not_quoted() {
        let error = decode::<Vec<u8>>(br#"{"token":"s3cret"}"#).unwrap_err();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }

    #[tokio::test]
    async fn a_watch_is_cut_into_lines_wherever_the_frames_end() {
        let mut lines = answering(200, &["{\"a\":", "1}\n{\"b\"", ":2}\n\n{\"c"]).watch("/watch").await.unwrap();
        for expected in ["{\"a\":1}", "{\"b\":2}", ""] {
            assert_eq!(lines.next().await.unwrap().as_deref(), Some(expected.as_bytes()));
        }
        assert_eq!(lines.next().await, Ok(None), "half a line at the end of a watch is no line");
    }

    #[tokio::test]
    async fn a_refused_request_says_why() {
        let api = answering(403, &[r#"{"kind":"Status","code":403,"message":"pods is forbidden"}"#]);
        let refused = ApiError::Status { code: 403, text: "pods is forbidden".into() };
        assert_eq!(api.read::<serde_json::Value>("/x").await, Err(refused.clone()));
        assert_eq!(api.watch("/x").await.err(), Some(refused));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_given_up() {
        let service = tower::service_fn(|_request: Request<Body>| std::future::pending::<Result<http::Response<Body>, Infallible>>());
        let api = Api::new(kube::Client::new(service, "default"));
        assert_eq!(api.read::<serde_json::Value>("/x").await, Err(ApiError::Unreachable("no answer in time".into())));
    }
}
