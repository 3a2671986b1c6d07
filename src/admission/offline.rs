//! The same decision for somebody who asks without a cluster: a template or a review, and the sums behind the answer.
//!
//! Invariant: what is shown here is what the server would do; there is no second reading of the rules.
//! Absent on purpose: documents and their printing (`commands::inject`).

use serde::Deserialize;

use super::decide::{Decision, PodRequest, Reason, decide};
use super::part::Part;
use super::pod::Pod;
use super::prestop::{DEFAULT_GRACE, Sums};
use super::review::{Refusal, Review};
use super::{Finding, Snapshot, patch};

/// A pod, or a pod template of a workload, with what is known of it from around it.
#[derive(Clone, Copy, Debug)]
pub struct Template<'t> {
    /// Namespace of the object.
    pub namespace: &'t str,
    /// Whether its pods are controlled by a Job.
    pub job: bool,
    /// JSON pointer of the pod in its object; empty for a pod itself.
    pub at: &'t str,
}

/// An answer with the sums behind it.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Why it is what it is.
    pub reason: Reason,
    /// Places of the matching bindings in the configuration; empty without an injection.
    pub bindings: Vec<usize>,
    /// The sums, where the pod is injected or was.
    pub sums: Option<Sums>,
    /// The sleep that our containers carry; 0 without an injection.
    pub sleep_seconds: u64,
    /// The grace period afterwards.
    pub grace_seconds: i64,
    /// What a person should fix, with what it is about; empty without an injection.
    pub findings: Vec<(Finding, String)>,
    /// The admission warnings.
    pub warnings: Vec<String>,
    /// The RFC 6902 patch, as JSON; `[]` where nothing changes.
    pub patch: Vec<u8>,
}

/// Decides about the JSON of a pod or of a template.
pub fn template(json: &[u8], template: Template<'_>, snapshot: &Snapshot) -> Result<Explained, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let pod = Part::<Pod<'_>>::deserialize(&mut reader)?;
    reader.end()?;
    let decision = decide(&PodRequest { namespace: template.namespace, pod: &pod, job: template.job }, snapshot);
    Ok(Explained::new(decision, &pod, template.at))
}

/// Decides about a review.
pub fn review(body: &[u8], snapshot: &Snapshot) -> Result<Explained, Refusal> {
    let review = Review::read(body)?;
    Ok(Explained::new(review.decide(snapshot), &review.request.object, ""))
}

impl Explained {
    fn new(decision: Decision, pod: &Part<Pod<'_>>, at: &str) -> Self {
        let mut patch = Vec::new();
        patch::write(decision.changes(), at, &mut patch);
        let present = pod.found().and_then(|pod| pod.spec.found()).and_then(|spec| spec.grace.found().copied());
        let warnings = decision.warnings();
        let sums = decision.injection.as_ref().map(|injection| injection.sums);
        let unchanged = Self {
            reason: decision.reason,
            bindings: Vec::new(),
            sums,
            sleep_seconds: 0,
            grace_seconds: present.unwrap_or(DEFAULT_GRACE),
            findings: Vec::new(),
            warnings,
            patch,
        };
        match decision.injection {
            Some(injection) if decision.reason == Reason::Injected => Self {
                bindings: injection.bindings,
                sleep_seconds: injection.sleep_seconds,
                grace_seconds: injection.grace_seconds.unwrap_or(DEFAULT_GRACE),
                findings: injection.findings,
                ..unchanged
            },
            _ => unchanged,
        }
    }
}
