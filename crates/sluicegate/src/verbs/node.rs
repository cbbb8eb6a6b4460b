//! `up`, `gate`, `agent --serve`: the daemons and how they find each other.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use sluicegate_admin::{Api, Beside};
use sluicegate_gate::{Ending, FeedAddress, Gate};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};
use tracing::info;

use super::frontend::{self, Hello, Ready};
use crate::{
    config::{self, Plan, Role},
    process::{Child, GATE, keep},
};

/// Runs the gate of `file`, and with [`Role::Up`] its frontend beside it, until it is told to stop.
pub(super) fn run(file: &Path, role: Role, log: &[String]) -> Result<()> {
    let plan = config::load(file, role)?;
    up(file, plan, log)
}

/// Resolves when the process is asked to end.
pub(crate) async fn shutdown_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Starts what needs a process of its own, then gives up what a gate does not use.
fn up(file: &Path, mut plan: Plan, log: &[String]) -> Result<()> {
    let started = Instant::now();
    sluicegate_store::keys::private_directory(&plan.state)?;
    let Some(mut gate) = plan.gate.take() else { bail!("the configuration describes no gate") };
    sluicegate_gate::prepare(&gate).context("the gate did not start, and nothing was opened")?;
    let beside = match plan.frontend {
        Some(_) => Some(start_frontend(file, &mut gate, log)?),
        None => None,
    };
    let socket = sluicegate_admin::bind_api(&plan.state.join("control.sock"))?;
    let metrics = plan.metrics.map(sluicegate_admin::bind_metrics).transpose()?;
    keep(GATE)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let mut gate = sluicegate_gate::start(gate).await.context("the gate did not start, and nothing was opened")?;
        let frontend = beside.as_ref().map(|_| Beside::at(&plan.frontend_socket()));
        let served =
            frontend::serve(socket, metrics, &Api { gate: Some(gate.control()), beside: frontend, ..Api::default() })?;
        gate.ready().await;
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        info!(took_ms = started.elapsed().as_millis() as u64, "ready");
        let result = run_gate(gate, beside.as_ref()).await;
        served.iter().for_each(JoinHandle::abort);
        result
    });
    drop(beside);
    result
}

/// Runs the gate until the process is asked to end, or the frontend has ended.
async fn run_gate(gate: Gate, frontend: Option<&Child>) -> Result<()> {
    let ended = frontend.map(Child::ended).transpose()?;
    let mut lost = false;
    let stop = async {
        tokio::select! {
            () = shutdown_signal() => {}
            () = async { if let Some(ended) = ended { ended.await } else { std::future::pending().await } } => lost = true,
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        Ending::KeepClosed
    };
    gate.run(stop).await.context("the gate stopped")?;
    if lost {
        bail!("the frontend's process ended, and the gate was stopped with it; see above");
    }
    Ok(())
}

/// Starts the frontend, and tells the gate of it: the two need no token, because each is told the other's key here.
fn start_frontend(file: &Path, gate: &mut sluicegate_gate::Config, log: &[String]) -> Result<Child> {
    let identity = sluicegate_gate::identity(&gate.state_dir, &gate.name)?;
    let hello = Hello { gate: gate.name.clone(), certificate: identity.fingerprint() };
    let mut frontend = Child::start("frontend-child", file, log, &hello)?;
    let Ready { feed, certificate, issuer } = frontend.ready()?;
    gate.feeds.push(FeedAddress { address: feed, certificate_pin: certificate, issuer });
    if !gate.issuers.is_empty() {
        // [[issuer]] is about other frontends: this one is the same file's, and the same node's.
        gate.issuers.push(sluicegate_gate::Issuer::any(issuer));
    }
    Ok(frontend)
}

/// `agent --serve`.
pub(super) fn serve(file: &Path) -> Result<()> {
    let plan = config::load(file, Role::Agent)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve_agent(plan))
}

async fn serve_agent(plan: Plan) -> Result<()> {
    let Some(agent) = plan.agent else { bail!("the configuration describes no agent") };
    let config = agent.read_secret()?;
    let ready = || {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    };
    sluicegate_agent::serve::serve(config, ready, shutdown_signal()).await?;
    // Time for the last answers to leave.
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(())
}
