//! From the text of `config.yaml` to a [`Configuration`], or to everything that is wrong with it.
//!
//! Invariant: either a valid configuration or at least one error, never both.
//! Absent on purpose: files, ConfigMaps and watching (the callers'), advice (`advise`).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::error::{ConfigErrors, nearest, quoted};
use super::fields::{Field, Fields};
use super::{Configuration, Injection, OnDrainTimeout, OnGateTimeout, PreStop, ProbeGrace, Registration};
use super::{bindings, registries, text};
use crate::names::{CONFIG_API_VERSION, CONFIG_KIND};
use crate::yaml::{self, Limits, Position, Value};

/// A ConfigMap cannot hold more.
const TEXT_BYTES: usize = 1 << 20;
/// Far above what the other limits let through, far below what would be felt.
const TEXT_NODES: usize = 100_000;
/// The most namespaces in one list.
pub(super) const NAMESPACES: usize = 1_000;
/// No wait and no delay is longer than a day: a longer one is a slip of a unit.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// What is waited for at the least: a shorter wait is over before the answer can be there.
const SECOND: Duration = Duration::from_secs(1);
/// The margin covers a change of leader, not a drain.
const MARGIN: Duration = Duration::from_secs(60 * 60);

/// Any delay.
pub(super) const DELAYS: RangeInclusive<Duration> = Duration::ZERO..=DAY;
/// Any time that something is waited for.
pub(super) const WAITS: RangeInclusive<Duration> = SECOND..=DAY;

/// Reads a configuration; every error of the text is found in one pass.
pub fn parse(text: &str) -> Result<Configuration, ConfigErrors> {
    let mut errors = ConfigErrors::default();
    let documents = yaml::documents(text, Limits { bytes: TEXT_BYTES, nodes: TEXT_NODES }).unwrap_or_else(|malformed| {
        errors.push(malformed.at, "", format!("is no YAML: {}", malformed.reason), "see the example in the documentation");
        Vec::new()
    });
    match &documents[..] {
        [] if errors.errors.is_empty() => {
            errors.push(Position::START, "", "the text is empty", format!("begin with apiVersion: {CONFIG_API_VERSION}"));
        }
        [] => {}
        [node] => {
            let configuration = root(&Field { node, path: String::new() }, &mut errors);
            if errors.errors.is_empty() {
                return Ok(configuration);
            }
        }
        [_, second, ..] => errors.push(second.at, "", "is a second document", "write one document"),
    }
    Err(errors.sorted())
}

fn root(field: &Field<'_>, errors: &mut ConfigErrors) -> Configuration {
    let mut fields = Fields::of(field, errors);
    constant(&mut fields, "apiVersion", CONFIG_API_VERSION, errors);
    constant(&mut fields, "kind", CONFIG_KIND, errors);
    let cluster = fields
        .required("cluster", "a name for this cluster; it is stamped on targets in shared registries", errors)
        .and_then(|field| field.checked(text::NAME, text::name, errors))
        .map_or_else(|| Arc::from(""), Arc::from);
    let injection = fields.optional("injection").map_or_else(Injection::default, |field| injection(&field, errors));
    let registration = fields.optional("registration").map_or_else(Registration::default, |field| registration(&field, errors));
    let registries = fields.optional("registries").map(|field| registries::read(&field, errors)).unwrap_or_default();
    let bindings = fields.optional("bindings").map(|field| bindings::read(&field, &registries, errors)).unwrap_or_default();
    fields.finish(errors);
    let registries = registries.into_iter().filter_map(|named| named.config).collect();
    Configuration { cluster, injection, registration, registries, bindings }
}

fn constant(fields: &mut Fields<'_>, key: &'static str, value: &str, errors: &mut ConfigErrors) {
    if let Some(field) = fields.required(key, &format!("write {key}: {value}"), errors) {
        field.word(&[(value, ())], errors);
    }
}

fn injection(field: &Field<'_>, errors: &mut ConfigErrors) -> Injection {
    let default = Injection::default();
    let mut fields = Fields::of(field, errors);
    let injection = Injection {
        pre_stop: fields.optional("preStop").and_then(|field| pre_stop(&field, errors)).unwrap_or(default.pre_stop),
        margin: duration(&mut fields, "margin", Duration::ZERO..=MARGIN, default.margin, errors),
        max_sleep: duration(&mut fields, "maxSleep", DELAYS, default.max_sleep, errors),
        max_grace: duration(&mut fields, "maxGrace", DELAYS, default.max_grace, errors),
        probe_grace: word(
            &mut fields,
            "probeGrace",
            &[("bound", ProbeGrace::Bound), ("keep", ProbeGrace::Keep)],
            default.probe_grace,
            errors,
        ),
        excluded_namespaces: fields
            .optional("excludedNamespaces")
            .map(|field| {
                let items = field.list(NAMESPACES, errors);
                items.iter().filter_map(|item| item.checked(text::NAME, text::namespace, errors)).map(Arc::from).collect()
            })
            .unwrap_or_default(),
    };
    fields.finish(errors);
    injection
}

fn pre_stop(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<PreStop> {
    // YAML 1.1 readers, such as Helm's, make `false` of a bare `off`.
    if field.node.value == Value::Bool(false) {
        return Some(PreStop::None);
    }
    match &field.node.value {
        Value::Text(text) if text == "off" => Some(PreStop::None),
        _ => field.word(&[("auto", PreStop::Auto), ("exec", PreStop::Exec), ("none", PreStop::None)], errors),
    }
}

fn registration(field: &Field<'_>, errors: &mut ConfigErrors) -> Registration {
    let default = Registration::default();
    let mut fields = Fields::of(field, errors);
    let registration = Registration {
        gate_timeout: duration(&mut fields, "gateTimeout", WAITS, default.gate_timeout, errors),
        on_gate_timeout: word(
            &mut fields,
            "onGateTimeout",
            &[("hold", OnGateTimeout::Hold), ("open", OnGateTimeout::Open)],
            default.on_gate_timeout,
            errors,
        ),
        drain_timeout: duration(&mut fields, "drainTimeout", WAITS, default.drain_timeout, errors),
        on_drain_timeout: word(
            &mut fields,
            "onDrainTimeout",
            &[("hold", OnDrainTimeout::Hold), ("release", OnDrainTimeout::Release)],
            default.on_drain_timeout,
            errors,
        ),
        force_timeout: duration(&mut fields, "forceTimeout", WAITS, default.force_timeout, errors),
        unreachable_after: duration(&mut fields, "unreachableAfter", WAITS, default.unreachable_after, errors),
        panic_threshold: fields.optional("panicThreshold").and_then(|field| percentage(&field, errors)).unwrap_or(default.panic_threshold),
    };
    fields.finish(errors);
    registration
}

fn percentage(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<u8> {
    let read = match &field.node.value {
        Value::Text(text) => text::percentage(text),
        _ => None,
    };
    if read.is_none() {
        let written = match &field.node.value {
            Value::Text(text) | Value::Number(text) => quoted(text),
            _ => "no text".to_owned(),
        };
        field.fail(errors, format!("is {written}"), "write a whole percentage from 0% to 100%, as in 50%");
    }
    read
}

/// A duration, or what counts without one.
pub(super) fn duration(
    fields: &mut Fields<'_>,
    key: &'static str,
    bounds: RangeInclusive<Duration>,
    default: Duration,
    errors: &mut ConfigErrors,
) -> Duration {
    fields.optional(key).and_then(|field| field.duration(bounds, errors)).unwrap_or(default)
}

/// A word, or what counts without one.
pub(super) fn word<T: Copy>(fields: &mut Fields<'_>, key: &'static str, words: &[(&str, T)], default: T, errors: &mut ConfigErrors) -> T {
    fields.optional(key).and_then(|field| field.word(words, errors)).unwrap_or(default)
}

/// Reports a reference to something that is not there.
pub(super) fn unknown<'k>(
    field: &Field<'_>,
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'k str> + Clone,
    errors: &mut ConfigErrors,
) {
    let list: Vec<&str> = known.clone().take(10).collect();
    let remedy = if list.is_empty() { format!("there is no {what}") } else { format!("known: {}", list.join(", ")) };
    errors.add(super::ConfigError {
        path: field.path.clone(),
        line: field.node.at.line,
        column: field.node.at.column,
        reason: format!("names {}, which is no {what}", quoted(name)),
        remedy,
        nearest: nearest(name, known).map(str::to_owned),
    });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::config::{Ack, Drain, HaproxyBackend, Mode, OnUnready, Port, Servers, Services, TargetGroup};

    const HEAD: &str = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\n";
    const REGISTRIES: &str = "registries:\n  - name: lan\n    haproxy: {addresses: [\"127.0.0.1:9999\"]}\n  \
        - name: edge\n    aws: {region: eu-west-1}\n  - name: first\n    http: {url: \"http://first.example\"}\n";
    const GROUP: &str = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/web/0123456789abcdef";

    fn with(rest: &str) -> String {
        format!("{HEAD}{REGISTRIES}{rest}")
    }

    /// A binding of each registry; `{more}` is put into it.
    fn binding(registry: &str, more: &str) -> String {
        let (service, drain) = if registry == "edge" { (GROUP, "") } else { ("web", "drain: {fixed: 30s}, ") };
        let drain = if more.contains("drain:") { "" } else { drain };
        with(&format!(
            "bindings:\n  - {{name: web, namespaces: [shop], registry: {registry}, service: \"{service}\", port: 8080, {drain}{more}}}\n"
        ))
    }

    /// Two bindings of one service for different pods.
    fn two_bindings(registry: &str, service: &str, first: &str, second: &str) -> String {
        let one = |name, more| {
            format!("  - {{name: {name}, namespaces: [{name}], registry: {registry}, service: \"{service}\", port: 8080, {more}}}\n")
        };
        with(&format!("bindings:\n{}{}", one("a", first), one("b", second)))
    }

    #[test]
    fn defaults_are_filled_in() {
        let configuration = parse(HEAD).unwrap();
        assert_eq!(&*configuration.cluster, "test");
        assert_eq!(configuration.injection, Injection::default());
        assert_eq!(configuration.registration, Registration::default());
        assert!(configuration.registries.is_empty() && configuration.bindings.is_empty());
    }

    #[rstest]
    #[case("lan", "", OnUnready::Drain, Drain::Fixed(Duration::from_secs(30)))]
    #[case("edge", "", OnUnready::Keep, Drain::FromRegistry { fallback: Duration::from_secs(300) })]
    #[case("edge", "drain: {from: registry}", OnUnready::Keep, Drain::FromRegistry { fallback: Duration::from_secs(300) })]
    #[case("edge", "onUnready: deregister, drain: {fixed: 1m30s}", OnUnready::Deregister, Drain::Fixed(Duration::from_secs(90)))]
    #[case("first", "drain: {from: registry, fallback: 20s}", OnUnready::Drain, Drain::FromRegistry { fallback: Duration::from_secs(20) })]
    fn defaults_of_the_drivers(#[case] registry: &str, #[case] more: &str, #[case] on_unready: OnUnready, #[case] drain: Drain) {
        let configuration = parse(&binding(registry, more)).unwrap();
        let binding = &configuration.bindings[0];
        assert_eq!((binding.on_unready, binding.drain), (on_unready, drain));
        assert_eq!((binding.mode, binding.ack, &binding.port), (Mode::Own, Ack::Acknowledged, &Port::Number(8080)));
        assert_eq!((binding.weight, binding.check, binding.gone_when), (100, true, None));
    }

    #[rstest]
    #[case("auto", PreStop::Auto)]
    #[case("exec", PreStop::Exec)]
    #[case("none", PreStop::None)]
    #[case("off", PreStop::None)]
    #[case("false", PreStop::None)]
    #[case("\"off\"", PreStop::None)]
    fn pre_stop_words(#[case] word: &str, #[case] wanted: PreStop) {
        assert_eq!(parse(&format!("{HEAD}injection: {{preStop: {word}}}\n")).unwrap().injection.pre_stop, wanted);
    }

    /// Each error: its path, what stands at its line and column, and words of its message.
    type Wanted<'w> = (&'w str, &'w str, &'w str);

    #[rstest]
    #[case::empty("", &[("", "", "empty")])]
    #[case::no_yaml("a: [", &[("", "[", "no YAML")])]
    #[case::two("a: 1\n---\nb: 2\n", &[("", "b: 2", "second document")])]
    #[case::list("- a\n", &[("", "- a", "a list")])]
    #[case::version("apiVersion: lockstep.dev/v1alpha2\nkind: Config\ncluster: test\n",
        &[("apiVersion", "lockstep.dev/v1alpha2", "mean lockstep.dev/v1alpha1?"), ("kind", "Config", "one of Configuration")])]
    #[case::cluster("apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\n", &[("cluster", "apiVersion", "missing")])]
    #[case::cluster_number("apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: 1\n", &[("cluster", "1", "quotes")])]
    #[case::unknown_key(&format!("{HEAD}injektion: {{}}\n"), &[("injektion", "injektion", "mean injection?")])]
    #[case::twice(&format!("{HEAD}cluster: again\n"), &[("cluster", "cluster: again", "twice")])]
    #[case::durations(&format!("{HEAD}injection: {{margin: 15, maxSleep: -1s, maxGrace: 25h}}\n"),
        &[("injection.margin", "15,", "no unit"), ("injection.maxSleep", "-1s", "negative"), ("injection.maxGrace", "25h", "from 0s to 24h")])]
    #[case::pre_stop(&format!("{HEAD}injection: {{preStop: native}}\n"), &[("injection.preStop", "native", "one of auto, exec, none")])]
    #[case::percentage(&format!("{HEAD}registration: {{panicThreshold: 50}}\n"), &[("registration.panicThreshold", "50", "50%")])]
    #[case::timeouts(&format!("{HEAD}registration: {{gateTimeout: 0s, onDrainTimeout: relase}}\n"),
        &[("registration.gateTimeout", "0s", "from 1s to 24h"), ("registration.onDrainTimeout", "relase", "mean release?")])]
    #[case::driver(&format!("{HEAD}registries:\n  - name: lan\n    haprox: {{}}\n"),
        &[("registries[0]", "name: lan", "no driver"), ("registries[0].haprox", "haprox", "mean haproxy?")])]
    #[case::two_drivers(&format!("{HEAD}registries: [{{name: a, http: {{url: \"http://a\"}}, aws: {{region: eu-west-1}}}}]\n"),
        &[("registries[0].http", "{url", "second driver")])]
    #[case::registry_twice(&format!("{HEAD}registries: [{{name: a, aws: {{region: eu-west-1}}}}, {{name: a, aws: {{region: eu-west-1}}}}]\n"),
        &[("registries[1].name", "a, aws", "twice")])]
    #[case::credential(&format!("{HEAD}registries: [{{name: a, http: {{url: \"http://u:p@a\", token: ../t}}}}]\n"),
        &[("registries[0].http.url", "\"http://u:p", "user"), ("registries[0].http.token", "../t", "never a path")])]
    #[case::sockets(&format!("{HEAD}registries: [{{name: a, haproxy: {{addresses: [a, \"b:1\", \"b:1\", \"169.254.1.1:1\", \"[fd20:ce::254]:1\"]}}}}]\n"),
        &[("registries[0].haproxy.addresses[0]", "a,", "no port"), ("registries[0].haproxy.addresses[2]", "\"b:1\", \"169", "twice"),
          ("registries[0].haproxy.addresses[3]", "\"169", "link-local"), ("registries[0].haproxy.addresses[4]", "\"[fd20", "Google Cloud")])]
    #[case::namespace(&format!("{HEAD}registries: [{{name: a, consul: {{address: \"http://a\", namespace: team}}}}]\n"),
        &[("registries[0].consul.namespace", "namespace", "no known key")])]
    #[case::no_addresses(&format!("{HEAD}registries: [{{name: a, haproxy: {{addresses: []}}}}]\n"),
        &[("registries[0].haproxy.addresses", "[]", "empty")])]
    #[case::nothing_in_a_binding(&with("bindings: [{}]\n"), &[("bindings[0].name", "{}", "missing"),
        ("bindings[0].namespaces", "{}", "missing"), ("bindings[0].registry", "{}", "missing"),
        ("bindings[0].service", "{}", "missing"), ("bindings[0].port", "{}", "missing")])]
    fn errors(#[case] text: &str, #[case] wanted: &[Wanted<'_>]) {
        expect(text, wanted);
    }

    #[rstest]
    #[case::registry("lann", "", &[("registry", "lann", "mean lan?")])]
    #[case::drain_missing("lan", "drain: null", &[("drain", "drain: null", "missing")])]
    #[case::from_haproxy("lan", "drain: {from: registry, fallback: 30s}", &[("drain.from", "registry", "haproxy knows no drain delay")])]
    #[case::no_fallback("first", "drain: {from: registry}", &[("drain.fallback", "{from", "missing")])]
    #[case::fallback_alone("lan", "drain: {fixed: 1s, fallback: 2s}", &[("drain.fallback", "2s", "from: registry")])]
    #[case::two_forms("lan", "drain: {fixed: 1s, healthCheck: {interval: 1s, unhealthyThreshold: 1, timeout: 1s}}",
        &[("drain", "{fixed", "both fixed and healthCheck")])]
    #[case::no_form("lan", "drain: {}", &[("drain", "{}", "nothing")])]
    #[case::health_check("lan", "drain: {healthCheck: {interval: 1s, unhealthyThreshold: 0}}",
        &[("drain.healthCheck.timeout", "{interval", "missing"), ("drain.healthCheck.unhealthyThreshold", "0", "from 1 to 1000")])]
    #[case::drain_on_aws("edge", "onUnready: drain", &[("onUnready", "drain", "only deregistering")])]
    #[case::weight_on_aws("edge", "weight: 5", &[("weight", "5", "haproxy")])]
    #[case::exclusive_on_haproxy("lan", "exclusive: true", &[("exclusive", "true", "means nothing on haproxy")])]
    #[case::no_check("lan", "check: false", &[("", "{name: web", "ack: accepted")])]
    #[case::accept_states("edge", "acceptStates: [unused]", &[("acceptStates[0]", "unused", "no reason code")])]
    #[case::operator("lan", "podSelector: {matchExpressions: [{key: a, operator: in}, {key: b, operator: Exists, values: [x]}, {key: c, operator: In}]}",
        &[("podSelector.matchExpressions[0].operator", "in}", "mean In?"),
          ("podSelector.matchExpressions[1].values", "[x]", "leave it out"),
          ("podSelector.matchExpressions[2].values", "{key: c", "missing")])]
    #[case::labels("lan", "podSelector: {matchLabels: {app: 1, \"b c\": x}}",
        &[("podSelector.matchLabels[\"app\"]", "1", "quotes"), ("podSelector.matchLabels[\"b c\"]", "\"b c\"", "no key")])]
    #[case::selector_key("lan", "namespaceSelector: {}", &[("namespaceSelector", "namespaceSelector", "known here")])]
    fn errors_of_a_binding(#[case] registry: &str, #[case] more: &str, #[case] wanted: &[Wanted<'_>]) {
        let placed: Vec<(String, &str, &str)> = wanted
            .iter()
            .map(|(path, at, words)| (format!("bindings[0]{}{path}", if path.is_empty() { "" } else { "." }), *at, *words))
            .collect();
        let wanted: Vec<Wanted<'_>> = placed.iter().map(|(path, at, words)| (&**path, *at, *words)).collect();
        expect(&binding(registry, more), &wanted);
    }

    #[rstest]
    #[case::in_reach("region: eu-west-1, assumeRole: 'arn:aws:iam::123456789012:role/edge'", None)]
    #[case::another_region("region: us-east-1", Some("is in eu-west-1, and its registry in us-east-1"))]
    #[case::another_account(
        "region: eu-west-1, assumeRole: 'arn:aws:iam::210987654321:role/edge'",
        Some("in account 123456789012, and the role")
    )]
    fn a_target_group_is_where_its_registry_reaches(#[case] aws: &str, #[case] words: Option<&str>) {
        let text = binding("edge", "").replace("aws: {region: eu-west-1}", &format!("aws: {{{aws}}}"));
        match (parse(&text), words) {
            (Ok(_), None) => {}
            (Err(errors), Some(words)) => {
                assert_eq!(errors.errors.len(), 1, "{errors}");
                assert!(errors.errors[0].path == "bindings[0].service" && errors.errors[0].reason.contains(words), "{errors}");
            }
            other => panic!("{other:?}"),
        }
    }

    /// Account 1 is that of the target group; `bound`: the first registry has a binding to it.
    #[rstest]
    #[case::alike("", "", false, Some("asks the"))]
    #[case::another_region("", "us-east-1", false, None)]
    #[case::another_account("role-1-a", "role-2-a", false, None)]
    #[case::another_role("role-1-a", "role-1-b", false, Some("asks the"))]
    #[case::perhaps("", "role-1-a", false, Some("may ask the"))]
    #[case::known_by_its_target_group("", "role-1-a", true, Some("asks the"))]
    #[case::known_to_be_another("", "role-2-a", true, None)]
    fn two_registries_of_one_account_are_unwise(
        #[case] first: &str,
        #[case] second: &str,
        #[case] bound: bool,
        #[case] words: Option<&str>,
    ) {
        let aws = |which: &str| match which.split('-').collect::<Vec<_>>()[..] {
            ["role", account, name] => {
                let account = if account == "1" { "123456789012" } else { "210987654321" };
                format!("{{region: eu-west-1, assumeRole: 'arn:aws:iam::{account}:role/{name}'}}")
            }
            [""] => "{region: eu-west-1}".to_owned(),
            _ => format!("{{region: {which}}}"),
        };
        let binding = format!("bindings: [{{name: web, namespaces: [shop], registry: a, service: '{GROUP}', port: 80}}]\n");
        let registries = format!("registries: [{{name: a, aws: {}}}, {{name: b, aws: {}}}]\n", aws(first), aws(second));
        let text = format!("{HEAD}{registries}{}", if bound { &binding } else { "" });
        let advised = crate::config::advise(&parse(&text).unwrap());
        assert_eq!(advised.len(), usize::from(words.is_some()), "{advised:?}");
        if let (Some(words), [advice]) = (words, &advised[..]) {
            assert!(advice.path == "registries[1].aws" && advice.reason.contains("registry a"), "{advice:?}");
            assert!(advice.reason.starts_with(words), "{advice:?}");
        }
    }

    /// A registry takes out what no pod of its own claims, where a target does not tell whose it is.
    #[rstest]
    #[case::some_processes("haproxy: {addresses: ['a:1', 'b:1']}", "haproxy: {addresses: ['b:1']}", "web", "", Said::Error)]
    #[case::the_same_processes("haproxy: {addresses: ['a:1', 'b:1']}", "haproxy: {addresses: ['b:1', 'a:1']}", "web", "", Said::Advice)]
    #[case::slots("haproxy: {addresses: ['a:1']}", "haproxy: {addresses: ['a:1']}", "web", "servers: template", Said::Error)]
    #[case::other_processes("haproxy: {addresses: ['a:1']}", "haproxy: {addresses: ['b:1']}", "web", "", Said::Nothing)]
    #[case::one_observes("haproxy: {addresses: ['a:1']}", "haproxy: {addresses: ['a:1']}", "web", "mode: observe", Said::Nothing)]
    #[case::consul("consul: {address: 'http://a'}", "consul: {address: 'http://a/'}", "web", "", Said::Advice)]
    #[case::http("http: {url: 'http://a'}", "http: {url: 'http://a', token: t}", "web", "", Said::Advice)]
    #[case::other_drivers("http: {url: 'http://a'}", "consul: {address: 'http://a'}", "web", "", Said::Nothing)]
    #[case::aws("aws: {region: eu-west-1}", "aws: {region: eu-west-1, endpoint: 'https://a'}", GROUP, "", Said::Advice)]
    #[case::swept("aws: {region: eu-west-1}", "aws: {region: eu-west-1, endpoint: 'https://a'}", GROUP, "exclusive: true", Said::Error)]
    fn two_registries_do_not_sweep_one_service(
        #[case] first: &str,
        #[case] second: &str,
        #[case] service: &str,
        #[case] more: &str,
        #[case] said: Said,
    ) {
        let binding = |name, more| {
            format!(
                "{{name: {name}, namespaces: [{name}], registry: {name}, service: '{service}', port: 80, drain: {{fixed: 20s}}, {more}}}"
            )
        };
        let text = format!(
            "{HEAD}registries: [{{name: a, {first}}}, {{name: b, {second}}}]\nbindings:\n  - {}\n  - {}\n",
            binding("a", if more == "mode: observe" { "" } else { more }),
            binding("b", more)
        );
        let found = match parse(&text) {
            Ok(configuration) => {
                let advice = crate::config::advise(&configuration);
                advice.into_iter().find(|one| one.path == "bindings[1]").map(|one| (Said::Advice, one.reason))
            }
            Err(errors) => {
                assert!(errors.errors.len() == 1 && errors.errors[0].path == "bindings[1]", "{errors}");
                Some((Said::Error, errors.errors[0].reason.clone()))
            }
        };
        assert_eq!(found.as_ref().map_or(Said::Nothing, |(said, _)| *said), said, "{found:?}");
        assert!(found.is_none_or(|(_, reason)| reason.contains("by way of registry a")));
    }

    /// What a configuration is told.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Said {
        Error,
        Advice,
        Nothing,
    }

    #[test]
    fn what_may_be_a_secret_is_not_repeated() {
        let text = format!("{HEAD}registries: [{{name: a, http: {{url: \"http://u:hunter2@a\", token: \"/hunter2\"}}}}]\n");
        assert!(!parse(&text).unwrap_err().to_string().contains("hunter2"));
    }

    #[rstest]
    #[case::port("port: 8080", "port: 0", "bindings[0].port")]
    #[case::port_text("port: 8080", "port: \"8080\"", "bindings[0].port")]
    #[case::namespaces("[shop]", "[]", "bindings[0].namespaces")]
    #[case::star("[shop]", "[shop, \"*\"]", "bindings[0].namespaces[1]")]
    #[case::namespace("[shop]", "[Shop]", "bindings[0].namespaces[0]")]
    #[case::service("service: \"web\"", "service: \"we b\"", "bindings[0].service")]
    #[case::name("name: web", "name: \"a=b\"", "bindings[0].name")]
    fn errors_of_one_value(#[case] from: &str, #[case] to: &str, #[case] path: &str) {
        let text = binding("lan", "");
        assert!(text.contains(from), "{text}");
        let errors = parse(&text.replace(from, to)).unwrap_err();
        assert_eq!(errors.errors.iter().map(|error| &*error.path).collect::<Vec<_>>(), [path]);
    }

    #[rstest]
    #[case::same("app: web", "", true)]
    #[case::other_pods("app: api", "onUnbound: deregister", true)]
    #[case::same_pods("app: web", "onUnbound: deregister", false)]
    #[case::perhaps_the_same_pods("tier: front", "onUnready: keep", false)]
    #[case::other_port("app: web, port: http", "onUnready: keep", true)]
    #[case::one_backend("app: api", "servers: template", false)]
    #[case::one_backend_with_check("app: api", "check: false, ack: accepted", false)]
    fn bindings_of_one_target_agree(#[case] labels: &str, #[case] policy: &str, #[case] fits: bool) {
        let port = if labels.contains("port") { "http" } else { "8080" };
        let labels = labels.split(',').next().unwrap();
        let text = with(&format!(
            "bindings:\n  - {{name: a, namespaces: [shop], podSelector: {{matchLabels: {{app: web}}}}, registry: lan, service: web, port: 8080, drain: {{fixed: 1s}}}}\n  \
             - {{name: b, namespaces: [\"*\"], podSelector: {{matchLabels: {{{labels}}}}}, registry: lan, service: web, port: {port}, drain: {{fixed: 2s}}, {policy}}}\n"
        ));
        match parse(&text) {
            Ok(_) => assert!(fits),
            Err(errors) => {
                assert!(!fits, "{errors}");
                assert_eq!((&*errors.errors[0].path, errors.errors[0].line), ("bindings[1]", 13));
            }
        }
    }

    /// The first drains for a second, the second for twenty.
    #[rstest]
    #[case::alike("weight: 20", "weight: 20", Some((Some(20), 20)))]
    #[case::weights_differ("", "weight: 20", Some((None, 20)))]
    #[case::one_only_observes("weight: 20", "mode: observe", Some((Some(20), 1)))]
    #[case::all_observe("mode: observe", "mode: observe", None)]
    fn a_haproxy_registry_knows_what_its_bindings_say_of_their_backends(
        #[case] first: &str,
        #[case] second: &str,
        #[case] expected: Option<(Option<u16>, u64)>,
    ) {
        let slots = |drain, more| format!("drain: {{fixed: {drain}}}, servers: template, {more}");
        let configuration = parse(&two_bindings("lan", "web", &slots("1s", first), &slots("20s", second))).unwrap();
        let backend = |(weight, drain)| {
            let drain = Duration::from_secs(drain);
            ("web".into(), HaproxyBackend { servers: Servers::Template, check: true, weight, drain })
        };
        let backends = expected.map(backend).into_iter().collect();
        assert_eq!(configuration.services("lan"), Services { backends, ..Services::default() });
    }

    #[rstest]
    #[case::alike("", "", Some(Mode::Own))]
    #[case::both_observe("mode: observe", "mode: observe", Some(Mode::Observe))]
    #[case::one_owns("mode: observe", "mode: own", Some(Mode::Own))]
    #[case::states_differ("acceptStates: [unused/Target.NotInUse]", "", None)]
    #[case::ends_differ("goneWhen: absent", "", None)]
    #[case::owners_differ("exclusive: true", "exclusive: false", None)]
    fn an_aws_registry_knows_what_its_bindings_say_of_their_groups(#[case] first: &str, #[case] second: &str, #[case] mode: Option<Mode>) {
        let parsed = parse(&two_bindings("edge", GROUP, first, second));
        let group = parsed.map(|configuration| configuration.services("edge").groups.remove(GROUP));
        match (group, mode) {
            (Ok(group), Some(mode)) => assert_eq!(group, Some(TargetGroup { mode, accept_states: Vec::new() })),
            (Err(errors), None) => assert!(errors.to_string().contains("in the same service as binding a"), "{errors}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_flood_of_errors_is_bounded() {
        let text = format!("{HEAD}{}", (0..5000).map(|i| format!("k{i}: x\n")).collect::<String>());
        let errors = parse(&text).unwrap_err();
        assert_eq!(errors.errors.len(), 200);
        assert!(errors.errors.iter().all(|error| error.to_string().len() < 500));
    }

    #[test]
    fn a_strange_key_that_stands_twice_is_told_in_a_clean_line() {
        let key = format!("\"{}\"", "\\t".repeat(300));
        let errors = parse(&format!("{HEAD}{key}: 1\n{key}: 2\n")).unwrap_err().errors;
        let told = errors.iter().find(|error| error.reason == "stands twice").unwrap().to_string();
        assert!(told.len() < 500 && !told.chars().any(char::is_control), "{told:?}");
    }

    fn expect(text: &str, wanted: &[Wanted<'_>]) {
        let errors = parse(text).unwrap_err().errors;
        assert_eq!(errors.len(), wanted.len(), "{errors:#?}");
        for (error, (path, at, words)) in errors.iter().zip(wanted) {
            let line = text.lines().nth(error.line - 1).unwrap_or_default();
            let there: String = line.chars().skip(error.column - 1).collect();
            assert_eq!(&error.path, path, "{error}");
            assert!(there.starts_with(at), "{error} stands at {there}");
            assert!(error.to_string().contains(words), "{error} has no {words}");
        }
    }
}
