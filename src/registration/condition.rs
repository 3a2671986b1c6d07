//! TBD condition.
