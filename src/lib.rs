//! Lockstep keeps external load balancers and service registries in lockstep with Kubernetes pods.
//!
//! A sync loop pushes and hopes. Lockstep makes it a handshake: a pod is Ready only after the registry has acknowledged
//! its endpoint, and a pod object is reaped only after the registry has let the endpoint go.
//!
//! # Two lanes
//!
//! ```text
//! admission     bytes ─▶ review::parse ─▶ PodRequest ─▶ decide ─▶ Decision ─▶ patch ─▶ review::respond ─▶ bytes
//!               server                    └────────────── pure ──────────────┘                     server
//!
//! registration  pod event ─▶ observe ─▶ Observation ─▶ plan(…, now) ─▶ Plan ─▶ execute ─▶ registry · pods/status
//!               reconcile    └────────────────── pure ──────────────────┘      reconcile/execute
//! ```
//!
//! To find a behaviour ask: which lane, which box.
//! The pure boxes ([`admission`], [`registration`], [`target`], [`config`]) hold every decision. They have no async, no client,
//! no clock, no randomness and no logging; time is an argument. The shell ([`server`], [`certificates`], [`probes`],
//! [`mod@reconcile`], [`registry`], [`lease`], [`traces`], [`runtime`]) does I/O and decides nothing.
//!
//! # Where state lives
//!
//! In the pod (conditions and finalizer), in the registry and, only for targets whose pod is gone, in one ConfigMap of debts.
//! The process remembers nothing that it could not read again, so a restart loses nothing.
//!
//! # Invariants
//!
//! - **I1** The gate becomes True only on an acknowledgement of every binding's target, in a read begun after the last change to
//!   that target was answered, while the containers are ready; or as the one counted exception (`onGateTimeout: open`).
//! - **I2** The finalizer goes only on such a read that shows every claim gone, or as a counted exception with the claim moved
//!   to the debts.
//! - A pod is written by one strategic-merge patch of `pods/status` that names its UID; only our conditions, our finalizer,
//!   our label and our annotations are ever in it.
//! - At most one change of a target is in flight, and nothing is sent by a replica that does not hold the Lease.
//! - Admission answers from memory: no network call is made while a review is being answered, and no pod is ever refused.
//!
//! # Words
//!
//! *Registry*: an external system that holds endpoints. *Service*: the registry's name for one set of them. *Binding*: these pods
//! belong in that service. *Target*: one endpoint of one pod. *Gate*, *finalizer*: what holds a pod back at its start and at its end.
//! *Claim*: the record that a target is ours. *Debt*: a claim whose pod is gone. *Acknowledged*: the registry itself reported the
//! state. *Registration*: the handshake. *Release*: let a pod go. Each has one meaning, here, in logs and in the docs.

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
pub mod text;
pub mod traces;
pub mod yaml;
