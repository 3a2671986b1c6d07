//! The http driver where the ordinary server cannot be brought to it: other answers, other hosts, TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;

use lockstep::config::HttpConfig;
use lockstep::registry::http::Http;
use lockstep::registry::{CallError, Change, ChangeError, Operation, Registry};
use lockstep::target::{PodKey, PodUid};
use rstest::rstest;

use crate::registry_ground::Inside;
use crate::stand_in::{Fixed, Front};

fn open(url: &str, ca: Option<&str>, credentials: &Path) -> Http {
    let config = HttpConfig { url: url.to_owned(), token: None, ca: ca.map(str::to_owned) };
    Http::new(&config, &"first".into(), credentials).unwrap()
}

fn plain(address: SocketAddr) -> Http {
    open(&format!("http://{address}"), None, Path::new("/nowhere"))
}

fn register(uid: &str) -> Change {
    let (address, pod) = ("10.0.0.1:80".parse().unwrap(), PodKey::new("shop", "web-1"));
    Change { operation: Operation::Register, address, uid: PodUid::new(uid), pod, cluster: "here".into(), weight: 100 }
}

const REFUSAL: &str = r#"{"reason":"R","message":"no\nway","remedy":"Ask."}"#;

#[rstest]
#[case(401, REFUSAL, CallError::Denied("401: no way (R). Ask.".into()))]
#[case(403, "<h1>no</h1>", CallError::Denied("403: <h1>no</h1>".into()))]
#[case(404, REFUSAL, CallError::ServiceMissing("404: no way (R). Ask.".into()))]
#[case(404, "default backend", CallError::Failed("404: default backend; is the url that of the registry?".into()))]
#[case(429, REFUSAL, CallError::Throttled("429: no way (R). Ask.".into()))]
#[case(500, "", CallError::Failed("500:".into()))]
#[case(503, REFUSAL, CallError::Failed("503: no way (R). Ask.".into()))]
#[tokio::test]
async fn a_status_is_an_error_of_its_kind(#[case] status: u16, #[case] body: &str, #[case] error: CallError) {
    let server = Fixed::with_status(status, "", body);
    let driver = plain(server.address);
    assert_eq!(driver.list("web", None).await, Err(error.clone()));
    assert_eq!(driver.apply("web", &[register("a")]).await, Err(error.clone()));
    assert_eq!(driver.drain_delay("web").await, Err(error));
}

#[rstest]
#[case::not_json("<html>")]
#[case::another_shape(r#"{"services":[]}"#)]
#[case::a_state_that_nobody_knows(r#"{"service":"web","index":1,"targets":[{"address":"10.0.0.1:80","uid":"u","state":"fine"}]}"#)]
#[case::too_few_results(r#"{"index":1,"results":[]}"#)]
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_a_failure(#[case] body: &str) {
    let server = Fixed::with_status(200, "", body);
    let driver = plain(server.address);
    assert!(matches!(driver.list("web", None).await, Err(CallError::Failed(_))));
    assert!(matches!(driver.apply("web", &[register("a")]).await, Err(CallError::Failed(_))));
}

#[rstest]
#[case(403, "R", ChangeError::Denied("no (R). Ask.".into()))]
#[case(404, "R", ChangeError::Refused("no (R). Ask.".into()))]
#[case(409, "R", ChangeError::Refused("no (R). Ask.".into()))]
#[case(409, "ServiceFull", ChangeError::Full("no (ServiceFull). Ask.".into()))]
#[case(429, "R", ChangeError::Throttled("no (R). Ask.".into()))]
#[tokio::test]
async fn a_result_is_an_error_of_its_kind(#[case] status: u16, #[case] reason: &str, #[case] error: ChangeError) {
    let refusal = format!(r#"{{"reason":"{reason}","message":"no","remedy":"Ask."}}"#);
    let server = Fixed::with_status(200, "", &format!(r#"{{"index":1,"results":[{{"status":{status},"error":{refusal}}}]}}"#));
    assert_eq!(plain(server.address).apply("web", &[register("a")]).await, Ok(vec![Err(error)]));
}

#[tokio::test]
async fn a_connection_that_breaks_off_leaves_it_open() {
    let driver = plain(Fixed::start("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".into()).address);
    assert!(matches!(driver.apply("web", &[register("a")]).await, Err(CallError::Failed(_))));
    let driver = plain(Fixed::start(String::new()).address);
    assert!(matches!(driver.apply("web", &[register("a")]).await, Err(CallError::Failed(_))));
}

#[tokio::test]
async fn an_endless_answer_is_given_up() {
    let driver = plain(Fixed::start(format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", " ".repeat(17 * 1024 * 1024))).address);
    let listed = driver.list("web", None).await;
    assert!(matches!(&listed, Err(CallError::Failed(text)) if text.contains("longer than")), "{listed:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Fixed::with_status(200, "", r#"{"service":"web","index":1,"targets":[]}"#);
    let server = Fixed::with_status(307, &format!("Location: http://localhost:{}/\r\n", elsewhere.address.port()), "");
    let listed = plain(server.address).list("web", None).await;
    assert!(matches!(&listed, Err(CallError::Failed(text)) if text.contains("redirects are not followed")), "{listed:?}");
    assert_eq!(elsewhere.count.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_drain_delay_is_what_the_server_says() {
    let folder = tempfile::tempdir().unwrap();
    let server = Inside::start(&folder.path().join("store"), &[]).await;
    let driver = open(&server.url, None, folder.path());
    assert_eq!(driver.drain_delay("web").await, Ok(None));
    let body = serde_json::json!({"drainDelay": "1m30s"});
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.put(format!("{}/v1/services/web", server.url)).json(&body).send().await.unwrap();
    assert_eq!(driver.drain_delay("web").await, Ok(Some(std::time::Duration::from_secs(90))));
}

#[tokio::test]
async fn tls_trusts_the_named_authority_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Inside::start(&folder.path().join("store"), &[]).await;
    let (right, wrong) = (Front::start(&server.url).await, Front::start(&server.url).await);
    let file = folder.path().join("ca.crt");
    std::fs::write(&file, &wrong.ca).unwrap();
    let driver = open(&right.url, Some("ca.crt"), folder.path());
    let refused = driver.apply("web", &[register("a")]).await;
    assert!(matches!(&refused, Err(CallError::Unavailable(text)) if text.contains("invalid peer certificate")), "{refused:?}");
    std::fs::write(&file, &right.ca).unwrap();
    assert_eq!(driver.apply("web", &[register("a")]).await, Ok(vec![Ok(())]), "the changed file counts");
    std::fs::write(&file, "no certificate").unwrap();
    let unusable = driver.list("web", None).await;
    assert!(matches!(&unusable, Err(CallError::Unavailable(text)) if text.contains("no PEM certificate")), "{unusable:?}");
    let system = open(&right.url, None, folder.path()).list("web", None).await;
    assert!(matches!(system, Err(CallError::Unavailable(_))), "the system does not know it: {system:?}");
}
