//! The key holder itself: users' secrets and the site's key, in a directory of its own.

use std::{io, os::unix::net::UnixStream, path::Path, thread, time::Duration};

use sluicegate_grant::epoch::Epoch;
use sluicegate_keys::{self as keys, KeyError};
use sluicegate_policy::is_name;
use sluicegate_signin::{SECRET_LEN, SealError, SealedHead, SiteKey, SitePublic, UserSecret};
use sluicegate_store::{ENTRIES_MAX, Store, StoreError, Txn};
use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

use super::{
    PAGE_LEN, Request, Response,
    issued::{Issued, IssuedFile, Users},
    read_frame, write_frame,
};
use crate::clock::Clock;
use sluicegate_proxy::AgentKeys;

const SITE_FILE: &str = "site.key";
const SECRETS_FILE: &str = "secrets.redb";
/// What of its directory makes a key holder the same again elsewhere.
pub const BACKUP_FILES: [&str; 2] = [SITE_FILE, SECRETS_FILE];
const PREFIX: &str = "secret/";
/// Where the number of the last file is.
const NUMBER: &str = "issued";
/// How long a new key holder waits for the store of one that ends.
const OPEN_TRIES: u32 = 10;
const OPEN_WAIT: Duration = Duration::from_millis(100);

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
    /// A frontend's key that is none.
    #[error("the frontend's key cannot be sealed to; copy it anew from the frontend's status")]
    Seal(#[from] SealError),
    /// No name that can be used.
    #[error(
        "{0:?} cannot name a user: use 1 to 64 letters, digits, '.', '_', '-' or '+', not starting with '.' or '-'"
    )]
    Name(String),
    /// A number that was not drawn.
    #[error("number {0} was not given out here")]
    Number(u64),
}

/// Users' secrets and the site's key.
pub struct Vault {
    store: Store,
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
        let site = SiteKey::from_seed(&*keys::load_or_create_seed(&directory.join(SITE_FILE))?);
        let path = directory.join(SECRETS_FILE);
        let mut store = Store::open(&path, ENTRIES_MAX);
        // The one before may still be on its way out.
        for _ in 0..OPEN_TRIES {
            if store.is_ok() {
                break;
            }
            thread::sleep(OPEN_WAIT);
            store = Store::open(&path, ENTRIES_MAX);
        }
        Ok(Self { store: store?, site, realm: realm.to_owned() })
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
            Request::Put { users } => {
                let secret =
                    |(user, secret): &(String, [u8; SECRET_LEN])| (user.clone(), UserSecret::from_bytes(*secret));
                let users: Vec<_> = users.iter().map(secret).collect();
                self.put(&users).map(|()| Response::Done).map_err(|error| error.to_string())
            }
            Request::Number => self.draw(now).map(Response::Number).map_err(|error| error.to_string()),
            Request::Sign { replica, number, hash } => {
                let signature = self.sign(&SealedHead { realm: &self.realm, replica: *replica, number: *number }, hash);
                signature.map(|signature| Response::Signature(signature.to_vec())).map_err(|error| error.to_string())
            }
            Request::Remove { user } => self.remove(user).map(|_| Response::Done).map_err(|error| error.to_string()),
        };
        answer.unwrap_or_else(Response::Refused)
    }

    /// Answers the frontend at the other end of `stream` until that closes. Everything is open already.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub fn serve(&self, mut stream: UnixStream) -> Result<(), VaultError> {
        let clock = Clock::start();
        while let Some((number, request)) = read_frame::<Request>(&mut stream)? {
            write_frame(&mut stream, number, &self.answer(clock.unix(), &request))?;
        }
        Ok(())
    }

    /// What the frontend with this key gets, on whatever host it is: its keys of this epoch, in its last hour of the next
    /// too, and its certificate. Sealed to it, so that a copy is of no use to anybody else.
    ///
    /// # Errors
    /// If the store cannot be read or written, or there are no random bytes.
    pub fn issue(&self, now: UnixTime, replica: &[u8; 32]) -> Result<IssuedFile, VaultError> {
        let mut epochs = Vec::new();
        for epoch in AgentKeys::wanted(now) {
            epochs.push((epoch.0, self.all(replica, epoch)?));
        }
        let certificate = self.site.certify(&self.realm, *replica, AgentKeys::certified_until(now)).to_text();
        let head = SealedHead { realm: &self.realm, replica: *replica, number: self.draw(now)? };
        Issued::new(certificate, epochs, None)?.seal((&self.site(), &head), |hash| self.sign(&head, hash))
    }

    /// The number of the next file: the time in microseconds, or one more than the last where the clock was set back.
    fn draw(&self, now: UnixTime) -> Result<u64, VaultError> {
        let number = self.drawn()?.saturating_add(1).max(now.0.saturating_mul(1_000_000));
        self.store.txn(&Txn::default().put(NUMBER, Zeroizing::new(number.to_be_bytes().to_vec())))?;
        Ok(number)
    }

    fn drawn(&self) -> Result<u64, VaultError> {
        let last = self.store.get(NUMBER)?;
        Ok(last.and_then(|last| last.value.as_slice().try_into().ok()).map_or(0, u64::from_be_bytes))
    }

    /// Signs a file. A number from the future would be the last that its frontend takes, so none is signed that was not drawn.
    fn sign(&self, head: &SealedHead<'_>, hash: &[u8; 32]) -> Result<[u8; 64], VaultError> {
        if head.number > self.drawn()? {
            return Err(VaultError::Number(head.number));
        }
        Ok(self.site.sign_sealed(head, hash))
    }

    fn all(&self, replica: &[u8; 32], epoch: Epoch) -> Result<Users, VaultError> {
        let mut users = Users::new();
        loop {
            let after = users.last().map_or("", |(user, _)| user.as_str());
            let page = self.page(replica, epoch, after)?;
            let is_last = page.len() < PAGE_LEN;
            users.extend(page);
            if is_last {
                return Ok(users);
            }
        }
    }

    /// Names of all users with a secret.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn users(&self) -> Result<Vec<String>, VaultError> {
        let all = self.all(&[0; 32], Epoch(0))?;
        Ok(all.iter().map(|(user, _)| user.clone()).collect())
    }

    /// Gives these users these secrets, all of them or none; at most as many as one transaction takes.
    ///
    /// # Errors
    /// If one has no name that can be used, or the store fails.
    pub fn put(&self, users: &[(String, UserSecret)]) -> Result<(), VaultError> {
        let wrong = users.iter().find(|(user, _)| !is_name(user));
        if let Some((user, _)) = wrong {
            return Err(VaultError::Name(user.chars().take(80).collect()));
        }
        let put = |txn: Txn, (user, secret): &(String, UserSecret)| {
            txn.put(&key(user), Zeroizing::new(secret.expose().to_vec()))
        };
        self.store.txn(&users.iter().fold(Txn::default(), put))?;
        Ok(())
    }

    /// Forgets a user; whether there was one.
    ///
    /// # Errors
    /// If the store fails.
    pub fn remove(&self, user: &str) -> Result<bool, VaultError> {
        let is_known = self.store.get(&key(user))?.is_some();
        self.store.txn(&Txn::default().delete(&key(user)))?;
        Ok(is_known)
    }

    fn certify(&self, now: UnixTime, replica: [u8; 32]) -> Response {
        let certificate = self.site.certify(&self.realm, replica, AgentKeys::certified_until(now));
        Response::Certificate { site: self.site().to_string(), certificate: certificate.to_text() }
    }

    fn agents(&self, now: UnixTime, replica: &[u8; 32], epoch: Epoch, after: &str) -> Result<Response, String> {
        if !AgentKeys::wanted(now).contains(&epoch) {
            return Err(format!("the keys of epoch {epoch} are not given out now"));
        }
        self.page(replica, epoch, after).map(Response::Agents).map_err(|error| error.to_string())
    }

    fn page(&self, replica: &[u8; 32], epoch: Epoch, after: &str) -> Result<Users, StoreError> {
        let after = if after.is_empty() { String::new() } else { key(after) };
        let page = self.store.range(PREFIX, &after, PAGE_LEN)?;
        let ha1 = |entry: &sluicegate_store::Entry| {
            let user = entry.key.strip_prefix(PREFIX)?.to_owned();
            let secret = UserSecret::from_bytes(<[u8; SECRET_LEN]>::try_from(entry.value.as_slice()).ok()?);
            let ha1 = *secret.ha1(&user, &self.realm, epoch, replica).expose();
            Some((user, ha1))
        };
        Ok(page.iter().filter_map(ha1).collect())
    }
}

fn key(user: &str) -> String {
    format!("{PREFIX}{user}")
}
