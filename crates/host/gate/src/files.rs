//! Files of the state directory: owner-only, replaced as a whole.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

/// Whether the bytes must survive a power cut before the call returns, or only the death of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// In the kernel's hands when the call returns.
    Process,
    /// On the disk when the call returns.
    Disk,
}

/// Makes the directory (mode 0700) and its parents if they do not exist.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces the file by `chunks` in one step: readers see the old or the new content, never a part. Mode 0600.
pub(crate) fn replace(path: &Path, chunks: &[&[u8]], durability: Durability) -> io::Result<()> {
    let mut staged = path.as_os_str().to_owned();
    staged.push(".new");
    let staged = Path::new(&staged);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(staged)?;
    for chunk in chunks {
        file.write_all(chunk)?;
    }
    if durability == Durability::Disk {
        file.sync_all()?;
    }
    fs::rename(staged, path)?;
    if durability == Durability::Disk
        && let Some(dir) = path.parent()
    {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Replaces the file as [`replace`] does, and overwrites what it held before: on a file system that writes in place not
/// even the disk tells it any more.
pub(crate) fn replace_erasing(path: &Path, chunks: &[&[u8]], durability: Durability) -> io::Result<()> {
    let before = OpenOptions::new().write(true).open(path);
    replace(path, chunks, durability)?;
    let Ok(mut before) = before else { return Ok(()) };
    let len = before.metadata()?.len();
    io::copy(&mut io::repeat(0).take(len), &mut before)?;
    before.sync_data()
}

/// Waits until the file's content is on the disk.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The file's content; `None` if there is no such file. Refuses more than `len_max` bytes.
pub(crate) fn read(path: &Path, len_max: u64) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(metadata) if metadata.len() > len_max => {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{} bytes, at most {len_max}", metadata.len())))
        }
        Ok(_) => fs::read(path).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_replaced_file_is_whole_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        replace(&path, &[b"old"], Durability::Disk).unwrap();
        let mut held = File::open(&path).unwrap();
        replace_erasing(&path, &[b"ne", b"w"], Durability::Process).unwrap();
        let mut before = Vec::new();
        held.read_to_end(&mut before).unwrap();
        assert_eq!(before, [0; 3], "what was there is overwritten");
        assert_eq!(read(&path, 10).unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_absent_file_is_none_and_an_oversized_one_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        assert!(read(&path, 10).unwrap().is_none());
        replace(&path, &[&[0; 11]], Durability::Process).unwrap();
        assert_eq!(read(&path, 10).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
