//! What should happen to a pod's targets, gate and finalizer; the state diagram of one pod.

pub mod claim;
pub mod desire;
pub mod life;
pub mod observe;
pub mod plan;
pub mod reason;
pub mod record;

pub use reason::Reason;
