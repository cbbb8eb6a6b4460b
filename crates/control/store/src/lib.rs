//! The store.
//!
//! A [`Store`] keeps small records under text keys in one file, with revisions and compare-and-set transactions.
//! [`Directory`] is what the rest of Sluicegate uses: users, groups, services, rules and gates by name. [`password`] turns a
//! password into what is kept of it, [`audit`] writes down who did what, and a [`ContactLog`] keeps where telephones are.

pub mod audit;
mod contacts;
mod directory;
mod gate;
mod issued;
mod kept;
pub mod password;
mod store;

pub use contacts::{CONTACT_RECORDS_MAX, ContactLog, KeptContact, KeptUser, KeptUsers};
pub use directory::{Directory, DirectoryError, Kind, Record};
pub use gate::{Gate, JOIN_LIFETIME_S, JOINS_MAX, JoinError};
pub use issued::{ISSUED_BYTES_MAX, TakenFile, UserTable};
pub use kept::{KEPT_REVOKES_MAX, KeptRevoke, Registration};
pub use store::{ENTRIES_MAX, Entry, Expect, KEY_LEN_MAX, OPS_MAX, Revision, Store, StoreError, Txn, VALUE_LEN_MAX};
