//! The commands `status` and `release` of an operator, against the cluster as it is: what they show is compared with what was made to happen.
//!
//! Invariant: they run as a person runs them, with the administrator's kubeconfig and nothing else.
//! Absent on purpose: what is said of each kind of pod (tables beside the code).

use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::stories::{SOON, await_none, await_ready, carries_finalizer, living, name, seen};
use crate::world::{self, World};

/// The program itself.
pub(crate) const LOCKSTEP: &str = env!("CARGO_BIN_EXE_lockstep");

pub(crate) fn status_tells_a_life(world: &World) {
    let registry = world.registry();
    registry.behave("shown", &json!({ "hold": true }));
    world.cluster.apply(&[world::deployment("shown", 1)]);
    let waiting = eventually("status says that the pod waits to be acknowledged", SOON, || {
        let (code, report) = data(world, &["status", "--namespace", "shown"]);
        let pod = report["workloads"][0]["pods"][0].clone();
        if code == 0 && pod["state"] == "Registering" && pod["targets"][0]["service"] == "shown" {
            Ok(pod)
        } else {
            Err(report.to_string())
        }
    });
    assert_eq!((&waiting["standing"], &waiting["gate"]["open"]), (&json!("waiting"), &json!(false)));
    assert!(waiting["until"].is_string() && waiting["then"].is_string(), "{waiting}");
    let pod = waiting["name"].as_str().expect("a name");
    let table = shown(world, &["status", "--namespace", "shown", "--workload", "deployment/web", "--reason", "registering"]);
    assert!(table.contains("shown/deployment/web: 0 of 1 settled") && table.contains(pod), "{table}");
    assert!(!table.contains("note: ") && !table.contains('\u{1b}'), "an administrator may read all, and no colours go to a pipe: {table}");

    registry.behave("shown", &json!({}));
    await_ready(world, "shown", 1);
    let stages = |life: &Value| life["timeline"].as_array().into_iter().flatten().map(|one| one["stage"].clone()).collect::<Vec<_>>();
    let (code, life) = data(world, &["status", "--namespace", "shown", pod]);
    assert_eq!((code, &life["pod"]["state"]), (0, &json!("Registered")));
    assert_eq!(stages(&life), ["admitted", "scheduled", "containersReady", "registered", "acknowledged", "ready"]);

    registry.behave("shown", &json!({ "hold": true }));
    world.cluster.kubectl(&["delete", "deployment/web", "--namespace", "shown"]);
    eventually("status says that its end waits for the registry", SOON, || {
        let (_, life) = data(world, &["status", &format!("shown/{pod}")]);
        let waits_for = life["pod"]["waitsFor"].as_str().unwrap_or_default();
        if life["pod"]["state"] == "Deregistering" && waits_for.ends_with("to be let go") { Ok(()) } else { Err(life.to_string()) }
    });
    let told = shown(world, &["status", &format!("shown/{pod}")]);
    assert!(
        told.contains("deleted") && told.contains("containers gone") && told.contains(&format!("lockstep release shown/{pod}")),
        "{told}"
    );
    registry.behave("shown", &json!({}));
    await_none(world, "shown");
    eventually("what was is still told when the pod is gone", SOON, || {
        let (code, life) = data(world, &["status", "--namespace", "shown", pod]);
        let stages = stages(&life);
        let ends = stages.last().is_some_and(|last| last == "deregistered") && stages.contains(&json!("acknowledged"));
        if code == 0 && life["pod"].is_null() && ends { Ok(()) } else { Err(life.to_string()) }
    });

    let nobody = world.cluster.attempt(LOCKSTEP, &["status", "--namespace", "shown", "nobody"], "");
    assert_eq!(nobody.status.code(), Some(2), "{nobody:?}");
    let refused = world.cluster.attempt(LOCKSTEP, &["status", "--context", "elsewhere"], "");
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && complaint.contains("context elsewhere"), "{complaint}");
}

pub(crate) fn followed(world: &World) {
    let mut child = world.cluster.spawn(LOCKSTEP, &["status", "--namespace", "followed", "--watch", "--output", "json"]);
    let mut reports = serde_json::Deserializer::from_reader(child.stdout.take().expect("it is piped")).into_iter::<Value>();
    let mut seen: Vec<Value> = Vec::new();
    let mut until = |what: &str, holds: &dyn Fn(&Value) -> bool| {
        while !seen.last().is_some_and(holds) {
            let next = reports.next().unwrap_or_else(|| panic!("it ended before {what}: {seen:?}")).expect("it prints JSON");
            assert_ne!(seen.last(), Some(&next), "what was printed already is no news");
            seen.push(next);
        }
    };
    let all_are = |report: &Value, state: &str| report["workloads"][0]["pods"][0]["state"] == state;
    let nothing = |report: &Value| report["workloads"] == json!([]);
    until("it printed what there is", &nothing);
    world.cluster.apply(&[world::deployment("followed", 1)]);
    until("the pod was registered", &|report| all_are(report, "Registered"));
    world.cluster.kubectl(&["delete", "deployment/web", "--namespace", "followed", "--wait=false"]);
    until("the pod was drained", &|report| all_are(report, "Draining"));
    until("the pod was gone", &nothing);
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
}

pub(crate) fn released(world: &World) {
    let registry = world.registry();
    registry.behave("freed", &json!({ "hold": true }));
    world.cluster.apply(&[world::deployment("freed", 2), world::pod("freed", "other", json!({}))]);
    eventually("all three are registered, and wait", SOON, || {
        let listed = registry.targets("freed");
        if listed.len() == 3 { Ok(()) } else { Err(format!("{listed:?}")) }
    });
    let said = shown(world, &["release", "--namespace", "freed", "--workload", "deployment/web", "--dry-run"]);
    assert_eq!(said.matches("its gate opens although nothing was acknowledged; stays registered: local/freed").count(), 2, "{said}");
    assert!(living(world, "freed").iter().all(carries_finalizer), "nothing was done");

    // Somebody at a terminal is asked, and says no.
    let asked =
        world.cluster.attempt("/usr/bin/script", &["-qec", &format!("{LOCKSTEP} release --namespace freed other"), "/dev/null"], "n\n");
    let asked_text = String::from_utf8_lossy(&asked.stdout).into_owned();
    assert!(
        asked.status.code() == Some(1) && asked_text.contains("Let 1 pod go? [y/N]") && asked_text.contains("nothing was done"),
        "{asked_text}"
    );
    assert!(living(world, "freed").iter().all(carries_finalizer), "nothing was done");

    plugin(world);
    let done = world.cluster.shell("kubectl lockstep release --namespace freed --workload web", &[]);
    assert_eq!(done.matches(": released").count(), 2, "{done}");
    eventually("the workload is Ready, the pod beside it is not", SOON, || {
        let pods = living(world, "freed");
        let free = pods.iter().filter(|pod| !carries_finalizer(pod) && crate::stories::holds(pod, "Ready")).count();
        let held = pods.iter().filter(|pod| name(pod) == "other" && carries_finalizer(pod)).count();
        if (free, held) == (2, 1) { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    let (_, report) = data(world, &["status", "--namespace", "freed", "--workload", "web"]);
    assert_eq!(report["workloads"][0]["pods"][1]["state"], "Released", "{report}");
    let pods = living(world, "freed");
    let freed = pods.iter().find(|pod| name(pod) != "other").expect("two of them");
    crate::stories::await_told(world, "freed", name(freed), &["Released"]);

    world.cluster.kubectl(&["delete", "deployment/web", "pod/other", "--namespace", "freed", "--wait=false"]);
    eventually("what was let go does not wait, the other does", SOON, || match &world.cluster.pods("freed", "app=web")[..] {
        [left] if name(left) == "other" => Ok(()),
        pods => Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")),
    });
    let rest = world.cluster.shell("kubectl lockstep release --whole-namespace freed --yes", &[]);
    assert!(rest.contains("pod freed/other: released"), "{rest}");
    await_none(world, "freed");
    registry.behave("freed", &json!({}));
}

/// Puts the program where kubectl finds it as a plugin.
pub(crate) fn plugin(world: &World) {
    let folder = world.cluster.path("plugins");
    std::fs::create_dir_all(&folder).expect("the folder is ours");
    for name in ["kubectl-lockstep", "lockstep"] {
        match std::os::unix::fs::symlink(LOCKSTEP, folder.join(name)) {
            // Another story was quicker.
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{name}: {error}"),
            _ => {}
        }
    }
}

/// Exit code and data of a command.
pub(crate) fn data(world: &World, arguments: &[&str]) -> (i32, Value) {
    let output = world.cluster.attempt(LOCKSTEP, &[arguments, &["--output", "json"]].concat(), "");
    let code = output.status.code().expect("it was not killed");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    (code, serde_json::from_slice(&output.stdout).unwrap_or(Value::String(complaint)))
}

/// What a command shows to people.
fn shown(world: &World, arguments: &[&str]) -> String {
    world.cluster.run(LOCKSTEP, arguments, "")
}
