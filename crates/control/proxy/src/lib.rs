//! The SIP core of a frontend: it authenticates, applies policy, issues grants and has gates open them.
//!
//! A [`Shard`] is all of it as a pure state machine: datagrams, answers of gates and the time go in, datagrams and
//! [`Event`]s come out. Shards of one process share a [`Ledger`] of grants and calls, the [`Locations`] of users,
//! the [`Outages`] of SIP servers, the [`Guesses`] at passwords, and [`ShardMetrics`]. Nothing here has a socket, reads a
//! clock or draws randomness.

mod agents;
mod calls;
mod decisions;
mod guesses;
mod ledger;
mod limits;
mod links;
mod locations;
mod mask;
mod metrics;
mod outages;
mod proofs;
mod shard;
mod stories;
mod traces;
mod transmits;

pub use agents::{AgentKeys, EpochUsers, LEAD_S};
pub use calls::CallId;
pub use decisions::{Decided, Decisions};
pub use guesses::{GUESSES_MAX, Guesses};
pub use ledger::{Ledger, LedgerFull, share_of};
pub use limits::{LIFTED_S_MAX, Limits, LimitsFull};
pub use links::Standing;
pub use locations::{Contact, Contacts, Locations};
pub use metrics::{Count, Kind, Outcome, ShardMetrics, answers, datagrams_left, events, load, requests, setups};
pub use outages::Outages;
pub use proofs::Proofs;
pub use shard::{
    Binding, DigestName, Emergency, Event, GateAnswer, Input, Now, Overload, Phones, Rung, Settings, Shard, Tables,
    answer_bytes, derive, source_key,
};
pub use stories::{Happened, Stories, Who, Why};
pub use traces::{Traces, TracesFull};
pub use transmits::{ConnectionId, Flow, Listening, Transmits, is_private};
