//! The store and its embedded back end.
//!
//! A [`Store`] keeps small records under text keys, with revisions, compare-and-set transactions, leases and a resumable
//! watch; [`Embedded`] does so in one file. [`Directory`] is what the rest of Sluicegate uses: users, groups, services,
//! rules and gates by name. [`password`] turns a password into what is kept of it, and [`audit`] writes down who did what.

pub mod audit;
mod backend;
mod directory;
mod embedded;
mod gate;
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
