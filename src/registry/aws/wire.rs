//! The HTTP client under the AWS SDK: our own endpoint, so that its rules hold for calls to AWS too.
//!
//! The SDK's own client cannot say for certain that nothing left, follows proxies of the environment and reads answers without end.
//!
//! Invariant: a failed call carries the [`CallError`] that says what is known of it; see [`known`].
//! Absent on purpose: time-outs and retries of the SDK; the endpoint has the first, the reconciler the second.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;

use crate::registry::CallError;
use crate::registry::endpoint::Endpoint;

/// The SDK's client on top of `endpoint`.
pub(super) fn client(endpoint: Endpoint) -> SharedHttpClient {
    SharedHttpClient::new(Wire(Arc::new(endpoint)))
}

/// What the wire knows of a failed call, where it was the wire that failed.
pub(super) fn known<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e CallError> {
    let mut next: Option<&'e (dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(known) = error.downcast_ref::<CallError>() {
            return Some(known);
        }
        next = error.source();
    }
    None
}

#[derive(Clone, Debug)]
struct Wire(Arc<Endpoint>);

impl HttpClient for Wire {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Wire {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let endpoint = self.0.clone();
        HttpConnectorFuture::new(async move { send(&endpoint, &request).await.map_err(|error| ConnectorError::other(error.into(), None)) })
    }
}

async fn send(endpoint: &Endpoint, request: &HttpRequest) -> Result<HttpResponse, CallError> {
    let impossible = |what: &str| CallError::Unavailable(format!("the request cannot be sent: its {what} cannot be read"));
    let url = request.uri().parse().map_err(|_| impossible("address"))?;
    let method = request.method().parse().map_err(|_| impossible("method"))?;
    let mut sent = endpoint.request(method, url).await?;
    for (name, value) in request.headers() {
        sent = sent.header(name, value);
    }
    let body = request.body().bytes().ok_or_else(|| impossible("body"))?;
    let answer = endpoint.send(sent.body(body.to_vec()), Duration::ZERO).await?;
    let unreadable = |_| CallError::Failed("its answer has a status that is none".to_owned());
    let mut response = HttpResponse::new(answer.status.as_u16().try_into().map_err(unreadable)?, SdkBody::from(answer.body));
    for (name, value) in &answer.headers {
        // A header that is no text says nothing to the SDK.
        if let Ok(value) = value.to_str() {
            response.headers_mut().append(name.as_str().to_owned(), value.to_owned());
        }
    }
    Ok(response)
}
