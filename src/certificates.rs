//! Where the serving certificate comes from, and the caBundle that vouches for it.
//!
//! Self-managed: a CA and short serving certificates in one Secret, which every replica may renew; writes name the version that was
//! read, so that two replicas cannot both win. The other replicas follow by a watch.
//!
//! Invariant: a certificate is served only while the caBundle that we wrote holds its CA, save the very first of an empty Secret.
//! Invariant: renewal looks at the wall clock, so that a machine that slept notices.
//! Absent on purpose: a leader; any replica that sees something due does it.

pub mod authority;
pub mod bundle;
pub mod keeper;
pub mod serving;
mod x509;

pub use serving::Serving;
