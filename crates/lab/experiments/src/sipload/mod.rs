//! Calls at a constant rate through a SIP server, ours or a peer: what it serves of them, and what that costs.

mod capacity;
mod judge;
mod picture;
mod rig;
mod server;
mod sweep;

pub use sweep::{Mutant, SweepOptions, run};

pub(crate) use capacity::capacity;
pub(crate) use rig::{Load, Rig, Trial};
pub(crate) use server::{Does, REFUSE, Scheme, Wanted};
pub use server::{FrontendDatapath, RefusesAt};
