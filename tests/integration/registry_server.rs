//! `lockstep registry` as its callers see it: durable, guarded, blocking reads, a graceful end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lockstep::commands::registry::Limits;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use crate::registry_ground::{Inside, Outside, arguments};

/// Asks and answers status and JSON.
pub(crate) async fn ask(method: Method, url: &str, body: Option<Value>) -> (StatusCode, Value) {
    let client = Client::builder().no_proxy().build().unwrap();
    let mut request = client.request(method, url);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn get(url: &str) -> Value {
    let (status, value) = ask(Method::GET, url, None).await;
    assert_eq!(status, StatusCode::OK, "{value}");
    value
}

async fn put(url: &str, body: Value) -> StatusCode {
    ask(Method::PUT, url, Some(body)).await.0
}

/// Kills the server while it is being written to; every answered write must be there afterwards.
#[tokio::test]
async fn answered_writes_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("registry.redb");
    let mut answered = Vec::new();
    for round in 0..3 {
        let server = Outside::start(&store, &[]);
        let listed = get(&format!("{}/v1/services/web/targets", server.url)).await;
        let listed: Vec<_> =
            listed["targets"].as_array().unwrap().iter().map(|target| target["uid"].as_str().unwrap().to_owned()).collect();
        for uid in &answered {
            assert!(listed.contains(uid), "{uid} was answered and is lost; there are {listed:?}");
        }
        let url = server.url.clone();
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (url, said) = (url.clone(), said.clone());
                tokio::spawn(async move {
                    let client = Client::builder().no_proxy().build().unwrap();
                    for number in 0.. {
                        let uid = format!("u-{round}-{writer}-{number}");
                        let url = format!("{url}/v1/services/web/targets/10.0.{writer}.1:{}/{uid}", number + 1);
                        match client.put(url).json(&json!({"state": "active", "cluster": "c"})).send().await {
                            Ok(answer) if answer.status() == StatusCode::CREATED => said.send(uid).unwrap(),
                            Ok(answer) => panic!("{}", answer.status()),
                            Err(_) => return,
                        }
                    }
                })
            })
            .collect();
        for _ in 0..40 {
            answered.push(heard.recv().await.unwrap());
        }
        server.kill();
        for writer in writers {
            writer.await.unwrap();
        }
        while let Ok(uid) = heard.try_recv() {
            answered.push(uid);
        }
    }
    let server = Outside::start(&store, &[]);
    let (index, count) = {
        let list = get(&format!("{}/v1/services/web/targets", server.url)).await;
        (list["index"].as_u64().unwrap(), list["targets"].as_array().unwrap().len())
    };
    assert!(count >= answered.len() && index >= count as u64, "{count} targets at index {index} for {} answers", answered.len());
}

#[tokio::test]
async fn a_deregister_and_a_hold_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("registry.redb");
    let server = Outside::start(&store, &[]);
    let (targets, behaviour) = ("/v1/services/web/targets", "/v1/services/web/behaviour");
    assert_eq!(put(&format!("{}{targets}/10.0.0.1:80/a", server.url), json!({"state": "active"})).await, 201);
    assert_eq!(put(&format!("{}{behaviour}", server.url), json!({"hold": true})).await, 200);
    assert_eq!(put(&format!("{}{targets}/10.0.0.2:80/b", server.url), json!({"state": "active"})).await, 201);
    assert_eq!(ask(Method::DELETE, &format!("{}{targets}/10.0.0.1:80/a", server.url), None).await.0, 200);
    server.kill();

    let server = Outside::start(&store, &[]);
    let states = |list: &Value| -> Vec<String> {
        list["targets"].as_array().unwrap().iter().map(|target| target["state"].as_str().unwrap().to_owned()).collect()
    };
    let list = get(&format!("{}{targets}", server.url)).await;
    assert_eq!(states(&list), ["draining", "initial"], "held as before");
    assert_eq!(ask(Method::DELETE, &format!("{}{behaviour}", server.url), None).await.0, 200);
    let url = format!("{}{targets}?index={}&wait=30s", server.url, list["index"]);
    assert_eq!(states(&get(&url).await), ["active"], "released");
}

#[tokio::test]
async fn a_second_server_on_one_store_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("registry.redb");
    let first = Inside::start(&store, &[]).await;
    let second = lockstep::commands::registry::Server::open(&arguments(&store, &[])).await;
    let error = format!("{:#}", second.unwrap_err());
    assert!(error.contains("is another server using it?"), "{error}");
    first.stop().await;
}

#[tokio::test]
async fn a_blocking_read_is_answered_by_the_change_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Inside::start(&folder.path().join("store"), &[]).await;
    let base = format!("{}/v1/services", server.url);
    let index = get(&format!("{base}/web/targets")).await["index"].as_u64().unwrap();
    let waiting = tokio::spawn({
        let url = format!("{base}/web/targets?index={index}&wait=60s");
        async move { get(&url).await }
    });
    assert_eq!(put(&format!("{base}/other/targets/10.0.0.1:80/u"), json!({"state": "active"})).await, 201);
    assert!(!waiting.is_finished(), "a change of another service is none of this one");
    assert_eq!(put(&format!("{base}/web/targets/10.0.0.1:80/u"), json!({"state": "active"})).await, 201);
    let list = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("long before the wait is over").unwrap();
    assert_eq!(list["targets"][0]["state"], "active");
    let again = get(&format!("{base}/web/targets?index={}&wait=20ms", list["index"])).await;
    assert_eq!(again, list, "nothing changed; the time was over");
}

#[tokio::test]
async fn acknowledgements_are_delayed_held_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Inside::start(&folder.path().join("store"), &[]).await;
    let target = format!("{}/v1/services/web/targets/10.0.0.1:80/u", server.url);
    let list = format!("{}/v1/services/web/targets", server.url);
    let behaviour = format!("{}/v1/behaviour", server.url);

    assert_eq!(put(&behaviour, json!({"registerDelay": "50ms", "hold": true})).await, 200);
    assert_eq!(put(&target, json!({"state": "active"})).await, 201);
    let held = get(&format!("{list}?index={}&wait=200ms", get(&list).await["index"])).await;
    assert_eq!(held["targets"][0]["state"], "initial", "held beyond its delay");
    assert_eq!(put(&behaviour, json!({"registerDelay": "50ms"})).await, 200);
    let done = get(&format!("{list}?index={}&wait=30s", held["index"])).await;
    assert_eq!(done["targets"][0]["state"], "active", "released");

    for (word, status) in [("denied", 403), ("throttled", 429), ("unavailable", 503)] {
        assert_eq!(put(&behaviour, json!({"refuse": word})).await, 200);
        assert_eq!(put(&target, json!({"state": "draining"})).await.as_u16(), status);
    }
    assert_eq!(put(&behaviour, json!({})).await, 200);
    assert_eq!(get(&list).await, done, "refused changes change nothing");
}

#[tokio::test]
async fn the_token_file_counts_as_it_is_now() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    let server = Inside::start(&folder.path().join("store"), &["--token-file", file.to_str().unwrap()]).await;
    let client = Client::builder().no_proxy().build().unwrap();
    let status = async |token: Option<&str>| {
        let mut request = client.get(format!("{}/v1/services", server.url));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(None).await, 401);
    assert_eq!(status(Some("firs")).await, 401);
    assert_eq!(status(Some("")).await, 401);
    assert_eq!(status(Some("first")).await, 200);
    std::fs::write(&file, "first\nsecond\n").unwrap();
    assert_eq!((status(Some("first")).await, status(Some("second")).await), (200, 200), "both while it changes");
    std::fs::write(&file, "second").unwrap();
    assert_eq!((status(Some("first")).await, status(Some("second")).await), (401, 200));
    std::fs::write(&file, "\n").unwrap();
    assert_eq!((status(Some("second")).await, status(Some("")).await), (401, 401), "an empty file lets nobody in");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(status(Some("second")).await, 503);
    assert_eq!(client.get(format!("{}/readyz", server.url)).send().await.unwrap().status(), 200, "probes have no token");
}

#[tokio::test]
async fn slow_callers_are_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let short = Duration::from_millis(50);
    let limits = Limits { body_time: short, header_time: short, last_answers: short };
    let server = Inside::start_with(&folder.path().join("store"), &[], limits).await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let talk = async |text: &'static str| {
        let address = address.clone();
        tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("the server closes the connection");
            answer
        })
        .await
        .unwrap()
    };
    let body = "PUT /v1/behaviour HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{";
    let answer = talk(body).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("BodyTooSlow"), "{answer}");
    assert_eq!(talk("GET /v1/behaviour HTTP/1.1\r\nHos").await, "", "half a header");
    assert_eq!(talk("").await, "", "no header at all");
    let idle = talk("GET /livez HTTP/1.1\r\nHost: r\r\n\r\n").await;
    assert!(idle.starts_with("HTTP/1.1 200"), "an idle connection is closed after its answer: {idle}");
}

#[tokio::test]
async fn it_ends_gracefully() {
    let folder = tempfile::tempdir().unwrap();
    let server = Outside::start(&folder.path().join("store"), &[]);
    let address = server.url.trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(address).unwrap();
    // Two requests at once: when the first is answered, the server has the second in hand.
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: r\r\n\r\n").unwrap();
    stream.write_all(b"GET /v1/services/web/targets?index=0&wait=300s HTTP/1.1\r\nHost: r\r\n\r\n").unwrap();
    let (said, heard) = tokio::sync::oneshot::channel();
    let reading = tokio::task::spawn_blocking(move || {
        let mut first = [0; 1024];
        let count = stream.read(&mut first).unwrap();
        said.send(String::from_utf8_lossy(&first[..count]).into_owned()).unwrap();
        let mut second = String::new();
        stream.read_to_string(&mut second).unwrap();
        second
    });
    assert!(heard.await.unwrap().starts_with("HTTP/1.1 200"));
    server.terminate();
    let ended = tokio::task::spawn_blocking(move || server.ended());
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("long before the wait is over").unwrap();
    assert_eq!(ended.code(), Some(0));
    let second = reading.await.unwrap();
    assert!(second.starts_with("HTTP/1.1 200") && second.ends_with(r#"{"service":"web","index":0,"targets":[]}"#), "{second}");
}

/// Takes writes until the disk is full: it must say so, keep what it answered, and ask to be started again.
#[tokio::test]
async fn a_full_disk_is_said_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let server = Outside::start_on_small_disk(&store, 4096);
    let mut answered = 0;
    let refused = loop {
        let changes: Vec<_> = (0..100)
            .map(|number| {
                json!({
                    "operation": "register", "address": "10.0.0.1:80", "uid": format!("{answered}-{number}-{}", "x".repeat(200)),
                    "pod": {"namespace": "n".repeat(250), "name": "p".repeat(250)},
                })
            })
            .collect();
        let url = format!("{}/v1/services/s{}/changes", server.url, answered / 1000);
        match ask(Method::POST, &url, Some(json!({"changes": changes}))).await {
            (StatusCode::OK, _) => answered += 100,
            (status, refusal) => break (status, refusal["reason"].clone()),
        }
        assert!(answered < 50_000, "the disk is never full");
    };
    assert_eq!(refused, (StatusCode::SERVICE_UNAVAILABLE, json!("StoreFailed")));
    for probe in ["/livez", "/readyz"] {
        assert_eq!(ask(Method::GET, &format!("{}{probe}", server.url), None).await.0, 503, "{probe}");
    }
    server.kill();
    let server = Outside::start(&store, &[]);
    let services = get(&format!("{}/v1/services", server.url)).await;
    let kept: u64 = services["services"].as_array().unwrap().iter().map(|service| service["targets"].as_u64().unwrap()).sum();
    assert!(kept >= answered, "{kept} of {answered}");
}

/// A copy that was made while writes went on is a store: a server goes on from it.
#[tokio::test]
async fn a_backup_is_a_store_with_all_that_was_answered_before() {
    const BEFORE: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let server = Outside::start(&folder.path().join("registry.redb"), &[]);
    let target = |number: usize| format!("/v1/services/web/targets/10.0.0.1:{}/u-{number}", number + 1);
    assert_eq!(put(&format!("{}/v1/services/web", server.url), json!({"drainDelay": "7s"})).await, 201);
    assert_eq!(put(&format!("{}/v1/behaviour", server.url), json!({"registerDelay": "1h"})).await, 200);
    for number in 0..BEFORE {
        assert_eq!(put(&format!("{}{}", server.url, target(number)), json!({"state": "active", "cluster": "c"})).await, 201);
    }
    let writing = async {
        for number in BEFORE..2 * BEFORE {
            assert_eq!(put(&format!("{}{}", server.url, target(number)), json!({"state": "active"})).await, 201);
        }
    };
    let copying = async { reqwest::get(format!("{}/v1/backup", server.url)).await.unwrap().bytes().await.unwrap() };
    let (copy, ()) = tokio::join!(copying, writing);
    server.kill();
    assert!(!folder.path().join("registry.redb.backup").exists(), "nothing of it is left");

    let restored = folder.path().join("restored.redb");
    std::fs::write(&restored, copy).unwrap();
    let server = Outside::start(&restored, &[]);
    let list = get(&format!("{}/v1/services/web/targets", server.url)).await;
    let listed: Vec<&str> = list["targets"].as_array().unwrap().iter().map(|target| target["uid"].as_str().unwrap()).collect();
    assert!((0..BEFORE).all(|number| listed.contains(&&*format!("u-{number}"))), "{listed:?}");
    assert!((BEFORE..=2 * BEFORE).contains(&listed.len()), "{} targets", listed.len());
    assert_eq!(list["targets"][0]["cluster"], "c");
    assert_eq!(get(&format!("{}/v1/services/web", server.url)).await["drainDelay"], "7s");
    assert_eq!(get(&format!("{}/v1/behaviour", server.url)).await["registerDelay"], "1h");
    let index = list["index"].as_u64().unwrap();
    assert_eq!(put(&format!("{}{}", server.url, target(2 * BEFORE)), json!({"state": "active"})).await, 201);
    let next = get(&format!("{}/v1/services/web/targets", server.url)).await["index"].as_u64().unwrap();
    assert!(next > index, "{next} after {index}: it goes on");
}

#[tokio::test]
async fn a_backup_is_for_those_with_the_token_and_two_at_once_are_both_whole() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let server = Inside::start(&folder.path().join("registry.redb"), &["--token-file", token.to_str().unwrap()]).await;
    let url = format!("{}/v1/backup", server.url);
    assert_eq!(reqwest::get(&url).await.unwrap().status(), StatusCode::UNAUTHORIZED);
    let client = Client::builder().no_proxy().build().unwrap();
    let copy = async || client.get(&url).bearer_auth("secret").send().await.unwrap().bytes().await.unwrap();
    let copies = tokio::join!(copy(), copy());
    std::fs::create_dir(folder.path().join("registry.redb.backup")).unwrap();
    let failed = client.get(&url).bearer_auth("secret").send().await.unwrap();
    assert_eq!(failed.status(), StatusCode::SERVICE_UNAVAILABLE, "there is no room for a copy");
    assert!(failed.text().await.unwrap().contains("BackupFailed"));
    server.stop().await;
    for (name, copy) in [("one", copies.0), ("two", copies.1)] {
        let store = folder.path().join(name);
        std::fs::write(&store, copy).unwrap();
        Inside::start(&store, &[]).await.stop().await;
    }
}
