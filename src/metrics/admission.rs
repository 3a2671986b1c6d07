//! Metrics of the webhook.
//!
//! Invariant: labels are reasons of the closed enum, or HTTP status codes that the server answers.
//! Absent on purpose: namespaces and pods; their number has no bound.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::Catalog;

/// Upper ends of the buckets: a review takes tens of microseconds, a stalled machine a second.
const SECONDS: [f64; 10] = [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0];

/// Metrics of the webhook.
#[derive(Debug)]
pub struct AdmissionMetrics {
    reviews: Family<ByReason, Counter>,
    refusals: Family<ByStatus, Counter>,
    seconds: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStatus {
    status: u16,
}

impl AdmissionMetrics {
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        Self {
            reviews: catalog.add("lockstep_admission_reviews", "Reviews of pods that were answered, by reason", Family::default()),
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
    pub fn answered(&self, reason: &'static str, took: Duration) {
        self.reviews.get_or_create(&ByReason { reason }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts a request that was refused.
    pub fn refused(&self, status: u16) {
        self.refusals.get_or_create(&ByStatus { status }).inc();
    }
}
