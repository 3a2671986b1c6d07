//! `lockstep doctor`: goes through the cluster and names each broken link, with the change that mends it.
//!
//! Invariant: nothing is changed; registries are asked by a pod of Lockstep itself, since their credentials are there.
//! Invariant: each check is a pure function of what was read before; what could not be read is a note, never a finding.
//! Absent on purpose: a look at HAProxy's servers, whose list is brought to agree by whoever reads it (`registries`).

mod backing;
mod checks;
mod exec;
mod facts;
mod finding;
mod install;
mod pods;
mod reading;
mod registries;
mod trial;
mod workloads;

use std::process::ExitCode;

use super::access;
use super::output::{data, say, schema};
use crate::args::DoctorArgs;
use finding::Findings;

/// Runs the command: 0 where nothing is wrong, 1 where something is.
pub async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    if args.schema {
        say(&schema::<Findings>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let access = access::connect(&args.access).await?;
    let (facts, notes) = reading::read(&access, &args).await?;
    let checks = [install::check, trial::check, registries::check, pods::check, workloads::check, checks::check];
    let findings = checks.into_iter().flat_map(|check| check(&facts)).collect();
    let all = Findings { notes, findings };
    say(&args.output.map_or_else(|| Ok(finding::for_people(&all)), |output| data(&all, output))?)?;
    Ok(if all.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

#[cfg(test)]
mod tests {
    use super::facts::Facts;
    use crate::config;

    /// A cluster with a binding of the pods `app=web` of namespace `shop`, and a sleep of 45 s for them.
    pub(super) fn facts() -> Facts {
        let text = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\n\
            registries: [{name: lan, http: {url: 'http://a:1'}}]\n\
            bindings: [{name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: lan, service: web, port: http, \
            drain: {fixed: 30s}}]\n";
        let configuration = config::parse(text).unwrap();
        let mut facts = Facts::empty("2026-11-29T17:30:00Z".parse().unwrap(), "lockstep-system");
        facts.namespaces = Some(vec!["shop".into()]);
        (facts.around.ground.rules, facts.around.ground.bindings) = (configuration.registration, configuration.bindings);
        (facts.around.injection, facts.around.registries) = (Some(configuration.injection), configuration.registries);
        facts
    }
}
