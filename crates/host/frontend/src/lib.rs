//! The frontend daemon: SIP registrar and proxy outside the bottleneck. It authenticates, applies policy, issues grants
//! and has gates open them; it never contacts a protected service to say no.
//!
//! - [`Shard`] is all of SIP as a pure state machine: no socket, clock or randomness.
//! - One plain thread per shard moves datagrams in batches.
//! - The feed takes gates in over TLS, tells them what to open and routes their answers back.
//! - [`Frontend`] starts all that from a [`Config`]; [`Control`] asks and changes it while it runs; [`Catalog`] edits its
//!   users and services while it does not.

mod agents;
mod calls;
mod catalog;
mod clock;
mod config;
mod control;
mod daemon;
mod decisions;
mod feed;
mod guesses;
mod holder;
mod inbox;
mod ledger;
mod links;
mod log_limit;
mod metrics;
mod shard;
mod transmits;
mod udp;
mod worker;

pub use agents::{AgentKeys, EpochUsers, LEAD_S};
pub use catalog::{Catalog, EditError, NewUser, UserChange};
pub use config::{Config, ConfigError, GATES_MAX, GateSite, LISTEN_MAX, Listen, SHARDS_MAX};
pub use control::{Control, ControlError, Status};
pub use daemon::{BACKUP_FILES, Frontend, Opened, StartError, run};
pub use decisions::Decided;
pub use feed::HubStatus;
pub use guesses::{GUESSES_MAX, Guesses};
pub use holder::{
    BACKUP_FILES as KEYHOLDER_BACKUP_FILES, HolderError, KeyHolder, Vault, VaultError, directory as keyholder_directory,
};
pub use ledger::{GrantRow, GrantState, Ledger, LedgerFull};
pub use links::Standing;
pub use metrics::{Count, Kind, MetricsSnapshot, Outcome, SETUP_BUCKETS_MS, Sample, SetupLatency, ShardMetrics};
pub use shard::{Binding, DigestName, Event, GateAnswer, Input, Now, Settings, Shard, Tables};
pub use transmits::{Flow, Transmits};
