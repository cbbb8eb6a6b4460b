//! Keys that last over restarts, and random numbers of one start.

use std::{path::Path, sync::Arc};

use sluicegate_feed::tls;
use sluicegate_grant::IssuerKey;
use sluicegate_keys as keys;
use sluicegate_proxy::derive;
use sluicegate_signin::ReplicaKey;
use zeroize::Zeroizing;

use crate::{catalog::STORE_FILE, daemon::StartError};

const DIALOG_FILE: &str = "frontend-dialog.key";
const ISSUER_FILE: &str = "frontend-issuer.key";
const NOISE_FILE: &str = "frontend-noise.key";
const TLS_FILE: &str = "frontend-tls.pem";
/// What of its state directory makes a frontend the same again elsewhere: keys, users, groups, services, gates.
pub const BACKUP_FILES: [&str; 5] = [DIALOG_FILE, ISSUER_FILE, NOISE_FILE, TLS_FILE, STORE_FILE];

/// All that one frontend keeps to itself.
pub(crate) struct Secrets {
    pub(crate) dialog: Zeroizing<[u8; 32]>,
    pub(crate) issuer: Arc<IssuerKey>,
    pub(crate) replica: Arc<ReplicaKey>,
    pub(crate) tls: tls::Identity,
    pub(crate) boot_id: u64,
    pub(crate) start: Zeroizing<[u8; 32]>,
}

impl Secrets {
    pub(crate) fn load(state_dir: &Path, name: &str) -> Result<Self, StartError> {
        let mut start = Zeroizing::new([0; 32]);
        let mut boot = [0; 8];
        let random = |bytes: &mut [u8]| getrandom::fill(bytes).map_err(|error| StartError::Random(error.to_string()));
        random(&mut *start)?;
        random(&mut boot)?;
        Ok(Self {
            dialog: keys::load_or_create_seed(&state_dir.join(DIALOG_FILE))?,
            issuer: Arc::new(IssuerKey::from_seed(*keys::load_or_create_seed(&state_dir.join(ISSUER_FILE))?)),
            replica: Arc::new(ReplicaKey::from_seed(&*keys::load_or_create_seed(&state_dir.join(NOISE_FILE))?)),
            tls: tls::Identity::load_or_create(&state_dir.join(TLS_FILE), name)?,
            boot_id: u64::from_be_bytes(boot),
            start,
        })
    }

    /// Another for each start and thread.
    pub(crate) fn of_thread(&self, shard: u8) -> [u8; 32] {
        derive(&self.start, &[shard])
    }
}
