//! The credentials of the environment, as a process gets them: each test runs one of its own, since an environment is a whole process's.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use lockstep::registry::Registry;
use lockstep::registry::aws::Aws;
use serde_json::json;

use crate::elbv2::Simulator;
use crate::elbv2::model::Group;
use crate::registry_aws_ground::config;

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

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// What came of reading the group.
    async fn run(&self) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "registry_aws_chain::in_an_environment_of_its_own", "--ignored", "--nocapture"]);
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
    let driver = Aws::new(&config(&url), &Arc::from("edge"), "here").unwrap();
    let listed = driver.list(&arn, None).await;
    println!("came to: {:?}", listed.map(|listing| listing.targets.len()));
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
