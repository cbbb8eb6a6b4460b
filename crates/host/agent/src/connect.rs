//! The client side: `sluicegate connect`.

use std::{io, net::SocketAddr};

use sluicegate_grant::DataMode;
use sluicegate_policy::{PortProtocol, PortRange};
use tokio::{net::TcpListener, task::JoinSet};
use tracing::info;

use crate::{
    account::Account,
    command,
    fallback::Fallback,
    forward::{Bound, Forward},
    frontends::Frontends,
    seal,
    session::Session,
    socks::{self, Names},
};

/// What to reach, and how programs get at it.
#[derive(Debug, Clone)]
pub struct Config {
    /// The site's frontends.
    pub frontends: Frontends,
    /// What to do where no UDP passes, if anything.
    pub fallback: Option<Fallback>,
    /// Who signs in.
    pub account: Account,
    /// The service's name.
    pub service: String,
    /// The TCP port that a command connects to.
    pub port: Option<u16>,
    /// Port forwards.
    pub forwards: Vec<Forward>,
    /// Where to offer SOCKS5.
    pub socks: Option<SocketAddr>,
    /// What to open for programs that send from here themselves, by their address alone.
    pub opens: Vec<PortRange>,
    /// A command to run; its end ends the session.
    pub command: Vec<String>,
}

/// Why `connect` ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nothing to do.
    #[error("nothing to do: give a forward (-L 8080:80), --socks 127.0.0.1:1080, --open esp, or a command after --")]
    Nothing,
    /// A command without a port to connect to.
    #[error("name the service's port that the command connects to: USER@SERVICE:PORT, such as alice@ssh:22")]
    NoPort,
    /// The frontend or the gate refused.
    #[error("{0}")]
    Refused(String),
    /// A local address cannot be used.
    #[error("cannot listen at {0}: {1}; is it in use already?")]
    Listen(SocketAddr, io::Error),
    /// No UDP socket.
    #[error("cannot open a UDP socket: {0}")]
    Socket(io::Error),
    /// The command cannot be started.
    #[error("cannot run {0}: {1}")]
    Command(String, io::Error),
}

/// Signs in, offers what `config` says, and stays until the command ends or `shutdown` resolves; then says goodbye.
/// Returns the command's exit code, 0 without one.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(config: Config, shutdown: impl Future<Output = ()>) -> Result<i32, ConnectError> {
    if config.forwards.is_empty() && config.socks.is_none() && config.command.is_empty() && config.opens.is_empty() {
        return Err(ConnectError::Nothing);
    }
    let start = |proves| {
        let (frontends, account) = (config.frontends.clone(), config.account.clone());
        Session::start(None, frontends, account, config.fallback.clone(), (&config.service, proves))
    };
    let (session, keeper) = start(DataMode::Mac).await.map_err(ConnectError::Socket)?;
    // What other programs send carries no proof.
    let (plain, plain_keeper) = start(DataMode::Pinhole).await.map_err(ConnectError::Socket)?;
    let result = tokio::select! {
        result = serve(&config, &session, &plain) => result,
        () = shutdown => Ok(0),
    };
    drop((session, plain));
    let _ = plain_keeper.await;
    // Waits for the goodbyes, which are bounded.
    let _ = keeper.await;
    result
}

async fn serve(config: &Config, session: &Session, plain: &Session) -> Result<i32, ConnectError> {
    // Nothing is signed in for that nobody could use.
    let mut bound = Vec::new();
    for forward in &config.forwards {
        bound.push((forward.listen, Bound::to(forward).await.map_err(|e| ConnectError::Listen(forward.listen, e))?));
    }
    let proxy = match config.socks {
        Some(listen) => {
            let listener = TcpListener::bind(listen).await.map_err(|error| ConnectError::Listen(listen, error))?;
            Some((listen, listener))
        }
        None => None,
    };
    // Open at once what is known to be needed, so that a wrong password shows now.
    for forward in &config.forwards {
        session.reach(forward.protocol, forward.service_port).await.map_err(ConnectError::Refused)?;
    }
    for range in &config.opens {
        let reach = plain.open(*range).await.map_err(ConnectError::Refused)?;
        seal::prove(&reach).await.map_err(|error| ConnectError::Refused(error.to_string()))?;
        let (service, gate) = (&config.service, reach.address);
        match range.protocol.has_ports() {
            true => info!(service, %range, %gate, "programs may send there from here"),
            false => info!(service, %range, gate = %gate.ip(), "programs may send there from here"),
        }
    }
    let mut listeners = JoinSet::new();
    for (listen, forward) in bound {
        let session = session.clone();
        listeners.spawn(async move { (listen, forward.run(session).await) });
    }
    if let Some((listen, listener)) = proxy {
        let (session, names) = (session.clone(), Names::new(&config.service, &config.account.realm));
        listeners.spawn(async move { (listen, socks::run(listener, session, names).await) });
    }
    if config.command.is_empty() {
        info!(service = config.service, "ready; end with Ctrl-C");
        return listen_until_failure(&mut listeners).await.map(|()| 0);
    }
    let port = config.port.ok_or(ConnectError::NoPort)?;
    let reach = session.reach(PortProtocol::Tcp, port).await.map_err(ConnectError::Refused)?;
    seal::prove(&reach).await.map_err(|error| ConnectError::Refused(error.to_string()))?;
    let _standing = session.stand();
    tokio::select! {
        status = command::run(&config.command, reach.address) => {
            let name = config.command.first().cloned().unwrap_or_default();
            status.map(|status| status.code().unwrap_or(1)).map_err(|error| ConnectError::Command(name, error))
        }
        failure = listen_until_failure(&mut listeners), if !listeners.is_empty() => failure.map(|()| 0),
    }
}

async fn listen_until_failure(listeners: &mut JoinSet<(SocketAddr, io::Result<()>)>) -> Result<(), ConnectError> {
    match listeners.join_next().await {
        Some(Ok((listen, Err(error)))) => Err(ConnectError::Listen(listen, error)),
        Some(_) => Ok(()),
        // Only what is open.
        None => std::future::pending().await,
    }
}
