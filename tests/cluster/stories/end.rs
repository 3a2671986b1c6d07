//! Upgrades, rights, and taking Lockstep out.
//!
//! Invariant: the chart is handled by a real helm, and the rights are judged by the API server's own audit log.
//! Absent on purpose: switches of the chart (rendered in the integration tests).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::documentation_pages::{REMOVING, commands};
use crate::stories::{SOON, await_ready, holds, living, name, seen, uid};
use crate::world::{self, NAMESPACE, World};

pub(crate) fn an_upgrade(world: &World) {
    let written = |kind: &str, name: &str, path: &str| {
        let template = format!("jsonpath={path}");
        let value = world.cluster.kubectl(&["get", kind, "--namespace", NAMESPACE, name, "-o", &template]);
        assert!(!value.is_empty(), "the program wrote {kind} {name}");
        value
    };
    let all = || {
        [
            written("secret", "lockstep-certificate", "{.data}"),
            written("secret", "lockstep-registry-token", "{.data}"),
            written("lease", "lockstep", "{.spec.holderIdentity}"),
            written("mutatingwebhookconfiguration", "lockstep", "{.webhooks[*].clientConfig.caBundle}"),
            written("validatingwebhookconfiguration", "lockstep", "{.webhooks[*].clientConfig.caBundle}"),
        ]
    };
    let before = all();
    let mut values = world.values();
    // Nothing of the program's pods changes, so that whatever differs afterwards was helm's doing.
    values["config"]["registration"]["gateTimeout"] = "9m".into();
    world.upgrade(&values);
    assert_eq!(all(), before);
}

pub(crate) fn no_request_was_forbidden(world: &World) {
    let user = format!("system:serviceaccount:{NAMESPACE}:lockstep");
    let lines = world.cluster.audit(&user);
    assert!(!lines.is_empty(), "the audit log knows {user}");
    let forbidden: Vec<&Value> =
        lines.iter().filter(|line| line["responseStatus"]["code"] == 403 && !into_an_ending_namespace(line)).collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
    let writes = lines.iter().filter(|line| line["objectRef"]["resource"] == "pods" && !is_read(line));
    let foreign: Vec<&Value> = writes.filter(|line| line["objectRef"]["subresource"] != "status").collect();
    assert!(foreign.is_empty(), "pods are written through their status alone: {foreign:#?}");
}

pub(crate) fn no_right_is_spare(world: &World) {
    let lines = world.cluster.audit(&format!("system:serviceaccount:{NAMESPACE}:lockstep"));
    let roles = [role(world, "clusterrole", "lockstep"), role(world, "role", "lockstep")];
    let unused = unused(roles.iter().flat_map(rights).collect(), &lines);
    assert!(unused.is_empty(), "rights that nothing has used so far: {unused:#?}");
}

pub(crate) fn no_secret_is_told(world: &World) {
    let read = |arguments: &[&str]| world.cluster.kubectl(arguments);
    let of_secret = |name: &str, key: &str| {
        let text = read(&["get", "secret", name, "--namespace", NAMESPACE, "-o", &format!("jsonpath={{.data.{key}}}")]);
        String::from_utf8(STANDARD.decode(text).expect("Secrets are base64")).expect("it is text")
    };
    let key = |name: &str| of_secret("lockstep-certificate", name).lines().nth(1).expect("a key has lines").to_owned();
    let secrets = [
        ("a workload's environment", world::PASSWORD.to_owned()),
        ("the registry's token", of_secret("lockstep-registry-token", "token")),
        ("the CA's key", key(r"ca\.key")),
        ("the certificate's key", key(r"tls\.key")),
    ];

    let pods = world.cluster.pods(NAMESPACE, "app.kubernetes.io/name=lockstep");
    let metrics = pods.iter().map(|pod| (format!("metrics of {}", name(pod)), world.metrics(name(pod))));
    let selector = "app.kubernetes.io/name=lockstep";
    let told = [
        ("logs", read(&["logs", "--namespace", NAMESPACE, "--selector", selector, "--prefix", "--tail", "-1"])),
        ("events", read(&["get", "events", "--all-namespaces", "-o", "json"])),
        ("configmaps", read(&["get", "configmaps", "--namespace", NAMESPACE, "-o", "json"])),
        ("statuses", read(&["get", "pods", "--all-namespaces", "-o", "jsonpath={.items[*].status}"])),
        ("records", read(&["get", "pods", "--all-namespaces", "-o", "jsonpath={.items[*].metadata}"])),
    ];
    let told: Vec<(String, String)> = told.into_iter().map(|(what, text)| (what.to_owned(), text)).chain(metrics).collect();
    let of_lockstep = |text: &str| text.contains("lockstep");
    assert!(told.iter().filter(|(_, text)| of_lockstep(text)).count() >= 6, "Lockstep has spoken everywhere");
    for (what, secret) in secrets {
        assert!(secret.len() > 16, "{what} is long enough to be found by itself");
        let found: Vec<&str> = told.iter().filter(|(_, text)| text.contains(&secret)).map(|(place, _)| place.as_str()).collect();
        assert!(found.is_empty(), "{what} is told in {found:?}");
    }
}

pub(crate) fn no_debt_is_left(world: &World) {
    eventually("no claim is left whose pod is gone", SOON, || {
        let debts =
            world.cluster.kubectl(&["get", "configmap", "--namespace", NAMESPACE, "lockstep-debts", "-o", "jsonpath={.data.debts}"]);
        if debts.trim().is_empty() { Ok(()) } else { Err(debts) }
    });
}

pub(crate) fn an_uninstall(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("leaving", 3)]);
    await_ready(world, "leaving", 3);
    registry.behave("leaving", &json!({ "hold": true }));
    world.cluster.kubectl(&["rollout", "restart", "deployment/web", "--namespace", "leaving"]);
    eventually("a new pod waits to be acknowledged", SOON, || {
        let pods = living(world, "leaving");
        let waits = pods.iter().any(|pod| holds(pod, "ContainersReady") && !holds(pod, "Ready"));
        if pods.len() > 3 && waits { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    let old: Vec<String> = registry.uids("leaving", "active");

    let hooks = world.cluster.run("helm", &["get", "hooks", "lockstep", "--namespace", NAMESPACE], "");
    let hooks: Vec<Value> = serde_saphyr::from_multiple(&hooks).expect("helm prints YAML");
    let uninstall = commands(REMOVING).pop().expect("the page ends with it");
    assert!(uninstall.starts_with("helm uninstall lockstep "), "{uninstall}");
    world.cluster.shell(&uninstall, &[]);

    world.cluster.kubectl(&["rollout", "status", "deployment/web", "--namespace", "leaving", "--timeout", "60s"]);
    let pods = await_ready(world, "leaving", 3);
    assert!(pods.iter().all(|pod| !old.contains(&uid(pod).to_owned())), "the rollout went on to its end");
    eventually("no pod in the cluster carries our finalizer", Duration::from_secs(60), || {
        let pods = world.cluster.kubectl(&["get", "pods", "--all-namespaces", "-o", "jsonpath={.items[*].metadata.finalizers}"]);
        if pods.contains("lockstep.dev") { Err(pods) } else { Ok(()) }
    });
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations", "clusterroles", "clusterrolebindings"] {
        let names = world.cluster.kubectl(&["get", kind, "-o", "name"]);
        assert!(!names.contains("lockstep"), "left behind: {names}");
    }
    {
        let kind = "deployments,statefulsets,jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,leases";
        let names = world.cluster.kubectl(&["get", kind, "--namespace", NAMESPACE, "-o", "name"]);
        assert!(!names.contains("lockstep"), "left behind: {names}");
    }

    let lines = world.cluster.audit(&format!("system:serviceaccount:{NAMESPACE}:lockstep-release"));
    let forbidden: Vec<&Value> = lines.iter().filter(|line| line["responseStatus"]["code"] == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
    let roles = hooks.iter().filter(|hook| hook["rules"].is_array());
    let unused = unused(roles.flat_map(rights).collect(), &lines);
    assert!(unused.is_empty(), "rights that the uninstall did not use: {unused:#?}");
}

/// Verb, group, resource with its sub-resource, and name if it is bound to one.
type Right = (String, String, String, String);

fn role(world: &World, kind: &str, name: &str) -> Value {
    let text = world.cluster.kubectl(&["get", kind, name, "--namespace", NAMESPACE, "-o", "json"]);
    serde_json::from_str(&text).expect("kubectl prints JSON")
}

/// Every single right of a role.
fn rights(role: &Value) -> Vec<Right> {
    let texts = |list: &Value| -> Vec<String> {
        let items = list.as_array().into_iter().flatten();
        items.map(|item| item.as_str().expect("rules are made of texts").to_owned()).collect()
    };
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().expect("a role has rules") {
        let names = texts(&rule["resourceNames"]);
        let names = if names.is_empty() { vec![String::new()] } else { names };
        for (group, resource) in
            texts(&rule["apiGroups"]).iter().flat_map(|group| texts(&rule["resources"]).into_iter().map(move |one| (group.clone(), one)))
        {
            for (verb, name) in texts(&rule["verbs"]).iter().flat_map(|verb| names.iter().map(move |name| (verb.clone(), name.clone()))) {
                rights.push((verb, group.clone(), resource.clone(), name));
            }
        }
    }
    rights
}

/// The rights that no line of the audit log needed.
fn unused(mut rights: Vec<Right>, lines: &[Value]) -> Vec<Right> {
    for line in lines {
        let (place, text) = (&line["objectRef"], |value: &Value| value.as_str().unwrap_or_default().to_owned());
        let whole = [text(&place["resource"]), text(&place["subresource"])].join("/");
        let (verb, group, name) = (text(&line["verb"]), text(&place["apiGroup"]), text(&place["name"]));
        rights.retain(|(a_verb, a_group, resource, a_name)| {
            *a_verb != verb || *a_group != group || *resource != whole.trim_end_matches('/') || !(a_name.is_empty() || *a_name == name)
        });
    }
    rights
}

/// A namespace that is being deleted takes no Events from anybody.
fn into_an_ending_namespace(line: &Value) -> bool {
    line["objectRef"]["resource"] == "events" && line["responseStatus"]["details"]["causes"][0]["reason"] == "NamespaceTerminating"
}

fn is_read(line: &Value) -> bool {
    matches!(line["verb"].as_str(), Some("get" | "list" | "watch"))
}
