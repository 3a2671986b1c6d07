//! Reading what the checks look at.
//!
//! Invariant: nothing is written; what cannot be read is a note, save the pods themselves.
//! Absent on purpose: judging (the checks).

use serde_json::Value;

use super::facts::Facts;
use crate::commands::access::{Access, collection, our_warnings, remedy};
use crate::commands::status::sight::{Sight, Told};
use crate::names;
use crate::reconcile::Clock;
use crate::reconcile::cluster::{ApiError, Cluster};
use crate::reconcile::kubernetes::watch::query_value;
use crate::reconcile::kubernetes::{KubeCluster, Own, decode};
use crate::reconcile::tokio_clock::TokioClock;
use crate::registration::claim;
use crate::runtime::rights;

/// ServiceAccount of the program, as the chart names it.
const ACCOUNT: &str = "lockstep";

/// Reads the cluster; `only`: workloads and pods of that namespace alone.
pub(super) async fn read(access: &Access, only: Option<&str>) -> anyhow::Result<(Facts, Vec<String>)> {
    let own = Own { namespace: access.own_namespace.clone(), identity: String::new(), config_map: String::new() };
    let clock = TokioClock::start();
    let mut reading = Reading {
        access,
        cluster: KubeCluster::new(access.api.clone(), clock.clone(), own),
        facts: Facts::empty(clock.wall(), &access.own_namespace),
        notes: Vec::new(),
    };
    reading.namespaces(only).await;
    reading.pods(only).await?;
    reading.workloads(only).await;
    reading.install(only).await;
    Ok((reading.facts, reading.notes))
}

struct Reading<'a> {
    access: &'a Access,
    cluster: KubeCluster,
    facts: Facts,
    notes: Vec<String>,
}

impl Reading<'_> {
    async fn namespaces(&mut self, only: Option<&str>) {
        let selector = format!("{} in ({},{})", names::INJECT_LABEL, names::INJECT_ENABLED, names::INJECT_STRICT);
        let query = format!("labelSelector={}", query_value(&selector));
        let listed = self.access.list("/api/v1/namespaces", &query, decode::name).await;
        self.facts.namespaces = match (listed, only) {
            (Ok(names), only) => Some(names.iter().map(ToString::to_string).filter(|name| only.is_none_or(|only| only == name)).collect()),
            (Err(_), Some(only)) => Some(vec![only.to_owned()]),
            (Err(error), None) => {
                self.note("namespaces cannot be listed, so every one is taken for opted in", &error);
                None
            }
        };
    }

    async fn pods(&mut self, only: Option<&str>) -> anyhow::Result<()> {
        let pods = self.access.list(&collection("/api/v1", only, "pods"), "", Sight::read).await;
        let pods = pods.map_err(|error| anyhow::Error::new(error.clone()).context(format!("pods cannot be listed: {}", remedy(&error))))?;
        self.facts.pods =
            pods.into_iter().filter(|sight| self.facts.is_opted_in(&sight.pod.key.namespace) || sight.pod.finalizer).collect();
        match self.access.list(&collection("/api/v1", only, "events"), &our_warnings(), Told::read).await {
            Ok(told) => self.facts.told = told,
            Err(error) => self.note("Events cannot be read, so what a registry said last may be missing", &error),
        }
        match self.access.nodes().await {
            Ok(nodes) => self.facts.ground.nodes = Some(nodes),
            Err(error) => self.note("nodes cannot be read, so every node is taken for well", &error),
        }
        Ok(())
    }

    async fn workloads(&mut self, only: Option<&str>) {
        for (kind, resource) in [("Deployment", "deployments"), ("StatefulSet", "statefulsets"), ("DaemonSet", "daemonsets")] {
            let read = |json: &str| {
                let mut workload = object(json)?;
                // Items of a list do not say what they are.
                workload["kind"] = kind.into();
                Ok(workload)
            };
            match self.access.list(&collection("/apis/apps/v1", only, resource), "", read).await {
                Ok(workloads) => {
                    let here = |workload: &Value| {
                        workload.pointer("/metadata/namespace").and_then(Value::as_str).is_some_and(|name| self.facts.is_opted_in(name))
                    };
                    let here: Vec<Value> = workloads.into_iter().filter(here).collect();
                    self.facts.workloads.extend(here);
                }
                Err(error) => self.note(&format!("{resource} cannot be read, so they are not looked at"), &error),
            }
        }
    }

    /// What is Lockstep's own.
    async fn install(&mut self, only: Option<&str>) {
        self.configuration().await;
        let webhook = format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{}", names::WEBHOOK_CONFIGURATION);
        match self.access.api.read::<Value>(&webhook).await {
            Ok(webhook) => self.facts.webhook = Some(webhook),
            Err(error) if error.code() == Some(404) => self.facts.webhook = Some(Value::Null),
            Err(error) => self.note("the webhook configuration cannot be read, so it is not looked at", &error),
        }
        match self.cluster.read_lease().await {
            Ok(lease) => self.facts.lease = Some(lease),
            Err(error) => self.note("the Lease cannot be read, so nobody knows whether a replica reconciles", &error),
        }
        match self.access.config_map(names::DEBTS_CONFIG_MAP, names::DEBTS_KEY).await {
            Ok(text) => {
                let debts = claim::parse_debts(&text).into_iter();
                self.facts.debts = debts.filter(|debt| only.is_none_or(|only| only == &*debt.pod.namespace)).collect();
            }
            Err(error) => self.note("the debts cannot be read", &error),
        }
        let selector = format!("labelSelector={}", query_value("app.kubernetes.io/name=lockstep,app.kubernetes.io/component=webhook"));
        let own = collection("/api/v1", Some(&self.access.own_namespace), "pods");
        match self.access.list(&own, &selector, object).await {
            Ok(replicas) => self.facts.replicas = replicas,
            Err(error) => self.note("the replicas of Lockstep cannot be read, so they are not looked at", &error),
        }
        match rights::lacking(&self.access.api, &self.access.own_namespace, ACCOUNT).await {
            Ok(missing) => self.facts.missing_rights = missing,
            Err(error) => self.note("the rights of Lockstep cannot be asked for, so they are not looked at", &error),
        }
    }

    async fn configuration(&mut self) {
        let (text, in_force) = match self.access.configuration().await {
            Ok(read) => read,
            Err(error) => return self.note("the configuration cannot be read, so bindings and times are not known", &error),
        };
        self.facts.text = Some(text);
        if let Some(configuration) = in_force {
            self.facts.ground.rules = configuration.registration.clone();
            self.facts.ground.bindings = configuration.bindings.clone();
            self.facts.configuration = Some(configuration);
        }
    }

    fn note(&mut self, what: &str, error: &ApiError) {
        self.notes.push(format!("{what}: {error}"));
    }
}

fn object(json: &str) -> Result<Value, ApiError> {
    serde_json::from_str(json).map_err(|_| ApiError::Unreadable("an object that is no JSON".into()))
}
