//! Whether bindings can meet: in one pod, or in one service by way of two registries; and whether a selector can be satisfied at all.
//!
//! Invariant: the answers are exact for labels; two port names count as different even where a pod gives both one number.
//! Absent on purpose: what follows from it (`bindings`, `advise`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Binding, DriverConfig, LabelOperator, Mode, Namespaces, RegistryConfig, Requirement, Selector, Servers};

impl Binding {
    /// Whether some pod could have one target in both bindings.
    pub(super) fn can_share_a_target(&self, other: &Self) -> bool {
        self.service == other.service
            && self.port == other.port
            && self.namespaces.meet(&other.namespaces)
            && satisfiable(self.selector.requirements.iter().chain(&other.selector.requirements))
    }

    /// Whether both put targets in one service by way of two registries, whose settings are given.
    pub(super) fn fills_the_service_of(&self, other: &Self, mine: &RegistryConfig, its: &RegistryConfig) -> bool {
        self.service.service == other.service.service
            && self.service.registry != other.service.registry
            && [self.mode, other.mode] == [Mode::Own; 2]
            && mine.keeps_services_with(its)
    }

    /// Whether a target of its does not tell whose it is, so that what no pod of its own claims is taken out of the whole service.
    pub(super) fn sweeps_blindly(&self) -> bool {
        self.exclusive || self.servers == Servers::Template
    }
}

impl RegistryConfig {
    /// Whether a service of that name is the same one in both: it is kept in one place, as far as their settings tell.
    fn keeps_services_with(&self, other: &Self) -> bool {
        let alike = |one: &str, other: &str| one.trim_end_matches('/') == other.trim_end_matches('/');
        match (&self.driver, &other.driver) {
            // The name of a target group says where it is.
            (DriverConfig::Aws(_), DriverConfig::Aws(_)) => true,
            (DriverConfig::Consul(one), DriverConfig::Consul(other)) => alike(&one.address, &other.address),
            (DriverConfig::Haproxy(one), DriverConfig::Haproxy(other)) => {
                one.addresses.iter().any(|address| other.addresses.contains(address))
            }
            (DriverConfig::Http(one), DriverConfig::Http(other)) => alike(&one.url, &other.url),
            _ => false,
        }
    }

    /// Whether one of both reaches HAProxy processes that the other does not: each makes its own alike in what it knows of.
    pub(super) fn differs_in_processes_from(&self, other: &Self) -> bool {
        match (&self.driver, &other.driver) {
            (DriverConfig::Haproxy(one), DriverConfig::Haproxy(other)) => {
                let all_in = |one: &[_], other: &[_]| one.iter().all(|address| other.contains(address));
                !(all_in(&one.addresses, &other.addresses) && all_in(&other.addresses, &one.addresses))
            }
            _ => false,
        }
    }
}

impl Namespaces {
    fn meet(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(a), Self::Named(b)) => a.iter().any(|name| b.contains(name)),
            _ => true,
        }
    }
}

impl Selector {
    /// Whether any labels satisfy it.
    pub(super) fn is_satisfiable(&self) -> bool {
        satisfiable(self.requirements.iter())
    }
}

/// What all requirements on one key together leave.
#[derive(Default)]
struct Left<'r> {
    present: bool,
    absent: bool,
    allowed: Option<Vec<&'r Arc<str>>>,
    forbidden: Vec<&'r Arc<str>>,
}

fn satisfiable<'r>(requirements: impl Iterator<Item = &'r Requirement>) -> bool {
    let mut keys: BTreeMap<&str, Left<'r>> = BTreeMap::new();
    for requirement in requirements {
        let left = keys.entry(&requirement.key).or_default();
        match &requirement.operator {
            LabelOperator::Exists => left.present = true,
            LabelOperator::DoesNotExist => left.absent = true,
            LabelOperator::NotIn(values) => left.forbidden.extend(values),
            LabelOperator::In(values) => {
                left.present = true;
                left.allowed = Some(match left.allowed.take() {
                    None => values.iter().collect(),
                    Some(allowed) => allowed.into_iter().filter(|value| values.contains(value)).collect(),
                });
            }
        }
    }
    keys.values().all(|left| {
        let some_value = left.allowed.as_ref().is_none_or(|allowed| allowed.iter().any(|value| !left.forbidden.contains(value)));
        !left.present || (!left.absent && some_value)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn requirement(key: &str, operator: LabelOperator) -> Requirement {
        Requirement { key: Arc::from(key), operator }
    }

    fn values(values: &[&str]) -> Vec<Arc<str>> {
        values.iter().map(|value| Arc::from(*value)).collect()
    }

    #[rstest]
    #[case::nothing(vec![], true)]
    #[case::two_keys(vec![("a", LabelOperator::Exists), ("b", LabelOperator::DoesNotExist)], true)]
    #[case::there_and_not(vec![("a", LabelOperator::Exists), ("a", LabelOperator::DoesNotExist)], false)]
    #[case::value_and_not_there(vec![("a", LabelOperator::In(values(&["x"]))), ("a", LabelOperator::DoesNotExist)], false)]
    #[case::apart(vec![("a", LabelOperator::In(values(&["x"]))), ("a", LabelOperator::In(values(&["y"])))], false)]
    #[case::common(vec![("a", LabelOperator::In(values(&["x", "z"]))), ("a", LabelOperator::In(values(&["y", "z"])))], true)]
    #[case::forbidden(vec![("a", LabelOperator::In(values(&["x"]))), ("a", LabelOperator::NotIn(values(&["x"])))], false)]
    #[case::forbidden_or_absent(vec![("a", LabelOperator::DoesNotExist), ("a", LabelOperator::NotIn(values(&["x"])))], true)]
    fn satisfiable_together(#[case] parts: Vec<(&str, LabelOperator)>, #[case] wanted: bool) {
        let requirements: Vec<Requirement> = parts.into_iter().map(|(key, operator)| requirement(key, operator)).collect();
        assert_eq!(satisfiable(requirements.iter()), wanted);
    }
}
