//! What we change on a Pod and what we never touch.

pub mod patch;
pub mod prestop;
pub mod review;
