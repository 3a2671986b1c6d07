//! The JSON Schema of `config.yaml`, for editors and for the documentation.
//!
//! The types here have the shape of the text; the parser asks for the same keys with better errors than a schema can give.
//! Tests hold the two against each other: the same keys in each place, the same words for each choice, the same defaults.
//!
//! Invariant: `docs/configuration.schema.json` is what [`schema`] gives.
//! Absent on purpose: rules across several keys; those are the parser's.
#![expect(dead_code, reason = "the fields are read by the derive alone")]

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::names::{CONFIG_API_VERSION, CONFIG_KIND};

/// The schema as JSON for people, with a line break at the end.
pub fn schema() -> String {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Configuration>();
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema always serialises");
    text.push('\n');
    text
}

/// Configuration of Lockstep: the text of the ConfigMap's key `config.yaml`.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    /// Version of this format.
    api_version: ApiVersion,
    /// Always `Configuration`.
    kind: Kind,
    /// Name of this cluster; it is stamped on targets in shared registries.
    cluster: Name,
    /// What admission changes on pods.
    injection: Option<Injection>,
    /// How long registration waits for what.
    registration: Option<Registration>,
    /// The external systems that hold endpoints.
    registries: Option<Vec<Registry>>,
    /// Which pods belong in which service of which registry.
    bindings: Option<Vec<Binding>>,
}

/// The one version.
struct ApiVersion;

impl JsonSchema for ApiVersion {
    fn schema_name() -> Cow<'static, str> {
        "ApiVersion".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "enum": [CONFIG_API_VERSION]})
    }
}

/// The one kind.
struct Kind;

impl JsonSchema for Kind {
    fn schema_name() -> Cow<'static, str> {
        "Kind".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "enum": [CONFIG_KIND]})
    }
}

/// What admission changes on pods.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Injection {
    /// Form of the injected sleep: native where API server and nodes are 1.30 or newer and the command `sleep` below that; always the
    /// command; or none.
    #[schemars(extend("default" = "auto"))]
    pre_stop: Option<PreStop>,
    /// Added to the drain delay: the time until the registry has been told, a change of leader included. At least the lease's 12s.
    #[schemars(extend("default" = "15s"))]
    margin: Option<Duration>,
    /// No sleep is longer.
    #[schemars(extend("default" = "6m"))]
    max_sleep: Option<Duration>,
    /// No grace period is raised above; cluster-autoscaler waits 600s.
    #[schemars(extend("default" = "570s"))]
    max_grace: Option<Duration>,
    /// What happens to liveness and startup probes without a grace period of their own: they get the pod's own one, or are left.
    #[schemars(extend("default" = "bound"))]
    probe_grace: Option<ProbeGrace>,
    /// Namespaces that are never injected, besides the cluster's own and Lockstep's.
    #[schemars(extend("default" = []))]
    excluded_namespaces: Option<Vec<Namespace>>,
}

/// `off` and `false` are other spellings of `none`.
struct PreStop;

impl JsonSchema for PreStop {
    fn schema_name() -> Cow<'static, str> {
        "PreStop".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "`off` and `false` are other spellings of `none`.", "enum": ["auto", "exec", "none", "off", false]})
    }
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum ProbeGrace {
    Bound,
    Keep,
}

/// How long registration waits for what.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Registration {
    /// How long a register may go unacknowledged before a Warning event, and what `onGateTimeout` says.
    #[schemars(extend("default" = "8m"))]
    gate_timeout: Option<Duration>,
    /// Then: hold the pod, or open the gate.
    #[schemars(extend("default" = "hold"))]
    on_gate_timeout: Option<OnGateTimeout>,
    /// How long letting go may take once the containers are gone, before a Warning event and what `onDrainTimeout` says.
    #[schemars(extend("default" = "10m"))]
    drain_timeout: Option<Duration>,
    /// Then: hold the pod, or release it into the debts.
    #[schemars(extend("default" = "hold"))]
    on_drain_timeout: Option<OnDrainTimeout>,
    /// How long a forced deletion is held at most.
    #[schemars(extend("default" = "30s"))]
    force_timeout: Option<Duration>,
    /// After the deletion timestamp, containers that nobody reported gone count as gone after this long.
    #[schemars(extend("default" = "60s"))]
    unreachable_after: Option<Duration>,
    /// Share of a service's targets that must stay undrained.
    #[schemars(extend("default" = "50%"))]
    panic_threshold: Option<Percentage>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum OnGateTimeout {
    Hold,
    Open,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum OnDrainTimeout {
    Hold,
    Release,
}

/// One external system: a name and exactly one driver.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["aws"]}, {"required": ["consul"]}, {"required": ["haproxy"]}, {"required": ["http"]}]))]
struct Registry {
    /// Name that bindings use.
    name: Name,
    /// AWS ELBv2 target groups of the type `ip`.
    aws: Option<Aws>,
    /// Consul's catalog.
    consul: Option<Consul>,
    /// HAProxy's runtime API.
    haproxy: Option<Haproxy>,
    /// The open HTTP contract.
    http: Option<Http>,
}

/// AWS ELBv2 target groups.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Aws {
    /// Region of the target groups.
    region: String,
    /// Another endpoint of the API, for private links and tests.
    endpoint: Option<Url>,
    /// ARN of a role to assume.
    assume_role: Option<String>,
}

/// Consul's catalog.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Consul {
    /// URL of the HTTP API.
    address: Url,
    /// Credential file with the ACL token.
    token: Option<Credential>,
    /// Credential file with the CA.
    ca: Option<Credential>,
}

/// HAProxy's runtime API.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Haproxy {
    /// Runtime API of each instance: `host:port` or `unix:/path`.
    addresses: Vec<String>,
    /// An instance that cannot be reached for this long is counted out as long as another one acknowledges.
    #[schemars(extend("default" = "30s"))]
    instance_timeout: Option<Duration>,
    /// Where the API speaks TLS.
    tls: Option<Tls>,
}

/// TLS towards an instance.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Tls {
    /// Credential file with the CA.
    ca: Credential,
}

/// The open HTTP contract.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Http {
    /// Base URL of the registry.
    url: Url,
    /// Credential file with the bearer token.
    token: Option<Credential>,
    /// Credential file with the CA.
    ca: Option<Credential>,
}

/// These pods belong in that service of that registry, on this port.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Binding {
    /// Name of the binding; the record and the events of its pods show it.
    name: Name,
    /// Namespaces of its pods, or `["*"]` for all that are opted in.
    #[schemars(length(min = 1))]
    namespaces: Vec<String>,
    /// Which pods of those namespaces; all where it is left out.
    pod_selector: Option<Selector>,
    /// Name of one of the registries.
    registry: Name,
    /// The registry's name for the service: a target group's ARN, a Consul service, an HAProxy backend.
    service: String,
    /// Container port by number or name.
    port: Port,
    /// Whether Lockstep registers, or only waits on what another controller registers.
    #[schemars(extend("default" = "own"))]
    mode: Option<Mode>,
    /// Whether the registry's report that the target is active opens the gate, or already its taking of the change.
    #[schemars(extend("default" = "acknowledged"))]
    ack: Option<Ack>,
    /// What happens to the target of a pod that is not ready: `keep` is the default on aws, `drain` elsewhere.
    on_unready: Option<OnUnready>,
    /// What happens to the target of a pod that the binding no longer selects.
    #[schemars(extend("default" = "keep"))]
    on_unbound: Option<OnUnbound>,
    /// How long the outside may still send traffic; required except on aws.
    drain: Option<Drain>,
    /// Which of the pod's addresses; on aws `auto` is the target group's.
    #[schemars(extend("default" = "auto"))]
    family: Option<Family>,
    /// Share of the traffic (haproxy).
    #[schemars(extend("default" = 100), range(min = 1, max = 256))]
    weight: Option<u16>,
    /// Whether servers are added, or fill the slots of a `server-template` (haproxy).
    #[schemars(extend("default" = "dynamic"))]
    servers: Option<Servers>,
    /// Whether the backend checks its servers (haproxy).
    #[schemars(extend("default" = true))]
    check: Option<bool>,
    /// Whether every target of the service is ours, so that unclaimed ones may be removed (aws).
    #[schemars(extend("default" = false))]
    exclusive: Option<bool>,
    /// States that count as active too, with their reason codes, as in `unused/Target.NotInUse` (aws).
    #[schemars(extend("default" = []))]
    accept_states: Option<Vec<String>>,
    /// When a target counts as gone once the containers are (aws).
    #[schemars(extend("default" = "draining"))]
    gone_when: Option<GoneWhen>,
}

/// A label selector with the meaning that Kubernetes gives it.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Selector {
    /// Labels that must have these values.
    match_labels: Option<BTreeMap<String, String>>,
    /// Further requirements.
    match_expressions: Option<Vec<Expression>>,
}

/// One requirement of a selector.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Expression {
    /// Key of a label.
    key: String,
    /// What must hold of it.
    operator: Operator,
    /// Values of `In` and `NotIn`.
    values: Option<Vec<String>>,
}

#[derive(JsonSchema)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum Mode {
    Own,
    Observe,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum Ack {
    Acknowledged,
    Accepted,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum OnUnready {
    Drain,
    Keep,
    Deregister,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum OnUnbound {
    Keep,
    Deregister,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum Family {
    Auto,
    Ipv4,
    Ipv6,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum Servers {
    Dynamic,
    Template,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum GoneWhen {
    Absent,
    Draining,
}

/// How long the outside may still send traffic to a target after it was drained or deregistered; one of the three.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["from"]}, {"required": ["fixed"]}, {"required": ["healthCheck"]}]))]
struct Drain {
    /// The registry says it (aws, http).
    from: Option<From>,
    /// What counts until the registry has answered, and once its answer is an hour old; 300s on aws, required on http.
    fallback: Option<Duration>,
    /// This long.
    fixed: Option<Duration>,
    /// For outsiders that only poll: interval x threshold + timeout.
    health_check: Option<HealthCheck>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum From {
    Registry,
}

/// How an outsider polls.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct HealthCheck {
    /// Time between two polls.
    interval: Duration,
    /// Failed polls until it stops sending.
    #[schemars(range(min = 1, max = 1000))]
    unhealthy_threshold: u32,
    /// Time until a poll has failed.
    timeout: Duration,
}

/// A duration, as in `30s`, `1m30s` or `500ms`.
struct Duration;

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "A duration, as in `30s`, `1m30s` or `500ms`.", "type": "string", "pattern": "^(0|([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|ms|s|m|h)(([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|ms|s|m|h))*)$"})
    }
}

/// A whole percentage, as in `50%`.
struct Percentage;

impl JsonSchema for Percentage {
    fn schema_name() -> Cow<'static, str> {
        "Percentage".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "A whole percentage, as in `50%`.", "type": "string", "pattern": "^(100|[0-9]{1,2})%$"})
    }
}

/// Letters, digits, `-`, `_` and `.`.
struct Name;

impl JsonSchema for Name {
    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "Letters, digits, `-`, `_` and `.`.", "type": "string", "pattern": "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", "maxLength": 63})
    }
}

/// Name of a namespace.
struct Namespace;

impl JsonSchema for Namespace {
    fn schema_name() -> Cow<'static, str> {
        "Namespace".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "Name of a namespace.", "type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63})
    }
}

/// An http or https URL without credentials, query or fragment.
struct Url;

impl JsonSchema for Url {
    fn schema_name() -> Cow<'static, str> {
        "Url".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "An http or https URL without credentials, query or fragment.", "type": "string", "pattern": "^https?://[^@?#]+$"})
    }
}

/// Name of a file in the credentials directory; never a path, never the secret.
struct Credential;

impl JsonSchema for Credential {
    fn schema_name() -> Cow<'static, str> {
        "Credential".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "Name of a file in the credentials directory; never a path, never the secret.", "type": "string", "pattern": "^[A-Za-z0-9_-][-A-Za-z0-9_.]*$", "maxLength": 253})
    }
}

/// A container port's number, or its name.
struct Port;

impl JsonSchema for Port {
    fn schema_name() -> Cow<'static, str> {
        "Port".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A container port's number, or its name.",
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 65535},
                {"type": "string", "pattern": "^[a-z0-9-]*[a-z][a-z0-9-]*$", "maxLength": 15}
            ]
        })
    }
}
