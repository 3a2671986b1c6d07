//! Tests of parts against each other and against real neighbours, without Kubernetes; one binary, so that it links once.

mod registry_ground;
mod registry_openapi;
mod registry_server;
