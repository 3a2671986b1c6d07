//! An API server in memory, for a handful of objects: list, watch, get, patch with resource versions.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

type Frames = BoxStream<'static, Result<Frame<Bytes>, Infallible>>;

/// The server; clones share the objects.
#[derive(Clone)]
pub(crate) struct MemoryApi {
    state: Arc<Mutex<State>>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    /// Version, collection and line of each change, for watches.
    log: Vec<(u64, String, String)>,
    patches: BTreeMap<String, usize>,
}

impl Default for MemoryApi {
    fn default() -> Self {
        Self { state: Arc::default(), version: watch::channel(0).0 }
    }
}

impl MemoryApi {
    /// A client of it.
    pub(crate) fn client(&self) -> kube::Client {
        let server = self.clone();
        kube::Client::new(
            tower::service_fn(move |request| {
                let server = server.clone();
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            }),
            "default",
        )
    }

    /// Makes an object at `path`.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.write("ADDED", path, Some(object));
    }

    /// Changes an object as a person would.
    pub(crate) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.state.lock().unwrap().objects[path].clone();
        change(&mut object);
        self.write("MODIFIED", path, Some(object));
    }

    /// Removes an object.
    pub(crate) fn remove(&self, path: &str) {
        self.write("DELETED", path, None);
    }

    /// The text at a pointer into an object, decoded where it is base64.
    pub(crate) fn text(&self, path: &str, pointer: &str) -> Option<String> {
        let state = self.state.lock().unwrap();
        let text = state.objects.get(path)?.pointer(pointer)?.as_str()?.to_owned();
        Some(BASE64_STANDARD.decode(&text).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or(text))
    }

    /// Patches of an object that were taken.
    pub(crate) fn writes(&self, path: &str) -> usize {
        self.state.lock().unwrap().patches.get(path).copied().unwrap_or_default()
    }

    /// Tells of each change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn write(&self, kind: &str, path: &str, object: Option<Value>) -> Value {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        let mut written = object.clone().or_else(|| state.objects.get(path).cloned()).unwrap_or_default();
        written["metadata"]["resourceVersion"] = json!(version.to_string());
        match object {
            Some(_) => _ = state.objects.insert(path.to_owned(), written.clone()),
            None => _ = state.objects.remove(path),
        }
        let collection = path.rsplit_once('/').unwrap().0.to_owned();
        state.log.push((version, collection, format!("{}\n", json!({"type": kind, "object": written}))));
        drop(state);
        self.version.send_replace(version);
        written
    }

    async fn answer(&self, request: Request<Body>) -> Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>> {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
        let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
        let (code, frames) = match head.method {
            Method::PATCH => self.patch(&path, body),
            Method::GET if query.contains("watch=true") => (200, self.watch(&path, &query)),
            Method::GET => self.read(&path),
            other => panic!("{other} is not spoken here"),
        };
        Response::builder().status(code).body(StreamBody::new(frames).boxed_unsync()).unwrap()
    }

    fn read(&self, path: &str) -> (u16, Frames) {
        let state = self.state.lock().unwrap();
        if let Some(object) = state.objects.get(path) {
            return (200, whole(object));
        }
        let items: Vec<&Value> =
            state.objects.iter().filter(|(at, _)| at.rsplit_once('/').unwrap().0 == path).map(|(_, item)| item).collect();
        if items.is_empty() && state.log.iter().all(|(_, collection, _)| collection != path) {
            return (404, whole(&json!({"code": 404, "message": "not found"})));
        }
        (200, whole(&json!({"metadata": {"resourceVersion": state.version.to_string()}, "items": items})))
    }

    fn patch(&self, path: &str, body: Value) -> (u16, Frames) {
        let mut object = match self.state.lock().unwrap().objects.get(path) {
            Some(object) => object.clone(),
            None => return (404, whole(&json!({"code": 404, "message": "not found"}))),
        };
        let wanted = &body["metadata"]["resourceVersion"];
        if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
            return (409, whole(&json!({"code": 409, "message": "the object has been modified"})));
        }
        for (key, text) in body["stringData"].as_object().into_iter().flatten() {
            object["data"][key] = json!(BASE64_STANDARD.encode(text.as_str().unwrap()));
        }
        for hook in body["webhooks"].as_array().into_iter().flatten() {
            let hooks = object["webhooks"].as_array_mut().unwrap();
            let ours = hooks.iter_mut().find(|ours| ours["name"] == hook["name"]).expect("no webhook is added");
            ours["clientConfig"]["caBundle"] = hook["clientConfig"]["caBundle"].clone();
        }
        *self.state.lock().unwrap().patches.entry(path.to_owned()).or_default() += 1;
        (200, whole(&self.write("MODIFIED", path, Some(object))))
    }

    fn watch(&self, path: &str, query: &str) -> Frames {
        let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap().parse::<u64>().unwrap();
        let (server, path) = (self.clone(), path.to_owned());
        stream::unfold((server.changes(), from), move |(mut changes, from)| {
            let (server, path) = (server.clone(), path.clone());
            async move {
                loop {
                    let (version, lines) = server.since(&path, from);
                    if !lines.is_empty() {
                        return Some((Ok(Frame::data(Bytes::from(lines))), (changes, version)));
                    }
                    changes.changed().await.ok()?;
                }
            }
        })
        .boxed()
    }

    fn since(&self, path: &str, from: u64) -> (u64, String) {
        let state = self.state.lock().unwrap();
        let lines = state.log.iter().filter(|(version, collection, _)| *version > from && collection == path);
        (state.version, lines.map(|(_, _, line)| line.as_str()).collect())
    }
}

fn whole(value: &Value) -> Frames {
    stream::iter([Ok(Frame::data(Bytes::from(value.to_string())))]).boxed()
}
