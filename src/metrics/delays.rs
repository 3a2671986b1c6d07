//! Metrics of the drain delays that registries told.
//!
//! Invariant: a service is shown here only while its registry's answer is kept; without one its fallback counts.
//! Absent on purpose: the delays themselves and how long they count (`registry::delays`).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::Catalog;
use crate::target::ServiceId;

/// What registries said, and when.
#[derive(Clone, Debug)]
pub struct DelayMetrics {
    seconds: Family<ServiceLabels, Gauge<f64, AtomicU64>>,
    answered: Family<ServiceLabels, Gauge>,
}

/// Labels of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ServiceLabels {
    registry: Arc<str>,
    service: Arc<str>,
}

impl From<&ServiceId> for ServiceLabels {
    fn from(service: &ServiceId) -> Self {
        Self { registry: Arc::clone(&service.registry), service: Arc::clone(&service.service) }
    }
}

impl DelayMetrics {
    /// None known, in the catalog.
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        Self {
            seconds: catalog.add("lockstep_drain_delay_seconds", "Drain delay of a service, as its registry told it", Family::default()),
            answered: catalog.add(
                "lockstep_drain_delay_answered_timestamp_seconds",
                "When the registry told it last, in seconds since 1970; after an hour the fallback counts",
                Family::default(),
            ),
        }
    }

    /// A registry answered.
    pub fn answered(&self, service: &ServiceId, delay: Duration, at: jiff::Timestamp) {
        self.seconds.get_or_create(&service.into()).set(delay.as_secs_f64());
        self.answered.get_or_create(&service.into()).set(at.as_second());
    }

    /// There is no answer of that service any more.
    pub fn forget(&self, service: &ServiceId) {
        self.seconds.remove(&service.into());
        self.answered.remove(&service.into());
    }
}
