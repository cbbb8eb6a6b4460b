//! The frontend daemon.
