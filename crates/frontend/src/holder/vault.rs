//! The key holder itself: users' secrets and the site's key, in a directory of its own.

use std::{io, os::unix::net::UnixStream, path::Path};

use sluicegate_capability::epoch::Epoch;
use sluicegate_policy::is_name;
use sluicegate_signin::{SECRET_LEN, SiteKey, SitePublic, UserSecret};
use sluicegate_store::{
    Embedded, EmbeddedOptions, Store as _, StoreError, Txn,
    keys::{self, KeyError},
};
use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

use super::{PAGE_LEN, Request, Response, read_frame, write_frame};
use crate::{agents::AgentKeys, clock::Clock};

const PREFIX: &str = "secret/";

/// Why the key holder ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VaultError {
    /// Its directory or the site's key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Its store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The frontend cannot be heard or told.
    #[error("cannot talk to the frontend: {0}")]
    Socket(#[from] io::Error),
}

/// Users' secrets and the site's key.
pub struct Vault {
    store: Embedded,
    site: SiteKey,
    realm: String,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault").field("site", &self.site).finish_non_exhaustive()
    }
}

impl Vault {
    /// The secrets in `directory`, which is made if it is not there, for its owner alone.
    ///
    /// # Errors
    /// If it cannot be made or read, or others may.
    pub fn open(directory: &Path, realm: &str) -> Result<Self, VaultError> {
        keys::private_directory(directory)?;
        let site = SiteKey::from_seed(&*keys::load_or_create_seed(&directory.join("site.key"))?);
        let store = Embedded::open(&directory.join("secrets.redb"), EmbeddedOptions::default())?;
        Ok(Self { store, site, realm: realm.to_owned() })
    }

    /// What agents pin.
    #[must_use]
    pub fn site(&self) -> SitePublic {
        self.site.public()
    }

    /// Answers a frontend. Keys of other epochs than this and, within its last hour, the next are refused: whoever
    /// breaks into a frontend cannot ask for tomorrow.
    pub(crate) fn answer(&self, now: UnixTime, request: &Request) -> Response {
        let answer = match request {
            Request::Certificate { replica } => Ok(self.certify(now, *replica)),
            Request::Agents { replica, epoch, after } => self.agents(now, replica, Epoch(*epoch), after),
            Request::Put { users } => self.put(now, users),
            Request::Remove { user } => {
                let txn = Txn::default().delete(&key(user));
                self.store.txn(now, &txn).map(|_| Response::Done).map_err(|error| error.to_string())
            }
        };
        answer.unwrap_or_else(Response::Refused)
    }

    /// Answers the frontend at the other end of `stream` until that closes. Everything is open already.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub fn serve(&self, mut stream: UnixStream) -> Result<(), VaultError> {
        let clock = Clock::start();
        while let Some(request) = read_frame::<Request>(&mut stream)? {
            write_frame(&mut stream, &self.answer(clock.unix(), &request))?;
        }
        Ok(())
    }

    fn certify(&self, now: UnixTime, replica: [u8; 32]) -> Response {
        let certificate = self.site.certify(&self.realm, replica, AgentKeys::certified_until(now));
        Response::Certificate { site: self.site().to_string(), certificate: certificate.to_text() }
    }

    fn agents(&self, now: UnixTime, replica: &[u8; 32], epoch: Epoch, after: &str) -> Result<Response, String> {
        if !AgentKeys::wanted(now).contains(&epoch) {
            return Err(format!("the keys of epoch {epoch} are not given out now"));
        }
        let after = if after.is_empty() { String::new() } else { key(after) };
        let page = self.store.range(now, PREFIX, &after, PAGE_LEN).map_err(|error| error.to_string())?;
        let ha1 = |entry: &sluicegate_store::Entry| {
            let user = entry.key.strip_prefix(PREFIX)?.to_owned();
            let secret = UserSecret::from_bytes(<[u8; SECRET_LEN]>::try_from(entry.value.as_slice()).ok()?);
            let ha1 = *secret.ha1(&user, &self.realm, epoch, replica).expose();
            Some((user, ha1))
        };
        Ok(Response::Agents(page.iter().filter_map(ha1).collect()))
    }

    fn put(&self, now: UnixTime, users: &[(String, [u8; SECRET_LEN])]) -> Result<Response, String> {
        if !users.iter().all(|(user, _)| is_name(user)) {
            return Err("this cannot name a user".to_owned());
        }
        let put = |txn: Txn, (user, secret): &(String, [u8; SECRET_LEN])| {
            txn.put(&key(user), Zeroizing::new(secret.to_vec()))
        };
        let txn = users.iter().fold(Txn::default(), put);
        self.store.txn(now, &txn).map(|_| Response::Done).map_err(|error| error.to_string())
    }
}

fn key(user: &str) -> String {
    format!("{PREFIX}{user}")
}
