//! The routes of the registry server.
//!
//! Each handler turns a request into one command or one read, and nothing else.
//!
//! Invariant: every route stands in [`Route::ALL`]; the router is built from it, and a test holds the OpenAPI file against it.
//! Invariant: everything below `/v1` asks for the token before it looks at a body.
//! Absent on purpose: what a command means (`model`), sockets (`listener`), metrics (a small server; its log says what happened).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode, request::Parts};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::backup;
use super::model::Done;
use super::refusal::{Reason, Refused};
use super::store::{Answer, Command, Store};
use super::token::TokenFile;
use crate::registry::http::contract::{
    BATCH, Behaviour, ChangeList, ChangeResult, ChangeResults, ChangeSpec, Changed, NORMAL_WEIGHT, OperationWord, Service, ServiceList,
    ServiceSpec, TargetList, TargetSpec, Wanted, parse_duration,
};

/// No body is longer: a full batch with the longest names stays below.
const BODY: usize = 256 * 1024;
/// No blocking read waits longer, whatever it asks for: proxies give up on silent connections.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// No name in a request is longer: it is kept, listed and logged.
const NAME: usize = 256;

/// What the routes share.
#[derive(Clone, Debug)]
pub(super) struct Api {
    pub(super) store: Store,
    pub(super) token: Option<Arc<TokenFile>>,
    /// Services must be made before they are used.
    pub(super) strict: bool,
    /// How long a body may take.
    pub(super) body_time: Duration,
    /// True once the server shall end.
    pub(super) stopping: watch::Receiver<bool>,
}

/// A route of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Whether the process works.
    Live,
    /// Whether it takes requests.
    Ready,
    /// Every service.
    Services,
    /// One service.
    GetService,
    /// Makes a service, or says how long it drains.
    PutService,
    /// Forgets a service.
    DeleteService,
    /// Targets of a service, at once or after a change.
    Targets,
    /// Puts one target in, or drains it.
    PutTarget,
    /// Takes one target out.
    DeleteTarget,
    /// Many changes of one service.
    Changes,
    /// How acknowledgements go, for all.
    GetBehaviour,
    /// Says so.
    PutBehaviour,
    /// How acknowledgements of one service go.
    GetServiceBehaviour,
    /// Says so.
    PutServiceBehaviour,
    /// Goes back to what holds for all.
    DeleteServiceBehaviour,
    /// A whole copy of the store.
    Backup,
}

impl Route {
    /// Every route.
    pub const ALL: [Self; 16] = [
        Self::Live,
        Self::Ready,
        Self::Services,
        Self::GetService,
        Self::PutService,
        Self::DeleteService,
        Self::Targets,
        Self::PutTarget,
        Self::DeleteTarget,
        Self::Changes,
        Self::GetBehaviour,
        Self::PutBehaviour,
        Self::GetServiceBehaviour,
        Self::PutServiceBehaviour,
        Self::DeleteServiceBehaviour,
        Self::Backup,
    ];

    /// Its path, with the parameters of the OpenAPI file.
    pub fn path(self) -> &'static str {
        match self {
            Self::Live => "/livez",
            Self::Ready => "/readyz",
            Self::Services => "/v1/services",
            Self::GetService | Self::PutService | Self::DeleteService => "/v1/services/{service}",
            Self::Targets => "/v1/services/{service}/targets",
            Self::PutTarget | Self::DeleteTarget => "/v1/services/{service}/targets/{address}/{uid}",
            Self::Changes => "/v1/services/{service}/changes",
            Self::GetBehaviour | Self::PutBehaviour => "/v1/behaviour",
            Self::GetServiceBehaviour | Self::PutServiceBehaviour | Self::DeleteServiceBehaviour => "/v1/services/{service}/behaviour",
            Self::Backup => "/v1/backup",
        }
    }

    /// Its method.
    pub fn method(self) -> Method {
        match self {
            Self::Live | Self::Ready | Self::Services | Self::GetService | Self::Targets => Method::GET,
            Self::GetBehaviour | Self::GetServiceBehaviour | Self::Backup => Method::GET,
            Self::PutService | Self::PutTarget | Self::PutBehaviour | Self::PutServiceBehaviour => Method::PUT,
            Self::DeleteService | Self::DeleteTarget | Self::DeleteServiceBehaviour => Method::DELETE,
            Self::Changes => Method::POST,
        }
    }

    fn handler(self) -> MethodRouter<Api> {
        let method = MethodFilter::try_from(self.method()).expect("axum knows every method of this file");
        match self {
            Self::Live => on(method, live),
            Self::Ready => on(method, ready),
            Self::Services => on(method, services),
            Self::GetService => on(method, read_service),
            Self::PutService => on(method, put_service),
            Self::DeleteService => on(method, delete_service),
            Self::Targets => on(method, targets),
            Self::PutTarget => on(method, put_target),
            Self::DeleteTarget => on(method, delete_target),
            Self::Changes => on(method, changes),
            Self::GetBehaviour => on(method, read_behaviour),
            Self::PutBehaviour => on(method, put_behaviour),
            Self::GetServiceBehaviour => on(method, read_service_behaviour),
            Self::PutServiceBehaviour => on(method, put_service_behaviour),
            Self::DeleteServiceBehaviour => on(method, delete_service_behaviour),
            Self::Backup => on(method, back_up),
        }
    }
}

/// The router of all routes.
pub(super) fn router(api: Api) -> Router {
    let routes = Route::ALL.into_iter().fold(Router::new(), |router, route| router.route(route.path(), route.handler()));
    routes
        .method_not_allowed_fallback(async || Refused::new(Reason::MethodNotAllowed, "this path has no such method"))
        .fallback(async || Refused::new(Reason::NoSuchPath, "there is no such path"))
        .layer(from_fn_with_state(api.clone(), check_token))
        .layer(DefaultBodyLimit::max(BODY))
        .with_state(api)
}

async fn check_token(State(api): State<Api>, request: Request, next: Next) -> Response {
    if let Some(token) = &api.token
        && request.uri().path().starts_with("/v1")
        && let Err(refused) = token.check(request.headers()).await
    {
        return refused.into_response();
    }
    next.run(request).await
}

async fn live(State(api): State<Api>) -> Result<&'static str, Refused> {
    if api.store.failed() { Err(Refused::new(Reason::StoreFailed, "the store failed")) } else { Ok("ok\n") }
}

async fn ready(State(api): State<Api>) -> Result<&'static str, Refused> {
    live(State(api)).await
}

async fn services(State(api): State<Api>) -> Response {
    json(StatusCode::OK, &ServiceList { services: api.store.services() })
}

async fn read_service(State(api): State<Api>, name: ServiceName) -> Result<Response, Refused> {
    let service = match api.store.view(&name.0) {
        Some(view) => view.service.clone(),
        None if api.strict => return Err(no_service(&name.0)),
        None => Service { service: name.0.to_string(), index: 0, targets: 0, drain_delay: None },
    };
    Ok(json(StatusCode::OK, &service))
}

async fn put_service(State(api): State<Api>, name: ServiceName, Json(spec): Json<ServiceSpec>) -> Result<Response, Refused> {
    let (answer, index) = api.store.ask(Command::PutService(name.0, spec)).await;
    answer.map(|answer| json(status_of(&answer), &Changed { index }))
}

async fn delete_service(State(api): State<Api>, name: ServiceName) -> Result<Response, Refused> {
    let (answer, _) = api.store.ask(Command::DeleteService(name.0)).await;
    answer.map(|_| StatusCode::NO_CONTENT.into_response())
}

async fn targets(
    State(mut api): State<Api>,
    name: ServiceName,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(query) = query.map_err(|rejection| Refused::new(Reason::QueryInvalid, rejection.body_text()))?;
    let wait = query.wait()?;
    let mut changes = api.store.changes();
    loop {
        changes.borrow_and_update();
        let view = api.store.view(&name.0);
        if view.is_none() && api.strict {
            return Err(no_service(&name.0));
        }
        let index = view.as_ref().map_or(0, |view| view.service.index);
        let over = |(known, until): (u64, Instant)| known != index || until <= Instant::now();
        if *api.stopping.borrow() || wait.is_none_or(over) {
            let empty = || json(StatusCode::OK, &TargetList { service: name.0.to_string(), index, targets: Vec::new() });
            return Ok(view.map_or_else(empty, |view| ready_json(StatusCode::OK, view.listing.clone())));
        }
        let until = wait.map_or_else(Instant::now, |(_, until)| until);
        tokio::select! {
            // The keeper of the store ends only with the process; then there is nothing left to wait for.
            changed = changes.changed() => if changed.is_err() { return Err(Refused::new(Reason::StoreFailed, "the store failed")) },
            _ = api.stopping.wait_for(|stopping| *stopping) => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

async fn put_target(State(api): State<Api>, name: TargetName, Json(spec): Json<TargetSpec>) -> Result<Response, Refused> {
    let operation = match spec.state {
        Wanted::Active => OperationWord::Register,
        Wanted::Draining => OperationWord::Drain,
    };
    let TargetSpec { cluster, pod, weight, .. } = spec;
    let change = ChangeSpec { operation, address: name.address, uid: name.uid, cluster, pod, weight };
    one_change(api, name.service, change).await
}

async fn delete_target(State(api): State<Api>, name: TargetName) -> Result<Response, Refused> {
    let (operation, weight) = (OperationWord::Deregister, NORMAL_WEIGHT);
    let change = ChangeSpec { operation, address: name.address, uid: name.uid, cluster: None, pod: None, weight };
    one_change(api, name.service, change).await
}

async fn one_change(api: Api, service: Arc<str>, change: ChangeSpec) -> Result<Response, Refused> {
    let (mut results, index) = make(&api, service, vec![change]).await?;
    let done = results.pop().expect("one change has one result")?;
    Ok(json(if done == Done::Created { StatusCode::CREATED } else { StatusCode::OK }, &Changed { index }))
}

async fn changes(State(api): State<Api>, name: ServiceName, Json(list): Json<ChangeList>) -> Result<Response, Refused> {
    if list.changes.len() > BATCH {
        return Err(Refused::new(Reason::BodyTooLarge, format!("{} changes are more than {BATCH}", list.changes.len())));
    }
    for (place, change) in list.changes.iter().enumerate() {
        check_name(&change.uid).map_err(|why| Refused::new(Reason::BodyInvalid, format!("changes[{place}].uid {why}")))?;
    }
    let (results, index) = make(&api, name.0, list.changes).await?;
    let results = results.into_iter().map(|result| match result {
        Ok(Done::Created) => ChangeResult { status: 201, error: None },
        Ok(Done::Done) => ChangeResult { status: 200, error: None },
        Err(refused) => ChangeResult { status: refused.status().as_u16(), error: Some(refused.on_the_wire()) },
    });
    Ok(json(StatusCode::OK, &ChangeResults { index, results: results.collect() }))
}

/// Makes changes that were read, and logs each; texts of theirs that are kept are bounded here.
async fn make(api: &Api, service: Arc<str>, changes: Vec<ChangeSpec>) -> Result<(Vec<Result<Done, Refused>>, u64), Refused> {
    for change in &changes {
        let pod = change.pod.iter().flat_map(|pod| [&pod.namespace, &pod.name]);
        for text in pod.chain(&change.cluster) {
            check_name(text).map_err(|why| Refused::new(Reason::BodyInvalid, format!("cluster or pod {why}")))?;
        }
    }
    if api.strict && api.store.view(&service).is_none() {
        return Err(no_service(&service));
    }
    let told: Vec<_> = changes.iter().map(|change| (change.operation, change.address, change.uid.clone())).collect();
    let (answer, index) = api.store.ask(Command::Changes(service.clone(), changes)).await;
    let Answer::Results(results) = answer? else { return Err(Refused::new(Reason::StoreFailed, "the store answered something else")) };
    for ((operation, target, uid), result) in told.iter().zip(&results) {
        let reason = result.as_ref().err().map(|refused| tracing::field::debug(refused.reason));
        tracing::info!(service = &*service, ?operation, %target, uid, reason, "change answered");
    }
    Ok((results, index))
}

async fn read_behaviour(State(api): State<Api>) -> Response {
    json(StatusCode::OK, &api.store.behaviour(None))
}

async fn put_behaviour(State(api): State<Api>, Json(behaviour): Json<Behaviour>) -> Result<Response, Refused> {
    set_behaviour(&api, None, Some(behaviour)).await
}

async fn read_service_behaviour(State(api): State<Api>, name: ServiceName) -> Response {
    json(StatusCode::OK, &api.store.behaviour(Some(&name.0)))
}

async fn put_service_behaviour(State(api): State<Api>, name: ServiceName, Json(behaviour): Json<Behaviour>) -> Result<Response, Refused> {
    set_behaviour(&api, Some(name.0), Some(behaviour)).await
}

async fn delete_service_behaviour(State(api): State<Api>, name: ServiceName) -> Result<Response, Refused> {
    set_behaviour(&api, Some(name.0), None).await
}

async fn set_behaviour(api: &Api, service: Option<Arc<str>>, behaviour: Option<Behaviour>) -> Result<Response, Refused> {
    let (answer, _) = api.store.ask(Command::PutBehaviour(service.clone(), behaviour)).await;
    answer?;
    Ok(json(StatusCode::OK, &api.store.behaviour(service.as_deref())))
}

async fn back_up(State(api): State<Api>) -> Result<Response, Refused> {
    let file = api.store.backup().await.map_err(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "the store cannot be copied");
        Refused::new(Reason::BackupFailed, "the server cannot make a copy of its store")
    })?;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))], backup::body(file)).into_response())
}

/// What may follow the `?` of a listing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    index: Option<u64>,
    wait: Option<String>,
}

impl ListQuery {
    /// The index that is known, and the end of the wait.
    fn wait(&self) -> Result<Option<(u64, Instant)>, Refused> {
        match (self.index, &self.wait) {
            (None, None) => Ok(None),
            (Some(index), Some(wait)) => {
                let wait = parse_duration(wait).map_err(|why| Refused::new(Reason::QueryInvalid, format!("wait: {why}")))?;
                Ok(Some((index, Instant::now() + wait.min(LONGEST_WAIT))))
            }
            _ => Err(Refused::new(Reason::QueryInvalid, "index and wait say something only together")),
        }
    }
}

/// Name of a service, from the path.
struct ServiceName(Arc<str>);

impl<S: Send + Sync> FromRequestParts<S> for ServiceName {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        #[derive(Deserialize)]
        struct Names {
            service: String,
        }
        let Path(names) = Path::<Names>::from_request_parts(parts, state).await.map_err(|error| path_invalid(&error))?;
        path_name("service", &names.service).map(|()| Self(names.service.into()))
    }
}

/// Name of a target, from the path.
struct TargetName {
    service: Arc<str>,
    address: SocketAddr,
    uid: String,
}

impl<S: Send + Sync> FromRequestParts<S> for TargetName {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        #[derive(Deserialize)]
        struct Names {
            service: String,
            address: String,
            uid: String,
        }
        let Path(names) = Path::<Names>::from_request_parts(parts, state).await.map_err(|error| path_invalid(&error))?;
        path_name("service", &names.service)?;
        path_name("uid", &names.uid)?;
        let unsound = |_| Refused::new(Reason::PathInvalid, format!("{:?} is not an address with a port", names.address));
        let address = names.address.parse().map_err(unsound)?;
        Ok(Self { service: names.service.into(), address, uid: names.uid })
    }
}

/// A JSON body.
struct Json<T>(T);

impl<T: serde::de::DeserializeOwned> FromRequest<Api> for Json<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refused> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Refused::new(Reason::ContentTypeUnsupported, format!("{kind:?} is not application/json")));
        }
        let body = tokio::time::timeout(api.body_time, Bytes::from_request(request, api)).await;
        let body = body.map_err(|_| Refused::new(Reason::BodyTooSlow, "the body did not come in time"))?;
        let body = body.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Refused::new(Reason::BodyTooLarge, format!("a body may have {BODY} bytes")),
            _ => Refused::new(Reason::BodyInvalid, "the body broke off"),
        })?;
        serde_json::from_slice(&body).map(Self).map_err(|error| Refused::new(Reason::BodyInvalid, error.to_string()))
    }
}

fn path_name(what: &str, name: &str) -> Result<(), Refused> {
    check_name(name).map_err(|why| Refused::new(Reason::PathInvalid, format!("{what} {why}")))
}

/// Names are kept and shown, so they are short and printable.
fn check_name(name: &str) -> Result<(), String> {
    match name {
        "" | "." | ".." => Err(format!("may not be {name:?}")),
        name if name.len() > NAME => Err(format!("may have {NAME} bytes")),
        name if name.chars().any(char::is_control) => Err("may not hold control characters".to_owned()),
        _ => Ok(()),
    }
}

fn path_invalid(rejection: &PathRejection) -> Refused {
    Refused::new(Reason::PathInvalid, rejection.body_text())
}

fn no_service(name: &str) -> Refused {
    Refused::new(Reason::ServiceNotFound, format!("there is no service {name}"))
}

fn status_of(answer: &Answer) -> StatusCode {
    if matches!(answer, Answer::Done(Done::Created)) { StatusCode::CREATED } else { StatusCode::OK }
}

fn json<T: serde::Serialize>(status: StatusCode, value: &T) -> Response {
    ready_json(status, serde_json::to_vec(value).expect("answers have text keys only").into())
}

fn ready_json(status: StatusCode, text: Bytes) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
