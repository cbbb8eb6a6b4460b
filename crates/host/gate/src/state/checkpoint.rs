//! The checkpoint: the gate's whole state in one file, replaced in one step.
//!
//! File: magic 8 | generation u64 | ledger length u32 | ledger | tables length u32 | tables | check u64 (big-endian).
//! Together with the journals of its generation and later it is the state at the last answer a frontend heard.

use super::journal;
use crate::files::{self, Durability};
use std::{io, path::Path};

const MAGIC: &[u8; 8] = b"sgstate1";
/// Largest checkpoint that is read back.
const CHECKPOINT_LEN_MAX: u64 = 1 << 30;
/// Name of the checkpoint in the state directory.
pub(crate) const FILE_NAME: &str = "gate.state";

/// What a checkpoint holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The first journal generation that is not contained.
    pub(crate) generation: u64,
    /// The control side's part: services and what the grants are called.
    pub(crate) ledger: Vec<u8>,
    /// The packet thread's part: pinholes, bindings, budgets.
    pub(crate) tables: Vec<u8>,
}

impl Checkpoint {
    /// Writes the checkpoint into `dir`.
    pub(crate) fn write(&self, dir: &Path, durability: Durability) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "checkpoint part above 4 GiB");
        let ledger_len = u32::try_from(self.ledger.len()).map_err(too_long)?.to_be_bytes();
        let tables_len = u32::try_from(self.tables.len()).map_err(too_long)?.to_be_bytes();
        let generation = self.generation.to_be_bytes();
        let sum = check(&generation, &self.ledger, &self.tables).to_be_bytes();
        let chunks = [&MAGIC[..], &generation, &ledger_len, &self.ledger, &tables_len, &self.tables, &sum];
        files::replace(&dir.join(FILE_NAME), &chunks, durability)
    }

    /// Reads the checkpoint of `dir`; `None` if there is none.
    ///
    /// # Errors
    /// The text says what is wrong with the file.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, String> {
        let bytes = files::read(&dir.join(FILE_NAME), CHECKPOINT_LEN_MAX).map_err(|error| error.to_string())?;
        bytes.map(|bytes| Self::decode(&bytes).ok_or_else(|| "damaged or of another version".to_owned())).transpose()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (generation, rest) = rest.split_first_chunk::<8>()?;
        let (ledger, rest) = part(rest)?;
        let (tables, rest) = part(rest)?;
        let sum = u64::from_be_bytes(rest.try_into().ok()?);
        (sum == check(generation, ledger, tables)).then(|| Self {
            generation: u64::from_be_bytes(*generation),
            ledger: ledger.to_vec(),
            tables: tables.to_vec(),
        })
    }
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*len) as usize)
}

fn check(generation: &[u8; 8], ledger: &[u8], tables: &[u8]) -> u64 {
    journal::check(generation) ^ journal::check(ledger).rotate_left(1) ^ journal::check(tables).rotate_left(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn sample() -> Checkpoint {
        Checkpoint { generation: 7, ledger: b"names".to_vec(), tables: b"pinholes".to_vec() }
    }

    #[test]
    fn a_checkpoint_comes_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Checkpoint::read(dir.path()), Ok(None));
        sample().write(dir.path(), Durability::Process).unwrap();
        assert_eq!(Checkpoint::read(dir.path()), Ok(Some(sample())));
    }

    #[test]
    fn a_damaged_checkpoint_is_an_error_wherever_the_damage_is() {
        let dir = tempfile::tempdir().unwrap();
        sample().write(dir.path(), Durability::Process).unwrap();
        let path = dir.path().join(FILE_NAME);
        let good = fs::read(&path).unwrap();
        for position in 0..good.len() {
            let mut bad = good.clone();
            bad[position] ^= 0x10;
            fs::write(&path, &bad).unwrap();
            assert!(Checkpoint::read(dir.path()).is_err(), "byte {position}");
            fs::write(&path, &good[..position]).unwrap();
            assert!(Checkpoint::read(dir.path()).is_err(), "length {position}");
        }
    }
}
