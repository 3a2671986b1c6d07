//! The http driver: an open REST contract, published as `docs/registry-http.openapi.yaml`.
//!
//! Facts, all from that contract, which `lockstep registry` serves and a test holds against it:
//! - a target is named by address, port and the UID of its pod, so a request for one never means a newcomer at its address;
//! - one request carries up to 100 changes of one service and answers each by itself;
//! - a change that was answered is listed by every read begun after it; a registered target is active once it is listed as `active`;
//! - a listing carries an index; a read with `?index=&wait=` is answered when the index is another one or the time is over.
//!
//! Invariant: every change names the cluster, so that the server refuses it on a foreign target.
//! Absent on purpose: everything that the contract has for people and tests (services by hand, behaviour).

pub mod contract;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{Method, StatusCode};
use reqwest::{RequestBuilder, Url};
use serde::de::DeserializeOwned;

use self::contract::{BATCH, ChangeList, ChangeResult, ChangeResults, ChangeSpec, OperationWord, PodName, Refusal, SERVICE_FULL};
use crate::config::HttpConfig;
use crate::reconcile::OpenError;
use crate::registry::credentials::Credential;
use crate::registry::endpoint::{Answered, Endpoint};
use crate::registry::text::bounded;
use crate::registry::{
    CallError, Capabilities, Change, ChangeError, DrainKind, GoneWhen, Listed, Listing, Operation, Registry, Stamp, TargetKeys, Wait,
};

/// Between two reads where a server does not block although it should.
const POLL: Duration = Duration::from_secs(1);

/// A registry of the open contract.
#[derive(Debug)]
pub struct Http {
    endpoint: Endpoint,
    token: Option<Credential>,
}

impl Http {
    /// The registry that `config` describes; credential files are those of `credentials`. Does no I/O.
    pub fn new(config: &HttpConfig, registry: &Arc<str>, credentials: &Path) -> Result<Self, OpenError> {
        let endpoint = Endpoint::new(&config.url, config.ca.as_deref(), registry, credentials)?;
        let token = config.token.as_deref().map(|name| Credential::new(credentials, registry, name)).transpose()?;
        Ok(Self { endpoint, token })
    }

    async fn request(&self, method: Method, service: &str, below: &[&str]) -> Result<RequestBuilder, CallError> {
        // An empty or dotted part would vanish from the path and make it another one.
        if matches!(service, "" | "." | "..") {
            return Err(CallError::ServiceMissing(format!("{service:?} cannot be the name of a service")));
        }
        let url: Url = self.endpoint.url(&[&["v1", "services", service], below].concat());
        let request = self.endpoint.request(method, url).await?;
        match &self.token {
            Some(token) => Ok(request.header(AUTHORIZATION, format!("Bearer {}", token.read_token().await?))),
            None => Ok(request),
        }
    }

    async fn call<T: DeserializeOwned>(&self, request: RequestBuilder, wait: Duration) -> Result<T, CallError> {
        let answer = self.endpoint.send(request, wait).await?;
        // Whoever stands before the registry, or in its place, knows nothing of services.
        let strange = answer.status == StatusCode::NOT_FOUND && serde_json::from_slice::<Refusal>(&answer.body).is_err();
        let answer = answer.success(said).map_err(|error| match error {
            CallError::ServiceMissing(text) if strange => CallError::Failed(format!("{text}; is the url that of the registry?")),
            error => error,
        })?;
        let unreadable = |error| CallError::Failed(bounded(&format!("its answer cannot be read: {error}")));
        serde_json::from_slice(&answer.body).map_err(unreadable)
    }
}

impl Registry for Http {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            drain: DrainKind::Explicit,
            keys: TargetKeys::Exact,
            stamps: true,
            blocking_read: true,
            batch: NonZeroUsize::new(BATCH).expect("a batch is not empty"),
            gone_when: GoneWhen::Absent,
            poll: POLL,
        }
    }

    async fn list(&self, service: &str, wait: Option<Wait>) -> Result<Listing, CallError> {
        let mut request = self.request(Method::GET, service, &["targets"]).await?;
        if let Some(wait) = wait {
            let at_most = format!("{}ms", wait.at_most.as_millis());
            request = request.query(&[("index", wait.index.to_string()), ("wait", at_most)]);
        }
        let at_most = wait.map_or(Duration::ZERO, |wait| wait.at_most);
        let list: contract::TargetList = self.call(request, at_most).await?;
        let targets = list.targets.into_iter().map(|target| Listed {
            address: target.address,
            state: target.state,
            stamp: target.cluster.map(|cluster| Stamp { cluster: cluster.into(), uid: crate::target::PodUid::new(target.uid) }),
        });
        Ok(Listing { targets: targets.collect(), index: Some(list.index), unfinished: false })
    }

    async fn apply(&self, service: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let request = self.request(Method::POST, service, &["changes"]).await?;
        let list = ChangeList { changes: changes.iter().map(spec).collect() };
        let answer: ChangeResults = self.call(request.json(&list), Duration::ZERO).await?;
        if answer.results.len() != changes.len() {
            return Err(CallError::Failed(format!("it answered {} results for {} changes", answer.results.len(), changes.len())));
        }
        Ok(answer.results.into_iter().zip(changes).map(|(result, change)| outcome(result, change.operation)).collect())
    }

    async fn drain_delay(&self, service: &str) -> Result<Option<Duration>, CallError> {
        let request = self.request(Method::GET, service, &[]).await?;
        let service: contract::Service = self.call(request, Duration::ZERO).await?;
        Ok(service.drain_delay)
    }
}

fn spec(change: &Change) -> ChangeSpec {
    ChangeSpec {
        operation: match change.operation {
            Operation::Register => OperationWord::Register,
            Operation::Drain => OperationWord::Drain,
            Operation::Deregister => OperationWord::Deregister,
        },
        address: change.address,
        uid: change.uid.as_str().to_owned(),
        cluster: Some(change.cluster.to_string()),
        pod: Some(PodName { namespace: change.pod.namespace.to_string(), name: change.pod.name.to_string() }),
        weight: change.weight,
    }
}

fn outcome(result: ChangeResult, operation: Operation) -> Result<(), ChangeError> {
    if (200..300).contains(&result.status) {
        return Ok(());
    }
    let reason = result.error.as_ref().map(|error| error.reason.clone()).unwrap_or_default();
    let text = result.error.map_or_else(|| format!("it answered {}", result.status), |error| words(&error));
    Err(match (result.status, operation) {
        (404, Operation::Drain | Operation::Deregister) => ChangeError::NotFound,
        (401 | 403, _) => ChangeError::Denied(text),
        (429, _) => ChangeError::Throttled(text),
        _ if reason == SERVICE_FULL => ChangeError::Full(text),
        _ => ChangeError::Refused(text),
    })
}

/// The server's own words for a refusal.
fn said(answer: &Answered) -> String {
    match serde_json::from_slice::<Refusal>(&answer.body) {
        Ok(refusal) => words(&refusal),
        Err(_) => bounded(&String::from_utf8_lossy(&answer.body)),
    }
}

fn words(refusal: &Refusal) -> String {
    bounded(&format!("{} ({}). {}", refusal.message, refusal.reason, refusal.remedy))
}
