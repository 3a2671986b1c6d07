//! Who may call the webhook, where the operator wants API servers to show a client certificate.
//!
//! Without it anybody in the cluster's network may ask what a pod would be given; that is no secret and changes nothing, so it is off by
//! default. With it a caller shows a certificate of the CA in one file, which is read again when it changes.
//!
//! Invariant: there is no moment without a CA: the program does not start without one, and a file that cannot be taken replaces none.
//! Absent on purpose: revocation lists; the CA file is the list of who may call, and short certificates end by themselves.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use tokio::time::MissedTickBehavior;

use super::files;
use super::serving::{self, PairError};
use super::x509;

/// Who may call.
#[derive(Debug)]
pub struct Callers {
    file: PathBuf,
    /// Names of which a caller's certificate must have one; empty lets in whoever the CA has signed.
    names: Vec<String>,
    trusted: ArcSwap<Trusted>,
}

/// Why nobody could be trusted by a file.
#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    /// The file cannot be read.
    #[error("{path:?} with the CA of those who may call cannot be read; mount a Secret with it, as a folder and not by subPath")]
    Read {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not PEM.
    #[error("{path:?} is no PEM file of certificates")]
    Pem {
        /// Where it is.
        path: PathBuf,
        /// What the reader said.
        source: PairError,
    },
    /// No certificate of a CA in it.
    #[error("{path:?} holds no certificate of a CA")]
    NoAuthority {
        /// Where it is.
        path: PathBuf,
        /// What rustls said.
        source: VerifierBuilderError,
    },
}

/// The CAs of one state of the file.
#[derive(Debug)]
struct Trusted {
    pem: String,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Callers {
    /// Reads the CA file for the first time; `names` are common names or DNS names.
    pub async fn open(file: PathBuf, names: Vec<String>) -> Result<Self, CallersError> {
        let trusted = trusted(&file, read(&file).await?)?;
        Ok(Self { file, names, trusted: ArcSwap::from_pointee(trusted) })
    }

    /// Follows the file for good.
    pub async fn run(self: Arc<Self>) {
        let mut looks = tokio::time::interval(files::LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut complaint = String::new();
        loop {
            looks.tick().await;
            if let Some(error) = files::news(self.look().await, &mut complaint) {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the CA of those who may call cannot be taken; the last one counts"
                );
            }
        }
    }

    async fn look(&self) -> Result<(), CallersError> {
        let pem = read(&self.file).await?;
        if self.trusted.load().pem != pem {
            self.trusted.store(Arc::new(trusted(&self.file, pem)?));
            tracing::info!("another CA vouches for those who may call");
        }
        Ok(())
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.trusted.load().verifier.clone()
    }
}

impl ClientCertVerifier for Callers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A hint would have to outlive an exchange of the file; API servers have one certificate and need none.
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier().verify_client_cert(certificate, intermediates, now)?;
        let named = || x509::names(certificate).iter().any(|name| self.names.contains(name));
        if self.names.is_empty() || named() { Ok(verified) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

async fn read(file: &Path) -> Result<String, CallersError> {
    files::bounded(file).await.map_err(|source| CallersError::Read { path: file.to_owned(), source })
}

fn trusted(file: &Path, pem: String) -> Result<Trusted, CallersError> {
    let path = || file.to_owned();
    let certificates = serving::chain(&pem).map_err(|source| CallersError::Pem { path: path(), source })?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = verifier.map_err(|source| CallersError::NoAuthority { path: path(), source })?;
    Ok(Trusted { pem, verifier })
}
