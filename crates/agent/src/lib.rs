//! The agent: client and service side host proxy.
