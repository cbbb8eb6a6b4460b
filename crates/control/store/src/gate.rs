use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sluicegate_feed::JoinSecret;
use sluicegate_policy::is_name;
use sluicegate_wire::UnixTime;

use crate::{
    Directory, DirectoryError, Entry, Expect, Kind, StoreError, Txn,
    directory::{decode, encode},
};

/// Seconds for which a join secret can be used.
pub const JOIN_LIFETIME_S: u64 = 3_600;
/// Join secrets that can be open at once.
pub const JOINS_MAX: usize = 64;

const JOIN_PREFIX: &str = "join/";

/// A gate that has joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// Its name.
    pub name: String,
    /// SHA-256 of its TLS certificate (DER): what it is recognised by.
    pub certificate: [u8; 32],
    /// Unix second at which it joined.
    pub joined_at: u64,
    /// Where it dialled from last. Not what it is recognised by: only places to greet are kept free for that address.
    pub seen_at: Option<IpAddr>,
}

/// Why a gate could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The secret is none that is open: never issued, used, or too old.
    #[error("the join token was used already or is older than an hour; make a new one with: sluicegate gate-join")]
    Secret,
    /// Another gate has this name.
    #[error(
        "another gate is called {0:?}; give this one another name, or remove the other with: sluicegate gate rm {0}"
    )]
    NameTaken(String),
    /// No name that can be used.
    #[error("a gate's name is 1 to 64 letters, digits, '.', '_', '-' or '+'; set [node] name")]
    Name,
    /// As many secrets are open as may be.
    #[error("{JOINS_MAX} join tokens are open already; wait until one has been used or is an hour old")]
    Full,
    /// The directory failed.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

impl From<StoreError> for JoinError {
    fn from(error: StoreError) -> Self {
        Self::Directory(error.into())
    }
}

impl Directory {
    /// Opens a one-time secret for an hour. Only its hash is stored.
    ///
    /// # Errors
    /// [`JoinError::Full`] if as many are open as may be.
    pub fn open_join(&self, now: UnixTime, secret: &JoinSecret) -> Result<(), JoinError> {
        let (open, ended) = self.joins(now)?;
        if open.len() >= JOINS_MAX {
            return Err(JoinError::Full);
        }
        let txn = ended.iter().fold(Txn::default(), |txn, entry| txn.delete(&entry.key));
        self.store().txn(&txn.put(&join_key(secret), encode(&now.0)))?;
        Ok(())
    }

    /// How many join secrets are open: without any, a frontend has no reason to listen to gates it does not know.
    ///
    /// # Errors
    /// If the store fails.
    pub fn open_joins(&self, now: UnixTime) -> Result<usize, DirectoryError> {
        Ok(self.joins(now)?.0.len())
    }

    /// The join secrets that are open, and those that are too old.
    fn joins(&self, now: UnixTime) -> Result<(Vec<Entry>, Vec<Entry>), StoreError> {
        let all = self.store().range(JOIN_PREFIX, "", JOINS_MAX)?;
        Ok(all.into_iter().partition(|entry| is_open(now, entry)))
    }

    /// Lets the gate with this certificate in, once for each secret.
    ///
    /// # Errors
    /// [`JoinError::Secret`] if the secret is not open; [`JoinError::NameTaken`], with the secret still open, if another
    /// gate has the name.
    pub fn join(
        &self,
        now: UnixTime,
        secret: &JoinSecret,
        name: &str,
        certificate: [u8; 32],
    ) -> Result<Gate, JoinError> {
        if !is_name(name) {
            return Err(JoinError::Name);
        }
        let join_key = join_key(secret);
        let open = self.store().get(&join_key)?.filter(|entry| is_open(now, entry)).ok_or(JoinError::Secret)?;
        let gate_key = Kind::Gate.key(name);
        let present = match self.store().get(&gate_key)? {
            None => Expect::Absent,
            Some(entry) if decode::<Gate>(&gate_key, &entry.value)?.certificate == certificate => {
                Expect::At(entry.revision)
            }
            Some(_) => return Err(JoinError::NameTaken(name.into())),
        };
        let gate = Gate { name: name.into(), certificate, joined_at: now.0, seen_at: None };
        let txn = Txn::default()
            .when(&join_key, Expect::At(open.revision))
            .when(&gate_key, present)
            .delete(&join_key)
            .put(&gate_key, encode(&gate));
        match self.store().txn(&txn) {
            Ok(_) => Ok(gate),
            Err(StoreError::Conflict { key }) if key == join_key => Err(JoinError::Secret),
            Err(StoreError::Conflict { .. }) => Err(JoinError::NameTaken(name.into())),
            Err(error) => Err(error.into()),
        }
    }

    /// The gate that is recognised by this certificate.
    ///
    /// # Errors
    /// If the store fails or a record cannot be read.
    pub fn gate_of_certificate(&self, certificate: &[u8; 32]) -> Result<Option<Gate>, DirectoryError> {
        Ok(self.all::<Gate>()?.into_iter().find(|gate| gate.certificate == *certificate))
    }
}

/// Whether a join secret, of which the store has the second at which it was made, is not too old.
fn is_open(now: UnixTime, entry: &Entry) -> bool {
    decode::<u64>(&entry.key, &entry.value).is_ok_and(|made_at| UnixTime(made_at).plus_secs(JOIN_LIFETIME_S) > now)
}

/// The secret itself is not in the store: who reads a copy of the file cannot join with it.
fn join_key(secret: &JoinSecret) -> String {
    let mut hash = Sha256::new();
    hash.update(b"sluicegate join secret v1\0");
    hash.update(secret.expose());
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{JOIN_PREFIX}{digits}")
}
