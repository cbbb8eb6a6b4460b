//! HTTP API on a unix socket and metrics.
