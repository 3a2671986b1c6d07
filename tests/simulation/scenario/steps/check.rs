//! What a scenario says that no type can hold: the order of time, names that are known, one action a step.
//!
//! Invariant: changes nothing; what passes can be told to a world.
//! Absent on purpose: expectations, which the judge checks.

use std::time::Duration;

use super::{incarnations, trigger};
use crate::scenario::grammar::{ApiStep, Handles, Keys, ReplicaDoes, Scenario, Step, WatchDoes};
use crate::scenario::judge;
use crate::world::Trigger;
use crate::world::record::means;

/// What a file says that no type can hold.
pub(crate) fn check(scenario: &Scenario) -> Result<(), String> {
    let mut handles: Vec<String> = Vec::new();
    let mut last = Duration::ZERO;
    if !(1..=3).contains(&scenario.replicas) {
        return Err("replicas: 1 to 3".to_owned());
    }
    if scenario.steps.is_empty() || scenario.expect.is_empty() {
        return Err("a scenario has steps and expectations".to_owned());
    }
    for (name, spec) in &scenario.registries {
        let step_only =
            spec.name.is_some() || spec.service.is_some() || !spec.adds.is_empty() || spec.loses.is_some() || !spec.sets.is_empty();
        if step_only {
            return Err(format!("registries.{name}: name, service, adds, loses and sets belong into a step"));
        }
        if spec.marks == Some(false) && spec.keys != Some(Keys::Address) {
            return Err(format!("registries.{name}: `marks: false` needs `keys: address`"));
        }
    }
    for (index, step) in scenario.steps.iter().enumerate() {
        let at = |problem: String| format!("steps[{index}]: {problem}");
        if step.at.0 < last {
            return Err(at("steps must be in the order of time".to_owned()));
        }
        last = step.at.0;
        check_step(step, scenario.replicas, &mut handles).map_err(at)?;
    }
    for (index, one) in scenario.expect.iter().enumerate() {
        judge::check(one, &handles).map_err(|problem| format!("expect[{index}]: {problem}"))?;
    }
    Ok(())
}

fn check_step(step: &Step, replicas: usize, handles: &mut Vec<String>) -> Result<(), String> {
    let actions = [
        step.create.is_some(),
        step.update.is_some(),
        step.delete.is_some(),
        step.final_delete.is_some(),
        step.vanish.is_some(),
        step.node.is_some(),
        step.namespace.is_some(),
        step.config.is_some(),
        step.config_text.is_some(),
        step.registry.is_some(),
        step.replica.is_some(),
        step.cut.is_some(),
        step.watch.is_some(),
        step.api.is_some(),
        step.jump.is_some(),
    ];
    if actions.into_iter().filter(|given| *given).count() != 1 {
        return Err("exactly one action".to_owned());
    }
    let pods = [
        step.update.as_ref().map(|one| &one.pod),
        step.delete.as_ref().map(|one| &one.pod),
        step.final_delete.as_ref().map(|one| &one.pod),
        step.vanish.as_ref().map(|one| &one.pod),
    ];
    for pod in pods.into_iter().flatten() {
        known(pod, handles)?;
    }
    if let Some(create) = &step.create {
        for (handle, _) in incarnations(create) {
            if handles.contains(&handle) {
                return Err(format!("pod {handle} is created twice; a handle is one incarnation"));
            }
            handles.push(handle);
        }
        if create.ip.is_some() && create.ips.is_some() {
            return Err("either ip or ips".to_owned());
        }
    }
    let names = [step.replica.as_ref().map(|one| &one.name), step.cut.as_ref().map(|one| &one.replica)];
    for name in names.into_iter().flatten() {
        let is_leader = name == "leader" && step.cut.is_none();
        if !is_leader && !["a", "b", "c"][..replicas].contains(&name.as_str()) {
            return Err(format!("no replica {name}"));
        }
    }
    if let Some(spec) = &step.registry {
        let fixed =
            spec.drains.is_some() || spec.keys.is_some() || spec.marks.is_some() || spec.gone_when.is_some() || !spec.holds.is_empty();
        if spec.name.is_none() || fixed {
            return Err("a registry step has a name and changes neither drains, keys, marks, goneWhen nor holds".to_owned());
        }
    }
    if let Some(one) = &step.replica {
        let trap = one.before.is_some() != one.after.is_some();
        let pause = one.what == Some(ReplicaDoes::Pause);
        if one.what.is_some() == trap || (one.before.is_some() && one.after.is_some()) || pause != one.lasts.is_some() {
            return Err("a replica step has `do`, or one of `before` and `after`; a pause has `for`".to_owned());
        }
    }
    if let Some(one) = &step.watch {
        let right = match one.what {
            WatchDoes::Drop => one.pod.is_some() && one.lasts.is_some() && one.by.is_none(),
            WatchDoes::Delay => one.by.is_some() && one.lasts.is_some() && one.pod.is_none(),
            WatchDoes::Silence | WatchDoes::Expire => one.by.is_none() && one.lasts.is_none() && one.pod.is_none(),
        };
        if !right {
            return Err("drop has pod and for, delay has by and for, silence and expire have nothing".to_owned());
        }
    }
    let is_odd = |one: &ApiStep| (one.times.is_none() && one.lasts.is_none()) || matches!(trigger(one.to), Trigger::Change(_));
    if step.api.as_ref().is_some_and(is_odd) {
        return Err("an api step has `times`, `for` or both, and is about pod writes".to_owned());
    }
    Ok(())
}

/// Whether every pattern means at least one pod.
pub(crate) fn known(pods: &Handles, handles: &[String]) -> Result<(), String> {
    for pattern in &pods.0 {
        if !handles.iter().any(|handle| means(pattern, handle)) {
            return Err(format!("no pod {pattern}"));
        }
    }
    if pods.0.is_empty() { Err("no pod is named".to_owned()) } else { Ok(()) }
}
