//! The subcommands, one thin file each.

pub mod check;
pub mod inject;
pub mod registry;
pub mod release;
