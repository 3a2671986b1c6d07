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

use aws_config::Region;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_sdk_elasticloadbalancingv2::config::http::HttpResponse;
use aws_sdk_elasticloadbalancingv2::config::retry::RetryConfig;
use aws_sdk_elasticloadbalancingv2::config::timeout::TimeoutConfig;
use aws_sdk_elasticloadbalancingv2::config::{
    BehaviorVersion, IdentityCache, SharedCredentialsProvider, SharedHttpClient, StalledStreamProtectionConfig,
};
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_elasticloadbalancingv2::types::{Tag, TargetDescription, TargetGroup, TargetHealthDescription};
use aws_sdk_elasticloadbalancingv2::{Client, Config};
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
            Some(role) => self.assumed(role, source).await,
            None => source,
        }
    }

    /// Credentials of a role that `source` may assume. STS is found as the SDK finds it for the chain (`AWS_ENDPOINT_URL_STS`).
    async fn assumed(&self, role: &str, source: SharedCredentialsProvider) -> SharedCredentialsProvider {
        let config = aws_config::defaults(BehaviorVersion::latest()).region(self.region.clone()).credentials_provider(source).load().await;
        let assumed = AssumeRoleProvider::builder(role).session_name(&self.session).configure(&config);
        SharedCredentialsProvider::new(assumed.build().await)
    }
}

/// The name under which CloudTrail shows what was done with an assumed role.
fn session(cluster: &str) -> String {
    let plain = cluster.chars().map(|one| if one.is_ascii_alphanumeric() || "-_.".contains(one) { one } else { '-' });
    "lockstep-".chars().chain(plain).take(SESSION_LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_session_fits_sts() {
        assert_eq!(session("prod-eu-1"), "lockstep-prod-eu-1");
        let long = session(&"ü".repeat(100));
        assert!(long.len() == SESSION_LONGEST && long.ends_with('-'), "{long}");
    }
}
