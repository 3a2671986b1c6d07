//! The HTTP endpoint of a registry: where it is, whom it trusts, how long and how much it may answer.
//!
//! Drivers over HTTP differ in paths and bodies only; what makes a call safe and an error exact stands here once.
//!
//! Invariant: [`CallError::Unavailable`] means that no byte of the request left.
//! Invariant: no answer is followed elsewhere, read beyond [`LONGEST_ANSWER`] or waited for beyond its time.
//! Absent on purpose: proxies of the environment (they would undo the refusal of forbidden addresses), HTTP/2, cookies, retries.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder, Url};
use tokio::sync::Mutex;

use crate::config::off_limits;
use crate::reconcile::OpenError;
use crate::registry::credentials::Credential;
use crate::registry::reach::Resolver;
use crate::registry::text::{bounded, cause};
use crate::registry::{CALL_TIMEOUT, CallError};

/// A connection that is not there by then will not come; shorter than a call, so that it is known that nothing left.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Shorter than servers keep idle connections, so that none is used that is just being closed.
const IDLE: Duration = Duration::from_secs(10);
/// A listing of some ten thousand targets is shorter.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;

/// One HTTP endpoint.
#[derive(Debug)]
pub struct Endpoint {
    base: Url,
    ca: Option<Credential>,
    /// The client, with the CA that it was made for.
    client: Mutex<Option<(Vec<u8>, Client)>>,
}

/// An answer, read whole.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: http::HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Endpoint {
    /// The endpoint at `url`, trusting the CA in the credential file `ca` or else the system's. Does no I/O.
    pub fn new(url: &str, ca: Option<&str>, registry: &Arc<str>, credentials: &Path) -> Result<Self, OpenError> {
        let unusable = |reason: &str| OpenError::Unusable { name: registry.clone(), reason: format!("{}: {reason}", bounded(url)) };
        let base: Url = url.parse().map_err(|_| unusable("this is no URL; write http://host:port or https://host:port"))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(unusable("the URL must begin with http:// or https://"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(unusable("no password may stand in the URL; name a credential file"));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(unusable("the URL may not have a ? or a #"));
        }
        let literal = base.host_str().and_then(|host| host.trim_matches(['[', ']']).parse().ok());
        if let Some(what) = literal.and_then(off_limits) {
            return Err(unusable(&format!("this is {what}; nothing is sent there")));
        }
        let ca = ca.map(|name| Credential::new(credentials, registry, name)).transpose()?;
        Ok(Self { base, ca, client: Mutex::new(None) })
    }

    /// The URL below the base whose path has these parts, each encoded.
    pub fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http URL has a path").pop_if_empty().extend(parts);
        url
    }

    /// A request, to be sent by [`Endpoint::send`].
    pub async fn request(&self, method: Method, url: Url) -> Result<RequestBuilder, CallError> {
        Ok(self.client().await?.request(method, url))
    }

    /// Sends a request that the server may take `wait` longer to answer, and reads the answer.
    pub async fn send(&self, request: RequestBuilder, wait: Duration) -> Result<Answered, CallError> {
        let mut response = request.timeout(CALL_TIMEOUT + wait).send().await.map_err(call_error)?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let mut body = BytesMut::new();
        while let Some(part) = response.chunk().await.map_err(call_error)? {
            if body.len() + part.len() > LONGEST_ANSWER {
                return Err(CallError::Failed(format!("its answer is longer than {LONGEST_ANSWER} bytes")));
            }
            body.extend_from_slice(&part);
        }
        Ok(Answered { status, headers, body: body.freeze() })
    }

    async fn client(&self) -> Result<Client, CallError> {
        let ca = match &self.ca {
            Some(credential) => credential.read().await?,
            None => Vec::new(),
        };
        let mut known = self.client.lock().await;
        if let Some((made_for, client)) = &*known
            && *made_for == ca
        {
            return Ok(client.clone());
        }
        let client = self.build(&ca)?;
        *known = Some((ca, client.clone()));
        Ok(client)
    }

    fn build(&self, ca: &[u8]) -> Result<Client, CallError> {
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE)
            .tcp_nodelay(true)
            .dns_resolver(Arc::new(Resolver));
        if let Some(credential) = &self.ca {
            let unusable = || CallError::Unavailable(format!("the credential file {} holds no PEM certificate", credential.name()));
            let trusted = Certificate::from_pem_bundle(ca).map_err(|_| unusable())?;
            if trusted.is_empty() {
                return Err(unusable());
            }
            builder = builder.tls_certs_only(trusted);
        } else if self.base.scheme() == "http" {
            // Plain HTTP trusts nobody, so it must not fail where the system has no roots.
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|error| CallError::Unavailable(format!("no client can be made: {}", cause(&error))))
    }
}

impl Answered {
    /// The answer, or the error that its status means for a whole call; `said` finds the server's own words in the body.
    pub fn success(self, said: impl FnOnce(&Self) -> String) -> Result<Self, CallError> {
        if self.status.is_success() {
            return Ok(self);
        }
        let text = bounded(&format!("{}: {}", self.status.as_u16(), said(&self)));
        Err(match self.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => CallError::Denied(text),
            StatusCode::NOT_FOUND => CallError::ServiceMissing(text),
            StatusCode::TOO_MANY_REQUESTS => CallError::Throttled(text),
            status if status.is_redirection() => CallError::Failed(format!("{text}; redirects are not followed")),
            _ => CallError::Failed(text),
        })
    }
}

fn call_error(error: reqwest::Error) -> CallError {
    let error = error.without_url();
    match () {
        () if error.is_connect() => CallError::Unavailable(cause(&error)),
        () if error.is_timeout() => CallError::Timeout,
        () => CallError::Failed(cause(&error)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn open(url: &str) -> Result<Endpoint, OpenError> {
        Endpoint::new(url, None, &"first".into(), Path::new("/credentials"))
    }

    #[rstest]
    #[case("registry:8080")]
    #[case("/v1")]
    #[case("ftp://registry")]
    #[case("http://user:secret@registry")]
    #[case("http://registry/?a=b")]
    #[case("http://169.254.169.254/latest")]
    #[case("http://[fe80::1]:8080")]
    #[case("http://0xa9fea9fe/")]
    #[case("http://168.63.129.16/machine")]
    #[case("http://[fd20:ce::254]/computeMetadata/v1")]
    fn unusable_urls(#[case] url: &str) {
        assert!(matches!(open(url), Err(OpenError::Unusable { .. })), "{url}");
    }

    #[rstest]
    #[case("http://registry:8080", "http://registry:8080/v1/a%2Fb/10.0.0.1:80")]
    #[case("https://registry/base/", "https://registry/base/v1/a%2Fb/10.0.0.1:80")]
    fn parts_are_encoded(#[case] base: &str, #[case] url: &str) {
        assert_eq!(open(base).unwrap().url(&["v1", "a/b", "10.0.0.1:80"]).as_str(), url);
    }
}
