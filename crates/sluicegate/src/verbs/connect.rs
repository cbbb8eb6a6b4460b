//! `connect`: signs in to a service and offers it to the programs of this host.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use sluicegate_agent::{Account, Config, Fallback, Forward, Frontends, Trust};
use sluicegate_policy::{PortRange, TextError};
use sluicegate_signin::UserSecret;

use crate::{
    cli::Connect,
    config::profile::{Link, Profile, Site},
    out, secret,
};

pub(crate) fn run(mut connect: Connect) -> Result<ExitCode> {
    let profile = match &connect.profile {
        Some(path) => path.clone(),
        None => secret::personal("config.toml"),
    };
    let wanted = Wanted::of(&mut connect, &profile)?;
    if connect.save {
        let mut known = Profile::read(&profile)?;
        known.note(wanted.site(&connect)?);
        known.write(&profile)?;
        out::line(format_args!("noted in {}: from now on `sluicegate connect {}`", profile.display(), wanted.service));
    }
    if connect.install {
        return install(&connect, &wanted);
    }
    let Wanted { user, service, port, frontend: at, realm } = wanted;
    let frontends = Frontends::find(&at).with_context(|| format!("--frontend {at}"))?;
    let forwards: Result<Vec<Forward>, String> = connect.forwards.iter().map(|text| text.parse()).collect();
    let forwards = forwards.map_err(anyhow::Error::msg)?;
    let opens: Result<Vec<PortRange>, TextError> = connect.opens.iter().map(|text| text.parse()).collect();
    let opens = opens.context("--open")?;
    let pin = secret::pin(connect.site_key.as_deref(), connect.known_sites.as_deref())?;
    let secret = match &connect.key_file {
        Some(path) => secret::from_key_file(path)?,
        None => {
            let password = secret::read(&connect.password, &format!("password of {user}"), false)?;
            UserSecret::from_password(&user, &realm, password.as_bytes())
        }
    };
    let fallback = fallback(&connect, &at)?;
    let config = Config {
        frontends,
        fallback,
        account: Account::new(&user, &realm, secret, pin),
        service,
        port,
        forwards,
        socks: connect.socks,
        opens,
        command: connect.command,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let code = runtime.block_on(sluicegate_agent::connect(config, super::node::shutdown_signal()))?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// What to do where no UDP passes.
fn fallback(connect: &Connect, frontends: &str) -> Result<Option<Fallback>> {
    if connect.certificates.is_empty() {
        return Ok(None);
    }
    let names: Vec<String> = frontends.split(',').filter_map(|one| one.split(':').next()).map(str::to_owned).collect();
    // `systemctl --user status` shows it.
    let told = |over: &str| {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(over)]);
    };
    let trust = Trust::of(&connect.certificates, &names).context("--certificate")?;
    Ok(Some(Fallback { trust, sip_port: connect.tls_port, tunnel: connect.tunnel, told }))
}

/// Who wants what of whom.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    user: String,
    service: String,
    port: Option<u16>,
    /// `HOST[:PORT]`, or several.
    frontend: String,
    realm: String,
}

impl Wanted {
    /// What the command line says, and where it does not, the link or the profile. Site key and files of secrets that come
    /// from there are put into `connect`.
    fn of(connect: &mut Connect, profile: &Path) -> Result<Self> {
        if Link::is_meant(&connect.target) {
            let link: Link = connect.target.parse()?;
            let (_, _, port) = target(&format!("{}@{}", link.user, link.service))?;
            let service = link.service.split(':').next().unwrap_or_default().to_owned();
            if connect.known_sites.is_none() {
                connect.site_key = connect.site_key.take().or(link.site_key);
            }
            return Ok(Self {
                user: link.user,
                service,
                port,
                frontend: frontends(connect).unwrap_or(link.frontend),
                realm: connect.realm.clone().unwrap_or(link.realm),
            });
        }
        let (user, service, port) = target(&connect.target)?;
        let service = service.to_owned();
        match (user, &frontends(connect), &connect.realm) {
            (Some(user), Some(frontend), Some(realm)) => {
                Ok(Self { user: user.to_owned(), service, port, frontend: frontend.clone(), realm: realm.clone() })
            }
            (user, frontend, realm) => {
                let known = Profile::read(profile)?;
                let site = known.find(user, &service, profile)?;
                let of_site = Self {
                    user: site.user.clone(),
                    service,
                    port,
                    frontend: frontend.clone().unwrap_or_else(|| site.frontend.clone()),
                    realm: realm.clone().unwrap_or_else(|| site.realm.clone()),
                };
                if connect.known_sites.is_none() {
                    connect.site_key = connect.site_key.take().or_else(|| site.site_key.clone());
                }
                let has_secret = connect.key_file.is_some()
                    || connect.password.password_file.is_some()
                    || connect.password.password_fd.is_some();
                if !has_secret {
                    connect.key_file.clone_from(&site.key_file);
                    connect.password.password_file.clone_from(&site.password_file);
                }
                Ok(of_site)
            }
        }
    }

    /// The site as the profile notes it.
    fn site(&self, connect: &Connect) -> Result<Site> {
        let whole = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
        Ok(Site {
            frontend: self.frontend.clone(),
            realm: self.realm.clone(),
            user: self.user.clone(),
            site_key: connect.site_key.clone(),
            password_file: whole(&connect.password.password_file)?,
            key_file: whole(&connect.key_file)?,
            services: vec![self.service.clone()],
        })
    }
}

/// The frontends that the command line names, with commas between them.
fn frontends(connect: &Connect) -> Option<String> {
    (!connect.frontend.is_empty()).then(|| connect.frontend.join(","))
}

/// Writes the unit of a connection that is there at each start.
fn install(connect: &Connect, wanted: &Wanted) -> Result<ExitCode> {
    if connect.key_file.is_none() && connect.password.password_file.is_none() {
        bail!("nobody is there to be asked for a password at a start: give --key-file or --password-file");
    }
    if connect.forwards.is_empty() && connect.socks.is_none() && connect.opens.is_empty() {
        bail!("this would offer nothing: give -L, --socks or --open");
    }
    let home = std::env::var_os("HOME").context("there is no HOME to put a unit into")?;
    let name = format!("sluicegate-{}.service", wanted.service);
    let directory = Path::new(&home).join(".config/systemd/user");
    let path = directory.join(&name);
    let program = std::env::current_exe().context("this program has no path")?;
    let text = unit(&program.display().to_string(), &arguments(connect, wanted)?, &wanted.service);
    std::fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    out::line(format_args!("wrote {}; start it now and at each login with:", path.display()));
    out::line(format_args!("  systemctl --user enable --now {name}"));
    out::line(format_args!("before anybody logs in: loginctl enable-linger"));
    Ok(ExitCode::SUCCESS)
}

/// The command line that does the same without a profile.
fn arguments(connect: &Connect, wanted: &Wanted) -> Result<Vec<String>> {
    let port = wanted.port.map(|port| format!(":{port}")).unwrap_or_default();
    let mut words = vec!["connect".to_owned(), format!("{}@{}{port}", wanted.user, wanted.service)];
    let whole = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
    let mut give = |option: &str, value: String| words.extend([option.to_owned(), value]);
    give("--frontend", wanted.frontend.clone());
    give("--realm", wanted.realm.clone());
    if let Some(path) = &connect.password.password_file {
        give("--password-file", whole(path)?);
    }
    if let Some(path) = &connect.key_file {
        give("--key-file", whole(path)?);
    }
    if let Some(key) = &connect.site_key {
        give("--site-key", key.clone());
    }
    if let Some(path) = &connect.known_sites {
        give("--known-sites", whole(path)?);
    }
    for certificate in &connect.certificates {
        let is_hash = certificate.starts_with("sha256:");
        give("--certificate", if is_hash { certificate.clone() } else { whole(Path::new(certificate))? });
    }
    if !connect.certificates.is_empty() {
        give("--tls-port", connect.tls_port.to_string());
    }
    if let Some(tunnel) = connect.tunnel {
        give("--tunnel", tunnel.to_string());
    }
    connect.forwards.iter().for_each(|forward| give("-L", forward.clone()));
    connect.opens.iter().for_each(|range| give("--open", range.clone()));
    if let Some(socks) = connect.socks {
        give("--socks", socks.to_string());
    }
    Ok(words)
}

/// A systemd user unit; every word is quoted as systemd reads it.
fn unit(program: &str, arguments: &[String], service: &str) -> String {
    let quoted = |word: &str| {
        let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
        format!("\"{word}\"")
    };
    let line: Vec<String> = std::iter::once(program).chain(arguments.iter().map(String::as_str)).map(quoted).collect();
    format!(
        "[Unit]\nDescription=Sluicegate connection to {service}\n\n[Service]\nNotifyAccess=main\nExecStart={}\nRestart=on-failure\nRestartSec=5\n\n\
         [Install]\nWantedBy=default.target\n",
        line.join(" ")
    )
}

/// `[USER@]SERVICE[:PORT]`.
fn target(text: &str) -> Result<(Option<&str>, &str, Option<u16>)> {
    let (user, service) = match text.split_once('@') {
        Some((user, service)) => (Some(user), service),
        None => (None, text),
    };
    let (service, port) = match service.split_once(':') {
        Some((service, port)) => (service, Some(port.parse().with_context(|| format!("`{port}` is no port"))?)),
        None => (service, None),
    };
    for (what, name) in user.map(|user| ("user", user)).into_iter().chain([("service", service)]) {
        if !sluicegate_policy::is_name(name) {
            bail!("`{name}` cannot be the name of a {what}; write USER@SERVICE, such as alice@web");
        }
    }
    Ok((user, service, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_user_a_service_and_maybe_a_port() {
        assert_eq!(target("alice@web").unwrap(), (Some("alice"), "web", None));
        assert_eq!(target("alice@ssh:22").unwrap(), (Some("alice"), "ssh", Some(22)));
        assert_eq!(target("web").unwrap(), (None, "web", None));
        for wrong in ["", "@web", "alice@", "alice@web:x", "a b@web"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_unit_says_each_word_as_systemd_reads_it() {
        let words = ["connect", "a b", "50%", "$HOME", "a\"b\\"].map(str::to_owned);
        let text = unit("/usr/bin/sluicegate", &words, "web");
        assert!(text.contains("NotifyAccess=main"), "{text}");
        let line = text.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        assert_eq!(line, r#"ExecStart="/usr/bin/sluicegate" "connect" "a b" "50%%" "$$HOME" "a\"b\\""#);
    }

    #[test]
    fn a_link_gives_what_the_command_line_leaves_out() {
        use clap::Parser as _;
        let parsed = |line: &[&str]| match crate::cli::Cli::try_parse_from(line).unwrap().verb {
            crate::cli::Verb::Connect(connect) => *connect,
            _ => panic!("no connect"),
        };
        let link = "sluicegate://alice@203.0.113.1:5060/ssh:22?realm=example.net&key=K";
        let mut connect = parsed(&["sluicegate", "connect", link]);
        let wanted = Wanted::of(&mut connect, Path::new("/nowhere")).unwrap();
        assert_eq!((wanted.user.as_str(), wanted.service.as_str(), wanted.port), ("alice", "ssh", Some(22)));
        assert_eq!((wanted.frontend.as_str(), wanted.realm.as_str()), ("203.0.113.1:5060", "example.net"));
        assert_eq!(connect.site_key.as_deref(), Some("K"));
        let mut connect = parsed(&["sluicegate", "connect", link, "--frontend", "192.0.2.1"]);
        assert_eq!(Wanted::of(&mut connect, Path::new("/nowhere")).unwrap().frontend, "192.0.2.1");
        let mut connect = parsed(&["sluicegate", "connect", "web"]);
        let error = Wanted::of(&mut connect, Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("knows no site with web"), "{error}");
    }
}
