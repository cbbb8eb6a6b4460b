//! `export`, `import`: what makes a node the same again elsewhere, in one file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, IsTerminal, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sluicegate_keys::private_directory;
use sluicegate_store::{ENTRIES_MAX, Store};
use tempfile::{NamedTempFile, TempDir};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{config, out};

const FORMAT: u32 = 1;
const MANIFEST: &str = "manifest.json";
const CONFIGURATION: &str = "sluicegate.toml";
/// The longest manifest that is read.
const TEXT_LEN_MAX: u64 = 1 << 20;
/// Files of nodes and whose they are, below `state`.
const PARTS: [(&str, &[&str]); 3] = [
    ("frontend", &sluicegate_frontend::BACKUP_FILES),
    ("keyholder", &sluicegate_frontend::KEYHOLDER_BACKUP_FILES),
    ("gate", &sluicegate_gate::BACKUP_FILES),
];
/// Who holds these runs.
const LOCKS: [&str; 2] = ["frontend.lock", "gate/gate.lock"];
/// A file that has not changed for so long before it was read, nor until after that, was read between two changes. Longer
/// than a tick of the clock that file systems go by.
const QUIET: Duration = Duration::from_millis(50);
/// How often a moment without changes is waited for.
const TRIES: u32 = 100;

/// What an archive begins with.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    version: String,
    realm: Option<String>,
    made: String,
    /// In the order in which they follow.
    files: Vec<Member>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    path: String,
    bytes: u64,
    sha256: String,
}

/// Writes the archive of a node, which may run, to `to` or, for `-`, to standard output.
pub(super) fn export(to: &Path, config: &Path) -> Result<()> {
    let outline = config::outline(config)?;
    let state = &outline.state;
    let staged = TempDir::with_prefix_in(".export-", state)
        .with_context(|| format!("cannot write to {}, where a node would have its state", state.display()))?;
    let mut paths: Vec<String> = members().filter(|path| state.join(path).exists()).collect();
    ensure!(!paths.is_empty(), "there is nothing to keep in {}: no node has run with this state", state.display());
    copy_between_changes(state, staged.path(), &paths)?;
    open_stores(staged.path(), paths.iter())?;
    fs::copy(config, staged.path().join(CONFIGURATION)).with_context(|| format!("reading {}", config.display()))?;
    paths.insert(0, CONFIGURATION.to_owned());

    let files = paths.iter().map(|path| member(staged.path(), path)).collect::<Result<_>>()?;
    let made = OffsetDateTime::from(SystemTime::now()).format(&Rfc3339)?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let manifest = Manifest { format: FORMAT, version, realm: outline.realm, made, files };
    if to.as_os_str() == "-" {
        ensure!(!io::stdout().is_terminal(), "this would write keys to the terminal; name a file, or use a pipe");
        return write(&manifest, staged.path(), io::stdout().lock()).context("writing the archive");
    }
    let writing = || format!("writing {}", to.display());
    // For its owner alone, and at its place only when it is whole.
    let file = NamedTempFile::new_in(crate::file::directory(to)).with_context(writing)?;
    write(&manifest, staged.path(), &file)?;
    file.as_file().sync_all().with_context(writing)?;
    file.persist_noclobber(to).map_err(|error| error.error).with_context(writing)?;
    let count = manifest.files.len();
    out::line(format_args!(
        "{}: {count} files, with the keys in them; whoever reads it can be this node",
        to.display()
    ));
    Ok(())
}

/// Puts what the archive holds in the place of a node that does not run.
pub(super) fn import(from: &Path, config: &Path, replace: bool) -> Result<()> {
    let mut reader: Box<dyn Read> = if from.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(from).with_context(|| format!("reading {}", from.display()))?)
    };
    let mut archive = tar::Archive::new(&mut reader);
    let mut entries = archive.entries()?;
    let manifest = first(&mut entries)?;
    let (configuration, files) = manifest.files.split_first().context("the archive is empty")?;
    let directory = TempDir::new()?;
    extract(&mut entries, configuration, directory.path())?;
    let staged = directory.path().join(CONFIGURATION);
    let configured = config.exists();
    ensure!(crate::file::directory(config).is_dir(), "there is no directory for {}; make it first", config.display());
    let state = config::outline(if configured { config } else { &staged })?.state;
    let before = take(&mut entries, files, &state, replace)?;
    let same = configured && fs::read(config)? == fs::read(&staged)?;
    if !configured {
        fs::copy(&staged, config).with_context(|| format!("writing {}", config.display()))?;
    }
    super::keys::changed(config, "import", &manifest.made)?;

    out::line(format_args!(
        "{} files of {}, made by version {}",
        manifest.files.len(),
        manifest.made,
        manifest.version
    ));
    if let Some(before) = before {
        out::line(format_args!("what was there before is in {}; remove it when all is well", before.display()));
    }
    if configured && !same {
        out::line(format_args!(
            "{} was kept; the archive's own differs: tar -xOf FILE {CONFIGURATION}",
            config.display()
        ));
    }
    out::line(format_args!("next: sluicegate check {}", config.display()));
    Ok(())
}

/// Where files may be, below `state`.
fn members() -> impl Iterator<Item = String> {
    PARTS.iter().flat_map(|(part, files)| files.iter().map(move |file| format!("{part}/{file}")))
}

/// Copies files of a node that may run, all as they were at one moment: between two changes of any of them.
fn copy_between_changes(state: &Path, to: &Path, paths: &[String]) -> Result<()> {
    let changed = || -> io::Result<Vec<(SystemTime, u64)>> {
        let of = |path| fs::metadata(state.join(path)).and_then(|data| Ok((data.modified()?, data.len())));
        paths.iter().map(of).collect()
    };
    for _ in 0..TRIES {
        let before = changed()?;
        thread::sleep(QUIET);
        for path in paths {
            let copied = make_parent(to, path).and_then(|()| fs::copy(state.join(path), to.join(path)));
            copied.with_context(|| format!("copying {path} of {}", state.display()))?;
        }
        if changed()? == before {
            return Ok(());
        }
    }
    bail!("{} changes all the time; try again, or stop the node meanwhile", state.display())
}

/// Whether each store can be opened, as it will be after an import.
fn open_stores<'a>(directory: &Path, mut paths: impl Iterator<Item = &'a String>) -> Result<()> {
    paths.try_for_each(|path| {
        if path.ends_with(".redb") {
            Store::open(&directory.join(path), ENTRIES_MAX)?;
        }
        Ok(())
    })
}

fn make_parent(directory: &Path, path: &str) -> io::Result<()> {
    let parent = directory.join(path);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(parent.parent().unwrap_or(directory))
}

fn member(directory: &Path, path: &str) -> Result<Member> {
    let mut file = File::open(directory.join(path)).with_context(|| format!("reading {path}"))?;
    let (mut hash, mut bytes, mut part) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let len = file.read(&mut part)?;
        if len == 0 {
            return Ok(Member { path: path.to_owned(), bytes, sha256: hex::encode(hash.finalize()) });
        }
        hash.update(&part[..len]);
        bytes += len as u64;
    }
}

fn write(manifest: &Manifest, directory: &Path, to: impl Write) -> Result<()> {
    let mut archive = tar::Builder::new(to);
    let mut append = |path: &str, bytes: u64, from: &mut dyn Read| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        archive.append_data(&mut header, path, from)
    };
    let text = serde_json::to_vec_pretty(manifest)?;
    append(MANIFEST, text.len() as u64, &mut text.as_slice())?;
    for member in &manifest.files {
        append(&member.path, member.bytes, &mut File::open(directory.join(&member.path))?)?;
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

type Entries<'a> = tar::Entries<'a, &'a mut Box<dyn Read>>;

/// What the archive says of itself.
fn first(entries: &mut Entries<'_>) -> Result<Manifest> {
    let none = "this is no archive of `sluicegate export`";
    // What is wrong with it in detail may have any bytes in it.
    let entry = entries.next().and_then(Result::ok).context(none)?;
    ensure!(entry.path_bytes() == MANIFEST.as_bytes() && entry.size() <= TEXT_LEN_MAX, none);
    let manifest: serde_json::Value = serde_json::from_reader(entry).context(none)?;
    let (format, version) = (&manifest["format"], &manifest["version"]);
    ensure!(*format == FORMAT, "the archive was made by version {version} in a format that this version does not read");
    let manifest: Manifest = serde_json::from_value(manifest).context(none)?;
    let mut allowed = std::iter::once(CONFIGURATION.to_owned()).chain(members());
    // In their one order, so none twice.
    let known = manifest.files.iter().all(|member| allowed.any(|path| path == member.path));
    let configured = manifest.files.first().is_some_and(|member| member.path == CONFIGURATION);
    ensure!(known && configured, "{none}: it lists files that no node has");
    Ok(manifest)
}

/// Writes the archive's next file below `directory`, if it is this one and whole.
fn extract(entries: &mut Entries<'_>, member: &Member, directory: &Path) -> Result<()> {
    let path = &member.path;
    let damaged = || format!("the archive is damaged at {path}; nothing was changed");
    let entry = entries.next().and_then(Result::ok).with_context(damaged)?;
    let fits = entry.path_bytes() == path.as_bytes() && entry.header().entry_type().is_file();
    ensure!(fits && entry.size() == member.bytes, damaged());
    make_parent(directory, path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(path))?;
    let written = io::copy(&mut entry.take(member.bytes), &mut file).and_then(|_| file.sync_all());
    written.with_context(|| {
        format!("cannot bring {path} of the archive to {}; nothing was changed", directory.display())
    })?;
    ensure!(self::member(directory, path)? == *member, damaged());
    Ok(())
}

/// Puts the files in their places below `state`. Gives where those are that were there before.
fn take(entries: &mut Entries<'_>, files: &[Member], state: &Path, replace: bool) -> Result<Option<PathBuf>> {
    private_directory(state)?;
    let _locks = LOCKS.iter().map(|path| stopped(state, path)).collect::<Result<Vec<_>>>()?;
    let holds = members().any(|path| state.join(path).exists());
    let shown = state.display();
    ensure!(
        replace || !holds,
        "{shown} has keys and users of a node already; `--replace` moves them away and puts the archive's in their place"
    );
    let staged = TempDir::with_prefix_in(".import-", state)?;
    for member in files {
        extract(entries, member, staged.path())?;
    }
    open_stores(staged.path(), files.iter().map(|member| &member.path))?;

    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let before = state.join(format!("before-import-{seconds}"));
    let old: Vec<&str> = PARTS.iter().map(|(part, _)| *part).filter(|part| state.join(part).exists()).collect();
    if !old.is_empty() {
        fs::DirBuilder::new().mode(0o700).create(&before).with_context(|| format!("making {}", before.display()))?;
    }
    let new = PARTS.iter().map(|(part, _)| *part).filter(|part| staged.path().join(part).exists());
    let moves = old.iter().map(|part| (state.join(part), before.join(part)));
    for (from, to) in moves.chain(new.map(|part| (staged.path().join(part), state.join(part)))) {
        fs::rename(&from, &to).with_context(|| format!("moving {} to {}", from.display(), to.display()))?;
    }
    File::open(state)?.sync_all()?;
    Ok((!old.is_empty()).then_some(before))
}

/// The lock of a node that does not run; none where none ever ran.
fn stopped(state: &Path, lock: &str) -> Result<Option<Flock<File>>> {
    let Ok(file) = OpenOptions::new().write(true).open(state.join(lock)) else { return Ok(None) };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(held) => Ok(Some(held)),
        Err(_) => bail!("a node runs with the state in {}; stop it first", state.display()),
    }
}
