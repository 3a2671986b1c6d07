//! Takes connections for the registry server, within limits, until it is told to stop.
//!
//! Of TLS it knows only the handshake, which happens beside the other connections and is limited as a header is.
//!
//! Invariant: a request that was taken is answered before the server ends, unless that takes longer than [`Limits::last_answers`].
//! Absent on purpose: HTTP/2 (callers are few and hold their connections), which certificate is served (`certificates`).

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Limits;

/// More connections wait in the kernel's queue; each blocking read holds one.
const CONNECTIONS: usize = 1024;
/// Nothing that callers send needs longer headers.
const HEADER_BYTES: usize = 16 * 1024;
/// After a failed accept (no file descriptors left, mostly) the next one waits.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `stop` resolves.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let tls = tls.map(TlsAcceptor::from);
    let (serving, ended) = watch::channel(());
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let next = async {
            let place = free.clone().acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Small answers must not wait for more to send; without the option they only come later.
                let _ = stream.set_nodelay(true);
                let (tls, router, watcher, ended) = (tls.clone(), router.clone(), graceful.watcher(), ended.clone());
                tokio::spawn(async move {
                    // A caller that breaks off is no event here.
                    match tls {
                        None => _ = watcher.watch(talk(stream, router, limits)).await,
                        Some(tls) => {
                            let stream = shake_hands(&tls, stream, limits.header_time, ended).await;
                            if let Some(stream) = stream {
                                let _ = watcher.watch(talk(stream, router, limits)).await;
                            }
                        }
                    }
                    drop(place);
                });
            }
            Err(error) => {
                report(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, serving));
    // Whoever is still slower than that is cut off.
    let _ = tokio::time::timeout(limits.last_answers, graceful.shutdown()).await;
}

/// `None` where the handshake failed, took too long, or was not over at the end.
async fn shake_hands(
    tls: &TlsAcceptor,
    stream: TcpStream,
    limit: Duration,
    mut ended: watch::Receiver<()>,
) -> Option<TlsStream<TcpStream>> {
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(limit, tls.accept(stream)) => shaken.ok()?,
        _ = ended.changed() => return None,
    };
    shaken.inspect_err(|error| tracing::debug!(%error, "a TLS handshake failed")).ok()
}

fn talk<S>(stream: S, router: Router, limits: Limits) -> http1::Connection<TokioIo<S>, TowerToHyperService<Router>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_time).max_buf_size(HEADER_BYTES);
    builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
}

fn report(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
}
