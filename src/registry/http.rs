//! The http driver: an open REST contract, published as OpenAPI.
