//! Metrics of the webhook.
//!
//! Invariant: labels are reasons and codes of the closed enums, or HTTP status codes that the server answers.
//! Absent on purpose: namespaces and pods; their number has no bound.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::Catalog;
use crate::admission::{Answered, Reason};

/// Upper ends of the buckets: a review takes tens of microseconds, a stalled machine a second.
const SECONDS: [f64; 10] = [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0];

/// Upper ends of the buckets: from the margin alone to the default `maxSleep`.
const SLEEPS: [f64; 9] = [5.0, 15.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 360.0];

/// Metrics of the webhook.
#[derive(Debug)]
pub struct AdmissionMetrics {
    reviews: Family<ByReason, Counter>,
    findings: Family<ByCode, Counter>,
    sleeps: Histogram,
    refusals: Family<ByStatus, Counter>,
    seconds: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCode {
    finding: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStatus {
    status: u16,
}

impl AdmissionMetrics {
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        Self {
            reviews: catalog.add("lockstep_admission_reviews", "Reviews of pods that were answered, by reason", Family::default()),
            findings: catalog.add("lockstep_findings", "Findings on pods that were prepared, by code", Family::default()),
            sleeps: catalog.add("lockstep_injected_sleep_seconds", "The sleeps of pods that got one", Histogram::new(SLEEPS)),
            refusals: catalog.add(
                "lockstep_admission_refusals",
                "Requests to the webhook that got no answer but an HTTP status; the failure policy decided about them",
                Family::default(),
            ),
            seconds: catalog.add(
                "lockstep_admission_duration_seconds",
                "From the end of a review's body to its answer",
                Histogram::new(SECONDS),
            ),
        }
    }

    /// Counts a review that was answered.
    pub fn answered(&self, answered: &Answered, took: Duration) {
        self.reviews.get_or_create(&ByReason { reason: answered.reason.as_str() }).inc();
        self.seconds.observe(took.as_secs_f64());
        if answered.reason != Reason::Injected {
            return;
        }
        for finding in &answered.findings {
            self.findings.get_or_create(&ByCode { finding: finding.as_str() }).inc();
        }
        if answered.sleep_seconds > 0 {
            self.sleeps.observe(Duration::from_secs(answered.sleep_seconds).as_secs_f64());
        }
    }

    /// Counts a request that was refused.
    pub fn refused(&self, status: u16) {
        self.refusals.get_or_create(&ByStatus { status }).inc();
    }
}
