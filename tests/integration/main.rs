//! Tests of parts against each other and against real neighbours, without Kubernetes; one binary, so that it links once.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helper functions too")]

mod certificates;
mod memory_api;
mod metrics;
mod registry_conformance;
mod registry_conformance_grounds;
mod registry_ground;
mod registry_http;
mod registry_openapi;
mod registry_server;
mod server;
mod tidy;
