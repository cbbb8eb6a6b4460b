//! What one frontend gets of a key holder on another host, as a file: made there, opened by the frontend on its own.

use serde::{Deserialize, Serialize};
use sluicegate_grant::epoch::Epoch;
use sluicegate_keys::KeyError;
use sluicegate_signin::{EpochHa1, ReplicaKey, SealError, SealedHead, SitePublic, seal, unseal};
use sluicegate_store::UserTable;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use sluicegate_proxy::AgentKeys;

/// Names and their keys.
pub(super) type Users = Vec<(String, [u8; 32])>;
/// What the frontend says of a file that it has opened.
pub(crate) type Receipt = [u8; 16];

/// What is sealed.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(super) struct Issued {
    /// What the site says about the frontend, as text.
    pub(super) certificate: String,
    /// By epoch.
    pub(super) epochs: Vec<(u32, Users)>,
    pub(super) receipt: Receipt,
    /// Who may do what, if that is the other host's to say. Its records erase themselves.
    #[zeroize(skip)]
    pub(super) table: Option<UserTable>,
}

impl Issued {
    pub(super) fn new(
        certificate: String,
        epochs: Vec<(u32, Users)>,
        table: Option<UserTable>,
    ) -> Result<Self, KeyError> {
        Ok(Self { certificate, epochs, receipt: random()?, table })
    }

    /// The file, and which it is.
    pub(super) fn seal<E: From<SealError> + From<KeyError>>(
        &self,
        (site, head): (&SitePublic, &SealedHead<'_>),
        sign: impl FnOnce(&[u8; 32]) -> Result<[u8; 64], E>,
    ) -> Result<IssuedFile, E> {
        // Room from the start: growing would leave copies behind. A name has 64 bytes at most, and a record rarely more.
        let users: usize = self.epochs.iter().map(|(_, users)| users.len()).sum();
        let records = self.table.as_ref().map_or(0, UserTable::bytes);
        let content = postcard::to_extend(self, Vec::with_capacity(1_024 + users * 100 + records));
        let content = Zeroizing::new(content.map_err(|_| SealError::Malformed)?);
        let text = seal(random()?, (site, head), &content, sign)?;
        Ok(IssuedFile { number: head.number, receipt: self.receipt, text })
    }
}

fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| KeyError::Random(error.to_string()))?;
    Ok(bytes)
}

/// A file for one frontend.
#[derive(Debug, Clone)]
pub struct IssuedFile {
    /// Its number: of a later one it is higher.
    pub(crate) number: u64,
    /// What nobody can say who has not opened it.
    pub(crate) receipt: Receipt,
    /// The file.
    pub text: String,
}

/// What a file brings.
pub(crate) struct Loaded {
    pub(crate) number: u64,
    pub(crate) receipt: Receipt,
    pub(crate) agents: AgentKeys,
    pub(crate) table: Option<UserTable>,
}

/// What the site `site` issued to this frontend.
pub(super) fn open(text: &[u8], realm: &str, replica: &ReplicaKey, site: &SitePublic) -> Result<Loaded, SealError> {
    let (number, content) = unseal(text, realm, replica, site)?;
    let mut issued: Issued = postcard::from_bytes(&content).map_err(|_| SealError::Malformed)?;
    let users = |users: &Users| users.iter().map(|(user, ha1)| (user.clone(), EpochHa1::from_bytes(*ha1))).collect();
    let epochs = issued.epochs.iter().map(|(epoch, of_epoch)| (Epoch(*epoch), users(of_epoch))).collect();
    let agents = AgentKeys::new(issued.certificate.clone(), epochs);
    Ok(Loaded { number, receipt: issued.receipt, agents, table: issued.table.take() })
}
