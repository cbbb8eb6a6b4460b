//! The frontend daemon: SIP registrar and proxy outside the bottleneck. It authenticates, applies policy, issues grants
//! and has gates open them; it never contacts a protected service to say no.
//!
//! - [`sluicegate_proxy::Shard`] is all of SIP as a pure state machine; this crate is what it stands on.
//! - One plain thread per shard moves datagrams in batches, and has connections of its own over TCP and TLS.
//! - The feed takes gates in over TLS, tells them what to open and routes their answers back.
//! - [`Frontend`] starts all that from a [`Config`]; [`Control`] asks and changes it while it runs; [`Catalog`] edits its
//!   users and services while it does not.

mod catalog;
mod clock;
mod config;
mod contacts;
mod control;
mod daemon;
mod feed;
mod frames;
mod holder;
mod inbox;
mod log_limit;
mod outbox;
mod overload;
mod published;
mod replica;
mod replicas;
mod secrets;
mod sockets;
mod streams;
mod tables;
mod tls;
mod to_hub;
mod udp;
mod upkeep;
mod worker;

pub use catalog::{Catalog, EditError, Edited};
pub use config::{
    Config, ConfigError, Datapath, GATES_MAX, GateSite, LISTEN_MAX, Listen, REPLICAS_MAX, ReplicaSite, SHARDS_MAX,
};
pub use control::{Control, ControlError};
pub use daemon::{Frontend, Opened, StartError, run};
pub use holder::{
    BACKUP_FILES as KEYHOLDER_BACKUP_FILES, HolderError, IssuedFile, KeyHolder, Vault, VaultError,
    directory as keyholder_directory,
};
pub use overload::{Adapted, EngineeredFor, OverloadControl, RefuseAt};
pub use secrets::BACKUP_FILES;
pub use streams::Connections;
pub use tls::{TlsFileError, TlsFiles};
