//! The subcommands, one thin file each.
//!
//! Invariant: a command ends with 0, 1 (found something) or 2 (could not look).
//! Absent on purpose: `serve`, whose wiring is `runtime`.

mod access;
pub mod check;
pub mod doctor;
pub mod inject;
mod output;
pub mod registries;
pub mod registry;
pub mod release;
pub mod shell;
pub mod status;
mod surroundings;
mod workload;
