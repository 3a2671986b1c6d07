//! Consul's words, as JSON carries them: the operations of a transaction, and the instances of a service.
//!
//! Pure: changes in, operations out; instances in, targets out. What is ours is told by the node, the metadata and the id together:
//!
//! | in the catalog | what it is |
//! | --- | --- |
//! | node `lockstep-CLUSTER` | holds every target of that cluster |
//! | instance `lockstep:SERVICE:UID:ADDRESS:PORT` | one target, with cluster, pod and UID in its metadata |
//! | a check of the same id | passing while the target is in use, critical once it is drained |
//!
//! Invariant: the id of an instance names one incarnation of a pod, so a late change of an old one never means a newcomer.
//! Absent on purpose: HTTP ([`super`]); weights (every instance has Consul's own default, so that ours and others share alike).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize};

use crate::registry::{Change, Listed, Operation, Stamp};
use crate::target::{PodUid, TargetState};

/// Where the node is said to be; nobody goes there, since every instance has an address of its own.
const NODE_ADDRESS: &str = "127.0.0.1";
/// Consul's default, which a transaction would not put in by itself.
const WEIGHTS: Weights = Weights { passing: 1, warning: 1 };
/// Name of our checks.
const CHECK: &str = "Lockstep";

const CLUSTER: &str = "lockstep-cluster";
const POD: &str = "lockstep-pod";
const UID: &str = "lockstep-uid";

/// Changes of one service, to be done together.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) operations: Vec<Act>,
    /// Which changes each of them is for.
    meant_for: Vec<Vec<usize>>,
}

/// One operation of a transaction.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) enum Act {
    Node(NodeAct),
    Service(ServiceAct),
    Check(CheckAct),
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NodeAct {
    verb: &'static str,
    node: Node,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ServiceAct {
    verb: &'static str,
    node: String,
    service: Service,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CheckAct {
    verb: &'static str,
    check: Check,
}

/// The operations that failed, where one did.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Failures {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) errors: Vec<Failure>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Failure {
    op_index: usize,
    what: String,
}

/// One instance of a service.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Instance {
    node: Node,
    service: Service,
    #[serde(default, deserialize_with = "null_is_empty")]
    checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    node: String,
    address: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    meta: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Service {
    #[serde(rename = "ID")]
    id: String,
    service: String,
    address: String,
    port: u16,
    weights: Weights,
    #[serde(deserialize_with = "null_is_empty")]
    meta: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Weights {
    passing: u32,
    warning: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Check {
    node: String,
    #[serde(rename = "CheckID")]
    check_id: String,
    name: String,
    status: Status,
    output: String,
    #[serde(rename = "ServiceID")]
    service_id: String,
    service_name: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Passing,
    Warning,
    Critical,
    #[default]
    #[serde(other)]
    Unknown,
}

impl Transaction {
    /// One that does all `changes`.
    pub(super) fn of<'c>(service: &str, changes: impl Iterator<Item = &'c Change>) -> Self {
        let mut all = Self::default();
        for (place, change) in changes.enumerate() {
            match change.operation {
                Operation::Register => {
                    all.need_node(change, place);
                    all.push(
                        Act::Service(ServiceAct { verb: "set", node: node(&change.cluster), service: instance(service, change) }),
                        place,
                    );
                    all.push(check(service, change, Status::Passing), place);
                }
                Operation::Drain => all.push(check(service, change, Status::Critical), place),
                Operation::Deregister => {
                    // Of the instance, Consul looks at the id, and at the name for leave to delete it. Its checks go with it.
                    let service =
                        Service { id: id(service, &change.uid, change.address), service: service.to_owned(), ..Service::default() };
                    all.push(Act::Service(ServiceAct { verb: "delete", node: node(&change.cluster), service }), place);
                }
            }
        }
        all
    }

    /// What each change failed for, as far as it is named: the first reason for each.
    pub(super) fn blame<'f>(&self, failures: &'f Failures) -> BTreeMap<usize, &'f str> {
        let mut blamed = BTreeMap::new();
        for failure in &failures.errors {
            for place in self.meant_for.get(failure.op_index).into_iter().flatten() {
                blamed.entry(*place).or_insert(failure.what.as_str());
            }
        }
        blamed
    }

    /// The node stands in front of the first that needs it.
    fn need_node(&mut self, change: &Change, place: usize) {
        match self.operations.iter().position(|act| matches!(act, Act::Node(_))) {
            Some(at) => self.meant_for[at].push(place),
            None => {
                let meta = BTreeMap::from([(CLUSTER.to_owned(), change.cluster.to_string())]);
                let node = Node { node: node(&change.cluster), address: NODE_ADDRESS.to_owned(), meta };
                self.push(Act::Node(NodeAct { verb: "set", node }), place);
            }
        }
    }

    fn push(&mut self, act: Act, place: usize) {
        self.operations.push(act);
        self.meant_for.push(vec![place]);
    }
}

impl Instance {
    /// The target that it is; none where its address is no address but a name.
    pub(super) fn listed(&self) -> Option<Listed> {
        // As everywhere in Consul, an instance without an address is where its node is.
        let address = if self.service.address.is_empty() { &self.node.address } else { &self.service.address };
        let address = SocketAddr::new(address.parse::<IpAddr>().ok()?, self.service.port);
        let stamp = self.stamp(address);
        Some(Listed { address, state: self.state(stamp.is_some()), stamp })
    }

    /// Whose it is, if everything agrees: only then would a change of ours mean it.
    fn stamp(&self, address: SocketAddr) -> Option<Stamp> {
        let (cluster, uid) = (self.service.meta.get(CLUSTER)?, self.service.meta.get(UID)?);
        let uid = PodUid::new(uid.as_str());
        let agrees = self.node.node == node(cluster) && self.service.id == id(&self.service.service, &uid, address);
        agrees.then(|| Stamp { cluster: cluster.as_str().into(), uid })
    }

    fn state(&self, stamped: bool) -> TargetState {
        let (own, others): (Vec<&Check>, Vec<&Check>) = self.checks.iter().partition(|check| stamped && check.check_id == self.service.id);
        let own = own.first().map(|check| check.status);
        match own {
            Some(Status::Critical) => TargetState::Draining,
            // Consul would use it, but nobody can drain it until it is written again.
            None if stamped => TargetState::Unhealthy,
            _ if others.iter().any(|check| check.status == Status::Critical) => TargetState::Unhealthy,
            _ => TargetState::Active,
        }
    }
}

/// Name of the node that holds the targets of a cluster.
fn node(cluster: &str) -> String {
    format!("lockstep-{cluster}")
}

fn id(service: &str, uid: &PodUid, address: SocketAddr) -> String {
    format!("lockstep:{service}:{uid}:{}:{}", address.ip(), address.port())
}

fn instance(service: &str, change: &Change) -> Service {
    let stamp = [(CLUSTER, change.cluster.to_string()), (POD, change.pod.to_string()), (UID, change.uid.to_string())];
    Service {
        id: id(service, &change.uid, change.address),
        service: service.to_owned(),
        address: change.address.ip().to_string(),
        port: change.address.port(),
        weights: WEIGHTS,
        meta: stamp.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}

fn check(service: &str, change: &Change, status: Status) -> Act {
    let id = id(service, &change.uid, change.address);
    let output = if status == Status::Passing { "the pod is in use" } else { "the pod is drained" };
    let check = Check {
        node: node(&change.cluster),
        check_id: id.clone(),
        name: CHECK.to_owned(),
        status,
        output: output.to_owned(),
        service_id: id,
        // Consul finds it by itself, but asks the ACLs about what stands here.
        service_name: service.to_owned(),
    };
    Act::Check(CheckAct { verb: "set", check })
}

/// Go writes an empty list or map as `null` now and then.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::target::PodKey;

    fn change(operation: Operation, uid: &str) -> Change {
        let (address, pod) = ("[fd00::1]:80".parse().unwrap(), PodKey::new("shop", "web-1"));
        Change { operation, address, uid: PodUid::new(uid), pod, cluster: "here".into(), weight: 100 }
    }

    #[test]
    fn a_transaction_has_the_node_once_and_blames_each_change_for_its_own() {
        let changes = [
            change(Operation::Deregister, "a"),
            change(Operation::Register, "b"),
            change(Operation::Drain, "c"),
            change(Operation::Register, "d"),
        ];
        let transaction = Transaction::of("web", changes.iter());
        let acts: Vec<&str> = transaction
            .operations
            .iter()
            .map(|act| match act {
                Act::Node(_) => "node",
                Act::Service(act) => act.verb,
                Act::Check(_) => "check",
            })
            .collect();
        assert_eq!(acts, ["delete", "node", "set", "check", "check", "set", "check"]);
        let failures = |ops: &[usize]| {
            let errors: Vec<_> = ops.iter().map(|op| json!({"OpIndex": op, "What": format!("{op} failed")})).collect();
            serde_json::from_value::<Failures>(json!({"Results": null, "Errors": errors})).unwrap()
        };
        let blamed =
            |ops: &[usize]| transaction.blame(&failures(ops)).into_iter().map(|(of, what)| format!("{of}: {what}")).collect::<Vec<_>>();
        assert_eq!(blamed(&[1]), ["1: 1 failed", "3: 1 failed"], "the node is everybody's who registers");
        assert_eq!(blamed(&[2, 3, 4]), ["1: 2 failed", "2: 4 failed"]);
        assert_eq!(blamed(&[99]), [] as [&str; 0]);
    }

    #[test]
    fn what_is_registered_is_found_again() {
        let change = change(Operation::Register, "u");
        let node = Node { node: node("here"), address: NODE_ADDRESS.to_owned(), meta: BTreeMap::new() };
        let Act::Check(CheckAct { check, .. }) = check("web", &change, Status::Passing) else { panic!("a check") };
        let found = Instance { node, service: instance("web", &change), checks: vec![check] };
        let stamp = Some(Stamp { cluster: "here".into(), uid: PodUid::new("u") });
        assert_eq!(found.listed(), Some(Listed { address: change.address, state: TargetState::Active, stamp }));
        assert_eq!(found.service.id, "lockstep:web:u:fd00::1:80");
    }

    #[rstest]
    #[case::none("{}", Some(0))]
    #[case::null(r#"{"Errors": null}"#, Some(0))]
    #[case::one(r#"{"Errors": [{"OpIndex": 0, "What": "no"}]}"#, Some(1))]
    #[case::without_words(r#"{"Errors": [{"OpIndex": 0}]}"#, None)]
    fn failures_are_read(#[case] text: &str, #[case] count: Option<usize>) {
        assert_eq!(serde_json::from_str::<Failures>(text).ok().map(|failures| failures.errors.len()), count);
    }

    #[rstest]
    #[case::short(
        r#"{"Node":{"Node":"n","Address":"10.0.0.9"},"Service":{"ID":"x","Service":"web","Port":80},"Checks":null}"#,
        Some("10.0.0.9:80")
    )]
    #[case::nulls(
        r#"{"Node":{"Node":"n","Address":"10.0.0.9","Meta":null},"Service":{"Address":"fd00::1","Port":80,"Meta":null}}"#,
        Some("[fd00::1]:80")
    )]
    #[case::a_name(r#"{"Node":{"Node":"n","Address":"10.0.0.9"},"Service":{"Address":"web.example","Port":80}}"#, None)]
    #[case::another_status(
        r#"{"Node":{"Node":"n","Address":"10.0.0.9"},"Service":{"Port":80},"Checks":[{"Status":"maintenance"}]}"#,
        Some("10.0.0.9:80")
    )]
    fn instances_of_others_are_read(#[case] text: &str, #[case] address: Option<&str>) {
        let listed = serde_json::from_str::<Instance>(text).unwrap().listed();
        assert_eq!(listed.as_ref().map(|listed| listed.address.to_string()).as_deref(), address);
        assert!(listed.is_none_or(|listed| listed.stamp.is_none() && listed.state == TargetState::Active));
    }
}
