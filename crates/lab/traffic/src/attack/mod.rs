//! Attackers: floods of raw frames, SIP floods, and an insider inside its grant. All are seeded, paced, bounded in time
//! and number, and refuse to run outside a lab.

mod capability;
mod connections;
mod door;
mod frames;
mod guard;
mod insider;
mod onlooker;
mod raw;
mod sip;

pub use capability::{CapabilityFloodSpec, CapabilityMode, ColluderSpec, header};
pub(crate) use capability::{capability_flood, colluder};
pub(crate) use connections::connections;
pub use connections::{ConnectionsSpec, Manner};
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
pub use sip::{SipFloodSpec, SipKind};

use sluicegate_site::{During, LabError, worker::Context};

/// Makes sure that the attack stays in a lab and does what its specification may ask for, and lets everybody else on the
/// machine go first.
fn begin(context: &Context, checked: Result<(), String>) -> Result<(), LabError> {
    require_lab()?;
    checked.map_err(|reason| context.refuse(&reason))?;
    be_polite().during(|| "lowering the priority".to_owned())
}

/// Whether an attack of so long and so many of `what` a second may be.
fn bounded(seconds: u32, per_s: u64, what: &str) -> Result<(), String> {
    if seconds > SECONDS_MAX || per_s > PER_S_MAX {
        return Err(format!("at most {SECONDS_MAX} s at {PER_S_MAX} {what} a second"));
    }
    Ok(())
}

/// Longest attack, in seconds.
const SECONDS_MAX: u32 = 3_600;
/// Highest rate of an attack, packets a second.
const PER_S_MAX: u64 = 5_000_000;
