//! From drain delay to sleep and grace period.
