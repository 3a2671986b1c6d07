//! Which cluster a command asks, and of which namespace: as kubectl has them.
//!
//! Invariant: the kubeconfig, its context and its namespace mean what they mean to kubectl; a pod of the cluster needs none of them.
//! Absent on purpose: what is read by one command alone.

use anyhow::{Context, anyhow, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::args::AccessArgs;
use crate::names;
use crate::reconcile::cluster::ApiError;
use crate::reconcile::kubernetes::watch::{self, query_value};
use crate::reconcile::kubernetes::{Api, KubeCluster, Own};
use crate::reconcile::tokio_clock::TokioClock;
use crate::target::PodKey;

/// A way to the API server, and the namespace that is meant where none is named.
pub(super) struct Access {
    /// The API server; it was not called yet.
    pub(super) api: Api,
    /// The namespace.
    pub(super) namespace: String,
    /// Namespace of Lockstep itself.
    pub(super) own_namespace: String,
}

/// Finds the cluster.
pub(super) async fn connect(args: &AccessArgs) -> anyhow::Result<Access> {
    let config = kubeconfig(args).await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let api = Api::to(config).context("the API server of this cluster cannot be used")?;
    Ok(Access { api, namespace, own_namespace: args.own_namespace.clone() })
}

/// What is done about an answer that brought nothing.
fn remedy(error: &ApiError) -> &'static str {
    match error.code() {
        Some(401) => "the API server does not know you; look at the credentials of the kubeconfig",
        Some(403) => "you have no right to read that; ask for it, or name a namespace of yours with --namespace",
        Some(404) => "there is no such thing there; look at --namespace and --context",
        None => "is this the right cluster? look at --context and --kubeconfig",
        Some(_) => "try again later",
    }
}

impl Access {
    /// Lockstep's part of the cluster; `identity` is who writes Events.
    pub(super) fn cluster(&self, identity: &str) -> KubeCluster {
        let own = Own { namespace: self.own_namespace.clone(), identity: identity.to_owned(), config_map: String::new() };
        KubeCluster::new(self.api.clone(), TokioClock::start(), own)
    }

    /// All objects of a collection that the selectors in `query` name.
    pub(super) async fn list<T>(
        &self,
        collection: &str,
        query: &str,
        read: impl Fn(&str) -> Result<T, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        watch::list(&self.api, collection, query, read).await.map(|(all, _)| all)
    }

    /// The pod that is meant by `NAME`, `pod/NAME` or `NAMESPACE/NAME`.
    pub(super) fn pod(&self, named: &str) -> anyhow::Result<PodKey> {
        pod_key(named, &self.namespace)
    }
}

/// A list of pods that failed, said with what can be done about it.
pub(super) fn no_pods(error: ApiError) -> anyhow::Error {
    let remedy = remedy(&error);
    anyhow::Error::new(error).context(format!("pods cannot be listed: {remedy}"))
}

/// Selects the warnings of Lockstep among Events.
pub(super) fn our_warnings() -> String {
    format!("fieldSelector={}", query_value(&format!("reportingComponent={},type=Warning", names::COMPONENT)))
}

/// A collection of one namespace, or of all.
pub(super) fn collection(group: &str, namespace: Option<&str>, resource: &str) -> String {
    match namespace {
        Some(namespace) => format!("{group}/namespaces/{namespace}/{resource}"),
        None => format!("{group}/{resource}"),
    }
}

fn pod_key(named: &str, namespace: &str) -> anyhow::Result<PodKey> {
    let (namespace, name) = match named.split_once('/') {
        Some(("pod" | "pods" | "po", name)) => (namespace, name),
        Some((namespace, name)) => (namespace, name),
        None => (namespace, named),
    };
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let outer = |byte: Option<u8>| byte.is_some_and(inner);
    let fits = |word: &str| {
        let mut bytes = word.bytes();
        outer(bytes.clone().next()) && outer(bytes.clone().last()) && bytes.all(|byte| inner(byte) || byte == b'-' || byte == b'.')
    };
    if !fits(namespace) || !fits(name) {
        bail!("{named}: not the name of a pod; as in web-1 or shop/web-1");
    }
    Ok(PodKey::new(namespace, name))
}

async fn kubeconfig(args: &AccessArgs) -> anyhow::Result<kube::Config> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let context = || match &args.context {
        Some(context) => anyhow!("context {context} of the kubeconfig cannot be used; `kubectl config get-contexts` lists what there is"),
        None => anyhow!("the kubeconfig has no context that can be used; `kubectl config get-contexts` lists what there is"),
    };
    match (&args.kubeconfig, &args.context) {
        (Some(file), _) => {
            let kubeconfig = Kubeconfig::read_from(file).with_context(|| file.display().to_string())?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| anyhow!(error).context(context()))
        }
        (None, Some(_)) => kube::Config::from_kubeconfig(&options).await.map_err(|error| anyhow!(error).context(context())),
        (None, None) => kube::Config::infer().await.context("no access to a cluster; name a kubeconfig with --kubeconfig or $KUBECONFIG"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("web-1", Some("shop/web-1"))]
    #[case("pod/web-1", Some("shop/web-1"))]
    #[case("other/web-1", Some("other/web-1"))]
    #[case("", None)]
    #[case("a/b/c", None)]
    #[case("../web", None)]
    #[case("Web", None)]
    #[case("web?x", None)]
    fn a_pod_is_named_as_kubectl_has_it(#[case] named: &str, #[case] key: Option<&str>) {
        assert_eq!(pod_key(named, "shop").ok().map(|key| key.to_string()).as_deref(), key);
    }

    #[tokio::test]
    async fn a_kubeconfig_brings_its_namespace_and_a_flag_wins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
            users: [{name: u, user: {token: t}}]\n\
            contexts: [{name: a, context: {cluster: c, user: u, namespace: shop}}, {name: b, context: {cluster: c, user: u}}]\n";
        std::fs::write(file.path(), text).unwrap();
        let args = |context: Option<&str>, namespace: Option<&str>| AccessArgs {
            kubeconfig: Some(file.path().to_owned()),
            context: context.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            own_namespace: "lockstep-system".to_owned(),
        };
        let meant = async |context, namespace| connect(&args(context, namespace)).await.map(|access| access.namespace);
        assert_eq!(meant(None, None).await.unwrap(), "shop");
        assert_eq!(meant(Some("b"), None).await.unwrap(), "default");
        assert_eq!(meant(Some("b"), Some("other")).await.unwrap(), "other");
        let error = meant(Some("missing"), None).await.unwrap_err();
        assert!(error.to_string().contains("context missing"), "{error}");
    }
}
