//! The certificate that is served now; it can be exchanged while connections are open.
//!
//! Invariant: a pair that rustls does not take never replaces one that it took.
//! Absent on purpose: choice by name; a webhook has one certificate for all its names.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::callers::Callers;

/// The one protocol that API servers speak to webhooks.
const PROTOCOL: &[u8] = b"http/1.1";

/// The certificate that is served now, or none yet.
#[derive(Debug, Default)]
pub struct Serving {
    pair: ArcSwapOption<CertifiedKey>,
}

/// Why a pair cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// No PEM of the expected kind.
    #[error("the {what} cannot be read")]
    Pem {
        /// `certificate` or `key`.
        what: &'static str,
        /// What the reader said.
        source: rustls::pki_types::pem::Error,
    },
    /// Not usable, or key and certificate do not belong together.
    #[error("certificate and key cannot be used")]
    Unusable(#[from] rustls::Error),
}

impl Serving {
    /// Whether there is a certificate.
    pub fn is_loaded(&self) -> bool {
        self.pair.load().is_some()
    }

    /// Serves this pair from the next handshake on.
    pub fn exchange(&self, chain_pem: &str, key_pem: &str) -> Result<(), PairError> {
        self.pair.store(Some(Arc::new(pair(chain_pem, key_pem)?)));
        Ok(())
    }

    /// TLS settings that serve whatever is here at the time of a handshake, to anybody or only to those who may call.
    pub fn tls(self: Arc<Self>, callers: Option<Arc<Callers>>) -> rustls::ServerConfig {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("aws-lc-rs speaks TLS 1.2 and 1.3");
        let builder = match callers {
            Some(callers) => builder.with_client_cert_verifier(callers),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(self);
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.pair.load_full()
    }
}

/// Reads a pair and checks that rustls can sign with it.
pub(super) fn pair(chain_pem: &str, key_pem: &str) -> Result<CertifiedKey, PairError> {
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|source| PairError::Pem { what: "key", source })?;
    Ok(CertifiedKey::from_der(chain(chain_pem)?, key, &aws_lc_rs::default_provider())?)
}

/// Certificates of a PEM text.
pub(super) fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, PairError> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes());
    certificates.collect::<Result<_, _>>().map_err(|source| PairError::Pem { what: "certificate", source })
}
