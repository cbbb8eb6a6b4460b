use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use sluicegate_wire::UnixTime;

use crate::{
    Directory, DirectoryError, OPS_MAX, Txn,
    directory::{decode, encode},
};

const PREFIX: &str = "registration/";
/// Registrations that are read back: more than a frontend holds.
const REGISTRATIONS_MAX: usize = 4_096;

/// Where a service takes its calls, for a frontend that starts anew: its agent registers again only after a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The service's name.
    pub service: String,
    /// Index of the listening address that the agent sent to.
    pub listener: u8,
    /// Where it sent from.
    pub peer: SocketAddr,
    /// Its Contact URI.
    pub contact: Vec<u8>,
    /// Unix second at which it ends.
    pub expires_at: u64,
}

impl Directory {
    /// Keeps what changed; what has ended is removed.
    ///
    /// # Errors
    /// If the store fails.
    pub fn keep_registrations(&self, now: UnixTime, changed: &[Registration]) -> Result<(), DirectoryError> {
        for part in changed.chunks(OPS_MAX) {
            let txn = part.iter().fold(Txn::default(), |txn, registration| {
                let key = key(&registration.service);
                if registration.expires_at <= now.0 { txn.delete(&key) } else { txn.put(&key, encode(registration)) }
            });
            self.store().txn(&txn)?;
        }
        Ok(())
    }

    /// The registrations that have not ended. Those that have are removed.
    ///
    /// # Errors
    /// If the store fails or a record cannot be read.
    pub fn registrations(&self, now: UnixTime) -> Result<Vec<Registration>, DirectoryError> {
        let entries = self.store().range(PREFIX, "", REGISTRATIONS_MAX)?;
        let all = entries.iter().map(|entry| decode(&entry.key, &entry.value));
        let all = all.collect::<Result<Vec<Registration>, _>>()?;
        let (live, ended): (Vec<_>, Vec<_>) = all.into_iter().partition(|registration| registration.expires_at > now.0);
        if !ended.is_empty() {
            self.keep_registrations(now, &ended)?;
        }
        Ok(live)
    }
}

fn key(service: &str) -> String {
    format!("{PREFIX}{service}")
}
