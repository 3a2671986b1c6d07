//! A steady load of requests, and what came of them.
//!
//! Half of the clients keep their connection, half open one for each request. Nothing is tried twice: what a patient client would hide
//! is counted here.
//!
//! Invariant: every request that was begun is counted, as an answer or as a failure.
//! Absent on purpose: rates and percentiles; the question is whether anything was lost.

use std::io::{Error, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clients of each kind.
const CLIENTS: usize = 4;
/// Between two requests of one client.
const PAUSE: Duration = Duration::from_millis(10);
/// An answer that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many failures are kept in words.
const WORDS: usize = 5;

/// A load that runs.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Tally>>,
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Requests in all.
    pub requests: u64,
    /// Those without a good answer.
    pub failures: u64,
    /// The longest that a good answer took.
    pub slowest: Duration,
    /// Some of the failures, in words.
    pub words: Vec<String>,
}

impl Load {
    /// Begins to ask the server at `front`.
    pub(crate) fn start(front: SocketAddr) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let client = |kept: bool| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || ask_until(front, kept, &over))
        };
        let clients = (0..2 * CLIENTS).map(|number| client(number % 2 == 0)).collect();
        Self { over, clients }
    }

    /// Ends it.
    pub(crate) fn stop(self) -> Tally {
        self.over.store(true, Ordering::SeqCst);
        let tallies = self.clients.into_iter().map(|client| client.join().expect("a client counts what goes wrong"));
        tallies.fold(Tally::default(), Tally::with)
    }
}

impl Tally {
    /// Both together.
    pub(crate) fn with(self, other: Self) -> Self {
        let mut words = [self.words, other.words].concat();
        words.truncate(WORDS);
        Self {
            requests: self.requests + other.requests,
            failures: self.failures + other.failures,
            slowest: self.slowest.max(other.slowest),
            words,
        }
    }
}

fn ask_until(front: SocketAddr, kept: bool, over: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    let mut connection: Option<TcpStream> = None;
    while !over.load(Ordering::SeqCst) {
        let begun = Instant::now();
        let asked = connection.take().map_or_else(|| connect(front), Ok).and_then(|stream| ask(stream, kept));
        tally.requests += 1;
        match asked {
            Ok(next) => {
                tally.slowest = tally.slowest.max(begun.elapsed());
                connection = next.filter(|_| kept);
            }
            Err(error) => {
                tally.failures += 1;
                if tally.words.len() < WORDS {
                    tally.words.push(format!("{} after {:?}: {error}", if kept { "kept" } else { "fresh" }, begun.elapsed()));
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    tally
}

fn connect(front: SocketAddr) -> Result<TcpStream, Error> {
    let stream = TcpStream::connect_timeout(&front, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Asks once; the connection, where it can be used again.
fn ask(mut stream: TcpStream, kept: bool) -> Result<Option<TcpStream>, Error> {
    let close = if kept { "" } else { "Connection: close\r\n" };
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: web\r\n{close}\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(Error::other(format!("the connection ended after {} bytes", answer.len())));
        }
        answer.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
        if body.len() < length {
            continue;
        }
        if !head.starts_with("http/1.1 200") {
            return Err(Error::other(head.lines().next().unwrap_or_default().to_owned()));
        }
        return Ok((!head.contains("connection: close")).then_some(stream));
    }
}
