//! `user`: who may sign in, and with what.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use anyhow::{Context, Result, bail};
use hyper::Method;
use serde_json::{Value, json};
use sluicegate_signin::UserSecret;
use sluicegate_store::{OPS_MAX, password};
use zeroize::Zeroizing;

use super::{
    control::{Node, print_json, table},
    objects::remove,
};
use crate::{
    cli::{NewUsers, UserAction},
    out, secret,
};

/// Longest list of users, in bytes.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// A name and its password.
type Named = (String, Zeroizing<String>);

pub(crate) fn run(action: UserAction) -> Result<()> {
    match action {
        UserAction::Add(new) => add(&new)?,
        UserAction::Ls(reading) => {
            let users = Node::of(&reading.node.config)?.call(Method::GET, "/v1/users", None)?;
            if reading.json {
                return print_json(&users);
            }
            table(&users, &[("USER", "name"), ("GROUPS", "groups"), ("PHONE", "phone"), ("ENABLED", "enabled")]);
        }
        UserAction::Rm { name, node } => remove("users", "user", &name, &Node::of(&node.config)?)?,
    }
    Ok(())
}

fn add(new: &NewUsers) -> Result<()> {
    let node = Node::of(&new.node.config)?;
    if let (Some(name), Some(path)) = (&new.name, &new.key) {
        let key = sluicegate_store::keys::load_or_create_seed(path)?;
        return send(&node, &[json!({ "name": name, "groups": new.groups, "key": *key })]);
    }
    let named = match (&new.from, &new.name) {
        (Some(path), _) => listed(path)?,
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
        let users = some.iter().map(|named| user(&node, new, named)).collect::<Result<Vec<Value>>>()?;
        send(&node, &users)?;
    }
    Ok(())
}

/// What the frontend is told of a user. The secret of agents is made here, not there: making it takes a quarter of a
/// second and 64 MiB, and a frontend that need not see a password does not.
fn user(node: &Node, new: &NewUsers, (name, password): &Named) -> Result<Value> {
    let mut user = json!({ "name": name, "groups": new.groups });
    if !new.no_phone {
        user["password"] = json!(password.as_str());
    }
    if !new.no_agent {
        user["key"] = json!(*UserSecret::from_password(name, node.realm()?, password.as_bytes()).expose());
    }
    Ok(user)
}

fn send(node: &Node, users: &[Value]) -> Result<()> {
    node.call(Method::POST, "/v1/users", Some(Value::Array(users.to_vec())))?;
    for user in users {
        out::line(format_args!("added user {}", user["name"].as_str().unwrap_or_default()));
    }
    Ok(())
}

/// The users of a list, one `NAME:PASSWORD` a line; `-` is standard input. What an error says is never a line's content.
fn listed(path: &Path) -> Result<Vec<Named>> {
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
