//! The frontend's way to the key holder: a process of its own, which alone knows the secrets of users and the site's key.

mod vault;

use std::{
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sluicegate_capability::epoch::Epoch;
use sluicegate_signin::{EpochHa1, SitePublic, UserSecret};
use sluicegate_wire::UnixTime;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

pub use vault::{Vault, VaultError};

use crate::agents::{AgentKeys, EpochUsers};

/// Longest message in either direction.
const FRAME_LEN_MAX: usize = 256 * 1024;
/// Users in one answer.
const PAGE_LEN: usize = 1_024;
/// A key holder that does not answer for so long is started anew.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// It is not, and why.
    Refused(String),
}

/// Where the key holder runs.
#[derive(Debug, Clone)]
pub enum KeyHolder {
    /// A child process: `PROGRAM key-holder DIRECTORY REALM`, with its end of a socket as standard input.
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
}

/// A connection to the key holder, made anew when it breaks.
pub(crate) struct Holder {
    at: KeyHolder,
    realm: String,
    link: Mutex<Option<Link>>,
}

struct Link {
    stream: UnixStream,
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

    /// The site's public key.
    pub(crate) fn site(&self) -> Result<SitePublic, HolderError> {
        match &self.ask(&Request::Certificate { replica: [0; 32] })? {
            Response::Certificate { site, .. } => site.parse().map_err(|_| unexpected()),
            _ => Err(unexpected()),
        }
    }

    /// All that the frontend with the key `replica` may know of agents now; `before` is what it knew.
    pub(crate) fn agents(
        &self,
        now: UnixTime,
        replica: [u8; 32],
        before: &AgentKeys,
    ) -> Result<AgentKeys, HolderError> {
        let certificate = match &self.ask(&Request::Certificate { replica })? {
            Response::Certificate { certificate, .. } => certificate.clone(),
            _ => return Err(unexpected()),
        };
        let mut epochs = Vec::new();
        for epoch in AgentKeys::wanted(now) {
            epochs.push((epoch, self.users(epoch, replica)?));
        }
        let mut agents = AgentKeys::new(certificate, epochs);
        agents.keep_previous(before, now);
        Ok(agents)
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

    pub(crate) fn put<'a>(&self, users: impl Iterator<Item = (&'a str, &'a UserSecret)>) -> Result<(), HolderError> {
        let users: Vec<_> = users.map(|(user, secret)| (user.to_owned(), *secret.expose())).collect();
        if users.is_empty() { Ok(()) } else { self.tell(&Request::Put { users }) }
    }

    pub(crate) fn remove(&self, user: &str) -> Result<(), HolderError> {
        self.tell(&Request::Remove { user: user.to_owned() })
    }

    fn tell(&self, request: &Request) -> Result<(), HolderError> {
        match self.ask(request)? {
            Response::Done => Ok(()),
            _ => Err(unexpected()),
        }
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
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_read_timeout(Some(PATIENCE))?;
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
        };
        Ok(Link { stream, child })
    }
}

impl Link {
    fn ask(&mut self, request: &Request) -> io::Result<Response> {
        write_frame(&mut self.stream, request)?;
        read_frame(&mut self.stream)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
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

fn write_frame(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    // Room from the start: growing would leave copies of secrets behind.
    let frame = Vec::with_capacity(FRAME_LEN_MAX);
    let body = postcard::to_extend(message, frame).map_err(io::Error::other)?;
    let body = Zeroizing::new(body);
    let len = u32::try_from(body.len()).ok().filter(|len| *len as usize <= FRAME_LEN_MAX);
    let len = len.ok_or(io::ErrorKind::InvalidData)?;
    stream.write_all(&len.to_be_bytes())?;
    stream.write_all(&body)
}

/// `None` at the end of the stream.
fn read_frame<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let len = u32::from_be_bytes(len) as usize;
    if len > FRAME_LEN_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = Zeroizing::new(vec![0; len]);
    stream.read_exact(&mut body)?;
    postcard::from_bytes(&body).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
