//! cert-manager itself makes and renews the certificates of the webhook and of the chart's registry.
//!
//! Invariant: pods are created without a pause meanwhile, in a strict namespace, and none is refused or left unprepared.
//! Absent on purpose: cert-manager's own webhook and its cainjector; Lockstep writes its caBundle itself.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::programs::printed;
use crate::stories::availability::{upgrade, while_pods_are_created};
use crate::stories::{SOON, await_clean, await_ready, delete_workload, name};
use crate::world::{self, NAMESPACE, World};

/// Secret that the chart's Certificate names.
const ISSUED: &str = "lockstep-issued-certificate";
/// Certificate and Secret of the registry.
const REGISTRY: &str = "registry-tls";
/// A CA is served a while after it was written into the caBundle, and kubelets bring files in their own time.
const RENEWED: Duration = Duration::from_secs(180);

/// cert-manager, ended with the story.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().expect("it is our child");
        self.0.wait().expect("it is our child");
    }
}

pub(crate) fn issues_and_renews(world: &World) {
    let plain = world.values();
    let _running = start(world);

    let mut issued = world.values();
    issued["certificates"] = json!({ "source": "certManager", "certManager": { "duration": "24h" } });
    while_pods_are_created(world, || upgrade(world, &issued));
    let first = await_served(world, "the issued certificate", |_| true);

    while_pods_are_created(world, || {
        renew(world, "lockstep");
        await_served(world, "the renewed certificate", |serial| serial != first);
    });
    while_pods_are_created(world, || {
        let before = secret(world, ISSUED, "ca\\.crt");
        renew(world, "lockstep-ca");
        renew(world, "lockstep");
        let serial = secret_serial(world);
        await_served(world, "a certificate of the new CA", |served| served == serial);
        assert_ne!(secret(world, ISSUED, "ca\\.crt"), before, "the CA is another one");
    });

    speaks_tls(world, &issued);
    while_pods_are_created(world, || upgrade(world, &plain));
}

/// The chart's registry with a certificate of the same issuer: pods are registered, and the registry knows nobody in the clear.
fn speaks_tls(world: &World, issued: &Value) {
    let host = format!("lockstep-registry.{NAMESPACE}.svc");
    world.cluster.apply(&[json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": REGISTRY, "namespace": NAMESPACE },
        "spec": { "secretName": REGISTRY, "dnsNames": [host], "issuerRef": { "name": "lockstep", "kind": "Issuer" } },
    })]);
    world.cluster.kubectl(&["wait", "certificate", REGISTRY, "--namespace", NAMESPACE, "--for", "condition=Ready", "--timeout", "60s"]);
    let mut values = issued.clone();
    values["registry"]["tlsSecret"] = REGISTRY.into();
    upgrade(world, &values);
    world.cluster.apply(&[world::deployment("certified", 2)]);
    await_ready(world, "certified", 2);
    upgrade(world, issued);
    delete_workload(world, "certified", "deployment");
    await_clean(world, "certified");
    world.cluster.kubectl(&["delete", "certificate,secret", REGISTRY, "--namespace", NAMESPACE]);
}

fn start(world: &World) -> Running {
    let programs = printed("tests/cluster/build", "cert-manager");
    let resources = programs.join("resources.yaml");
    world.cluster.kubectl(&["apply", "--server-side", "-f", resources.to_str().expect("paths are text")]);
    world.cluster.kubectl(&["wait", "customresourcedefinitions", "--all", "--for", "condition=Established", "--timeout", "60s"]);
    let log = File::create(world.cluster.path("log/cert-manager")).expect("the folder is ours");
    let process = Command::new(programs.join("cert-manager"))
        .arg(world.cluster.path("admin.kubeconfig"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a file can be shared"))
        .stderr(log)
        .spawn();
    Running(process.expect("it was built"))
}

/// Has cert-manager renew a Certificate as its own command line does, and waits until it has.
fn renew(world: &World, certificate: &str) {
    let revision = || {
        let asked = ["get", "certificate", certificate, "--namespace", NAMESPACE, "-o", "jsonpath={.status.revision}"];
        world.cluster.kubectl(&asked).parse::<u32>().unwrap_or_default()
    };
    let before = revision();
    let status = json!({ "status": { "conditions": [
        { "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "for a test", "lastTransitionTime": "2020-01-01T00:00:00Z" },
        { "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z" },
    ] } });
    let patch = ["patch", "certificate", certificate, "--namespace", NAMESPACE, "--subresource", "status", "--type", "merge", "--patch"];
    world.cluster.kubectl(&[&patch[..], &[&status.to_string()]].concat());
    eventually(&format!("{certificate} is renewed"), SOON, || if revision() > before { Ok(()) } else { Err(format!("revision {before}")) });
}

/// Waits until each replica serves a certificate for which that holds, and answers its serial number; the API server takes it, as long as
/// pods are created beside this.
fn await_served(world: &World, what: &str, holds: impl Fn(&str) -> bool) -> String {
    // A kubelet looks at the Secrets of a pod that has changed at once, of another within a minute.
    for replica in world.replicas() {
        let mark = format!("example.org/looked={}", what.replace(' ', "-"));
        world.cluster.kubectl(&["annotate", "pod", name(&replica), "--namespace", NAMESPACE, "--overwrite", &mark]);
    }
    let issuer = || secret_serial(world);
    eventually(&format!("{what} is served"), RENEWED, || {
        let addresses = world.cluster.ready_endpoints(NAMESPACE, "lockstep");
        let serials: Vec<String> = addresses.iter().map(|address| served_serial(world, &address.to_string())).collect();
        let wanted = issuer();
        let right = serials.len() == 2 && serials.iter().all(|serial| *serial == wanted) && holds(&wanted);
        if right { Ok(wanted) } else { Err(format!("{serials:?}, not {wanted}")) }
    })
}

fn served_serial(world: &World, address: &str) -> String {
    let ask = "openssl s_client -connect \"$ADDRESS\" < /dev/null 2> /dev/null | openssl x509 -noout -serial 2> /dev/null || true";
    world.cluster.shell(ask, &[("ADDRESS", address)]).trim().to_owned()
}

fn secret_serial(world: &World) -> String {
    let certificate = secret(world, ISSUED, "tls\\.crt");
    world.cluster.shell("echo \"$PEM\" | base64 -d | openssl x509 -noout -serial", &[("PEM", &certificate)]).trim().to_owned()
}

/// A value of a Secret, in base64.
fn secret(world: &World, name: &str, key: &str) -> String {
    let template = format!("jsonpath={{.data.{key}}}");
    world.cluster.kubectl(&["get", "secret", name, "--namespace", NAMESPACE, "-o", &template])
}
