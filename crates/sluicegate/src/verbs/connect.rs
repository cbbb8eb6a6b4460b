//! `connect`: signs in to a service and offers it to the programs of this host.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use sluicegate_agent::{Account, Config, Forward};
use sluicegate_signin::UserSecret;

use crate::{cli::Connect, secret};

pub(crate) fn run(connect: Connect) -> Result<ExitCode> {
    let (user, service, port) = target(&connect.target)?;
    let forwards: Result<Vec<Forward>, String> = connect.forwards.iter().map(|text| text.parse()).collect();
    let forwards = forwards.map_err(anyhow::Error::msg)?;
    let pin = secret::pin(connect.site_key.as_deref(), connect.known_sites.as_deref())?;
    let secret = match &connect.key_file {
        Some(path) => secret::from_key_file(path)?,
        None => {
            let password = secret::read(&connect.password, &format!("password of {user}"), false)?;
            UserSecret::from_password(user, &connect.realm, password.as_bytes())
        }
    };
    let config = Config {
        frontend: connect.frontend,
        account: Account::new(user, &connect.realm, secret, pin),
        service: service.to_owned(),
        port,
        forwards,
        socks: connect.socks,
        command: connect.command,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let code = runtime.block_on(sluicegate_agent::connect(config, super::node::shutdown_signal()))?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// `USER@SERVICE[:PORT]`.
fn target(text: &str) -> Result<(&str, &str, Option<u16>)> {
    let Some((user, service)) = text.split_once('@') else {
        bail!("`{text}` names no user and service; write USER@SERVICE, such as alice@web");
    };
    let (service, port) = match service.split_once(':') {
        Some((service, port)) => (service, Some(port.parse().with_context(|| format!("`{port}` is no port"))?)),
        None => (service, None),
    };
    for (what, name) in [("user", user), ("service", service)] {
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
        assert_eq!(target("alice@web").unwrap(), ("alice", "web", None));
        assert_eq!(target("alice@ssh:22").unwrap(), ("alice", "ssh", Some(22)));
        for wrong in ["alice", "@web", "alice@", "alice@web:x", "a b@web"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
