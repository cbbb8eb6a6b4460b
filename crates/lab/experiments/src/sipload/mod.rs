//! Calls at a constant rate through a SIP server, ours or a peer: what it serves of them, and what that costs.

mod capacity;
mod judge;
mod picture;
mod server;
mod stage;
mod sweep;

pub use sweep::{Mutant, SweepOptions, run};

pub(crate) use capacity::capacity;
pub(crate) use server::{Does, REFUSE, Scheme, Wanted};
pub(crate) use stage::{Load, Stage, Trial};
