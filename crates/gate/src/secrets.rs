//! What a node's capabilities are made of, kept over a restart: a router that forgot its secrets would demote every
//! packet of everyone once.

use crate::{
    clock,
    error::StartError,
    files::{self, Durability},
};
use sluicegate_wire::{Instant, UnixTime};
use std::path::Path;
use zeroize::Zeroizing;

/// The file in the state directory, mode 0600.
const FILE_NAME: &str = "router.seed";
const MAGIC: &[u8; 8] = b"sgseed1\0";
const LEN: usize = MAGIC.len() + 32 + 16 + 8;

/// The seeds of a node.
pub(crate) struct Seeds {
    /// Of the router's secrets, of which one is in force for 128 seconds.
    pub(crate) router: Zeroizing<[u8; 32]>,
    /// Of path identifiers.
    pub(crate) tags: Zeroizing<[u8; 16]>,
    /// What the node's clock of capabilities is ahead of Unix time, in seconds.
    offset_s: u64,
}

impl Seeds {
    /// Reads the seeds of the state directory, or draws and writes new ones.
    pub(crate) fn load_or_make(dir: &Path) -> Result<Self, StartError> {
        let path = dir.join(FILE_NAME);
        let unreadable = |problem: String| StartError::StateFile { path: path.clone(), problem };
        match files::read(&path, LEN as u64).map_err(|error| unreadable(error.to_string()))? {
            Some(bytes) => {
                let bytes = Zeroizing::new(bytes);
                Self::decode(&bytes).ok_or_else(|| unreadable("it holds no seeds".into()))
            }
            None => {
                let seeds = Self::draw()?;
                let unwritable = |source| StartError::StateDir { path: dir.to_owned(), source };
                files::replace(&path, &[&seeds.encode()[..]], Durability::Disk).map_err(unwritable)?;
                Ok(seeds)
            }
        }
    }

    pub(crate) fn draw() -> Result<Self, StartError> {
        let random = |error: getrandom::Error| StartError::Random(error.to_string());
        let mut seeds = Self { router: Zeroizing::default(), tags: Zeroizing::default(), offset_s: 0 };
        getrandom::fill(&mut seeds.router[..]).map_err(random)?;
        getrandom::fill(&mut seeds.tags[..]).map_err(random)?;
        // Nobody shall read from a capability when a node's secrets change.
        seeds.offset_s = u64::from(getrandom::u32().map_err(random)? >> 8);
        Ok(seeds)
    }

    fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(LEN));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.router[..]);
        bytes.extend_from_slice(&self.tags[..]);
        bytes.extend_from_slice(&self.offset_s.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (router, rest) = rest.split_first_chunk::<32>()?;
        let (tags, rest) = rest.split_first_chunk::<16>()?;
        let offset_s = u64::from_be_bytes(*rest.first_chunk()?);
        (rest.len() == 8).then(|| Self { router: Zeroizing::new(*router), tags: Zeroizing::new(*tags), offset_s })
    }

    /// What the node's clock of capabilities showed when the monotonic clock began: it stands where Unix time stood at
    /// the start, so that it goes on over a restart, and no one who sets the wall clock moves it while the node runs.
    pub(crate) fn first_seconds(&self) -> u64 {
        let (began, unix) = clock::second_began();
        self.first_seconds_at(began, unix)
    }

    const fn first_seconds_at(&self, began: Instant, unix: UnixTime) -> u64 {
        let elapsed_s = began.as_nanos() / 1_000_000_000;
        // Capabilities know 31 bits of it; a wall clock that stands in 1970 gives some time, too.
        unix.0.wrapping_add(self.offset_s).wrapping_sub(elapsed_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_seeds_are_those_of_the_first_start_and_their_owners_only() {
        let dir = tempfile::tempdir().unwrap();
        let first = Seeds::load_or_make(dir.path()).unwrap();
        let again = Seeds::load_or_make(dir.path()).unwrap();
        assert_eq!(first.encode()[..], again.encode()[..]);
        let mode = std::fs::metadata(dir.path().join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = Seeds::load_or_make(tempfile::tempdir().unwrap().path()).unwrap();
        assert_ne!(again.encode()[..], other.encode()[..]);
    }

    #[test]
    fn a_damaged_file_keeps_the_node_from_starting_with_secrets_that_nobody_drew() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE_NAME), [0; LEN]).unwrap();
        assert!(matches!(Seeds::load_or_make(dir.path()), Err(StartError::StateFile { .. })));
    }

    #[test]
    fn the_clock_goes_on_over_a_restart() {
        let seeds = Seeds { offset_s: 7, ..Seeds::draw().unwrap() };
        let before = seeds.first_seconds_at(Instant::from_secs(50), UnixTime(1_000));
        let after = seeds.first_seconds_at(Instant::from_secs(3), UnixTime(1_030));
        assert_eq!((before + 80, after + 3), (1_037, 1_037), "thirty seconds later, and the host started anew");
    }
}
