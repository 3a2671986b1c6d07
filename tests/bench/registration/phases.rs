//! The measurements.
//!
//! Invariant: each begins with a replica of its own, which nothing has grown before.
//! Absent on purpose: what is there before them (`stage`), how pods are written (`kubelet`).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::audit::{Audit, Write};
use crate::cluster::eventually;
use crate::kubelet::{Pod, Recorded, pods};
use crate::report::{Report, percentile};
use crate::stage::{SERVICES, Stage};

/// Pods that become ready one after the other, and those that do at once.
const CROWD: usize = 1000;
/// Time between two pods of the first.
const BEAT: Duration = Duration::from_millis(10);
/// Pods of a large cluster.
const MANY: usize = 10_000;
/// The registry takes this long to bring a target into use, as real ones do.
const WARMING: &str = "200ms";
/// Writes to pods and Events that a plain client has on their way, as Lockstep has.
const AT_ONCE: usize = 64 + 16;
/// Nothing here takes longer on a machine that works.
const PATIENCE: Duration = Duration::from_secs(180);
/// Before that is over, those that are still waited for are told by name, but no more than so many.
const LAST_LOOK: Duration = Duration::from_secs(10);
const TOLD: usize = 5;
/// MiB by which two runs of the same differ.
const NOISE: f64 = 2.0;
/// Memory that has not grown for so many looks a second apart has settled.
const SETTLED: usize = 5;

/// Gates of pods that become ready at 100 a second, and every write of their lives.
pub(crate) fn pace(stage: &Stage, report: &mut Report) {
    eprintln!("{CROWD} pods, 100 a second");
    let crowd = pods("pace", 1, CROWD);
    let replica = stage.lead("pace");
    behave(stage, &json!({ "registerDelay": WARMING }));
    let life = stage.audit();
    stage.cluster.runtime.block_on(stage.kubelet.create(&crowd));
    await_quiet(&life);
    let seen = ActiveTimes::follow(stage);
    stage.cluster.runtime.block_on(async {
        let mut beat = tokio::time::interval(BEAT);
        let mut writes = tokio::task::JoinSet::new();
        for pod in crowd.clone() {
            beat.tick().await;
            let kubelet = stage.kubelet.clone();
            writes.spawn(async move { kubelet.ready(&pod).await });
        }
        writes.join_all().await;
    });
    let opened = await_gates(stage, &life, &crowd);
    let ready = times(&life.writes(), |write| !write.ours && write.resource == "pods/status");
    let active = seen.end();
    let waits = |from: &dyn Fn(&str) -> f64| opened.iter().map(|(name, at)| (at - from(name)) * 1e3).collect::<Vec<f64>>();
    let mut since_active = waits(&|name| ready[name].max(active.get(name).copied().unwrap_or_default()));
    report.add("gate_p50_ms", "gate True after ContainersReady and registry active, p50", percentile(&mut since_active, 0.5), "ms", "");
    report.hold("gate_p99_ms", "the same, p99, at 100 pods/s", percentile(&mut since_active, 0.99), "ms", 50.0);
    let warming = 200.0;
    let mut whole: Vec<f64> = waits(&|name| ready[name]).into_iter().map(|wait| wait - warming).collect();
    report.add("handshake_p50_ms", "the whole handshake but the registry's 200 ms, p50", percentile(&mut whole, 0.5), "ms", "");
    report.add("handshake_p99_ms", "the same, p99", percentile(&mut whole, 0.99), "ms", "");

    behave(stage, &json!({}));
    end(stage, &crowd);
    whole_life(&life, &crowd, report);
    replica.kill();
}

/// Pods that become ready at once, and a plain client that makes the same writes.
pub(crate) fn storm(stage: &Stage, report: &mut Report) {
    eprintln!("a storm of {CROWD} pods");
    let crowd = pods("storm", 2001, CROWD);
    let replica = stage.lead("storm");
    let before = stage.audit();
    let made = create(stage, &crowd);
    await_quiet(&before);
    let audit = stage.audit();
    let begun = now();
    stage.cluster.runtime.block_on(stage.kubelet.ready_all(&crowd));
    await_gates(stage, &audit, &crowd);
    let recorded = await_quiet(&audit);
    replica.kill();
    let storm = last(&recorded) - begun;

    let again = pods("again", 4001, CROWD);
    let made_again = create(stage, &again);
    let scripts = scripts(recorded, &made, &made_again);
    let audit = stage.audit();
    let begun = now();
    stage.cluster.runtime.block_on(replay(stage, &made_again, scripts));
    let plain = last(&audit.writes()) - begun;
    report.add("storm_s", "1,000 pods become ready at once: until the last write", storm, "s", "");
    report.add("storm_plain_s", "the same writes by a plain concurrent client", plain, "s", "");
    report.hold("storm_ratio", "one against the other", storm / plain, "x", 1.2);
    let all: Vec<Pod> = crowd.into_iter().chain(again).collect();
    let replica = stage.lead("sweep");
    end(stage, &all);
    replica.kill();
}

/// Memory with many pods, beside many foreign ones, and changes of leader.
pub(crate) fn many(stage: &Stage, report: &mut Report) {
    eprintln!("{MANY} registered pods");
    let crowd = pods("many", 10_001, MANY);
    let made = create(stage, &crowd);
    stage.cluster.runtime.block_on(stage.kubelet.registered_all(&crowd));
    enter(stage, &made);
    let audit = stage.audit();
    let replica = stage.lead("alone");
    let mut probes = pods("probe", 30_001, 4).into_iter();
    probe(stage, &mut probes);
    let (resident, peak) = settled(&replica);
    report.add("many_resident_mib", "10,000 managed pods: memory", resident, "MiB", "");
    report.hold("many_peak_mib", "the same, with the peak of start and relist", peak, "MiB", 60.0);
    let needless = audit.writes().iter().filter(|write| write.ours && write.name.starts_with("many-")).count();
    report.hold("many_writes", "writes to them after a restart", needless as f64, "", 0.0);

    let standby = stage.serve("standby");
    let pod = probes.next().expect("there are enough");
    stage.cluster.runtime.block_on(stage.kubelet.create(std::slice::from_ref(&pod)));
    let killed = takeover(stage, &pod, || replica.kill());
    report.add("takeover_crash_s", "10,000 pods, the leader is killed: until the next one acts", killed, "s", "12 s are the Lease");
    let third = stage.serve("third");
    let pod = probes.next().expect("there are enough");
    stage.cluster.runtime.block_on(stage.kubelet.create(std::slice::from_ref(&pod)));
    let stopped = takeover(stage, &pod, || standby.terminate());
    report.add("takeover_stop_s", "the leader is asked to stop: until the next one acts", stopped, "s", "");
    third.kill();
    standby.kill();

    eprintln!("{MANY} foreign pods");
    stage.cluster.runtime.block_on(stage.kubelet.create_foreign(&pods("foreign", 40_001, MANY)));
    let replica = stage.lead("beside");
    probe(stage, &mut probes);
    let (_, beside) = settled(&replica);
    report.add("foreign_peak_mib", "the peak beside 10,000 foreign pods", beside, "MiB", "");
    report.hold("foreign_more_mib", "what they add to it", beside - peak, "MiB", NOISE);
    replica.kill();
}

/// When the registry brought each pod's target into use, seen by a reader that waits for changes as Lockstep does.
struct ActiveTimes {
    seen: Arc<Mutex<HashMap<String, f64>>>,
    readers: Vec<tokio::task::JoinHandle<()>>,
}

impl ActiveTimes {
    fn follow(stage: &Stage) -> Self {
        let seen = Arc::new(Mutex::new(HashMap::new()));
        let client = reqwest::Client::new();
        let reader = |service: usize| {
            let (seen, client) = (Arc::clone(&seen), client.clone());
            let url = format!("{}/v1/services/s{service}/targets", stage.registry);
            stage.cluster.runtime.spawn(async move {
                let mut index = 0;
                loop {
                    let Ok(answer) = client.get(&url).query(&[("index", index.to_string()), ("wait", "20s".to_owned())]).send().await
                    else {
                        return;
                    };
                    let listing: Value = answer.json().await.unwrap_or_default();
                    let at = now();
                    index = listing["index"].as_u64().unwrap_or_default();
                    let mut seen = seen.lock().expect("nobody panics while holding it");
                    for target in listing["targets"].as_array().into_iter().flatten().filter(|target| target["state"] == "active") {
                        if let Some(name) = target["pod"]["name"].as_str() {
                            seen.entry(name.to_owned()).or_insert(at);
                        }
                    }
                }
            })
        };
        let readers = (0..SERVICES).map(reader).collect();
        Self { seen, readers }
    }

    fn end(self) -> HashMap<String, f64> {
        self.readers.iter().for_each(tokio::task::JoinHandle::abort);
        std::mem::take(&mut *self.seen.lock().expect("nobody panics while holding it"))
    }
}

/// What each write of a pod's life is there for.
const LIFE: [(&str, &str); 8] = [
    ("pods/status: registered WaitingForContainers", "says why the pod is not Ready while its containers start"),
    ("pods/status: registered Registering, targets Claimed", "the claim stands before anything is sent to a registry"),
    ("pods/status: registered Registered", "opens the gate"),
    ("pods/status: targets NoClaims, finalizer off", "drops the claim and lets the pod go, in one write"),
    ("Event Registering", "kubectl describe says what the pod waits for"),
    ("Event Registered", "and until when it did"),
    ("Event Draining", "and that new traffic was stopped"),
    ("Event Deregistered", "and that the registry let go"),
];

/// Counts what Lockstep wrote to each pod and about it, by purpose.
fn whole_life(audit: &Audit, crowd: &[Pod], report: &mut Report) {
    let mut purposes: BTreeMap<String, usize> = BTreeMap::new();
    for write in await_quiet(audit).iter().filter(|write| write.ours) {
        *purposes.entry(write.purpose()).or_default() += 1;
    }
    let each = |count: usize| count as f64 / crowd.len() as f64;
    let total: usize = purposes.values().sum();
    report.add("life_writes", "API writes in a pod's whole life", each(total), "", "");
    for (purpose, count) in purposes {
        let why = LIFE.iter().find(|(known, _)| *known == purpose).map_or("not foreseen", |(_, why)| why);
        report.add(&format!("life_writes: {purpose}"), &format!("  {purpose}"), each(count), "", why);
    }
}

/// The end of pods, as kubelets bring it about.
fn end(stage: &Stage, crowd: &[Pod]) {
    stage.cluster.runtime.block_on(stage.kubelet.delete_all(crowd, false));
    eventually("targets drain", PATIENCE, || {
        let left: usize = listed(stage).iter().filter(|target| target["state"] == "active").count();
        if left == 0 { Ok(()) } else { Err(format!("{left} are active")) }
    });
    stage.cluster.runtime.block_on(stage.kubelet.ended_all(crowd));
    eventually("targets go", PATIENCE, || {
        let left = listed(stage).len();
        if left == 0 { Ok(()) } else { Err(format!("{left} are listed")) }
    });
    stage.cluster.runtime.block_on(stage.kubelet.delete_all(crowd, true));
    eventually("pods go", PATIENCE, || {
        let left = stage.cluster.kubectl(&["get", "pods", "--namespace", crate::stage::NAMESPACE, "-o", "name"]).lines().count();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    });
}

/// What a plain client sends for each pod, in the order in which it was recorded.
fn scripts(recorded: Vec<Write>, old: &[(Pod, String)], new: &[(Pod, String)]) -> HashMap<String, Vec<Recorded>> {
    let places: HashMap<&str, usize> = old.iter().enumerate().map(|(place, (pod, _))| (pod.name.as_str(), place)).collect();
    let mut scripts: HashMap<String, Vec<Recorded>> = HashMap::new();
    for write in recorded.into_iter().filter(|write| write.ours) {
        // The name of an Event begins with that of its pod.
        let Some(&place) = write.name.split('.').next().and_then(|name| places.get(name)) else { continue };
        let ((old_pod, old_uid), (pod, uid)) = (&old[place], &new[place]);
        let renew = |text: String| text.replace(&old_pod.name, &pod.name).replace(old_uid, uid);
        let mut body: Value = serde_json::from_str(&renew(write.body.to_string())).expect("names and UIDs need no escape");
        // It was that of the old pod.
        body["metadata"].as_object_mut().expect("every object has metadata").remove("resourceVersion");
        scripts.entry(pod.name.clone()).or_default().push(Recorded { created: write.created, uri: renew(write.uri), body });
    }
    scripts
}

async fn replay(stage: &Stage, crowd: &[(Pod, String)], mut scripts: HashMap<String, Vec<Recorded>>) {
    let (statuses, room) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(AT_ONCE)));
    let mut pods = tokio::task::JoinSet::new();
    for (pod, _) in crowd.iter().cloned() {
        let script = scripts.remove(&pod.name).expect("every pod was written to");
        let (kubelet, statuses, room) = (stage.kubelet.clone(), Arc::clone(&statuses), Arc::clone(&room));
        pods.spawn(async move {
            let turn = statuses.acquire().await.expect("it is never closed");
            kubelet.ready(&pod).await;
            drop(turn);
            for request in script {
                let _turn = room.acquire().await.expect("it is never closed");
                kubelet.repeat(&request).await;
            }
        });
    }
    pods.join_all().await;
}

/// Creates pods; answers each with its UID.
fn create(stage: &Stage, crowd: &[Pod]) -> Vec<(Pod, String)> {
    let uids = stage.cluster.runtime.block_on(stage.kubelet.create(crowd));
    crowd.iter().cloned().zip(uids).collect()
}

/// Puts the targets of pods into the registry, as an earlier leader has done.
fn enter(stage: &Stage, crowd: &[(Pod, String)]) {
    let mut services: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (pod, uid) in crowd {
        let name = json!({ "namespace": crate::stage::NAMESPACE, "name": pod.name });
        let change = json!({ "operation": "register", "address": pod.target(), "uid": uid, "cluster": "bench", "pod": name });
        services.entry(pod.service()).or_default().push(change);
    }
    for (service, changes) in services {
        for changes in changes.chunks(100) {
            let url = format!("{}/v1/services/{service}/changes", stage.registry);
            let answer = stage.cluster.http(Method::POST, &url, "", Some(&json!({ "changes": changes })));
            assert!(answer.as_ref().is_some_and(|(status, _)| *status == 200), "{answer:?}");
        }
    }
}

/// One pod from creation to its gate: whoever leads acts on everything then.
fn probe(stage: &Stage, probes: &mut impl Iterator<Item = Pod>) {
    let pod = probes.next().expect("there are enough");
    let audit = stage.audit();
    stage.cluster.runtime.block_on(async {
        stage.kubelet.create(std::slice::from_ref(&pod)).await;
        stage.kubelet.ready(&pod).await;
    });
    await_gates(stage, &audit, std::slice::from_ref(&pod));
}

/// Seconds from the end of a leader until the next one has opened the gate of a pod that became ready meanwhile.
fn takeover(stage: &Stage, pod: &Pod, end: impl FnOnce()) -> f64 {
    let audit = stage.audit();
    let begun = now();
    end();
    stage.cluster.runtime.block_on(stage.kubelet.ready(pod));
    await_gates(stage, &audit, std::slice::from_ref(pod))[&pod.name] - begun
}

fn settled(replica: &crate::stage::Replica) -> (f64, f64) {
    let (mut looks, mut peak) = (0, 0.0);
    eventually("memory has settled", PATIENCE, || {
        std::thread::sleep(Duration::from_secs(1));
        let now = replica.peak();
        looks = if now > peak { 0 } else { looks + 1 };
        peak = now;
        if looks >= SETTLED { Ok(()) } else { Err(format!("{now} MiB")) }
    });
    (replica.resident(), peak)
}

fn behave(stage: &Stage, behaviour: &Value) {
    let answer = stage.cluster.http(Method::PUT, &format!("{}/v1/behaviour", stage.registry), "", Some(behaviour));
    assert!(answer.as_ref().is_some_and(|(status, _)| *status == 200), "{answer:?}");
}

fn listed(stage: &Stage) -> Vec<Value> {
    let list = |service: usize| {
        let (_, body) = stage.cluster.http(Method::GET, &format!("{}/v1/services/s{service}/targets", stage.registry), "", None)?;
        body["targets"].as_array().cloned()
    };
    (0..SERVICES).filter_map(list).flatten().collect()
}

/// When each gate was opened, once all are; what the API server says of those that are not, should they stay closed.
fn await_gates(stage: &Stage, audit: &Audit, crowd: &[Pod]) -> HashMap<String, f64> {
    let begun = Instant::now();
    eventually("gates are open", PATIENCE, || {
        let opened = times(&audit.writes(), Write::opens_gate);
        let closed: Vec<&Pod> = crowd.iter().filter(|pod| !opened.contains_key(&pod.name)).collect();
        if closed.is_empty() {
            return Ok(opened);
        }
        let last = begun.elapsed() + LAST_LOOK >= PATIENCE;
        let told: Vec<String> = closed.iter().take(if last { TOLD } else { 0 }).map(|pod| conditions(stage, pod)).collect();
        Err(format!("{} of {}; {}", opened.len(), crowd.len(), told.join("; ")))
    })
}

fn conditions(stage: &Stage, pod: &Pod) -> String {
    let arguments = ["get", "pod", &pod.name, "--namespace", crate::stage::NAMESPACE, "-o", "jsonpath={.status.conditions}"];
    format!("{}: {}", pod.name, stage.cluster.kubectl(&arguments))
}

/// All writes, once no further ones follow.
fn await_quiet(audit: &Audit) -> Vec<Write> {
    let mut before = usize::MAX;
    eventually("nothing more is written", PATIENCE, || {
        std::thread::sleep(Duration::from_secs(1));
        let writes = audit.writes();
        if writes.len() == before {
            Ok(writes)
        } else {
            before = writes.len();
            Err(format!("{before} writes"))
        }
    })
}

/// When each object was first written so.
fn times(writes: &[Write], so: impl Fn(&Write) -> bool) -> HashMap<String, f64> {
    let mut times = HashMap::new();
    for write in writes.iter().filter(|write| so(write)) {
        times.entry(write.name.clone()).or_insert(write.at);
    }
    times
}

fn last(writes: &[Write]) -> f64 {
    writes.iter().map(|write| write.at).fold(f64::NAN, f64::max)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs_f64()
}
