//! The ConfigMap in the hands of an operator: a broken one is refused with what is wrong, and nobody is locked out.
//!
//! Invariant: the configuration is at the end what it was at the beginning.
//! Absent on purpose: what is an error (the golden cases).

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::stories::{SOON, seen};
use crate::world::{self, NAMESPACE, World};

/// The ConfigMap, and the Deployment of the program.
const CONFIG_MAP: &str = "lockstep-config";
const DEPLOYMENT: &str = "deployment/lockstep";

pub(crate) fn a_broken_configuration(world: &World) {
    let good = text(&stored(world));
    let broken = format!("{good}injektion:\n  margin: 2s\n");
    let line = good.lines().count() + 1;
    let says_where = |output: Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = !output.status.success() && said.contains(&format!("line {line}, column 1: injektion: ")) && said.contains("injection");
        if told { Ok(()) } else { Err(said) }
    };
    eventually("kubectl apply of a broken configuration says what is wrong and where", SOON, || says_where(apply(world, &broken)));
    let mut values = world.values();
    values["config"]["injection"]["marign"] = "2s".into();
    let upgraded = world::helm(&world.cluster, &["upgrade"], &values);
    let said = String::from_utf8_lossy(&upgraded.stderr);
    assert!(!upgraded.status.success() && said.contains("injection.marign") && said.contains("margin"), "helm upgrade: {said}");
    assert_eq!(text(&stored(world)), good, "nothing was changed");

    scale(world, "0");
    eventually("Lockstep is down", Duration::from_secs(60), || {
        let pods = world.replicas();
        if pods.is_empty() { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    let taken = apply(world, &broken);
    assert!(taken.status.success(), "nobody is locked out: {}", String::from_utf8_lossy(&taken.stderr));

    scale(world, "2");
    world.cluster.kubectl(&["rollout", "status", DEPLOYMENT, "--namespace", NAMESPACE, "--timeout", "90s"]);
    let pod = world::pod("prepared", "after-a-restart", json!({}));
    eventually("the last good configuration is in force after a restart", SOON, || {
        let pod = world.cluster.rehearse("prepared", &pod)?;
        if pod["metadata"]["finalizers"].is_array() { Ok(()) } else { Err(pod["metadata"].to_string()) }
    });
    eventually("an Event says what is wrong with the present one", SOON, || {
        let events = world.cluster.events(NAMESPACE, CONFIG_MAP);
        if events.iter().any(|(_, note)| note.contains("injektion")) { Ok(()) } else { Err(format!("{events:?}")) }
    });
    let mended = apply(world, &good);
    assert!(mended.status.success(), "a good one is taken again: {}", String::from_utf8_lossy(&mended.stderr));
}

/// Applies the ConfigMap with that text, in the name of the tool that owns it.
fn apply(world: &World, text: &str) -> Output {
    let mut object = stored(world);
    object["data"]["config.yaml"] = text.into();
    let metadata = object["metadata"].as_object_mut().expect("it is stored");
    let managers = metadata.remove("managedFields").expect("kubectl was asked to show them");
    metadata.retain(|key, _| ["name", "namespace", "labels", "annotations"].contains(&&**key));
    let owner = managers[0]["manager"].as_str().expect("somebody made it");
    let arguments = ["apply", "--server-side", "--force-conflicts", "--field-manager", owner, "-f", "-"];
    world.cluster.attempt("kubectl", &arguments, &object.to_string())
}

fn stored(world: &World) -> Value {
    let arguments = ["get", "configmap", CONFIG_MAP, "--namespace", NAMESPACE, "--show-managed-fields", "-o", "json"];
    serde_json::from_str(&world.cluster.kubectl(&arguments)).expect("kubectl prints JSON")
}

fn text(config_map: &Value) -> String {
    config_map["data"]["config.yaml"].as_str().expect("it holds a configuration").to_owned()
}

fn scale(world: &World, replicas: &str) {
    world.cluster.kubectl(&["scale", DEPLOYMENT, "--namespace", NAMESPACE, "--replicas", replicas]);
}
