//! The HTTPS webhook: router, TLS accept loop, limits, graceful stop.
