//! The application of the zero-loss tests, run as a pod by this very program: as real ones are, neither quick to start nor patient to end.
//!
//! Invariant: once told to end it takes no new connection and closes the idle ones at once; requests that run are answered.
//! Absent on purpose: any knowledge of Lockstep.

use std::convert::Infallible;
use std::process::ExitCode;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Says, to a process of this program, that it is the application.
pub(crate) const ROLE: &str = "LOCKSTEP_TEST_WEB";
/// Time until it listens.
const START: Duration = Duration::from_secs(1);
/// What a request takes.
const WORK: Duration = Duration::from_millis(20);
/// Requests that take longer to end are given up.
const END: Duration = Duration::from_secs(3);

/// Serves until it is told to end.
pub(crate) fn serve() -> ExitCode {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let mut told = signal(SignalKind::terminate()).expect("signals can be awaited");
        tokio::time::sleep(START).await;
        let listener = TcpListener::bind("0.0.0.0:8080").await.expect("the port is free in a pod");
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = told.recv() => break,
            };
            let Ok((stream, _)) = accepted else { continue };
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            let connection = graceful.watch(connection);
            tokio::spawn(connection);
        }
        drop(listener);
        let _ = tokio::time::timeout(END, graceful.shutdown()).await;
    });
    ExitCode::SUCCESS
}

async fn answer(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    tokio::time::sleep(WORK).await;
    Ok(Response::new(Full::new(Bytes::from_static(b"ok\n"))))
}
