//! The file of `agent tun` and `agent run`: which destinations are captured, and how.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use sluicegate_agent::{
    Account, Frontends,
    capture::{self, CAPTURES_MAX, Capture, Carrying, Destination, SignIn},
};
use sluicegate_gate::{EdgePolicy, Renew};
use sluicegate_keys as keys;
use sluicegate_policy::Rate;
use sluicegate_signin::UserSecret;

use super::{
    check::Report,
    file,
    source::{Finding, Source},
};
use crate::secret;

/// Slowest `flood_rate`.
const FLOOD_RATE_MIN_BPS: u64 = 800;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    agent: Agent,
    #[serde(default, rename = "capture")]
    captures: Vec<Entry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Agent {
    /// The site's frontends: `HOST[:PORT]`, or several, in a list or with commas.
    #[serde(deserialize_with = "file::one_or_many")]
    frontend: Vec<String>,
    /// The realm.
    realm: Option<String>,
    /// File with the users' password on its first line, mode 0600.
    password_file: Option<PathBuf>,
    /// The site's key; the first one met is remembered unless given.
    site_key: Option<String>,
    /// Where it is remembered.
    known_sites: Option<PathBuf>,
    /// Interface by which captured packets leave; the one that leads to them unless given.
    interface: Option<String>,
    /// Who may send to this host with capabilities.
    policy: EdgePolicy,
    /// Whether a sender that used a grant gets another.
    renew: Option<Renew>,
    /// From which rate a sender floods.
    flood_rate: Option<Rate>,
    /// How long such a sender gets nothing.
    blacklist_s: Option<u32>,
    /// Name server for captured names; those of `resolv.conf` unless given.
    resolver: Option<SocketAddr>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Address, prefix or name.
    to: String,
    /// How packets carry the capability header.
    #[serde(default)]
    carriage: Carriage,
    /// Who signs in to what: `alice@ssh`.
    service: Option<String>,
    /// File with that user's password, if it is not `[agent] password_file`.
    password_file: Option<PathBuf>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Carriage {
    #[default]
    Trial,
    Native,
    Encapsulated,
}

/// What the file at `path` captures; prints everything that is wrong with it.
pub(crate) fn load(path: &Path) -> anyhow::Result<capture::Config> {
    match read(path) {
        Ok(config) => Ok(config),
        Err(findings) => super::told(path, &findings, None),
    }
}

fn read(path: &Path) -> Result<capture::Config, Vec<Finding>> {
    let source = Source::read(path).map_err(|finding| vec![finding])?;
    let file: File = toml::from_str(source.text()).map_err(|error| vec![source.parse_error(&error)])?;
    let mut report = Report::new(&source);
    let config = check(&mut report, file);
    if report.findings.is_empty() { Ok(config) } else { Err(report.findings) }
}

fn check(report: &mut Report<'_>, file: File) -> capture::Config {
    let File { agent, captures } = file;
    if captures.is_empty() {
        report.error(&["capture"], "nothing is captured", "add [[capture]] with to = \"198.51.100.0/24\" or a name");
    }
    if captures.len() > CAPTURES_MAX {
        let what = format!("{} entries, but at most {CAPTURES_MAX} are captured", captures.len());
        report.error(&["capture"], what, "merge prefixes");
    }
    if let Some(interface) = &agent.interface
        && sluicegate_datapath::Interface::read(interface).is_err()
    {
        let what = format!("there is no Ethernet interface {interface:?}");
        report.error(&["agent", "interface"], what, "`ip link` lists those that exist; or leave it out");
    }
    serves_all(report, &agent);
    let frontends = (!agent.frontend.is_empty()).then(|| Frontends::find(&agent.frontend.join(",")));
    let frontends = frontends.and_then(|found| {
        let hint = "several stand in a list, or have commas between them";
        found.map_err(|error| report.error(&["agent", "frontend"], error.to_string(), hint)).ok()
    });
    let captures = captures.iter().enumerate().filter_map(|(index, entry)| one(report, &agent, index, entry)).collect();
    capture::Config {
        interface: agent.interface,
        frontends,
        role: match agent.policy {
            EdgePolicy::Client => capture::Role::Client,
            EdgePolicy::Server => capture::Role::Server(file::server(agent.renew, agent.flood_rate, agent.blacklist_s)),
        },
        resolver: agent.resolver,
        captures,
    }
}

/// What is said about senders that this host did not contact.
fn serves_all(report: &mut Report<'_>, agent: &Agent) {
    let given = [
        ("renew", agent.renew.is_some()),
        ("flood_rate", agent.flood_rate.is_some()),
        ("blacklist_s", agent.blacklist_s.is_some()),
    ];
    for (field, _) in given.into_iter().filter(|(_, given)| matches!(agent.policy, EdgePolicy::Client) && *given) {
        let what = format!("{field} is about senders that this host did not contact, and those get nothing");
        report.error(&["agent", field], what, "remove it, or set policy = \"server\"");
    }
    if agent.flood_rate.is_some_and(|rate| rate.0 < FLOOD_RATE_MIN_BPS) || agent.blacklist_s == Some(0) {
        let what = "with this flood_rate or blacklist_s nobody could be served, or nobody be blacklisted";
        report.error(&["agent", "flood_rate"], what, "write them like flood_rate = \"512kbit\", blacklist_s = 60");
    }
}

fn one(report: &mut Report<'_>, agent: &Agent, index: usize, entry: &Entry) -> Option<Capture> {
    let at = index.to_string();
    let to = entry.to.parse::<Destination>();
    let hint = "write an address, a prefix such as \"198.51.100.0/24\", or a name";
    let to = to.map_err(|error| report.error(&["capture", &at, "to"], error, hint)).ok()?;
    let carrying = match entry.carriage {
        Carriage::Trial => None,
        Carriage::Native => Some(Carrying::Native),
        Carriage::Encapsulated => Some(Carrying::Encapsulated),
    };
    let service = match &entry.service {
        Some(text) => Some(sign_in(report, agent, (&at, entry, &to), text)?),
        None => None,
    };
    Some(Capture { to, carrying, service })
}

fn sign_in(
    report: &mut Report<'_>,
    agent: &Agent,
    (at, entry, to): (&str, &Entry, &Destination),
    text: &str,
) -> Option<SignIn> {
    let path = ["capture", at, "service"];
    let names = text
        .split_once('@')
        .filter(|(user, service)| sluicegate_policy::is_name(user) && sluicegate_policy::is_name(service));
    let Some((user, service)) = names else {
        report.error(&path, format!("`{text}` names no user and service"), "write USER@SERVICE, such as \"alice@ssh\"");
        return None;
    };
    if matches!(to, Destination::Prefix(prefix) if prefix.prefix_len() < prefix.max_prefix_len()) {
        report.error(&path, format!("a service has one address, but {to} are many"), "write one address, or a name");
    }
    for (key, missing) in [("frontend", agent.frontend.is_empty()), ("realm", agent.realm.is_none())] {
        if missing {
            report.error(&path, format!("a sign-in needs `{key}` in [agent]"), "add it, as in [agent] of a service");
        }
    }
    let (file_at, file) = match (&entry.password_file, &agent.password_file) {
        (Some(file), _) => (["capture", at, "password_file"], file),
        (None, Some(file)) => (["agent", "password_file", ""], file),
        (None, None) => {
            let hint = "add password_file to [agent] or to this [[capture]], mode 0600";
            report.error(&path, format!("{user} has no password"), hint);
            return None;
        }
    };
    let pin = secret::pin(agent.site_key.as_deref(), agent.known_sites.as_deref());
    let pin =
        pin.map_err(|error| report.error(&["agent", "site_key"], error.to_string(), "`sluicegate status` shows it"));
    match keys::read_password(file) {
        Ok(password) => {
            let realm = agent.realm.as_deref()?;
            let secret = UserSecret::from_password(user, realm, password.as_bytes());
            let account = Account::new(user, realm, secret, pin.ok()?);
            Some(SignIn { account, service: service.to_owned() })
        }
        Err(error) => {
            let file_at: Vec<&str> = file_at.iter().copied().filter(|part| !part.is_empty()).collect();
            report.error(&file_at, error.to_string(), "write the password to it, mode 0600");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read_text(text: &str) -> Result<capture::Config, Vec<Finding>> {
        let dir = tempfile::tempdir().unwrap();
        let password = dir.path().join("password");
        keys::create(&password, b"correct horse\n").unwrap();
        let path = dir.path().join("capture.toml");
        fs::write(&path, text.replace("PASSWORD", password.to_str().unwrap())).unwrap();
        read(&path)
    }

    const WHOLE: &str = "[agent]\nfrontend = \"203.0.113.1:5060\"\nrealm = \"example.net\"\n\
        password_file = \"PASSWORD\"\npolicy = \"server\"\nresolver = \"192.0.2.53:53\"\n\
        [[capture]]\nto = \"198.51.100.0/24\"\ncarriage = \"native\"\n\
        [[capture]]\nto = \"ssh.example.net\"\nservice = \"alice@ssh\"\n";

    #[test]
    fn a_whole_file_is_understood() {
        let config = read_text(WHOLE).unwrap();
        assert_eq!((config.captures.len(), config.role), (2, capture::Role::Server(file::server(None, None, None))));
        assert_eq!(config.captures[0].carrying, Some(Carrying::Native));
        assert_eq!(config.captures[1].to, Destination::Name("ssh.example.net".to_owned()));
        assert_eq!(config.captures[1].service.as_ref().unwrap().service, "ssh");
    }

    #[test]
    fn each_mistake_is_named_with_its_line_and_what_to_do() {
        for (text, line, what) in [
            ("", None, "nothing is captured"),
            ("[[capture]]\nto = \"198.51.100.9/24\"\n", Some(2), "bits behind its prefix"),
            ("[[capture]]\nto = \"198.51.100.9\"\ncarriage = \"pigeon\"\n", Some(3), "unknown variant"),
            ("[[capture]]\nto = \"198.51.100.9\"\nvia = \"x\"\n", Some(3), "unknown field"),
            ("[agent]\nserve = true\n", Some(2), "unknown field"),
            ("[agent]\ninterface = \"nosuch0\"\n[[capture]]\nto = \"192.0.2.1\"\n", Some(2), "no Ethernet interface"),
            ("[[capture]]\nto = \"192.0.2.1\"\nservice = \"alice\"\n", Some(3), "no user and service"),
            ("[[capture]]\nto = \"192.0.2.1\"\nservice = \"alice@ssh\"\n", Some(3), "`frontend` in [agent]"),
            (&WHOLE.replace("ssh.example.net", "192.0.2.0/24"), Some(12), "one address"),
            (&WHOLE.replace("PASSWORD", "/nonexistent/password"), Some(4), "cannot read /nonexistent/password"),
        ] {
            let findings = read_text(text).unwrap_err();
            let found = findings.iter().any(|finding| finding.line == line && finding.what.contains(what));
            assert!(found, "{text}\n{findings:?}");
            assert!(findings.iter().all(|finding| !finding.hint.is_empty()), "{findings:?}");
        }
    }
}
