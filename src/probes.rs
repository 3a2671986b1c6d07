//! /livez, /readyz and /metrics on a plain port of their own.
