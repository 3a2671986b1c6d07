//! The chart as a real helm renders it: every switch, the schemas of every supported Kubernetes, and what stands in code as well.
//!
//! Invariant: a key of the values is in the schema, and carries a comment.
//! Absent on purpose: what the objects do (on a real cluster).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep::runtime::rights::{Place, RULES};
use rstest::rstest;
use serde_json::{Value, json};

use crate::documentation_pages::{hold, read};
use crate::exposed::said;
use crate::programs::printed;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/lockstep");
/// What holds objects against the schemas of Kubernetes.
const SCHEMAS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/kubernetes_schemas.py");
/// Head of the table on the chart's page.
const TABLE: &str = "| value | default | what |\n| --- | --- | --- |\n";
/// Switches, with what they add to a plain install.
const SWITCHES: &[(&str, &[&str])] = &[
    (
        "certificates.source=certManager",
        &["Certificate/lockstep", "Certificate/lockstep-ca", "Issuer/lockstep", "Issuer/lockstep-selfsigned"],
    ),
    ("certificates.source=certManager,certificates.certManager.issuerRef.name=mine", &["Certificate/lockstep"]),
    ("certificates.source=files,certificates.files.secret=mine", &[]),
    ("certificates.clientCA.secret=callers,certificates.clientCA.names={kube-apiserver,front}", &[]),
    ("registry.enabled=true", &["Secret/lockstep-registry-token", "Service/lockstep-registry", "StatefulSet/lockstep-registry"]),
    (
        "registry.enabled=true,registry.tlsSecret=mine",
        &["Secret/lockstep-registry-token", "Service/lockstep-registry", "StatefulSet/lockstep-registry"],
    ),
    ("networkPolicy.enabled=true", &["NetworkPolicy/lockstep", "NetworkPolicy/lockstep-release"]),
    (
        "networkPolicy.enabled=true,registry.enabled=true,registry.tokenSecret=mine,registry.persistence.enabled=false",
        &[
            "NetworkPolicy/lockstep",
            "NetworkPolicy/lockstep-registry",
            "NetworkPolicy/lockstep-release",
            "Service/lockstep-registry",
            "StatefulSet/lockstep-registry",
        ],
    ),
    ("metrics.serviceMonitor.enabled=true", &["Service/lockstep-metrics", "ServiceMonitor/lockstep"]),
    ("metrics.podMonitor.enabled=true,metrics.podMonitor.labels.prometheus=main", &["PodMonitor/lockstep"]),
    ("metrics.prometheusRule.enabled=true,metrics.prometheusRule.labels.prometheus=main", &["PrometheusRule/lockstep"]),
    ("metrics.dashboard.enabled=true", &["ConfigMap/lockstep-dashboard"]),
    ("replicas=3,commonLabels.team=edge,podLabels.tier=core,podAnnotations.note=yes,image.digest=", &[]),
    (
        "env[0].name=A,env[0].value=b,volumes[0].name=v,volumes[0].emptyDir.medium=Memory,volumeMounts[0].name=v,volumeMounts[0].mountPath=/v",
        &[],
    ),
    ("priorityClassName=system-cluster-critical,imagePullSecrets[0].name=pull,nodeSelector.disk=ssd,tolerations[0].operator=Exists", &[]),
    (
        "credentials={one,two},serviceAccount.annotations.role=arn,log.format=text,traces.collector=http://collector:4318,preStopSeconds=8",
        &[],
    ),
    (
        "topologySpreadConstraints[0].topologyKey=rack,topologySpreadConstraints[0].maxSkew=1,topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        &[],
    ),
];

#[test]
fn every_switch_adds_what_it_says_and_nothing_else() {
    let plain = named(&render(""));
    for (switch, added) in SWITCHES {
        let mut with: BTreeSet<String> = named(&render(switch));
        if switch.starts_with("certificates.source") {
            assert!(!with.contains("Secret/lockstep-certificate"), "{switch}: somebody else keeps the certificate");
            with.insert("Secret/lockstep-certificate".into());
        }
        let difference: Vec<&String> = with.symmetric_difference(&plain).collect();
        assert_eq!(difference, *added, "{switch}");
    }
}

#[test]
fn every_kubernetes_that_is_supported_takes_what_is_rendered() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.json");
    // Kinds of other projects are not in the schemas.
    let ours = |object: &Value| {
        !object["apiVersion"].as_str().unwrap().contains("cert-manager.io")
            && !object["apiVersion"].as_str().unwrap().contains("monitoring.coreos.com")
    };
    let all = SWITCHES.iter().map(|(switch, _)| *switch).chain([""]).flat_map(render).filter(ours);
    // Most objects are the same under every switch.
    let documents: BTreeSet<String> = all.map(|object| format!("---\n{object}\n")).collect();
    let documents: String = documents.into_iter().collect();
    std::fs::write(&file, documents).unwrap();
    let ran = Command::new(python()).arg(SCHEMAS).arg(&file).args((30..=37).map(|minor| format!("1.{minor}"))).output().unwrap();
    let said = said(&ran);
    assert!(ran.status.success() && said.trim().is_empty(), "{said}");
}

#[rstest]
#[case("replica=3", "replica")]
#[case("replicas=0", "replicas")]
#[case("certificates.source=vault", "source")]
#[case("certificates.source=files", "secret")]
#[case("config.bindngs={}", "bindngs")]
#[case("preStopSeconds=60", "preStopSeconds")]
#[case("metrics.podMonitor.interval=soon", "interval")]
#[case("metrics.prometheusRule.runbooks=no-slash", "runbooks")]
fn a_value_that_cannot_be_is_refused_by_name(#[case] switch: &str, #[case] name: &str) {
    let refused = template(switch).unwrap_err();
    assert!(refused.contains(name), "{refused}");
}

#[test]
fn roles_and_the_rights_that_are_asked_for_are_the_same() {
    let rendered = render("");
    let rules = |kind: &str| {
        let role = rendered.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == "lockstep").unwrap();
        role["rules"].as_array().unwrap().clone()
    };
    let granted: BTreeSet<String> = rules("ClusterRole")
        .iter()
        .flat_map(|rule| flat("cluster", rule))
        .chain(rules("Role").iter().flat_map(|rule| flat("own", rule)))
        .collect();
    let asked: BTreeSet<String> = RULES
        .iter()
        .flat_map(|rule| {
            let place = if rule.place == Place::Cluster { "cluster" } else { "own" };
            let object =
                json!({ "apiGroups": [rule.group], "resources": [rule.resource], "resourceNames": rule.names, "verbs": rule.verbs });
            flat(place, &object)
        })
        .collect();
    assert_eq!(granted, asked);
}

#[test]
fn every_rule_of_a_role_names_a_story_that_needs_it() {
    let stories = read("tests/cluster/stories.rs");
    for role in ["clusterrole.yaml", "role.yaml", "release/clusterrole.yaml", "release/role.yaml"] {
        let role = read(&format!("charts/lockstep/templates/{role}"));
        let mut comment = "";
        for line in role.lines() {
            if line.trim_start().starts_with('#') {
                comment = line;
            } else if line.starts_with("  - apiGroups") {
                let story = comment.rsplit_once("Test: ").map_or("", |(_, story)| story);
                assert!(stories.contains(&format!("(\"{story}\"")), "{line:?} follows {comment:?}: there is no such story");
                comment = "";
            }
        }
    }
}

#[test]
fn manifests_for_an_install_without_helm_are_those_of_the_chart() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/certs/cert-manager.yaml")).unwrap();
    let by_hand: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let rendered = render("certificates.source=certManager");
    for object in by_hand {
        let same = rendered.iter().find(|other| other["kind"] == object["kind"] && other["metadata"]["name"] == object["metadata"]["name"]);
        assert_eq!(same.unwrap()["spec"], object["spec"]);
    }
}

#[test]
fn alerts_and_dashboard_are_those_of_the_files() {
    let rendered = render(
        "metrics.prometheusRule.enabled=true,metrics.prometheusRule.runbooks=https://wiki.example.org/,metrics.dashboard.enabled=true",
    );
    let named =
        |kind: &str, name: &str| rendered.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap();
    let file = |name: &str| std::fs::read_to_string(Path::new(CHART).join("monitoring").join(name)).unwrap();
    let alerts: Value = serde_saphyr::from_str(&file("alerts.yaml").replace("docs/runbooks/", "https://wiki.example.org/")).unwrap();
    assert_eq!(named("PrometheusRule", "lockstep")["spec"], alerts);
    assert_eq!(named("ConfigMap", "lockstep-dashboard")["data"]["lockstep.json"], file("dashboard.json"));
}

#[test]
fn every_value_is_in_the_schema_and_carries_a_comment() {
    let text = std::fs::read_to_string(Path::new(CHART).join("values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(Path::new(CHART).join("values.schema.json")).unwrap()).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    let mut complaints = Vec::new();
    unknown("", &values, &schema, &schema, &mut complaints);
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#') && line.contains(':')) {
        let above = number.checked_sub(1).map_or("", |above| lines[above]);
        // A group of values is explained by its members.
        let is_group = line.ends_with(':');
        if !is_group && !above.trim_start().starts_with('#') {
            complaints.push(format!("values.yaml:{}: no comment above `{}`", number + 1, line.trim()));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn the_page_of_the_chart_has_every_value_with_its_default_and_its_comment() {
    const PAGE: &str = "charts/lockstep/README.md";
    let (before, values) = (read(PAGE), read("charts/lockstep/values.yaml"));
    let (intro, _) = before.split_once(TABLE).expect("the page has the table");
    hold(PAGE, &format!("{intro}{TABLE}{}", rows(&values)));
}

/// A row for each value, in the order of the file.
fn rows(values: &str) -> String {
    let (mut table, mut groups, mut comment) = (String::new(), Vec::<(usize, &str)>::new(), Vec::new());
    for line in values.lines() {
        let text = line.trim();
        if let Some(words) = text.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        if let Some((key, value)) = text.split_once(':') {
            let depth = line.len() - line.trim_start().len();
            groups.retain(|(other, _)| *other < depth);
            if value.trim().is_empty() {
                groups.push((depth, key));
            } else {
                let path: Vec<&str> = groups.iter().map(|(_, group)| *group).chain([key]).collect();
                let words = comment.join(" ").replace('|', "\\|");
                table += &format!("| `{}` | `{}` | {words} |\n", path.join("."), value.trim());
            }
        }
        comment.clear();
    }
    table
}

/// Keys of `values` that the schema does not name.
fn unknown(path: &str, values: &Value, schema: &Value, root: &Value, complaints: &mut Vec<String>) {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    let Some(properties) = schema["properties"].as_object() else { return };
    for (key, value) in values.as_object().into_iter().flatten() {
        match properties.get(key) {
            Some(schema) => unknown(&format!("{path}.{key}"), value, schema, root, complaints),
            None => complaints.push(format!("values.schema.json lacks {path}.{key}")),
        }
    }
}

/// `place group resource name verb`, one for each combination.
fn flat(place: &str, rule: &Value) -> Vec<String> {
    let texts = |key: &str| -> Vec<String> {
        let all = rule[key].as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect::<Vec<_>>();
        if all.is_empty() { vec![String::new()] } else { all }
    };
    let mut all = Vec::new();
    for group in texts("apiGroups") {
        for resource in texts("resources") {
            for name in texts("resourceNames") {
                all.extend(texts("verbs").iter().map(|verb| format!("{place} {group} {resource} {name} {verb}")));
            }
        }
    }
    all
}

fn named(objects: &[Value]) -> BTreeSet<String> {
    let all: Vec<String> = objects
        .iter()
        .map(|object| format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap()))
        .collect();
    let mut counts = BTreeMap::new();
    all.iter().for_each(|name| *counts.entry(name).or_insert(0) += 1);
    assert!(counts.values().all(|count| *count == 1), "an object is rendered twice: {counts:?}");
    all.into_iter().collect()
}

fn render(switch: &str) -> Vec<Value> {
    let text = template(switch).unwrap_or_else(|refused| panic!("{switch}: {refused}"));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{switch}: {error}"));
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

fn template(switch: &str) -> Result<String, String> {
    let mut command = Command::new(helm());
    command.args(["template", "lockstep", CHART, "--namespace", "lockstep-system"]);
    if !switch.is_empty() {
        command.args(["--set", switch]);
    }
    let ran = command.output().unwrap();
    if ran.status.success() { Ok(String::from_utf8(ran.stdout).unwrap()) } else { Err(String::from_utf8_lossy(&ran.stderr).into_owned()) }
}

fn helm() -> PathBuf {
    printed("tests/cluster/build", "helm").join("helm")
}

/// The Python that has the schemas of Kubernetes.
fn python() -> PathBuf {
    printed("tests/integration/python", "chart").join("python")
}
