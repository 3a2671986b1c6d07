//! Deliberate faults, to show that the simulation bites.
//!
//! Each is a small lie of the world's adapters, so that the product's code stays as it is.
//!
//! Invariant: a fault that no seed finds is a defect of the simulation.
//! Absent on purpose: switches in the product.

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {}
