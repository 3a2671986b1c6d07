//! Tests of the parts together, in one binary.

mod tidy;
