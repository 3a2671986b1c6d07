//! A load generator: keep-alive connections over TLS that send one review again and again.
//!
//! Invariant: open-loop latencies count from the moment at which a request was due, not from the one at which it could be sent; a server
//! that is slow for a while cannot hide it.
//! Absent on purpose: what the figures mean (`serving`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An API server waits no longer for a webhook (`timeoutSeconds` of the chart).
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer, its head included.
const ANSWER_BYTES: usize = 16 << 10;

/// Whom to send what.
#[derive(Clone)]
pub(crate) struct Load {
    /// Where the server listens.
    pub(crate) address: SocketAddr,
    /// Whom to trust.
    pub(crate) tls: Arc<ClientConfig>,
    /// Name in the certificate.
    pub(crate) name: ServerName<'static>,
    /// The whole request, head and body.
    pub(crate) request: Arc<[u8]>,
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Requests that were answered with 200.
    pub(crate) answered: u64,
    /// Those that were answered with anything else.
    pub(crate) refused: u64,
    /// Those without an answer in time, or whose connection broke.
    pub(crate) lost: u64,
    /// Those that were due while too many waited already.
    pub(crate) turned_away: u64,
    /// From due to answered, sorted; only of an open loop.
    pub(crate) latencies: Vec<Duration>,
    /// How long it took.
    pub(crate) took: Duration,
}

/// Arrivals of an open loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    /// Requests a second, on average; the gaps are exponential, as those of many independent clients.
    pub(crate) rate: f64,
    /// Connections that are open.
    pub(crate) connections: usize,
    /// Requests that may wait for a connection; more are turned away.
    pub(crate) room: usize,
    /// How long requests come.
    pub(crate) during: Duration,
}

impl Outcome {
    /// Answers a second.
    pub(crate) fn rate(&self) -> f64 {
        self.answered as f64 / self.took.as_secs_f64()
    }

    /// The latency below which that share of the answers came, in microseconds.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get((last as f64 * share).round() as usize).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
    }

    fn count(&mut self, status: io::Result<u16>) {
        match status {
            Ok(200) => self.answered += 1,
            Ok(_) => self.refused += 1,
            Err(_) => self.lost += 1,
        }
    }
}

impl Load {
    /// A closed loop: each connection sends as soon as it has its answer, until so many requests were sent or the time is over.
    pub(crate) fn saturate(&self, connections: usize, requests: u64, during: Duration) -> Outcome {
        self.run(async |outcome| {
            let begun = Instant::now();
            let left = Rc::new(RefCell::new(requests));
            let set = (0..connections).map(|_| {
                let (load, left, outcome) = (self.clone(), left.clone(), outcome.clone());
                tokio::task::spawn_local(async move {
                    let mut connection = Connection::new(load);
                    while begun.elapsed() < during && take_one(&left) {
                        let status = connection.ask().await;
                        outcome.borrow_mut().count(status);
                    }
                })
            });
            for task in set.collect::<Vec<_>>() {
                task.await.expect("no task panics");
            }
        })
    }

    /// An open loop: requests come at their own times, whatever the server does.
    pub(crate) fn steady(&self, arrivals: Arrivals) -> Outcome {
        self.run(async |outcome| {
            let due: Rc<RefCell<VecDeque<Instant>>> = Rc::default();
            let waiting = Arc::new(Semaphore::new(0));
            let tasks = (0..arrivals.connections).map(|_| {
                let (load, due, waiting, outcome) = (self.clone(), due.clone(), waiting.clone(), outcome.clone());
                tokio::task::spawn_local(async move {
                    let mut connection = Connection::new(load);
                    while let Ok(permit) = waiting.acquire().await {
                        permit.forget();
                        let Some(since) = due.borrow_mut().pop_front() else { break };
                        let status = connection.ask().await;
                        let mut outcome = outcome.borrow_mut();
                        outcome.latencies.extend(status.is_ok().then(|| since.elapsed()));
                        outcome.count(status);
                    }
                })
            });
            let tasks: Vec<_> = tasks.collect();
            arrive(arrivals, &due, &waiting, &outcome).await;
            // Whoever finds a permit but nothing due goes home.
            waiting.add_permits(arrivals.connections);
            for task in tasks {
                task.await.expect("no task panics");
            }
        })
    }

    fn run(&self, work: impl AsyncFnOnce(Rc<RefCell<Outcome>>)) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
        let outcome = Rc::new(RefCell::new(Outcome::default()));
        let begun = Instant::now();
        LocalSet::new().block_on(&runtime, work(outcome.clone()));
        let mut outcome = outcome.take();
        outcome.took = begun.elapsed();
        outcome.latencies.sort_unstable();
        outcome
    }
}

/// Puts requests on the queue when they are due; it spins, since timers of a millisecond would come in bursts.
async fn arrive(arrivals: Arrivals, due: &RefCell<VecDeque<Instant>>, waiting: &Semaphore, outcome: &RefCell<Outcome>) {
    let begun = Instant::now();
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = 0.0;
    loop {
        let now = begun.elapsed();
        if now >= arrivals.during {
            return;
        }
        while next <= now.as_secs_f64() {
            if waiting.available_permits() < arrivals.room {
                due.borrow_mut().push_back(begun + Duration::from_secs_f64(next));
                waiting.add_permits(1);
            } else {
                outcome.borrow_mut().turned_away += 1;
            }
            next += -roll(&mut dice).ln() / arrivals.rate;
        }
        tokio::task::yield_now().await;
    }
}

/// A number above 0 and up to 1 (xorshift: good enough for gaps).
fn roll(dice: &mut u64) -> f64 {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    ((*dice >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

fn take_one(left: &RefCell<u64>) -> bool {
    let mut left = left.borrow_mut();
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

/// One keep-alive connection, opened anew after a failure.
struct Connection {
    load: Load,
    stream: Option<TlsStream<TcpStream>>,
    buffer: Vec<u8>,
}

impl Connection {
    fn new(load: Load) -> Self {
        Self { load, stream: None, buffer: vec![0; ANSWER_BYTES] }
    }

    /// Sends the request and reads the answer; answers its status.
    async fn ask(&mut self) -> io::Result<u16> {
        let asked = tokio::time::timeout(TIMEOUT, self.exchange()).await;
        let status = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if !matches!(status, Ok(200)) {
            self.stream = None;
        }
        status
    }

    async fn exchange(&mut self) -> io::Result<u16> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let stream = TcpStream::connect(self.load.address).await?;
                stream.set_nodelay(true)?;
                let connector = TlsConnector::from(self.load.tls.clone());
                none.insert(connector.connect(self.load.name.clone(), stream).await?)
            }
        };
        stream.write_all(&self.load.request).await?;
        let mut read = 0;
        loop {
            let more = stream.read(&mut self.buffer[read..]).await?;
            if more == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            read += more;
            if let Some(status) = whole(&self.buffer[..read]) {
                return Ok(status);
            }
        }
    }
}

/// The status of an answer that is there to its end.
fn whole(bytes: &[u8]) -> Option<u16> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse::<usize>().ok()?;
    (bytes.len() >= head + 4 + length).then(|| text.get(9..12)?.parse().ok())?
}
