//! The rights that `serve` needs, and a look at the start whether it has them.
//!
//! A missing right shows late and far away: a gate that never opens, a takeover that fails. So every one is asked for by name when the
//! program starts (SelfSubjectAccessReview, which everybody may send), and what is missing is said with what will not work.
//!
//! Invariant: the rules here and those of the chart are the same, rule by rule; a test holds them together.
//! Absent on purpose: stopping; a replica with a missing right still answers reviews.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::json;

use crate::metrics::Metrics;
use crate::names;
use crate::reconcile::cluster::ApiError;
use crate::reconcile::kubernetes::Api;
use crate::reconcile::kubernetes::api;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const REVIEWS_OF_OTHERS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// One rule of a role.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// API group; empty for the core.
    pub group: &'static str,
    /// Resource, with its sub-resource as in `pods/status`.
    pub resource: &'static str,
    /// What may be done.
    pub verbs: &'static [&'static str],
    /// To which objects; all of them if empty.
    pub names: &'static [&'static str],
    /// Where.
    pub place: Place,
    /// What does not work without it.
    pub without: &'static str,
}

/// Where a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the whole cluster.
    Cluster,
    /// In our own namespace.
    Own,
    /// In our own namespace, where the certificate is of our own CA.
    OwnCertificate,
}

/// Every right that `serve` needs.
pub const RULES: &[Rule] = &[
    rule("", "pods", &["get", "list", "watch"], &[], "no pod is registered"),
    rule("", "pods/status", &["patch"], &[], "no gate opens and no finalizer goes"),
    rule("", "nodes", &["list", "watch"], &[], "lost nodes go unnoticed, and no pod is prepared"),
    rule("", "namespaces", &["list", "watch"], &[], "pods that ran before the opt-in are not adopted"),
    rule("", "events", &["create", "patch"], &[], "nobody is told of findings and trouble"),
    rule(
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        &["list", "watch", "patch"],
        &[names::WEBHOOK_CONFIGURATION],
        "API servers do not trust the webhook",
    ),
    rule(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        &["list", "watch", "patch"],
        &[names::WEBHOOK_CONFIGURATION],
        "a bad configuration is not refused when it is applied",
    ),
    rule("", "configmaps", &["list", "watch"], &[names::CONFIG_MAP], "there is no configuration").at(Place::Own),
    rule(
        "",
        "configmaps",
        &["get", "patch"],
        &[names::DEBTS_CONFIG_MAP, names::LAST_GOOD_CONFIG_MAP],
        "debts are lost, and a restart does not survive a bad configuration",
    )
    .at(Place::Own),
    rule("", "secrets", &["get", "list", "watch", "patch"], &[names::CERTIFICATE_SECRET], "there is no certificate to serve")
        .at(Place::OwnCertificate),
    rule("coordination.k8s.io", "leases", &["get", "patch"], &[names::LEASE], "no replica reconciles").at(Place::Own),
];

/// The rights that a ServiceAccount of ours lacks, each with what does not work without it; whoever asks needs the right to ask.
pub(crate) async fn lacking(api: &Api, namespace: &str, account: &str) -> Result<BTreeMap<String, &'static str>, ApiError> {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let mut missing = BTreeMap::new();
    // Whether there is a CA of our own is not known from outside, so its Secret is not asked for.
    for right in rights(false) {
        if !has(api, &right, namespace, Some(&user)).await? {
            missing.insert(right.to_string(), right.rule.without);
        }
    }
    Ok(missing)
}

/// Asks for every right, says which are missing, and counts them.
pub async fn review(api: Api, namespace: String, own_certificate: bool, metrics: &Metrics) {
    let mut missing = 0;
    for right in rights(own_certificate) {
        match has(&api, &right, &namespace, None).await {
            Ok(true) => {}
            Ok(false) => {
                missing += 1;
                tracing::error!(operation = %right, reason = right.rule.without, "a right is missing; compare the roles with those of the chart");
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "rights cannot be looked at; going on without");
                return;
            }
        }
    }
    metrics.missing_rights.set(missing);
}

/// A rule that holds in the whole cluster.
const fn rule(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    names: &'static [&'static str],
    without: &'static str,
) -> Rule {
    Rule { group, resource, verbs, names, place: Place::Cluster, without }
}

impl Rule {
    const fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }
}

/// One verb on one object, or on all of a kind.
struct Right {
    rule: &'static Rule,
    verb: &'static str,
    name: &'static str,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.rule.resource)?;
        if self.name.is_empty() { Ok(()) } else { write!(f, " {}", self.name) }
    }
}

fn rights(own_certificate: bool) -> impl Iterator<Item = Right> {
    let rules = RULES.iter().filter(move |rule| own_certificate || rule.place != Place::OwnCertificate);
    rules.flat_map(|rule| {
        let names = if rule.names.is_empty() { &[""][..] } else { rule.names };
        rule.verbs.iter().flat_map(move |verb| names.iter().map(move |name| Right { rule, verb, name }))
    })
}

/// Whether `user` has it, or whoever asks.
async fn has(api: &Api, right: &Right, namespace: &str, user: Option<&str>) -> Result<bool, ApiError> {
    #[derive(Deserialize)]
    struct Review {
        status: Status,
    }
    #[derive(Deserialize)]
    struct Status {
        allowed: bool,
    }
    let (resource, subresource) = right.rule.resource.split_once('/').unwrap_or((right.rule.resource, ""));
    let namespace = if right.rule.place == Place::Cluster { "" } else { namespace };
    let (path, kind) = if user.is_some() { (REVIEWS_OF_OTHERS, "SubjectAccessReview") } else { (REVIEWS, "SelfSubjectAccessReview") };
    let mut body = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": kind,
        "spec": { "resourceAttributes": {
            "group": right.rule.group, "resource": resource, "subresource": subresource,
            "verb": right.verb, "name": right.name, "namespace": namespace,
        } },
    });
    if let Some(user) = user {
        body["spec"]["user"] = user.into();
    }
    let answer = api.create(path, &body).await?;
    Ok(api::decode::<Review>(&answer)?.status.allowed)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    /// An API server that denies what `denied` says.
    fn api(denied: fn(&Value) -> bool) -> Api {
        let answer = move |request: http::Request<Body>| async move {
            assert_eq!(request.uri().path(), REVIEWS);
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            let allowed = !denied(&review["spec"]["resourceAttributes"]);
            Ok::<_, Infallible>(http::Response::new(Body::from(json!({ "status": { "allowed": allowed } }).to_string().into_bytes())))
        };
        Api::new(kube::Client::new(tower::service_fn(answer), "default"))
    }

    async fn missing(denied: fn(&Value) -> bool, own_certificate: bool) -> i64 {
        let metrics = Metrics::new();
        review(api(denied), "lockstep-system".into(), own_certificate, &metrics).await;
        metrics.missing_rights.get()
    }

    #[tokio::test]
    async fn each_missing_verb_on_each_object_counts() {
        assert_eq!(missing(|_| false, true).await, 0);
        assert_eq!(missing(|right| right["resource"] == "pods" && right["subresource"] == "status", true).await, 1);
        assert_eq!(missing(|right| right["name"] == names::DEBTS_CONFIG_MAP, true).await, 2);
        assert_eq!(missing(|right| right["resource"] == "secrets", true).await, 4);
        assert_eq!(missing(|right| right["resource"] == "secrets", false).await, 0, "nobody needs it");
        assert_eq!(missing(|right| right["resource"] == "leases" && right["namespace"] != "lockstep-system", true).await, 0);
        assert_eq!(missing(|right| right["resource"] == "pods" && right["namespace"] != "", true).await, 0);
    }
}
