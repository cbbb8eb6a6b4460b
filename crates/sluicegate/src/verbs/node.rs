//! `up`, `gate`, `agent --serve`: the daemons and how they find each other.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use sluicegate_admin::{Api, Beside};
use sluicegate_gate::{Ending, FeedAddress, Gate};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
    task::JoinHandle,
};
use tracing::{info, warn};

use super::{
    frontend::{self, Hello, Ready},
    reload,
};
use crate::{
    config::{self, Plan, Role},
    process::{Child, GATE, keep},
};

/// Runs the gate of `file`, and with [`Role::Up`] its frontend beside it, until it is told to stop; with `confirm`, only for
/// so long unless somebody confirms.
pub(super) fn run(file: &Path, role: Role, confirm: Option<Duration>, log: &[String]) -> Result<()> {
    let plan = config::load(file, role)?;
    up(file, plan, confirm, log)
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
fn up(file: &Path, mut plan: Plan, confirm: Option<Duration>, log: &[String]) -> Result<()> {
    let started = Instant::now();
    sluicegate_keys::private_directory(&plan.state)?;
    let Some(mut gate) = plan.gate.take() else { bail!("the configuration describes no gate") };
    sluicegate_gate::prepare(&gate).context("the gate did not start, and nothing was opened")?;
    gate.tunnel = sluicegate_gate::bind(&gate)?;
    let beside = match plan.frontend {
        Some(_) => Some(start_frontend(file, &mut gate, log)?),
        None => None,
    };
    let socket = sluicegate_admin::bind_api(&plan.state.join("control.sock"))?;
    reload::remember(file, &plan.state)?;
    let metrics = plan.metrics.map(sluicegate_admin::bind_metrics).transpose()?;
    let audit = plan.audit.as_ref().map(sluicegate_store::audit::Files::open).transpose()?;
    keep(GATE)?;
    let audit = audit.map(sluicegate_store::audit::Files::start).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let mut gate = sluicegate_gate::start(gate).await.context("the gate did not start, and nothing was opened")?;
        let frontend = beside.as_ref().map(|_| Beside::at(&plan.frontend_socket()));
        let confirmed = confirm.map(|_| Arc::new(Notify::new()));
        let api = Api {
            gate: Some(gate.control()),
            beside: frontend,
            audit: audit.clone(),
            confirmed: confirmed.clone(),
            ..Api::default()
        };
        let served = frontend::serve(socket, metrics, &api)?;
        reload::on_hangup(file)?;
        gate.ready().await;
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        info!(took_ms = started.elapsed().as_millis() as u64, "ready");
        let result = run_gate(gate, beside.as_ref(), confirm.zip(confirmed)).await;
        served.iter().for_each(JoinHandle::abort);
        result
    });
    drop(beside);
    audit.iter().for_each(sluicegate_store::audit::Audit::flush);
    result
}

/// Why a gate stops.
enum Stopped {
    Asked,
    FrontendLost,
    Unconfirmed(Duration),
}

/// Runs the gate until the process is asked to end, the frontend has ended, or nobody has confirmed it in time.
async fn run_gate(gate: Gate, frontend: Option<&Child>, confirm: Option<(Duration, Arc<Notify>)>) -> Result<()> {
    let ended = frontend.map(Child::ended).transpose()?;
    let mut stopped = Stopped::Asked;
    let stop = async {
        stopped = tokio::select! {
            () = shutdown_signal() => Stopped::Asked,
            () = async { if let Some(ended) = ended { ended.await } else { std::future::pending().await } } => Stopped::FrontendLost,
            wait = unconfirmed(confirm) => Stopped::Unconfirmed(wait),
        };
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        if matches!(stopped, Stopped::Unconfirmed(_)) { Ending::Open } else { Ending::KeepClosed }
    };
    gate.run(stop).await.context("the gate stopped")?;
    match stopped {
        Stopped::Asked => Ok(()),
        Stopped::FrontendLost => {
            bail!("the frontend's process ended, and the gate was stopped with it; see above")
        }
        Stopped::Unconfirmed(wait) => bail!(
            "nobody confirmed within {} s: the interfaces are open again, as before; correct the file, and call `sluicegate confirm` next time",
            wait.as_secs()
        ),
    }
}

/// Resolves when nobody has confirmed in time.
async fn unconfirmed(confirm: Option<(Duration, Arc<Notify>)>) -> Duration {
    let Some((wait, confirmed)) = confirm else { return std::future::pending().await };
    warn!(seconds = wait.as_secs(), "this ends by itself unless `sluicegate confirm` is called");
    if tokio::time::timeout(wait, confirmed.notified()).await.is_err() {
        return wait;
    }
    info!("confirmed");
    std::future::pending().await
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
