//! Passwords: from a prompt, a file or a descriptor; never from the command line or the environment.

use std::{
    fs::File,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use sluicegate_agent::Pin;
use sluicegate_keys as keys;
use sluicegate_signin::{SECRET_LEN, UserSecret};
use zeroize::Zeroizing;

use crate::{cli::Password, config::STATE_DEFAULT};

/// Reads the password that `source` names; asks at the terminal when it names none, twice if `confirm`.
pub(crate) fn read(source: &Password, prompt: &str, confirm: bool) -> Result<Zeroizing<String>> {
    let password = match (&source.password_file, source.password_fd) {
        (Some(path), _) => keys::read_password(path)?,
        (None, Some(descriptor)) => first_line(Path::new(&format!("/proc/self/fd/{descriptor}")))
            .with_context(|| format!("cannot read the password from descriptor {descriptor}"))?,
        (None, None) => from_terminal(prompt, confirm)?,
    };
    if password.is_empty() {
        bail!("the password is empty; give one of at least one byte");
    }
    Ok(password)
}

/// The first line of what lies at `path`, whoever else may read it.
pub(crate) fn first_line(path: &Path) -> Result<Zeroizing<String>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(keys::read_password_from(file, path)?)
}

/// The key in a file that `user add --key` wrote.
pub(crate) fn from_key_file(path: &Path) -> Result<UserSecret> {
    let content = keys::read(path)?;
    let Ok(key) = <[u8; SECRET_LEN]>::try_from(content.as_slice()) else {
        bail!("{} is no key file: it has {} bytes and not {SECRET_LEN}", path.display(), content.len());
    };
    Ok(UserSecret::from_bytes(key))
}

/// Which site an agent trusts.
pub(crate) fn pin(site_key: Option<&str>, known_sites: Option<&Path>) -> Result<Pin> {
    match (site_key, known_sites) {
        (Some(key), _) => Ok(Pin::Key(key.parse()?)),
        (None, Some(path)) => Ok(Pin::KnownSites(path.to_owned())),
        (None, None) => Ok(Pin::KnownSites(personal("known_sites"))),
    }
}

/// A file of the person who runs this.
pub(crate) fn personal(name: &str) -> PathBuf {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config/sluicegate"));
    home.unwrap_or_else(|| STATE_DEFAULT.into()).join(name)
}

fn from_terminal(prompt: &str, confirm: bool) -> Result<Zeroizing<String>> {
    if !std::io::stdin().is_terminal() {
        bail!("no terminal to ask for the password at; use --password-file or --password-fd");
    }
    let first = Zeroizing::new(rpassword::prompt_password(format!("{prompt}: "))?);
    if confirm && *first != *Zeroizing::new(rpassword::prompt_password(format!("{prompt} again: "))?) {
        bail!("the two passwords differ; nothing was changed");
    }
    Ok(first)
}
