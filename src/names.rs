//! Every string that Lockstep puts on the wire, once.
//!
//! Chart, README and code must agree on these; a name that stood twice could drift apart in silence.
//!
//! Invariant: a string of ours that another program can see is a constant of this file and is spelled nowhere else in `src/`.
//! Absent on purpose: reasons and findings (closed enums beside the code that decides them) and metric names (`metrics.rs`).

/// Namespace label that opts a namespace in ([`INJECT_ENABLED`] or [`INJECT_STRICT`]); on a pod, [`INJECT_DISABLED`] opts that pod out.
pub const INJECT_LABEL: &str = "lockstep.dev/inject";
/// Value of [`INJECT_LABEL`] on a namespace: admission fails open.
pub const INJECT_ENABLED: &str = "enabled";
/// Value of [`INJECT_LABEL`] on a namespace: admission fails closed.
pub const INJECT_STRICT: &str = "strict";
/// Value of [`INJECT_LABEL`] on a pod: this one pod is left alone.
pub const INJECT_DISABLED: &str = "disabled";

/// Pod label, added at injection; the reconciler's watch selects on it.
pub const MANAGED_LABEL: &str = "lockstep.dev/managed";
/// The one value of [`MANAGED_LABEL`].
pub const MANAGED_VALUE: &str = "true";
/// Pod annotation: the record of what was injected.
pub const RECORD_ANNOTATION: &str = "lockstep.dev/injected";
/// Pod annotation: `lockstep release` let this pod go; it is left alone from then on.
pub const RELEASED_ANNOTATION: &str = "lockstep.dev/released";
/// The one value of [`RELEASED_ANNOTATION`].
pub const RELEASED_VALUE: &str = "true";

/// Readiness gate, a pod condition type: the registries have acknowledged every target of the pod.
pub const GATE: &str = "lockstep.dev/registered";
/// Finalizer that holds the pod object until the registries have let its targets go.
pub const FINALIZER: &str = "lockstep.dev/deregistered";
/// Pod condition type whose message holds the pod's claims.
pub const CLAIMS: &str = "lockstep.dev/targets";

/// `apiVersion` of the configuration.
pub const CONFIG_API_VERSION: &str = "lockstep.dev/v1alpha1";
/// `kind` of the configuration.
pub const CONFIG_KIND: &str = "Configuration";
/// The one key of the ConfigMap.
pub const CONFIG_KEY: &str = "config.yaml";

/// Default of our own namespace; pods in it are never injected.
pub const OWN_NAMESPACE: &str = "lockstep-system";
/// Default name of the ConfigMap with the configuration.
pub const CONFIG_MAP: &str = "lockstep-config";
/// Default name of our webhook configurations.
pub const WEBHOOK_CONFIGURATION: &str = "lockstep";
/// Default name of the Secret of our own CA.
pub const CERTIFICATE_SECRET: &str = "lockstep-certificate";
/// ConfigMap of claims whose pods are gone.
pub const DEBTS_CONFIG_MAP: &str = "lockstep-debts";
/// The one key of [`DEBTS_CONFIG_MAP`].
pub const DEBTS_KEY: &str = "debts";
/// ConfigMap that keeps the last good configuration text.
pub const LAST_GOOD_CONFIG_MAP: &str = "lockstep-last-good";
/// Lease that names the replica that reconciles.
pub const LEASE: &str = "lockstep";
/// Holder of [`LEASE`] after `lockstep release --all`.
pub const RELEASE_HOLDER: &str = "lockstep-release";
/// Path of the mutating webhook.
pub const MUTATE_PATH: &str = "/mutate";
/// Path of the validating webhook of our ConfigMap.
pub const VALIDATE_PATH: &str = "/validate";
/// `reportingComponent` of our Events and field manager of our writes.
pub const COMPONENT: &str = "lockstep";
