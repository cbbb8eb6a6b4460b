//! Directories for the files of one lab, which leave nothing behind.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStringExt,
        fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use nix::mount::{MntFlags, umount2};

/// Longest list of mounts that is read, in bytes.
const MOUNTS_LEN_MAX: u64 = 16 << 20;

/// Writes a file that only this user can read.
///
/// # Errors
/// If it cannot be written.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// A directory in the system's temporary directory that only this user can read. Dropping it removes it, with the BPF
/// file systems that gates have mounted in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a new directory whose name begins with `name`.
    ///
    /// # Errors
    /// If the temporary directory cannot be written.
    pub fn make(name: &str) -> io::Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{name}-{}-{serial}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        unmount_below(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Takes away every file system mounted below `directory`.
///
/// A gate with the `xdp` back end pins its program in a BPF file system that it mounts in its state directory, and
/// leaves it there when it is killed: the program then still drops. A lab that ends must take it away.
pub fn unmount_below(directory: &Path) {
    let mut text = Vec::new();
    let mounts = fs::File::open("/proc/self/mountinfo");
    if mounts.and_then(|file| file.take(MOUNTS_LEN_MAX).read_to_end(&mut text)).is_err() {
        return;
    }
    // Later ones may lie in earlier ones.
    for mount in mount_points(&text).iter().rev().filter(|point| point.starts_with(directory) && *point != directory) {
        let _ = umount2(mount, MntFlags::MNT_DETACH);
    }
}

/// The fifth field of each line, with its octal escapes resolved.
fn mount_points(mountinfo: &[u8]) -> Vec<PathBuf> {
    let field = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(unescape);
    mountinfo.split(|byte| *byte == b'\n').filter_map(field).collect()
}

fn unescape(mut text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    while let Some((first, rest)) = text.split_first() {
        let code = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        (text, _) = match (first, code) {
            (b'\\', Some(byte)) => (&rest[3..], out.push(byte)),
            _ => (rest, out.push(*first)),
        };
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_blanks() {
        let text =
            b"36 35 98:0 / /mnt/a\\040b rw,noatime - ext3 /dev/root rw\n37 35 0:2 / /tmp/x/bpf rw - bpf bpf rw\n";
        assert_eq!(mount_points(text), [PathBuf::from("/mnt/a b"), PathBuf::from("/tmp/x/bpf")]);
        assert_eq!(mount_points(b"garbage\n\n"), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_scratch_directory_is_private_and_goes() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::make("site-test").unwrap();
        let path = scratch.path().to_owned();
        fs::write(path.join("file"), "text").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        drop(scratch);
        assert!(!path.exists());
    }
}
