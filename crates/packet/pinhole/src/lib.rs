//! Permission at a gate: which client may reach which service, with how many bytes until when, and what its packets must
//! prove for it.
//!
//! [`Pinholes`] holds what was made from grants, and what belongs to services and frontends. It is asked about a flow's
//! first packet, and when a flow needs more of its grant's bytes; it knows nothing of flows, bindings and rewriting. No I/O, no
//! clock, nothing allocated for a packet; its tables have a fixed size.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod candidates;
mod clock;
mod config;
mod grants;
mod hosts;
mod mac;
mod pinhole;
mod pinholes;
mod proof;
mod protocol;
mod relayed;
mod revoked;
mod sources;
mod table;
mod users;
mod view;

pub use candidates::Names;
pub use clock::Clock;
pub use config::{
    EndCause, Ended, FLOWS_PER_GRANT_MAX, InstallError, Opened, PEERS_MAX, PerUser, PinholeSpec, Relay, Service,
    ServiceMode, ServicesError, StandingSpec,
};
pub use hosts::{Host, Hosts};
pub use mac::{Evidence, Macs, Permission, Proof, Seal, Seals, names, payload};
pub use pinhole::{Holder, Life, NO_SLOT, Pinhole};
pub use pinholes::{Counters, Located, Pinholes, Sizes, errors};
pub use proof::{Proved, is_proof};
pub use protocol::{Protocols, Tuple};
pub use relayed::Relays;
pub use revoked::{Revoked, RevokedGrants};
pub use sources::Sources;
pub use table::{Found, Table};
pub use users::{Key as UserKey, User, Users};
pub use view::{Allowance, Usage};
