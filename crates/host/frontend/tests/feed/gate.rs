//! A gate as far as a frontend can tell: TLS over loopback, the real receiver of the feed, and grants opened on ports that
//! count up. It moves no packets.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use rustls::pki_types::ServerName;
use sluicegate_feed::{
    ActiveGrant, Decoder, EndCause, Event, FeedReceiver, FromGate, GrantDelta, JoinSecret, JoinToken, Selector, ToGate,
    encode,
    tls::{Identity, SERVER_NAME, client_config},
};
use sluicegate_grant::GrantId;
use sluicegate_wire::{Instant, UnixTime};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Far above what anything here takes; only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Gate {
    pub(crate) name: String,
    pub(crate) identity: Identity,
    receiver: FeedReceiver,
    stream: Option<TlsStream<TcpStream>>,
    decoder: Decoder<ToGate>,
    pub(crate) address: String,
    next_port: u16,
    /// Whether this connection has had its report of what is open.
    has_reported: bool,
    pub(crate) open: Vec<ActiveGrant>,
    pub(crate) services: Vec<String>,
    /// Where it dials from.
    pub(crate) from: IpAddr,
}

/// What a gate was told, apart from housekeeping.
#[derive(Debug)]
pub(crate) enum Told {
    Install,
    Revoke(Selector),
    Service(String),
    ServiceGone(String),
    UpToDate,
}

impl Gate {
    pub(crate) fn new(name: &str, token: &JoinToken) -> Self {
        Self {
            name: name.to_owned(),
            identity: Identity::generate(name).unwrap(),
            receiver: FeedReceiver::new(token.issuer.clone(), name, None),
            stream: None,
            decoder: Decoder::new(),
            address: "203.0.113.9".to_owned(),
            next_port: 20_000,
            has_reported: false,
            open: Vec::new(),
            services: Vec::new(),
            from: Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Dials and greets; with a secret, joins first. An error is the end of the connection before anything was said.
    pub(crate) async fn dial(&mut self, token: &JoinToken, secret: Option<JoinSecret>) -> Result<(), String> {
        self.dial_at(token.feed, token.certificate, secret).await
    }

    pub(crate) async fn dial_at(
        &mut self,
        feed: SocketAddr,
        certificate: [u8; 32],
        secret: Option<JoinSecret>,
    ) -> Result<(), String> {
        let config = client_config(&self.identity, certificate).unwrap();
        let socket = TcpSocket::new_v4().map_err(|error| error.to_string())?;
        socket.bind(SocketAddr::new(self.from, 0)).map_err(|error| error.to_string())?;
        let tcp = socket.connect(feed).await.map_err(|error| error.to_string())?;
        let name = ServerName::try_from(SERVER_NAME).unwrap();
        let tls = TlsConnector::from(config).connect(name, tcp).await.map_err(|error| error.to_string())?;
        self.stream = Some(tls);
        self.decoder = Decoder::new();
        self.has_reported = false;
        if let Some(secret) = secret {
            self.say(&FromGate::Join { secret, gate: self.name.clone() }).await?;
        }
        let hello = self.receiver.connect(now(), unix());
        self.say(&hello).await
    }

    pub(crate) async fn say(&mut self, message: &FromGate) -> Result<(), String> {
        let bytes = encode(message).unwrap();
        let stream = self.stream.as_mut().unwrap();
        stream.write_all(&bytes).await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())
    }

    async fn message(&mut self) -> Result<ToGate, String> {
        loop {
            if let Some(message) = self.decoder.poll().unwrap() {
                return Ok(message);
            }
            let read = self.stream.as_mut().unwrap().read(self.decoder.space());
            match timeout(PATIENCE, read).await.map_err(|_| "nothing came".to_owned())? {
                Ok(0) => return Err("closed".to_owned()),
                Ok(n) => self.decoder.advance(n),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The next thing that it is told, having done it: grants are opened and answered.
    pub(crate) async fn told(&mut self) -> Result<Vec<Told>, String> {
        loop {
            let message = self.message().await?;
            let mut told = Vec::new();
            for event in self.receiver.handle(now(), unix(), message).map_err(|error| error.to_string())? {
                match event {
                    Event::Install(install) => {
                        self.install(install.grant.id, &install).await?;
                        told.push(Told::Install);
                    }
                    Event::Revoke(selector) => {
                        self.revoke(&selector).await?;
                        told.push(Told::Revoke(selector));
                    }
                    Event::Service(service) => {
                        self.services.push(service.name.clone());
                        told.push(Told::Service(service.name));
                    }
                    Event::ServiceGone(name) => told.push(Told::ServiceGone(name)),
                    Event::UpToDate(_) => {
                        if !std::mem::replace(&mut self.has_reported, true) {
                            let grants = self.open.clone();
                            self.say(&FromGate::Active { grants, more: false }).await?;
                        }
                        told.push(Told::UpToDate);
                    }
                    Event::Reply(answer) => self.say(&answer).await?,
                    other => panic!("unexpected {other:?}"),
                }
            }
            if !told.is_empty() {
                return Ok(told);
            }
        }
    }

    /// Follows the feed until it is told such a thing.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Told) -> bool) {
        loop {
            if self.told().await.unwrap().iter().any(&wanted) {
                return;
            }
        }
    }

    async fn revoke(&mut self, selector: &Selector) -> Result<(), String> {
        let is_meant = |open: &ActiveGrant| selector.selects(&open.delta.grant, &open.delta.user, &open.delta.service);
        let (ended, open) = std::mem::take(&mut self.open).into_iter().partition(is_meant);
        self.open = open;
        let ended: Vec<ActiveGrant> = ended;
        for grant in ended {
            let id = grant.delta.grant.id;
            self.say(&FromGate::Ended { id, cause: EndCause::Revoked, bytes_used: 0 }).await?;
        }
        Ok(())
    }

    async fn install(&mut self, id: GrantId, delta: &GrantDelta) -> Result<(), String> {
        let known = self.open.iter().position(|open| open.delta.grant.id == id);
        let first = match known {
            Some(at) => self.open.remove(at).ports.0,
            None => self.next_port,
        };
        let ports = (first, first + delta.target_ports.1 - delta.target_ports.0);
        self.next_port = self.next_port.max(ports.1 + 1);
        let address = self.address.parse().unwrap();
        self.open.push(ActiveGrant { delta: delta.clone(), address, ports, bytes_used: 0, flows: 0 });
        self.say(&FromGate::Opened { id, address, ports }).await
    }

    pub(crate) fn hang_up(&mut self) {
        self.stream = None;
    }
}

fn now() -> Instant {
    Instant::from_secs(1)
}

fn unix() -> UnixTime {
    UnixTime(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs())
}
