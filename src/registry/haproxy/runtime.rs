//! A session with the runtime API of one HAProxy process, over TCP, TLS or a unix socket.
//!
//! Facts (tried on 2.6 and 3.2):
//! - after `prompt` a session takes one line after the other, and each answer ends with `> ` on a line of its own;
//! - several commands may stand in one line, divided by `;`; they are done in order and each has an answer that ends so;
//! - most commands say nothing when they are done, errors are plain texts without a code.
//!
//! Invariant: [`CallError::Unavailable`] means that no command left.
//! Absent on purpose: what the commands mean (`backend`), retries.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::registry::CallError;
use crate::registry::credentials::Credential;
use crate::registry::text::{bounded, cause};

/// A connection that is not there by then will not come; shorter than a call, so that it is known that nothing left.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The statistics of some ten thousand servers are shorter.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;
/// End of every answer.
const PROMPT: &str = "\n> ";

/// One process, as far as an address tells them apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Place {
    /// A socket in the file system.
    Unix(PathBuf),
    /// An address, with the name that its certificate must have.
    Tcp(std::net::SocketAddr, String),
    /// A name and port that mean no address at the moment, or only addresses that are off limits.
    Nowhere(String, OffLimits),
}

/// What the addresses of a name are, where it has any and nothing is sent there. It may be another thing with each look-up, so it makes no
/// place another place: all compare as equal.
#[derive(Clone, Copy, Debug)]
pub(super) struct OffLimits(pub(super) Option<&'static str>);

/// An open session. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Session {
    stream: Stream,
    /// Every answer must have come by then.
    pub(super) deadline: Instant,
}

/// Why an answer did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the connection broke off: {0}")]
    Off(String),
    #[error("the connection was closed in the middle of an answer")]
    Closed,
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl PartialEq for OffLimits {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OffLimits {}

impl Hash for OffLimits {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialOrd for OffLimits {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OffLimits {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl Place {
    /// For people.
    pub(super) fn show(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix:{}", path.display()),
            Self::Tcp(address, _) => address.to_string(),
            Self::Nowhere(name, _) => name.clone(),
        }
    }
}

impl Session {
    /// Connects, and waits for the first prompt. Every later answer must come before `deadline` too.
    pub(super) async fn open(place: &Place, ca: Option<&Credential>, deadline: Instant) -> Result<Self, CallError> {
        let patience = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        let late = |_| CallError::Unavailable("no connection in time".to_owned());
        let stream = timeout_at(patience, connect(place, ca)).await.map_err(late)??;
        let mut session = Self { stream, deadline };
        // A front (TLS, a mesh, a forwarded port) takes connections for a process that is dead, and closes them.
        session.answer("prompt").await?.map_err(|broken| CallError::Unavailable(broken.to_string()))?;
        Ok(session)
    }

    /// Sends a line and takes the answer to each of its commands, without the prompt.
    pub(super) async fn ask(&mut self, line: &str) -> Result<Vec<String>, CallError> {
        self.answer(line).await?.map_err(|broken| CallError::Failed(broken.to_string()))
    }

    async fn answer(&mut self, line: &str) -> Result<Result<Vec<String>, Broken>, CallError> {
        let answer = async {
            match &mut self.stream {
                Stream::Unix(stream) => exchange(stream, line).await,
                Stream::Tcp(stream) => exchange(stream, line).await,
                Stream::Tls(stream) => exchange(stream, line).await,
            }
        };
        let answers = timeout_at(self.deadline, answer).await.map_err(|_| CallError::Timeout)??;
        if answers.iter().flatten().any(|answer| answer.trim() == "Permission denied") {
            return Err(CallError::Denied("the socket has not `level admin`".to_owned()));
        }
        Ok(answers)
    }
}

async fn connect(place: &Place, ca: Option<&Credential>) -> Result<Stream, CallError> {
    let unreachable = |error: std::io::Error| CallError::Unavailable(cause(&error));
    match place {
        Place::Nowhere(_, OffLimits(None)) => Err(CallError::Unavailable("the name cannot be looked up".to_owned())),
        Place::Nowhere(_, OffLimits(Some(what))) => Err(CallError::Unavailable(format!("the name means {what}; nothing is sent there"))),
        Place::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix).map_err(unreachable),
        Place::Tcp(address, host) => {
            let stream = TcpStream::connect(address).await.map_err(unreachable)?;
            stream.set_nodelay(true).map_err(unreachable)?;
            let Some(ca) = ca else { return Ok(Stream::Tcp(stream)) };
            let (connector, name) = (trusting(ca).await?, server_name(host)?);
            connector.connect(name, stream).await.map(|stream| Stream::Tls(Box::new(stream))).map_err(unreachable)
        }
    }
}

/// A connector that trusts the authorities in the credential file, as it is now.
async fn trusting(ca: &Credential) -> Result<TlsConnector, CallError> {
    let unusable = || CallError::Unavailable(format!("the credential file {} holds no PEM certificate", ca.name()));
    let text = ca.read().await?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        roots.add(certificate.map_err(|_| unusable())?).map_err(|_| unusable())?;
    }
    if roots.is_empty() {
        return Err(unusable());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("the provider knows the versions that it was built with").with_root_certificates(roots);
    Ok(TlsConnector::from(Arc::new(config.with_no_client_auth())))
}

fn server_name(host: &str) -> Result<ServerName<'static>, CallError> {
    ServerName::try_from(host.to_owned()).map_err(|_| CallError::Unavailable(format!("{} can be no name in a certificate", bounded(host))))
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, line: &str) -> Result<Result<Vec<String>, Broken>, CallError> {
    if let Err(error) = stream.write_all(format!("{line}\n").as_bytes()).await {
        return Ok(Err(Broken::Off(cause(&error))));
    }
    let commands = line.split(';').count();
    let mut text = Vec::new();
    loop {
        match stream.read_buf(&mut text).await {
            Ok(0) => return Ok(Err(Broken::Closed)),
            Ok(_) => {}
            Err(error) => return Ok(Err(Broken::Off(cause(&error)))),
        }
        if text.len() > LONGEST_ANSWER {
            return Err(CallError::Failed(format!("its answer is longer than {LONGEST_ANSWER} bytes")));
        }
        if !text.ends_with(PROMPT.as_bytes()) {
            continue;
        }
        let text = str::from_utf8(&text).map_err(|_| CallError::Failed("its answer is no text".to_owned()))?;
        let answers: Vec<String> = text.split(PROMPT).map(str::to_owned).collect();
        // Behind the last prompt there is nothing.
        if answers.len() > commands {
            return Ok(Ok(answers.into_iter().take(commands).collect()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// It is counted out by the time that it has led nowhere, whatever each look-up says.
    #[test]
    fn a_name_that_leads_nowhere_is_one_place() {
        let places: Vec<Place> = [None, Some("link-local")].map(|what| Place::Nowhere("lb:9999".to_owned(), OffLimits(what))).into();
        assert_eq!(places.iter().cloned().collect::<HashSet<_>>().len(), 1);
        assert_eq!(places[0].cmp(&places[1]), Ordering::Equal);
        assert_ne!(places[0], Place::Nowhere("lb:9998".to_owned(), OffLimits(None)));
    }
}
