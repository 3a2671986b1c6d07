//! `lockstep registries`: asks every registry of a configuration about our services, where the credentials are.
//!
//! `doctor` runs it in a pod of Lockstep; a person may do the same with `kubectl exec`.
//!
//! Invariant: nothing is written: of a driver that puts things right while it lists, only the drain delay is asked for.
//! Absent on purpose: what the answers mean (`doctor`).

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use futures_util::StreamExt;
use futures_util::stream;
use prometheus_client::metrics::family::Family;
use serde::{Deserialize, Serialize};

use super::inject::read;
use super::output::{data, say};
use crate::args::RegistriesArgs;
use crate::config::{self, Configuration, DriverConfig};
use crate::reconcile::Drivers;
use crate::registry::driver::{Driver, Opener};
use crate::registry::{CallError, HealthCheck, Listed, Registry, in_time};
use crate::target::ServiceId;

/// Services that are asked about at the same time: as many as aws lets stand in line for their drain delays.
const AT_ONCE: usize = 3;

/// What the registries answered.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answers {
    /// One for each service that a binding names.
    pub(super) services: Vec<Answer>,
}

/// What one registry says of one service.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    /// Name of the registry in the configuration.
    pub(super) registry: String,
    /// The registry's name for the service.
    pub(super) service: String,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) error: Option<String>,
    /// Why nothing may be put into the service, where the registry says so of the whole of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) refusal: Option<String>,
    /// Its targets; absent where they were not asked for, or not answered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) targets: Option<Vec<Target>>,
    /// How long it goes on sending after a deregistration, in whole seconds, rounded up; absent where it does not say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) drain_delay_seconds: Option<u64>,
    /// What its own check asks of targets; absent where it does not say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) health_check: Option<Check>,
}

/// The health check of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Check {
    /// `http`, `https`, `tcp` or whatever the registry calls it.
    pub(super) protocol: String,
    /// The port that it asks; absent where that is the target's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) port: Option<u16>,
    /// The path that it asks.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) path: Option<String>,
    /// Between two checks.
    pub(super) interval_seconds: u64,
    /// So many that pass in a row make a target healthy.
    pub(super) passes: u32,
}

/// One target of a service.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    /// Address and port.
    pub(super) address: String,
    /// What the registry says of it.
    pub(super) state: String,
    /// `cluster` of the configuration that registered it, where the registry keeps that.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) cluster: Option<String>,
    /// UID of its pod, where the registry keeps that.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) pod: Option<String>,
}

/// Runs the command: 0 where every registry answered, 1 where one did not.
pub async fn run(args: RegistriesArgs) -> anyhow::Result<ExitCode> {
    let text = String::from_utf8(read(&args.file)?).map_err(|_| anyhow!("{}: not UTF-8", args.file.display()))?;
    let configuration = config::parse(&text).map_err(|errors| anyhow!("{}: {errors}", args.file.display()))?;
    let opener = Opener::new(args.credentials, Family::default());
    let answers = ask(&opener, &configuration).await;
    say(&args.output.map_or_else(|| Ok(for_people(&answers)), |output| data(&answers, output))?)?;
    let all = answers.services.iter().all(|answer| answer.error.is_none());
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

async fn ask(opener: &Opener, configuration: &Configuration) -> Answers {
    let services: BTreeSet<&ServiceId> = configuration.bindings.iter().map(|binding| &binding.service).collect();
    let open = |registry: &config::RegistryConfig| {
        let opened = opener.open(registry, &configuration.cluster).map_err(|error| error.to_string());
        opened.inspect(|driver| driver.bind(configuration.services(&registry.name)))
    };
    let drivers: Vec<_> = configuration.registries.iter().map(|registry| (registry, open(registry))).collect();
    let asked = services.into_iter().map(async |service| {
        let mut answer = Answer {
            registry: service.registry.to_string(),
            service: service.service.to_string(),
            error: None,
            refusal: None,
            targets: None,
            drain_delay_seconds: None,
            health_check: None,
        };
        let Some((registry, driver)) = drivers.iter().find(|(registry, _)| registry.name == service.registry) else { return answer };
        let outcome = match driver {
            Ok(driver) => fill(&mut answer, driver, &registry.driver).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        answer.error = outcome.err();
        answer
    });
    Answers { services: stream::iter(asked).buffered(AT_ONCE).collect().await }
}

async fn fill(answer: &mut Answer, driver: &Arc<Driver>, config: &DriverConfig) -> Result<(), CallError> {
    // To list HAProxy's servers is to bring their processes to agree.
    if !matches!(config, DriverConfig::Haproxy(_)) {
        let listing = in_time(driver.list(&answer.service, None)).await?;
        answer.targets = Some(listing.targets.iter().map(Target::of).collect());
    }
    let delay = in_time(driver.drain_delay(&answer.service)).await?;
    answer.drain_delay_seconds = delay.map(|delay| delay.as_secs() + u64::from(delay.subsec_nanos() > 0));
    answer.refusal = in_time(driver.refusal(&answer.service)).await?;
    answer.health_check = driver.health_check(&answer.service).map(Check::of);
    Ok(())
}

impl Target {
    fn of(listed: &Listed) -> Self {
        let stamp = listed.stamp.as_ref();
        Self {
            address: listed.address.to_string(),
            state: listed.state.as_str().to_owned(),
            cluster: stamp.map(|stamp| stamp.cluster.to_string()),
            pod: stamp.map(|stamp| stamp.uid.as_str().to_owned()).filter(|uid| !uid.is_empty()),
        }
    }
}

impl Check {
    fn of(check: HealthCheck) -> Self {
        let HealthCheck { protocol, port, path, interval, passes } = check;
        Self { protocol, port, path, interval_seconds: interval.as_secs(), passes }
    }
}

impl Display for Check {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { protocol, port, path, interval_seconds, passes } = self;
        match port {
            Some(port) => write!(f, "{protocol} on port {port}")?,
            None => write!(f, "{protocol} on its own port")?,
        }
        if let Some(path) = path {
            write!(f, ", path {path}")?;
        }
        write!(f, ", every {interval_seconds} s, and wants {passes} passes")
    }
}

fn for_people(answers: &Answers) -> String {
    let line = |answer: &Answer| {
        let Answer { registry, service, error, refusal, targets, drain_delay_seconds, health_check } = answer;
        let says = match (error, targets) {
            (Some(error), _) => error.clone(),
            (None, Some(targets)) => format!("{} targets", targets.len()),
            (None, None) => "not listed, since its driver puts things right while it lists".to_owned(),
        };
        let delay = drain_delay_seconds.map(|seconds| format!("; drain delay {seconds} s")).unwrap_or_default();
        let check = health_check.as_ref().map(|check| format!("; its check asks {check}")).unwrap_or_default();
        let refusal = refusal.as_ref().map(|refusal| format!("; takes none of ours: {refusal}")).unwrap_or_default();
        format!("{registry}/{service}: {says}{delay}{check}{refusal}\n")
    };
    answers.services.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_one_line_a_service() {
        let answer = |error: Option<&str>, targets: Option<Vec<Target>>, delay| Answer {
            registry: "lan".into(),
            service: "web".into(),
            error: error.map(str::to_owned),
            refusal: None,
            targets,
            drain_delay_seconds: delay,
            health_check: delay.map(|_| Check {
                protocol: "http".into(),
                port: None,
                path: Some("/".into()),
                interval_seconds: 10,
                passes: 3,
            }),
        };
        let all = Answers {
            services: vec![
                answer(None, Some(Vec::new()), Some(30)),
                answer(Some("it is down"), None, None),
                answer(None, None, None),
                Answer { refusal: Some("another keeps it".into()), ..answer(None, Some(Vec::new()), None) },
            ],
        };
        insta::assert_snapshot!(for_people(&all), @r"
        lan/web: 0 targets; drain delay 30 s; its check asks http on its own port, path /, every 10 s, and wants 3 passes
        lan/web: it is down
        lan/web: not listed, since its driver puts things right while it lists
        lan/web: 0 targets; takes none of ours: another keeps it
        ");
    }

    #[tokio::test]
    async fn a_registry_that_cannot_be_reached_is_an_answer_too() {
        let configuration = config::parse(
            "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\n\
             registries: [{name: lan, http: {url: 'http://name.invalid'}}]\n\
             bindings: [{name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: lan, service: web, port: http, \
             drain: {fixed: 1s}}]\n",
        )
        .unwrap();
        let opener = Opener::new("/nonexistent".into(), Family::default());
        let answers = ask(&opener, &configuration).await;
        assert_eq!(answers.services.len(), 1);
        let answer = &answers.services[0];
        assert!(answer.targets.is_none() && answer.error.is_some(), "{answer:?}");
    }
}
