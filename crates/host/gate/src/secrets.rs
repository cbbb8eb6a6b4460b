//! What a node's capabilities are made of, kept over a restart: a router that forgot its secrets would demote every
//! packet of everyone once.
//!
//! The file holds the seed of the period before the current one, for as long as capabilities of that period may hold. At
//! each roll-over it is replaced by its hash: whoever steals the file learns nothing of earlier periods. A seed that is
//! older than two periods makes nothing that still holds, and one of a period that is yet to come was written before the
//! clock was set back: both give way to a new one, and nobody's old capabilities hold again.

use crate::{
    error::StartError,
    files::{self, Durability},
};
use sluicegate_capability::secrets::{PERIOD_SECS, Seed};
use sluicegate_wire::{Instant, UnixTime};
use std::{io, path::Path};
use zeroize::Zeroizing;

/// The file in the state directory, mode 0600.
const FILE_NAME: &str = "router.seed";
const MAGIC: &[u8; 8] = b"sgseed2\0";
const LEN: usize = MAGIC.len() + 16 + 8 + 8 + 32;
/// Bits of Unix time and offset that the router's clock has at its start.
const CLOCK_MASK: u64 = 0x7fff_ffff;

/// The seeds of a node, and its clock of capabilities.
pub(crate) struct Seeds {
    /// Of path identifiers.
    pub(crate) tags: Zeroizing<[u8; 16]>,
    /// What the clock is ahead of Unix time, in seconds.
    offset_s: u64,
    /// Of the period before [`Self::period`].
    seed: Seed,
    period: u64,
    /// When a second of the clock began, and which.
    began: (Instant, u64),
}

impl Seeds {
    /// Reads the seeds of the state directory, or draws new ones, and writes what is not there yet. `began`: when the
    /// present second of Unix time began.
    pub(crate) fn load_or_make(dir: &Path, began: (Instant, UnixTime)) -> Result<Self, StartError> {
        let path = dir.join(FILE_NAME);
        let unreadable = |problem: String| StartError::StateFile { path: path.clone(), problem };
        let seeds = match files::read(&path, LEN as u64).map_err(|error| unreadable(error.to_string()))? {
            Some(bytes) => {
                let stored = Stored::decode(&Zeroizing::new(bytes));
                stored.ok_or_else(|| unreadable("it holds no seeds".into()))?.at(began)?
            }
            None => Self::draw(began)?,
        };
        seeds.write(dir).map_err(|source| StartError::StateDir { path: dir.to_owned(), source })?;
        Ok(seeds)
    }

    pub(crate) fn draw(began: (Instant, UnixTime)) -> Result<Self, StartError> {
        let mut tags = Zeroizing::new([0; 16]);
        getrandom::fill(&mut tags[..]).map_err(no_random)?;
        // Nobody shall read from a capability when a node's secrets change.
        let offset_s = u64::from(getrandom::u32().map_err(no_random)? >> 8);
        let seconds = seconds_at(offset_s, began.1);
        Ok(Self { tags, offset_s, seed: drawn()?, period: seconds / PERIOD_SECS, began: (began.0, seconds) })
    }

    /// The seed of the period before the one that the clock now shows.
    pub(crate) const fn seed(&self) -> &Seed {
        &self.seed
    }

    /// The clock: what it showed when. It goes on over a restart, and no one who sets the wall clock moves it while the
    /// node runs.
    pub(crate) const fn clock(&self) -> (Instant, u64) {
        self.began
    }

    /// Forgets the seeds of periods that are over; whether there were any, so that the file has to be written.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        let (began, seconds) = self.began;
        let period = (seconds + now.since(began).as_secs()) / PERIOD_SECS;
        let is_over = period > self.period;
        while self.period < period {
            self.seed = self.seed.next();
            self.period += 1;
        }
        is_over
    }

    /// Writes the file, and overwrites what it held.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join(FILE_NAME);
        let period = self.period.wrapping_sub(1).to_be_bytes();
        let chunks = [MAGIC, &self.tags[..], &self.offset_s.to_be_bytes(), &period, &self.seed.0];
        files::replace_erasing(&path, &chunks, Durability::Disk)
    }
}

/// What the file says.
struct Stored {
    tags: Zeroizing<[u8; 16]>,
    offset_s: u64,
    /// Whose seed it is.
    period: u64,
    seed: Seed,
}

impl Stored {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (tags, rest) = rest.split_first_chunk()?;
        let (offset_s, rest) = rest.split_first_chunk()?;
        let (period, rest) = rest.split_first_chunk()?;
        let (seed, rest) = rest.split_first_chunk()?;
        rest.is_empty().then(|| Self {
            tags: Zeroizing::new(*tags),
            offset_s: u64::from_be_bytes(*offset_s),
            period: u64::from_be_bytes(*period),
            seed: Seed(*seed),
        })
    }

    /// The seeds at this time.
    fn at(self, began: (Instant, UnixTime)) -> Result<Seeds, StartError> {
        let Self { tags, offset_s, period: stored, seed } = self;
        let seconds = seconds_at(offset_s, began.1);
        let period = seconds / PERIOD_SECS;
        let seed = match period.wrapping_sub(stored) {
            1 => seed,
            2 => seed.next(),
            _ => {
                tracing::warn!("no capability of an earlier run holds: it was long ago, or the clock was set");
                drawn()?
            }
        };
        Ok(Seeds { tags, offset_s, seed, period, began: (began.0, seconds) })
    }
}

/// A wall clock that stands in 1970 gives some time, too.
const fn seconds_at(offset_s: u64, unix: UnixTime) -> u64 {
    unix.0.wrapping_add(offset_s) & CLOCK_MASK
}

fn drawn() -> Result<Seed, StartError> {
    let mut seed = Seed([0; 32]);
    getrandom::fill(&mut seed.0).map_err(no_random)?;
    Ok(seed)
}

fn no_random(error: getrandom::Error) -> StartError {
    StartError::Random(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// At the beginning of a period of a node whose clock is Unix time.
    const UNIX: u64 = 1_000_000 * PERIOD_SECS;

    fn at(seconds: u64) -> (Instant, UnixTime) {
        (Instant::from_secs(seconds % 1_000), UnixTime(UNIX + seconds))
    }

    fn made(dir: &Path) -> Seeds {
        let seeds =
            Seeds { offset_s: 0, began: (at(0).0, UNIX), period: UNIX / PERIOD_SECS, ..Seeds::draw(at(0)).unwrap() };
        seeds.write(dir).unwrap();
        seeds
    }

    fn loaded(dir: &Path, seconds: u64) -> [u8; 32] {
        Seeds::load_or_make(dir, at(seconds)).unwrap().seed.0
    }

    #[test]
    fn the_seeds_are_those_of_the_first_start_and_their_owners_only() {
        let dir = tempfile::tempdir().unwrap();
        let first = Seeds::load_or_make(dir.path(), at(0)).unwrap();
        let again = Seeds::load_or_make(dir.path(), at(0)).unwrap();
        assert_eq!((first.seed.0, &first.tags, first.clock()), (again.seed.0, &again.tags, again.clock()));
        let mode = std::fs::metadata(dir.path().join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = Seeds::load_or_make(tempfile::tempdir().unwrap().path(), at(0)).unwrap();
        assert!(other.seed.0 != again.seed.0 && other.tags != again.tags);
    }

    #[test]
    fn a_damaged_file_keeps_the_node_from_starting_with_secrets_that_nobody_drew() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE_NAME), [0; LEN]).unwrap();
        assert!(matches!(Seeds::load_or_make(dir.path(), at(0)), Err(StartError::StateFile { .. })));
    }

    #[test]
    fn the_clock_goes_on_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path());
        let clock =
            |seeds: &Seeds, now: u64| seeds.clock().1 + Instant::from_secs(now).since(seeds.clock().0).as_secs();
        let before = Seeds::load_or_make(dir.path(), (Instant::from_secs(50), UnixTime(UNIX))).unwrap();
        let after = Seeds::load_or_make(dir.path(), (Instant::from_secs(3), UnixTime(UNIX + 30))).unwrap();
        assert_eq!(clock(&before, 80), clock(&after, 3), "thirty seconds later, and the host started anew");
    }

    #[test]
    fn at_each_roll_over_the_seed_becomes_its_hash_and_the_old_one_is_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let mut seeds = made(dir.path());
        let stolen_before = std::fs::read(dir.path().join(FILE_NAME)).unwrap();
        assert!(!seeds.turn(Instant::from_secs(PERIOD_SECS - 1)));
        let old = seeds.seed.clone();
        assert!(seeds.turn(Instant::from_secs(PERIOD_SECS)));
        assert!(!seeds.turn(Instant::from_secs(PERIOD_SECS)), "once");
        seeds.write(dir.path()).unwrap();
        assert_eq!(seeds.seed.0, old.next().0);
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(32).any(|window| window == old.0), "nothing of the period before is left");
            assert_ne!(bytes, stolen_before);
        }
        assert_eq!(loaded(dir.path(), PERIOD_SECS + 5), seeds.seed.0);
    }

    #[test]
    fn a_node_that_was_off_for_a_roll_over_still_knows_what_may_hold() {
        let dir = tempfile::tempdir().unwrap();
        let first = made(dir.path()).seed;
        assert_eq!(loaded(dir.path(), PERIOD_SECS - 1), first.0);
        assert_eq!(loaded(dir.path(), PERIOD_SECS), first.next().0, "and the file was written");
        assert_eq!(loaded(dir.path(), 2 * PERIOD_SECS), first.next().next().0);
    }

    #[test]
    fn long_off_or_set_back_a_node_begins_with_a_seed_that_makes_nothing_old_valid() {
        for later in [2 * PERIOD_SECS, 3_600, 0u64.wrapping_sub(1), 0u64.wrapping_sub(3_600)] {
            let dir = tempfile::tempdir().unwrap();
            let mut seeds = made(dir.path());
            let began = (Instant::from_secs(9), UnixTime(UNIX.wrapping_add(later)));
            let fresh = Seeds::load_or_make(dir.path(), began).unwrap();
            assert!(fresh.tags == seeds.tags && fresh.offset_s == seeds.offset_s, "{later}");
            for _ in 0..40 {
                assert_ne!(fresh.seed.0, seeds.seed.0, "{later}");
                seeds.seed = seeds.seed.next();
            }
        }
    }
}
