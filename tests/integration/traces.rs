//! One pod's whole life as a collector of traces sees it: the reconciler, a real registry and the wire format of OTLP.

use std::sync::Arc;
use std::time::Duration;

use lockstep::metrics::Metrics;
use lockstep::metrics::reconcile::OutcomeLabel;
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::reconcile::{self, Options};
use lockstep::registration::Reason;
use lockstep::registry::driver::Opener;
use lockstep::target::{PodKey, PodUid};
use lockstep::traces::exporter::{DROPPED, Exporter};
use lockstep::traces::{Part, Span, Traces, Way};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use rstest::rstest;
use tokio::sync::oneshot;

use crate::collector::{Collector, hex, texts};
use crate::registry_ground::Inside;
use crate::small_cluster::SmallCluster;

const LOOPBACK: &str = "127.0.0.1";

#[tokio::test]
async fn a_life_is_two_traces_with_what_happened_in_them() {
    let (collector, store) = (Collector::default(), tempfile::tempdir().unwrap());
    let registry = Inside::start(&store.path().join("registry.redb"), &[]).await;
    let cluster = SmallCluster::new(&format!(
        "{{apiVersion: lockstep.dev/v1alpha1, kind: Configuration, cluster: here,
          registries: [{{name: lan, http: {{url: '{}'}}}}],
          bindings: [{{name: web, namespaces: [shop], podSelector: {{matchLabels: {{app: web}}}}, registry: lan, service: web, port: http,
                       drain: {{fixed: 1s}}}}]}}",
        registry.url
    ));
    let outcomes = Family::default();
    let exporter = Exporter::new(&collector.start_at(LOOPBACK).await, "one", outcomes.clone()).unwrap();
    let (traces, spans) = Traces::open(outcomes.get_or_create(&DROPPED).clone());
    let exporting = exporter.start(spans);
    let (stop, stopped) = oneshot::channel::<()>();
    let options = Options { traces, ..Options::new("one") };
    let opener = Opener::new(store.path().into(), Family::default());
    let work = reconcile::run(cluster.clone(), opener, TokioClock::start(), options, Arc::new(Metrics::new()), async {
        let _ = stopped.await;
    });
    let reconciler = tokio::spawn(work);
    cluster.run("web-1", &["10.0.0.1"]);
    cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    cluster.delete("web-1");
    cluster.stop("web-1");
    cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    stop.send(()).unwrap();
    reconciler.await.unwrap();
    exporting.finish().await;
    registry.stop().await;

    let told = collector.told();
    let named = |name: &str| told.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in {told:?}"));
    for (whole, parts) in [("registration", &["Registering", "register"][..]), ("deregistration", &["deregister"])] {
        let root = named(whole);
        assert!(root.parent_span_id.is_empty() && root.trace_id.len() == 16 && root.span_id.len() == 8, "{root:?}");
        for part in parts {
            let part = named(part);
            assert_eq!((&part.trace_id, &part.parent_span_id), (&root.trace_id, &root.span_id), "{part:?}");
            assert!(part.start_time_unix_nano <= part.end_time_unix_nano && part.end_time_unix_nano <= root.end_time_unix_nano, "{part:?}");
            assert!(part.status.as_ref().is_none_or(|status| status.code == 0), "{part:?}");
        }
    }
    assert_ne!(named("registration").trace_id, named("deregistration").trace_id);
    let register = texts(&named("register").attributes);
    let expected = [
        ("k8s.namespace.name", "shop"),
        ("k8s.pod.name", "web-1"),
        ("k8s.pod.uid", "uid-of-web-1"),
        ("lockstep.registry", "lan"),
        ("lockstep.service", "web"),
        ("lockstep.target", "10.0.0.1:8080"),
    ];
    assert_eq!(register, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let resource = &collector.resources()[0];
    assert_eq!((resource["service.name"].as_str(), resource["service.instance.id"].as_str()), ("lockstep", "one"));
}

fn a_span(uid: &str, reason: Reason) -> Span {
    let at = |second| jiff::Timestamp::from_second(second).unwrap();
    Span::of(&PodUid::new(uid), &PodKey::new("shop", "web"), Way::In, Part::Whole(reason), at(100), at(107))
}

#[tokio::test]
async fn the_trace_of_a_registration_is_the_uid_of_its_pod() {
    let collector = Collector::default();
    let exporter = Exporter::new(&format!("{}/", collector.start_at(LOOPBACK).await), "one", Family::default()).unwrap();
    let (traces, spans) = Traces::open(Counter::default());
    traces.tell(|| a_span("0a1b2c3d-0000-4000-8000-00000000000f", Reason::GateTimeout));
    drop(traces);
    exporter.start(spans).finish().await;
    let [span] = &collector.told()[..] else { panic!("one was told") };
    assert_eq!(hex(&span.trace_id), "0a1b2c3d00004000800000000000000f");
    assert_eq!(span.status.as_ref().unwrap().code, 2, "it went on without an acknowledgement: {span:?}");
    assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, Duration::from_secs(7).as_nanos() as u64);
}

#[rstest]
#[case::that_is_away(false)]
#[case::that_refuses(true)]
#[tokio::test]
async fn what_a_collector_does_not_take_is_counted(#[case] refuses: bool) {
    let collector = if refuses { Collector::that_refuses() } else { Collector::default() };
    // Nothing listens on the discard port.
    let address = if refuses { collector.start_at(LOOPBACK).await } else { "http://127.0.0.1:9".to_owned() };
    let outcomes = Family::default();
    let exporter = Exporter::new(&address, "one", outcomes.clone()).unwrap();
    let (traces, spans) = Traces::open(Counter::default());
    traces.tell(|| a_span("u", Reason::Registered));
    drop(traces);
    exporter.start(spans).finish().await;
    let count = |outcome| outcomes.get_or_create(&OutcomeLabel { outcome }).get();
    assert_eq!((count("sent"), count("refused")), (0, 1));
}

#[test]
fn nobody_waits_for_room() {
    let dropped = Counter::default();
    let (traces, spans) = Traces::open(dropped.clone());
    for _ in 0..10_000 {
        traces.tell(|| a_span("u", Reason::Registered));
    }
    assert_eq!((spans.len() as u64 + dropped.get(), spans.len()), (10_000, 8192));
}

#[rstest]
#[case("collector:4318")]
#[case("grpc://collector:4317")]
#[case("")]
fn an_address_that_is_none_is_named(#[case] address: &str) {
    let error = Exporter::new(address, "one", Family::default()).unwrap_err().to_string();
    assert!(error.contains(&format!("{address:?}")) && error.contains("http://collector.observability:4318"), "{error}");
}
