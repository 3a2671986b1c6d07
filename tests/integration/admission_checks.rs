//! What must hold of every answer to a review, whatever the case: the rules of admission, looked at from outside.
//!
//! Golden cases and property tests both go through here, so that no rule depends on somebody having written a case for it.
//!
//! Invariant: the rules are read from the pod before and after, never from the program's own decision.
//! Absent on purpose: what a certain case should give (`admission_cases`).

use base64::Engine;
use json_patch::{AddOperation, Patch, PatchOperation};
use lockstep::admission::{Finding, Reason, Snapshot, answer};
use lockstep::names::{FINALIZER, GATE, MANAGED_LABEL, MANAGED_VALUE, RECORD_ANNOTATION};
use serde_json::{Value, json};

/// The API server passes on no more of one warning, and of all together.
const WARNING: usize = 256;
const WARNINGS: usize = 4096;

/// An answer that has been looked at.
pub(crate) struct Checked {
    pub(crate) reason: Reason,
    pub(crate) findings: Vec<Finding>,
    pub(crate) warnings: Vec<String>,
    /// Empty without a patch.
    pub(crate) patch: Vec<PatchOperation>,
}

/// Answers a review and checks the answer, a second pass over the result, and that each operation was needed.
pub(crate) fn check(body: &[u8], snapshot: &Snapshot) -> Result<Checked, String> {
    let review: Value = serde_json::from_slice(body).map_err(|error| format!("the review of the test: {error}"))?;
    let (checked, after) = check_once(body, &review, snapshot)?;
    let Some(after) = after else { return Ok(checked) };
    let again = with_object(&review, &after);
    let (second, _) =
        check_once(&again, &serde_json::from_slice(&again).unwrap(), snapshot).map_err(|error| format!("second pass: {error}"))?;
    if second.reason != Reason::AlreadyInjected || !second.warnings.is_empty() {
        return Err(format!("second pass: {:?}, {:?}, {:?}", second.reason, second.patch, second.warnings));
    }
    for left_out in 0..checked.patch.len() {
        needed(&checked.patch, left_out, &review, snapshot)?;
    }
    Ok(checked)
}

/// Checks one answer to a review that may be no pod that any API server would take.
pub(crate) fn check_answer(body: &[u8], snapshot: &Snapshot) -> Result<(), String> {
    let review: Value = serde_json::from_slice(body).map_err(|error| format!("the review of the test: {error}"))?;
    check_once(body, &review, snapshot).map(|_| ())
}

/// Without one of its operations the patch leaves something to do.
fn needed(patch: &[PatchOperation], left_out: usize, review: &Value, snapshot: &Snapshot) -> Result<(), String> {
    let mut shorter = patch.to_vec();
    let operation = shorter.remove(left_out);
    let mut object = review["request"]["object"].clone();
    // What rewrites an older record or sleep of ours is needed because it differs; without it the older one may pass for the owner's.
    let path = operation.path().to_string();
    let rewrites = object.pointer(&path).is_some_and(|value| !value.is_null());
    if rewrites && (path.ends_with("injected") || path.contains("/preStop/")) {
        return Ok(());
    }
    // A later operation may stand on an earlier one; then the earlier one is needed for certain.
    if json_patch::patch(&mut object, &Patch(shorter)).is_err() {
        return Ok(());
    }
    let body = with_object(review, &object);
    let answered = answer(&body, snapshot).map_err(|refusal| refusal.to_string())?;
    if answered.reason == Reason::Injected { Ok(()) } else { Err(format!("an operation that nobody misses: {operation}")) }
}

fn check_once(body: &[u8], review: &Value, snapshot: &Snapshot) -> Result<(Checked, Option<Value>), String> {
    let answered = answer(body, snapshot).map_err(|refusal| format!("refused: {refusal}"))?;
    let envelope: Value = serde_json::from_slice(&answered.body).map_err(|error| format!("the answer is no JSON: {error}"))?;
    let response = &envelope["response"];
    expect("apiVersion", &envelope["apiVersion"], &json!("admission.k8s.io/v1"))?;
    expect("kind", &envelope["kind"], &json!("AdmissionReview"))?;
    expect("uid", &response["uid"], &review["request"]["uid"])?;
    expect("allowed", &response["allowed"], &json!(true))?;
    let known = ["uid", "allowed", "patch", "patchType", "warnings"];
    if let Some(key) = response.as_object().into_iter().flatten().map(|(key, _)| key).find(|key| !known.contains(&&***key)) {
        return Err(format!("an answer with {key}"));
    }
    let warnings = warnings(response)?;
    let told = answered.findings.len() + usize::from(matches!(answered.reason, Reason::Unreadable | Reason::AnnotationsFull));
    if warnings.len() != told {
        return Err(format!("{told} things to say, and {warnings:?}"));
    }
    let patch = patch(response)?;
    if patch.is_empty() != (answered.reason != Reason::Injected) {
        return Err(format!("{:?} with the patch {patch:?}", answered.reason));
    }
    let before = &review["request"]["object"];
    let after = (!patch.is_empty()).then(|| apply(before, &patch)).transpose()?;
    if let Some(after) = &after {
        check_pod(before, after, &answered.findings)?;
    }
    Ok((Checked { reason: answered.reason, findings: answered.findings, warnings, patch }, after))
}

fn warnings(response: &Value) -> Result<Vec<String>, String> {
    let Some(list) = response.get("warnings") else { return Ok(Vec::new()) };
    let warnings: Vec<String> = serde_json::from_value(list.clone()).map_err(|error| format!("warnings: {error}"))?;
    let broken = |text: &String| text.chars().count() > WARNING || text.trim().is_empty() || text.chars().any(char::is_control);
    if let Some(warning) = warnings.iter().find(|warning| broken(warning)) {
        return Err(format!("a warning that is not one short line: {warning:?}"));
    }
    if warnings.is_empty() || warnings.iter().map(|warning| warning.chars().count()).sum::<usize>() > WARNINGS {
        return Err(format!("{} warnings, too much or none", warnings.len()));
    }
    Ok(warnings)
}

fn patch(response: &Value) -> Result<Vec<PatchOperation>, String> {
    let (Some(text), Some(kind)) = (response.get("patch"), response.get("patchType")) else {
        return match response.get("patch").or(response.get("patchType")) {
            None => Ok(Vec::new()),
            Some(_) => Err("patch without patchType, or patchType without patch".to_owned()),
        };
    };
    expect("patchType", kind, &json!("JSONPatch"))?;
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap_or("?")).map_err(|error| format!("patch: {error}"))?;
    let patch: Patch = serde_json::from_slice(&bytes).map_err(|error| format!("patch: {error}"))?;
    if patch.0.is_empty() { Err("a patch of nothing".to_owned()) } else { Ok(patch.0) }
}

/// Applies the patch operation by operation; each must be an `add` at a place of ours, and change something.
fn apply(before: &Value, patch: &[PatchOperation]) -> Result<Value, String> {
    let mut after = before.clone();
    for operation in patch {
        let PatchOperation::Add(AddOperation { path, .. }) = operation else {
            return Err(format!("an operation that is no add: {operation}"));
        };
        if !is_ours(&path.to_string(), before) {
            return Err(format!("a place that is not ours: {operation}"));
        }
        let earlier = after.clone();
        json_patch::patch(&mut after, &Patch(vec![operation.clone()])).map_err(|error| format!("{operation}: {error}"))?;
        if after == earlier {
            return Err(format!("an operation that changes nothing: {operation}"));
        }
    }
    Ok(after)
}

/// Whether a patch may name this place: ours alone, or a whole list or map where nobody else has anything in it.
fn is_ours(path: &str, before: &Value) -> bool {
    let nothing =
        |place: &str| before.pointer(place).is_none_or(|value| matches!(value, Value::Null) || *value == json!({}) || *value == json!([]));
    let key = |name: &str| name.replace('/', "~1");
    if path == format!("/metadata/labels/{}", key(MANAGED_LABEL)) || path == format!("/metadata/annotations/{}", key(RECORD_ANNOTATION)) {
        return true;
    }
    match path {
        "/metadata/finalizers/-" | "/spec/readinessGates/-" | "/spec/terminationGracePeriodSeconds" => return true,
        "/metadata" | "/metadata/finalizers" | "/metadata/labels" | "/metadata/annotations" | "/spec/readinessGates" => {
            return nothing(path);
        }
        _ => {}
    }
    let Some((index, place)) = path.strip_prefix("/spec/containers/").and_then(|rest| rest.split_once('/')) else { return false };
    let container = format!("/spec/containers/{index}");
    let null = |place: &str| before.pointer(&format!("{container}/{place}")).is_none_or(Value::is_null);
    match place {
        "lifecycle" => null("lifecycle"),
        "lifecycle/preStop" => nothing(&format!("{container}/lifecycle/preStop")),
        "lifecycle/preStop/sleep" | "lifecycle/preStop/exec" => null(place) || carries_recorded_sleep(before, index),
        "livenessProbe/terminationGracePeriodSeconds" | "startupProbe/terminationGracePeriodSeconds" => null(place),
        _ => false,
    }
}

/// Whether a container has a sleep that an earlier pass wrote.
fn carries_recorded_sleep(pod: &Value, index: &str) -> bool {
    let seconds = record(pod).and_then(|record| record["sleepSeconds"].as_u64());
    seconds.is_some() && seconds == sleep_of(&pod["spec"]["containers"][index.parse::<usize>().unwrap_or(usize::MAX)])
}

fn record(pod: &Value) -> Option<Value> {
    serde_json::from_str(pod["metadata"]["annotations"][RECORD_ANNOTATION].as_str()?).ok()
}

/// The seconds of a hook that looks like one of ours.
fn sleep_of(container: &Value) -> Option<u64> {
    let mut hook = container["lifecycle"]["preStop"].as_object()?.clone();
    hook.retain(|_, action| !action.is_null());
    let hook = Value::Object(hook);
    let native = hook["sleep"]["seconds"].as_u64().filter(|seconds| hook == json!({"sleep": {"seconds": seconds}}));
    let words = &hook["exec"]["command"];
    let command = words[1].as_str().and_then(|number| number.parse().ok());
    native.or(command.filter(|seconds: &u64| hook == json!({"exec": {"command": ["sleep", seconds.to_string()]}})))
}

/// What is ours is as the record says, and everything else is as it was.
pub(crate) fn check_pod(before: &Value, after: &Value, findings: &[Finding]) -> Result<(), String> {
    let record = record(after).ok_or("no record")?;
    let (sleep, asked) = (record["sleepSeconds"].as_u64(), record["graceBefore"].as_i64());
    let (Some(sleep), Some(asked)) = (sleep, asked) else { return Err(format!("the record {record}")) };
    let codes: Vec<&str> = findings.iter().map(|finding| finding.as_str()).collect();
    expect("version of the record", &record["version"], &json!(1))?;
    expect("findings of the record", &record["findings"], &json!(codes))?;
    expect("label", &after["metadata"]["labels"][MANAGED_LABEL], &json!(MANAGED_VALUE))?;
    appended("finalizers", &before["metadata"]["finalizers"], &after["metadata"]["finalizers"], &json!(FINALIZER))?;
    appended("readinessGates", &before["spec"]["readinessGates"], &after["spec"]["readinessGates"], &json!({"conditionType": GATE}))?;
    let slept = check_containers(before, after, sleep, asked)?;
    if slept != (sleep > 0) {
        return Err(format!("the record says {sleep} s, and the containers say {slept}"));
    }
    let (old, new) = (before["spec"]["terminationGracePeriodSeconds"].as_i64(), after["spec"]["terminationGracePeriodSeconds"].as_i64());
    let wanted = if sleep == 0 { old } else { old.filter(|old| *old >= asked + sleep as i64).or(Some(asked + sleep as i64)) };
    if new != wanted {
        return Err(format!("a grace period of {new:?} where {asked} s and {sleep} s make {wanted:?}"));
    }
    if foreign(before) == foreign(after) {
        Ok(())
    } else {
        Err(format!("something foreign changed: {} became {}", foreign(before), foreign(after)))
    }
}

/// Whether a container carries the recorded sleep afterwards; every hook is either untouched or that sleep.
fn check_containers(before: &Value, after: &Value, sleep: u64, asked: i64) -> Result<bool, String> {
    let mut slept = false;
    let pairs =
        before["spec"]["containers"].as_array().into_iter().flatten().zip(after["spec"]["containers"].as_array().into_iter().flatten());
    for (old, new) in pairs {
        let (old_hook, new_hook) = (&old["lifecycle"]["preStop"], &new["lifecycle"]["preStop"]);
        slept |= sleep > 0 && sleep_of(new) == Some(sleep);
        if old_hook != new_hook && sleep_of(new) != Some(sleep) {
            return Err(format!("a hook {old_hook} became {new_hook}"));
        }
        for probe in ["livenessProbe", "startupProbe"] {
            let (old, new) = (&old[probe]["terminationGracePeriodSeconds"], &new[probe]["terminationGracePeriodSeconds"]);
            if old != new && *new != json!(asked) {
                return Err(format!("a {probe} that got {new}"));
            }
        }
    }
    Ok(slept)
}

fn appended(what: &str, before: &Value, after: &Value, ours: &Value) -> Result<(), String> {
    let mut wanted = before.as_array().cloned().unwrap_or_default();
    let there = |entry: &Value| entry == ours || (ours.is_object() && entry["conditionType"] == ours["conditionType"]);
    if !wanted.iter().any(there) {
        wanted.push(ours.clone());
    }
    expect(what, after, &Value::Array(wanted))
}

/// The pod without the places that are ours.
fn foreign(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let empty = |value: &Value| value.is_null() || *value == json!({}) || *value == json!([]);
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("finalizers");
        for (map, key) in [("labels", MANAGED_LABEL), ("annotations", RECORD_ANNOTATION)] {
            metadata.get_mut(map).and_then(Value::as_object_mut).map(|map| map.remove(key));
            if metadata.get(map).is_some_and(empty) {
                metadata.remove(map);
            }
        }
    }
    if pod.get("metadata").is_some_and(empty) {
        pod.as_object_mut().unwrap().remove("metadata");
    }
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.remove("readinessGates");
        spec.remove("terminationGracePeriodSeconds");
    }
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        container["lifecycle"].as_object_mut().map(|lifecycle| lifecycle.remove("preStop"));
        if empty(&container["lifecycle"]) {
            container.as_object_mut().unwrap().remove("lifecycle");
        }
        for probe in ["livenessProbe", "startupProbe"] {
            container.get_mut(probe).and_then(Value::as_object_mut).map(|probe| probe.remove("terminationGracePeriodSeconds"));
        }
    }
    pod
}

fn with_object(review: &Value, object: &Value) -> Vec<u8> {
    let mut review = review.clone();
    review["request"]["object"] = object.clone();
    serde_json::to_vec(&review).unwrap()
}

fn expect(what: &str, found: &Value, wanted: &Value) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found} where {wanted} belongs")) }
}
