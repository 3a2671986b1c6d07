//! A certificate and its key in two files, for a server whose callers know its CA by themselves.
//!
//! Invariant: there is no moment without a pair: nothing is served without one, and files that cannot be taken replace none.
//! Absent on purpose: the CA, and whether a caller would take the pair; callers are not ours to ask (`files` asks for the webhook).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::time::MissedTickBehavior;

use super::files;
use super::serving::{PairError, Serving};

/// Two files, and what of them is served.
#[derive(Debug)]
pub struct PairFiles {
    certificate: PathBuf,
    key: PathBuf,
    serving: Arc<Serving>,
    /// The texts that are served, certificate and key.
    served: (String, String),
}

/// Why the files cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PairFilesError {
    /// A file cannot be read.
    #[error("{path:?} cannot be read; give a PEM file that this process may read")]
    Read {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The two make no pair.
    #[error("{certificate:?} and {key:?} cannot be served; give a PEM certificate, with its chain, and the PEM key that belongs to it")]
    Pair {
        /// Where the certificate is.
        certificate: PathBuf,
        /// Where the key is.
        key: PathBuf,
        /// What is wrong.
        source: PairError,
    },
}

impl PairFiles {
    /// Reads both for the first time.
    pub async fn open(certificate: PathBuf, key: PathBuf) -> Result<Self, PairFilesError> {
        let mut files = Self { certificate, key, serving: Arc::default(), served: Default::default() };
        files.look().await?;
        Ok(files)
    }

    /// TLS settings that serve whatever was taken last at the time of a handshake.
    pub fn tls(&self) -> rustls::ServerConfig {
        self.serving.clone().tls(None)
    }

    /// Follows the files for good.
    pub async fn run(mut self) {
        let mut looks = tokio::time::interval(files::LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut complaint = String::new();
        loop {
            looks.tick().await;
            let looked = self.look().await;
            if matches!(looked, Ok(true)) {
                tracing::info!("another certificate is served");
            }
            if let Some(error) = files::news(looked.map(drop), &mut complaint) {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the certificate cannot be taken; the last one is served");
            }
        }
    }

    /// Takes what is in the files; says whether it is another pair.
    async fn look(&mut self) -> Result<bool, PairFilesError> {
        let read = async |path: &PathBuf| {
            let text = files::bounded(path).await;
            text.map_err(|source| PairFilesError::Read { path: path.clone(), source })
        };
        let found = (read(&self.certificate).await?, read(&self.key).await?);
        if found == self.served {
            return Ok(false);
        }
        let unfit = |source| PairFilesError::Pair { certificate: self.certificate.clone(), key: self.key.clone(), source };
        self.serving.exchange(&found.0, &found.1).map_err(unfit)?;
        self.served = found;
        Ok(true)
    }
}
