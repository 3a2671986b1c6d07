//! What should happen to a pod's targets, gate and finalizer; the state diagram of one pod.

pub mod claim;
pub mod condition;
pub mod observe;
pub mod plan;
