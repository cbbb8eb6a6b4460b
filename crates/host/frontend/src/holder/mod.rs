//! The frontend's way to the key holder: a process of its own, which alone knows the secrets of users and the site's key;
//! or one on another host, which issues the keys of an epoch as a file.

mod issued;
mod vault;

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sluicegate_grant::epoch::Epoch;
use sluicegate_keys::KeyError;
use sluicegate_signin::{EpochHa1, ReplicaKey, SealError, SealedHead, SitePublic, sealed_head};
use sluicegate_store::{ISSUED_BYTES_MAX, UserTable};
use sluicegate_wire::UnixTime;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use issued::Issued;
pub use issued::IssuedFile;
pub(crate) use issued::Loaded;
pub use vault::{BACKUP_FILES, Vault, VaultError};

use sluicegate_proxy::{AgentKeys, EpochUsers};

/// Longest message in either direction: what a local socket takes whole.
const FRAME_LEN_MAX: usize = 64 * 1024;
/// Users in one answer.
const PAGE_LEN: usize = 256;
/// A key holder that has not answered for so long is asked again: it may have been killed with the question.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is asked.
const TRIES: u32 = 5;

/// What a frontend asks.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(crate) enum Request {
    /// Who the site is, and that the holder of this key is one of its frontends.
    Certificate { replica: [u8; 32] },
    /// What this frontend checks agents' digests of an epoch against: users after this name.
    Agents { replica: [u8; 32], epoch: u32, after: String },
    /// These are the users' secrets from now on: all of them, or none if it is refused.
    Put { users: Vec<(String, [u8; 32])> },
    /// The user is gone.
    Remove { user: String },
    /// What is the number of the next file for another frontend?
    Number,
    /// The site's signature of such a file, whose messages have this SHA-256.
    Sign { replica: [u8; 32], number: u64, hash: [u8; 32] },
}

/// What it is told.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(crate) enum Response {
    /// The site's public key and the certificate, as text.
    Certificate { site: String, certificate: String },
    /// Users in the order of their names; the last page is not full.
    Agents(Vec<(String, [u8; 32])>),
    /// It is written.
    Done,
    /// The number.
    Number(u64),
    /// The signature.
    Signature(Vec<u8>),
    /// It is not, and why.
    Refused(String),
}

/// Where the key holder runs.
#[derive(Debug, Clone)]
pub enum KeyHolder {
    /// A child process: `PROGRAM key-holder DIRECTORY REALM`, with its end of a socket as standard input. Another process
    /// must take its place at that socket if it is killed: a frontend without privileges can start none.
    Process {
        /// The program, which is this one.
        program: PathBuf,
        /// Its directory, which no frontend reads.
        directory: PathBuf,
    },
    /// A thread of this process, for tests of the library.
    Thread {
        /// Its directory.
        directory: PathBuf,
    },
    /// On another host. What it issues to this frontend is copied or sent here, once an epoch at least.
    Elsewhere {
        /// Where a file is read from at the start.
        file: Option<PathBuf>,
        /// The site that must have signed it.
        site: SitePublic,
    },
}

/// Why the key holder did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HolderError {
    /// It cannot be started or reached.
    #[error("the key holder does not answer: {0}; its own log lines say why")]
    Unreachable(io::Error),
    /// It refused.
    #[error("the key holder refused: {0}")]
    Refused(String),
    /// It is on another host.
    #[error(
        "the key holder of this frontend is on another host (`keys` in [frontend]): add what agents sign in with there"
    )]
    Elsewhere,
    /// It is here.
    #[error("this frontend has a key holder of its own; only one with `keys` in [frontend] loads them")]
    Here,
    /// A file of keys that cannot be opened.
    #[error(transparent)]
    Sealed(#[from] SealError),
    /// No random bytes.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A file of keys that is over.
    #[error("these keys are for epoch {0} and that is over, or not come yet; check both clocks and issue them again")]
    Epoch(u32),
    /// A file of keys that is older than what is there.
    #[error("these keys are older than those that were loaded last; issue them again")]
    Older,
    /// More users than fit into a file.
    #[error("what is issued has {0} bytes, and a file may have {ISSUED_BYTES_MAX}; remove users who are gone")]
    TooLong(usize),
}

/// A connection to the key holder, made anew when it breaks.
pub(crate) struct Holder {
    at: KeyHolder,
    realm: String,
    link: Mutex<Option<Link>>,
}

struct Link {
    stream: UnixStream,
    /// Of the last question, so that the answer to one that was asked again is not taken for another's.
    number: u32,
    child: Option<Child>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // It ends when its socket does; asked once more, so that none is left behind.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Holder {
    pub(crate) fn new(at: KeyHolder, realm: &str) -> Self {
        Self { at, realm: realm.to_owned(), link: Mutex::new(None) }
    }

    /// Whether keys come as files, from another host.
    pub(crate) const fn is_elsewhere(&self) -> bool {
        matches!(self.at, KeyHolder::Elsewhere { .. })
    }

    /// Where keys come from another host: whose they are, and the file that is read at the start.
    pub(crate) fn elsewhere(&self) -> Option<(SitePublic, Option<&Path>)> {
        match &self.at {
            KeyHolder::Elsewhere { file, site } => Some((*site, file.as_deref())),
            _ => None,
        }
    }

    /// Opens a file that a key holder elsewhere issued; `before` is what was known.
    pub(crate) fn load(
        &self,
        now: UnixTime,
        text: &[u8],
        replica: &ReplicaKey,
        before: &AgentKeys,
    ) -> Result<Loaded, HolderError> {
        let KeyHolder::Elsewhere { site, .. } = &self.at else { return Err(HolderError::Here) };
        let mut loaded = issued::open(text, &self.realm, replica, site)?;
        let first = loaded.agents.epochs().map(|(epoch, _)| epoch.0).next().unwrap_or_default();
        if loaded.agents.certificate(Epoch::at(now)).is_none() {
            return Err(HolderError::Epoch(first));
        }
        loaded.agents.keep_previous(before, now);
        Ok(loaded)
    }

    /// The number of the file that begins with `head`.
    pub(crate) fn number_of(&self, head: &[u8], replica: &ReplicaKey) -> Result<u64, HolderError> {
        let KeyHolder::Elsewhere { site, .. } = &self.at else { return Err(HolderError::Here) };
        Ok(sealed_head(head, &self.realm, replica.public(), site)?.0)
    }

    /// What the frontend with the key `replica`, on another host, gets now: its keys, and `table`.
    pub(crate) fn issue(&self, now: UnixTime, replica: [u8; 32], table: UserTable) -> Result<IssuedFile, HolderError> {
        let Response::Number(number) = self.ask(&Request::Number)? else { return Err(unexpected()) };
        let (certificate, epochs) = self.given(now, replica)?;
        let users = |users: &EpochUsers| {
            let mut users: Vec<_> = users.iter().map(|(user, ha1)| (user.clone(), *ha1.expose())).collect();
            users.sort_unstable();
            users
        };
        let epochs = epochs.iter().map(|(epoch, of_epoch)| (epoch.0, users(of_epoch))).collect();
        let issued = Issued::new(certificate, epochs, Some(table))?;
        let (site, head) = (self.site()?, SealedHead { realm: &self.realm, replica, number });
        let sealed = issued.seal((&site, &head), |hash| {
            match &self.ask(&Request::Sign { replica, number, hash: *hash })? {
                Response::Signature(signature) => signature.as_slice().try_into().map_err(|_| unexpected()),
                _ => Err(unexpected()),
            }
        })?;
        if sealed.text.len() > ISSUED_BYTES_MAX {
            return Err(HolderError::TooLong(sealed.text.len()));
        }
        Ok(sealed)
    }

    /// The site's public key.
    pub(crate) fn site(&self) -> Result<SitePublic, HolderError> {
        match &self.ask(&Request::Certificate { replica: [0; 32] })? {
            Response::Certificate { site, .. } => site.parse().map_err(|_| unexpected()),
            _ => Err(unexpected()),
        }
    }

    /// All that the frontend with the key `replica` may know of agents now; `before` is what it knew. Of a key holder
    /// elsewhere that is what it has given already.
    pub(crate) fn agents(
        &self,
        now: UnixTime,
        replica: [u8; 32],
        before: &AgentKeys,
    ) -> Result<AgentKeys, HolderError> {
        if self.is_elsewhere() {
            return Ok(before.still_good(now));
        }
        let (certificate, epochs) = self.given(now, replica)?;
        let mut agents = AgentKeys::new(certificate, epochs);
        agents.keep_previous(before, now);
        Ok(agents)
    }

    /// The certificate and the keys that a frontend may have now.
    fn given(&self, now: UnixTime, replica: [u8; 32]) -> Result<(String, Vec<(Epoch, EpochUsers)>), HolderError> {
        let certificate = match &self.ask(&Request::Certificate { replica })? {
            Response::Certificate { certificate, .. } => certificate.clone(),
            _ => return Err(unexpected()),
        };
        let mut epochs = Vec::new();
        for epoch in AgentKeys::wanted(now) {
            epochs.push((epoch, self.users(epoch, replica)?));
        }
        Ok((certificate, epochs))
    }

    fn users(&self, epoch: Epoch, replica: [u8; 32]) -> Result<EpochUsers, HolderError> {
        let mut users = EpochUsers::new();
        let mut after = String::new();
        loop {
            let request = Request::Agents { replica, epoch: epoch.0, after: after.clone() };
            let response = self.ask(&request)?;
            let Response::Agents(page) = &response else { return Err(unexpected()) };
            users.extend(page.iter().map(|(user, ha1)| (user.clone(), EpochHa1::from_bytes(*ha1))));
            match page.last() {
                Some((last, _)) if page.len() == PAGE_LEN => after.clone_from(last),
                _ => return Ok(users),
            }
        }
    }

    pub(crate) fn put<'a>(&self, users: impl Iterator<Item = (&'a str, &'a [u8; 32])>) -> Result<(), HolderError> {
        let users: Vec<_> = users.map(|(user, secret)| (user.to_owned(), *secret)).collect();
        if users.is_empty() {
            return Ok(());
        }
        if self.is_elsewhere() { Err(HolderError::Elsewhere) } else { self.tell(&Request::Put { users }) }
    }

    /// Forgets a user; one that is held elsewhere is of no use here without the frontend's own record.
    pub(crate) fn remove(&self, user: &str) -> Result<(), HolderError> {
        if self.is_elsewhere() { Ok(()) } else { self.tell(&Request::Remove { user: user.to_owned() }) }
    }

    fn tell(&self, request: &Request) -> Result<(), HolderError> {
        match self.ask(request)? {
            Response::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Sees to it that there is a key holder. One that is killed is replaced at the other end of the same socket; if the
    /// socket is gone, a new one is started, which a frontend without privileges cannot do.
    ///
    /// # Errors
    /// [`HolderError::Unreachable`]: then there is none, and there will be none.
    pub(crate) fn ensure(&self) -> Result<(), HolderError> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_elsewhere() || link.as_ref().is_some_and(Link::is_open) {
            return Ok(());
        }
        *link = None;
        *link = Some(self.start().map_err(HolderError::Unreachable)?);
        Ok(())
    }

    /// Asks, with a new key holder if the one there was is gone: it keeps nothing but its files.
    fn ask(&self, request: &Request) -> Result<Response, HolderError> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = link.as_mut()
            && let Ok(response) = known.ask(request)
        {
            return accepted(response);
        }
        *link = None;
        let mut new = self.start().map_err(HolderError::Unreachable)?;
        let response = new.ask(request).map_err(HolderError::Unreachable)?;
        *link = Some(new);
        accepted(response)
    }

    fn start(&self) -> io::Result<Link> {
        let (stream, theirs) = pair()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let child = match &self.at {
            KeyHolder::Process { program, directory } => {
                let mut command = Command::new(program);
                command.arg("key-holder").arg(directory).arg(&self.realm);
                Some(command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn()?)
            }
            KeyHolder::Thread { directory } => {
                let (directory, realm) = (directory.clone(), self.realm.clone());
                let run = move || {
                    if let Err(error) = Vault::open(&directory, &realm).and_then(|vault| vault.serve(theirs)) {
                        tracing::error!(%error, "the key holder ended");
                    }
                };
                thread::Builder::new().name("key-holder".to_owned()).spawn(run)?;
                None
            }
            KeyHolder::Elsewhere { .. } => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Link { stream, number: 0, child })
    }
}

/// Two ends of a local socket that keeps the bounds of messages, so that a key holder which is killed leaves no half of
/// one to the next.
fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    Ok((ours.into(), theirs.into()))
}

impl Link {
    fn ask(&mut self, request: &Request) -> io::Result<Response> {
        self.number = self.number.wrapping_add(1);
        for _ in 0..TRIES {
            write_frame(&mut self.stream, self.number, request)?;
            if let Some(response) = self.answer()? {
                return Ok(response);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// The answer to the last question; `None` if it has not come in time.
    fn answer(&mut self) -> io::Result<Option<Response>> {
        loop {
            match read_frame(&mut self.stream) {
                Ok(Some((number, response))) if number == self.number => return Ok(Some(response)),
                // To a question that was asked twice.
                Ok(Some(_)) => {}
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether somebody has the other end.
    fn is_open(&self) -> bool {
        let peek = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        !matches!(recv(self.stream.as_raw_fd(), &mut [0], peek), Ok(0) | Err(nix::errno::Errno::ECONNRESET))
    }
}

fn accepted(response: Response) -> Result<Response, HolderError> {
    match &response {
        Response::Refused(why) => Err(HolderError::Refused(why.clone())),
        _ => Ok(response),
    }
}

fn unexpected() -> HolderError {
    HolderError::Unreachable(io::ErrorKind::InvalidData.into())
}

/// The directory of the key holder beside a node's state.
#[must_use]
pub fn directory(state: &Path) -> PathBuf {
    state.join("keyholder")
}

/// One message: the question's number, 4 bytes, and what is said.
fn write_frame(stream: &mut UnixStream, number: u32, message: &impl Serialize) -> io::Result<()> {
    // Room from the start: growing would leave copies of secrets behind.
    let mut frame = Vec::with_capacity(FRAME_LEN_MAX);
    frame.extend_from_slice(&number.to_be_bytes());
    let frame = Zeroizing::new(postcard::to_extend(message, frame).map_err(io::Error::other)?);
    if frame.len() > FRAME_LEN_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.write_all(&frame)
}

/// `None` at the end of the stream.
fn read_frame<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<Option<(u32, T)>> {
    let mut frame = Zeroizing::new(vec![0; FRAME_LEN_MAX]);
    // The socket keeps messages apart: one read, one message.
    let len = stream.read(&mut frame)?;
    if len == 0 {
        return Ok(None);
    }
    let (number, body) =
        frame.get(..len).and_then(|frame| frame.split_first_chunk()).ok_or(io::ErrorKind::InvalidData)?;
    postcard::from_bytes(body).map(|said| Some((u32::from_be_bytes(*number), said))).map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
