//! Checks of registries: do they answer, and do they hold anything of ours that nobody looks after.
//!
//! Invariant: pure; a registry that was not asked is never found fault with.
//! Absent on purpose: pods that wait for one (`pods`).

use super::backing::Backing;
use super::facts::Facts;
use super::finding::{Code, Finding};
use crate::commands::registries::{Answer, Target};

/// All that is wrong with registries.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let failing = facts.answered().filter_map(|answer| failing(answer, facts));
    failing.chain(facts.answered().filter_map(not_ours)).chain(facts.answered().flat_map(|answer| orphans(answer, facts))).collect()
}

fn failing(answer: &Answer, facts: &Facts) -> Option<Finding> {
    let backings = facts.backings.get(&answer.registry).map(Vec::as_slice).unwrap_or_default();
    let seen: Vec<String> = answer.error.clone().into_iter().chain(backings.iter().filter_map(Backing::evidence)).collect();
    let pages =
        || format!("mend what it says; {} explains its words, and says what to do when it is stuck", facts.page_of(&answer.registry));
    answer.error.as_ref().map(|_| {
        Finding::new(
            Code::RegistryFailing,
            about(answer),
            seen.join("; "),
            "its new pods wait at their gates; its old ones at their finalizers, unless the service itself is not there any more",
            backings.iter().find_map(Backing::change).unwrap_or_else(pages),
        )
    })
}

fn not_ours(answer: &Answer) -> Option<Finding> {
    Some(Finding::new(
        Code::ServiceNotOurs,
        about(answer),
        answer.refusal.clone()?,
        "no pod can be registered there, so new ones wait at their gates",
        "write `mode: observe` where another controller keeps it, or name a service of your own",
    ))
}

fn orphans<'f>(answer: &'f Answer, facts: &'f Facts) -> impl Iterator<Item = Finding> + 'f {
    let targets = answer.targets.iter().flatten();
    targets.filter(|target| is_stray(target, facts) && !is_owed(answer, target, facts)).map(|target| {
        Finding::new(
            Code::Orphan,
            format!("{} {}", about(answer), target.address),
            format!("{}, of a pod with UID {}, which is not there", target.state, target.pod.as_deref().unwrap_or_default()),
            "it may get traffic that nobody serves, or that a stranger at that address does",
            "look again in a few minutes, since audits take such targets out; one that stays, take out of the registry by hand",
        )
    })
}

fn is_stray(target: &Target, facts: &Facts) -> bool {
    target.pod.as_ref().is_some_and(|uid| facts.strays.contains(uid))
}

fn is_owed(answer: &Answer, target: &Target, facts: &Facts) -> bool {
    facts.debts.iter().any(|debt| {
        let service = &debt.claim.service;
        *service.registry == *answer.registry && *service.service == *answer.service && debt.claim.address.to_string() == target.address
    })
}

pub(super) fn about(answer: &Answer) -> String {
    format!("{}/{}", answer.registry, answer.service)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::doctor::backing::Named;
    use crate::commands::doctor::tests::facts;
    use crate::commands::registries::Answers;
    use crate::registration::claim::parse_debts;

    fn answer(error: Option<&str>, pods: &[&str]) -> Answer {
        let target = |pod: &&str| Target {
            address: "10.0.0.5:80".into(),
            state: "active".into(),
            cluster: Some("test".into()),
            pod: Some((*pod).to_owned()),
        };
        Answer {
            registry: "lan".into(),
            service: "web".into(),
            error: error.map(str::to_owned),
            refusal: None,
            targets: Some(pods.iter().map(target).collect()),
            drain_delay_seconds: None,
            health_check: None,
        }
    }

    fn found(answer: Answer, debts: &str) -> Vec<Code> {
        let mut facts = facts();
        facts.answers = Some(Answers { services: vec![answer] });
        facts.strays = ["gone".to_owned()].into();
        facts.debts = parse_debts(debts);
        check(&facts).into_iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn a_registry_that_does_not_answer_is_found() {
        assert_eq!(found(answer(Some("it is down"), &[]), ""), [Code::RegistryFailing]);
    }

    #[test]
    fn a_service_that_takes_nothing_is_found() {
        let refused = Answer { refusal: Some("the tag x says that another controller keeps it".into()), ..answer(None, &["there"]) };
        assert_eq!(found(refused, ""), [Code::ServiceNotOurs]);
    }

    #[test]
    fn what_does_not_run_behind_its_address_is_named() {
        let named = Named { namespace: "infra".into(), name: "registry".into(), for_certain: true };
        let service = json!({"spec": {"selector": {"app": "registry"}}});
        let template = json!({"metadata": {"labels": {"app": "registry"}}});
        let store = |wanted: i64| {
            json!({"kind": "StatefulSet", "metadata": {"namespace": "infra", "name": "store"},
                "spec": {"replicas": wanted, "template": template}, "status": {"readyReplicas": wanted}})
        };
        let found = |wanted: i64| {
            let mut facts = facts();
            facts.answers = Some(Answers { services: vec![answer(Some("it is down"), &[])] });
            facts.backings = [("lan".to_owned(), vec![Backing::behind(named.clone(), &service, &[store(wanted)])])].into();
            check(&facts).remove(0)
        };
        let none = found(0);
        assert!(
            none.evidence.starts_with("it is down; behind its address, Service infra/registry, stands StatefulSet infra/store with 0 of 0")
        );
        assert!(none.change.contains("kubectl scale statefulset/store"), "{none:?}");
        assert!(found(1).change.contains("docs/registries/http.md"), "what runs is not the fault");
    }

    #[test]
    fn a_target_that_nobody_looks_after_is_found() {
        assert_eq!(found(answer(None, &["there", "gone"]), ""), [Code::Orphan]);
        let owed = "lan/web 10.0.0.5:80 shop/web-1 gone 2026-11-29T16:30:00Z";
        assert_eq!(found(answer(None, &["gone"]), owed), [], "a debt is told as such");
    }

    #[test]
    fn all_is_well() {
        assert_eq!(found(answer(None, &["there"]), ""), []);
        assert_eq!(check(&facts()), [], "nobody was asked");
    }
}
