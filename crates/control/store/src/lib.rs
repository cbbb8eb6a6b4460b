//! The store, its embedded back end, and the feed between frontend and gate.
//!
//! A [`Store`] keeps small records under text keys, with revisions, compare-and-set transactions, leases and a resumable
//! watch; [`Embedded`] does so in one file. [`Directory`] is what the rest of Sluicegate uses: users, groups, services,
//! rules and gates by name. [`keys`] reads and creates secret files, [`password`] turns a password into what is kept of it,
//! [`feed`] is the protocol by which frontends tell gates what to open,
//! and [`audit`] writes down who did what.

pub mod audit;
mod backend;
mod directory;
mod embedded;
pub mod feed;
mod gate;
pub mod keys;
pub mod password;
mod registration;
mod revoke;

pub use backend::{
    Change, ChangeKind, Compare, Entry, Expect, KEY_LEN_MAX, LEASES_MAX, LeaseId, OPS_MAX, Op, Revision, Store,
    StoreError, Txn, VALUE_LEN_MAX, Watch,
};
pub use directory::{Directory, DirectoryError, Kind, Record};
pub use embedded::{Embedded, EmbeddedOptions};
pub use gate::{Gate, JOIN_LIFETIME_S, JOINS_MAX, JoinError};
pub use registration::Registration;
pub use revoke::{KEPT_REVOKES_MAX, KeptRevoke};
