//! Wiring of serve: start order, then stop order, top to bottom.
//!
//! Invariant: nothing listens before it can answer, save the probes, which say what is still missing.
//! Invariant: a stop closes the webhook to new work first and gives the Lease back, and the probes go last.
//! Absent on purpose: what the parts do.

mod configuration;
pub mod rights;
mod snapshot;
mod tasks;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use arc_swap::ArcSwapOption;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::admission::Snapshot;
use crate::args::ServeArgs;
use crate::certificates::Source;
use crate::certificates::authority::{Lifetimes, Wanted};
use crate::certificates::bundle::{Bundle, Kind, Origin, Seen};
use crate::certificates::callers::Callers;
use crate::certificates::files::Files;
use crate::certificates::keeper::Keeper;
use crate::config::Configuration;
use crate::metrics::Metrics;
use crate::probes::{self, Readiness};
use crate::reconcile::kubernetes::{Api, KubeCluster, Own};
use crate::reconcile::tokio_clock::TokioClock;
use crate::reconcile::{self, Options};
use crate::registry::delays::{self, Known};
use crate::registry::driver::Opener;
use crate::server::body::{BODY_TIME, Bodies};
use crate::server::validate::Ours;
use crate::server::webhook::{self, Webhook};
use crate::server::{Limits, Server, Transport};
use crate::telemetry;
use crate::traces::Traces;
use crate::traces::exporter::{DROPPED, Exporter, Exporting};

use tasks::Tasks;

/// After the webhook has stopped, the reconciler may take this long to finish a step and give its Lease back.
const RECONCILER_STOP: Duration = Duration::from_secs(8);

/// Runs `lockstep serve` until it is told to stop.
pub async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    // Start.
    telemetry::start(&args.log)?;
    let told = stop_signal()?;
    let parts = Parts::new(&args).await?;
    let (stop_work, work_stopped) = watch::channel(false);
    let (stop_probes, probes_stopped) = watch::channel(false);
    let mut tasks = Tasks::default();
    let probes = tokio::spawn(parts.probes(&args).await?.run(stopped(probes_stopped)));
    parts.start_review_of_rights(&args);
    parts.start_certificates(&args, &mut tasks)?;
    let (configuration, delays) = parts.start_inputs(&args, &mut tasks);
    parts.start_snapshot(&args, configuration, delays, &mut tasks);
    let callers = start_callers(&args, &mut tasks).await?;
    let webhook = tokio::spawn(parts.webhook(&args, callers).await?.run(stopped(work_stopped.clone())));
    let (traces, exporter) = parts.start_traces(&args)?;
    let reconciler = tokio::spawn(parts.reconciler(&args, traces, stopped(work_stopped)));
    tracing::info!("started");

    // Run.
    let (mut probes, mut webhook, mut reconciler) = (probes, webhook, reconciler);
    let dead = tokio::select! {
        () = told => None,
        name = tasks.ended() => Some(name),
        () = parts.clock.task_died() => Some("a task of the reconciler"),
        _ = &mut probes => Some("probes"),
        _ = &mut webhook => Some("webhook"),
        _ = &mut reconciler => Some("reconciler"),
    };
    if let Some(name) = dead {
        tracing::error!(operation = name, "a part has died; the process ends");
        bail!("{name} has died");
    }

    // Stop.
    tracing::info!("stopping");
    parts.readiness.stopping.store(true, Ordering::Relaxed);
    stop_work.send_replace(true);
    let _ = webhook.await;
    if tokio::time::timeout(RECONCILER_STOP, reconciler).await.is_err() {
        tracing::warn!("the reconciler did not stop in time; its Lease runs out by itself");
    }
    tasks.end().await;
    exporter.finish().await;
    stop_probes.send_replace(true);
    let _ = probes.await;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// What more than one part needs.
struct Parts {
    api: Api,
    cluster: KubeCluster,
    clock: TokioClock,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    snapshot: Arc<ArcSwapOption<Snapshot>>,
    opener: Opener,
}

impl Parts {
    async fn new(args: &ServeArgs) -> anyhow::Result<Self> {
        let clock = TokioClock::start();
        let api = Api::connect().await.context("no access to a cluster")?;
        let own = Own { namespace: args.namespace.clone(), identity: args.identity.clone(), config_map: args.config_map.clone() };
        let metrics = Arc::new(Metrics::new());
        let instances_out = metrics.reconcile.registry_instances_out.clone();
        Ok(Self {
            cluster: KubeCluster::new(api.clone(), clock.clone(), own),
            api,
            clock,
            metrics,
            readiness: Arc::new(Readiness::default()),
            snapshot: Arc::new(ArcSwapOption::empty()),
            opener: Opener::new(args.credentials.clone(), instances_out),
        })
    }

    async fn probes(&self, args: &ServeArgs) -> anyhow::Result<Server> {
        let router = probes::router(self.readiness.clone(), self.metrics.clone());
        let limits = Limits { linger: Duration::ZERO, ..Limits::default() };
        let listener = listen(args.probes_listen).await?;
        Ok(Server { listener, transport: Transport::Plain, router, limits, open: Default::default() })
    }

    /// Beside everything else: it only says what is missing.
    fn start_review_of_rights(&self, args: &ServeArgs) {
        let (api, namespace, metrics) = (self.api.clone(), args.namespace.clone(), self.metrics.clone());
        let own_certificate = args.certificate_files.is_none();
        tokio::spawn(async move { rights::review(api, namespace, own_certificate, &metrics).await });
    }

    fn start_certificates(&self, args: &ServeArgs, tasks: &mut Tasks) -> anyhow::Result<()> {
        let (source, origin) = self.certificate_source(args)?;
        let (bundle, wanted_bundle) = watch::channel(None);
        let mut seen = Vec::new();
        for kind in [Kind::Mutating, Kind::Validating] {
            let (tell, told) = watch::channel(Seen::Nothing);
            let name = args.webhook_configuration.clone();
            let (api, clock, namespace) = (self.api.clone(), self.clock.clone(), args.namespace.clone());
            let healer = Bundle { api, clock, kind, name, namespace, origin: origin.clone() };
            tasks.start("caBundle", healer.run(wanted_bundle.clone(), tell));
            seen.push(told);
        }
        tasks.start("certificates", source.run(bundle, seen));
        Ok(())
    }

    fn certificate_source(&self, args: &ServeArgs) -> anyhow::Result<(Source, Origin)> {
        let (serving, metrics, clock) = (self.readiness.certificate.clone(), self.metrics.clone(), self.clock.clone());
        if let Some(folder) = args.certificate_files.clone() {
            // Whoever makes the files need not know the names by which no API server calls.
            let wanted = Wanted::new(certificate_names(args)[..1].to_vec(), lifetimes(args))?;
            return Ok((Source::Files(Files { folder, clock, wanted, serving, metrics }), Origin::Replicas));
        }
        let keeper = Keeper {
            api: self.api.clone(),
            clock,
            namespace: args.namespace.clone(),
            secret: args.certificate_secret.clone(),
            wanted: Wanted::new(certificate_names(args), lifetimes(args))?,
            serving,
            metrics,
        };
        let origin = Origin::Secret(keeper.path());
        Ok((Source::SelfManaged(keeper), origin))
    }

    fn start_inputs(&self, _args: &ServeArgs, tasks: &mut Tasks) -> (watch::Receiver<Option<Arc<Configuration>>>, watch::Receiver<Known>) {
        let (current, configuration) = watch::channel(None);
        let (cluster, readiness) = (self.cluster.clone(), self.readiness.clone());
        tasks.start("configuration", configuration::Follower { cluster, readiness, current }.run());
        let (known, delays) = watch::channel(Known::default());
        let opener = Arc::new(self.opener.clone());
        let answers = delays::Answers { known, metrics: self.metrics.delays.clone() };
        tasks.start("drain delays", delays::run(opener, self.clock.clone(), configuration.clone(), answers));
        (configuration, delays)
    }

    fn start_snapshot(
        &self,
        args: &ServeArgs,
        configuration: watch::Receiver<Option<Arc<Configuration>>>,
        delays: watch::Receiver<Known>,
        tasks: &mut Tasks,
    ) {
        let maker = snapshot::Maker {
            api: self.api.clone(),
            cluster: self.cluster.clone(),
            clock: self.clock.clone(),
            own_namespace: args.namespace.as_str().into(),
            configuration,
            delays,
            readiness: self.readiness.clone(),
            snapshot: self.snapshot.clone(),
        };
        tasks.start("snapshot", maker.run());
    }

    async fn webhook(&self, args: &ServeArgs, callers: Option<Arc<Callers>>) -> anyhow::Result<Server> {
        let state = Webhook {
            snapshot: self.snapshot.clone(),
            bodies: Bodies::new(BODY_TIME),
            ours: Ours { namespace: args.namespace.clone(), name: args.config_map.clone() },
            metrics: self.metrics.clone(),
        };
        let transport = Transport::Tls(Arc::new(self.readiness.certificate.clone().tls(callers)));
        let (listener, router) = (listen(args.listen).await?, webhook::router(Arc::new(state)));
        Ok(Server { listener, transport, router, limits: Limits::default(), open: self.metrics.connections.clone() })
    }

    /// Where handshakes are told, and who sends them on.
    fn start_traces(&self, args: &ServeArgs) -> anyhow::Result<(Traces, Exporting)> {
        let Some(collector) = &args.traces else { return Ok((Traces::default(), Exporting::default())) };
        let exporter = Exporter::new(collector, &args.identity, self.metrics.traced.clone())?;
        let (traces, spans) = Traces::open(self.metrics.traced.get_or_create(&DROPPED).clone());
        Ok((traces, exporter.start(spans)))
    }

    fn reconciler(
        &self,
        args: &ServeArgs,
        traces: Traces,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (identity, namespace) = (args.identity.clone(), args.namespace.as_str().into());
        let options = Options { identity, namespace, filled: self.readiness.caches.clone(), traces };
        reconcile::run(self.cluster.clone(), self.opener.clone(), self.clock.clone(), options, self.metrics.clone(), stop)
    }
}

/// Who may call; `None` where everybody may.
async fn start_callers(args: &ServeArgs, tasks: &mut Tasks) -> anyhow::Result<Option<Arc<Callers>>> {
    let Some(file) = args.client_ca.clone() else { return Ok(None) };
    let names = args.client_names.iter().filter(|name| !name.is_empty()).cloned().collect();
    let callers = Arc::new(Callers::open(file, names).await?);
    tasks.start("callers", callers.clone().run());
    Ok(Some(callers))
}

/// Names by which API servers call us, and those that were asked for.
fn certificate_names(args: &ServeArgs) -> Vec<String> {
    let (service, namespace) = (&args.service, &args.namespace);
    let mut names = vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
    names.extend(args.certificate_names.iter().filter(|name| !name.is_empty()).cloned());
    names
}

fn lifetimes(args: &ServeArgs) -> Lifetimes {
    let usual = Lifetimes::default();
    Lifetimes {
        ca: args.ca_life.map_or(usual.ca, Duration::from_secs),
        serving: args.certificate_life.map_or(usual.serving, Duration::from_secs),
        overlap: args.ca_overlap.map_or(usual.overlap, Duration::from_secs),
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

async fn stopped(mut told: watch::Receiver<bool>) {
    // An error means that whoever tells is gone: stop as well.
    let _ = told.wait_for(|told| *told).await;
}
