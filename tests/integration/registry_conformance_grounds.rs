//! The real registries that the conformance test stands on, and what each of them is told besides the driver.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;

use lockstep::config::{DriverConfig, HttpConfig};
use reqwest::Client;
use serde_json::json;
use tempfile::TempDir;

use crate::registry_ground::Inside;

/// A driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Http,
}

/// A registry, empty, with one service.
pub(crate) struct Ground {
    kind: Kind,
    folder: TempDir,
    http: Inside,
    guarded: bool,
    /// Endpoints that were handed out; they listen, so that a registry that checks finds them well.
    endpoints: Mutex<Vec<std::net::TcpListener>>,
}

impl Ground {
    pub(crate) async fn start(kind: Kind) -> Self {
        Self::make(kind, false).await
    }

    /// One that asks for a credential.
    pub(crate) async fn start_guarded(kind: Kind) -> Self {
        Self::make(kind, true).await
    }

    async fn make(kind: Kind, guarded: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        std::fs::create_dir(folder.path().join("credentials")).unwrap();
        std::fs::write(folder.path().join("credentials/token"), "first\n").unwrap();
        std::fs::write(&there, "first\n").unwrap();
        let more = ["--token-file", there.to_str().unwrap()];
        let http = Inside::start(&folder.path().join("store"), if guarded { &more } else { &[] }).await;
        Self { kind, folder, http, guarded, endpoints: Mutex::default() }
    }

    pub(crate) fn config(&self) -> DriverConfig {
        match self.kind {
            Kind::Http => self.config_at(self.http.url.trim_start_matches("http://")),
        }
    }

    /// The same, at another address.
    pub(crate) fn config_at(&self, address: &str) -> DriverConfig {
        match self.kind {
            Kind::Http => {
                let token = self.guarded.then(|| "token".to_owned());
                DriverConfig::Http(HttpConfig { url: format!("http://{address}"), token, ca: None })
            }
        }
    }

    pub(crate) fn credentials(&self) -> PathBuf {
        self.folder.path().join("credentials")
    }

    pub(crate) fn service(&self) -> &'static str {
        match self.kind {
            Kind::Http => "shop/web",
        }
    }

    /// An endpoint that nobody else has.
    pub(crate) fn address(&self) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        self.endpoints.lock().unwrap().push(listener);
        address
    }

    /// Puts a target in that is not ours.
    pub(crate) async fn put_foreign(&self, address: SocketAddr) {
        match self.kind {
            Kind::Http => {
                let url = format!("{}/v1/services/shop%2Fweb/targets/{address}/other", self.http.url);
                let client = Client::builder().no_proxy().build().unwrap();
                let answer = client.put(url).json(&json!({"state": "active", "cluster": "elsewhere"})).send().await.unwrap();
                assert_eq!(answer.status(), 201);
            }
        }
    }

    pub(crate) fn change_credential_there(&self) {
        std::fs::write(self.folder.path().join("there"), "second\n").unwrap();
    }

    pub(crate) fn change_credential_here(&self) {
        std::fs::write(self.folder.path().join("credentials/token"), "second\n").unwrap();
    }

    pub(crate) fn remove_credential_here(&self) {
        std::fs::remove_file(self.folder.path().join("credentials/token")).unwrap();
    }
}
