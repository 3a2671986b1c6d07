//! What the doctor found: one broken link, with its evidence and the change that mends it.
//!
//! Invariant: each code stands once, in [`Code`]; docs/doctor.md explains every one of them, and a test holds the two together.
//! Absent on purpose: how it is found (the checks).

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;

/// Kinds of broken links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(super) enum Code {
    /// No replica holds the Lease.
    NobodyReconciles,
    /// The webhook configuration is not there, or not as the chart has it.
    WebhookChanged,
    /// A pod that a binding selects would not be prepared.
    PodsNotPrepared,
    /// API servers hold no CA for the webhook, or one that ends soon.
    CertificateEnds,
    /// The configuration is not there, or invalid.
    ConfigurationInvalid,
    /// A right of the program is missing.
    RightMissing,
    /// A replica of Lockstep is not Ready.
    ReplicaNotReady,
    /// Replicas of Lockstep run different versions.
    VersionsDiffer,
    /// A pod is held, and needs a person.
    PodStuck,
    /// A claim whose pod is gone.
    Debt,
    /// A registry does not answer, or refuses.
    RegistryFailing,
    /// A service that a binding owns takes no targets of ours.
    ServiceNotOurs,
    /// A registry holds a target of a pod that is gone, and nobody owes it.
    Orphan,
    /// A bound pod of an opted-in namespace has no gate.
    NoGate,
    /// The pods of a workload sleep for less than the configuration asks for now.
    SleepTooShort,
    /// Admission found something on the pods of a workload.
    Admission,
    /// The readiness probe always passes.
    ProbeTrivial,
    /// The readiness probe asks another port than traffic goes to.
    ProbeElsewhere,
    /// The registry's own check asks something else than the readiness probe.
    CheckElsewhere,
    /// The registry's own check takes longer than a gate waits.
    CheckSlow,
    /// A rollout is given up before a registration may take its time.
    ProgressDeadlineShort,
    /// A rollout may take every pod away at once.
    GoesDark,
}

/// One broken link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    /// Its kind; docs/doctor.md explains it.
    pub(super) code: Code,
    /// What it is about, as in `Deployment shop/web`.
    pub(super) about: String,
    /// What was seen.
    pub(super) evidence: String,
    /// Why it matters.
    pub(super) matters: String,
    /// The change that mends it.
    pub(super) change: String,
}

/// All that was found.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Findings {
    /// What could not be looked at, and why.
    pub(super) notes: Vec<String>,
    /// The broken links, those of Lockstep itself first.
    pub(super) findings: Vec<Finding>,
}

impl Code {
    /// Every code.
    #[cfg(test)]
    pub(super) const ALL: [Self; 22] = [
        Self::NobodyReconciles,
        Self::WebhookChanged,
        Self::PodsNotPrepared,
        Self::CertificateEnds,
        Self::ConfigurationInvalid,
        Self::RightMissing,
        Self::ReplicaNotReady,
        Self::VersionsDiffer,
        Self::PodStuck,
        Self::Debt,
        Self::RegistryFailing,
        Self::ServiceNotOurs,
        Self::Orphan,
        Self::NoGate,
        Self::SleepTooShort,
        Self::Admission,
        Self::ProbeTrivial,
        Self::ProbeElsewhere,
        Self::CheckElsewhere,
        Self::CheckSlow,
        Self::ProgressDeadlineShort,
        Self::GoesDark,
    ];
}

impl Finding {
    /// A finding; the texts are sentences without their full stops.
    pub(super) fn new(code: Code, about: String, evidence: String, matters: &str, change: impl Into<String>) -> Self {
        Self { code, about, evidence, matters: matters.to_owned(), change: change.into() }
    }
}

/// All of it for people.
pub(super) fn for_people(all: &Findings) -> String {
    const WRITES: &str = "writing into a String cannot fail";
    let mut text: String = all.notes.iter().map(|note| format!("note: {note}\n")).collect();
    for finding in &all.findings {
        let Finding { code, about, evidence, matters, change } = finding;
        writeln!(text, "{code:?}: {about}\n  seen:    {evidence}\n  matters: {matters}\n  change:  {change}\n").expect(WRITES);
    }
    match all.findings.len() {
        0 => text.push_str("Nothing is wrong with what could be looked at.\n"),
        1 => text.push_str("1 broken link.\n"),
        more => writeln!(text, "{more} broken links.").expect(WRITES),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::output::schema;

    #[test]
    fn the_page_explains_every_code_and_no_other() {
        let page = include_str!("../../../docs/doctor.md");
        let explained: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let codes: Vec<String> = Code::ALL.iter().map(|code| format!("{code:?}")).collect();
        assert_eq!(explained, codes);
    }

    #[test]
    fn the_checked_in_schema_is_this_one() {
        let checked_in = include_str!("../../../docs/doctor.schema.json");
        assert_eq!(checked_in, schema::<Findings>(), "write it anew: lockstep doctor --schema > docs/doctor.schema.json");
    }

    #[test]
    fn people_read_what_was_seen_why_it_matters_and_what_to_change() {
        let finding = Finding::new(Code::Debt, "lan/web 10.0.0.5:80".into(), "owed".into(), "traffic", "take it out");
        let text = for_people(&Findings { notes: vec!["n".into()], findings: vec![finding] });
        insta::assert_snapshot!(text, @r"
        note: n
        Debt: lan/web 10.0.0.5:80
          seen:    owed
          matters: traffic
          change:  take it out

        1 broken link.
        ");
        assert!(for_people(&Findings { notes: vec![], findings: vec![] }).starts_with("Nothing is wrong"));
    }
}
