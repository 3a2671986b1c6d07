//! The HTTP server: accept loop, TLS, limits, graceful stop.
//!
//! API servers call webhooks over HTTP/1.1, so this speaks just that. The loop is our own because every stage of a connection needs a
//! limit: a client that connects and says nothing must cost a bounded time and a bounded slot.
//!
//! Invariant: every stage of a connection ends by itself: handshake, head, body, answer, idling.
//! Invariant: a stop answers what was asked, and tells each client to come back elsewhere (`Connection: close`).
//! Absent on purpose: what is answered (`webhook`, `probes`).

pub mod body;
mod crowd;
mod patience;
pub mod validate;
pub mod webhook;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crowd::Crowd;
use patience::{Patient, Phase};

/// Connections at the same time; for one more a silent one is closed. A few thousand nodes' API servers keep far fewer open.
pub const CONNECTIONS: usize = 1024;
/// A TLS handshake is over after this long.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// From the first byte of a request, or from the handshake, to the end of its head.
pub const HEAD_TIME: Duration = Duration::from_secs(5);
/// Between two requests; longer than the 90 s of an API server, so that it is the client who closes and no request meets a closed door.
pub const IDLE_TIME: Duration = Duration::from_secs(120);
/// An answer that the client does not take is given up after this long.
pub const WRITE_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request's head: an API server sends a few hundred.
pub const HEAD_BYTES: usize = 32 << 10;
/// Bytes that are read ahead of a connection; a head must fit with room to spare.
const READ_BYTES: usize = 2 * HEAD_BYTES;
/// After the order to stop, new connections are still taken for this long: endpoints need a moment to be forgotten everywhere.
pub const LINGER_TIME: Duration = Duration::from_secs(3);
/// Then what was asked may take this long to be answered.
pub const FINISH_TIME: Duration = Duration::from_secs(10);
/// Pause after an accept that failed (no file descriptors, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// See [`CONNECTIONS`].
    pub connections: usize,
    /// See [`HANDSHAKE_TIME`].
    pub handshake: Duration,
    /// See [`HEAD_TIME`].
    pub head: Duration,
    /// See [`IDLE_TIME`].
    pub idle: Duration,
    /// See [`WRITE_TIME`].
    pub write: Duration,
    /// See [`LINGER_TIME`].
    pub linger: Duration,
    /// See [`FINISH_TIME`].
    pub finish: Duration,
}

/// What lies between TCP and HTTP.
#[derive(Clone)]
pub enum Transport {
    /// Nothing.
    Plain,
    /// TLS.
    Tls(Arc<rustls::ServerConfig>),
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS,
            handshake: HANDSHAKE_TIME,
            head: HEAD_TIME,
            idle: IDLE_TIME,
            write: WRITE_TIME,
            linger: LINGER_TIME,
            finish: FINISH_TIME,
        }
    }
}

/// A server that listens.
pub struct Server {
    /// Where it listens.
    pub listener: TcpListener,
    /// What lies between TCP and HTTP.
    pub transport: Transport,
    /// What it answers.
    pub router: Router,
    /// Its limits.
    pub limits: Limits,
    /// Shows the connections that are open.
    pub open: Gauge,
}

impl Server {
    /// Serves until `stop` resolves, then lingers, finishes what was asked, and returns.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { listener, transport, router, limits, open } = self;
        let crowd = Crowd::new(limits.connections, open);
        let graceful = GracefulShutdown::new();
        let stopping = Arc::new(AtomicBool::new(false));
        let connection = Connection { transport, router, limits, crowd, phase: Arc::default(), stopping };
        {
            let accepting = accept(&listener, &graceful, &connection);
            tokio::pin!(accepting);
            tokio::select! {
                () = &mut accepting => {}
                () = stop => {
                    connection.stopping.store(true, Ordering::Relaxed);
                    let _ = tokio::time::timeout(limits.linger, &mut accepting).await;
                }
            }
        }
        drop(listener);
        if tokio::time::timeout(limits.finish, graceful.shutdown()).await.is_err() {
            tracing::warn!("connections were still busy when their time to finish was over");
        }
    }
}

/// Never ends.
async fn accept(listener: &TcpListener, graceful: &GracefulShutdown, connection: &Connection) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => connection.begin(stream, graceful).await,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What every connection needs.
#[derive(Clone)]
struct Connection {
    transport: Transport,
    router: Router,
    limits: Limits,
    crowd: Crowd,
    /// Where this one stands.
    phase: Arc<Phase>,
    stopping: Arc<AtomicBool>,
}

impl Connection {
    /// Lets a client in, once there is room, and serves it beside the others.
    async fn begin(&self, stream: TcpStream, graceful: &GracefulShutdown) {
        self.crowd.room().await;
        let (phase, watcher) = (Arc::<Phase>::default(), graceful.watcher());
        self.crowd.enter(phase.clone(), |place| {
            let connection = Self { phase, ..self.clone() };
            let serving = async move {
                connection.serve(stream, watcher).await;
                drop(place);
            };
            tokio::spawn(serving).abort_handle()
        });
    }

    async fn serve(self, stream: TcpStream, watcher: Watcher) {
        // An answer is one small write: waiting for more only makes it late.
        let _ = stream.set_nodelay(true);
        match self.transport.clone() {
            Transport::Plain => self.speak(stream, watcher).await,
            Transport::Tls(config) => {
                let handshake = TlsAcceptor::from(config).accept(stream);
                match tokio::time::timeout(self.limits.handshake, handshake).await {
                    Ok(Ok(stream)) => self.speak(stream, watcher).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            }
        }
    }

    async fn speak(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, watcher: Watcher) {
        let stream = Patient::new(stream, self.phase.clone(), self.limits);
        let this = Arc::new(self);
        let service = service_fn(move |request| this.clone().answer(request));
        let connection = hyper::server::conn::http1::Builder::new()
            .header_read_timeout(None)
            .max_header_size(HEAD_BYTES)
            .max_buf_size(READ_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        self.phase.begin();
        let mut response = self.router.clone().oneshot(request).await?;
        if self.stopping.load(Ordering::Relaxed) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.phase.end();
        self.crowd.idles();
        Ok(response)
    }
}
