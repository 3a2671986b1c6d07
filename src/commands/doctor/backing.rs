//! What stands behind a registry in the cluster itself: the Service that its address names, and the workloads that the Service selects.
//!
//! A registry that does not answer has often just no replicas; whoever is called at night should not have to find out which object that is.
//!
//! Invariant: pure; an address that names no Service of this cluster for certain is never said to lack one.
//! Absent on purpose: reading (`reading`), whether the registry answers (`registries`).

use std::net::IpAddr;

use serde_json::Value;

use super::workloads;
use crate::config::DriverConfig;

/// The domain that clusters have unless they were given another; of another one it is not known whose it is.
const OWN_DOMAIN: [&str; 2] = ["cluster", "local"];

/// A Service of the cluster, as an address names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    /// Its namespace.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// The address can mean nothing else.
    pub(super) for_certain: bool,
}

/// What was found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// There is no such Service.
    Missing(Named),
    /// The workloads whose pods it selects.
    Workloads(Named, Vec<Workload>),
}

/// A workload behind a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    kind: String,
    namespace: String,
    name: String,
    /// So many replicas are wanted.
    wanted: i64,
    /// So many are ready.
    ready: i64,
}

impl Named {
    /// The Services that the addresses of a registry name; `own` is the namespace in which they are looked up.
    pub(super) fn of(driver: &DriverConfig, own: &str) -> Vec<Self> {
        let url = |url: &str| url.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
        let hosts: Vec<String> = match driver {
            DriverConfig::Aws(aws) => aws.endpoint.as_deref().and_then(url).into_iter().collect(),
            DriverConfig::Consul(consul) => url(&consul.address).into_iter().collect(),
            DriverConfig::Http(http) => url(&http.url).into_iter().collect(),
            DriverConfig::Haproxy(haproxy) => {
                let of_network = haproxy.addresses.iter().filter(|address| !address.starts_with("unix:"));
                of_network.filter_map(|address| address.rsplit_once(':')).map(|(host, _)| host.to_owned()).collect()
            }
        };
        let mut all: Vec<Self> = hosts.iter().filter_map(|host| Self::host(host, own)).collect();
        all.sort();
        all.dedup();
        all
    }

    fn host(host: &str, own: &str) -> Option<Self> {
        if host.starts_with(['[', '/']) || host.parse::<IpAddr>().is_ok() {
            return None;
        }
        let labels: Vec<&str> = host.trim_end_matches('.').split('.').collect();
        let (namespace, name, for_certain) = match labels[..] {
            [name] => (own, name, false),
            [name, namespace] => (namespace, name, false),
            // Behind `svc` may stand the domain of another cluster, or of several (`clusterset.local` of the Multi-Cluster Services API).
            [name, namespace, "svc", ref domain @ ..] => (namespace, name, domain.is_empty() || domain == OWN_DOMAIN),
            // A pod of a StatefulSet has a name of its own before that.
            [_, name, namespace, "svc", ref domain @ ..] => (namespace, name, domain.is_empty() || domain == OWN_DOMAIN),
            _ => return None,
        };
        Some(Self { namespace: namespace.to_owned(), name: name.to_owned(), for_certain })
    }
}

impl Backing {
    /// Of the workloads of the Service's namespace those whose pods it selects.
    pub(super) fn behind(named: Named, service: &Value, workloads: &[Value]) -> Self {
        let selector = service.pointer("/spec/selector").and_then(Value::as_object);
        let selects = |workload: &&Value| {
            let labels = workload.pointer("/spec/template/metadata/labels");
            selector.is_some_and(|selector| {
                !selector.is_empty() && selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
            })
        };
        Self::Workloads(named, workloads.iter().filter(selects).map(Workload::read).collect())
    }

    /// What was seen there, as a part of a sentence; nothing where there is nothing to say.
    pub(super) fn evidence(&self) -> Option<String> {
        match self {
            Self::Missing(named) if named.for_certain => {
                Some(format!("its address is that of Service {}, which is not there", named.whole()))
            }
            Self::Missing(_) => None,
            Self::Workloads(_, workloads) if workloads.is_empty() => None,
            Self::Workloads(named, workloads) => {
                let stands = |one: &Workload| format!("{} with {} of {} replicas ready", one.whole(), one.ready, one.wanted);
                let all: Vec<String> = workloads.iter().map(stands).collect();
                Some(format!("behind its address, Service {}, stands {}", named.whole(), all.join(", and ")))
            }
        }
    }

    /// What mends it, where that is to be seen.
    pub(super) fn change(&self) -> Option<String> {
        match self {
            Self::Missing(named) if named.for_certain => {
                Some(format!("mend the address of the registry in the configuration, or make Service {}", named.whole()))
            }
            Self::Missing(_) => None,
            Self::Workloads(_, workloads) => workloads.iter().find_map(Workload::change),
        }
    }
}

impl Named {
    fn whole(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Workload {
    fn read(workload: &Value) -> Self {
        let count = |pointer: &str| workload.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
        let text = |pointer: &str| workload.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = text("/kind");
        let ready = count(if kind == "DaemonSet" { "/status/numberReady" } else { "/status/readyReplicas" });
        // One that does not say how many it wants, wants one.
        let wanted = workloads::replicas(workload).unwrap_or(1);
        Self { kind, namespace: text("/metadata/namespace"), name: text("/metadata/name"), wanted, ready }
    }

    fn whole(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    fn change(&self) -> Option<String> {
        let object = format!("{}/{} --namespace {}", self.kind.to_lowercase(), self.name, self.namespace);
        if self.wanted == 0 && self.kind != "DaemonSet" {
            return Some(format!("let it run again, as with `kubectl scale {object} --replicas 1`"));
        }
        (self.ready < self.wanted || self.wanted == 0)
            .then(|| format!("see why its pods are not ready, as with `kubectl describe {object}`"))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::config::{HaproxyConfig, HttpConfig};

    fn named(namespace: &str, name: &str, for_certain: bool) -> Named {
        Named { namespace: namespace.to_owned(), name: name.to_owned(), for_certain }
    }

    #[rstest]
    #[case::in_full("http://registry.infra.svc:8080", Some(named("infra", "registry", true)))]
    #[case::with_the_domain("https://registry.infra.svc.cluster.local./base", Some(named("infra", "registry", true)))]
    #[case::of_several_clusters("http://registry.infra.svc.clusterset.local", Some(named("infra", "registry", false)))]
    #[case::perhaps_another_cluster("http://registry.infra.svc.east.example", Some(named("infra", "registry", false)))]
    #[case::a_pod_of_it("http://registry-0.registry.infra.svc:8080", Some(named("infra", "registry", true)))]
    #[case::perhaps("http://registry.infra:8080", Some(named("infra", "registry", false)))]
    #[case::beside_lockstep("http://registry:8080", Some(named("own", "registry", false)))]
    #[case::elsewhere("https://registry.example.org", None)]
    #[case::an_address("http://10.1.0.5:8080", None)]
    #[case::a_long_address("http://[fd00::5]:8080", None)]
    fn an_address_names_a_service(#[case] url: &str, #[case] service: Option<Named>) {
        let driver = DriverConfig::Http(HttpConfig { url: url.to_owned(), token: None, ca: None });
        assert_eq!(Named::of(&driver, "own"), service.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn every_instance_of_haproxy_names_its_own_and_a_socket_none() {
        let addresses =
            ["lb-0.lb.infra.svc:9999", "lb-1.lb.infra.svc:9999", "other.infra.svc:9999", "unix:/run/haproxy.sock", "[fd00::5]:9999"];
        let addresses = addresses.map(str::to_owned).to_vec();
        let driver = DriverConfig::Haproxy(HaproxyConfig { addresses, instance_timeout: HaproxyConfig::INSTANCE_TIMEOUT, tls_ca: None });
        assert_eq!(Named::of(&driver, "own"), [named("infra", "lb", true), named("infra", "other", true)]);
    }

    fn stateful_set(wanted: i64, ready: i64) -> Value {
        json!({"kind": "StatefulSet", "metadata": {"namespace": "infra", "name": "store"},
            "spec": {"replicas": wanted, "template": {"metadata": {"labels": {"app": "store", "tier": "back"}}}}, "status": {"readyReplicas": ready}})
    }

    fn behind(selector: Value, workload: Value) -> Backing {
        Backing::behind(named("infra", "registry", true), &json!({"spec": {"selector": selector}}), &[workload])
    }

    #[rstest]
    #[case::none_wanted(0, 0, Some("let it run again, as with `kubectl scale statefulset/store --namespace infra --replicas 1`"))]
    #[case::not_ready(2, 1, Some("see why its pods are not ready, as with `kubectl describe statefulset/store --namespace infra`"))]
    #[case::well(1, 1, None)]
    fn a_workload_that_does_not_run_is_named(#[case] wanted: i64, #[case] ready: i64, #[case] change: Option<&str>) {
        let backing = behind(json!({"app": "store"}), stateful_set(wanted, ready));
        let seen =
            format!("behind its address, Service infra/registry, stands StatefulSet infra/store with {ready} of {wanted} replicas ready");
        assert_eq!((backing.evidence(), backing.change().as_deref()), (Some(seen), change));
    }

    #[rstest]
    #[case::others(json!({"app": "other"}))]
    #[case::more(json!({"app": "store", "zone": "a"}))]
    #[case::nothing(json!({}))]
    #[case::no_selector(Value::Null)]
    fn a_workload_that_the_service_does_not_select_is_not_named(#[case] selector: Value) {
        let backing = behind(selector, stateful_set(0, 0));
        assert_eq!((backing.evidence(), backing.change()), (None, None));
    }

    #[test]
    fn a_service_is_missed_only_where_the_address_means_nothing_else() {
        let missing = |for_certain| Backing::Missing(named("infra", "registry", for_certain));
        assert_eq!(missing(true).evidence().as_deref(), Some("its address is that of Service infra/registry, which is not there"));
        assert!(missing(true).change().is_some_and(|change| change.contains("mend the address")));
        assert_eq!((missing(false).evidence(), missing(false).change()), (None, None));
    }
}
