//! TBD claim.
