//! What happens when something fails: the registry, the leader, all of Lockstep, the API server.
//!
//! Invariant: every failure is made for real, by ending a process.
//! Absent on purpose: lost nodes (`nodes`).

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{always, eventually};
use crate::stories::{
    SOON, await_active, await_clean, await_none, await_ready, await_rolled, delete_workload, holds, living, name, seen, uid,
};
use crate::stories::{commands, doctor};
use crate::world::{self, NAMESPACE, World};

pub(crate) fn a_registry_goes_down(world: &World) {
    let registry = world.beside.view(&world.cluster);
    world.cluster.apply(&[world::deployment("outage", 2)]);
    let old = await_ready(world, "outage", 2);
    world.beside.stop();

    world.cluster.kubectl(&["scale", "deployment/web", "--namespace", "outage", "--replicas", "3"]);
    world.cluster.kubectl(&["delete", "pod", "--namespace", "outage", name(&old[0]), "--wait=false"]);
    let held = eventually("a new pod waits", SOON, || {
        let pods = living(world, "outage");
        let waiting = pods.iter().find(|pod| holds(pod, "ContainersReady") && !holds(pod, "Ready"));
        waiting.cloned().ok_or_else(|| pods.iter().map(seen).collect::<Vec<_>>().join("; "))
    });
    eventually("kubectl describe says what the pod waits for", SOON, || {
        let described = world.cluster.kubectl(&["describe", "pod", "--namespace", "outage", name(&held)]);
        if described.contains("beside") && described.contains("cannot be reached") { Ok(()) } else { Err(described) }
    });
    eventually("an Event says it too", SOON, || {
        let events = world.cluster.events("outage", name(&held));
        if events.iter().any(|(_, note)| note.contains("beside")) { Ok(()) } else { Err(format!("{events:?}")) }
    });
    let (_, found) = commands::data(world, &["doctor", "--namespace", "outage"]);
    assert!(doctor::names(&found, ("RegistryFailing", "beside/outage", "cannot be reached")), "{found}");
    always("pods are held at both ends, and those that serve stay Ready", Duration::from_secs(10), || {
        let pods = world.cluster.pods("outage", "app=web");
        let by_uid = |wanted: &str| pods.iter().find(|pod| uid(pod) == wanted);
        match (by_uid(uid(&held)), by_uid(uid(&old[0])), by_uid(uid(&old[1]))) {
            (Some(new), Some(_), Some(serving)) if !holds(new, "Ready") && holds(serving, "Ready") => Ok(()),
            _ => Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")),
        }
    });

    world.beside.start(&world.cluster);
    let pods = await_ready(world, "outage", 3);
    eventually("the registry lists the three pods and nothing else", SOON, || {
        let mut listed: Vec<String> = registry.uids("outage", "active");
        let mut wanted: Vec<String> = pods.iter().map(|pod| uid(pod).to_owned()).collect();
        listed.sort();
        wanted.sort();
        if listed == wanted && registry.targets("outage").len() == 3 { Ok(()) } else { Err(format!("{:?}", registry.targets("outage"))) }
    });
    eventually("the deleted pod is gone", SOON, || match world.cluster.pod("outage", name(&old[0])) {
        None => Ok(()),
        Some(pod) => Err(seen(&pod)),
    });
}

pub(crate) fn the_leader_is_killed(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("leader", 4)]);
    let before = await_ready(world, "leader", 4);
    let leader = leader(world);

    // In the middle of everything: a pod waits to be acknowledged, another waits to be let go.
    registry.behave("leader", &json!({ "hold": true }));
    world.cluster.kubectl(&["rollout", "restart", "deployment/web", "--namespace", "leader"]);
    world.cluster.kubectl(&["delete", "pod", "--namespace", "leader", name(&before[0]), "--wait=false"]);
    eventually("a new pod is registered, and waits", SOON, || {
        let listed = registry.targets("leader");
        if listed.iter().any(|target| target.state == "initial") { Ok(()) } else { Err(format!("{listed:?}")) }
    });
    kill(world, &leader);
    registry.behave("leader", &json!({}));

    world.cluster.kubectl(&["rollout", "status", "deployment/web", "--namespace", "leader", "--timeout", "120s"]);
    let pods = await_ready(world, "leader", 4);
    assert!(pods.iter().all(|pod| before.iter().all(|old| uid(old) != uid(pod))), "every pod was replaced");
    eventually("nothing is left of the old pods", SOON, || {
        let left = world.cluster.pods("leader", "app=web").len();
        let listed = registry.targets("leader");
        if left == 4 && listed.len() == 4 { Ok(()) } else { Err(format!("{left} pods, {listed:?}")) }
    });
}

pub(crate) fn lockstep_is_down(world: &World) {
    let scale = |replicas: &str| {
        world.cluster.kubectl(&["scale", "deployment/lockstep", "--namespace", NAMESPACE, "--replicas", replicas]);
    };
    scale("0");
    eventually("Lockstep is down", Duration::from_secs(60), || {
        let pods = world.replicas();
        if pods.is_empty() { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });

    world.cluster.apply(&[world::pod("open", "through", json!({}))]);
    let through = world.cluster.pod("open", "through").expect("it was let through");
    assert_eq!(through.metadata.finalizers, None, "nobody was there to prepare it");
    let refused = world.cluster.attempt("kubectl", &["apply", "-f", "-"], &world::pod("closed", "refused", json!({})).to_string());
    assert!(!refused.status.success(), "a strict namespace refuses pods while Lockstep is down");
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(complaint.contains("strict.lockstep.dev"), "{complaint}");
    for (namespace, evidence) in [("open", "without the readiness gate"), ("closed", "failed calling webhook")] {
        let (_, found) = commands::data(world, &["doctor", "--namespace", namespace]);
        assert!(doctor::names(&found, ("PodsNotPrepared", namespace, evidence)), "{found}");
    }
    let counted = world.cluster.kubectl(&["get", "--raw", "/metrics"]);
    for series in [
        r#"webhook_fail_open_count{name="enabled.lockstep.dev""#,
        r#"webhook_rejection_count{error_type="calling_webhook_error",name="strict"#,
    ] {
        let series = format!("apiserver_admission_{series}");
        assert!(counted.contains(&series), "alerts ask for {series}");
    }

    // Whoever opts everything in cannot keep Lockstep itself from coming back.
    world.cluster.kubectl(&["label", "namespace", NAMESPACE, "lockstep.dev/inject=strict"]);
    scale("2");
    world.cluster.kubectl(&["rollout", "status", "deployment/lockstep", "--namespace", NAMESPACE, "--timeout", "90s"]);
    eventually("a strict namespace takes pods again", SOON, || {
        let applied = world.cluster.attempt("kubectl", &["apply", "-f", "-"], &world::pod("closed", "taken", json!({})).to_string());
        if applied.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&applied.stderr).into_owned()) }
    });
    let taken = world.cluster.pod("closed", "taken").expect("it was applied");
    world.cluster.kubectl(&["label", "namespace", NAMESPACE, "lockstep.dev/inject-"]);
    assert_eq!(taken.metadata.finalizers.as_deref(), Some(&["lockstep.dev/deregistered".to_owned()][..]));
    world.cluster.kubectl(&["delete", "pod", "--namespace", "closed", "taken", "--wait=false"]);
    await_none(world, "closed");
}

pub(crate) fn the_api_server_restarts(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("interrupted", 3)]);
    let before = await_active(world, "interrupted", 3);
    let restarts = restarts(world);
    registry.behave("interrupted", &json!({ "hold": true }));
    world.cluster.kubectl(&["rollout", "restart", "deployment/web", "--namespace", "interrupted"]);
    eventually("a new pod is registered, and waits", SOON, || {
        let listed = registry.targets("interrupted");
        if listed.iter().any(|target| target.state == "initial") { Ok(()) } else { Err(format!("{listed:?}")) }
    });

    world.cluster.stop("kube-apiserver");
    registry.behave("interrupted", &json!({}));
    always("what serves goes on serving for longer than a leader can hold its Lease", Duration::from_secs(13), || {
        let active = registry.uids("interrupted", "active");
        if before.iter().all(|pod| active.iter().any(|one| one == uid(pod))) { Ok(()) } else { Err(format!("{active:?}")) }
    });
    world.cluster.start("kube-apiserver");
    eventually("the API server answers again", Duration::from_secs(60), || {
        let output = world.cluster.attempt("kubectl", &["get", "--raw", "/readyz"], "");
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    });

    await_rolled(world, "interrupted", "deployment");
    let after = await_active(world, "interrupted", 3);
    assert!(after.iter().all(|pod| before.iter().all(|old| uid(old) != uid(pod))), "the rollout went on to its end");
    assert_eq!(self::restarts(world), restarts, "no replica was restarted");
    delete_workload(world, "interrupted", "deployment");
    await_clean(world, "interrupted");
}

/// How often containers of Lockstep were restarted.
fn restarts(world: &World) -> i32 {
    let pods = world.replicas();
    let statuses = pods.into_iter().filter_map(|pod| pod.status?.container_statuses).flatten();
    statuses.map(|status| status.restart_count).sum()
}

/// Name of the replica that reconciles.
pub(crate) fn leader(world: &World) -> String {
    eventually("a replica holds the Lease", SOON, || {
        let lease = world.cluster.kubectl(&["get", "lease", "--namespace", NAMESPACE, "lockstep", "-o", "json"]);
        let lease: Value = serde_json::from_str(&lease).expect("kubectl prints JSON");
        let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty());
        holder.map(str::to_owned).ok_or_else(|| lease.to_string())
    })
}

/// Ends the process of a replica as a crash does: no preStop, no SIGTERM, the Lease not given back.
pub(crate) fn kill(world: &World, pod: &str) {
    let pod = world.cluster.pod(NAMESPACE, pod).expect("the replica is there");
    let node = pod.spec.and_then(|spec| spec.node_name).expect("it runs");
    let status = pod.status.and_then(|status| status.container_statuses).expect("it runs").remove(0);
    let container = status.container_id.expect("it runs");
    let container = container.trim_start_matches("containerd://");
    let socket = world.cluster.path(&format!("{node}/containerd.sock"));
    let socket = socket.to_str().expect("mktemp prints text");
    world.cluster.run("ctr", &["--address", socket, "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", container], "");
}
