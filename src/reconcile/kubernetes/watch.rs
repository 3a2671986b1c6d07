//! Watches: one open watch as a stream of its events, and a reflection that lists, watches and heals itself.
//!
//! Invariant: a reflection yields the whole present state before any change, again after every gap, and never ends.
//! Absent on purpose: a cache; whoever reads a reflection keeps what it needs.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api::{self, Api, Lines, WATCH_LIFE_SECONDS};
use super::decode::{self, RawPage};
use crate::reconcile::clock::Clock;
use crate::reconcile::cluster::ApiError;
use crate::reconcile::tokio_clock::TokioClock;

/// Items of one page of a list.
const PAGE: u32 = 500;
/// First pause after a failure; doubled for each one that follows.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause: an API server that came back is noticed within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// One event of a watch, its object not decoded yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RawEvent<'a> {
    /// Added or changed.
    Applied(&'a str),
    /// Gone, or no longer selected.
    Deleted(&'a str),
    /// Nothing happened up to this version.
    Bookmark(String),
}

/// What a reflection is of.
pub(crate) trait Reflected: Send + Sync + 'static {
    /// One change, as it is yielded.
    type Change: Send + 'static;
    /// One object, decoded.
    type Item: Send;

    /// Decodes one object.
    fn decode(&self, json: &str) -> Result<Self::Item, ApiError>;
    /// The whole present state.
    fn all(&self, items: Vec<Self::Item>) -> Self::Change;
    /// An object that was added or changed.
    fn applied(&self, item: Self::Item) -> Self::Change;
    /// An object that is gone.
    fn gone(&self, item: Self::Item) -> Self::Change;
}

/// Reads one line of a watch.
pub(crate) fn event(line: &[u8]) -> Result<RawEvent<'_>, ApiError> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let line: Line<'_> = serde_json::from_slice(line).map_err(|error| api::unreadable(&error))?;
    match line.kind {
        "ADDED" | "MODIFIED" => Ok(RawEvent::Applied(line.object.get())),
        "DELETED" => Ok(RawEvent::Deleted(line.object.get())),
        "BOOKMARK" => decode::resource_version(line.object.get()).map(RawEvent::Bookmark),
        // Gone (410) most of all: the version is too old to go on from.
        "ERROR" => Err(api::status(line.object.get().as_bytes(), 500)),
        _ => Err(ApiError::Unreadable("a watch event of an unknown type".into())),
    }
}

/// Path of a watch of `collection` from `resource_version` on; `query` holds selectors, ready for a URL.
pub(crate) fn path(collection: &str, query: &str, resource_version: &str) -> String {
    format!(
        "{collection}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_LIFE_SECONDS}&resourceVersion={resource_version}&{query}"
    )
}

/// Reflects the objects of `collection` that the selectors in `query` name.
pub(crate) fn reflect<R: Reflected>(
    api: Api,
    clock: TokioClock,
    collection: String,
    query: String,
    reflected: R,
) -> BoxStream<'static, R::Change> {
    let reflection = Reflection { api, clock, collection, query, reflected, state: State::Unknown, failures: 0, ready: VecDeque::new() };
    stream::unfold(reflection, |mut reflection| async move {
        let change = reflection.next().await;
        Some((change, reflection))
    })
    .boxed()
}

/// What a reflection knows of the server's state.
enum State {
    /// Nothing, or it is stale: list.
    Unknown,
    /// Everything up to that version; no watch is open.
    Known(String),
    /// Everything up to that version, and a watch goes on from there.
    Watching(String, Lines),
}

struct Reflection<R: Reflected> {
    api: Api,
    clock: TokioClock,
    collection: String,
    query: String,
    reflected: R,
    state: State,
    failures: u32,
    ready: VecDeque<R::Change>,
}

impl<R: Reflected> Reflection<R> {
    async fn next(&mut self) -> R::Change {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return change;
            }
            match self.step().await {
                Ok(()) => self.failures = 0,
                Err(error) => self.recover(&error).await,
            }
        }
    }

    async fn step(&mut self) -> Result<(), ApiError> {
        match std::mem::replace(&mut self.state, State::Unknown) {
            State::Unknown => {
                let (items, version) = list(&self.api, &self.collection, &self.query, |json| self.reflected.decode(json)).await?;
                self.ready.push_back(self.reflected.all(items));
                self.state = State::Known(version);
            }
            State::Known(version) => {
                // Kept for the case that the request fails: a failed connect is no reason to list again.
                self.state = State::Known(version.clone());
                let lines = self.api.watch(&path(&self.collection, &self.query, &version)).await?;
                self.state = State::Watching(version, lines);
            }
            State::Watching(version, mut lines) => match lines.next().await {
                Ok(Some(line)) => {
                    let version = self.take(&line)?.unwrap_or(version);
                    self.state = State::Watching(version, lines);
                }
                Ok(None) => self.state = State::Known(version),
                Err(error) => {
                    self.state = State::Known(version);
                    return Err(error);
                }
            },
        }
        Ok(())
    }

    /// Turns a line into a change; answers the version up to which all is known now.
    fn take(&mut self, line: &Bytes) -> Result<Option<String>, ApiError> {
        let (json, change) = match event(line)? {
            RawEvent::Bookmark(version) => return Ok(Some(version)),
            RawEvent::Applied(json) => (json, self.reflected.applied(self.reflected.decode(json)?)),
            RawEvent::Deleted(json) => (json, self.reflected.gone(self.reflected.decode(json)?)),
        };
        self.ready.push_back(change);
        Ok(Some(decode::resource_version(json)?).filter(|version| !version.is_empty()))
    }

    async fn recover(&mut self, error: &ApiError) {
        if error.code().is_some() {
            self.state = State::Unknown;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures += 1;
        // An expired version or an ended connection is everyday life; only what lasts is worth a line.
        if self.failures > 1 {
            tracing::warn!(operation = %self.collection, %error, "watching the API server fails");
        }
        let spread = pause.mul_f64(0.5 + self.clock.jitter() / 2.0);
        self.clock.sleep_until(self.clock.now().after(spread)).await;
    }
}

/// All objects of `collection` that the selectors in `query` name, page by page, and the version that they had.
pub(crate) async fn list<T>(
    api: &Api,
    collection: &str,
    query: &str,
    decode: impl Fn(&str) -> Result<T, ApiError>,
) -> Result<(Vec<T>, String), ApiError> {
    let (mut items, mut token) = (Vec::new(), None::<String>);
    loop {
        let bytes = api.list(&page_path(collection, query, PAGE, token.as_deref()), None).await?;
        let page: RawPage<'_> = api::decode(&bytes)?;
        for item in page.items.iter().flatten() {
            items.push(decode(item.get())?);
        }
        token = page.metadata.next();
        if token.is_none() {
            return Ok((items, page.metadata.resource_version));
        }
    }
}

/// Path of one page of a list.
pub(crate) fn page_path(collection: &str, query: &str, limit: u32, token: Option<&str>) -> String {
    let token = token.map(|token| format!("&continue={}", query_value(token))).unwrap_or_default();
    format!("{collection}?limit={limit}{token}&{query}")
}

/// A value as a URL's query takes it.
pub(crate) fn query_value(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => value.push(char::from(byte)),
            _ => value.push_str(&format!("%{byte:02X}")),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http_body::Frame;
    use http_body_util::{BodyExt, Full, StreamBody};
    use kube::client::Body;
    use rstest::rstest;

    use super::*;

    /// A reflection of names, as texts.
    struct Names;

    impl Reflected for Names {
        type Change = String;
        type Item = Arc<str>;

        fn decode(&self, json: &str) -> Result<Arc<str>, ApiError> {
            decode::name(json)
        }
        fn all(&self, items: Vec<Arc<str>>) -> String {
            format!("all {}", items.join(" "))
        }
        fn applied(&self, item: Arc<str>) -> String {
            format!("+{item}")
        }
        fn gone(&self, item: Arc<str>) -> String {
            format!("-{item}")
        }
    }

    fn object(name: &str, version: u32) -> String {
        format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#)
    }

    fn line(kind: &str, name: &str, version: u32) -> String {
        format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", object(name, version))
    }

    fn list(names: &[&str], version: u32) -> String {
        let items: Vec<_> = names.iter().map(|name| object(name, version)).collect();
        format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":[{}]}}"#, items.join(","))
    }

    /// Answers one request after the other with a script; the last watch stays open. Keeps the queries it was sent.
    fn scripted(script: Vec<(u16, String)>) -> (Api, Arc<Mutex<Vec<String>>>) {
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let queries = Arc::new(Mutex::new(Vec::new()));
        let seen = queries.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            seen.lock().unwrap().push(request.uri().query().unwrap_or_default().to_owned());
            let next = script.lock().unwrap().pop_front();
            async move {
                let body = match next {
                    Some((code, text)) => {
                        let response = http::Response::builder().status(code);
                        return Ok::<_, Infallible>(response.body(Full::new(Bytes::from(text)).boxed_unsync()).unwrap());
                    }
                    None => StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>()),
                };
                Ok(http::Response::new(body.boxed_unsync()))
            }
        });
        (Api::new(kube::Client::new(service, "default")), queries)
    }

    #[rstest]
    #[case("ADDED", RawEvent::Applied("{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"7\"}}"))]
    #[case("MODIFIED", RawEvent::Applied("{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"7\"}}"))]
    #[case("DELETED", RawEvent::Deleted("{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"7\"}}"))]
    #[case("BOOKMARK", RawEvent::Bookmark("7".into()))]
    fn lines_become_events(#[case] kind: &str, #[case] expected: RawEvent<'static>) {
        assert_eq!(event(line(kind, "a", 7).as_bytes()).unwrap(), expected);
    }

    #[test]
    fn an_error_event_is_the_status_in_it() {
        let error = event(br#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#).unwrap_err();
        assert_eq!(error.code(), Some(410));
    }

    #[tokio::test(start_paused = true)]
    async fn lists_then_watches_then_goes_on_where_the_watch_ended() {
        let first = [line("ADDED", "b", 11), line("DELETED", "a", 12), line("BOOKMARK", "", 20)].concat();
        let (api, queries) = scripted(vec![(200, list(&["a"], 10)), (200, first), (200, line("ADDED", "c", 21))]);
        let changes: Vec<_> = reflect(api, TokioClock::start(), "/things".into(), "q=1".into(), Names).take(4).collect().await;
        assert_eq!(changes, ["all a", "+b", "-a", "+c"]);
        let queries = queries.lock().unwrap();
        assert!(queries[1].contains("resourceVersion=10&q=1"), "{queries:?}");
        assert!(queries[2].contains("resourceVersion=20&"), "a bookmark moves the version on: {queries:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn lists_again_after_a_version_that_is_too_old() {
        let gone = "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"message\":\"too old\"}}\n".to_owned();
        let (api, _) = scripted(vec![(200, list(&["a"], 10)), (200, gone), (200, list(&["b"], 30))]);
        let changes: Vec<_> = reflect(api, TokioClock::start(), "/things".into(), String::new(), Names).take(2).collect().await;
        assert_eq!(changes, ["all a", "all b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn outlasts_failures_and_a_silent_watch() {
        let refused = (503, r#"{"code":503,"message":"etcd"}"#.to_owned());
        let (api, queries) = scripted(vec![refused.clone(), refused, (200, list(&["a"], 10))]);
        let mut changes = reflect(api, TokioClock::start(), "/things".into(), String::new(), Names);
        assert_eq!(changes.next().await.as_deref(), Some("all a"));
        let silent = tokio::time::timeout(api::WATCH_IDLE * 3, changes.next()).await;
        assert!(silent.is_err());
        assert!(queries.lock().unwrap().len() >= 5, "the silent watch was opened anew");
    }

    #[test]
    fn tokens_are_escaped() {
        assert_eq!(page_path("/pods", "a=b", 5, Some("x/y=+z")), "/pods?limit=5&continue=x%2Fy%3D%2Bz&a=b");
    }
}
