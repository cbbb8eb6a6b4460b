//! The gate daemon.
