//! The aws driver in front of the simulator: how tests open it, what they send, and what came of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::credential_fn::provide_credentials_fn;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use lockstep::config::{AwsConfig, Mode, Services, TargetGroup};
use lockstep::reconcile::clock::Clock;
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::registry::aws::Aws;
use lockstep::registry::{Change, ChangeError, Operation, Registry};
use lockstep::target::{PodKey, PodUid, TargetState};

use crate::elbv2::model::Group;
use crate::elbv2::{REGION, Simulator};

/// A simulator with one group, and a driver for it.
pub(crate) struct Ground {
    pub(crate) simulator: Simulator,
    pub(crate) arn: String,
    pub(crate) driver: Aws,
}

impl Ground {
    pub(crate) async fn start(group: Group) -> Self {
        Self::bound(group, Mode::Own, &[]).await
    }

    /// One whose binding says more.
    pub(crate) async fn bound(group: Group, mode: Mode, accept_states: &[&str]) -> Self {
        let simulator = Simulator::start().await;
        let arn = simulator.model().add("web", group);
        let driver = driver(&config(&simulator.url));
        let ground = Self { simulator, arn, driver };
        ground.bind(mode, accept_states);
        ground
    }

    /// Tells the driver what the binding says now.
    pub(crate) fn bind(&self, mode: Mode, accept_states: &[&str]) {
        let accept_states = accept_states.iter().map(|&state| state.to_owned()).collect();
        let groups = BTreeMap::from([(self.arn.as_str().into(), TargetGroup { mode, accept_states })]);
        self.driver.bind(Services { groups, ..Services::default() });
    }

    /// A driver that knows nothing yet, as after a restart.
    pub(crate) fn restart(&mut self) {
        self.driver = driver(&config(&self.simulator.url));
    }

    pub(crate) async fn register(&self, addresses: &[SocketAddr]) -> Vec<Result<(), ChangeError>> {
        self.driver.apply(&self.arn, &changes(Operation::Register, addresses)).await.unwrap()
    }

    pub(crate) async fn deregister(&self, addresses: &[SocketAddr]) -> Vec<Result<(), ChangeError>> {
        self.driver.apply(&self.arn, &changes(Operation::Deregister, addresses)).await.unwrap()
    }

    pub(crate) async fn states(&self) -> Vec<(SocketAddr, TargetState)> {
        let listing = self.driver.list(&self.arn, None).await.unwrap();
        listing.targets.into_iter().map(|target| (target.address, target.state)).collect()
    }

    /// How often an action was called.
    pub(crate) fn count(&self, action: &str) -> usize {
        self.simulator.model().calls.iter().filter(|call| call.action() == action).count()
    }
}

/// Settings of a registry at `endpoint`.
pub(crate) fn config(endpoint: &str) -> AwsConfig {
    AwsConfig { region: REGION.into(), endpoint: Some(endpoint.into()), assume_role: None }
}

/// A driver with a key that the simulator takes.
pub(crate) fn driver(config: &AwsConfig) -> Aws {
    with_credentials(config, Credentials::new("AKIDGOOD", "secret", None, None, "test"))
}

pub(crate) fn with_credentials(config: &AwsConfig, credentials: impl ProvideCredentials + 'static) -> Aws {
    Aws::with_credentials(config, &Arc::from("subject"), "here", credentials).unwrap()
}

/// Credentials whose key is in a file; they expire soon, as those of a container do.
pub(crate) fn in_file(file: &Path) -> impl ProvideCredentials + 'static {
    let file = PathBuf::from(file);
    provide_credentials_fn(move || {
        let key = std::fs::read_to_string(&file).map_err(CredentialsError::provider_error);
        async move {
            let soon = SystemTime::from(TokioClock::start().wall()) + Duration::from_secs(1);
            Ok(Credentials::new(key?.trim(), "secret", None, Some(soon), "test"))
        }
    })
}

pub(crate) fn changes(operation: Operation, addresses: &[SocketAddr]) -> Vec<Change> {
    let change = |(place, address): (usize, &SocketAddr)| Change {
        operation,
        address: *address,
        uid: PodUid::new(format!("uid-{place}")),
        pod: PodKey::new("shop", format!("web-{place}")),
        cluster: "here".into(),
        weight: 100,
    };
    addresses.iter().enumerate().map(change).collect()
}

/// `count` addresses of a range.
pub(crate) fn addresses(prefix: &str, count: u32) -> Vec<SocketAddr> {
    (0..count).map(|n| format!("{prefix}.{}.{}:8080", n / 250, n % 250 + 1).parse().unwrap()).collect()
}
