//! Our ConfigMap's own admission: `kubectl apply` of a bad configuration is answered with what is wrong and where.
//!
//! Invariant: only a ConfigMap of our name in our namespace is ever refused, and only for what `lockstep check` would say too.
//! Absent on purpose: advice, which `lockstep check` gives.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::config;
use crate::names::CONFIG_KEY;

/// A refusal is cut to this many characters: it ends on a person's terminal.
const MESSAGE_CHARS: usize = 4000;

/// Which ConfigMap is ours.
#[derive(Clone, Debug)]
pub struct Ours {
    /// Our own namespace.
    pub namespace: String,
    /// Name of the ConfigMap.
    pub name: String,
}

/// The answer to a review; `None` where the bytes are no AdmissionReview.
pub fn answer(body: &[u8], ours: &Ours) -> Option<Value> {
    let Review { request, .. } = serde_json::from_slice(body).ok()?;
    if request.uid.is_empty() {
        return None;
    }
    let response = match complaint(&request, ours) {
        None => json!({ "uid": request.uid, "allowed": true }),
        Some(message) => {
            let message: String = message.chars().take(MESSAGE_CHARS).collect();
            json!({ "uid": request.uid, "allowed": false, "status": { "code": 422, "reason": "Invalid", "message": message } })
        }
    };
    Some(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
}

#[derive(Deserialize)]
struct Review {
    #[serde(rename = "apiVersion")]
    _version: ReviewVersion,
    request: Request,
}

#[derive(Deserialize)]
enum ReviewVersion {
    #[serde(rename = "admission.k8s.io/v1")]
    V1,
}

#[derive(Deserialize)]
struct Request {
    uid: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    resource: Resource,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    object: Option<Object>,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    group: String,
    resource: String,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    data: Option<std::collections::BTreeMap<String, Text>>,
}

/// A text, or anything else.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Other(IgnoredAny),
}

fn complaint(request: &Request, ours: &Ours) -> Option<String> {
    let is_config_map = request.resource.group.is_empty() && request.resource.resource == "configmaps";
    let is_ours = request.namespace == ours.namespace && request.name == ours.name;
    if !is_config_map || !is_ours || !matches!(&*request.operation, "CREATE" | "UPDATE") {
        return None;
    }
    let data = request.object.as_ref().and_then(|object| object.data.as_ref());
    match data.and_then(|data| data.get(CONFIG_KEY)) {
        Some(Text::Text(text)) => config::parse(text).err().map(|errors| format!("{CONFIG_KEY}:\n{errors}")),
        Some(Text::Other(_)) | None => Some(format!("the key {CONFIG_KEY} is missing; it holds the configuration")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GOOD: &str = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: c\n";

    fn ours() -> Ours {
        Ours { namespace: "lockstep-system".into(), name: "lockstep-config".into() }
    }

    fn review(namespace: &str, name: &str, data: Value) -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u-1", "operation": "UPDATE", "namespace": namespace, "name": name,
                "resource": {"group": "", "version": "v1", "resource": "configmaps"},
                "object": {"apiVersion": "v1", "kind": "ConfigMap", "data": data},
            },
        })
    }

    fn response(review: &Value) -> Value {
        answer(review.to_string().as_bytes(), &ours()).unwrap()["response"].take()
    }

    #[test]
    fn a_good_configuration_is_allowed() {
        let answer = response(&review("lockstep-system", "lockstep-config", json!({ CONFIG_KEY: GOOD })));
        assert_eq!(answer, json!({"uid": "u-1", "allowed": true}));
    }

    #[test]
    fn a_bad_one_is_refused_with_path_and_line() {
        let text = format!("{GOOD}injection:\n  marign: 15s\n");
        let answer = response(&review("lockstep-system", "lockstep-config", json!({ CONFIG_KEY: text })));
        assert_eq!(answer["allowed"], false);
        let message = answer["status"]["message"].as_str().unwrap();
        assert!(message.contains("line 5") && message.contains("marign"), "{message}");
    }

    #[rstest]
    #[case(json!({}))]
    #[case(Value::Null)]
    #[case(json!({"config.yml": GOOD}))]
    #[case(json!({CONFIG_KEY: 7}))]
    fn a_config_map_without_the_key_is_refused(#[case] data: Value) {
        assert_eq!(response(&review("lockstep-system", "lockstep-config", data))["allowed"], false);
    }

    #[rstest]
    #[case("lockstep-system", "other")]
    #[case("shop", "lockstep-config")]
    fn what_is_not_ours_is_allowed(#[case] namespace: &str, #[case] name: &str) {
        assert_eq!(response(&review(namespace, name, json!({ CONFIG_KEY: "{{{" })))["allowed"], true);
    }

    #[rstest]
    #[case("")]
    #[case("[]")]
    #[case(r#"{"apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u","resource":{"resource":"configmaps"}}}"#)]
    #[case(r#"{"apiVersion":"admission.k8s.io/v1","request":{"uid":"","resource":{"resource":"configmaps"}}}"#)]
    fn what_is_no_review_has_no_answer(#[case] body: &str) {
        assert_eq!(answer(body.as_bytes(), &ours()), None);
    }
}
