//! The subcommands, one thin file each.
//!
//! Invariant: a command ends with 0, 1 (found something) or 2 (could not look).
//! Absent on purpose: `serve`, whose wiring is `runtime`.

pub mod check;
pub mod inject;
pub mod registry;
pub mod release;
