//! The frontends that have this one's users: each is sent them as a file that it alone can open, at once when something
//! changes, and again and again in between, so that it knows that nothing has.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::{ClientConfig, pki_types::ServerName};
use sluicegate_api::ReplicaStatus;
use sluicegate_feed::tls::{SERVER_NAME, sealed_client_config};
use sluicegate_wire::UnixTime;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    catalog::{Catalog, EditError},
    config::ReplicaSite,
    control::{Control, ControlError},
    holder::IssuedFile,
};

/// How long all of one sending may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Changes that come together are sent together.
const GATHER: Duration = Duration::from_millis(100);
/// So long after the last time a replica is sent what it has already: it hears that it has everything, and has the next
/// epoch's keys long before that begins.
const INTERVAL: Duration = Duration::from_secs(300);
/// One that did not take it is asked again after this, and after twice as long each time, up to a maximum.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Longest refusal that is read.
const REFUSAL_LEN_MAX: usize = 1_024;

/// The replicas of this frontend, and what is known of each.
pub(crate) struct Replicas {
    sites: Vec<ReplicaSite>,
    known: Mutex<Vec<ReplicaStatus>>,
    /// Counts changes of users, services and keys.
    changes: watch::Sender<u64>,
}

/// Why a replica did not take what it was sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it does not answer")]
    Late,
    #[error("it refused: {0}")]
    Refused(String),
    #[error("what answers there has not opened what it was sent: is that the frontend with this key?")]
    Unopened,
    #[error("{0}")]
    Issue(#[from] ControlError),
    #[error("no TLS: {0}")]
    Tls(String),
}

impl Catalog {
    /// What this replica gets now: its agents' keys, and all users, groups and stored services.
    pub(crate) fn issue(&self, now: UnixTime, replica: [u8; 32]) -> Result<IssuedFile, EditError> {
        Ok(self.holder().issue(now, replica, self.directory().table()?)?)
    }
}

impl Replicas {
    pub(crate) fn new(sites: &[ReplicaSite]) -> Self {
        let status =
            |site: &ReplicaSite| ReplicaStatus { name: site.name.clone(), feed: site.feed, ..ReplicaStatus::default() };
        let known = Mutex::new(sites.iter().map(status).collect());
        Self { sites: sites.to_vec(), known, changes: watch::Sender::new(0) }
    }

    /// Users, services or keys have changed.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    pub(crate) fn statuses(&self) -> Vec<ReplicaStatus> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn alarms(&self, now: UnixTime) -> impl Iterator<Item = String> {
        self.statuses().into_iter().filter_map(move |ReplicaStatus { name, taken_at, problem, .. }| {
            let problem = problem?;
            let since = taken_at.map_or_else(
                || "has not got users and keys since this start".to_owned(),
                |at| format!("got users and keys {} minutes ago, and not since", now.0.saturating_sub(at) / 60),
            );
            Some(format!("the frontend {name} {since}: {problem}; who was removed meanwhile can sign in there"))
        })
    }

    /// The key of a replica.
    pub(crate) fn key_of(&self, name: &str) -> Option<[u8; 32]> {
        self.sites.iter().find(|site| site.name == name).map(|site| site.key)
    }

    fn note(&self, index: usize, change: impl FnOnce(&mut ReplicaStatus)) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index).map(change);
    }

    /// Where each is that is sent what it gets.
    pub(crate) fn sent_to(&self) -> Vec<(usize, SocketAddr)> {
        self.sites.iter().enumerate().filter_map(|(index, site)| Some((index, site.feed?))).collect()
    }
}

/// Sends one replica what it gets, for as long as the frontend runs.
pub(crate) async fn send_on(control: Control, index: usize, feed: SocketAddr) {
    let Ok(tls) = sealed_client_config() else { return };
    let mut changes = control.inner.replicas.changes.subscribe();
    let mut pause = RETRY;
    loop {
        changes.borrow_and_update();
        let sent = send_now(&control, index, feed, &tls).await;
        let replicas = &control.inner.replicas;
        let wait = match sent {
            Ok(number) => {
                let at = control.inner.clock.unix().0;
                replicas.note(index, |known| {
                    if known.number.is_none() || known.problem.is_some() {
                        tracing::info!(replica = known.name, number, "has users and keys");
                    }
                    (known.number, known.taken_at, known.problem) = (Some(number), Some(at), None);
                });
                pause = RETRY;
                INTERVAL
            }
            Err(error) => {
                replicas.note(index, |known| {
                    let problem = error.to_string();
                    if known.problem.as_ref() != Some(&problem) {
                        tracing::warn!(replica = known.name, %feed, problem, "has not got users and keys");
                    }
                    known.problem = Some(problem);
                });
                let next = (pause * 2).min(RETRY_MAX);
                std::mem::replace(&mut pause, next)
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = sleep(wait) => {}
        }
        sleep(GATHER).await;
    }
}

async fn send_now(
    control: &Control,
    index: usize,
    feed: SocketAddr,
    tls: &Arc<ClientConfig>,
) -> Result<u64, SendError> {
    let issuing = control.clone();
    let issued = tokio::task::spawn_blocking(move || issuing.issue_at(index)).await.map_err(io::Error::other)??;
    let sent = timeout(SEND_TIMEOUT, send(feed, tls, &issued)).await.map_err(|_| SendError::Late)?;
    sent.map(|()| issued.number)
}

/// The length, 4 bytes, and the file; the answer is 0 and what only its owner can say of it, or 1 and why not.
async fn send(feed: SocketAddr, tls: &Arc<ClientConfig>, issued: &IssuedFile) -> Result<(), SendError> {
    let stream = connect(feed).await?;
    let name = ServerName::try_from(SERVER_NAME).map_err(|error| SendError::Tls(error.to_string()))?;
    let mut stream: TlsStream<TcpStream> = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
    let len = u32::try_from(issued.text.len()).map_err(io::Error::other)?;
    stream.write_all(&len.to_be_bytes()).await?;
    // A refusal may come, and the connection end, before all of it was read.
    let written = async {
        stream.write_all(issued.text.as_bytes()).await?;
        stream.flush().await
    };
    let written = written.await;
    let mut answer = Vec::new();
    let read = (&mut stream).take(REFUSAL_LEN_MAX as u64).read_to_end(&mut answer).await;
    match answer.split_first() {
        Some((0, receipt)) if *receipt == issued.receipt => Ok(()),
        Some((0, _)) => Err(SendError::Unopened),
        Some((_, why)) => Err(SendError::Refused(String::from_utf8_lossy(why).escape_debug().to_string())),
        None => {
            written?;
            read?;
            Err(SendError::Io(io::ErrorKind::UnexpectedEof.into()))
        }
    }
}

/// A process that has given up its rights may have a socket of this kind, and of no other.
async fn connect(feed: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(feed), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    let stream = TcpSocket::from_std_stream(socket.into()).connect(feed).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Control {
    /// A file of keys and users for this replica.
    ///
    /// # Errors
    /// If there is no such replica, or the key holder or the store do not do their part.
    pub fn keys_issue(&self, replica: &str) -> Result<IssuedFile, ControlError> {
        let key = self.inner.replicas.key_of(replica).ok_or_else(|| ControlError::NoReplica(replica.to_owned()))?;
        Ok(self.inner.catalog.issue(self.inner.clock.unix(), key)?)
    }

    fn issue_at(&self, index: usize) -> Result<IssuedFile, ControlError> {
        let site = self.inner.replicas.sites.get(index).ok_or(ControlError::Busy)?;
        Ok(self.inner.catalog.issue(self.inner.clock.unix(), site.key)?)
    }
}
