//! The frontend's process: alone, or beside the gate of `up`. It opens its files and sockets, gives up every right, and
//! only then looks at what strangers send.

use std::{
    fs::{File, OpenOptions},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use sluicegate_admin::Api;
use sluicegate_frontend::{Frontend, Listen, Opened, Vault};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::{node::shutdown_signal, reload};
use crate::{
    config::{self, Plan, Role},
    process::{KEYS, Network, Parent, confine, keep},
};

/// Under which user the frontend runs, if it was started as root and the host has that user.
const USER: &str = "sluicegate-frontend";
/// The same of its key holder.
const KEYS_USER: &str = "sluicegate-keys";
/// Before a key holder that was killed is started again.
const KEYS_PAUSE: Duration = Duration::from_millis(200);
/// How long a frontend waits for the one before it to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks whether it has.
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// What `up` tells the process of its frontend: the gate that needs no token, because it runs in the same node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The gate's name.
    pub(super) gate: String,
    /// SHA-256 of the gate's certificate.
    pub(super) certificate: [u8; 32],
}

/// What that process says when it is ready: the feed, as the gate must know it. All of it is public.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Where the feed listens.
    pub(super) feed: std::net::SocketAddr,
    /// SHA-256 of the frontend's certificate.
    pub(super) certificate: [u8; 32],
    /// The key that signs its grants.
    pub(super) issuer: [u8; 32],
}

/// `frontend`: a node that is a frontend alone.
pub(super) fn run(file: &Path) -> Result<()> {
    let started = Instant::now();
    let plan = config::load(file, Role::Frontend)?;
    let (opened, _lock) = open(&plan)?;
    let socket = sluicegate_admin::bind_api(&plan.state.join("control.sock"))?;
    reload::remember(file, &plan.state)?;
    let metrics = plan.metrics.map(sluicegate_admin::bind_metrics).transpose()?;
    confine(USER, None, network(&plan))?;
    runtime()?.block_on(async {
        let frontend = opened.start().await.context("the frontend did not start")?;
        let audit = frontend.control().audit().cloned();
        let api = Api { frontend: Some(frontend.control()), audit, ..Api::default() };
        let served = serve(socket, metrics, &api)?;
        reload::on_hangup(file)?;
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        info!(took_ms = started.elapsed().as_millis() as u64, "ready");
        frontend.run(shutdown_signal()).await;
        served.iter().for_each(JoinHandle::abort);
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        Ok(())
    })
}

/// The frontend of `up`, started by it.
pub(super) fn child(file: &Path) -> Result<()> {
    let (mut parent, hello): (Parent, Hello) = Parent::line()?;
    let (_, plan) = config::plan(file, Some(Role::Up));
    let Some(plan) = plan else { bail!("{} was changed and is wrong now", file.display()) };
    let (opened, _lock) = open(&plan)?;
    let socket = sluicegate_admin::bind_api(&plan.frontend_socket())?;
    confine(USER, Some(&parent), network(&plan))?;
    runtime()?.block_on(async {
        let frontend = opened.start().await.context("the frontend did not start")?;
        let control = frontend.control();
        let feed = control.gate_admit(&hello.gate, hello.certificate)?;
        let audit = control.audit().cloned();
        let api = Api { frontend: Some(control), audit, is_beside: true, ..Api::default() };
        let served = serve(socket, None, &api)?;
        let (certificate, issuer) = (feed.certificate, feed.issuer.to_bytes());
        parent.ready(&Ready { feed: feed.feed, certificate, issuer })?;
        // An interrupt at the terminal is for both; the parent says when it has stopped the gate.
        let interrupted = tokio::spawn(shutdown_signal());
        frontend.run(parent.ended()).await;
        interrupted.abort();
        served.iter().for_each(JoinHandle::abort);
        Ok(())
    })
}

/// Keeps a key holder at the other end of the frontend's socket: one that is killed is replaced. The frontend itself has
/// given up the right to start one; this process has kept the rights to, and reads nothing from anybody.
pub(super) fn keep_key_holder(directory: &Path, realm: &str) -> Result<()> {
    keep(KEYS)?;
    loop {
        let mut command = Command::new("/proc/self/exe");
        let ended = command.arg("key-holder-child").arg(directory).arg(realm).status();
        let ended = ended.context("the key holder cannot be started")?;
        match ended.code() {
            // The frontend has gone.
            Some(0) => return Ok(()),
            Some(1) => bail!("the key holder ended; see above"),
            _ => warn!(%ended, "the key holder did not end by itself; another one takes its place"),
        }
        std::thread::sleep(KEYS_PAUSE);
    }
}

/// The key holder: answers the frontend at the other end of standard input until that ends.
pub(super) fn hold_keys(directory: &Path, realm: &str) -> Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("no standard input")?;
    let vault = Vault::open(directory, realm)?;
    confine(KEYS_USER, None, Network::AsOpened)?;
    vault.serve(socket.into()).context("the key holder ended")
}

/// Takes the state directory and opens what the frontend needs; both last as long as the process.
fn open(plan: &Plan) -> Result<(Opened, Flock<File>)> {
    sluicegate_keys::private_directory(&plan.state)?;
    let Some(config) = plan.frontend.clone() else { bail!("the configuration describes no frontend") };
    let lock = lock(&plan.state)?;
    Ok((Frontend::open(config).context("the frontend did not start")?, lock))
}

/// A frontend that speaks SIP over connections also makes some, and so does one that sends others its users.
fn network(plan: &Plan) -> Network {
    let dials = |config: &sluicegate_frontend::Config| {
        config.listen.iter().any(Listen::is_stream) || config.replicas.iter().any(|replica| replica.feed.is_some())
    };
    if plan.frontend.as_ref().is_some_and(dials) { Network::Dial } else { Network::AsOpened }
}

/// One frontend at a time on a state directory. One whose gate was killed takes a moment to end.
fn lock(state: &Path) -> Result<Flock<File>> {
    let path = state.join("frontend.lock");
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let end = Instant::now() + LOCK_PATIENCE;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, error)) if Instant::now() >= end => {
                return Err(error).with_context(|| format!("another frontend runs on {}", state.display()));
            }
            Err((file, _)) => file,
        };
        std::thread::sleep(LOCK_LOOK);
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Serves the API, and the metrics where they are wanted.
pub(super) fn serve(
    socket: std::os::unix::net::UnixListener,
    metrics: Option<std::net::TcpListener>,
    api: &Api,
) -> Result<Vec<JoinHandle<std::io::Result<()>>>> {
    let mut served = vec![tokio::spawn(sluicegate_admin::serve_api(socket, api.clone())?)];
    if let Some(metrics) = metrics {
        served.push(tokio::spawn(sluicegate_admin::serve_metrics(metrics, api.clone())?));
    }
    Ok(served)
}
