//! Pods behind an AWS target group, as an install has them: the chart, a key in the environment, the sleep from the group's delay.
//!
//! Invariant: what a story asserts is what the account holds, not what Lockstep says of it.
//! Absent on purpose: AWS's states and refusals one by one (the driver's tests), real traffic.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::account::GROUPED;
use crate::cluster::eventually;
use crate::stories::commands::data;
use crate::stories::doctor::names;
use crate::stories::{SOON, await_none, await_ready, fewest, roll};
use crate::world::{self, SLEEP, World};

/// Between two looks at the group.
const LOOK: Duration = Duration::from_millis(10);

pub(crate) fn a_rolling_update(world: &World) {
    const PODS: usize = 3;
    let account = &world.account;
    world.cluster.apply(&[world::deployment(GROUPED, 3)]);
    let before = addresses(&await_ready(world, GROUPED, PODS));
    assert_eq!(account.healthy(), before, "Ready means healthy");

    let healthy = || {
        std::thread::sleep(LOOK);
        account.healthy().len()
    };
    let fewest = fewest(healthy, || roll(world, GROUPED, "deployment"));
    assert!(fewest >= PODS, "only {fewest} targets were healthy at one moment");
    let pods = await_ready(world, GROUPED, PODS);
    eventually("the group holds the new pods and nothing else", SOON, || {
        let (left, healthy) = (account.left(), account.healthy());
        if left == PODS && healthy == addresses(&pods) { Ok(()) } else { Err(format!("{left} targets, healthy: {healthy:?}")) }
    });
    for pod in &pods {
        let record = record(pod);
        assert_eq!(record["sleepSeconds"], SLEEP, "the group's delay and the margin: {record}");
        assert_eq!(record.get("fallback"), None, "{record}");
    }

    let (code, found) = data(world, &["doctor", "--namespace", GROUPED]);
    assert_eq!((code, &found["findings"]), (0, &json!([])), "check and probe ask the same: {found}");
    account.check_asks("/deep", 300);
    let (code, found) = data(world, &["doctor", "--namespace", GROUPED]);
    assert_eq!(code, 1, "{found}");
    assert!(names(&found, ("CheckElsewhere", "Deployment grouped/web", "asks http on port 8080/deep")), "{found}");
    assert!(names(&found, ("CheckSlow", "account/", "asks every 300 s")), "{found}");

    world.cluster.kubectl(&["delete", "deployment/web", "--namespace", GROUPED]);
    await_none(world, GROUPED);
    assert_eq!(account.left(), 0, "a target outlived its pod");

    account.claimed_by_another();
    let (_, found) = data(world, &["doctor", "--namespace", GROUPED]);
    assert!(names(&found, ("ServiceNotOurs", "account/", "elbv2.k8s.aws/cluster")), "{found}");
}

fn addresses(pods: &[Pod]) -> BTreeSet<IpAddr> {
    let address = |pod: &Pod| pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()?.parse().ok());
    pods.iter().map(|pod| address(pod).expect("a Ready pod has an address")).collect()
}

fn record(pod: &Pod) -> Value {
    let annotations = pod.metadata.annotations.as_ref().expect("the record is there");
    serde_json::from_str(&annotations["lockstep.dev/injected"]).expect("it is JSON")
}
