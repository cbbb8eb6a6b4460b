//! Passwords: from a prompt, a file or a descriptor; never from the command line or the environment.

use std::{
    fs::File,
    io::{BufRead, BufReader, IsTerminal, Read},
    path::Path,
};

use anyhow::{Context, Result, bail};
use sluicegate_agent::Pin;
use sluicegate_signin::{SECRET_LEN, UserSecret};
use zeroize::Zeroizing;

use crate::{cli::Password, config::STATE_DEFAULT};

/// Longest password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 1024;

/// Reads the password that `source` names; asks at the terminal when it names none, twice if `confirm`.
pub(crate) fn read(source: &Password, prompt: &str, confirm: bool) -> Result<Zeroizing<String>> {
    let password = match (&source.password_file, source.password_fd) {
        (Some(path), _) => from_file(path)?,
        (None, Some(descriptor)) => from_file(Path::new(&format!("/proc/self/fd/{descriptor}")))
            .with_context(|| format!("cannot read the password from descriptor {descriptor}"))?,
        (None, None) => from_terminal(prompt, confirm)?,
    };
    if password.is_empty() {
        bail!("the password is empty; give one of 1 to {PASSWORD_BYTES_MAX} bytes");
    }
    Ok(password)
}

/// Reads the first line of `path`.
pub(crate) fn from_file(path: &Path) -> Result<Zeroizing<String>> {
    let file = File::open(path).with_context(|| format!("cannot read the password file {}", path.display()))?;
    let mut line = Zeroizing::new(String::new());
    BufReader::new(file)
        .take(PASSWORD_BYTES_MAX)
        .read_line(&mut line)
        .with_context(|| format!("cannot read the password file {}", path.display()))?;
    Ok(Zeroizing::new(line.trim_end_matches(['\r', '\n']).to_owned()))
}

/// The key in a file that `user add --key` wrote.
pub(crate) fn from_key_file(path: &Path) -> Result<UserSecret> {
    let content = sluicegate_store::keys::read(path)?;
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
        (None, None) => {
            let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config/sluicegate"));
            Ok(Pin::KnownSites(home.unwrap_or_else(|| STATE_DEFAULT.into()).join("known_sites")))
        }
    }
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
