//! An AWS account beside the cluster: a simulator of its ELBv2 API, with one target group.
//!
//! Invariant: time passes there because it is looked at, so a story waits for a state and never for a clock.
//! Absent on purpose: a load balancer that sends anything; the stories of lost requests have real ones.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::peers::elbv2::model::Group;
use crate::peers::elbv2::{REGION, Simulator};
use crate::registry::ADDRESS;

/// Namespace and name of the binding whose service is the target group.
pub(crate) const GROUPED: &str = "grouped";
/// An ALB's first steps take forty seconds: the second read of one who waits is past them.
const TICK: Duration = Duration::from_secs(45);

/// The account.
pub(crate) struct Account {
    simulator: Simulator,
    group: String,
}

impl Account {
    /// Starts it on the cluster's runtime.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let simulator = cluster.runtime.block_on(Simulator::start_at(ADDRESS));
        let group = simulator.model().add(GROUPED, Group { delay: 1, ..Group::default() });
        simulator.model().tick = TICK;
        Self { simulator, group }
    }

    /// Its entry in the configuration.
    pub(crate) fn entry(&self) -> Value {
        json!({ "name": "account", "aws": { "region": REGION, "endpoint": self.simulator.url } })
    }

    /// The binding of its group, whose delay makes the sleep: a fallback that gives another one would be seen.
    pub(crate) fn binding(&self) -> Value {
        json!({
            "name": GROUPED, "namespaces": [GROUPED], "podSelector": { "matchLabels": { "app": "web" } },
            "registry": "account", "service": self.group, "port": "http", "drain": { "from": "registry", "fallback": "4s" },
        })
    }

    /// A key that it takes, for the program's environment.
    pub(crate) fn key() -> Value {
        json!([{ "name": "AWS_ACCESS_KEY_ID", "value": "AKIDTEST" }, { "name": "AWS_SECRET_ACCESS_KEY", "value": "secret" }])
    }

    /// From now on the health check of its group asks that path, every so many seconds.
    pub(crate) fn check_asks(&self, path: &'static str, seconds: u32) {
        let mut model = self.simulator.model();
        let group = model.groups.get_mut(&self.group).expect("it was added");
        (group.check_path, group.check_interval) = (path, seconds);
    }

    /// Another controller puts its mark on the group.
    pub(crate) fn claimed_by_another(&self) {
        let mut model = self.simulator.model();
        let group = model.groups.get_mut(&self.group).expect("it was added");
        group.tags.insert("elbv2.k8s.aws/cluster".to_owned(), "other".to_owned());
    }

    /// Addresses of the group's healthy targets.
    pub(crate) fn healthy(&self) -> BTreeSet<IpAddr> {
        let shown = self.simulator.model().truth(&self.group);
        shown.into_iter().filter(|target| target.state == "healthy").map(|target| target.address.ip()).collect()
    }

    /// How many targets it shows, in whatever state, once those that drain have had their time.
    pub(crate) fn left(&self) -> usize {
        self.simulator.pass(Duration::from_secs(2));
        self.simulator.model().truth(&self.group).len()
    }
}
