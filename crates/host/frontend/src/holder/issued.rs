//! The keys of one frontend as a file: made by a key holder, opened by the frontend on its own host.

use serde::{Deserialize, Serialize};
use sluicegate_grant::epoch::Epoch;
use sluicegate_signin::{EpochHa1, ReplicaKey, SealError, SiteKey, SitePublic, seal, unseal};
use sluicegate_wire::UnixTime;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use sluicegate_proxy::AgentKeys;

/// Names and their keys.
pub(super) type Users = Vec<(String, [u8; 32])>;

/// What is sealed.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(super) struct Issued {
    /// What the site says about the frontend, as text.
    pub(super) certificate: String,
    /// By epoch.
    pub(super) epochs: Vec<(u32, Users)>,
}

impl Issued {
    /// The file. `seed` is 32 secret random bytes.
    pub(super) fn seal(
        &self,
        seed: [u8; 32],
        site: (&SiteKey, &str),
        replica: &[u8; 32],
        now: UnixTime,
    ) -> Result<String, SealError> {
        // Room from the start: growing would leave copies behind. A name has 64 bytes at most.
        let users: usize = self.epochs.iter().map(|(_, users)| users.len()).sum();
        let content = postcard::to_extend(self, Vec::with_capacity(1_024 + users * 100));
        let content = Zeroizing::new(content.map_err(|_| SealError::Malformed)?);
        seal(seed, site, replica, now, &content)
    }
}

/// What the site `site` issued to this frontend.
pub(super) fn open(text: &[u8], realm: &str, replica: &ReplicaKey, site: &SitePublic) -> Result<AgentKeys, SealError> {
    let (at, content) = unseal(text, realm, replica, site)?;
    let issued: Issued = postcard::from_bytes(&content).map_err(|_| SealError::Malformed)?;
    let users = |users: &Users| users.iter().map(|(user, ha1)| (user.clone(), EpochHa1::from_bytes(*ha1))).collect();
    let epochs = issued.epochs.iter().map(|(epoch, of_epoch)| (Epoch(*epoch), users(of_epoch))).collect();
    let mut agents = AgentKeys::new(issued.certificate.clone(), epochs);
    agents.issued = at;
    Ok(agents)
}
