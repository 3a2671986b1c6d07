//! A hand that does to cluster and registry exactly what a story tells it, right or wrong.
//!
//! It stands where the product stands and uses the same traits.
//!
//! Invariant: it decides nothing.
//! Absent on purpose: retries; in these stories nothing is refused.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockstep::names;
use lockstep::pod::PodView;
use lockstep::reconcile::clock::Instant;
use lockstep::reconcile::cluster::{ConditionPatch, PodPatch, Presence};
use lockstep::reconcile::{Clock, Cluster, Drivers};
use lockstep::registry::{Change, Operation, Registry};
use lockstep::target::{PodKey, PodUid};

use super::Play;
use crate::executor::BoxFuture;
use crate::product::Instance;
use crate::world::registry::SimRegistry;

/// One process, led by a story.
pub(crate) struct Hand {
    instance: Instance,
    registry: Arc<SimRegistry>,
    uids: std::collections::BTreeMap<String, (PodKey, PodUid)>,
}

impl Hand {
    /// The process of `instance`, played so.
    pub(crate) fn lend(instance: Instance, play: Play) -> BoxFuture {
        let cluster: Arc<str> = Arc::from("sim");
        let driver = lockstep::config::HttpConfig { url: String::new(), token: None, ca: None };
        let config = lockstep::config::RegistryConfig { name: Arc::from("sim"), driver: lockstep::config::DriverConfig::Http(driver) };
        let registry = instance.drivers.open(&config, &cluster).expect("the simulated driver opens everything");
        let hand = Self { instance, registry, uids: std::collections::BTreeMap::new() };
        Box::pin(async move {
            play(hand).await;
            std::future::pending::<()>().await;
        })
    }

    /// Which replica this is.
    pub(crate) fn name(&self) -> &str {
        &self.instance.name
    }

    /// Waits until that second of the process's life.
    pub(crate) async fn until(&self, second: u64) {
        self.instance.clock.sleep_until(Instant(Duration::from_secs(second))).await;
    }

    async fn view(&mut self, handle: &str) -> PodView {
        let key = PodKey::new("shop", handle);
        let view = self.instance.api.pod(&key).await.expect("the server answers").expect("the pod is there");
        self.uids.insert(handle.to_owned(), (key, view.uid.clone()));
        view
    }

    /// Takes the Lease, in case nobody holds it.
    pub(crate) async fn take_lease(&self) {
        let mut lease = self.instance.api.read_lease().await.expect("the server answers");
        if lease.holder.is_empty() {
            lease.holder = self.instance.name.to_string();
            self.instance.api.write_lease(&lease).await.expect("nobody else writes");
        }
    }

    async fn patch(&mut self, handle: &str, conditions: Vec<ConditionPatch>, finalizer: Option<Presence>) {
        let view = self.view(handle).await;
        let patch = PodPatch { uid: view.uid, resource_version: None, conditions, finalizer, label: false, annotations: Vec::new() };
        self.instance.api.patch_pod(&view.key, &patch).await.expect("the server answers");
    }

    async fn condition(&mut self, handle: &str, type_: &'static str, status: bool, reason: &'static str, message: &str) -> ConditionPatch {
        let view = self.view(handle).await;
        let old = if type_ == names::GATE { view.gate } else { view.claims };
        let changes = old.is_none_or(|old| old.status != status);
        let transition = changes.then(|| self.instance.clock.wall());
        ConditionPatch { type_, status, reason, message: message.to_owned(), transition }
    }

    /// Writes the claim, and the gate False.
    pub(crate) async fn claim(&mut self, handle: &str) {
        self.take_lease().await;
        self.claim_as_other(handle).await;
    }

    /// The same, whoever holds the Lease.
    pub(crate) async fn claim_as_other(&mut self, handle: &str) {
        let claims = self.condition(handle, names::CLAIMS, true, "Claimed", "sim/web 10.0.0.5:8080").await;
        let gate = self.condition(handle, names::GATE, false, "Registering", "").await;
        self.patch(handle, vec![claims, gate], None).await;
    }

    /// Drops the claims.
    pub(crate) async fn unclaim(&mut self, handle: &str) {
        let claims = self.condition(handle, names::CLAIMS, false, "NoClaims", "").await;
        self.patch(handle, vec![claims], None).await;
    }

    /// Opens the gate.
    pub(crate) async fn open(&mut self, handle: &str) {
        let gate = self.condition(handle, names::GATE, true, "Registered", "").await;
        self.patch(handle, vec![gate], None).await;
    }

    /// Shuts the gate.
    pub(crate) async fn shut(&mut self, handle: &str) {
        let gate = self.condition(handle, names::GATE, false, "Registering", "").await;
        self.patch(handle, vec![gate], None).await;
    }

    /// Writes the gate False with a reason, and with or without a time.
    pub(crate) async fn say(&mut self, handle: &str, reason: &'static str, timed: bool) {
        let transition = timed.then(|| self.instance.clock.wall());
        let gate = ConditionPatch { type_: names::GATE, status: false, reason, message: String::new(), transition };
        self.patch(handle, vec![gate], None).await;
    }

    /// Writes a condition that is not ours.
    pub(crate) async fn foreign(&mut self, handle: &str) {
        let transition = Some(self.instance.clock.wall());
        let other = ConditionPatch { type_: "example.com/other", status: true, reason: "Mine", message: String::new(), transition };
        self.patch(handle, vec![other], None).await;
    }

    /// Takes our finalizer.
    pub(crate) async fn finish(&mut self, handle: &str) {
        self.take_lease().await;
        self.patch(handle, Vec::new(), Some(Presence::Absent)).await;
    }

    /// Sends one change.
    pub(crate) async fn change(&mut self, operation: Operation, handle: &str) {
        if !self.uids.contains_key(handle) {
            self.view(handle).await;
        }
        let (pod, uid) = self.uids[handle].clone();
        let change = Change { operation, address: address(), uid, pod, cluster: Arc::from("sim"), weight: 100 };
        let _ = self.registry.apply("web", &[change]).await;
    }

    /// Sends two changes of one target at once.
    pub(crate) async fn both(&mut self, handle: &str) {
        let (pod, uid) = self.uids[handle].clone();
        let change = Change { operation: Operation::Register, address: address(), uid, pod, cluster: Arc::from("sim"), weight: 100 };
        let changes = [change];
        let _ = futures_util::future::join(self.registry.apply("web", &changes), self.registry.apply("web", &changes)).await;
    }

    /// Reads the service.
    pub(crate) async fn list(&self) {
        let _ = self.registry.list("web", None).await;
    }

    /// The whole way of a pod into service.
    pub(crate) async fn serve(&mut self, handle: &str) {
        self.claim(handle).await;
        self.change(Operation::Register, handle).await;
        self.list().await;
        self.open(handle).await;
    }
}

fn address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 5], 8080))
}
