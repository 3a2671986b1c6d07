//! A simulator of the ELBv2 API: target groups with their states and timing, spoken over its query protocol.
//!
//! Written from the public API reference (version 2015-12-01). It has one account and one region; its time is the test's: nothing in it
//! sleeps, and a target changes its state because the test let time pass.
//!
//! Invariant: what a target is shows from what happened to it and the time alone.
//! Absent on purpose: load balancers and listeners (a group has one or not), signatures (the key's name is checked), EC2.

pub(crate) mod model;
pub(crate) mod query;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::task::JoinHandle;

use model::{Model, Refusal};

/// The region of the simulator.
pub(crate) const REGION: &str = "eu-west-1";

/// A running simulator; it stops when this is dropped.
pub(crate) struct Simulator {
    /// Its base URL.
    pub(crate) url: String,
    model: Arc<Mutex<Model>>,
    task: JoinHandle<()>,
}

/// Something that goes wrong with a call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is refused.
    Refused(Refusal),
    /// Done, and never answered.
    AnswerLost,
    /// An answer that is none of the API's.
    Foreign(u16, &'static str),
}

impl Simulator {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1").await
    }

    /// The same at another address of this machine, where others reach it too.
    pub(crate) async fn start_at(address: &str) -> Self {
        let model = Arc::new(Mutex::new(Model::default()));
        let listener = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(model.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, model, task }
    }

    /// What it holds, to be looked at and changed.
    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    /// The same, for a task that outlives whoever starts it.
    pub(crate) fn model_handle(&self) -> Arc<Mutex<Model>> {
        self.model.clone()
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, time: Duration) {
        self.model().pass(time);
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(model): State<Arc<Mutex<Model>>>, headers: HeaderMap, body: String) -> Response {
    let (fault, answer) = {
        let mut model = model.lock().unwrap();
        let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let query = query::Query::read(&body);
        let fault = model.begin(&query);
        let done = match &fault {
            None | Some(Fault::AnswerLost) => model.admit(authorization, &query).and_then(|()| query::perform(&mut model, &query)),
            Some(Fault::Refused(refusal)) => Err(refusal.clone()),
            Some(Fault::Foreign(..)) => Ok(String::new()),
        };
        (fault, query::print(&query, done))
    };
    match fault {
        Some(Fault::AnswerLost) => std::future::pending().await,
        Some(Fault::Foreign(status, text)) => (StatusCode::from_u16(status).unwrap(), text).into_response(),
        None | Some(Fault::Refused(_)) => {
            let (status, text) = answer;
            (StatusCode::from_u16(status).unwrap(), [(header::CONTENT_TYPE, "text/xml")], text).into_response()
        }
    }
}
