//! The credentials of the environment, as a process gets them: each test runs one of its own, since an environment is a whole process's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use lockstep::config::AwsConfig;
use lockstep::reconcile::clock::Clock;
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::registry::Registry;
use lockstep::registry::aws::Aws;
use rstest::rstest;
use serde_json::json;
use tokio::time::Instant;

use crate::elbv2::Simulator;
use crate::elbv2::model::Group;
use crate::registry_aws_ground::config;
use crate::registry_aws_life::Life;

const SECOND: Duration = Duration::from_secs(1);

/// What a process sees that the test runs.
struct Process {
    simulator: Simulator,
    arn: String,
    environment: Vec<(&'static str, String)>,
}

impl Process {
    async fn new() -> Self {
        let simulator = Simulator::start().await;
        let arn = simulator.model().add("web", Group::default());
        Self { simulator, arn, environment: Vec::new() }
    }

    /// One with keys of its own, which is to assume a role.
    async fn in_role(role: &str, sts: &Sts) -> Self {
        let process = Self::new().await.with("AWS_ACCESS_KEY_ID", "AKIDOWN").with("AWS_SECRET_ACCESS_KEY", "secret");
        process.with("AWS_ENDPOINT_URL_STS", &sts.url).with("ELBV2_ROLE", role)
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// What came of reading the group.
    async fn run(&self) -> String {
        self.run_test("in_an_environment_of_its_own").await
    }

    async fn run_test(&self, name: &str) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("registry_aws_chain::{name}"), "--ignored", "--nocapture"]);
        command.env_clear().env("ELBV2_URL", &self.simulator.url).env("ELBV2_GROUP", &self.arn);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find_map(|line| line.split_once("came to: ")).unwrap_or_else(|| panic!("{output:?}")).1.to_owned()
    }

    fn keys(&self) -> Vec<String> {
        self.simulator.model().keys.iter().cloned().collect()
    }
}

#[tokio::test]
#[ignore = "the others run it, each in an environment of its own"]
#[expect(clippy::disallowed_methods, reason = "the environment is what this is about")]
async fn in_an_environment_of_its_own() {
    let [url, arn] = ["ELBV2_URL", "ELBV2_GROUP"].map(|name| std::env::var(name).unwrap());
    let config = AwsConfig { assume_role: std::env::var("ELBV2_ROLE").ok(), ..config(&url) };
    let driver = Aws::new(&config, &Arc::from("edge"), "prod-eu-1").unwrap();
    let mut listed = driver.list(&arn, None).await;
    if let Ok(next) = std::env::var("NEXT_TOKEN") {
        std::fs::write(std::env::var("AWS_WEB_IDENTITY_TOKEN_FILE").unwrap(), next).unwrap();
        listed = driver.list(&arn, None).await;
    }
    println!("came to: {:?}", listed.map(|listing| listing.targets.len()));
}

#[tokio::test(start_paused = true)]
#[ignore = "another runs it, in an environment of its own"]
#[expect(clippy::disallowed_methods, reason = "the environment is what this is about")]
async fn a_life_in_an_environment_of_its_own() {
    let open = |config: &AwsConfig| Aws::new(config, &Arc::from("edge"), "prod-eu-1").unwrap();
    let life = Life::with(vec![(Group { delay: 30, ..Group::default() }, "")], open).await;
    let mut took = Vec::new();
    for (name, ip) in [("web-1", "10.0.0.1"), ("web-2", "10.0.0.2")] {
        let begun = Instant::now();
        life.cluster.run(name, &[ip]);
        life.cluster.until("the gate opens", |cluster| cluster.is_open(name)).await;
        took.push(begun.elapsed());
        // The kubelet writes the file anew.
        std::fs::write(std::env::var("AWS_WEB_IDENTITY_TOKEN_FILE").unwrap(), "SECOND").unwrap();
        if std::env::var("REFUSE_FIRST").is_ok() {
            life.simulator.model().refused_keys.insert("AKIDFIRST".to_owned(), "ExpiredToken");
        }
    }
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    let keys: Vec<_> = life.simulator.model().keys.iter().cloned().collect();
    assert_eq!(keys, ["AKIDFIRST", "AKIDSECOND"]);
    assert!(took[1] < took[0] + Duration::from_secs(6), "the second pod waited longer: {took:?}");
    let text = life.metrics.encode();
    let failed = text.lines().filter(|line| line.starts_with("lockstep_registry_calls_total") && !line.contains("outcome=\"ok\""));
    let failed: u64 = failed.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    life.end().await;
    println!("came to: {failed}");
}

#[tokio::test]
async fn keys_of_the_environment_count_and_nothing_else_of_it() {
    let process = Process::new().await.with("AWS_ACCESS_KEY_ID", "AKIDENV").with("AWS_SECRET_ACCESS_KEY", "secret");
    let process = process
        .with("AWS_REGION", "us-east-1")
        .with("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        .with("AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2", "http://127.0.0.1:9")
        .with("HTTP_PROXY", "http://127.0.0.1:9");
    assert_eq!(process.run().await, "Ok(0)");
    assert_eq!(process.keys(), ["AKIDENV"]);
}

/// As EKS Pod Identity does it: an endpoint of the node, and a token in a file.
#[tokio::test]
async fn a_container_asks_the_endpoint_of_its_node() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "let-me-in").unwrap();
    let agent = agent().await;
    let process = Process::new()
        .await
        .with("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{agent}/v1/credentials"))
        .with("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.to_str().unwrap());
    assert_eq!(process.run().await, "Ok(0)");
    assert_eq!(process.keys(), ["AKIDPOD"]);
    std::fs::write(&token, "another").unwrap();
    let came = process.run().await;
    assert!(came.starts_with("Err(Unavailable("), "{came}");
}

#[tokio::test]
async fn an_environment_without_credentials_is_told_soon() {
    let process = Process::new().await.with("AWS_EC2_METADATA_DISABLED", "true");
    let came = process.run().await;
    assert!(came.starts_with("Err(Unavailable(\"nothing can be sent: "), "{came}");
    assert!(process.simulator.model().calls.is_empty());
}

#[tokio::test]
async fn a_role_of_the_configuration_is_assumed_under_our_name() {
    const ROLE: &str = "arn:aws:iam::123456789012:role/edge";
    let sts = Sts::start().await;
    let process = Process::in_role(ROLE, &sts).await;
    assert_eq!(process.run().await, "Ok(0)");
    assert_eq!(process.keys(), ["AKIDASSUMED"], "the groups see the role alone");
    let asked = sts.asked.lock().unwrap().clone();
    let assumes = |(key, form): &Exchange| {
        let wanted = [("Action", "AssumeRole"), ("RoleArn", ROLE), ("RoleSessionName", "lockstep-prod-eu-1")];
        key.as_deref() == Some("AKIDOWN") && wanted.iter().all(|(name, value)| form.get(*name).is_some_and(|given| given == value))
    };
    assert!(!asked.is_empty() && asked.iter().all(assumes), "{asked:?}");
}

#[tokio::test]
async fn a_role_that_may_not_be_assumed_is_told() {
    let sts = Sts::start().await;
    let process = Process::in_role("arn:aws:iam::123456789012:role/refused", &sts).await;
    let came = process.run().await;
    assert!(came.starts_with("Err(Unavailable(") && came.contains("AccessDenied"), "{came}");
    assert!(process.simulator.model().calls.is_empty());
}

/// As IRSA does it: a role, and a token of the service account in a file that the kubelet writes anew.
#[tokio::test]
async fn a_token_of_the_service_account_is_exchanged_and_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "FIRST").unwrap();
    let sts = Sts::start().await;
    let process = Process::new()
        .await
        .with("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/lockstep")
        .with("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
        .with("AWS_ENDPOINT_URL_STS", &sts.url)
        .with("NEXT_TOKEN", "SECOND");
    assert_eq!(process.run().await, "Ok(0)");
    assert_eq!(process.keys(), ["AKIDFIRST", "AKIDSECOND"]);
    let asked = sts.asked.lock().unwrap().clone();
    let exchanges = |(key, form): &Exchange| {
        key.is_none() && form["Action"] == "AssumeRoleWithWebIdentity" && form["RoleArn"].ends_with(":role/lockstep")
    };
    assert!(asked.iter().all(exchanges), "{asked:?}");
}

/// A reconciler at work all the time, with one driver.
#[rstest]
#[case::sessions_end(SECOND, None, "0")]
#[case::a_session_is_refused_before_its_end(3600 * SECOND, Some("REFUSE_FIRST"), "1")]
#[tokio::test]
async fn no_pod_waits_when_the_session_of_an_old_token_ends(
    #[case] session: Duration,
    #[case] refuse: Option<&'static str>,
    #[case] failed: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "FIRST").unwrap();
    let sts = Sts::start_with(session).await;
    let process = Process::new()
        .await
        .with("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/lockstep")
        .with("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
        .with("AWS_ENDPOINT_URL_STS", &sts.url);
    let process = refuse.into_iter().fold(process, |process, name| process.with(name, "yes"));
    assert_eq!(process.run_test("a_life_in_an_environment_of_its_own").await, failed, "calls that failed");
}

/// An STS that gives credentials to whoever asks, but for one role.
struct Sts {
    url: String,
    /// The key that a request was signed with, and its form.
    asked: Arc<Mutex<Vec<Exchange>>>,
}

type Exchange = (Option<String>, BTreeMap<String, String>);

impl Sts {
    /// One whose sessions are over in a second, so that each call needs a new one.
    async fn start() -> Self {
        Self::start_with(SECOND).await
    }

    async fn start_with(session: Duration) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let answer = move |headers: HeaderMap, body: String| async move {
            let form = reqwest::Url::parse(&format!("http://sts/?{body}")).unwrap();
            let form: BTreeMap<String, String> = form.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
            let signed = headers.get("authorization").and_then(|value| value.to_str().ok());
            let key = signed.and_then(|text| text.split("Credential=").nth(1)?.split('/').next());
            noted.lock().unwrap().push((key.map(str::to_owned), form.clone()));
            exchange(&form, session)
        };
        let router = Router::new().route("/", post(answer));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, asked }
    }
}

fn exchange(form: &BTreeMap<String, String>, session: Duration) -> (StatusCode, String) {
    if form["RoleArn"].ends_with("/refused") {
        let error = "<Error><Type>Sender</Type><Code>AccessDenied</Code><Message>AccessDenied: not yours</Message></Error>";
        return (StatusCode::FORBIDDEN, format!("<ErrorResponse xmlns=\"{STS}\">{error}<RequestId>1</RequestId></ErrorResponse>"));
    }
    let (action, key) = (&form["Action"], form.get("WebIdentityToken").map_or("ASSUMED", String::as_str));
    let end = TokioClock::start().wall() + session;
    let credentials = format!(
        "<Credentials><AccessKeyId>AKID{key}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>\
         <Expiration>{end}</Expiration></Credentials>"
    );
    let result = format!("<{action}Result>{credentials}</{action}Result>");
    (StatusCode::OK, format!("<{action}Response xmlns=\"{STS}\">{result}</{action}Response>"))
}

const STS: &str = "https://sts.amazonaws.com/doc/2011-06-15/";

/// Gives credentials to who shows the token.
async fn agent() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = |headers: HeaderMap| async move {
        if headers.get("authorization").is_none_or(|token| token != "let-me-in") {
            return (StatusCode::UNAUTHORIZED, String::new());
        }
        let credentials =
            json!({"AccessKeyId": "AKIDPOD", "SecretAccessKey": "secret", "Token": "session", "Expiration": "2099-01-01T00:00:00Z"});
        (StatusCode::OK, credentials.to_string())
    };
    let router = Router::new().route("/v1/credentials", get(answer));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}
