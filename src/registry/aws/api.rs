//! The few calls of the ELBv2 API that the driver makes, and the credentials for them.
//!
//! Credentials come from the SDK's usual chain: environment, profile files where there are some, web identity (IRSA), the container
//! endpoint (EKS Pod Identity), the instance's metadata. The last two are link-local by design: the chain may ask them, a configured
//! endpoint may not be there.
//!
//! Invariant: the endpoint and the region are those of the configuration, whatever environment and profile files say of them.
//! Invariant: credentials that AWS refused are not used again; the next call gets them anew.
//! Absent on purpose: retries and time-outs of the SDK, external IDs and session policies of an assumed role.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_config::{Region, SdkConfig};
use aws_sdk_elasticloadbalancingv2::config::http::HttpResponse;
use aws_sdk_elasticloadbalancingv2::config::retry::RetryConfig;
use aws_sdk_elasticloadbalancingv2::config::timeout::TimeoutConfig;
use aws_sdk_elasticloadbalancingv2::config::{
    BehaviorVersion, IdentityCache, SharedCredentialsProvider, SharedHttpClient, StalledStreamProtectionConfig,
};
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_elasticloadbalancingv2::types::{Tag, TargetDescription, TargetGroup, TargetHealthDescription};
use aws_sdk_elasticloadbalancingv2::{Client, Config};
use aws_smithy_async::rt::sleep::{SharedAsyncSleep, TokioSleep};
use aws_smithy_async::time::SystemTimeSource;
use tokio::sync::Mutex;

use super::failure::Failure;
use super::wire;
use crate::config::AwsConfig;
use crate::reconcile::OpenError;
use crate::registry::CallError;
use crate::registry::endpoint::Endpoint;

/// Credentials that are not there by then leave a call no time; shorter than a call, so that it is known that nothing left.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(4);
/// STS takes no longer names of a session.
const SESSION_LONGEST: usize = 64;

/// A client for the target groups of one region.
#[derive(Debug)]
pub(super) struct Api {
    region: Region,
    endpoint: Option<String>,
    role: Option<String>,
    session: String,
    source: Option<SharedCredentialsProvider>,
    http: SharedHttpClient,
    client: Mutex<Option<Client>>,
}

/// What a change does to its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// They are registered.
    In,
    /// They are deregistered.
    Out,
}

impl Api {
    /// The API that `config` describes; `source` stands in for the usual chain. Does no I/O.
    pub(super) fn new(
        config: &AwsConfig,
        registry: &Arc<str>,
        cluster: &str,
        source: Option<SharedCredentialsProvider>,
    ) -> Result<Self, OpenError> {
        // Where there is no endpoint in the configuration, the SDK knows the region's; here it only says that it speaks TLS.
        let somewhere = format!("https://elasticloadbalancing.{}.amazonaws.com", config.region);
        let endpoint = Endpoint::new(config.endpoint.as_deref().unwrap_or(&somewhere), None, registry, Path::new(""))?;
        Ok(Self {
            region: Region::new(config.region.clone()),
            endpoint: config.endpoint.clone(),
            role: config.assume_role.clone(),
            session: session(cluster),
            source,
            http: wire::client(endpoint),
            client: Mutex::default(),
        })
    }

    /// These target groups, at most 20; all of it is refused where one is missing.
    pub(super) async fn groups(&self, arns: &[Arc<str>]) -> Result<Vec<TargetGroup>, Failure> {
        let arns = arns.iter().map(|arn| arn.to_string()).collect();
        let asked = |client: Client| client.describe_target_groups().set_target_group_arns(Some(arns)).send();
        Ok(self.call(asked).await?.target_groups.unwrap_or_default())
    }

    /// The keys of the tags of these target groups, at most 20; all of it is refused where one is missing.
    pub(super) async fn tags(&self, arns: &[Arc<str>]) -> Result<HashMap<Arc<str>, Vec<String>>, Failure> {
        let arns = arns.iter().map(|arn| arn.to_string()).collect();
        let answer = self.call(|client| client.describe_tags().set_resource_arns(Some(arns)).send()).await?;
        let described = answer.tag_descriptions.unwrap_or_default().into_iter();
        let keys = |tags: Vec<Tag>| tags.into_iter().filter_map(|tag| tag.key).collect();
        Ok(described.filter_map(|one| Some((one.resource_arn?.into(), keys(one.tags.unwrap_or_default())))).collect())
    }

    /// One attribute of the target group.
    pub(super) async fn attribute(&self, arn: &str, key: &str) -> Result<Option<String>, CallError> {
        let asked = |client: Client| client.describe_target_group_attributes().target_group_arn(arn).send();
        let answer = self.call(asked).await.map_err(Failure::call)?;
        let mut attributes = answer.attributes.unwrap_or_default().into_iter();
        Ok(attributes.find(|attribute| attribute.key() == Some(key)).and_then(|attribute| attribute.value))
    }

    /// Every target of the group with its health; the API does not page this.
    pub(super) async fn health(&self, arn: &str) -> Result<Vec<TargetHealthDescription>, CallError> {
        let asked = |client: Client| client.describe_target_health().target_group_arn(arn).send();
        Ok(self.call(asked).await.map_err(Failure::call)?.target_health_descriptions.unwrap_or_default())
    }

    /// Registers or deregisters all of `targets`, or none.
    pub(super) async fn change(&self, direction: Direction, arn: &str, targets: Vec<TargetDescription>) -> Result<(), Failure> {
        match direction {
            Direction::In => {
                let asked = |client: Client| client.register_targets().target_group_arn(arn).set_targets(Some(targets)).send();
                self.call(asked).await.map(|_| ())
            }
            Direction::Out => {
                let asked = |client: Client| client.deregister_targets().target_group_arn(arn).set_targets(Some(targets)).send();
                self.call(asked).await.map(|_| ())
            }
        }
    }

    async fn call<T, E, F>(&self, request: impl FnOnce(Client) -> F) -> Result<T, Failure>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let answer = request(self.client().await).await;
        let failure = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => Failure::of(&error),
        };
        if matches!(failure, Failure::Stale(_)) {
            *self.client.lock().await = None;
        }
        Err(failure)
    }

    async fn client(&self) -> Client {
        let mut known = self.client.lock().await;
        if let Some(client) = &*known {
            return client.clone();
        }
        let mut config = Config::builder();
        config.set_endpoint_url(self.endpoint.clone());
        let config = config
            .behavior_version(BehaviorVersion::latest())
            .region(self.region.clone())
            .credentials_provider(self.credentials().await)
            .identity_cache(IdentityCache::lazy().load_timeout(CREDENTIALS_TIMEOUT).build())
            .http_client(self.http.clone())
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .build();
        let client = Client::from_conf(config);
        *known = Some(client.clone());
        client
    }

    /// Where credentials come from; does no I/O but reading profile files, where there are some.
    async fn credentials(&self) -> SharedCredentialsProvider {
        let source = match &self.source {
            Some(source) => source.clone(),
            None => {
                let config = ProviderConfig::without_region().with_behavior_version(Some(BehaviorVersion::latest()));
                let chain = DefaultCredentialsChain::builder().configure(config).region(self.region.clone()).build().await;
                SharedCredentialsProvider::new(chain)
            }
        };
        match &self.role {
            Some(role) => self.assumed(role, source, None).await,
            None => source,
        }
    }

    /// Credentials of a role that `source` may assume; `endpoint` stands in for the region's STS.
    async fn assumed(&self, role: &str, source: SharedCredentialsProvider, endpoint: Option<&str>) -> SharedCredentialsProvider {
        let mut config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(self.region.clone())
            // A configuration that the SDK has not loaded by itself has neither of these, and the provider panics without.
            .time_source(SystemTimeSource::new())
            .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()));
        config.set_endpoint_url(endpoint.map(str::to_owned));
        let assumed = AssumeRoleProvider::builder(role).session_name(&self.session).configure(&config.build());
        SharedCredentialsProvider::new(assumed.build_from_provider(source).await)
    }
}

/// The name under which CloudTrail shows what was done with an assumed role.
fn session(cluster: &str) -> String {
    let plain = cluster.chars().map(|one| if one.is_ascii_alphanumeric() || "-_.".contains(one) { one } else { '-' });
    "lockstep-".chars().chain(plain).take(SESSION_LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use aws_credential_types::Credentials;
    use aws_credential_types::provider::ProvideCredentials;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    /// An STS that lets whoever asks assume the role, and tells what it was asked.
    async fn sts(asked: mpsc::UnboundedSender<String>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = |body: String| async move {
            asked.send(body).unwrap();
            "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>\
                <AccessKeyId>AKIDROLE</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>\
                <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        };
        let router = axum::Router::new().route("/", axum::routing::post(answer));
        tokio::spawn(async { axum::serve(listener, router).await });
        address
    }

    #[tokio::test]
    async fn a_role_is_assumed_under_our_name() {
        let (tell, mut asked) = mpsc::unbounded_channel();
        let endpoint = format!("http://{}", sts(tell).await);
        let role = "arn:aws:iam::123456789012:role/edge";
        let config = AwsConfig { region: "eu-west-1".into(), endpoint: None, assume_role: Some(role.into()), groups: Default::default() };
        let source = SharedCredentialsProvider::new(Credentials::new("AKIDOWN", "secret", None, None, "test"));
        let api = Api::new(&config, &Arc::from("edge"), "prod-eu-1", Some(source.clone())).unwrap();
        let assumed = api.assumed(role, source, Some(&endpoint)).await.provide_credentials().await.unwrap();
        assert_eq!(assumed.access_key_id(), "AKIDROLE");
        let asked = asked.recv().await.unwrap();
        for part in ["Action=AssumeRole", "RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fedge", "RoleSessionName=lockstep-prod-eu-1"] {
            assert!(asked.contains(part), "{asked}");
        }
    }

    #[test]
    fn the_name_of_a_session_fits_sts() {
        assert_eq!(session("prod-eu-1"), "lockstep-prod-eu-1");
        let long = session(&"ü".repeat(100));
        assert!(long.len() == SESSION_LONGEST && long.ends_with('-'), "{long}");
    }
}
