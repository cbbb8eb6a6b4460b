//! A log in files of bounded size: `audit.log`, and older lines in `audit.log.1` and so on.
//!
//! The process that writes may open and rename nothing: all files are opened at the start, and older lines are copied from
//! one to the next. So the newest file keeps its name and inode, and whoever follows it needs to know nothing.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
    time::{Duration, Instant},
};

use super::Options;

/// After older lines could not be copied, for example to a full disk, it is tried again after this.
const RETRY: Duration = Duration::from_secs(60);
/// Bytes copied at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// The files of one log, the newest first.
#[derive(Debug)]
pub(super) struct Rotating {
    files: Vec<File>,
    bytes_max: u64,
    failed_at: Option<Instant>,
}

impl Rotating {
    pub(super) fn open(options: &Options, name: &str) -> Result<Self, (PathBuf, io::Error)> {
        let directory = &options.directory;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| (directory.clone(), error))?;
        let paths = (0..=options.keep.min(Options::KEEP_MAX)).map(|age| match age {
            0 => directory.join(name),
            age => directory.join(format!("{name}.{age}")),
        });
        let open = |path: PathBuf| {
            let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path);
            opened.map_err(|error| (path, error))
        };
        Ok(Self { files: paths.map(open).collect::<Result<_, _>>()?, bytes_max: options.bytes_max, failed_at: None })
    }

    /// Adds a line, whole or not at all.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(newest) = self.files.first() else { return Ok(()) };
        // Gate and frontend of a node write the same files.
        newest.lock()?;
        let appended = self.append_locked(line);
        if let Some(newest) = self.files.first() {
            newest.unlock()?;
        }
        appended
    }

    fn append_locked(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(newest) = self.files.first() else { return Ok(()) };
        let mut len = newest.metadata()?.len();
        if len > 0 && len + line.len() as u64 > self.bytes_max {
            self.rotate()?;
            len = 0;
        }
        let Some(mut newest) = self.files.first() else { return Ok(()) };
        // Half a line of a full disk would spoil the next.
        newest.write_all(line).inspect_err(|_| drop(newest.set_len(len)))
    }

    /// Moves every file's lines to the next older one. Each is emptied only after its copy is whole.
    fn rotate(&mut self) -> io::Result<()> {
        // Each failed try costs the oldest lines.
        if self.failed_at.is_some_and(|at| at.elapsed() < RETRY) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "there was no room for older lines"));
        }
        let copied = self.files.windows(2).rev().try_for_each(|pair| match pair {
            [newer, older] => copy(newer, older),
            _ => Ok(()),
        });
        self.failed_at = copied.is_err().then(Instant::now);
        copied?;
        self.files.first().map_or(Ok(()), |newest| newest.set_len(0))
    }
}

fn copy(from: &File, mut to: &File) -> io::Result<()> {
    to.set_len(0)?;
    let (mut at, mut piece) = (0, vec![0; PIECE_BYTES]);
    loop {
        let len = from.read_at(&mut piece, at)?;
        if len == 0 {
            return Ok(());
        }
        to.write_all(piece.get(..len).unwrap_or_default())?;
        at += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn two_processes_fill_the_log_and_it_stays_within_its_bounds_with_the_newest_lines_whole() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { bytes_max: 1_000, keep: 2, ..Options::new(directory.path()) };
        let mut writers = [0, 1].map(|_| Rotating::open(&options, "audit.log").unwrap());
        for number in 0..1_000 {
            writers[number % 2].append(format!("line {number:04}\n").as_bytes()).unwrap();
        }
        let text = ["audit.log.2", "audit.log.1", "audit.log"].map(|name| {
            let text = fs::read_to_string(directory.path().join(name)).unwrap();
            assert!(text.len() <= 1_000);
            text
        });
        let lines = text.concat();
        let numbers: Vec<usize> = lines.lines().map(|line| line[5..].parse().unwrap()).collect();
        assert!(numbers.len() > 200 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        assert_eq!(numbers.last(), Some(&999));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_full_disk_is_an_error_and_leaves_no_half_line() {
        let full = OpenOptions::new().read(true).append(true).open("/dev/full").unwrap();
        let mut log = Rotating { files: vec![full], bytes_max: 1_000, failed_at: None };
        assert!(log.append(b"line\n").is_err());
    }
}
