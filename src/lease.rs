//! Leadership by a Lease.
