//! Tests of parts against each other and against real neighbours, without Kubernetes; one binary, so that it links once.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helper functions too")]

mod admission_case;
mod admission_cases;
mod admission_checks;
mod admission_findings;
mod admission_pods;
mod admission_properties;
mod authority;
mod certificate_callers;
mod certificate_files;
mod certificates;
mod chart;
mod configuration_page;
mod configuration_schema;
mod consul_process;
mod documentation;
mod documentation_pages;
mod elbv2;
mod exposed;
mod haproxy_life;
mod haproxy_process;
mod memory_api;
mod metrics;
mod monitoring;
mod programs;
mod registry_aws;
mod registry_aws_chain;
mod registry_aws_ground;
mod registry_aws_life;
mod registry_aws_pace;
mod registry_aws_peers;
mod registry_conformance;
mod registry_conformance_grounds;
mod registry_consul;
mod registry_ground;
mod registry_haproxy;
mod registry_haproxy_instances;
mod registry_haproxy_slots;
mod registry_http;
mod registry_openapi;
mod registry_server;
mod server;
mod small_cluster;
mod stand_in;
mod tidy;
