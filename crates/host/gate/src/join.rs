//! Joining a frontend: once, with a one-time token. Afterwards both ends know each other by their pinned keys.
//!
//! The state directory then holds `gate.pem` (this gate's certificate and key) and `feeds`: one line for each frontend,
//! `ADDRESS CERTIFICATE-SHA256 ISSUER-KEY`, the last two in hexadecimal.

use crate::{
    clock,
    config::{FEEDS_MAX, FeedAddress},
    feed::connection::{ConnectionError, dial},
    files::{self, Durability},
};
use sluicegate_feed::{
    FeedError, FeedReceiver, FromGate, JoinToken, JoinTokenError,
    tls::{Identity, TlsError},
};
use sluicegate_grant::IssuerPublic;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::timeout;

/// Name of the file with certificate and key in the state directory.
const IDENTITY_FILE: &str = "gate.pem";
/// Name of the file with the joined frontends.
const FEEDS_FILE: &str = "feeds";
/// What of its state directory makes a gate known to its frontends elsewhere too. Flows stay behind: clients open them anew.
pub const BACKUP_FILES: [&str; 2] = [IDENTITY_FILE, FEEDS_FILE];
const FEEDS_LEN_MAX: u64 = 64 * 1024;
/// A frontend answers within this time, or not at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a gate did not join. Nothing was stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The text is no join token.
    #[error(transparent)]
    Token(#[from] JoinTokenError),
    /// This gate's key cannot be used.
    #[error(transparent)]
    Identity(#[from] TlsError),
    /// The frontend was not reached.
    #[error("{0}")]
    Connection(String),
    /// The frontend did not let the gate in.
    #[error(transparent)]
    Refused(#[from] FeedError),
    /// The frontend said nothing.
    #[error("the frontend did not answer within {} s; look at its log", ANSWER_TIMEOUT.as_secs())]
    Silent,
    /// As many frontends are joined as may be.
    #[error("this gate has joined {FEEDS_MAX} frontends already; remove lines of {} that are not needed", .0.display())]
    Full(PathBuf),
    /// A file of the state directory cannot be read or written.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl From<ConnectionError> for JoinError {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error.to_string())
    }
}

/// Joins the frontend that made `token` as the gate `name`, and stores its pins in `state_dir`. To be called once for
/// each frontend; a gate that runs holds the feed from its next start on.
///
/// # Errors
/// See [`JoinError`]. A token is spent only by a successful join.
pub async fn join(token: &str, name: &str, state_dir: &Path) -> Result<FeedAddress, JoinError> {
    let token: JoinToken = token.parse()?;
    files::make_dir(state_dir).map_err(|error| file_error(state_dir, &error))?;
    let feed = FeedAddress { address: token.feed, certificate_pin: token.certificate, issuer: token.issuer.to_bytes() };
    let mut feeds = joined(state_dir)?;
    feeds.retain(|known| known.address != feed.address && known.issuer != feed.issuer);
    if feeds.len() >= FEEDS_MAX {
        return Err(JoinError::Full(state_dir.join(FEEDS_FILE)));
    }
    let identity = identity(state_dir, name)?;
    let (mut incoming, mut outgoing) = dial(&feed, &identity, None).await?;
    let mut receiver = FeedReceiver::new(token.issuer.clone(), name, None);
    let hello = receiver.connect(clock::monotonic(), clock::unix());
    outgoing.send(&[FromGate::Join { secret: token.secret.clone(), gate: name.to_owned() }, hello]).await?;
    let answer = timeout(ANSWER_TIMEOUT, incoming.receive()).await.map_err(|_| JoinError::Silent)??;
    receiver.handle(clock::monotonic(), clock::unix(), answer)?;
    feeds.push(feed.clone());
    store(state_dir, &feeds)?;
    Ok(feed)
}

/// The frontends that this gate has joined.
///
/// # Errors
/// [`JoinError::File`] if the file cannot be read or a line is damaged.
pub fn joined(state_dir: &Path) -> Result<Vec<FeedAddress>, JoinError> {
    let path = state_dir.join(FEEDS_FILE);
    let bytes = files::read(&path, FEEDS_LEN_MAX).map_err(|error| file_error(&path, &error))?.unwrap_or_default();
    let text = String::from_utf8(bytes)
        .map_err(|_| JoinError::File { path: path.clone(), problem: "is not text; join again".into() })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| {
            let problem = || format!("line {} is damaged; remove it and join again", number + 1);
            parse(line).ok_or_else(|| JoinError::File { path: path.clone(), problem: problem() })
        })
        .collect()
}

/// This gate's certificate and key, made on the first call; its fingerprint is what frontends pin.
///
/// # Errors
/// If the file in `state_dir` cannot be read or made.
pub fn identity(state_dir: &Path, name: &str) -> Result<Identity, TlsError> {
    Identity::load_or_create(&state_dir.join(IDENTITY_FILE), name)
}

fn store(state_dir: &Path, feeds: &[FeedAddress]) -> Result<(), JoinError> {
    let path = state_dir.join(FEEDS_FILE);
    let text: String = feeds.iter().map(line).collect();
    files::replace(&path, &[text.as_bytes()], Durability::Disk).map_err(|error| file_error(&path, &error))
}

fn line(feed: &FeedAddress) -> String {
    format!("{} {} {}\n", feed.address, hex::encode(feed.certificate_pin), hex::encode(feed.issuer))
}

fn parse(line: &str) -> Option<FeedAddress> {
    let mut words = line.split_ascii_whitespace();
    let address = words.next()?.parse().ok()?;
    let (mut certificate_pin, mut issuer) = ([0; 32], [0; 32]);
    for key in [&mut certificate_pin, &mut issuer] {
        hex::decode_to_slice(words.next()?, key).ok()?;
    }
    IssuerPublic::from_bytes(&issuer).ok()?;
    words.next().is_none().then_some(FeedAddress { address, certificate_pin, issuer })
}

fn file_error(path: &Path, error: &io::Error) -> JoinError {
    JoinError::File { path: path.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_grant::IssuerKey;

    fn feed(address: &str) -> FeedAddress {
        let issuer = IssuerKey::from_seed([3; 32]).public().to_bytes();
        FeedAddress { address: address.parse().unwrap(), certificate_pin: [0xA5; 32], issuer }
    }

    #[test]
    fn joined_frontends_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(joined(dir.path()).unwrap(), []);
        let feeds = [feed("203.0.113.1:7443"), feed("[2001:db8::1]:7443")];
        store(dir.path(), &feeds).unwrap();
        assert_eq!(joined(dir.path()).unwrap(), feeds);
    }

    #[test]
    fn a_damaged_line_is_named_by_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let good = line(&feed("203.0.113.1:7443"));
        for bad in [good.replace('a', "g"), good.replace(' ', ""), format!("{} x", good.trim()), "x".into()] {
            let text = format!("{good}\n{bad}");
            files::replace(&dir.path().join(FEEDS_FILE), &[text.as_bytes()], Durability::Process).unwrap();
            let error = joined(dir.path()).unwrap_err().to_string();
            assert!(error.contains("line 3"), "{error}");
        }
    }
}
