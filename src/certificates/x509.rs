//! What a certificate says of itself, and whether a client would take it.
//!
//! Invariant: a text that cannot be read is no certificate, never a panic.
//! Absent on purpose: making certificates (`authority`).

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::serving::{self, PairError};

/// From when to when a certificate counts, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: i64,
    pub(super) to: i64,
}

/// Why a client would not take a pair.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Pair(#[from] PairError),
    #[error("there is no certificate")]
    Empty,
    #[error("there is no certificate of a CA that vouches for it")]
    NoAuthority,
    #[error("an API server that calls {name} would refuse it")]
    Untrusted { name: String, source: rustls::Error },
}

/// A certificate of a CA.
#[derive(Clone, Debug)]
pub(super) struct Authority {
    pub(super) der: CertificateDer<'static>,
    pub(super) span: Span,
    pub(super) public_key: Vec<u8>,
}

impl Span {
    /// Two thirds of its life.
    pub(super) fn renew_at(self) -> i64 {
        self.to - (self.to - self.from) / 3
    }
}

/// The CAs of a PEM bundle, in its order; empty where it cannot be read.
pub(super) fn authorities(bundle: &str) -> Vec<Authority> {
    let certificates = serving::chain(bundle).unwrap_or_default();
    certificates
        .into_iter()
        .filter_map(|der| {
            let (span, public_key) = {
                let (_, certificate) = X509Certificate::from_der(&der).ok()?;
                certificate.is_ca().then_some(())?;
                (validity(&certificate), certificate.public_key().raw.to_vec())
            };
            Some(Authority { der, span, public_key })
        })
        .collect()
}

/// Whether a bundle holds a CA.
pub(super) fn holds(bundle: &str, ca: &Authority) -> bool {
    authorities(bundle).iter().any(|other| other.der == ca.der)
}

/// When the first certificate of a chain counts.
pub(super) fn span(chain: &str) -> Option<Span> {
    let chain = serving::chain(chain).ok()?;
    let (_, certificate) = X509Certificate::from_der(chain.first()?).ok()?;
    Some(validity(&certificate))
}

/// Whether a client that trusts `roots` takes this pair for each of `names` at that time; else why not.
pub(super) fn take(chain_pem: &str, key_pem: &str, roots: &[Authority], names: &[ServerName<'static>], now: i64) -> Result<(), Refusal> {
    let pair = serving::pair(chain_pem, key_pem)?;
    let (first, rest) = pair.cert.split_first().ok_or(Refusal::Empty)?;
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().map(|root| root.der.clone()));
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::new(aws_lc_rs::default_provider())).build();
    let verifier = verifier.map_err(|_| Refusal::NoAuthority)?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap_or_default()));
    for name in names {
        let refused = |source| Refusal::Untrusted { name: name.to_str().into_owned(), source };
        verifier.verify_server_cert(first, rest, name, &[], at).map_err(refused)?;
    }
    Ok(())
}

/// The common names and DNS names of a certificate.
pub(super) fn names(der: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten().into_iter().flat_map(|names| &names.value.general_names);
    let dns = alternative.filter_map(|name| if let GeneralName::DNSName(name) = name { Some(*name) } else { None });
    common.chain(dns).map(str::to_owned).collect()
}

fn validity(certificate: &X509Certificate<'_>) -> Span {
    let validity = certificate.validity();
    Span { from: validity.not_before.timestamp(), to: validity.not_after.timestamp() }
}

/// A certificate as PEM.
pub(super) fn pem(der: &CertificateDer<'_>) -> String {
    const LINE: usize = 64;
    let encoded = BASE64_STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in encoded.as_bytes().chunks(LINE) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}
