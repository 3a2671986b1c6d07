//! TBD observe.
