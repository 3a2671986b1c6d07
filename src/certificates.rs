//! Where the serving certificate comes from, and the caBundle that vouches for it.
