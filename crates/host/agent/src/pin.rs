//! Which site an agent trusts: the one whose key it was given, or the first that it met, as with ssh.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use sluicegate_signin::{Certificate, SitePublic};
use tracing::warn;

/// Longest file of known sites.
const FILE_LEN_MAX: u64 = 1024 * 1024;

/// How an agent knows its site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// By this key.
    Key(SitePublic),
    /// By the key that this file has for the realm; one that is not in it yet is written there and shown. Lines of
    /// `REALM KEY`.
    KnownSites(PathBuf),
}

/// Why a frontend's site is not believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// Another site's key.
    #[error(
        "the frontend has the site key {found}, but {realm} is pinned to {pinned}: somebody may be in the way. If the \
         site was set up anew, compare the key with `sluicegate status` there, and replace it ({place})"
    )]
    Other {
        /// The realm.
        realm: String,
        /// The pinned key.
        pinned: String,
        /// The frontend's.
        found: SitePublic,
        /// Where it is pinned.
        place: String,
    },
    /// The file of known sites.
    #[error("cannot use the file of known sites {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Pin {
    /// Whether the site behind a verified certificate is the right one.
    ///
    /// # Errors
    /// See [`PinError`].
    pub(crate) fn check(&self, realm: &str, certificate: &Certificate) -> Result<(), PinError> {
        let found = certificate.site;
        let path = match self {
            Self::Key(pinned) if *pinned == found => return Ok(()),
            Self::Key(pinned) => {
                let (realm, pinned) = (realm.to_owned(), pinned.to_string());
                return Err(PinError::Other { realm, pinned, found, place: "--site-key, site_key".to_owned() });
            }
            Self::KnownSites(path) => path,
        };
        let failed = |source| PinError::File { path: path.clone(), source };
        match known(path, realm).map_err(failed)? {
            Some(pinned) if pinned == found.to_string() => Ok(()),
            Some(pinned) => {
                let place = path.display().to_string();
                Err(PinError::Other { realm: realm.to_owned(), pinned, found, place })
            }
            None => {
                remember(path, realm, found).map_err(failed)?;
                warn!(
                    realm, site_key = %found, file = %path.display(),
                    "first contact with this site: its key is pinned from now on; compare it with `sluicegate status` there",
                );
                Ok(())
            }
        }
    }
}

fn known(path: &PathBuf, realm: &str) -> io::Result<Option<String>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() > FILE_LEN_MAX => return Err(io::ErrorKind::FileTooLarge.into()),
        Ok(_) => {}
    }
    let text = fs::read_to_string(path)?;
    let of =
        |line: &str| line.split_once(' ').filter(|(known, _)| *known == realm).map(|(_, key)| key.trim().to_owned());
    Ok(text.lines().find_map(of))
}

fn remember(path: &PathBuf, realm: &str, key: SitePublic) -> io::Result<()> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    // One write, so that two agents that start together leave two whole lines.
    file.write_all(format!("{realm} {key}\n").as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use sluicegate_signin::SiteKey;
    use sluicegate_wire::UnixTime;

    use super::*;

    fn certificate(site: u8, realm: &str) -> Certificate {
        SiteKey::from_seed(&[site; 32]).certify(realm, [7; 32], UnixTime(1))
    }

    #[test]
    fn the_first_site_of_a_realm_is_remembered_and_another_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pin = Pin::KnownSites(dir.path().join("deep/known_sites"));
        for _ in 0..2 {
            assert!(pin.check("example.net", &certificate(1, "example.net")).is_ok());
        }
        assert!(matches!(pin.check("example.net", &certificate(2, "example.net")), Err(PinError::Other { .. })));
        assert!(pin.check("example.org", &certificate(2, "example.org")).is_ok());
        assert!(pin.check("example.net", &certificate(1, "example.net")).is_ok());
        let lines = fs::read_to_string(dir.path().join("deep/known_sites")).unwrap();
        assert_eq!(lines.lines().count(), 2);
    }

    #[test]
    fn a_given_key_is_the_only_one() {
        let pin = Pin::Key(SiteKey::from_seed(&[1; 32]).public());
        assert!(pin.check("example.net", &certificate(1, "example.net")).is_ok());
        assert!(pin.check("example.net", &certificate(2, "example.net")).is_err());
    }
}
