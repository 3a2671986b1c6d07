//! Servers for what real registries cannot be brought to: fixed answers, and TLS in front of a plain one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::authority::Authority;

/// Answers every connection with the same bytes, and counts them.
pub(crate) struct Fixed {
    pub(crate) address: SocketAddr,
    pub(crate) count: Arc<AtomicUsize>,
}

impl Fixed {
    pub(crate) fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.read(&mut [0; 8192]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, count }
    }

    pub(crate) fn with_status(status: u16, headers: &str, body: &str) -> Self {
        let length = body.len();
        Self::start(format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"))
    }
}

/// A certificate authority and a server that it vouches for, in front of a plain one.
pub(crate) struct Front {
    pub(crate) ca: String,
    pub(crate) url: String,
}

impl Front {
    pub(crate) async fn start(behind: &str) -> Self {
        let authority = Authority::new(behind);
        let chain = vec![CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(authority.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let behind = behind.trim_start_matches("http://").to_owned();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, behind) = (acceptor.clone(), behind.clone());
                tokio::spawn(async move {
                    let Ok(mut front) = acceptor.accept(stream).await else { return };
                    let mut back = tokio::net::TcpStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut front, &mut back).await;
                });
            }
        });
        Self { ca: authority.ca, url }
    }
}
