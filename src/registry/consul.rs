//! The consul driver: instances of a service in Consul's catalog, on a node that no agent has.
//!
//! Facts (Consul's API pages on `/txn`, `/health` and blocking queries; tried on 1.14.11):
//! - a transaction is done whole or not at all, and names every operation that failed, so that the others can be sent again at once;
//! - a drain of what is not there fails (`Missing service registration`), a deletion of what is not there is done;
//! - writing again what stands already moves no index and wakes nobody;
//! - an agent erases what it does not know from its own node, and only there; a node without an agent stays when its last service goes;
//! - a read with `consistent` fails where the leader cannot ask its peers; one that waits was consistent when it began;
//! - the index of a service may go backwards (a restored snapshot), and a wait for an old one would last its whole time;
//! - what a token may not read is left out without an error. With a token a header says so; without one nothing does.
//!
//! Invariant: a listing from which something may have been left out is an error: it would pass for an acknowledgement that a target is gone.
//! Invariant: a change names an instance of our node by our id of it, so nobody else's is ever touched.
//! Absent on purpose: agents (their health checks and their anti-entropy are for what runs beside them), namespaces, peering, Connect.

mod catalog;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use reqwest::{RequestBuilder, Url};
use serde::de::DeserializeOwned;

use self::catalog::{Failures, Instance, Transaction};
use crate::config::ConsulConfig;
use crate::reconcile::OpenError;
use crate::registry::credentials::Credential;
use crate::registry::endpoint::{Answered, Endpoint};
use crate::registry::text::bounded;
use crate::registry::{
    CallError, Capabilities, Change, ChangeError, DrainKind, GoneWhen, Listing, Operation, Registry, TargetKeys, Wait, in_time,
};

/// Older versions take 64 operations in a transaction: one for the node, two for each target.
const BATCH: usize = 31;
/// Between two reads where there is no index to wait from, as after one went backwards.
const POLL: Duration = Duration::from_secs(1);
/// Consul waits up to this part longer than it was told.
const SPREAD: u32 = 16;

const TOKEN: &str = "x-consul-token";
const INDEX: &str = "x-consul-index";
const LEFT_OUT: &str = "x-consul-results-filtered-by-acls";
const DEFAULT_POLICY: &str = "x-consul-default-acl-policy";

/// The catalog of one Consul datacenter.
#[derive(Debug)]
pub struct Consul {
    endpoint: Endpoint,
    token: Option<Credential>,
}

impl Consul {
    /// The registry that `config` describes; credential files are those of `credentials`. Does no I/O.
    pub fn new(config: &ConsulConfig, registry: &Arc<str>, credentials: &Path) -> Result<Self, OpenError> {
        let endpoint = Endpoint::new(&config.address, config.ca.as_deref(), registry, credentials)?;
        let token = config.token.as_deref().map(|name| Credential::new(credentials, registry, name)).transpose()?;
        Ok(Self { endpoint, token })
    }

    async fn request(&self, method: Method, url: Url) -> Result<RequestBuilder, CallError> {
        let request = self.endpoint.request(method, url).await?;
        match &self.token {
            Some(token) => Ok(request.header(TOKEN, token.read_token().await?)),
            None => Ok(request),
        }
    }

    /// Does the changes, but for those that fail: all of them together, then again without those that the answer names.
    async fn transactions(&self, service: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        let mut results = vec![Ok(()); changes.len()];
        let mut left: Vec<usize> = (0..changes.len()).collect();
        while !left.is_empty() {
            let transaction = Transaction::of(service, left.iter().map(|place| &changes[*place]));
            let failures = self.transact(&transaction).await?;
            if failures.errors.is_empty() {
                break;
            }
            for (place, text) in transaction.blame(&failures) {
                let place = left[place];
                results[place] = Err(refusal(text, changes[place].operation));
            }
            let before = left.len();
            left.retain(|place| results[*place].is_ok());
            if left.len() == before {
                return Err(CallError::Failed("it names no change that failed, and did none".to_owned()));
            }
        }
        Ok(results)
    }

    async fn transact(&self, transaction: &Transaction) -> Result<Failures, CallError> {
        let request = self.request(Method::PUT, self.endpoint.url(&["v1", "txn"])).await?.json(&transaction.operations);
        let answer = self.endpoint.send(request, Duration::ZERO).await?;
        if answer.status == StatusCode::CONFLICT { read(&answer) } else { success(answer).map(|_| Failures::default()) }
    }

    /// Whether Consul may have left something out of an answer to us.
    fn left_out(&self, headers: &HeaderMap, service: &str) -> Option<CallError> {
        let says = |name, value: &str| headers.get(name).is_some_and(|header| header == value);
        let service = bounded(service);
        if says(LEFT_OUT, "true") {
            let rights = format!("give it service:write on {service} and node:read on every node");
            return Some(CallError::Denied(format!("the token may not read every instance of {service}; {rights}")));
        }
        if self.token.is_none() && says(DEFAULT_POLICY, "deny") {
            return Some(CallError::Denied("its ACLs are enabled; name a token".to_owned()));
        }
        None
    }
}

impl Registry for Consul {
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
        check_name(service)?;
        let mut url = self.endpoint.url(&["v1", "health", "service", service]);
        url.set_query(Some("consistent"));
        let mut request = self.request(Method::GET, url).await?;
        let mut at_most = Duration::ZERO;
        if let Some(wait) = wait {
            at_most = wait.at_most;
            let told = (at_most - at_most / (SPREAD + 1)).as_millis().max(1);
            request = request.query(&[("index", wait.index.to_string()), ("wait", format!("{told}ms"))]);
        }
        let answer = success(self.endpoint.send(request, at_most).await?)?;
        if let Some(error) = self.left_out(&answer.headers, service) {
            return Err(error);
        }
        let instances: Vec<Instance> = read(&answer)?;
        let targets = instances.iter().filter_map(Instance::listed).collect();
        Ok(Listing { targets, index: index(&answer.headers, wait), unfinished: false })
    }

    async fn apply(&self, service: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        check_name(service)?;
        in_time(self.transactions(service, changes)).await
    }

    async fn drain_delay(&self, _service: &str) -> Result<Option<Duration>, CallError> {
        Ok(None)
    }
}

/// An empty or dotted part would vanish from the path and make it another one.
fn check_name(service: &str) -> Result<(), CallError> {
    if matches!(service, "" | "." | "..") {
        return Err(CallError::ServiceMissing(format!("{service:?} cannot be the name of a service")));
    }
    Ok(())
}

/// The answer, if its status is a good one. Consul knows every service, if only as an empty one: what is missing is the path.
fn success(answer: Answered) -> Result<Answered, CallError> {
    let error = |error| match error {
        CallError::ServiceMissing(text) => CallError::Failed(format!("{text}; is the address that of Consul's HTTP API?")),
        other => other,
    };
    answer.success(|answer| String::from_utf8_lossy(&answer.body).into_owned()).map_err(error)
}

fn read<T: DeserializeOwned>(answer: &Answered) -> Result<T, CallError> {
    serde_json::from_slice(&answer.body).map_err(|error| CallError::Failed(bounded(&format!("its answer cannot be read: {error}"))))
}

/// Where the next read may wait from: nowhere, if the index went backwards.
fn index(headers: &HeaderMap, wait: Option<Wait>) -> Option<u64> {
    let index: u64 = headers.get(INDEX)?.to_str().ok()?.parse().ok()?;
    (index > 0 && wait.is_none_or(|wait| index >= wait.index)).then_some(index)
}

/// What Consul has against one change.
fn refusal(text: &str, operation: Operation) -> ChangeError {
    match text {
        _ if text.starts_with("Permission denied") => ChangeError::Denied(bounded(text)),
        "Missing service registration" | "Missing node registration" if operation == Operation::Drain => ChangeError::NotFound,
        _ => ChangeError::Refused(bounded(text)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::first("7", None, Some(7))]
    #[case::same("7", Some(7), Some(7))]
    #[case::later("9", Some(7), Some(9))]
    #[case::backwards("3", Some(7), None)]
    #[case::zero("0", None, None)]
    #[case::no_number("soon", None, None)]
    fn an_index_that_went_backwards_is_forgotten(#[case] header: &'static str, #[case] waited: Option<u64>, #[case] next: Option<u64>) {
        let headers = HeaderMap::from_iter([(INDEX.parse().unwrap(), header.parse().unwrap())]);
        let wait = waited.map(|index| Wait { index, at_most: Duration::ZERO });
        assert_eq!(index(&headers, wait), next);
    }

    #[rstest]
    #[case("Permission denied: token lacks permission 'service:write'", Operation::Drain, true)]
    #[case("Missing node registration", Operation::Register, false)]
    fn refusals(#[case] text: &str, #[case] operation: Operation, #[case] denied: bool) {
        let error = refusal(text, operation);
        assert_eq!(error, if denied { ChangeError::Denied(text.to_owned()) } else { ChangeError::Refused(text.to_owned()) });
    }
}
