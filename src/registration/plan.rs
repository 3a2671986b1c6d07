//! TBD plan.
