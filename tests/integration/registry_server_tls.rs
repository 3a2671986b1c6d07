//! `lockstep registry` with a certificate: who trusts its CA is answered, a new one is served without a restart, a bad one never.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lockstep::commands::registry::{Limits, Server};
use reqwest::{Certificate, Client, StatusCode};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::authority::Authority;
use crate::registry_ground::{Inside, arguments};

/// Files are looked at once a second.
const SOON: Duration = Duration::from_secs(20);

fn put(folder: &Path, certificate: &str, key: &str) {
    fs::write(folder.join("tls.crt"), certificate).unwrap();
    fs::write(folder.join("tls.key"), key).unwrap();
}

/// Flags that name the files of a folder.
fn flags(folder: &Path) -> [String; 4] {
    let path = |name| folder.join(name).to_str().unwrap().to_owned();
    ["--tls-certificate".to_owned(), path("tls.crt"), "--tls-key".to_owned(), path("tls.key")]
}

/// Whether somebody who trusts that CA alone is answered, on a connection of its own; the certificate is for a name.
async fn is_trusted(url: &str, ca: &str) -> bool {
    let url = url.replace("127.0.0.1", "localhost");
    let client = Client::builder().no_proxy().tls_certs_only([Certificate::from_pem(ca.as_bytes()).unwrap()]).build().unwrap();
    let answer = client.get(format!("{url}/v1/services")).send().await;
    answer.is_ok_and(|answer| answer.status() == StatusCode::OK)
}

async fn eventually_trusted(url: &str, ca: &str) {
    let looks = async {
        while !is_trusted(url, ca).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, looks).await.expect("the new certificate is served");
}

#[tokio::test]
async fn another_certificate_is_served_without_a_restart_and_a_bad_one_never() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(Authority::new);
    put(folder.path(), &old.certificate, &old.key);
    let flags = flags(folder.path());
    let server = Inside::start(&folder.path().join("registry.redb"), &flags.each_ref().map(String::as_str)).await;
    assert!(server.url.starts_with("https://"), "{}", server.url);
    assert!(is_trusted(&server.url, &old.ca).await);
    assert!(!is_trusted(&server.url, &new.ca).await, "its CA vouches for nothing yet");
    let plain = server.url.replace("https", "http");
    assert!(reqwest::get(format!("{plain}/readyz")).await.is_err(), "nothing is told in the clear");

    put(folder.path(), &new.certificate, &old.key);
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..25 {
        looks.tick().await;
        assert!(is_trusted(&server.url, &old.ca).await, "a certificate without its key is not taken");
    }
    put(folder.path(), &new.certificate, &new.key);
    eventually_trusted(&server.url, &new.ca).await;
    assert!(!is_trusted(&server.url, &old.ca).await, "the old one is gone");
    server.stop().await;
}

#[tokio::test]
async fn a_server_without_a_sound_pair_says_why_and_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("registry.redb");
    let flags = flags(folder.path());
    let flags = flags.each_ref().map(String::as_str);
    let open = async || format!("{:#}", Server::open(&arguments(&store, &flags)).await.unwrap_err());
    let missing = open().await;
    assert!(missing.contains("tls.crt") && missing.contains("cannot be read"), "{missing}");
    let [one, other] = ["one", "other"].map(Authority::new);
    put(folder.path(), &one.certificate, &other.key);
    let unfit = open().await;
    assert!(unfit.contains("the PEM key that belongs to it"), "{unfit}");
    put(folder.path(), "nothing", &one.key);
    let empty = open().await;
    assert!(empty.contains("cannot be served"), "{empty}");

    let half = clap::Parser::try_parse_from(["lockstep", "registry", "--tls-key", "file"]);
    let refused = half.map(|_: lockstep::args::Arguments| ()).unwrap_err().to_string();
    assert!(refused.contains("--tls-certificate"), "{refused}");
}

/// One that connects and says nothing costs its place for as long as a header may take, and does not delay the end.
#[tokio::test]
async fn who_begins_no_handshake_is_sent_away_and_delays_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let pair = Authority::new("ca");
    put(folder.path(), &pair.certificate, &pair.key);
    let flags = flags(folder.path());
    let flags = flags.each_ref().map(String::as_str);
    let limits = Limits { header_time: Duration::from_millis(200), ..Limits::default() };
    let server = Inside::start_with(&folder.path().join("one.redb"), &flags, limits).await;
    let address = server.url.trim_start_matches("https://").to_owned();
    let mut silent = TcpStream::connect(&address).await.unwrap();
    let ended = tokio::time::timeout(SOON, silent.read(&mut [0; 1])).await.expect("it is closed");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    server.stop().await;

    let limits = Limits { header_time: SOON * 10, last_answers: SOON * 10, ..Limits::default() };
    let server = Inside::start_with(&folder.path().join("two.redb"), &flags, limits).await;
    let mut silent = TcpStream::connect(server.url.trim_start_matches("https://")).await.unwrap();
    assert!(is_trusted(&server.url, &pair.ca).await, "by now the silent one was accepted as well");
    tokio::time::timeout(SOON, server.stop()).await.expect("it ends at once");
    let _ = silent.read(&mut [0; 1]).await;
}
