//! Second opinions on the wire format: botocore's model of the ELBv2 API on the simulator, and moto on the driver.
//!
//! The simulator is our own reading of the reference; these were written by others, who know nothing of it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockstep::registry::{Operation, Registry};
use lockstep::target::TargetState;
use serde_json::{Value, json};

use crate::elbv2::Simulator;
use crate::elbv2::model::Group;
use crate::programs::printed;
use crate::registry_aws_ground::{addresses, changes, config, driver};

/// moto as a child process; it ends when this is dropped.
struct Moto {
    child: Child,
    url: String,
    arn: String,
}

impl Moto {
    fn start() -> Self {
        let mut child = python("moto_server.py").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("moto says where it is: {line:?}"));
        let text = |key: &str| said[key].as_str().unwrap().to_owned();
        Self { child, url: text("url"), arn: text("arn") }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A script of ours in the environment that has moto and botocore; it is made where it is missing.
fn python(script: &str) -> Command {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration");
    let mut command = Command::new(printed("tests/integration/python", "moto").join("python"));
    command.arg(format!("{here}/elbv2/{script}")).env("NO_PROXY", "127.0.0.1");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn botocore_finds_nothing_strange_in_the_simulator() {
    let simulator = Simulator::start().await;
    let healthy = ["10.0.0.1:8080".parse().unwrap(), "10.0.0.2:8080".parse().unwrap()];
    let (full, others) = {
        let mut model = simulator.model();
        let tags = [("team".to_owned(), "shop & <co>".to_owned())].into();
        let full = model.add("web", Group { room: 2, bad: vec!["10.0.0.9".parse().unwrap()], tags, ..Group::default() });
        let aged = model.add("aged", Group { ill: vec!["10.0.0.2".parse().unwrap()], protocol: "TLS", ..Group::default() });
        let unused = model.add("unused", Group { listener: false, ..Group::default() });
        healthy.iter().for_each(|address| model.put(&aged, *address));
        model.put(&unused, healthy[0]);
        model.pass(Duration::from_secs(600));
        (0..398).for_each(|n| _ = model.add(&format!("g{n}"), Group::default()));
        (full, [aged, unused])
    };
    let answer = python("ask.py").arg(&simulator.url).arg(&full).args(&others).output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let came: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let wanted = json!({
        "group": ["ip", "ipv4", "HTTP"],
        "tags": [{"Key": "team", "Value": "shop & <co>"}],
        "attributes": {"deregistration_delay.timeout_seconds": "300", "stickiness.enabled": "false"},
        "groups": 401,
        "unknown": [["10.0.0.7", "unused", "Target.NotRegistered"]],
        "full": "TooManyTargetsException",
        "bad": "InvalidTargetException",
        "missing": "TargetGroupNotFoundException",
        "states": [
            ["10.0.0.1", "initial", "Elb.RegistrationInProgress"],
            ["10.0.0.2", "draining", "Target.DeregistrationInProgress"],
            ["10.0.0.1", "healthy", null],
            ["10.0.0.2", "unhealthy", "Target.FailedHealthChecks"],
            ["10.0.0.1", "unused", "Target.NotInUse"],
        ],
        "strangers": [],
    });
    assert_eq!(came, wanted);
}

#[tokio::test]
async fn moto_understands_the_driver() {
    let moto = tokio::task::spawn_blocking(Moto::start).await.unwrap();
    let driver = driver(&config(&moto.url));
    assert_eq!(driver.drain_delay(&moto.arn).await, Ok(Some(Duration::from_secs(45))));
    assert_eq!(driver.list(&moto.arn, None).await.unwrap().targets, []);
    let all = addresses("10.0", 150);
    let results = driver.apply(&moto.arn, &changes(Operation::Register, &all)).await.unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let listing = driver.list(&moto.arn, None).await.unwrap();
    assert!(listing.targets.iter().all(|target| target.state == TargetState::Active), "{listing:?}");
    let mut listed: Vec<_> = listing.targets.iter().map(|target| target.address).collect();
    listed.sort();
    assert_eq!(listed, all);
    let mixed = [changes(Operation::Deregister, &all[..149]), changes(Operation::Register, &all[149..])].concat();
    let results = driver.apply(&moto.arn, &mixed).await.unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let left: Vec<_> = driver.list(&moto.arn, None).await.unwrap().targets.into_iter().map(|target| target.address).collect();
    assert_eq!(left, all[149..]);
    let missing = moto.arn.replace("/web/", "/missing/");
    let listed = driver.list(&missing, None).await;
    assert!(matches!(listed, Err(lockstep::registry::CallError::ServiceMissing(_))), "{listed:?}");
}
