//! Tests of parts against each other and against real neighbours, without Kubernetes; one binary, so that it links once.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helper functions too")]

mod metrics;
mod server;
