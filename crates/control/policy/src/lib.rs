//! Users, groups, services and rules; one pure decision and its explanation.
//!
//! The types here are what the configuration file says (`[[service]]`, `[[rule]]`) and what the store keeps (users,
//! groups). A [`Policy`] is a checked, indexed snapshot of them all; [`decide`] answers one request from it without
//! looking at anything else, and says step by step why. What no one allowed is denied.

mod check;
mod decide;
mod limits;
mod model;
mod modes;
mod peer;
mod ports;
mod pseudonym;
mod quantity;
mod schedule;
mod share;
mod sip;
mod snapshot;
mod subject;
mod text;

pub use check::{Bounds, Finding, Place, Severity};
pub use decide::{Decision, DenyReason, Outcome, Request, Step, WANTED_MAX, decide};
pub use limits::{Limits, RATE_UNLIMITED};
pub use model::{
    Credentials, Effect, Group, NAME_LEN_MAX, Outbound, Registering, Rule, SIP_PORT_DEFAULT, Service, ServiceDefault,
    ServiceKind, ServiceMode, User, is_name,
};
pub use modes::data_mode;
pub use peer::{Network, SipPeer, SipTarget};
pub use ports::{PortProtocol, PortRange};
pub use pseudonym::pseudonym;
pub use quantity::{Bytes, Rate};
pub use schedule::{Day, Schedule, TimeOfDay};
pub use share::{PerUser, Share};
pub use sip::{SipCertificate, SipPort};
pub use snapshot::{Draft, Policy};
pub use subject::Subject;
pub use text::TextError;
