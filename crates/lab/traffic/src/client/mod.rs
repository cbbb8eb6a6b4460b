//! Honest clients and the services that they use: calls, transfers, SIP set-ups.

pub mod answer;
pub mod call;
pub mod exchange;
pub mod haul;
mod line;
mod media;
pub mod setup;
mod timestamps;
pub mod transfer;
