//! The parts of a pod that decide about it, borrowed from its JSON.
//!
//! Invariant: nothing here is ever written back; a patch speaks of places, not of what was read.
//! Absent on purpose: what follows from a part (`decide`, `prestop`).

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::de::{MapAccess, SeqAccess};

use super::hook::Handler;
use super::part::{Items, Key, Part, Shape, skip};
use crate::names::{FINALIZER, GATE, RECORD_ANNOTATION};

/// Annotation of the kubelet's own pods.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// Label of nodes, and key of a node selector, that names the operating system.
const OS_LABEL: &str = "kubernetes.io/os";

/// A pod.
#[derive(Debug, Default)]
pub(super) struct Pod<'a> {
    pub(super) metadata: Part<Metadata<'a>>,
    pub(super) spec: Part<Spec<'a>>,
}

/// `metadata`.
#[derive(Debug, Default)]
pub(super) struct Metadata<'a> {
    pub(super) name: Part<Cow<'a, str>>,
    pub(super) generate_name: Part<Cow<'a, str>>,
    pub(super) labels: Part<Labels<'a>>,
    pub(super) annotations: Part<Annotations<'a>>,
    pub(super) finalizers: Part<Finalizers>,
    pub(super) owners: Part<Items<Owner<'a>>>,
}

/// A map of text; a value that is no text makes it odd.
#[derive(Debug, Default)]
pub(super) struct Labels<'a> {
    entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    odd: bool,
}

/// `metadata.annotations`, most of which is only measured.
#[derive(Debug, Default)]
pub(super) struct Annotations<'a> {
    pub(super) mirror: bool,
    pub(super) record: Option<Cow<'a, str>>,
    /// Bytes of all keys and values but our record's.
    pub(super) foreign_bytes: usize,
    odd: bool,
}

/// `metadata.finalizers`.
#[derive(Debug, Default)]
pub(super) struct Finalizers {
    pub(super) ours: bool,
    odd: bool,
}

/// One of `metadata.ownerReferences`.
#[derive(Debug, Default)]
pub(super) struct Owner<'a> {
    api_version: Part<Cow<'a, str>>,
    kind: Part<Cow<'a, str>>,
    controller: Part<bool>,
}

/// `spec`.
#[derive(Debug, Default)]
pub(super) struct Spec<'a> {
    pub(super) restart_policy: Part<Cow<'a, str>>,
    pub(super) grace: Part<i64>,
    pub(super) gates: Part<Items<Gate<'a>>>,
    pub(super) containers: Part<Items<Container<'a>>>,
    pub(super) init_containers: Part<Items<Container<'a>>>,
    pub(super) os: Part<Os<'a>>,
    pub(super) node_selector: Part<Labels<'a>>,
}

/// One of `spec.readinessGates`.
#[derive(Debug, Default)]
pub(super) struct Gate<'a> {
    condition_type: Part<Cow<'a, str>>,
}

/// `spec.os`.
#[derive(Debug, Default)]
pub(super) struct Os<'a> {
    name: Part<Cow<'a, str>>,
}

/// A container.
#[derive(Debug, Default)]
pub(super) struct Container<'a> {
    pub(super) name: Part<Cow<'a, str>>,
    pub(super) lifecycle: Part<Lifecycle>,
    pub(super) liveness: Part<Probe>,
    pub(super) startup: Part<Probe>,
    pub(super) readiness: Part<Probe>,
}

/// `lifecycle`.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    pub(super) pre_stop: Part<Handler>,
}

/// A probe.
#[derive(Debug, Default)]
pub(super) struct Probe {
    pub(super) keys: usize,
    pub(super) grace: Part<i64>,
}

impl Pod<'_> {
    /// The first part of the wrong type, as in `spec.containers[0].livenessProbe`.
    pub(super) fn wrong_part(&self) -> Option<String> {
        let metadata = match &self.metadata {
            Part::Wrong => return Some("metadata".to_owned()),
            Part::Absent => None,
            Part::Found(metadata) => metadata.wrong_part(),
        };
        metadata.map(|part| format!("metadata.{part}")).or_else(|| match &self.spec {
            Part::Wrong | Part::Absent => Some("spec".to_owned()),
            Part::Found(spec) => spec.wrong_part().map(|part| format!("spec.{part}")),
        })
    }

    /// Name for people: the name, or what it will begin with.
    pub(super) fn name(&self) -> &str {
        let Some(metadata) = self.metadata.found() else { return "" };
        match metadata.name.text() {
            "" => metadata.generate_name.text(),
            name => name,
        }
    }
}

impl Metadata<'_> {
    pub(super) fn has_job(&self) -> bool {
        self.owners.found().is_some_and(|owners| owners.iter().filter_map(Part::found).any(Owner::is_job))
    }

    fn wrong_part(&self) -> Option<String> {
        if self.labels.is_wrong() || self.labels.found().is_some_and(|labels| labels.odd) {
            return Some("labels".to_owned());
        }
        if self.annotations.is_wrong() || self.annotations.found().is_some_and(|annotations| annotations.odd) {
            return Some("annotations".to_owned());
        }
        if self.finalizers.is_wrong() || self.finalizers.found().is_some_and(|finalizers| finalizers.odd) {
            return Some("finalizers".to_owned());
        }
        wrong_item("ownerReferences", &self.owners, |owner| {
            (owner.api_version.is_wrong() || owner.kind.is_wrong() || owner.controller.is_wrong()).then(String::new)
        })
    }
}

impl<'a> Labels<'a> {
    /// The value of a key.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|(one, _)| one == key).map(|(_, value)| &**value)
    }
}

impl Owner<'_> {
    fn is_job(&self) -> bool {
        self.controller == Part::Found(true) && self.kind.text() == "Job" && self.api_version.text().starts_with("batch/")
    }
}

impl Spec<'_> {
    pub(super) fn has_gate(&self) -> bool {
        self.gates.found().is_some_and(|gates| gates.iter().filter_map(Part::found).any(|gate| gate.condition_type.text() == GATE))
    }

    pub(super) fn is_windows(&self) -> bool {
        const WINDOWS: &str = "windows";
        self.os.found().is_some_and(|os| os.name.text() == WINDOWS)
            || self.node_selector.found().is_some_and(|selector| selector.value(OS_LABEL) == Some(WINDOWS))
    }

    pub(super) fn has_readiness_probe(&self) -> bool {
        [&self.containers, &self.init_containers]
            .into_iter()
            .any(|list| list.found().is_some_and(|list| list.iter().filter_map(Part::found).any(|one| Probe::is_there(&one.readiness))))
    }

    fn wrong_part(&self) -> Option<String> {
        let simple = [
            ("restartPolicy", self.restart_policy.is_wrong()),
            ("terminationGracePeriodSeconds", self.grace.is_wrong()),
            ("os", self.os.is_wrong() || self.os.found().is_some_and(|os| os.name.is_wrong())),
            ("nodeSelector", self.node_selector.is_wrong() || self.node_selector.found().is_some_and(|selector| selector.odd)),
        ];
        if let Some((part, _)) = simple.into_iter().find(|(_, wrong)| *wrong) {
            return Some(part.to_owned());
        }
        wrong_item("readinessGates", &self.gates, |gate| gate.condition_type.is_wrong().then(String::new))
            .or_else(|| wrong_item("containers", &self.containers, Container::wrong_part))
            .or_else(|| wrong_item("initContainers", &self.init_containers, Container::wrong_part))
    }
}

impl Container<'_> {
    /// The hook, where there is one that holds something.
    pub(super) fn hook(&self) -> Option<&Handler> {
        self.lifecycle.found()?.pre_stop.found().filter(|handler| handler.actions > 0)
    }

    fn wrong_part(&self) -> Option<String> {
        let part = if self.name.is_wrong() {
            ".name"
        } else if self.lifecycle.is_wrong() {
            ".lifecycle"
        } else if self.lifecycle.found().is_some_and(|lifecycle| lifecycle.pre_stop.is_wrong()) {
            ".lifecycle.preStop"
        } else {
            let probes = [(".livenessProbe", &self.liveness), (".startupProbe", &self.startup), (".readinessProbe", &self.readiness)];
            let wrong = |probe: &Part<Probe>| probe.is_wrong() || probe.found().is_some_and(|probe| probe.grace.is_wrong());
            probes.into_iter().find(|(_, probe)| wrong(probe))?.0
        };
        Some(part.to_owned())
    }
}

impl Probe {
    /// A probe that does nothing is none.
    pub(super) fn is_there(probe: &Part<Self>) -> bool {
        probe.found().is_some_and(|probe| probe.keys > 0)
    }

    /// Whether a restart by it waits as long as the pod's own grace period.
    pub(super) fn waits(probe: &Part<Self>) -> bool {
        probe.found().is_some_and(|probe| probe.keys > 0 && probe.grace == Part::Absent)
    }
}

fn wrong_item<T>(name: &str, items: &Part<Items<T>>, inner: impl Fn(&T) -> Option<String>) -> Option<String> {
    let items = match items {
        Part::Wrong => return Some(name.to_owned()),
        Part::Absent => return None,
        Part::Found(items) => items,
    };
    items.iter().enumerate().find_map(|(i, item)| {
        let inner = match item {
            Part::Wrong | Part::Absent => String::new(),
            Part::Found(item) => inner(item)?,
        };
        let mut place = name.to_owned();
        write!(place, "[{i}]{inner}").expect("writing into a String cannot fail");
        Some(place)
    })
}

impl<'de> Shape<'de> for Pod<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut pod = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "metadata" => pod.metadata = map.next_value()?,
                "spec" => pod.spec = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(pod))
    }
}

impl<'de> Shape<'de> for Metadata<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut metadata = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "name" => metadata.name = map.next_value()?,
                "generateName" => metadata.generate_name = map.next_value()?,
                "labels" => metadata.labels = map.next_value()?,
                "annotations" => metadata.annotations = map.next_value()?,
                "finalizers" => metadata.finalizers = map.next_value()?,
                "ownerReferences" => metadata.owners = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(metadata))
    }
}

impl<'de> Shape<'de> for Labels<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut labels = Self::default();
        while let Some((Key(key), value)) = map.next_entry::<_, Part<Cow<'de, str>>>()? {
            match value {
                Part::Found(value) => labels.entries.push((key, value)),
                Part::Absent => labels.entries.push((key, Cow::Borrowed(""))),
                Part::Wrong => labels.odd = true,
            }
        }
        Ok(Part::Found(labels))
    }
}

impl<'de> Shape<'de> for Annotations<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut annotations = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            if key == RECORD_ANNOTATION {
                let record: Part<Cow<'de, str>> = map.next_value()?;
                annotations.odd |= record.is_wrong();
                annotations.record = match record {
                    Part::Found(record) => Some(record),
                    Part::Absent | Part::Wrong => None,
                };
                continue;
            }
            annotations.mirror |= key == MIRROR_ANNOTATION;
            annotations.foreign_bytes += key.len();
            match map.next_value::<Part<Length>>()? {
                Part::Found(Length(bytes)) => annotations.foreign_bytes += bytes,
                Part::Absent => {}
                Part::Wrong => annotations.odd = true,
            }
        }
        Ok(Part::Found(annotations))
    }
}

/// Bytes of a text that is only measured.
struct Length(usize);

impl Shape<'_> for Length {
    fn of_text(text: &str) -> Part<Self> {
        Part::Found(Self(text.len()))
    }
}

impl<'de> Shape<'de> for Finalizers {
    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Part<Self>, A::Error> {
        let mut finalizers = Self::default();
        while let Some(entry) = list.next_element::<Part<Cow<'de, str>>>()? {
            finalizers.ours |= entry.text() == FINALIZER;
            finalizers.odd |= entry.found().is_none();
        }
        Ok(Part::Found(finalizers))
    }
}

impl<'de> Shape<'de> for Owner<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut owner = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "apiVersion" => owner.api_version = map.next_value()?,
                "kind" => owner.kind = map.next_value()?,
                "controller" => owner.controller = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(owner))
    }
}

impl<'de> Shape<'de> for Spec<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut spec = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "restartPolicy" => spec.restart_policy = map.next_value()?,
                "terminationGracePeriodSeconds" => spec.grace = map.next_value()?,
                "readinessGates" => spec.gates = map.next_value()?,
                "containers" => spec.containers = map.next_value()?,
                "initContainers" => spec.init_containers = map.next_value()?,
                "os" => spec.os = map.next_value()?,
                "nodeSelector" => spec.node_selector = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(spec))
    }
}

impl<'de> Shape<'de> for Gate<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut gate = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "conditionType" => gate.condition_type = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(gate))
    }
}

impl<'de> Shape<'de> for Os<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut os = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "name" => os.name = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(os))
    }
}

impl<'de> Shape<'de> for Container<'de> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut container = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "name" => container.name = map.next_value()?,
                "lifecycle" => container.lifecycle = map.next_value()?,
                "livenessProbe" => container.liveness = map.next_value()?,
                "startupProbe" => container.startup = map.next_value()?,
                "readinessProbe" => container.readiness = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(container))
    }
}

impl<'de> Shape<'de> for Lifecycle {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut lifecycle = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "preStop" => lifecycle.pre_stop = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(lifecycle))
    }
}

impl<'de> Shape<'de> for Probe {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut probe = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            probe.keys += 1;
            match &*key {
                "terminationGracePeriodSeconds" => probe.grace = map.next_value()?,
                _ => skip(&mut map)?,
            }
        }
        Ok(Part::Found(probe))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r#"{"metadata":[]}"#, Some("metadata"))]
    #[case(r#"{"metadata":{"labels":{"a":1}},"spec":{}}"#, Some("metadata.labels"))]
    #[case(r#"{"metadata":{"labels":"x"},"spec":{}}"#, Some("metadata.labels"))]
    #[case(r#"{"metadata":{"annotations":"x"},"spec":{}}"#, Some("metadata.annotations"))]
    #[case(r#"{"metadata":{"annotations":{"a":1}},"spec":{}}"#, Some("metadata.annotations"))]
    #[case(r#"{"metadata":{"annotations":{"lockstep.dev/injected":1}},"spec":{}}"#, Some("metadata.annotations"))]
    #[case(r#"{"metadata":{"ownerReferences":"x"},"spec":{}}"#, Some("metadata.ownerReferences"))]
    #[case(r#"{"metadata":{"ownerReferences":[{"apiVersion":1}]},"spec":{}}"#, Some("metadata.ownerReferences[0]"))]
    #[case(r#"{"metadata":{"ownerReferences":[{},{"kind":1}]},"spec":{}}"#, Some("metadata.ownerReferences[1]"))]
    #[case(r#"{"metadata":{"ownerReferences":[{"controller":"true"}]},"spec":{}}"#, Some("metadata.ownerReferences[0]"))]
    #[case(r#"{"spec":{"os":"windows"}}"#, Some("spec.os"))]
    #[case(r#"{"spec":{"os":{"name":1}}}"#, Some("spec.os"))]
    #[case(r#"{"spec":{"nodeSelector":"x"}}"#, Some("spec.nodeSelector"))]
    #[case(r#"{"spec":{"nodeSelector":{"a":1}}}"#, Some("spec.nodeSelector"))]
    #[case(r#"{"spec":{"restartPolicy":1}}"#, Some("spec.restartPolicy"))]
    #[case(r#"{"spec":{"readinessGates":[{"conditionType":1}]}}"#, Some("spec.readinessGates[0]"))]
    #[case(r#"{"metadata":{"finalizers":"x"},"spec":{}}"#, Some("metadata.finalizers"))]
    #[case(r#"{"metadata":{"finalizers":[1]},"spec":{}}"#, Some("metadata.finalizers"))]
    #[case(r#"{"spec":"text"}"#, Some("spec"))]
    #[case(r#"{"spec":null}"#, Some("spec"))]
    #[case(r#"{"spec":{"terminationGracePeriodSeconds":30.0}}"#, Some("spec.terminationGracePeriodSeconds"))]
    #[case(r#"{"spec":{"containers":{}}}"#, Some("spec.containers"))]
    #[case(r#"{"spec":{"containers":[{},3]}}"#, Some("spec.containers[1]"))]
    #[case(r#"{"spec":{"containers":[{"name":1}]}}"#, Some("spec.containers[0].name"))]
    #[case(r#"{"spec":{"containers":[{"lifecycle":1}]}}"#, Some("spec.containers[0].lifecycle"))]
    #[case(r#"{"spec":{"containers":[{"lifecycle":{"preStop":[]}}]}}"#, Some("spec.containers[0].lifecycle.preStop"))]
    #[case(
        r#"{"spec":{"containers":[{"livenessProbe":{"terminationGracePeriodSeconds":"x"}}]}}"#,
        Some("spec.containers[0].livenessProbe")
    )]
    #[case(r#"{"spec":{"containers":[{"readinessProbe":1}]}}"#, Some("spec.containers[0].readinessProbe"))]
    #[case(r#"{"spec":{"initContainers":[{"startupProbe":1}]}}"#, Some("spec.initContainers[0].startupProbe"))]
    #[case(r#"{"spec":{"containers":[{"lifecycle":{"preStop":{"sleep":"x"}}}],"unknown":{"deep":[[{}]]}}}"#, None)]
    #[case(r#"{"spec":{"terminationGracePeriodSeconds":"x","terminationGracePeriodSeconds":5}}"#, None)]
    fn wrong_parts(#[case] json: &str, #[case] wanted: Option<&str>) {
        let pod: Part<Pod<'_>> = serde_json::from_str(json).unwrap();
        assert_eq!(pod.found().unwrap().wrong_part().as_deref(), wanted);
    }

    #[rstest]
    #[case(r#"{"metadata":{"name":"web-1","generateName":"web-"}}"#, "web-1")]
    #[case(r#"{"metadata":{"generateName":"web-"}}"#, "web-")]
    #[case(r#"{"metadata":{}}"#, "")]
    #[case("{}", "")]
    fn people_read_the_name_or_what_it_begins_with(#[case] json: &str, #[case] name: &str) {
        let pod: Part<Pod<'_>> = serde_json::from_str(json).unwrap();
        assert_eq!(pod.found().unwrap().name(), name);
    }

    #[rstest]
    #[case(r#"{"os":{"name":"windows"}}"#, true)]
    #[case(r#"{"os":{"name":"linux"}}"#, false)]
    #[case(r#"{"nodeSelector":{"kubernetes.io/os":"windows"}}"#, true)]
    #[case(r#"{"nodeSelector":{"kubernetes.io/os":"linux"}}"#, false)]
    #[case(r#"{"nodeSelector":{"os":"windows"}}"#, false)]
    #[case("{}", false)]
    fn windows_is_named_by_the_pod_or_its_node_selector(#[case] json: &str, #[case] windows: bool) {
        let spec: Part<Spec<'_>> = serde_json::from_str(json).unwrap();
        assert_eq!(spec.found().unwrap().is_windows(), windows);
    }

    #[rstest]
    #[case("null", false, false)]
    #[case("{}", false, false)]
    #[case(r#"{"httpGet":{}}"#, true, true)]
    #[case(r#"{"httpGet":{},"terminationGracePeriodSeconds":5}"#, true, false)]
    fn a_probe_is_there_and_waits(#[case] json: &str, #[case] there: bool, #[case] waits: bool) {
        let probe: Part<Probe> = serde_json::from_str(json).unwrap();
        assert_eq!((Probe::is_there(&probe), Probe::waits(&probe)), (there, waits));
    }
}
