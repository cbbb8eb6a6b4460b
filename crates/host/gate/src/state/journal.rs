//! The journal: what changed since the last checkpoint, appended before a frontend hears of it.
//!
//! File: magic 8 | generation u64, then records: length u32 | check u64 | bytes (all big-endian). A record that was cut
//! short by a crash is the last one and is ignored; so is everything behind a record whose check does not match.

use crate::files;
use siphasher::sip::SipHasher24;
use std::{
    fs::{self, File, OpenOptions},
    hash::Hasher,
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 8] = b"sgjrnl1\n";
const HEADER_LEN: usize = 16;
const RECORD_HEADER_LEN: usize = 12;
/// Longest record.
pub(crate) const RECORD_LEN_MAX: usize = 4096;
/// Largest journal that is read back; far more than is written between two checkpoints.
const JOURNAL_LEN_MAX: u64 = 1 << 28;

/// An open journal of one generation.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    /// Bytes up to the end of the last whole record.
    len: u64,
    buffer: Vec<u8>,
}

impl Journal {
    /// Starts the journal of `generation`, empty, in place of any of that number.
    pub(crate) fn create(dir: &Path, generation: u64) -> io::Result<Self> {
        let path = path(dir, generation);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(MAGIC);
        header[8..].copy_from_slice(&generation.to_be_bytes());
        file.write_all(&header)?;
        Ok(Self { file, len: HEADER_LEN as u64, buffer: Vec::new() })
    }

    /// Appends all records with one write; they survive the death of this process when it returns. If the disk fails, for
    /// example because it is full, nothing of them stays: half a record would hide all that come after it.
    pub(crate) fn append<'a>(&mut self, records: impl IntoIterator<Item = &'a [u8]>) -> io::Result<()> {
        self.buffer.clear();
        for record in records {
            let len = u32::try_from(record.len()).ok().filter(|len| *len as usize <= RECORD_LEN_MAX);
            let Some(len) = len else {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "journal record too long"));
            };
            self.buffer.extend_from_slice(&len.to_be_bytes());
            self.buffer.extend_from_slice(&check(record).to_be_bytes());
            self.buffer.extend_from_slice(record);
        }
        // Behind the last whole record, whatever an earlier failure left there and could not take back.
        self.file.seek(SeekFrom::Start(self.len))?;
        match self.file.write_all(&self.buffer) {
            Ok(()) => {
                self.len += self.buffer.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.file.set_len(self.len)?;
                Err(error)
            }
        }
    }

    /// The same file, for whoever has it reach the disk.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

/// The records of the journals of `first` and every later generation, oldest first.
pub(crate) fn read_since(dir: &Path, first: u64) -> io::Result<Vec<Vec<u8>>> {
    let mut generations: Vec<u64> = generations(dir)?.into_iter().filter(|generation| *generation >= first).collect();
    generations.sort_unstable();
    let mut records = Vec::new();
    for generation in generations {
        if let Some(bytes) = files::read(&path(dir, generation), JOURNAL_LEN_MAX)? {
            read_records(&bytes, &mut records);
        }
    }
    Ok(records)
}

/// Deletes the journals of generations before `first`.
pub(crate) fn delete_before(dir: &Path, first: u64) -> io::Result<()> {
    for generation in generations(dir)? {
        if generation < first {
            fs::remove_file(path(dir, generation))?;
        }
    }
    Ok(())
}

/// The highest generation that has a journal.
pub(crate) fn last_generation(dir: &Path) -> io::Result<Option<u64>> {
    Ok(generations(dir)?.into_iter().max())
}

/// Keyless check against torn writes, not against forgery: the directory is its owner's alone.
pub(crate) fn check(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(bytes);
    hasher.finish()
}

fn path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("gate.journal.{generation}"))
}

fn generations(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.strip_prefix("gate.journal."))
            && let Ok(generation) = number.parse()
        {
            found.push(generation);
        }
    }
    Ok(found)
}

fn read_records(bytes: &[u8], records: &mut Vec<Vec<u8>>) {
    let Some((header, mut rest)) = bytes.split_at_checked(HEADER_LEN) else { return };
    if !header.starts_with(MAGIC) {
        return;
    }
    while let Some((record, after)) = next_record(rest) {
        records.push(record.to_vec());
        rest = after;
    }
}

fn next_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_LEN>()?;
    let [a, b, c, d, sum @ ..] = *header;
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    let (record, after) = rest.split_at_checked(len)?;
    (check(record) == u64::from_be_bytes(sum)).then_some((record, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal_with(dir: &Path, generation: u64, records: &[&[u8]]) {
        Journal::create(dir, generation).unwrap().append(records.iter().copied()).unwrap();
    }

    #[test]
    fn records_come_back_in_order_over_generations() {
        let dir = tempfile::tempdir().unwrap();
        journal_with(dir.path(), 9, &[b"c"]);
        journal_with(dir.path(), 10, &[b"d"]);
        journal_with(dir.path(), 8, &[b"a", b"b"]);
        let all: Vec<Vec<u8>> = vec![b"a".into(), b"b".into(), b"c".into(), b"d".into()];
        assert_eq!(read_since(dir.path(), 0).unwrap(), all);
        assert_eq!(read_since(dir.path(), 9).unwrap(), all[2..]);
        delete_before(dir.path(), 10).unwrap();
        assert_eq!(read_since(dir.path(), 0).unwrap(), all[3..]);
        assert_eq!(last_generation(dir.path()).unwrap(), Some(10));
    }

    #[test]
    fn a_torn_last_record_is_ignored_at_every_length() {
        let dir = tempfile::tempdir().unwrap();
        journal_with(dir.path(), 1, &[b"first", b"second"]);
        let whole = fs::read(path(dir.path(), 1)).unwrap();
        let second_starts = HEADER_LEN + RECORD_HEADER_LEN + 5;
        for len in second_starts..whole.len() {
            fs::write(path(dir.path(), 1), &whole[..len]).unwrap();
            assert_eq!(read_since(dir.path(), 0).unwrap(), vec![b"first".to_vec()], "{len}");
        }
    }

    #[test]
    fn a_flipped_bit_ends_the_journal_before_its_record() {
        let dir = tempfile::tempdir().unwrap();
        journal_with(dir.path(), 1, &[b"first", b"second", b"third"]);
        let mut bytes = fs::read(path(dir.path(), 1)).unwrap();
        bytes[HEADER_LEN + RECORD_HEADER_LEN + 5 + RECORD_HEADER_LEN] ^= 1;
        fs::write(path(dir.path(), 1), &bytes).unwrap();
        assert_eq!(read_since(dir.path(), 0).unwrap(), vec![b"first".to_vec()]);
    }

    #[test]
    fn what_a_full_disk_cuts_short_hides_no_later_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(dir.path(), 1).unwrap();
        journal.append([&b"first"[..]]).unwrap();
        // What a write leaves that a full disk cut short in the middle of a record.
        journal.file.write_all(&100_u32.to_be_bytes()).unwrap();
        journal.file.write_all(b"torn").unwrap();
        journal.append([&b"a revoke"[..]]).unwrap();
        journal.append([&b"another"[..]]).unwrap();
        assert_eq!(read_since(dir.path(), 0).unwrap(), [&b"first"[..], b"a revoke", b"another"]);
    }

    #[test]
    fn a_record_above_the_maximum_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(dir.path(), 1).unwrap();
        assert!(journal.append([&[0; RECORD_LEN_MAX + 1][..]]).is_err());
        journal.append([&[0; RECORD_LEN_MAX][..]]).unwrap();
        assert_eq!(read_since(dir.path(), 0).unwrap().len(), 1);
    }
}
