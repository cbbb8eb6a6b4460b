//! One UDP association with a frontend: requests out, responses and requests in, retransmissions by the tables of
//! `sluicegate-sip`.

use std::{collections::VecDeque, io, net::SocketAddr, time::Duration};

use sluicegate_sip::{
    message::Message,
    transaction::{ClientTransactions, Due, Received, Reply, Role, ServerTransactions, Token},
    write::Response,
};
use sluicegate_wire::Instant;
use tokio::{net::UdpSocket, time};
use tracing::{debug, warn};

use crate::account::{random_bits, random_token};

/// Requests under way at once.
const CLIENT_TRANSACTIONS_MAX: usize = 64;
/// Answers remembered at once, each for half a minute: 250 calls a second, with their ends.
const SERVER_TRANSACTIONS_MAX: usize = 16_384;
/// When to try again, for whom there is no room.
const RETRY_AFTER_S: u32 = 4;
/// After so long without an answer a person is told that nothing comes; the request goes on being repeated.
const SILENCE_TOLD: Duration = Duration::from_secs(4);
/// Requests that wait for their user.
const WAITING_MAX: usize = 1024;
/// Largest SIP datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A request that came in, with the transaction to answer it through (none for ACK).
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) bytes: Vec<u8>,
    pub(crate) token: Option<Token>,
}

/// What comes from a frontend.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request.
    Request(Incoming),
    /// The final response to a request of ours, or `None` after a timeout.
    Answer(Token, Option<Vec<u8>>),
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Silence.
    #[error("the frontend at {0} does not answer; check the address, and that UDP reaches it")]
    Silent(SocketAddr),
    /// The socket failed.
    #[error("cannot talk to the frontend at {0}: {1}")]
    Socket(SocketAddr, io::Error),
    /// Too many requests under way.
    #[error("more than {CLIENT_TRANSACTIONS_MAX} requests are under way")]
    Busy,
}

/// A UDP socket connected to a frontend.
#[derive(Debug)]
pub(crate) struct Endpoint {
    socket: UdpSocket,
    /// By which datagrams leave, if not by the one that the routes say.
    interface: Option<String>,
    local: SocketAddr,
    frontend: SocketAddr,
    /// There are others, so that nobody waits long for this one.
    has_others: bool,
    started: time::Instant,
    clients: ClientTransactions,
    servers: ServerTransactions,
    waiting: VecDeque<Incoming>,
    /// Final responses, or `None` for a timeout, until [`Endpoint::exchange`] takes them.
    answers: VecDeque<(Token, Option<Vec<u8>>)>,
    /// ACKs of 2xx responses, to be sent again when one of those comes again.
    acks: VecDeque<(Token, Vec<u8>)>,
    datagram: Vec<u8>,
}

impl Endpoint {
    /// Binds to `local` (port 0: any) and talks to `frontend` only: the kernel drops datagrams of everyone else.
    pub(crate) async fn open(local: Option<SocketAddr>, frontend: SocketAddr) -> io::Result<Self> {
        Self::open_on(None, local, frontend).await
    }

    /// As [`Endpoint::open`]; datagrams leave by `interface`, whatever the routes say.
    pub(crate) async fn open_on(
        interface: Option<&str>,
        local: Option<SocketAddr>,
        frontend: SocketAddr,
    ) -> io::Result<Self> {
        let socket = connected(interface, local, frontend).await?;
        Ok(Self {
            local: socket.local_addr()?,
            socket,
            interface: interface.map(str::to_owned),
            frontend,
            has_others: false,
            started: time::Instant::now(),
            clients: ClientTransactions::new(CLIENT_TRANSACTIONS_MAX, random_bits()).with_short_t2(),
            servers: ServerTransactions::new(SERVER_TRANSACTIONS_MAX, random_bits()),
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            acks: VecDeque::new(),
            datagram: vec![0; DATAGRAM_BYTES_MAX],
        })
    }

    /// The same frontend from this host's address and interface of now, if those are others than they were; `None` if not, or
    /// there is no way to the frontend at all.
    pub(crate) async fn moved(&self, interface: Option<String>) -> Option<Self> {
        let is_same = self.interface == interface;
        let interface = interface.as_deref();
        let source = connected(interface, None, self.frontend).await.ok()?.local_addr().ok()?;
        if is_same && source.ip() == self.local.ip() {
            return None;
        }
        let moved = Self::open_on(interface, None, self.frontend).await.ok()?;
        Some(moved.beside_others(self.has_others))
    }

    /// Whether there are other frontends: then one that does not answer soon is taken for silent.
    pub(crate) fn beside_others(mut self, has_others: bool) -> Self {
        self.has_others = has_others;
        self
    }

    /// The local address, as the Via and Contact of requests name it.
    pub(crate) const fn local(&self) -> SocketAddr {
        self.local
    }

    /// The frontend's address, as it was dialled.
    pub(crate) const fn frontend(&self) -> SocketAddr {
        self.frontend
    }

    /// Sends a request, again while no answer comes, and does not wait for one.
    pub(crate) async fn tell(&mut self, request: &[u8]) -> Result<Token, ExchangeError> {
        let failed = |error| ExchangeError::Socket(self.frontend, error);
        let message = Message::parse(request).map_err(|error| failed(io::Error::other(error.to_string())))?;
        let token = self.clients.start(self.now(), &message, self.frontend).map_err(|_| ExchangeError::Busy)?;
        self.send(request).await;
        Ok(token)
    }

    /// Sends a request and waits for its final response. Requests that come in meanwhile wait for
    /// [`Endpoint::incoming`]. A 2xx to an INVITE is to be acknowledged with [`Endpoint::acknowledge`].
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<(Token, Vec<u8>), ExchangeError> {
        let token = self.tell(request).await?;
        let mut tell_at = Some(time::Instant::now() + SILENCE_TOLD);
        loop {
            if tell_at.is_some_and(|at| time::Instant::now() >= at) {
                tell_at = None;
                if self.has_others {
                    return Err(ExchangeError::Silent(self.frontend));
                }
                warn!(
                    frontend = %self.frontend,
                    "the frontend has not answered for {} s; trying on: check the address, and that UDP reaches it",
                    SILENCE_TOLD.as_secs()
                );
            }
            if let Some(position) = self.answers.iter().position(|(answered, _)| *answered == token) {
                let answer = self.answers.remove(position).and_then(|(_, answer)| answer);
                return answer.map(|answer| (token, answer)).ok_or(ExchangeError::Silent(self.frontend));
            }
            self.turn(tell_at).await.map_err(|error| ExchangeError::Socket(self.frontend, error))?;
        }
    }

    /// Sends the ACK of a 2xx, now and whenever the 2xx comes again.
    pub(crate) async fn acknowledge(&mut self, token: Token, ack: Vec<u8>) {
        self.send(&ack).await;
        if self.acks.len() >= CLIENT_TRANSACTIONS_MAX {
            self.acks.pop_front();
        }
        self.acks.push_back((token, ack));
    }

    async fn send(&self, bytes: &[u8]) {
        // A refused datagram (ICMP from a frontend that restarts) is repeated by its timer like a lost one.
        if let Err(error) = self.socket.send(bytes).await {
            debug!(frontend = %self.frontend, %error, "datagram not sent");
        }
    }

    /// The next request or final response from the frontend, or `None` when `until` has passed. Nothing is lost if the
    /// future is dropped.
    pub(crate) async fn event(&mut self, until: Option<time::Instant>) -> io::Result<Option<Event>> {
        loop {
            if let Some((token, answer)) = self.answers.pop_front() {
                return Ok(Some(Event::Answer(token, answer)));
            }
            if let Some(request) = self.waiting.pop_front() {
                return Ok(Some(Event::Request(request)));
            }
            if until.is_some_and(|until| time::Instant::now() >= until) {
                return Ok(None);
            }
            self.turn(until).await?;
        }
    }

    /// Answers a request; the response is repeated as its transaction demands.
    pub(crate) async fn respond(&mut self, token: Token, code: u16, response: &[u8]) {
        if self.servers.respond(self.now(), token, code, response) {
            self.send(response).await;
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Waits for a datagram, a timer, or `until`, and handles it.
    async fn turn(&mut self, until: Option<time::Instant>) -> io::Result<()> {
        let timer = [self.clients.poll_timeout(), self.servers.poll_timeout()].into_iter().flatten().min();
        let timer = timer.map(|at| self.started + Duration::from_nanos(at.as_nanos()));
        let wake =
            [timer, until].into_iter().flatten().min().unwrap_or_else(|| time::Instant::now() + Duration::from_secs(1));
        match time::timeout_at(wake, self.socket.recv(&mut self.datagram)).await {
            Ok(Ok(len)) => self.receive(len).await,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                debug!(frontend = %self.frontend, "nobody listens at the frontend's address");
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
        self.timers().await;
        Ok(())
    }

    async fn receive(&mut self, len: usize) {
        let bytes = self.datagram.get(..len).unwrap_or_default().to_vec();
        let Ok(message) = Message::parse(&bytes) else { return };
        let now = self.now();
        if message.status().is_some() {
            match self.clients.receive(now, &message, None) {
                Reply::Deliver(token) => match self.acks.iter().find(|(acknowledged, _)| *acknowledged == token) {
                    Some((_, ack)) => self.send(ack).await,
                    None => self.deliver(token, &message, &bytes),
                },
                Reply::DeliverAndAck(token) => {
                    self.deliver(token, &message, &bytes);
                    self.resend_request(token).await;
                }
                Reply::Ack(token) => self.resend_request(token).await,
                Reply::Absorbed | Reply::Unmatched => {}
            }
            return;
        }
        let Ok(fields) = message.essentials() else { return };
        match self.servers.receive(now, &message, &fields) {
            Received::New => {
                let is_ack = message.method() == Some(sluicegate_sip::message::Method::Ack);
                let token = if is_ack {
                    None
                } else {
                    let opened = self.servers.open(now, &message, &fields, self.frontend, Role::UserAgent);
                    let Ok(token) = opened else {
                        let (mut response, tag) = (Vec::new(), random_token());
                        let headers = Response::to(&message, 503).to_tag(tag.as_bytes()).begin(&mut response);
                        headers.header_args("Retry-After", format_args!("{RETRY_AFTER_S}")).finish();
                        return self.send(&response).await;
                    };
                    Some(token)
                };
                if self.waiting.len() < WAITING_MAX {
                    self.waiting.push_back(Incoming { bytes, token });
                }
            }
            Received::Resend(token) => {
                if let Some((response, _)) = self.servers.response(token) {
                    let response = response.to_vec();
                    self.send(&response).await;
                }
            }
            Received::Absorbed | Received::Acknowledged(_) => {}
        }
    }

    fn deliver(&mut self, token: Token, message: &Message<'_>, bytes: &[u8]) {
        if message.status().is_some_and(|code| code >= 200) {
            self.finish(token, Some(bytes.to_vec()));
        }
    }

    fn finish(&mut self, token: Token, answer: Option<Vec<u8>>) {
        if self.answers.len() >= CLIENT_TRANSACTIONS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((token, answer));
    }

    async fn resend_request(&mut self, token: Token) {
        if let Some((request, _)) = self.clients.request(token) {
            let request = request.to_vec();
            self.send(&request).await;
        }
    }

    async fn timers(&mut self) {
        let now = self.now();
        let (mut due, mut silent) = (Vec::new(), Vec::new());
        while let Some(event) = self.clients.poll(now) {
            match event {
                Due::Transmit { bytes, .. } => due.push(bytes.to_vec()),
                Due::TimedOut(token) => silent.push(token),
            }
        }
        for token in silent {
            self.finish(token, None);
        }
        while let Some(event) = self.servers.poll(now) {
            if let Due::Transmit { bytes, .. } = event {
                due.push(bytes.to_vec());
            }
        }
        for bytes in due {
            self.send(&bytes).await;
        }
    }
}

/// A socket that hears `frontend` only.
pub(crate) async fn connected(
    interface: Option<&str>,
    local: Option<SocketAddr>,
    frontend: SocketAddr,
) -> io::Result<UdpSocket> {
    let any: SocketAddr = if frontend.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(local.unwrap_or(any)).await?;
    leave_by(&socket, interface)?;
    socket.connect(frontend).await?;
    Ok(socket)
}

/// Has datagrams leave by an interface, whatever the routes say.
pub(crate) fn leave_by(socket: &UdpSocket, interface: Option<&str>) -> io::Result<()> {
    match interface {
        Some(interface) => socket2::SockRef::from(socket).bind_device(Some(interface.as_bytes())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_finds_no_room_is_told_when_to_come_back() {
        let frontend = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let local = Some(([127, 0, 0, 1], 0).into());
        let mut endpoint = Endpoint::open(local, frontend.local_addr().unwrap()).await.unwrap();
        frontend.connect(endpoint.local()).await.unwrap();
        let soon = || Some(time::Instant::now() + Duration::from_secs(5));
        for number in 0..SERVER_TRANSACTIONS_MAX {
            frontend.send(&options(number)).await.unwrap();
            assert!(matches!(endpoint.event(soon()).await.unwrap(), Some(Event::Request(_))), "{number}");
        }
        frontend.send(&options(SERVER_TRANSACTIONS_MAX)).await.unwrap();
        let mut answer = vec![0; 2_000];
        let refused = async {
            tokio::select! {
                len = frontend.recv(&mut answer) => len.unwrap(),
                event = endpoint.event(soon()) => panic!("{event:?}"),
            }
        };
        let len = refused.await;
        let response = Message::parse(&answer[..len]).unwrap();
        assert_eq!(response.status(), Some(503));
        assert!(response.header(sluicegate_sip::message::HeaderName::RetryAfter).is_some());
    }

    fn options(number: usize) -> Vec<u8> {
        format!(
            "OPTIONS sip:desk@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1;branch=z9hG4bK{number}\r\n\
             Max-Forwards: 70\r\nFrom: <sip:a@example.net>;tag=1\r\nTo: <sip:desk@example.net>\r\n\
             Call-ID: {number}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
        )
        .into_bytes()
    }
}
