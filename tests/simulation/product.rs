//! Where the simulation touches the product: its parser and its reconciler.
//!
//! Everything else of the simulation speaks of the product's traits only.
//!
//! Invariant: the product's own code runs, unchanged.
//! Absent on purpose: toy products (`selftest`).

use std::sync::Arc;

use lockstep::config::Configuration;
use lockstep::metrics::Metrics;
use lockstep::reconcile::{Options, run};
use lockstep::registration::reason::Reason;
use tokio::sync::oneshot;

use crate::executor::{BoxFuture, SimClock};
use crate::world::api::Api;
use crate::world::registry::SimDrivers;

/// Everything that one process is given.
pub(crate) struct Instance {
    pub(crate) api: Api,
    pub(crate) drivers: SimDrivers,
    pub(crate) clock: SimClock,
    pub(crate) name: Arc<str>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stop: oneshot::Receiver<()>,
}

/// The product, as one process.
pub(crate) fn launch(instance: Instance) -> BoxFuture {
    let options = Options::new(instance.name.to_string());
    let stop = instance.stop;
    let stop = async move {
        let _ = stop.await;
    };
    Box::pin(run(instance.api, instance.drivers, instance.clock, options, instance.metrics, stop))
}

/// What the product's own parser makes of a configuration.
pub(crate) fn parse_configuration(text: &str) -> Result<Configuration, String> {
    lockstep::config::parse(text).map_err(|error| error.to_string())
}

/// Reasons that a drawn world cannot reach or show: limits far above its size, a debt that is a day old, a driver that does not open,
/// and three that the product writes to no condition and no Event.
const OUT_OF_REACH: [Reason; 7] = [
    Reason::ClaimsFull,
    Reason::DebtsFull,
    Reason::DebtDropped,
    Reason::RegistryUnusable,
    Reason::Deregistering,
    Reason::Released,
    Reason::Nothing,
];

/// Every reason that the product can write in a drawn world.
pub(crate) fn reasons() -> Vec<&'static str> {
    Reason::ALL.into_iter().filter(|reason| !OUT_OF_REACH.contains(reason)).map(Reason::as_str).collect()
}
