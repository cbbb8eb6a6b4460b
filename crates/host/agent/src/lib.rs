//! The agent: the host's side of Sluicegate.
//!
//! [`connect`] signs a user in and makes a service reachable for the programs of this host. [`serve`] registers a service,
//! answers its invitations, and ends clients that misbehave. [`capture`] carries packets of this host, or of one command,
//! with capabilities.

mod account;
mod call;
pub mod capture;
mod command;
mod connect;
mod endpoint;
mod fallback;
mod forward;
mod frontends;
mod opening;
mod pin;
mod seal;
pub mod serve;
mod session;
mod socks;

pub use account::{Account, TrustError};
pub use call::CallError;
pub use connect::{Config, ConnectError, connect};
pub use endpoint::ExchangeError;
pub use fallback::{Fallback, Trust, TrustedError};
pub use forward::Forward;
pub use frontends::{FrontendError, Frontends};
pub use pin::{Pin, PinError};
