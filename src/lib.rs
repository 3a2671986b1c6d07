//! Lockstep keeps external load balancers and service registries in lockstep with Kubernetes pods.

pub mod admission;
pub mod args;
pub mod certificates;
pub mod commands;
pub mod config;
pub mod lease;
pub mod metrics;
pub mod names;
pub mod pod;
pub mod probes;
pub mod reconcile;
pub mod registration;
pub mod registry;
pub mod runtime;
pub mod server;
pub mod target;
pub mod telemetry;
pub mod yaml;
