//! The doctor, against links that are broken on purpose: of workloads, of Lockstep itself, and of what it depends on.
//!
//! Invariant: each link is broken by hand as a person does it, named by the doctor, and mended; then the doctor is silent.
//! Absent on purpose: each kind of fault one by one (tables beside the checks), a target group's own check (its story).

use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::documentation_pages::commands;
use crate::stories::commands::{LOCKSTEP, data, plugin};
use crate::stories::{SOON, await_active, await_clean, await_none, await_ready, delete_workload, name, seen};
use crate::world::{self, NAMESPACE, World};

/// Namespace in which things are broken.
const AILING: &str = "ailing";
/// Its workload.
const WORKLOAD: &str = "Deployment ailing/web";

/// A code, and what its finding is about and was seen of it.
type Link<'l> = (&'l str, &'l str, &'l str);

pub(crate) fn of_workloads(world: &World) {
    world.cluster.apply(&[world::deployment("sound", 1)]);
    let pods = await_ready(world, "sound", 1);
    let (code, found) = data(world, &["doctor", "--namespace", "sound"]);
    assert_eq!((code, &found), (0, &json!({ "notes": [], "findings": [] })), "all is well");
    every_command_of_the_page(world, "sound", name(&pods[0]));

    let mut ailing = world::deployment(AILING, 2);
    ailing["spec"]["progressDeadlineSeconds"] = json!(60);
    ailing["spec"]["strategy"] = json!({ "type": "Recreate" });
    let container = &mut ailing["spec"]["template"]["spec"]["containers"][0];
    container["readinessProbe"] = json!({ "exec": { "command": ["/bin/sh", "-c", "exit 0"] } });
    container["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 1 } } });
    container["ports"][0]["name"] = json!("other");
    let mut aside = world::deployment(AILING, 1);
    aside["metadata"]["name"] = json!("aside");
    aside["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = json!({ "tcpSocket": { "port": 9090 } });
    for (labels, value) in [("/spec/selector/matchLabels", "yes"), ("/spec/template/metadata/labels", "yes")] {
        aside.pointer_mut(labels).expect("every Deployment has them")["aside"] = json!(value);
    }
    world.cluster.apply(&[ailing, aside]);
    let mut ungated = world::pod(AILING, "ungated", json!({ "lockstep.dev/inject": "disabled" }));
    ungated["spec"]["containers"][0]["lifecycle"] = json!(null);
    world.cluster.apply(&[ungated]);
    world.cluster.kubectl(&["label", "pod", "ungated", "--namespace", AILING, "lockstep.dev/inject-"]);

    const STRAY: &str = "10.9.9.9:8080";
    world.registry().plant(AILING, STRAY, "nobody");
    let expected = [
        ("PodStuck", "Pod ailing/web-", "no container port named http"),
        ("NoGate", "Pod ailing/ungated", "1 pod"),
        ("Admission", WORKLOAD, "OwnPreStopShort"),
        ("ProbeTrivial", WORKLOAD, "exit 0"),
        ("ProbeElsewhere", "Deployment ailing/aside", "asks port 9090, traffic goes to port 8080"),
        ("ProgressDeadlineShort", WORKLOAD, "60"),
        ("GoesDark", WORKLOAD, "Recreate"),
    ];
    await_named(world, AILING, &expected);
    let (_, found) = data(world, &["doctor"]);
    assert!(names(&found, ("Orphan", &format!("local/ailing {STRAY}"), "nobody")), "{found}");
    let (_, found) = data(world, &["doctor", "--without-registries"]);
    assert!(!found.to_string().contains(STRAY), "{found}");
    world.registry().pluck(AILING, STRAY, "nobody");
    world.cluster.kubectl(&["delete", "deployment/web", "deployment/aside", "pod/ungated", "--namespace", AILING, "--wait=false"]);
    await_none(world, AILING);
}

pub(crate) fn of_what_was_changed_since(world: &World) {
    world.cluster.apply(&[world::deployment(AILING, 1)]);
    let pods = await_active(world, AILING, 1);
    let before = configuration(world);
    let mut longer: Value = serde_saphyr::from_str(&before).expect("the chart renders YAML");
    let bindings = longer["bindings"].as_array_mut().expect("it has some");
    let binding = bindings.iter_mut().find(|binding| binding["name"] == AILING).expect("it is bound");
    binding["drain"] = json!({ "fixed": "9s" });
    configure(world, &longer.to_string());
    await_named(world, AILING, &[("SleepTooShort", WORKLOAD, "sleep for 3 s, and the drain delay and the margin ask for 11 s")]);
    configure(world, &before);
    await_silence(world);

    // A pod that was let go leaves its target to the debts.
    let registry = world.registry();
    registry.behave(AILING, &json!({ "hold": true }));
    world.cluster.run(LOCKSTEP, &["release", "--namespace", AILING, name(&pods[0]), "--yes"], "");
    delete_workload(world, AILING, "deployment");
    await_named(world, AILING, &[("Debt", "local/ailing ", name(&pods[0]))]);
    registry.behave(AILING, &json!({}));
    await_silence(world);
    await_clean(world, AILING);

    world.cluster.kubectl(&["scale", "statefulset/lockstep-registry", "--namespace", NAMESPACE, "--replicas", "0"]);
    let seen = "stands StatefulSet lockstep-system/lockstep-registry with 0 of 0 replicas ready";
    let found = await_named(world, AILING, &[("RegistryFailing", "local/ailing", seen)]);
    let failing = found["findings"].as_array().into_iter().flatten().find(|one| one["code"] == "RegistryFailing");
    let change = failing.and_then(|one| one["change"].as_str()).expect("it was named");
    let command = change.split('`').nth(1).unwrap_or_else(|| panic!("no command in {change:?}"));
    world.cluster.shell(command, &[]);
    await_silence(world);
}

pub(crate) fn of_lockstep_itself(world: &World) {
    const WEBHOOK: &str = "mutatingwebhookconfiguration/lockstep";
    let patch = |object: &str, patch: Value| {
        world.cluster.kubectl(&["patch", object, "--namespace", NAMESPACE, "--type", "json", "--patch", &json!([patch]).to_string()]);
    };
    let selector = "/webhooks/0/objectSelector/matchLabels";
    patch(WEBHOOK, json!({ "op": "add", "path": selector, "value": { "edited": "yes" } }));
    await_named(world, AILING, &[("WebhookChanged", "lockstep", "matchLabels {\"edited\":\"yes\"}")]);
    patch(WEBHOOK, json!({ "op": "remove", "path": selector }));

    let role = world.cluster.kubectl(&["get", "clusterrole", "lockstep", "-o", "json"]);
    let rules = serde_json::from_str::<Value>(&role).expect("kubectl prints JSON")["rules"].take();
    let fewer: Vec<&Value> = rules.as_array().into_iter().flatten().filter(|rule| rule["resources"] != json!(["nodes"])).collect();
    patch("clusterrole/lockstep", json!({ "op": "replace", "path": "/rules", "value": fewer }));
    await_named(world, AILING, &[("RightMissing", "ServiceAccount lockstep-system/lockstep", "nodes")]);
    patch("clusterrole/lockstep", json!({ "op": "replace", "path": "/rules", "value": rules }));
    await_silence(world);

    let deployment = ["deployment/lockstep", "--namespace", NAMESPACE];
    world.cluster.kubectl(&[&["set", "image"], &deployment[..], &["lockstep=lockstep:other"]].concat());
    await_named(
        world,
        AILING,
        &[("ReplicaNotReady", "Pod lockstep-system/lockstep-", "not Ready"), ("VersionsDiffer", "Deployment", "lockstep:other")],
    );
    world.cluster.kubectl(&[&["rollout", "undo"], &deployment[..]].concat());
    await_silence(world);

    let before = configuration(world);
    world.cluster.kubectl(&[&["scale"], &deployment[..], &["--replicas", "0"]].concat());
    await_named(world, AILING, &[("NobodyReconciles", "Lease lockstep-system/lockstep", "given back")]);
    eventually("nobody is there to refuse the one, or to heal the other", SOON, || {
        let replicas = world.replicas();
        if replicas.is_empty() { Ok(()) } else { Err(replicas.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    configure(world, "nonsense");
    patch(WEBHOOK, json!({ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": "" }));
    let broken =
        [("ConfigurationInvalid", "ConfigMap lockstep-system/lockstep-config", ""), ("CertificateEnds", "lockstep", "holds no CA")];
    await_named(world, AILING, &broken);
    configure(world, &before);
    world.cluster.kubectl(&[&["scale"], &deployment[..], &["--replicas", "2"]].concat());
    world.cluster.kubectl(&[&["rollout", "status"], &deployment[..], &["--timeout", "90s"]].concat());
    await_silence(world);
}

/// Whether the doctor names a broken link.
pub(crate) fn names(found: &Value, (code, about, evidence): Link<'_>) -> bool {
    found["findings"].as_array().into_iter().flatten().any(|one| {
        let says = |field: &str, text: &str| one[field].as_str().is_some_and(|said| said.contains(text));
        one["code"] == *code && says("about", about) && says("evidence", evidence)
    })
}

/// Waits until the doctor names all of them, and answers all that it found.
fn await_named(world: &World, namespace: &str, links: &[Link<'_>]) -> Value {
    eventually(&format!("the doctor names {links:?}"), SOON, || {
        let (code, found) = data(world, &["doctor", "--namespace", namespace]);
        if code == 1 && links.iter().all(|link| names(&found, *link)) { Ok(found) } else { Err(found.to_string()) }
    })
}

/// Waits until the doctor finds nothing, in the namespace and of Lockstep itself.
fn await_silence(world: &World) {
    eventually("the doctor is silent again", SOON * 2, || {
        let (code, found) = data(world, &["doctor", "--namespace", AILING]);
        if code == 0 && found["notes"] == json!([]) { Ok(()) } else { Err(found.to_string()) }
    });
}

fn configuration(world: &World) -> String {
    world.cluster.kubectl(&["get", "configmap", "lockstep-config", "--namespace", NAMESPACE, "-o", r"jsonpath={.data.config\.yaml}"])
}

fn configure(world: &World, text: &str) {
    let patch = json!({ "data": { "config.yaml": text } }).to_string();
    world.cluster.kubectl(&["patch", "configmap", "lockstep-config", "--namespace", NAMESPACE, "--type", "merge", "--patch", &patch]);
}

/// Runs what the page of commands says, as it stands there.
fn every_command_of_the_page(world: &World, namespace: &str, pod: &str) {
    plugin(world);
    let folder = world.cluster.path("plugins");
    let folder = folder.to_str().expect("mktemp prints text");
    let commands = commands("docs/commands.md");
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands {
        world.cluster.shell(&command, &[("NAMESPACE", namespace), ("POD", pod), ("FOLDER", folder)]);
    }
    assert!(std::path::Path::new(folder).join("man1/lockstep-status.1").exists());
}
