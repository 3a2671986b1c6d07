//! Workloads of other kinds than Deployments, and pods that come and go by themselves.
//!
//! Invariant: whatever the pods do, some of them keep their targets: a failure that all of them share empties no service.
//! Absent on purpose: rolling updates of Deployments (`registration`).

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::cluster::{always, eventually};
use crate::stories::{
    SOON, await_active, await_clean, await_ready, await_told, condition, delete_workload, described, draining, holds, living, name, roll,
    seen, uid,
};
use crate::world::{self, World};

/// Long enough for a wrong drain to be seen.
const WHILE: Duration = Duration::from_secs(5);

pub(crate) fn stable_names(world: &World) {
    let mut set = world::deployment("stateful", 2);
    set["kind"] = "StatefulSet".into();
    set["spec"].as_object_mut().expect("it is one").remove("strategy");
    set["spec"]["serviceName"] = "web".into();
    world.cluster.apply(&[set]);
    let first = await_ready(world, "stateful", 2);

    world.cluster.kubectl(&["delete", "pod", "--namespace", "stateful", "web-0", "--wait=false"]);
    eventually("another pod has its name", SOON, || match world.cluster.pod("stateful", "web-0") {
        Some(pod) if uid(&pod) != uid(&first[0]) => Ok(()),
        Some(pod) => Err(seen(&pod)),
        None => Err("there is none".into()),
    });
    let second = await_active(world, "stateful", 2);
    assert_eq!(uid(&second[1]), uid(&first[1]), "the other pod was left alone");

    roll(world, "stateful", "statefulset");
    let third = await_active(world, "stateful", 2);
    assert!(third.iter().zip(&second).all(|(new, old)| name(new) == name(old) && uid(new) != uid(old)), "each was replaced under its name");
    described(world, "stateful", "web-0", &["Registering", "Registered"]);
    await_told(world, "stateful", "web-0", &["Draining", "Deregistered"]);

    delete_workload(world, "stateful", "statefulset");
    await_clean(world, "stateful");
}

pub(crate) fn on_every_node(world: &World) {
    let mut set = world::deployment("everywhere", 1);
    set["kind"] = "DaemonSet".into();
    let spec = set["spec"].as_object_mut().expect("it is one");
    spec.remove("strategy");
    spec.remove("replicas");
    // The node's own address: the next pod has the same one, while the last is still being let go.
    set["spec"]["template"]["spec"]["hostNetwork"] = true.into();
    world.cluster.apply(&[set]);
    let first = await_active(world, "everywhere", 1);
    let address = |pods: &[Pod]| pods[0].status.as_ref().and_then(|status| status.pod_ip.clone());

    roll(world, "everywhere", "daemonset");
    let second = await_active(world, "everywhere", 1);
    assert_ne!(uid(&first[0]), uid(&second[0]), "it was replaced");
    assert_eq!(address(&first), address(&second), "at the same address");
    await_told(world, "everywhere", name(&first[0]), &["Registered", "Draining", "Deregistered"]);

    delete_workload(world, "everywhere", "daemonset");
    await_clean(world, "everywhere");
}

pub(crate) fn crashing(world: &World) {
    let registry = world.registry();
    let mut web = world::deployment("crashing", 2);
    world.cluster.apply(std::slice::from_ref(&web));
    let good: BTreeSet<String> = await_active(world, "crashing", 2).iter().map(|pod| uid(pod).to_owned()).collect();
    let active = || registry.uids("crashing", "active").into_iter().collect::<BTreeSet<_>>();

    // It never comes up: the rollout stands, and nothing that served is taken away.
    web["spec"]["template"]["spec"]["containers"][0]["command"] = world::shell("exit 1");
    world.cluster.apply(std::slice::from_ref(&web));
    let broken = eventually("the new pod has crashed", SOON, || {
        let pods = living(world, "crashing");
        pods.iter().find(|pod| restarts(pod) > 0).cloned().ok_or_else(|| pods.iter().map(seen).collect::<Vec<_>>().join("; "))
    });
    always("the good pods keep their targets, and no other is registered", WHILE, || {
        let targets = registry.targets("crashing");
        if active() == good && targets.len() == good.len() { Ok(()) } else { Err(format!("{targets:?}")) }
    });
    let gate = world.cluster.pod("crashing", name(&broken)).and_then(|pod| condition(&pod, "lockstep.dev/registered").cloned());
    assert_eq!(gate.and_then(|gate| gate.reason).as_deref(), Some("WaitingForContainers"));

    // Every pod comes up and crashes again and again.
    web["spec"]["template"]["spec"]["containers"][0]["command"] = world::shell("/bin/httpd -p 8080 -h /www; sleep 4; exit 1");
    delete_workload(world, "crashing", "deployment");
    await_clean(world, "crashing");
    world.cluster.apply(&[web]);
    let crashed = eventually("a crashed pod is taken out of use", SOON, || {
        let pods = living(world, "crashing");
        let out = pods.iter().find(|pod| condition(pod, "lockstep.dev/registered").is_some_and(is_not_serving)).cloned();
        out.ok_or_else(|| pods.iter().map(seen).collect::<Vec<_>>().join("; "))
    });
    always("the service is not emptied", WHILE, || {
        let targets = registry.targets("crashing");
        if targets.iter().any(|target| target.state != "draining") { Ok(()) } else { Err(format!("{targets:?}")) }
    });
    described(world, "crashing", name(&crashed), &["NotServing", "Back-off restarting"]);
    delete_workload(world, "crashing", "deployment");
    await_clean(world, "crashing");
    await_told(world, "crashing", name(&crashed), &["Registered", "NotServing", "Deregistered"]);
}

pub(crate) fn flapping(world: &World) {
    const ROUNDS: usize = 3;
    let registry = world.registry();
    let mut web = world::deployment("flapping", 3);
    let spec = &mut web["spec"]["template"]["spec"];
    spec["volumes"] = json!([{ "name": "flap", "emptyDir": {} }]);
    let container = &mut spec["containers"][0];
    container["command"] = world::shell(": > /flap/well; exec /bin/httpd -f -p 8080 -h /www");
    container["volumeMounts"] = json!([{ "name": "flap", "mountPath": "/flap" }]);
    container["readinessProbe"] = json!({ "exec": { "command": world::shell("test -e /flap/well") }, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1 });
    world.cluster.apply(&[web]);
    let pods = await_active(world, "flapping", 3);
    let set = |pod: &Pod, well: bool| {
        let command = if well { ": > /flap/well" } else { "/bin/busybox rm /flap/well" };
        world.cluster.kubectl(&["exec", "--namespace", "flapping", name(pod), "--", "/bin/sh", "-c", command]);
    };

    for _ in 0..ROUNDS {
        set(&pods[0], false);
        eventually("its target drains", SOON, || {
            let out = registry.uids("flapping", "draining");
            if out == [uid(&pods[0])] { Ok(()) } else { Err(format!("{:?}", registry.targets("flapping"))) }
        });
        let gate = world.cluster.pod("flapping", name(&pods[0])).and_then(|pod| condition(&pod, "lockstep.dev/registered").cloned());
        assert!(gate.as_ref().is_some_and(is_not_serving), "{gate:?}");
        assert_eq!(registry.uids("flapping", "active").len(), 2, "the others serve");
        set(&pods[0], true);
        await_active(world, "flapping", 3);
    }
    described(world, "flapping", name(&pods[0]), &["NotServing", "Registered"]);

    // All at once, as when something they share is down: more than half must stay in use.
    for pod in &pods {
        set(pod, false);
    }
    eventually("no pod is ready", SOON, || match living(world, "flapping").iter().find(|pod| holds(pod, "ContainersReady")) {
        None => Ok(()),
        Some(pod) => Err(seen(pod)),
    });
    eventually("one target drains", SOON, || draining(&registry, "flapping"));
    always("the others stay in use", WHILE, || {
        let out = registry.uids("flapping", "draining").len();
        if out <= 1 { Ok(()) } else { Err(format!("{out} are drained")) }
    });
    for pod in &pods {
        set(pod, true);
    }
    await_active(world, "flapping", 3);
    delete_workload(world, "flapping", "deployment");
    await_clean(world, "flapping");
}

fn is_not_serving(gate: &k8s_openapi::api::core::v1::PodCondition) -> bool {
    gate.status == "False" && gate.reason.as_deref() == Some("NotServing")
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    statuses.map(|status| status.restart_count).sum()
}
