//! The command line: the only reader of flags and environment.
//!
//! Parsed arguments are plain values; what they mean is decided where they are used.
//!
//! Invariant: no other file reads `std::env` or declares a flag.
//! Absent on purpose: defaults of the configuration (`config`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

/// Keeps external load balancers and service registries in lockstep with Kubernetes pods.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, propagate_version = true, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the admission webhook and the reconciler.
    Serve(Box<ServeArgs>),
    /// Show a pod as it would be admitted, offline.
    Inject(InjectArgs),
    /// Check a configuration: every error at its path and line.
    Check(CheckArgs),
    /// Show what pods wait for: a table, or the life of one pod.
    ///
    /// Asks only the API server, so it works without credentials for a registry. Pods are grouped by workload, the worst first.
    /// Exit code: 0 all is well, 1 a pod is stuck, 2 nothing could be read.
    Status(StatusArgs),
    /// Go through the cluster and name each broken link, with the change that mends it.
    ///
    /// Asks the API server and, through `kubectl exec` into a pod of Lockstep, the registries. Exit code: 0 nothing is wrong, 1 something
    /// is, 2 nothing could be read.
    Doctor(DoctorArgs),
    /// Break glass: let pods go, so that Lockstep holds nothing of them any more.
    Release(ReleaseArgs),
    /// Ask each registry of a configuration about its services, and change nothing: run it where the credentials are.
    ///
    /// `doctor` does so in a pod of Lockstep. Exit code: 0 every registry answered, 1 one did not, 2 the configuration is no such.
    #[command(after_long_help = REGISTRIES_EXAMPLES)]
    Registries(RegistriesArgs),
    /// Run the small durable registry of the http contract.
    ///
    /// It keeps services (sets of endpoints) and their targets (address, port and pod UID) in one file, and answers over plain HTTP
    /// with JSON. A proxy, a script or a person reads a listing, at once or when it changes; Lockstep writes it.
    /// A write that was answered survives a crash. The whole contract is docs/registry-http.openapi.yaml.
    #[command(after_long_help = REGISTRY_EXAMPLES)]
    Registry(RegistryArgs),
    /// Print completions for a shell.
    #[command(after_long_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Write the manual pages.
    Manual(ManualArgs),
}

/// Parses the command line. As `kubectl-lockstep` the program is a plugin of kubectl, and calls itself as people call it then.
pub fn parse() -> Arguments {
    let own_name = std::env::args_os().next().unwrap_or_default();
    let plugin = Path::new(&own_name).file_stem().is_some_and(|name| name == PLUGIN);
    let mut command = Arguments::command();
    if plugin {
        command = command.bin_name(AS_PLUGIN);
    }
    Arguments::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

/// Name of the program by which kubectl finds it as a plugin.
const PLUGIN: &str = "kubectl-lockstep";
/// The plugin as people call it.
const AS_PLUGIN: &str = "kubectl lockstep";

/// What `lockstep completions --help` teaches.
const COMPLETIONS_EXAMPLES: &str = "\
bash:
  lockstep completions bash > ~/.local/share/bash-completion/completions/lockstep
zsh, with a folder of $fpath:
  lockstep completions zsh > ~/.zfunc/_lockstep
fish:
  lockstep completions fish > ~/.config/fish/completions/lockstep.fish";

/// What `lockstep registries --help` teaches.
const REGISTRIES_EXAMPLES: &str = "\
With the configuration that is in force:
  kubectl get configmap lockstep-config -n lockstep-system -o 'jsonpath={.data.config\\.yaml}' |
    kubectl exec -i deployment/lockstep -n lockstep-system -- /lockstep registries -";

/// What `lockstep registry --help` teaches.
const REGISTRY_EXAMPLES: &str = "\
Try it:
  lockstep registry --listen 127.0.0.1:8080 --store ./registry.redb --log-format text

  # put a target in, as Lockstep would (200 again if it is there already)
  curl -X PUT -H 'Content-Type: application/json' -d '{\"state\":\"active\",\"cluster\":\"dev\"}' \\
    http://127.0.0.1:8080/v1/services/web/targets/10.1.2.3:8080/POD-UID
  # what is in, and then: wait until that changes (INDEX is in the last answer)
  curl http://127.0.0.1:8080/v1/services/web/targets
  curl 'http://127.0.0.1:8080/v1/services/web/targets?wait=30s&index=INDEX'
  # drain it, take it out
  curl -X PUT -H 'Content-Type: application/json' -d '{\"state\":\"draining\"}' \\
    http://127.0.0.1:8080/v1/services/web/targets/10.1.2.3:8080/POD-UID
  curl -X DELETE http://127.0.0.1:8080/v1/services/web/targets/10.1.2.3:8080/POD-UID

See pods wait: hold every acknowledgement back, then let them go
  curl -X PUT -H 'Content-Type: application/json' -d '{\"hold\":true}' http://127.0.0.1:8080/v1/behaviour
  curl -X PUT -H 'Content-Type: application/json' -d '{}' http://127.0.0.1:8080/v1/behaviour

Let Lockstep use it, in its ConfigMap:
  registries:
    - name: first
      http: { url: \"http://HOST:8080\" }";

/// How logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// One line for people.
    Text,
}

/// Form of printed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Logging of the long-running commands.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// What to log, as in `info,lockstep::reconcile=debug`.
    #[arg(long, env = "LOCKSTEP_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// How log lines look.
    #[arg(long, env = "LOCKSTEP_LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: LogFormat,
}

/// Flags of `lockstep serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Address of the HTTPS webhook.
    #[arg(long, env = "LOCKSTEP_LISTEN", default_value = "[::]:8443", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Address of /livez, /readyz and /metrics (plain HTTP).
    #[arg(long, env = "LOCKSTEP_PROBES_LISTEN", default_value = "[::]:8080", value_name = "ADDRESS")]
    pub probes_listen: SocketAddr,
    /// Our own namespace; pods in it are never injected.
    #[arg(long, env = "LOCKSTEP_NAMESPACE", default_value = crate::names::OWN_NAMESPACE, value_name = "NAMESPACE")]
    pub namespace: String,
    /// Name of this replica, as the Lease shows it.
    #[arg(long, env = "LOCKSTEP_POD_NAME", default_value = "lockstep", value_name = "NAME")]
    pub identity: String,
    /// ConfigMap with the configuration.
    #[arg(long, env = "LOCKSTEP_CONFIG_MAP", default_value = crate::names::CONFIG_MAP, value_name = "NAME")]
    pub config_map: String,
    /// Folder with tls.crt, tls.key and ca.crt that somebody else renews (cert-manager, a private PKI), instead of a CA of our own.
    #[arg(long, env = "LOCKSTEP_CERTIFICATE_FILES", value_name = "DIR")]
    pub certificate_files: Option<PathBuf>,
    /// Secret with our CA and serving certificate.
    #[arg(long, env = "LOCKSTEP_CERTIFICATE_SECRET", default_value = crate::names::CERTIFICATE_SECRET, value_name = "NAME")]
    pub certificate_secret: String,
    /// Service through which the API server calls the webhook; its names go into the certificate.
    #[arg(long, env = "LOCKSTEP_SERVICE", default_value = "lockstep", value_name = "NAME")]
    pub service: String,
    /// More names for the certificate, comma separated.
    #[arg(long, env = "LOCKSTEP_CERTIFICATE_NAMES", value_delimiter = ',', value_name = "NAME")]
    pub certificate_names: Vec<String>,
    /// File with the CA whose client certificates API servers must show (PEM, read again when it changes); without it anybody may ask.
    #[arg(long, env = "LOCKSTEP_CLIENT_CA", value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Names of which a client certificate must have one, as common name or DNS name, comma separated; without them any of the CA will do.
    #[arg(long, env = "LOCKSTEP_CLIENT_NAMES", value_delimiter = ',', requires = "client_ca", value_name = "NAME")]
    pub client_names: Vec<String>,
    /// MutatingWebhookConfiguration whose caBundle we keep.
    #[arg(long, env = "LOCKSTEP_WEBHOOK_CONFIGURATION", default_value = crate::names::WEBHOOK_CONFIGURATION, value_name = "NAME")]
    pub webhook_configuration: String,
    /// Seconds that a CA lives, instead of a year; for tests of its renewal.
    #[arg(long, env = "LOCKSTEP_CA_LIFE", hide = true, value_name = "SECONDS")]
    pub ca_life: Option<u64>,
    /// Seconds that a serving certificate lives, instead of a week; for tests of its renewal.
    #[arg(long, env = "LOCKSTEP_CERTIFICATE_LIFE", hide = true, value_name = "SECONDS")]
    pub certificate_life: Option<u64>,
    /// Seconds that a new CA is trusted before it issues, instead of an hour; for tests of its renewal.
    #[arg(long, env = "LOCKSTEP_CA_OVERLAP", hide = true, value_name = "SECONDS")]
    pub ca_overlap: Option<u64>,
    /// Folder with credential files that the configuration names.
    #[arg(long, env = "LOCKSTEP_CREDENTIALS", default_value = "/etc/lockstep/credentials", value_name = "DIR")]
    pub credentials: PathBuf,
    /// Collector of OpenTelemetry traces, by OTLP over HTTP: the registration and deregistration of each pod are told there. Without it nothing is.
    #[arg(long, env = "LOCKSTEP_TRACES", value_name = "URL", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub traces: Option<String>,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of `lockstep inject`.
#[derive(Args, Debug)]
pub struct InjectArgs {
    /// The configuration (the text of config.yaml).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// What to inject: a Pod, a workload, a List, several documents, or an AdmissionReview; `-` reads standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE|-")]
    pub file: PathBuf,
    /// Form of the output; the input's own form if left out.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Print the RFC 6902 patch of one object instead.
    #[arg(long, conflicts_with = "explain")]
    pub patch: bool,
    /// Print why instead: reason, bindings, the sums, findings.
    #[arg(long)]
    pub explain: bool,
    /// Version of the API server and of every node, as they report it.
    #[arg(long, value_name = "VERSION", default_value = "1.34")]
    pub kubernetes_version: String,
    /// Drain delay that the registry of a binding has answered, as in `web=300s`; may be repeated.
    #[arg(long, value_name = "BINDING=DURATION")]
    pub drain_delay: Vec<String>,
}

/// Flags of `lockstep check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The configuration: the text of config.yaml, or a ConfigMap manifest that holds it; `-` reads standard input.
    #[arg(value_name = "FILE|-", required_unless_present = "schema")]
    pub file: Option<PathBuf>,
    /// Form of the output; lines for people if left out.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Print the JSON Schema of the configuration instead.
    #[arg(long, conflicts_with = "file")]
    pub schema: bool,
}

/// Flags of `lockstep registries`.
#[derive(Args, Debug)]
pub struct RegistriesArgs {
    /// The text of config.yaml; `-` reads standard input.
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// Form of the output; a line a service if left out.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Directory of the credential files.
    #[arg(long, env = "LOCKSTEP_CREDENTIALS", default_value = "/etc/lockstep/credentials", value_name = "DIR")]
    pub credentials: PathBuf,
}

/// Which cluster, and which namespace of it, as kubectl has them.
#[derive(Args, Debug)]
pub struct AccessArgs {
    /// The kubeconfig, instead of $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace, instead of the context's.
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Namespace of Lockstep itself.
    #[arg(long, env = "LOCKSTEP_NAMESPACE", default_value = crate::names::OWN_NAMESPACE, value_name = "NAMESPACE")]
    pub own_namespace: String,
}

/// Flags of `lockstep status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Show the life of this pod, as `NAME` or `NAMESPACE/NAME`.
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// Pods of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["pod", "namespace"])]
    pub all_namespaces: bool,
    /// Only pods of this workload, as `NAME` or `KIND/NAME`.
    #[arg(long, value_name = "WORKLOAD", conflicts_with = "pod")]
    pub workload: Option<String>,
    /// Only pods that belong into this registry.
    #[arg(long, value_name = "NAME", conflicts_with = "pod")]
    pub registry: Option<String>,
    /// Only pods in this state, as in `Registering`.
    #[arg(long, value_name = "REASON", conflicts_with = "pod")]
    pub reason: Option<String>,
    /// Form of the output; for people if left out.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Follow what happens, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
    /// Print the JSON Schema of `--output` instead.
    #[arg(long, exclusive = true)]
    pub schema: bool,
    /// Which cluster.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Flags of `lockstep doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Form of the output; for people if left out.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Print the JSON Schema of `--output` instead.
    #[arg(long, exclusive = true)]
    pub schema: bool,
    /// Do not ask the registries: it takes `kubectl`, and the right to exec into a pod of Lockstep.
    #[arg(long)]
    pub without_registries: bool,
    /// Which cluster; with a namespace only its workloads are looked at, else those of every opted-in namespace.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Flags of `lockstep release`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("which").required(true).args(["pods", "workload", "whole_namespace", "all"])))]
pub struct ReleaseArgs {
    /// Pods to let go, as `NAME` or `NAMESPACE/NAME`.
    #[arg(value_name = "POD")]
    pub pods: Vec<String>,
    /// Every pod of this workload, as `NAME` or `KIND/NAME`, in the namespace.
    #[arg(long, value_name = "WORKLOAD")]
    pub workload: Option<String>,
    /// Every pod of this namespace.
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "namespace")]
    pub whole_namespace: Option<String>,
    /// Every pod of the cluster, after deleting the webhook configuration and taking the Lease: the way to take Lockstep out.
    #[arg(long)]
    pub all: bool,
    /// Say what would be done and what would be lost, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask, also on a terminal.
    #[arg(short, long)]
    pub yes: bool,
    /// Which cluster.
    #[command(flatten)]
    pub access: AccessArgs,
    /// MutatingWebhookConfiguration to delete with --all.
    #[arg(long, env = "LOCKSTEP_WEBHOOK_CONFIGURATION", default_value = crate::names::WEBHOOK_CONFIGURATION, value_name = "NAME")]
    pub webhook_configuration: String,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Whether output may have colours: not where somebody has set `NO_COLOR` (<https://no-color.org>), or the terminal is dumb.
#[expect(clippy::disallowed_methods, reason = "this file reads the environment")]
pub fn colours_allowed() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Shells that completions are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash, 4 or newer.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
}

impl Shell {
    /// What makes them.
    pub fn generator(self) -> clap_complete::Shell {
        match self {
            Self::Bash => clap_complete::Shell::Bash,
            Self::Zsh => clap_complete::Shell::Zsh,
            Self::Fish => clap_complete::Shell::Fish,
        }
    }
}

/// Flags of `lockstep completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
    /// Name of the program that is completed.
    #[arg(long, default_value = "lockstep", value_name = "NAME")]
    pub name: String,
}

/// Flags of `lockstep manual`.
#[derive(Args, Debug)]
pub struct ManualArgs {
    /// Folder that gets the pages.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Flags of `lockstep registry`.
#[derive(Args, Debug)]
pub struct RegistryArgs {
    /// Address of the HTTP API.
    #[arg(long, env = "LOCKSTEP_REGISTRY_LISTEN", default_value = "[::]:8080", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// File of the durable store.
    #[arg(long, env = "LOCKSTEP_REGISTRY_STORE", default_value = "/var/lib/lockstep/registry.redb", value_name = "FILE")]
    pub store: PathBuf,
    /// File with the bearer tokens that callers must show, one a line; without it every caller is let in.
    #[arg(long, env = "LOCKSTEP_REGISTRY_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM file of the certificate to serve, with its chain; without it the server speaks plain HTTP. Followed when it changes.
    #[arg(long, env = "LOCKSTEP_REGISTRY_TLS_CERTIFICATE", value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// PEM file of its key.
    #[arg(long, env = "LOCKSTEP_REGISTRY_TLS_KEY", value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Take targets only for services that were made with a PUT; without it a service is there once somebody names it.
    #[arg(long, env = "LOCKSTEP_REGISTRY_REQUIRE_SERVICES")]
    pub require_services: bool,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}
