//! `user`: who may sign in, and with what.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sluicegate_api::{self as api, ContactStatus, NewUser, UserChange, UserStatus};
use sluicegate_frontend::Vault;
use sluicegate_signin::UserSecret;
use sluicegate_store::{OPS_MAX, password};
use zeroize::Zeroizing;

use super::{
    control::{Node, cell, list, print_json, table},
    keys,
    objects::remove,
};
use crate::{
    cli::{Named, NewUsers, Password, Reading, UserAction},
    out, secret,
};

/// Longest list of users, in bytes.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// A name and its password.
type WithPassword = (String, Zeroizing<String>);

pub(crate) fn run(action: UserAction) -> Result<()> {
    match action {
        UserAction::Add(new) => add(&new)?,
        UserAction::Ls(reading) => match keys::holder(&reading.node.config)? {
            Some((vault, _)) => {
                let users = vault.users()?;
                if reading.json {
                    let rows: Vec<Value> = users.iter().map(|name| json!({ "name": name })).collect();
                    return print_json(&rows);
                }
                table(["USER"], users.into_iter().map(|name| [name]));
            }
            None => {
                let row = |user: api::User| [user.name, user.groups.join(","), cell(&user.phone), cell(&user.enabled)];
                list(&reading, &api::USERS, ["USER", "GROUPS", "PHONE", "ENABLED"], row)?;
            }
        },
        UserAction::Show { name, reading } => show(&name, &reading)?,
        UserAction::Unregister(Named { name, node }) => {
            let ended = Node::of(&node.config)?.ask(&api::USER_UNREGISTER.ask_of(&name, &()))?.contacts;
            out::line(format_args!("ended {ended} contacts of user {name}"));
        }
        UserAction::Mod { name, groups, add_group, remove_group, node } => {
            let body = UserChange { groups, add: add_group, remove: remove_group, enabled: None };
            change(&name, &node.config, &body)?;
            out::line(format_args!("changed user {name}"));
        }
        UserAction::Disable(user) => switch(&user, false)?,
        UserAction::Enable(user) => switch(&user, true)?,
        UserAction::Passwd { name, no_agent, password, node } => passwd(&name, no_agent, &password, &node.config)?,
        UserAction::Rm(of) => match keys::holder(&of.node.config)? {
            Some((vault, _)) if vault.remove(&of.name)? => {
                keys::changed(&of.node.config, "user rm", &of.name)?;
                out::line(format_args!("removed user {}", of.name));
            }
            Some(_) => bail!("there is no user {:?} at this key holder; `sluicegate user ls` lists them", of.name),
            None => remove(&api::USER_REMOVE, "user", &of)?,
        },
    }
    Ok(())
}

fn show(name: &str, reading: &Reading) -> Result<()> {
    let status = Node::of(&reading.node.config)?.ask(&api::USER.ask_of(name, &()))?;
    if reading.json {
        return print_json(&status);
    }
    let UserStatus { user, contacts } = status;
    let groups = if user.groups.is_empty() { "no group".to_owned() } else { user.groups.join(", ") };
    let phone = if user.phone { "telephones and agents" } else { "agents only" };
    let enabled = if user.enabled { "" } else { ", disabled" };
    out::line(format_args!("{}: {groups}; {phone}{enabled}", user.name));
    match contacts {
        None => out::line("the frontend does not run"),
        Some(contacts) if contacts.is_empty() => out::line("registered nowhere"),
        Some(contacts) => {
            let unix = keys::now().0;
            table(
                ["CONTACT", "CALLED AT", "Q", "ENDS IN", "PATH"],
                contacts.into_iter().map(|one| for_people(one, unix)),
            );
        }
    }
    Ok(())
}

/// A contact as a person writes it.
fn for_people(contact: ContactStatus, unix: u64) -> [String; 5] {
    let ContactStatus { uri, peer, connected, q, expires_at, path } = contact;
    let over = if connected { " (connection)" } else { "" };
    let left = expires_at.saturating_sub(unix);
    [uri, format!("{peer}{over}"), q.to_string(), format!("{}m{:02}s", left / 60, left % 60), path.join(", ")]
}

fn change(name: &str, config: &Path, body: &UserChange) -> Result<()> {
    if keys::holder(config)?.is_some() {
        bail!("a key holder knows of agents' keys only: change {name} at the frontends");
    }
    Node::of(config)?.ask(&api::USER_CHANGE.ask_of(name, body))
}

fn switch(Named { name, node }: &Named, on: bool) -> Result<()> {
    change(name, &node.config, &UserChange { enabled: Some(on), ..UserChange::default() })?;
    out::line(format_args!("{} user {name}", if on { "enabled" } else { "disabled" }));
    Ok(())
}

fn passwd(name: &str, no_agent: bool, given: &Password, config: &Path) -> Result<()> {
    let at = At::of(config)?;
    let given = secret::read(given, &format!("new password of {name}"), true)?;
    password::check(&given).with_context(|| format!("nothing was changed: the password of {name}"))?;
    let makes_secret = !no_agent && at.takes_secrets();
    let realm = at.realm()?.to_owned();
    let secret = makes_secret.then(|| UserSecret::from_password(name, &realm, given.as_bytes()));
    match &at {
        At::Frontend(node) => {
            let (key, password) = (secret.as_ref().map(key), Some(given));
            let new = NewUser { name: name.to_owned(), groups: Vec::new(), password, key };
            node.ask(&api::USER_PASSWORD.ask_of(name, &new))?;
        }
        At::KeyHolder(vault, _) => {
            if !vault.users()?.iter().any(|known| known == name) {
                bail!("there is no user {name:?} at this key holder; `sluicegate user ls` lists them");
            }
            vault.put(&secret.map(|secret| (name.to_owned(), secret)).into_iter().collect::<Vec<_>>())?;
            keys::changed(config, "user passwd", name)?;
        }
    }
    out::line(format_args!("changed the password of {name}"));
    Ok(())
}

/// A secret as a frontend is told it.
fn key(secret: &UserSecret) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(*secret.expose())
}

/// Where a user is added, and what of it.
enum At {
    /// A frontend takes the user. If its key holder is on another host, it takes nothing that an agent signs in with.
    Frontend(Node),
    /// A key holder for other hosts takes what agents sign in with, and knows nothing else of users.
    KeyHolder(Vault, String),
}

impl At {
    fn of(config: &Path) -> Result<Self> {
        match keys::holder(config)? {
            Some((vault, holder)) => Ok(Self::KeyHolder(vault, holder.realm)),
            None => Ok(Self::Frontend(Node::of(config)?)),
        }
    }

    /// Whether secrets of agents are taken here.
    fn takes_secrets(&self) -> bool {
        !matches!(self, Self::Frontend(node) if node.has_keys_from_elsewhere())
    }

    fn realm(&self) -> Result<&str> {
        match self {
            Self::Frontend(node) => node.realm(),
            Self::KeyHolder(_, realm) => Ok(realm),
        }
    }
}

fn add(new: &NewUsers) -> Result<()> {
    let at = At::of(&new.node.config)?;
    if matches!(at, At::KeyHolder(..)) && (new.no_agent || !new.groups.is_empty()) {
        bail!("a key holder knows of agents' keys only: groups and phones are the frontends' business, add them there");
    }
    if let (Some(name), Some(path)) = (&new.name, &new.key) {
        if !at.takes_secrets() {
            bail!("the key holder of this frontend is on another host: write --key there, and --no-phone here");
        }
        let key = sluicegate_keys::load_or_create_seed(path)?;
        return send(&at, new, &[User { name, password: None, secret: Some(UserSecret::from_bytes(*key)) }]);
    }
    let named = match (&new.from, &new.name) {
        (Some(path), _) => listed(path)?,
        // The frontend has no use for a password: it keeps none, and the key is made elsewhere.
        (None, Some(name)) if new.no_phone && !at.takes_secrets() => {
            return send(&at, new, &[User { name, password: None, secret: None }]);
        }
        (None, Some(name)) => {
            let password = secret::read(&new.password, &format!("password of {name}"), true)?;
            vec![(name.clone(), password)]
        }
        (None, None) => bail!("who is to be added? write a name, or --from FILE"),
    };
    // Before the first takes its time.
    for (name, given) in &named {
        password::check(given).with_context(|| format!("nobody was added: the password of {name}"))?;
    }
    for some in named.chunks(OPS_MAX) {
        let users = some.iter().map(|(name, password)| user(&at, new, name, password)).collect::<Result<Vec<_>>>()?;
        send(&at, new, &users)?;
    }
    Ok(())
}

/// A user who is added.
struct User<'a> {
    name: &'a str,
    /// What phones sign in with.
    password: Option<&'a str>,
    /// What agents sign in with.
    secret: Option<UserSecret>,
}

/// The secret of agents is made here and not in the frontend: making it takes a quarter of a second and 64 MiB, and a
/// frontend that need not see a password does not.
fn user<'a>(at: &At, new: &NewUsers, name: &'a str, password: &'a str) -> Result<User<'a>> {
    let realm = at.realm()?;
    let is_of_agents = !new.no_agent && at.takes_secrets();
    let secret = is_of_agents.then(|| UserSecret::from_password(name, realm, password.as_bytes()));
    Ok(User { name, password: (!new.no_phone).then_some(password), secret })
}

fn send(at: &At, new: &NewUsers, users: &[User<'_>]) -> Result<()> {
    match at {
        At::Frontend(node) => {
            let body = |user: &User<'_>| NewUser {
                name: user.name.to_owned(),
                groups: new.groups.clone(),
                password: user.password.map(|password| Zeroizing::new(password.to_owned())),
                key: user.secret.as_ref().map(key),
            };
            node.ask(&api::USERS_ADD.ask(&users.iter().map(body).collect()))?;
        }
        At::KeyHolder(vault, _) => {
            let secrets = users.iter().filter_map(|user| Some((user.name.to_owned(), user.secret.clone()?)));
            vault.put(&secrets.collect::<Vec<_>>())?;
            for user in users {
                keys::changed(&new.node.config, "user add", user.name)?;
            }
        }
    }
    for user in users {
        out::line(format_args!("added user {}", user.name));
    }
    Ok(())
}

/// The users of a list, one `NAME:PASSWORD` a line; `-` is standard input. What an error says is never a line's content.
fn listed(path: &Path) -> Result<Vec<WithPassword>> {
    let unreadable = || format!("cannot read the list of users {}", path.display());
    let source: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(File::open(path).with_context(unreadable)?),
    };
    let mut named = Vec::new();
    for (line, number) in BufReader::new(source.take(LIST_BYTES_MAX)).lines().zip(1..) {
        let line = Zeroizing::new(line.with_context(unreadable)?);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, password)) = line.split_once(':') else {
            bail!("{}:{number}: nobody was added; write NAME:PASSWORD, one user a line", path.display());
        };
        named.push((name.to_owned(), Zeroizing::new(password.to_owned())));
    }
    Ok(named)
}
