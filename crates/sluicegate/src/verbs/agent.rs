//! `agent tun` and `agent run`: captured destinations, for this host or for one command.

use std::process::ExitCode;

use anyhow::Result;
use sluicegate_agent::capture;
use tokio::signal::unix::{SignalKind, signal};

use super::node::shutdown_signal;
use crate::{cli::AgentAction, config};

/// Runs `agent tun` or `agent run` to its end.
pub(crate) fn run(action: AgentAction) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let code = match action {
        AgentAction::Tun(config) => {
            let config = config::capture::load(&config.file)?;
            let ready = || {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
            };
            runtime.block_on(capture::tun(config, ready, shutdown_signal()))?;
            0
        }
        AgentAction::Run { file, command } => {
            let config = config::capture::load(&file)?;
            runtime.block_on(async { capture::run(config, &command, terminated()).await })?
        }
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Resolves on SIGTERM alone: an interrupt at the terminal is for the command.
async fn terminated() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            terminate.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}

/// The process that becomes the command of `agent run`. Returns only if that fails.
pub(crate) fn child(agent: i32, command: &[String]) -> ExitCode {
    ExitCode::from(u8::try_from(capture::become_child(agent, command)).unwrap_or(1))
}
