//! `key`: a key holder on a host of its own, and what it issues to frontends elsewhere.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use sluicegate_frontend::Vault;
use sluicegate_store::audit;
use sluicegate_wire::UnixTime;

use super::control::Node;
use crate::{
    cli::KeyAction,
    config::{self, KeyHolder},
    file, out,
};

pub(crate) fn run(action: KeyAction) -> Result<()> {
    match action {
        KeyAction::Show(node) => out::line(required(&node.config)?.0.site()),
        KeyAction::Issue { directory, node } => issue(&node.config, &directory)?,
        KeyAction::Load { file, node } => load(&node.config, file.as_deref())?,
    }
    Ok(())
}

/// Now, for what is written to a store.
pub(super) fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// The key holder for other hosts that `config` describes, if it describes one.
pub(super) fn holder(config: &Path) -> Result<Option<(Vault, KeyHolder)>> {
    let outline = config::outline(config)?;
    let Some(holder) = outline.keyholder else { return Ok(None) };
    if outline.realm.is_some() {
        bail!("{} describes a frontend and a key holder for others; give each a file of its own", config.display());
    }
    sluicegate_keys::private_directory(&outline.state)?;
    let vault = Vault::open(&sluicegate_frontend::keyholder_directory(&outline.state), &holder.realm)?;
    Ok(Some((vault, holder)))
}

fn required(config: &Path) -> Result<(Vault, KeyHolder)> {
    holder(config)?.with_context(|| format!("{} describes no key holder; add [keyholder]", config.display()))
}

/// Writes a file for each frontend, each whole or not at all.
fn issue(config: &Path, directory: &Path) -> Result<()> {
    let made = |name: &str, keys: &str| {
        let path = directory.join(format!("{name}.keys"));
        file::replace(&path, format!("{keys}\n").as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
        out::line(format_args!("{}", path.display()));
        anyhow::Ok(())
    };
    let Some((vault, holder)) = holder(config)? else { return issue_users(config, directory, made) };
    if holder.frontends.is_empty() {
        bail!("{} names no frontend; add [[keyholder.frontend]] with the name and key of each", config.display());
    }
    make(directory)?;
    for replica in &holder.frontends {
        if !sluicegate_policy::is_name(&replica.name) {
            bail!("{:?} can name no frontend, and no file; write its [node] name", replica.name);
        }
        let key = sluicegate_signin::key_of(&replica.key).with_context(|| format!("the key of {}", replica.name))?;
        made(&replica.name, &vault.issue(now(), &key)?.text)?;
        changed(config, "key issue", &replica.name)?;
    }
    Ok(())
}

/// The same at a running frontend, for those that have its users.
fn issue_users(config: &Path, directory: &Path, made: impl Fn(&str, &str) -> Result<()>) -> Result<()> {
    let node = Node::of(config)?;
    if node.replicas().is_empty() {
        bail!(
            "{} names nobody to issue keys to; add [[frontend.replica]] at a frontend, or [keyholder] and \
             [[keyholder.frontend]]",
            config.display()
        );
    }
    make(directory)?;
    for name in node.replicas() {
        if !sluicegate_policy::is_name(name) {
            bail!("{name:?} can name no frontend, and no file; write its [node] name");
        }
        made(name, &node.ask(&sluicegate_api::KEYS_ISSUE.ask_of(name, &()))?)?;
    }
    Ok(())
}

fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))
}

/// Writes a change at a key holder down, where no node runs that would.
pub(super) fn changed(config: &Path, change: &'static str, of: &str) -> Result<()> {
    let outline = config::outline(config)?;
    let audit = outline.audit.as_ref().map(audit::Files::open).transpose()?;
    if let Some(audit) = audit.map(audit::Files::start).transpose()? {
        let uid = nix::unistd::Uid::current().as_raw();
        audit.write(&audit::Event::Changed { uid, change, of: of.to_owned() }, 0);
        audit.flush();
    }
    Ok(())
}

fn load(config: &Path, given: Option<&Path>) -> Result<()> {
    let node = Node::of(config)?;
    if !node.has_keys_from_elsewhere() {
        bail!(
            "{} gives the frontend a key holder of its own; write `keys` in [frontend] for one elsewhere",
            config.display()
        );
    }
    let Some(path) = given.or(node.keys_file()) else {
        bail!("which file? write it, or `file` in `keys` of [frontend] in {}", config.display());
    };
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the keys {}", path.display()))?;
    for (epoch, users) in node.ask(&sluicegate_api::KEYS_LOAD.ask(&text))? {
        out::line(format_args!("epoch {epoch}: keys of {users} users"));
    }
    Ok(())
}
