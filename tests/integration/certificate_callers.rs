//! Client certificates of those who call the webhook: who gets through a real handshake, and what a changed or broken CA file does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockstep::certificates::Serving;
use lockstep::certificates::callers::Callers;
use rstest::rstest;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::authority::Authority;

/// Virtual time: longer than it takes to look at the file.
const A_WHILE: Duration = Duration::from_secs(30);

struct Ground {
    folder: TempDir,
    server: Authority,
    serving: Arc<Serving>,
    callers: Arc<Callers>,
}

async fn ground(ca: &str, names: &[&str]) -> Ground {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    std::fs::write(&file, ca).unwrap();
    let callers = Arc::new(Callers::open(file, names.iter().map(|name| (*name).to_owned()).collect()).await.unwrap());
    let (server, serving) = (Authority::new("server"), Arc::new(Serving::default()));
    serving.exchange(&server.certificate, &server.key).unwrap();
    Ground { folder, server, serving, callers }
}

impl Ground {
    /// Whether the server lets in whoever shows this certificate, or none.
    async fn lets_in(&self, shown: Option<&Authority>, version: &'static SupportedProtocolVersion) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(&self.server.ca));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap().with_root_certificates(roots);
        let client = match shown {
            Some(shown) => {
                let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes()).unwrap();
                client.with_client_auth_cert(certificates(&shown.certificate), key).unwrap()
            }
            None => client.with_no_client_auth(),
        };
        let connector = TlsConnector::from(Arc::new(client));
        let acceptor = TlsAcceptor::from(Arc::new(self.serving.clone().tls(Some(self.callers.clone()))));
        let (near, far) = tokio::io::duplex(1 << 14);
        // The client keeps its end open: only the server's word counts.
        let (_client, server) = tokio::join!(connector.connect(ServerName::try_from("localhost").unwrap(), near), acceptor.accept(far));
        server.is_ok()
    }

    fn write(&self, ca: &str) {
        std::fs::write(self.folder.path().join("ca.crt"), ca).unwrap();
    }
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

#[rstest]
#[case::tls12(&rustls::version::TLS12)]
#[case::tls13(&rustls::version::TLS13)]
#[tokio::test]
async fn only_certificates_of_the_ca_are_let_in(#[case] version: &'static SupportedProtocolVersion) {
    let (ours, stranger) = (Authority::new("ours"), Authority::new("stranger"));
    let ground = ground(&ours.ca, &[]).await;
    assert!(ground.lets_in(Some(&ours), version).await);
    assert!(!ground.lets_in(Some(&stranger), version).await);
    assert!(!ground.lets_in(None, version).await);
}

#[rstest]
#[case(&["localhost"], true)]
#[case(&["kube-apiserver", "localhost"], true)]
#[case(&["kube-apiserver"], false)]
#[case(&["LOCALHOST", "local", ""], false)]
#[tokio::test]
async fn a_certificate_needs_one_of_the_names(#[case] names: &[&str], #[case] let_in: bool) {
    let ours = Authority::new("ours");
    let ground = ground(&ours.ca, names).await;
    assert_eq!(ground.lets_in(Some(&ours), &rustls::version::TLS13).await, let_in);
}

#[tokio::test(start_paused = true)]
async fn another_ca_is_taken_without_a_restart_and_a_broken_file_changes_nothing() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let ground = ground(&first.ca, &[]).await;
    tokio::spawn(ground.callers.clone().run());
    let both = async |of_first: bool, of_second: bool| {
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(ground.lets_in(Some(&first), &rustls::version::TLS13).await, of_first);
        assert_eq!(ground.lets_in(Some(&second), &rustls::version::TLS13).await, of_second);
    };
    both(true, false).await;
    for broken in ["", "no PEM at all", &"x".repeat(1 << 20), &second.certificate.replace('M', "N")] {
        ground.write(broken);
        both(true, false).await;
    }
    ground.write(&format!("{}{}", first.ca, second.ca));
    both(true, true).await;
    ground.write(&second.ca);
    both(false, true).await;
}

#[tokio::test]
async fn without_a_ca_nothing_starts_and_the_reason_is_told() {
    let absent = Callers::open(Path::new("/nowhere/ca.crt").to_owned(), Vec::new()).await.unwrap_err().to_string();
    assert!(absent.contains("\"/nowhere/ca.crt\"") && absent.contains("mount a Secret"), "{absent}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let empty = Callers::open(file.path().to_owned(), Vec::new()).await.unwrap_err().to_string();
    assert!(empty.ends_with("holds no certificate of a CA"), "{empty}");
}
