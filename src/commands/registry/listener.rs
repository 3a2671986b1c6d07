//! Takes connections for the registry server, within limits, until it is told to stop.
//!
//! It is generic over what a connection is, so that TLS can be laid between without a change here.
//!
//! Invariant: a request that was taken is answered before the server ends, unless that takes longer than [`Limits::last_answers`].
//! Absent on purpose: HTTP/2 (callers are few and hold their connections), TLS (a proxy or a mesh in front, so far).

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
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::Limits;

/// More connections wait in the kernel's queue; each blocking read holds one.
const CONNECTIONS: usize = 1024;
/// Nothing that callers send needs longer headers.
const HEADER_BYTES: usize = 16 * 1024;
/// After a failed accept (no file descriptors left, mostly) the next one waits.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `stop` resolves.
pub(super) async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: impl Future<Output = ()>) {
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
                let connection = talk(stream, router.clone(), limits);
                let connection = graceful.watch(connection);
                tokio::spawn(async move {
                    // A caller that breaks off is no event here.
                    let _ = connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                report(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // Whoever is still slower than that is cut off.
    let _ = tokio::time::timeout(limits.last_answers, graceful.shutdown()).await;
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
