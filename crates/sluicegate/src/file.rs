//! Files that are written whole or not at all, for their owner alone.

use std::{io, io::Write as _, path::Path};

use tempfile::NamedTempFile;

/// Where a file at `path` is made.
pub(crate) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Puts `bytes` in the place of what is at `path`. They are on the disk before they are at their place.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = NamedTempFile::new_in(directory(path))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
