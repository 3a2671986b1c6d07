//! A pod that the API server only tries (a dry run): whether it comes back prepared shows the whole way through the webhook at once.
//!
//! Invariant: pure; nothing is found where no pod could be tried.
//! Absent on purpose: sending it (`reading`).

use serde_json::{Map, Value, json};

use super::facts::Facts;
use super::finding::{Code, Finding};
use crate::config::{Binding, LabelOperator};
use crate::pod::PodView;
use crate::reconcile::cluster::ApiError;

/// What came of it.
#[derive(Debug)]
pub(super) struct Tried {
    /// In which namespace.
    pub(super) namespace: String,
    /// The pod as it would have been created, or why it would not.
    pub(super) answer: Result<PodView, ApiError>,
}

/// A namespace among `opted_in`, and a pod that one of `bindings` selects there.
pub(super) fn pod(bindings: &[Binding], opted_in: &[String]) -> Option<(String, Value)> {
    let place = |binding: &Binding| opted_in.iter().find(|namespace| binding.namespaces.holds(namespace)).cloned();
    let (namespace, binding) = bindings.iter().find_map(|binding| Some((place(binding)?, binding)))?;
    let labels: Map<String, Value> = binding
        .selector
        .requirements
        .iter()
        .filter_map(|requirement| {
            let value = match &requirement.operator {
                LabelOperator::In(values) => values.first()?.to_string(),
                LabelOperator::Exists => String::new(),
                LabelOperator::NotIn(_) | LabelOperator::DoesNotExist => return None,
            };
            Some((requirement.key.to_string(), Value::String(value)))
        })
        .collect();
    // As a namespace with the strictest Pod Security standard takes it.
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "lockstep-trial-", "namespace": namespace, "labels": labels},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "trial",
                "image": "lockstep.invalid/trial",
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    Some((namespace, pod))
}

/// Whether an answer says that the webhook could not be asked, where it must.
pub(super) fn is_unasked(error: &ApiError) -> bool {
    error.code().is_some_and(|code| code >= 500)
}

/// Whether pods are prepared.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let Some(Tried { namespace, answer }) = &facts.tried else { return Vec::new() };
    let evidence = match answer {
        Ok(pod) if pod.gated && pod.finalizer => return Vec::new(),
        Ok(_) => "a pod that a binding selects came back from a dry run without the readiness gate".to_owned(),
        Err(error) if is_unasked(error) => error.to_string(),
        Err(_) => return Vec::new(),
    };
    vec![Finding::new(
        Code::PodsNotPrepared,
        format!("Namespace {namespace}"),
        evidence,
        "its new pods get traffic before a registry knows them, or, in a `strict` namespace, are not created at all",
        "see what else is found here; docs/runbooks/LockstepAdmissionMissed.md goes through the way from the API server to the webhook",
    )]
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::commands::doctor::tests::facts;
    use crate::names;
    use crate::reconcile::kubernetes::decode;

    fn namespaces(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn it_is_a_pod_that_a_binding_selects_where_it_is_opted_in() {
        let facts = facts();
        let bindings = &facts.around.ground.bindings;
        let (namespace, pod) = pod(bindings, &namespaces(&["other", "shop"])).unwrap();
        let view = decode::pod(&pod.to_string()).unwrap();
        assert_eq!(namespace, "shop");
        assert!(bindings[0].selects(&namespace, |key| view.labels.get(key)), "{pod}");
        assert_eq!(super::pod(bindings, &namespaces(&["other"])), None, "no binding is for that namespace");
        assert_eq!(super::pod(&[], &namespaces(&["shop"])), None);
    }

    #[rstest]
    #[case::prepared(Ok(true), None)]
    #[case::let_through(Ok(false), Some(Code::PodsNotPrepared))]
    #[case::not_called(Err(500), Some(Code::PodsNotPrepared))]
    #[case::refused_by_a_policy(Err(403), None)]
    fn whether_pods_are_prepared(#[case] answer: Result<bool, u16>, #[case] code: Option<Code>) {
        let answer = match answer {
            Ok(prepared) => {
                let gates = if prepared { json!([{"conditionType": names::GATE}]) } else { json!([]) };
                let finalizers = if prepared { json!([names::FINALIZER]) } else { json!([]) };
                Ok(decode::pod(&json!({"metadata": {"finalizers": finalizers}, "spec": {"readinessGates": gates}}).to_string()).unwrap())
            }
            Err(code) => Err(ApiError::Status { code, text: "failed calling webhook".into() }),
        };
        let mut facts = facts();
        assert_eq!(check(&facts), [], "none was tried");
        facts.tried = Some(Tried { namespace: "shop".into(), answer });
        assert_eq!(check(&facts).first().map(|finding| finding.code), code);
    }
}
