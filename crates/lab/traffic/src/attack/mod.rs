//! Attackers: floods of raw frames, SIP floods, and an insider inside its grant. All are seeded, paced, bounded in time
//! and number, and refuse to run outside a lab.

mod capability;
mod door;
mod frames;
mod guard;
mod insider;
mod onlooker;
mod raw;
mod sip;

pub use capability::{CapabilityFloodSpec, CapabilityMode, ColluderSpec, header};
pub(crate) use capability::{capability_flood, colluder};
pub use door::{IdleSpec, RelaySpec};
pub(crate) use door::{idle, relay};
pub use frames::{Forged, Kind, Path};
pub(crate) use guard::be_polite;
pub use guard::require_lab;
pub use insider::InsiderSpec;
pub(crate) use insider::insider;
pub(crate) use onlooker::onlooker;
pub use onlooker::{Does, OnlookerSpec};
pub(crate) use raw::flood;
pub use raw::{FloodSpec, Target};
pub(crate) use sip::sip_flood;
pub use sip::{SipFloodSpec, SipMix};

/// Longest attack, in seconds.
const SECONDS_MAX: u32 = 3_600;
/// Highest rate of an attack, packets a second.
const PER_S_MAX: u64 = 5_000_000;
