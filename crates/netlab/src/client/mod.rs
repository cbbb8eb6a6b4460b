//! Honest clients and the services that they use: calls, transfers, SIP set-ups.

pub mod call;
pub mod timestamps;
pub mod transfer;
