//! Workloads, as people name them: what a pod belongs to.
//!
//! Invariant: a pod of a Deployment is named after the Deployment, not after the ReplicaSet between them.
//! Absent on purpose: asking the API server; the pod itself tells enough.

use crate::pod::{Owner, PodView};

/// Label that a ReplicaSet of a Deployment gives its pods; its name is the Deployment's with this behind it.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Short words that kubectl takes for kinds.
const SHORT: [(&str, &str); 4] = [("deploy", "deployment"), ("sts", "statefulset"), ("ds", "daemonset"), ("rs", "replicaset")];

/// A workload as somebody typed it: `NAME` or `KIND/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    kind: Option<String>,
    name: String,
}

impl Named {
    /// Takes it as it was typed.
    pub(super) fn parse(text: &str) -> Self {
        let (kind, name) = text.split_once('/').map_or((None, text), |(kind, name)| (Some(kind.to_lowercase()), name));
        let singular = |kind: String| {
            let long = SHORT.iter().find(|(short, _)| *short == kind).map(|(_, long)| (*long).to_owned());
            long.unwrap_or_else(|| kind.strip_suffix('s').map(str::to_owned).unwrap_or(kind))
        };
        Self { kind: kind.map(singular), name: name.to_owned() }
    }

    /// Whether it means the workload of that kind and name.
    pub(super) fn means(&self, kind: &str, name: &str) -> bool {
        self.name == name && self.kind.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(kind))
    }
}

/// Kind and name of what people call the workload of a pod.
pub(super) fn of(pod: &PodView) -> (String, String) {
    let Some(Owner { kind, name, .. }) = &pod.controller else { return ("Pod".to_owned(), pod.key.name.to_string()) };
    let deployment = pod.labels.get(TEMPLATE_HASH).filter(|_| kind == "ReplicaSet").and_then(|hash| name.strip_suffix(hash));
    match deployment.and_then(|name| name.strip_suffix('-')) {
        Some(name) => ("Deployment".to_owned(), name.to_owned()),
        None => (kind.clone(), name.clone()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::reconcile::kubernetes::decode;

    #[rstest]
    #[case("web", true)]
    #[case("deployment/web", true)]
    #[case("Deployments/web", true)]
    #[case("deploy/web", true)]
    #[case("statefulset/web", false)]
    #[case("deployment/other", false)]
    #[case("", false)]
    fn kinds_are_named_as_kubectl_has_them(#[case] typed: &str, #[case] means: bool) {
        assert_eq!(Named::parse(typed).means("Deployment", "web"), means);
    }

    #[rstest]
    #[case(Some(("ReplicaSet", "web-6fb4")), "Deployment", "web")]
    #[case(Some(("ReplicaSet", "6fb4")), "ReplicaSet", "6fb4")]
    #[case(Some(("ReplicaSet", "by-hand")), "ReplicaSet", "by-hand")]
    #[case(Some(("StatefulSet", "db-6fb4")), "StatefulSet", "db-6fb4")]
    #[case(None, "Pod", "web-6fb4-x")]
    fn a_pod_tells_its_workload(#[case] owner: Option<(&str, &str)>, #[case] kind: &str, #[case] name: &str) {
        let owner = owner.map(|(kind, name)| json!([{"kind": kind, "name": name, "uid": "o", "controller": true}]));
        let pod = json!({"metadata": {"name": "web-6fb4-x", "labels": {"pod-template-hash": "6fb4"}, "ownerReferences": owner}});
        assert_eq!(of(&decode::pod(&pod.to_string()).unwrap()), (kind.to_owned(), name.to_owned()));
    }
}
