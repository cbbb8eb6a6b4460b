//! Files that hold secrets: made once, readable by their owner only, and refused when they are not.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

/// Longest secret file in bytes.
pub const SECRET_LEN_MAX: usize = 16 * 1024;

/// Why a secret file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Cannot be created.
    #[error("cannot create {}: {source}; check that the directory exists and belongs to the user that runs this", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others than the owner may read or write it.
    #[error("others may read {}, which holds a secret (mode {mode:04o}); run: chmod 600 {}", path.display(), path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Others than the owner may write to the directory.
    #[error("others may write to {}, which is to hold secrets (mode {mode:04o}); run: chmod 700 {}", path.display(), path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not a plain file.
    #[error("{} is not a plain file", path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// Not of the length that this secret has.
    #[error("{} has {found} bytes where {expected} are needed; restore a copy, or move it away to have a new one made", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: usize,
        /// The length needed.
        expected: usize,
    },
    /// Longer than any secret.
    #[error("{} is longer than {SECRET_LEN_MAX} bytes, which no secret is", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// Not text.
    #[error("{} does not hold UTF-8 text", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The system has no random bytes to give.
    #[error("the system gave no random bytes: {0}")]
    Random(String),
}

/// The content of the secret file `path`, which is what `make` gives on the first call.
///
/// # Errors
/// Those of [`read`], [`create`] and `make`.
pub fn read_or_create<E: From<KeyError>>(
    path: &Path,
    make: impl FnOnce() -> Result<Zeroizing<Vec<u8>>, E>,
) -> Result<Zeroizing<Vec<u8>>, E> {
    match read(path) {
        Err(KeyError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let secret = make()?;
            match create(path, &secret) {
                // Someone else was faster: theirs is the secret.
                Err(KeyError::Create { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                    Ok(read(path)?)
                }
                other => Ok(other.map(|()| secret)?),
            }
        }
        other => Ok(other?),
    }
}

/// The 32 secret bytes in the file `path`, as seeds and keys need them: the system's random bytes on the first call.
///
/// # Errors
/// If the file cannot be read or created, is readable by others, or has another length.
pub fn load_or_create_seed(path: &Path) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    let mut seed = Zeroizing::new([0; 32]);
    let secret = read_or_create(path, || {
        getrandom::fill(&mut *seed).map_err(|error| KeyError::Random(error.to_string()))?;
        Ok(Zeroizing::new(seed.to_vec()))
    })?;
    if secret.len() != seed.len() {
        return Err(KeyError::Length { path: path.into(), found: secret.len(), expected: seed.len() });
    }
    seed.copy_from_slice(&secret);
    Ok(seed)
}

/// Makes sure that there is a directory for secrets and state: a new one is for its owner alone (mode 0700).
///
/// # Errors
/// If it cannot be created, or others may write to it and so replace what is in it.
pub fn private_directory(path: &Path) -> Result<(), KeyError> {
    let creating = |source| KeyError::Create { path: path.into(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(creating)?;
    let mode = fs::metadata(path).map_err(creating)?.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(KeyError::Directory { path: path.into(), mode });
    }
    Ok(())
}

/// The content of a secret file.
///
/// # Errors
/// If it cannot be read, is no plain file, is readable by others or too long.
pub fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let reading = |source| KeyError::Read { path: path.into(), source };
    let file = File::open(path).map_err(reading)?;
    // The permissions of the open file, not of whatever the path names a moment later.
    let metadata = file.metadata().map_err(reading)?;
    if !metadata.is_file() {
        return Err(KeyError::NotAFile { path: path.into() });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Permissions { path: path.into(), mode });
    }
    read_bounded(file, path)
}

/// The password on the first line of a file, without its line break.
///
/// # Errors
/// As [`read`], or if the file holds no text.
pub fn read_password(path: &Path) -> Result<Zeroizing<String>, KeyError> {
    first_line(&read(path)?).ok_or_else(|| KeyError::NotText { path: path.into() })
}

/// The password on the first line of what `source` gives, such as a file descriptor; `name` stands for it in errors.
///
/// # Errors
/// If it cannot be read, is too long or no text.
pub fn read_password_from(source: impl Read, name: &Path) -> Result<Zeroizing<String>, KeyError> {
    first_line(&read_bounded(source, name)?).ok_or_else(|| KeyError::NotText { path: name.into() })
}

/// Makes a secret file with this content, readable by its owner only. It is whole or not there, whatever happens.
///
/// # Errors
/// If it exists already or cannot be created.
pub fn create(path: &Path, secret: &[u8]) -> Result<(), KeyError> {
    let creating = |source| KeyError::Create { path: path.into(), source };
    let mut suffix = [0; 8];
    getrandom::fill(&mut suffix).map_err(|error| KeyError::Random(error.to_string()))?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{:016x}.new", u64::from_be_bytes(suffix)));
    let unfinished = PathBuf::from(unfinished);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(creating)?;
    // Unlike a rename, a link does not replace what is there.
    let finished =
        file.write_all(secret).and_then(|()| file.sync_all()).and_then(|()| fs::hard_link(&unfinished, path));
    let removed = fs::remove_file(&unfinished);
    finished.and(removed).and_then(|()| sync_directory(path)).map_err(creating)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

fn read_bounded(source: impl Read, path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    // Room for one byte too many from the start: growing would leave copies of the secret behind.
    let mut content = Zeroizing::new(Vec::with_capacity(SECRET_LEN_MAX + 1));
    let limit = SECRET_LEN_MAX as u64 + 1;
    source.take(limit).read_to_end(&mut content).map_err(|source| KeyError::Read { path: path.into(), source })?;
    if content.len() > SECRET_LEN_MAX {
        return Err(KeyError::TooLong { path: path.into() });
    }
    Ok(content)
}

fn first_line(content: &[u8]) -> Option<Zeroizing<String>> {
    let text = core::str::from_utf8(content).ok()?;
    Some(Zeroizing::new(text.lines().next().unwrap_or_default().to_owned()))
}
