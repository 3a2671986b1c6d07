//! Checks of Lockstep itself: does it run, is it called, is it trusted, may it do what it must.
//!
//! Invariant: pure; what could not be read is never found fault with.
//! Absent on purpose: workloads and pods.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::facts::Facts;
use super::finding::{Code, Finding};
use crate::certificates::bundle;
use crate::commands::status::outlook::span;
use crate::commands::surroundings::last_held;
use crate::names;
use crate::reconcile::cluster::LeaseRecord;

/// A CA of our own is renewed long before; one that ends within this time is not.
const SOON: SignedDuration = SignedDuration::from_hours(14 * 24);
/// Where the chart's own form of everything is put back.
const UPGRADE: &str = "put the chart's own form back with `helm upgrade --reset-then-reuse-values`; helm 4 wants --force-conflicts where \
     somebody else wrote it (docs/upgrading.md)";
/// A Lease that no replica has renewed for so long is not in the hands of one, whatever it says of its own duration.
const UNRENEWED: SignedDuration = SignedDuration::from_secs(60);

/// The selectors of a webhook, and the labels that the chart asks for in each.
const SELECTED: [(&str, &[&str]); 2] =
    [("namespaceSelector", &[names::INJECT_LABEL, "kubernetes.io/metadata.name"]), ("objectSelector", &[names::INJECT_LABEL])];

/// All that is wrong with the install.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    [nobody_reconciles(facts), replicas(facts), webhook(facts), certificate(facts), configuration(facts), rights(facts)]
        .into_iter()
        .flatten()
        .collect()
}

fn nobody_reconciles(facts: &Facts) -> Vec<Finding> {
    let Some(lease) = &facts.around.lease else { return Vec::new() };
    let own = &facts.own_namespace;
    let stranger = is_strange(lease, facts);
    if lease.is_held(facts.now) && !stranger {
        return Vec::new();
    }
    let anew = format!("`kubectl delete lease {} --namespace {own}`, then `helm upgrade`, which makes an empty one", names::LEASE);
    let change = match () {
        () if lease.holder == names::RELEASE_HOLDER => format!("uninstall Lockstep; or come back: {anew}"),
        () if stranger => anew,
        () if facts.is_down() == Some(true) => {
            format!(
                "no replica is there: see `kubectl get deployment,pods --namespace {own}`, and `kubectl scale deployment/lockstep` up again"
            )
        }
        () if lease.renewed.is_none() => "where replicas run, there is no Lease for them: `helm upgrade` makes an empty one".to_owned(),
        () => format!("see why no replica runs: `kubectl get pods --namespace {own}`"),
    };
    let held = last_held(lease);
    vec![Finding::new(
        Code::NobodyReconciles,
        format!("Lease {own}/{}", names::LEASE),
        if stranger { format!("{held}, which is no replica of Lockstep") } else { held },
        "no gate opens and no finalizer goes until a replica holds it",
        change,
    )]
}

/// Somebody holds the Lease who is none of the replicas.
fn is_strange(lease: &LeaseRecord, facts: &Facts) -> bool {
    let stale = lease.renewed.is_some_and(|at| facts.now.duration_since(at) > UNRENEWED);
    let others = facts.replicas.iter().flatten().filter_map(|pod| pod.pointer("/metadata/name")).collect::<Vec<_>>();
    stale && lease.is_held(facts.now) && !others.is_empty() && !others.iter().any(|name| **name == *lease.holder)
}

fn replicas(facts: &Facts) -> Vec<Finding> {
    let is_ready = |pod: &&Value| {
        let conditions = pod.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    let name = |pod: &Value| pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let living = || facts.replicas.iter().flatten().filter(|pod| pod.pointer("/metadata/deletionTimestamp").is_none());
    let mut found: Vec<Finding> = living()
        .filter(|pod| !is_ready(pod))
        .map(|pod| {
            Finding::new(
                Code::ReplicaNotReady,
                format!("Pod {}/{}", facts.own_namespace, name(pod)),
                format!("phase {}, not Ready", pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or("unknown")),
                "with no replica that is Ready, `enabled` namespaces get unprepared pods and `strict` ones get none",
                format!("see why: `kubectl describe pod {} --namespace {}`", name(pod), facts.own_namespace),
            )
        })
        .collect();
    let image = |pod: &Value| pod.pointer("/spec/containers/0/image").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut images: Vec<String> = living().map(image).collect();
    images.sort();
    images.dedup();
    if images.len() > 1 {
        found.push(Finding::new(
            Code::VersionsDiffer,
            format!("Deployment {}/lockstep", facts.own_namespace),
            format!("replicas run {}", images.join(" and ")),
            "which one answers and which one reconciles is chance; that is well during an upgrade, and not after it",
            format!("see why the rollout does not end: `kubectl rollout status deployment/lockstep --namespace {}`", facts.own_namespace),
        ));
    }
    found
}

/// What of the webhooks decides whom they catch, and what the chart makes of it.
fn webhook(facts: &Facts) -> Vec<Finding> {
    let Some(configuration) = &facts.webhook else { return Vec::new() };
    let finding = |evidence: String| {
        let matters = "pods are let through unprepared, refused, or prepared where nobody asked for it";
        Finding::new(
            Code::WebhookChanged,
            format!("MutatingWebhookConfiguration {}", names::WEBHOOK_CONFIGURATION),
            evidence,
            matters,
            UPGRADE,
        )
    };
    if configuration.is_null() {
        return vec![finding("it is not there".to_owned())];
    }
    let hooks = || configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten();
    let mut found = Vec::new();
    for (label, policy) in [(names::INJECT_ENABLED, "Ignore"), (names::INJECT_STRICT, "Fail")] {
        let selects = |hook: &&Value| {
            let selector = hook.pointer("/namespaceSelector/matchExpressions").and_then(Value::as_array).into_iter().flatten();
            selector
                .into_iter()
                .any(|one| one["key"] == names::INJECT_LABEL && one["operator"] == "In" && one["values"] == serde_json::json!([label]))
        };
        let Some(hook) = hooks().find(selects) else {
            found.push(finding(format!("no webhook selects namespaces labelled {}={label}", names::INJECT_LABEL)));
            continue;
        };
        let name = hook["name"].as_str().unwrap_or_default();
        if hook["failurePolicy"] != policy {
            found.push(finding(format!("{name}: failurePolicy is {}, not {policy}", hook["failurePolicy"])));
        }
        let rules = hook.get("rules").and_then(Value::as_array).into_iter().flatten();
        let creates_pods = |rule: &Value| {
            let holds = |field: &str, word: &str| {
                let words = rule.get(field).and_then(Value::as_array);
                words.is_some_and(|words| words.iter().any(|one| one == word || one == "*"))
            };
            holds("apiGroups", "") && holds("resources", "pods") && holds("operations", "CREATE")
        };
        if !rules.into_iter().any(creates_pods) {
            found.push(finding(format!("{name}: no rule catches the creation of pods")));
        }
        for (selector, keys) in SELECTED {
            found.extend(
                selects_otherwise(&hook[selector], keys).map(|what| finding(format!("{name}: {what} was added to its {selector}"))),
            );
        }
        if hook.get("matchConditions").and_then(Value::as_array).is_some_and(|conditions| !conditions.is_empty()) {
            found.push(finding(format!("{name}: matchConditions were added; an error in one refuses every pod")));
        }
        if hook.pointer("/clientConfig/service/namespace").is_some_and(|namespace| *namespace != facts.own_namespace.as_str()) {
            found.push(finding(format!("{name}: it calls a Service of namespace {}", hook["clientConfig"]["service"]["namespace"])));
        }
    }
    found
}

/// What of a selector the chart does not write: any of it leaves pods out, or catches others.
fn selects_otherwise(selector: &Value, keys: &[&str]) -> Option<String> {
    let labels = selector.get("matchLabels").and_then(Value::as_object).filter(|labels| !labels.is_empty());
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let mut foreign = expressions.filter(|one| !one["key"].as_str().is_some_and(|key| keys.contains(&key)));
    labels.map(|labels| format!("matchLabels {}", Value::Object(labels.clone()))).or_else(|| foreign.next().map(ToString::to_string))
}

fn certificate(facts: &Facts) -> Vec<Finding> {
    let hooks = facts.webhook.iter().filter_map(|configuration| configuration.get("webhooks")?.as_array()).flatten();
    let judged = hooks.filter_map(|hook| {
        let name = hook["name"].as_str().unwrap_or_default();
        let text = hook.pointer("/clientConfig/caBundle").and_then(Value::as_str).unwrap_or_default();
        let pem = BASE64_STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let evidence = match bundle::last_end(&pem) {
            None => format!("{name}: its caBundle holds no CA"),
            Some(end) => {
                let end = Timestamp::from_second(end).ok()?;
                if end > facts.now.checked_add(SOON).unwrap_or(Timestamp::MAX) {
                    return None;
                }
                let left = span(end.duration_since(facts.now));
                format!("{name}: the last CA of its caBundle {} {left}", if end <= facts.now { "ended before" } else { "ends in" })
            }
        };
        Some(Finding::new(
            Code::CertificateEnds,
            format!("MutatingWebhookConfiguration {}", names::WEBHOOK_CONFIGURATION),
            evidence,
            "API servers cannot call the webhook without it: `enabled` namespaces get unprepared pods, `strict` ones none",
            "a replica writes and renews it: see its log; with a CA of your own, renew that (certs/README.md)",
        ))
    });
    judged.collect()
}

fn configuration(facts: &Facts) -> Vec<Finding> {
    let Some(fault) = &facts.around.fault else { return Vec::new() };
    vec![Finding::new(
        Code::ConfigurationInvalid,
        format!("ConfigMap {}/{}", facts.own_namespace, names::CONFIG_MAP),
        fault.clone(),
        "the last good one stays in force, and what was changed since then does not count",
        "mend it; `lockstep check FILE` names every error with its place",
    )]
}

fn rights(facts: &Facts) -> Vec<Finding> {
    let finding = |(right, without): (&String, &&'static str)| {
        Finding::new(
            Code::RightMissing,
            format!("ServiceAccount {}/lockstep", facts.own_namespace),
            format!("it may not: {right}"),
            without,
            UPGRADE,
        )
    };
    facts.missing_rights.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::commands::doctor::tests::facts;

    /// A caBundle whose CA ends after so many days.
    fn bundle(days: i64) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = time::OffsetDateTime::from_unix_timestamp(facts().now.as_second()).unwrap() + time::Duration::days(days);
        let key = KeyPair::generate().unwrap();
        BASE64_STANDARD.encode(params.self_signed(&key).unwrap().pem())
    }

    fn hook(label: &str, policy: &str) -> Value {
        json!({
            "name": format!("{label}.example"), "failurePolicy": policy,
            "clientConfig": {"service": {"namespace": "lockstep-system"}, "caBundle": bundle(300)},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "operations": ["CREATE"]}],
            "namespaceSelector": {"matchLabels": {}, "matchExpressions": [{"key": names::INJECT_LABEL, "operator": "In", "values": [label]}]},
            "objectSelector": {"matchExpressions": [{"key": names::INJECT_LABEL, "operator": "NotIn", "values": ["disabled"]}]},
        })
    }

    fn replica(name: &str, image: &str, ready: &str) -> Value {
        json!({
            "metadata": {"name": name}, "spec": {"containers": [{"image": image}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    /// An install that nothing is wrong with.
    fn well() -> Facts {
        let mut facts = facts();
        facts.webhook = Some(json!({"webhooks": [hook("enabled", "Ignore"), hook("strict", "Fail")]}));
        facts.around.lease =
            Some(LeaseRecord { holder: "a".into(), duration_seconds: 12, renewed: Some(facts.now), ..LeaseRecord::default() });
        facts.replicas = Some(vec![replica("a", "lockstep:1", "True"), replica("b", "lockstep:1", "True")]);
        facts
    }

    fn second(facts: &mut Facts) -> &mut Value {
        &mut facts.replicas.as_mut().unwrap()[1]
    }

    fn codes(change: impl FnOnce(&mut Facts)) -> Vec<Code> {
        let mut facts = well();
        change(&mut facts);
        check(&facts).into_iter().map(|finding| finding.code).collect()
    }

    fn webhook_with(pointer: &str, value: Value) -> impl FnOnce(&mut Facts) {
        move |facts| *facts.webhook.as_mut().unwrap().pointer_mut(pointer).unwrap() = value
    }

    #[test]
    fn all_is_well() {
        assert_eq!(codes(|_| {}), []);
        assert_eq!(check(&Facts::empty(facts().now, "lockstep-system")), [], "what was not read is not found fault with");
    }

    #[test]
    fn a_lease_that_nobody_renews_is_found() {
        let old = |facts: &mut Facts| facts.around.lease.as_mut().unwrap().renewed = Some(facts.now - SignedDuration::from_secs(60));
        assert_eq!(codes(old), [Code::NobodyReconciles]);
        let held_by = |holder: &'static str| codes(move |facts| facts.around.lease.as_mut().unwrap().holder = holder.into());
        assert_eq!(held_by(""), [Code::NobodyReconciles]);
        assert_eq!(held_by(names::RELEASE_HOLDER), [Code::NobodyReconciles], "it holds the Lease so that nobody reconciles");
        assert_eq!(codes(|facts| facts.around.lease = Some(LeaseRecord::default())), [Code::NobodyReconciles], "there is no Lease");
    }

    #[rstest]
    #[case::a_stranger("somebody", 7200, 61, &[Code::NobodyReconciles])]
    #[case::who_may_have_gone_just_now("somebody", 7200, 60, &[])]
    #[case::a_replica("a", 7200, 61, &[])]
    fn a_lease_in_the_hands_of_a_stranger_is_found(
        #[case] holder: &str,
        #[case] duration_seconds: u32,
        #[case] age: i64,
        #[case] expected: &[Code],
    ) {
        let held = |facts: &mut Facts| {
            let renewed = Some(facts.now - SignedDuration::from_secs(age));
            facts.around.lease = Some(LeaseRecord { holder: holder.into(), duration_seconds, renewed, ..LeaseRecord::default() });
        };
        assert_eq!(codes(held), expected);
    }

    #[test]
    fn replicas_that_are_not_ready_or_not_alike_are_found() {
        assert_eq!(codes(|facts| *second(facts) = replica("b", "lockstep:1", "False")), [Code::ReplicaNotReady]);
        assert_eq!(codes(|facts| *second(facts) = replica("b", "lockstep:2", "True")), [Code::VersionsDiffer]);
        let leaving = |facts: &mut Facts| {
            *second(facts) = replica("b", "lockstep:2", "False");
            second(facts)["metadata"]["deletionTimestamp"] = json!("2026-11-29T17:00:00Z");
        };
        assert_eq!(codes(leaving), []);
    }

    #[rstest]
    #[case::policy("/webhooks/1/failurePolicy", json!("Ignore"))]
    #[case::rules("/webhooks/0/rules/0/operations", json!(["UPDATE"]))]
    #[case::selector("/webhooks/0/namespaceSelector/matchExpressions", json!([]))]
    #[case::elsewhere("/webhooks/0/clientConfig/service/namespace", json!("other"))]
    #[case::namespaces_by_label("/webhooks/0/namespaceSelector/matchLabels", json!({"tier": "gold"}))]
    #[case::pods_by_label("/webhooks/1/objectSelector", json!({"matchLabels": {"tier": "gold"}}))]
    #[case::pods_by_expression("/webhooks/1/objectSelector", json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}))]
    fn a_webhook_changed_by_hand_is_found(#[case] pointer: &str, #[case] value: Value) {
        assert_eq!(codes(webhook_with(pointer, value)), [Code::WebhookChanged]);
    }

    #[test]
    fn a_webhook_that_is_gone_or_has_conditions_is_found() {
        assert_eq!(codes(|facts| facts.webhook = Some(Value::Null)), [Code::WebhookChanged]);
        let condition = |facts: &mut Facts| facts.webhook.as_mut().unwrap()["webhooks"][0]["matchConditions"] = json!([{"name": "x"}]);
        assert_eq!(codes(condition), [Code::WebhookChanged]);
    }

    #[rstest]
    #[case(json!(""))]
    #[case(json!(bundle(10)))]
    #[case(json!(bundle(-1)))]
    fn a_certificate_near_its_end_is_found(#[case] ca: Value) {
        assert_eq!(codes(webhook_with("/webhooks/0/clientConfig/caBundle", ca)), [Code::CertificateEnds]);
    }

    #[test]
    fn a_configuration_that_is_gone_or_wrong_is_found() {
        assert_eq!(codes(|facts| facts.around.fault = Some("it is not there".into())), [Code::ConfigurationInvalid]);
    }

    #[test]
    fn a_missing_right_is_found_with_what_it_is_for() {
        let missing = |facts: &mut Facts| _ = facts.missing_rights.insert("patch pods/status".into(), "no gate opens");
        assert_eq!(codes(missing), [Code::RightMissing]);
    }
}
