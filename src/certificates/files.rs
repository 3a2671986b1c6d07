//! A certificate that somebody else renews: three files in one folder, as cert-manager and a private PKI leave them in a mounted Secret.
//!
//! The kubelet exchanges the files of a mounted Secret at once, by a symlink, but at another time on each node; so each replica looks by
//! itself, and the caBundle holds the CAs of all of them ([`Origin::Replicas`](super::bundle::Origin::Replicas)).
//!
//! Invariant: a pair that API servers would refuse never replaces a served one; the last good pair stays, and the log says why.
//! Invariant: only what two looks in a row have found counts, so that a look between two states of the folder mixes nothing.
//! Invariant: a pair of a new CA is served once the caBundle has held that CA for long enough, or the served pair has ended.
//! Absent on purpose: file notifications; symlinks, bind mounts and network file systems each lose some of them, reading three small files never does.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::authority::Wanted;
use super::bundle::Seen;
use super::serving::{PairError, Serving};
use super::x509::{self, Authority, Refusal};
use crate::metrics::Metrics;
use crate::reconcile::Clock;
use crate::reconcile::tokio_clock::TokioClock;

/// Files are read this often.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// A file is not larger: a chain of ten certificates has about 20 KiB.
const FILE_BYTES: u64 = 256 << 10;

/// Where the files are and what is done with them.
pub struct Files {
    /// Folder with `tls.crt`, `tls.key` and `ca.crt`.
    pub folder: PathBuf,
    /// Time.
    pub clock: TokioClock,
    /// Names that API servers ask for.
    pub wanted: Wanted,
    /// What is served.
    pub serving: Arc<Serving>,
    /// The metric of its end.
    pub metrics: Arc<Metrics>,
}

/// Why the files are not served.
#[derive(Debug, thiserror::Error)]
enum FilesError {
    #[error("{path:?} cannot be read; mount a Secret with tls.crt, tls.key and ca.crt there, as a folder and not by subPath")]
    Read { path: PathBuf, source: io::Error },
    #[error("the files of {folder:?} do not fit together")]
    Refused { folder: PathBuf, source: Refusal },
    #[error("the pair of {folder:?} cannot be served")]
    Serve { folder: PathBuf, source: PairError },
}

/// The three files at one moment, as PEM.
#[derive(Clone, PartialEq, Eq)]
struct Pair {
    chain: String,
    key: String,
    ca: String,
}

impl Files {
    /// Runs for good; publishes the CAs to trust, and waits for each webhook configuration of `seen` before a new CA is relied on.
    pub async fn run(self, bundle: watch::Sender<Option<String>>, seen: Vec<watch::Receiver<Seen>>) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last, mut served, mut complaint) = (None, None, String::new());
        loop {
            looks.tick().await;
            let done = match self.read().await {
                Ok(pair) if served.is_some() && last.as_ref() != Some(&pair) => {
                    last = Some(pair);
                    continue;
                }
                Ok(pair) => self.follow(pair, &mut served, &bundle, &seen),
                Err(error) => Err(error),
            };
            if let Some(error) = news(done, &mut complaint) {
                tracing::error!(error = &error as &dyn std::error::Error, "the certificate of the files cannot be taken");
            }
        }
    }

    async fn read(&self) -> Result<Pair, FilesError> {
        let file = |name| read(self.folder.join(name));
        Ok(Pair { chain: file("tls.crt").await?, key: file("tls.key").await?, ca: file("ca.crt").await? })
    }

    fn follow(
        &self,
        pair: Pair,
        served: &mut Option<Pair>,
        bundle: &watch::Sender<Option<String>>,
        seen: &[watch::Receiver<Seen>],
    ) -> Result<(), FilesError> {
        if served.as_ref() == Some(&pair) {
            return Ok(());
        }
        let now = self.clock.wall();
        let (folder, roots) = (|| self.folder.clone(), x509::authorities(&pair.ca));
        x509::take(&pair.chain, &pair.key, &roots, self.wanted.server_names(), now.as_second())
            .map_err(|source| FilesError::Refused { folder: folder(), source })?;
        if let Some(served) = served
            && !has_ended(served, now)
            && !seen.iter().all(|seen| relies_on(&seen.borrow(), &roots))
        {
            publish(bundle, format!("{}{}", served.ca, pair.ca));
            return Ok(());
        }
        self.serving.exchange(&pair.chain, &pair.key).map_err(|source| FilesError::Serve { folder: folder(), source })?;
        self.metrics.certificate_expiry.set(x509::span(&pair.chain).map_or(0, |span| span.to));
        publish(bundle, pair.ca.clone());
        tracing::info!("certificate of the files is served");
        *served = Some(pair);
        Ok(())
    }
}

/// The trouble of a look, unless it is the one that the look before had: each is said once, not with every look.
pub(super) fn news<E: fmt::Debug>(looked: Result<(), E>, last: &mut String) -> Option<E> {
    let error = looked.err();
    let said = error.as_ref().map(|error| format!("{error:?}")).unwrap_or_default();
    let before = std::mem::replace(last, said);
    error.filter(|_| *last != before)
}

async fn read(path: PathBuf) -> Result<String, FilesError> {
    bounded(&path).await.map_err(|source| FilesError::Read { path, source })
}

/// A file's text, if it is of the size that certificates have.
pub(super) async fn bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    tokio::fs::File::open(path).await?.take(FILE_BYTES + 1).read_to_string(&mut text).await?;
    if text.len() as u64 > FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {FILE_BYTES} bytes")));
    }
    Ok(text)
}

fn publish(bundle: &watch::Sender<Option<String>>, wanted: String) {
    bundle.send_if_modified(|bundle| {
        let differs = bundle.as_ref() != Some(&wanted);
        *bundle = Some(wanted);
        differs
    });
}

fn has_ended(pair: &Pair, now: Timestamp) -> bool {
    x509::span(&pair.chain).is_none_or(|span| span.to <= now.as_second())
}

/// Whether whoever calls us by this configuration trusts `roots`; nobody calls by one that is not there.
fn relies_on(seen: &Seen, roots: &[Authority]) -> bool {
    match seen {
        Seen::NotThere => true,
        seen => seen.settled().is_some_and(|bundle| roots.iter().all(|ca| x509::holds(bundle, ca))),
    }
}
