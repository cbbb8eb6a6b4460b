//! `gate-join`, `gate-close`, `gate-open`: what is done to a gate that does not run.

use std::{io::Read, path::Path};

use anyhow::{Result, bail};

use super::control::Node;
use crate::{
    cli::GateJoin,
    config::{self, Role},
    out, secret,
};

/// Longest join token file.
const TOKEN_BYTES_MAX: u64 = 4096;

/// `gate-join`: prints a token at the frontend, uses it at the gate.
pub(super) fn join(join: &GateJoin) -> Result<()> {
    let Some(path) = &join.token_file else {
        out::line(Node::of(&join.node.config)?.ask(&sluicegate_api::JOIN_TOKEN.ask(&()))?.token);
        return Ok(());
    };
    let mut token = zeroize::Zeroizing::new(String::new());
    if path.as_os_str() == "-" {
        std::io::stdin().take(TOKEN_BYTES_MAX).read_to_string(&mut token)?;
    } else {
        token = secret::first_line(path)?;
    }
    let plan = config::load(&join.node.config, Role::Gate)?;
    let Some(gate) = plan.gate else { bail!("{} describes no gate", join.node.config.display()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let feed = runtime.block_on(sluicegate_gate::join(token.trim(), &gate.name, &gate.state_dir))?;
    out::line(format_args!(
        "joined the frontend at {}; `sluicegate gate` uses it from its next start on\nits key, for [[issuer]]: {}",
        feed.address,
        hex::encode(feed.issuer)
    ));
    Ok(())
}

/// `gate-close`: the kernel forwards nothing in or out of the gate's interfaces, which need not exist yet.
pub(super) fn close(file: &Path) -> Result<()> {
    let [outside, inside] = config::interfaces(file)?;
    sluicegate_gate::close(&outside, &inside)?;
    out::line(format_args!("the kernel forwards nothing that comes in or goes out by {outside} or {inside}"));
    Ok(())
}

/// `gate-open`: the interfaces are as they were before there was a gate.
pub(super) fn open(file: &Path) -> Result<()> {
    let plan = config::load(file, Role::Gate)?;
    let Some(gate) = plan.gate else { bail!("{} describes no gate", file.display()) };
    sluicegate_gate::release(&gate)?;
    out::line(format_args!("{} and {} are open, as without a gate", gate.outside, gate.inside));
    Ok(())
}
