//! `up`, `gate`, `frontend`, `agent --serve`, `gate-join`: the daemons and how they find each other.

use std::{
    io::Read,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use hyper::Method;
use sluicegate_admin::Api;
use sluicegate_frontend::Frontend;
use sluicegate_gate::{Ending, Gate};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tracing::info;

use super::control::Node;
use crate::{
    cli::GateJoin,
    config::{self, Plan, Role},
    out, secret,
};

/// Longest join token file.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Runs the node that `file` describes until it is told to stop.
pub(crate) fn run(file: &Path, role: Role) -> Result<()> {
    let plan = config::load(file, role)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match role {
            Role::Agent => serve(plan).await,
            _ => up(plan).await,
        }
    })
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

async fn up(plan: Plan) -> Result<()> {
    let started = Instant::now();
    sluicegate_store::keys::private_directory(&plan.state)?;
    let frontend = match plan.frontend {
        Some(config) => Some(Frontend::start(config).await.context("the frontend did not start")?),
        None => None,
    };
    let mut gate = match plan.gate {
        Some(config) => Some(start_gate(config, frontend.as_ref()).await?),
        None => None,
    };
    let api = Api {
        gate: gate.as_ref().map(Gate::control),
        frontend: frontend.as_ref().map(Frontend::control),
        catalog: None,
    };
    let socket = sluicegate_admin::serve_api(&plan.state.join("control.sock"), api.clone()).await?;
    let socket = tokio::spawn(socket);
    let metrics = match plan.metrics {
        Some(address) => Some(tokio::spawn(sluicegate_admin::serve_metrics(address, api).await?)),
        None => None,
    };
    if let Some(gate) = &mut gate {
        gate.ready().await;
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    info!(took_ms = started.elapsed().as_millis() as u64, "ready");

    let (stop, stopped) = watch::channel(());
    let signals = tokio::spawn(async move {
        shutdown_signal().await;
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        drop(stop);
    });
    let (gate_stop, frontend_stop) = (ended(stopped.clone()), ended(stopped));
    let result = match (gate, frontend) {
        (Some(gate), Some(frontend)) => {
            let gate = gate.run(async {
                gate_stop.await;
                Ending::KeepClosed
            });
            tokio::pin!(gate);
            tokio::select! {
                result = &mut gate => result,
                () = frontend.run(frontend_stop) => gate.await,
            }
        }
        (Some(gate), None) => {
            gate.run(async {
                gate_stop.await;
                Ending::KeepClosed
            })
            .await
        }
        (None, Some(frontend)) => {
            frontend.run(frontend_stop).await;
            Ok(())
        }
        (None, None) => Ok(()),
    };
    signals.abort();
    socket.abort();
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    result.context("the gate stopped")
}

/// Resolves when the sender is dropped.
async fn ended(mut stopped: watch::Receiver<()>) {
    while stopped.changed().await.is_ok() {}
}

/// Starts the gate; one in the same process as its frontend joins it by itself.
async fn start_gate(mut config: sluicegate_gate::Config, frontend: Option<&Frontend>) -> Result<Gate> {
    if let Some(frontend) = frontend {
        let control = frontend.control();
        let token = control.join_token()?;
        let joined = sluicegate_gate::joined(&config.state_dir)?;
        let known = joined.iter().any(|feed| feed.address == token.feed && feed.certificate_pin == token.certificate);
        if !known {
            sluicegate_gate::join(&token.to_text(), &config.name, &config.state_dir)
                .await
                .context("the gate could not join its own frontend")?;
        }
        if !config.issuers.is_empty() {
            // [[issuer]] is about other frontends: this one is the same file's, and the same process.
            config.issuers.push(sluicegate_gate::Issuer::any(token.issuer.to_bytes()));
        }
    }
    sluicegate_gate::start(config).await.context("the gate did not start, and nothing was opened")
}

/// `gate-join`: prints a token at the frontend, uses it at the gate.
pub(crate) fn gate_join(join: &GateJoin) -> Result<()> {
    let Some(path) = &join.token_file else {
        let answer = Node::of(&join.node.config)?.call(Method::POST, "/v1/join-token", None)?;
        let token =
            answer.get("token").and_then(serde_json::Value::as_str).context("the node's answer has no token")?;
        out::line(format_args!("{token}"));
        return Ok(());
    };
    let mut token = zeroize::Zeroizing::new(String::new());
    if path.as_os_str() == "-" {
        std::io::stdin().take(TOKEN_BYTES_MAX).read_to_string(&mut token)?;
    } else {
        *token = (*secret::from_file(path)?).clone();
    }
    let plan = config::load(&join.node.config, Role::Gate)?;
    let Some(gate) = plan.gate else { bail!("{} describes no gate", join.node.config.display()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let feed = runtime.block_on(sluicegate_gate::join(token.trim(), &gate.name, &gate.state_dir))?;
    out::line(format_args!(
        "joined the frontend at {}; `sluicegate gate` uses it from its next start on\nits key, for [[issuer]]: {}",
        feed.address,
        feed.issuer.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    ));
    Ok(())
}

async fn serve(plan: Plan) -> Result<()> {
    let Some(agent) = plan.agent else { bail!("the configuration describes no agent") };
    let password = secret::from_file(&agent.password_file)?;
    let config = agent.with_password(&password);
    let ready = || {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    };
    sluicegate_agent::serve::serve(config, ready, shutdown_signal()).await?;
    // Time for the last answers to leave.
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(())
}
