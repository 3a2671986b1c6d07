//! Reading what the checks look at.
//!
//! Invariant: nothing is written; what cannot be read is a note, save the pods themselves.
//! Absent on purpose: judging (the checks).

use std::collections::BTreeSet;

use serde_json::Value;

use super::backing::{Backing, Named};
use super::exec;
use super::facts::Facts;
use super::trial::{self, Tried};
use crate::args::{AccessArgs, DoctorArgs};
use crate::commands::access::{Access, collection, no_pods, our_warnings};
use crate::commands::registries::Answers;
use crate::commands::status::sight::{Sight, Told};
use crate::config::RegistryConfig;
use crate::names;
use crate::reconcile::Clock;
use crate::reconcile::cluster::{ApiError, Cluster, Store};
use crate::reconcile::kubernetes::watch::query_value;
use crate::reconcile::kubernetes::{KubeCluster, api, decode, opted_in_query};
use crate::reconcile::tokio_clock::TokioClock;
use crate::registration::claim;
use crate::runtime::rights;

/// ServiceAccount of the program, as the chart names it.
const ACCOUNT: &str = "lockstep";

/// Kinds of workloads, and how their collections are called.
const WORKLOADS: [(&str, &str); 3] = [("Deployment", "deployments"), ("StatefulSet", "statefulsets"), ("DaemonSet", "daemonsets")];

/// Reads the cluster; with a namespace, workloads and pods of that one alone.
pub(super) async fn read(access: &Access, args: &DoctorArgs) -> anyhow::Result<(Facts, Vec<String>)> {
    let only = args.access.namespace.as_deref();
    let facts = Facts::empty(TokioClock::start().wall(), &access.own_namespace);
    let mut reading = Reading { access, cluster: access.cluster(""), facts, notes: Vec::new(), seen: BTreeSet::new() };
    reading.namespaces(only).await;
    reading.pods(only).await?;
    reading.workloads(only).await;
    reading.install(only).await;
    reading.trial().await;
    if !args.without_registries {
        reading.registries(&args.access).await;
    }
    Ok((reading.facts, reading.notes))
}

struct Reading<'a> {
    access: &'a Access,
    cluster: KubeCluster,
    facts: Facts,
    notes: Vec<String>,
    /// UIDs of all pods that were seen.
    seen: BTreeSet<String>,
}

impl Reading<'_> {
    async fn namespaces(&mut self, only: Option<&str>) {
        let listed = self.access.list("/api/v1/namespaces", &opted_in_query(), decode::name).await;
        self.facts.namespaces = match (listed, only) {
            (Ok(names), Some(only)) if !names.iter().any(|name| **name == *only) => {
                self.notes.push(format!(
                    "namespace {only} is not opted in, so nothing but what Lockstep holds there is looked at; \
                     `kubectl label namespace {only} {}={}` opts it in",
                    names::INJECT_LABEL,
                    names::INJECT_ENABLED
                ));
                Some(Vec::new())
            }
            (Ok(_), Some(only)) => Some(vec![only.to_owned()]),
            (Ok(names), None) => Some(names.iter().map(ToString::to_string).collect()),
            (Err(_), Some(only)) => Some(vec![only.to_owned()]),
            (Err(error), None) => {
                self.note("namespaces cannot be listed, so every one is taken for opted in", &error);
                None
            }
        };
    }

    async fn pods(&mut self, only: Option<&str>) -> anyhow::Result<()> {
        let pods = self.access.list(&collection("/api/v1", only, "pods"), "", Sight::read).await.map_err(no_pods)?;
        self.seen = pods.iter().map(|sight| sight.pod.uid.to_string()).collect();
        self.facts.pods =
            pods.into_iter().filter(|sight| self.facts.is_opted_in(&sight.pod.key.namespace) || sight.pod.finalizer).collect();
        match self.access.list(&collection("/api/v1", only, "events"), &our_warnings(), Told::read).await {
            Ok(told) => self.facts.told = told,
            Err(error) => self.note("Events cannot be read, so what a registry said last may be missing", &error),
        }
        Ok(())
    }

    async fn workloads(&mut self, only: Option<&str>) {
        for (kind, resource) in WORKLOADS {
            match self.listed(kind, resource, only).await {
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

    async fn listed(&self, kind: &str, resource: &str, namespace: Option<&str>) -> Result<Vec<Value>, ApiError> {
        let read = |json: &str| {
            let mut workload: Value = api::decode(json.as_bytes())?;
            // Items of a list do not say what they are.
            workload["kind"] = kind.into();
            Ok(workload)
        };
        self.access.list(&collection("/apis/apps/v1", namespace, resource), "", read).await
    }

    /// What is Lockstep's own.
    async fn install(&mut self, only: Option<&str>) {
        self.facts.around.read(self.access, &self.cluster).await;
        self.notes.append(&mut self.facts.around.notes);
        let webhook = format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{}", names::WEBHOOK_CONFIGURATION);
        match self.access.api.read::<Value>(&webhook).await {
            Ok(webhook) => self.facts.webhook = Some(webhook),
            Err(error) if error.code() == Some(404) => self.facts.webhook = Some(Value::Null),
            Err(error) => self.note("the webhook configuration cannot be read, so it is not looked at", &error),
        }
        match self.cluster.read_store(Store::Debts).await {
            Ok(stored) => {
                let debts = claim::parse_debts(&stored.text).into_iter();
                self.facts.debts = debts.filter(|debt| only.is_none_or(|only| only == &*debt.pod.namespace)).collect();
            }
            Err(error) => self.note("the debts cannot be read", &error),
        }
        let selector = format!("labelSelector={}", query_value("app.kubernetes.io/name=lockstep,app.kubernetes.io/component=webhook"));
        let own = collection("/api/v1", Some(&self.access.own_namespace), "pods");
        match self.access.list(&own, &selector, |json| api::decode(json.as_bytes())).await {
            Ok(replicas) => self.facts.replicas = Some(replicas),
            Err(error) => self.note("the replicas of Lockstep cannot be read, so they are not looked at", &error),
        }
        match rights::lacking(&self.access.api, &self.access.own_namespace, ACCOUNT).await {
            Ok(missing) => self.facts.missing_rights = missing,
            Err(error) => self.note("the rights of Lockstep cannot be asked for, so they are not looked at", &error),
        }
    }

    /// Lets the API server try a pod; nothing is created.
    async fn trial(&mut self) {
        let opted_in = self.facts.namespaces.clone().unwrap_or_default();
        let Some((namespace, pod)) = trial::pod(&self.facts.around.ground.bindings, &opted_in) else { return };
        let bytes = self.access.api.try_create(&collection("/api/v1", Some(&namespace), "pods"), &pod).await;
        let answer = bytes.and_then(|bytes| decode::pod(&String::from_utf8_lossy(&bytes)));
        if let Err(error) = &answer
            && !trial::is_unasked(error)
        {
            self.note(&format!("no pod could be tried in namespace {namespace}, so nobody knows whether one would be prepared"), error);
        }
        self.facts.tried = Some(Tried { namespace, answer });
    }

    async fn registries(&mut self, access: &AccessArgs) {
        let Some(text) = self.facts.around.text.take() else { return };
        if self.facts.is_down() == Some(true) {
            return self.notes.push("the registries were not asked, since no replica of Lockstep runs".to_owned());
        }
        match exec::ask(access, &text).await {
            Ok(answers) => self.facts.answers = Some(self.of_namespace(answers, access.namespace.as_deref())),
            Err(complaint) => return self.notes.push(format!("the registries were not asked: {complaint}")),
        }
        self.backings().await;
        if access.namespace.is_none() {
            self.strays().await;
        }
    }

    /// Looks behind the addresses of the registries that fail: what runs in the cluster itself can be named.
    async fn backings(&mut self) {
        let failing: BTreeSet<&str> =
            self.facts.answered().filter(|answer| answer.error.is_some()).map(|answer| &*answer.registry).collect();
        let failing = self.facts.around.registries.iter().filter(|registry| failing.contains(&*registry.name));
        let named = |registry: &RegistryConfig| (registry.name.to_string(), Named::of(&registry.driver, &self.access.own_namespace));
        for (registry, services) in failing.map(named).collect::<Vec<_>>() {
            let mut backings = Vec::new();
            for named in services {
                match self.backing(named).await {
                    Ok(backing) => backings.push(backing),
                    Err(error) => self.note(&format!("what stands behind registry {registry} cannot be read"), &error),
                }
            }
            self.facts.backings.insert(registry, backings);
        }
    }

    async fn backing(&self, named: Named) -> Result<Backing, ApiError> {
        let path = format!("{}/{}", collection("/api/v1", Some(&named.namespace), "services"), named.name);
        let service = match self.access.api.read::<Value>(&path).await {
            Ok(service) => service,
            Err(error) if error.code() == Some(404) => return Ok(Backing::Missing(named)),
            Err(error) => return Err(error),
        };
        let mut workloads = Vec::new();
        for (kind, resource) in WORKLOADS {
            workloads.extend(self.listed(kind, resource, Some(&named.namespace)).await?);
        }
        Ok(Backing::behind(named, &service, &workloads))
    }

    /// The answers about services that pods of a namespace may belong in.
    fn of_namespace(&self, mut answers: Answers, only: Option<&str>) -> Answers {
        let Some(only) = only else { return answers };
        let bindings = self.facts.around.ground.bindings.iter().filter(|binding| binding.namespaces.holds(only));
        let here: BTreeSet<(&str, &str)> = bindings.map(|binding| (&*binding.service.registry, &*binding.service.service)).collect();
        answers.services.retain(|answer| here.contains(&(&*answer.registry, &*answer.service)));
        answers
    }

    /// Looks for pods of our targets: a pod that came since the others were read is there now, one that went since then was there before.
    async fn strays(&mut self) {
        let Some(cluster) = &self.facts.around.cluster else { return };
        let targets = self.facts.answered().flat_map(|answer| answer.targets.iter().flatten());
        let ours = targets.filter(|target| target.cluster.as_deref() == Some(cluster)).filter_map(|target| target.pod.clone());
        let unknown: BTreeSet<String> = ours.filter(|uid| !self.seen.contains(uid)).collect();
        if unknown.is_empty() {
            return;
        }
        match self.access.list("/api/v1/pods", "", |json| decode::pod(json).map(|pod| pod.uid.to_string())).await {
            Ok(present) => self.facts.strays = unknown.difference(&present.into_iter().collect()).cloned().collect(),
            Err(error) => self.note("pods cannot be listed again, so targets that nobody claims are not looked for", &error),
        }
    }

    fn note(&mut self, what: &str, error: &ApiError) {
        self.notes.push(format!("{what}: {error}"));
    }
}
