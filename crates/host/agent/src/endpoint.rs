//! A user agent's association with a frontend: over UDP, or over TLS where no UDP passes.

use std::{collections::VecDeque, io, net::SocketAddr, time::Duration};

use sluicegate_sip::{
    message::{Message, Method, Start, Transport},
    transaction::StartError,
    ua::{Content, Event, Failure, LegId, Parties, Settings, UserAgent},
};
use sluicegate_wire::Instant;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::UdpSocket, time};
use tracing::{debug, warn};

use crate::{
    account::{SignIn, random},
    fallback::{SipStream, Trust},
};

/// Requests under way at once.
const REQUESTS_MAX: usize = 64;
/// Answers remembered at once by who only signs in.
const ANSWERS_MAX: usize = 256;
/// After so long without an answer a person is told that nothing comes; the request goes on being repeated.
const SILENCE_TOLD: Duration = Duration::from_secs(4);
/// Largest SIP datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Silence.
    #[error(
        "the frontend at {0} does not answer; check the address, and that UDP reaches it. Where a network lets no UDP pass, give \
         the certificates of the site (--certificate), for SIP and data over TLS"
    )]
    Silent(SocketAddr),
    /// Neither over UDP nor over TLS.
    #[error("no frontend answers over UDP, and over TLS neither: {0}")]
    Unreached(String),
    /// The socket failed.
    #[error("cannot talk to the frontend at {0}: {1}")]
    Socket(SocketAddr, io::Error),
    /// Too many requests under way.
    #[error("more than {REQUESTS_MAX} requests are under way")]
    Busy,
    /// A name that SIP cannot carry.
    #[error("cannot be asked of the frontend: {0}")]
    Request(#[from] StartError),
}

/// By which messages come and go.
#[derive(Debug)]
enum Way {
    /// Connected to the frontend.
    Udp(UdpSocket),
    Tls(SipStream),
}

impl Way {
    async fn send(&self, message: Vec<u8>) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.send(&message).await.map(drop),
            Self::Tls(stream) => {
                stream.send(message);
                Ok(())
            }
        }
    }

    async fn receive(&mut self, datagram: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.recv(datagram).await,
            Self::Tls(stream) => {
                let message = stream.receive().await?;
                let len = message.len().min(datagram.len());
                datagram[..len].copy_from_slice(&message[..len]);
                Ok(len)
            }
        }
    }
}

/// A user agent with a way to a frontend.
#[derive(Debug)]
pub(crate) struct Endpoint {
    ua: UserAgent<SignIn>,
    way: Way,
    /// By which datagrams leave, if not by the one that the routes say.
    interface: Option<String>,
    /// There are others, so that nobody waits long for this one.
    has_others: bool,
    started: time::Instant,
    /// What happened while somebody waited for something else.
    events: VecDeque<Event>,
    datagram: Vec<u8>,
}

impl Endpoint {
    /// Binds to `local` and talks to `frontend` only: the kernel drops datagrams of everyone else, or gives them to the
    /// endpoint of another frontend there. `answers_max`: how many answers are remembered, each for half a minute.
    pub(crate) async fn open(local: SocketAddr, frontend: SocketAddr, answers_max: usize) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&local.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        socket.connect(frontend).await?;
        Self::new(socket, None, frontend, (answers_max, false))
    }

    /// The same from any port; datagrams leave by `interface`, whatever the routes say. If the frontend `has_others` beside
    /// it, one that does not answer soon is taken for silent.
    pub(crate) async fn open_on(interface: Option<&str>, frontend: SocketAddr, has_others: bool) -> io::Result<Self> {
        let socket = connected(interface, frontend).await?;
        Self::new(socket, interface.map(str::to_owned), frontend, (ANSWERS_MAX, has_others))
    }

    fn new(
        socket: UdpSocket,
        interface: Option<String>,
        frontend: SocketAddr,
        (answers_max, has_others): (usize, bool),
    ) -> io::Result<Self> {
        let settings = Settings {
            transport: Transport::Udp,
            local: socket.local_addr()?,
            target: frontend,
            requests_max: REQUESTS_MAX,
            answers_max,
            patience: has_others.then_some(SILENCE_TOLD),
            has_short_t2: true,
        };
        Ok(Self {
            ua: UserAgent::new(settings, random()),
            way: Way::Udp(socket),
            interface,
            has_others,
            started: time::Instant::now(),
            events: VecDeque::new(),
            datagram: vec![0; DATAGRAM_BYTES_MAX],
        })
    }

    /// Follows this host's address and interface of now; whether they are others than they were, and there is a way to the
    /// frontend at all.
    pub(crate) async fn follow(&mut self, interface: Option<String>) -> bool {
        let frontend = self.frontend();
        let Ok(socket) = connected(interface.as_deref(), frontend).await else { return false };
        let Ok(local) = socket.local_addr() else { return false };
        if self.interface == interface && local.ip() == self.local().ip() {
            return false;
        }
        if self.is_fallen_back() {
            // The connection was from the old address; another is made where that one is found to have ended.
            self.interface = interface;
            return false;
        }
        (self.way, self.interface) = (Way::Udp(socket), interface);
        self.ua.fail_over(self.now(), Transport::Udp, local, frontend);
        true
    }

    /// Goes on with another frontend, by `interface`.
    pub(crate) async fn fail_over(&mut self, interface: Option<&str>, frontend: SocketAddr) -> io::Result<()> {
        let socket = connected(interface, frontend).await?;
        let local = socket.local_addr()?;
        (self.way, self.interface) = (Way::Udp(socket), interface.map(str::to_owned));
        self.ua.fail_over(self.now(), Transport::Udp, local, frontend);
        Ok(())
    }

    /// Goes on over TLS.
    pub(crate) async fn fall_back(
        &mut self,
        interface: Option<&str>,
        frontend: SocketAddr,
        trust: &Trust,
    ) -> io::Result<()> {
        let stream = SipStream::connect(interface, frontend, trust).await?;
        let local = stream.local;
        (self.way, self.interface) = (Way::Tls(stream), interface.map(str::to_owned));
        self.ua.fail_over(self.now(), Transport::Tls, local, frontend);
        Ok(())
    }

    /// Whether messages go over TLS.
    pub(crate) const fn is_fallen_back(&self) -> bool {
        matches!(self.way, Way::Tls(_))
    }

    /// The local address, as the Via and Contact of requests name it.
    pub(crate) const fn local(&self) -> SocketAddr {
        self.ua.local()
    }

    /// The frontend's address, as it was dialled.
    pub(crate) const fn frontend(&self) -> SocketAddr {
        self.ua.target()
    }

    /// How a leg signs in.
    pub(crate) fn sign_in(&mut self, leg: LegId) -> Option<&mut SignIn> {
        self.ua.credentials(leg)
    }

    /// Begins a leg, and does not wait for the answer.
    pub(crate) fn start(
        &mut self,
        method: Method<'static>,
        parties: Parties<'_>,
        content: Content,
        sign_in: Option<SignIn>,
    ) -> Result<LegId, ExchangeError> {
        self.ua.start(self.now(), method, parties, content, sign_in).map_err(refused)
    }

    /// Sends the first request of a leg anew, and does not wait for the answer.
    pub(crate) fn again(&mut self, leg: LegId, content: Content) -> Result<(), ExchangeError> {
        self.ua.again(self.now(), leg, content).map_err(refused)
    }

    /// Ends a call, and does not wait for the answer.
    pub(crate) fn end(&mut self, leg: LegId, content: Content) -> Result<(), ExchangeError> {
        self.ua.end(self.now(), leg, content).map_err(refused)
    }

    /// Answers an INVITE.
    pub(crate) fn respond(&mut self, leg: LegId, code: u16, contact: &str, content: &Content) {
        self.ua.respond(self.now(), leg, code, contact, content);
    }

    /// Nothing of this leg is of interest any more.
    pub(crate) fn forget(&mut self, leg: LegId) {
        self.ua.forget(leg);
    }

    /// Waits for what becomes of a leg's request. What else happens meanwhile waits for [`Endpoint::event`].
    pub(crate) async fn outcome(&mut self, leg: LegId) -> Result<Event, ExchangeError> {
        let failed = |frontend| move |error| ExchangeError::Socket(frontend, error);
        let mut tell_at = (!self.has_others).then(|| time::Instant::now() + SILENCE_TOLD);
        loop {
            if tell_at.is_some_and(|at| time::Instant::now() >= at) {
                tell_at = None;
                warn!(
                    frontend = %self.frontend(),
                    "the frontend has not answered for {} s; trying on: check the address, and that UDP reaches it",
                    SILENCE_TOLD.as_secs()
                );
            }
            self.flush().await;
            while let Some(event) = self.ua.poll_event() {
                match event {
                    Event::Failed { leg: failed, failure: Failure::Silent } if failed == leg => {
                        return Err(ExchangeError::Silent(self.frontend()));
                    }
                    Event::Answered { leg: about, .. }
                    | Event::Failed { leg: about, .. }
                    | Event::Ended { leg: about }
                        if about == leg =>
                    {
                        return Ok(event);
                    }
                    other => self.events.push_back(other),
                }
            }
            self.turn(tell_at).await.map_err(failed(self.frontend()))?;
        }
    }

    /// What happens next, or `None` when `until` has passed. Nothing is lost if the future is dropped.
    pub(crate) async fn event(&mut self, until: Option<time::Instant>) -> io::Result<Option<Event>> {
        loop {
            self.flush().await;
            if let Some(event) = self.events.pop_front().or_else(|| self.ua.poll_event()) {
                return Ok(Some(event));
            }
            if until.is_some_and(|until| time::Instant::now() >= until) {
                return Ok(None);
            }
            self.turn(until).await?;
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Sends what is to be sent.
    pub(crate) async fn flush(&mut self) {
        while let Some(message) = self.ua.poll_output() {
            // A refused datagram (ICMP from a frontend that restarts) is repeated by its timer like a lost one.
            if let Err(error) = self.way.send(message.bytes).await {
                debug!(frontend = %self.frontend(), %error, "datagram not sent");
            }
        }
    }

    /// Waits for a datagram, a timer, or `until`, and handles it.
    async fn turn(&mut self, until: Option<time::Instant>) -> io::Result<()> {
        let timer = self.ua.poll_timeout().map(|at| self.started + Duration::from_nanos(at.as_nanos()));
        let wake =
            [timer, until].into_iter().flatten().min().unwrap_or_else(|| time::Instant::now() + Duration::from_secs(1));
        match time::timeout_at(wake, self.way.receive(&mut self.datagram)).await {
            Ok(Ok(len)) => {
                let datagram = self.datagram.get(..len).unwrap_or_default();
                self.ua.handle_input(Instant::ZERO + self.started.elapsed(), self.ua.target(), datagram);
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                debug!(frontend = %self.frontend(), "nobody listens at the frontend's address");
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
        self.ua.handle_timeout(self.now());
        Ok(())
    }
}

fn refused(error: StartError) -> ExchangeError {
    match error {
        StartError::Full(_) => ExchangeError::Busy,
        other => ExchangeError::Request(other),
    }
}

/// The reason phrase of a response.
pub(crate) fn reason_phrase(response: &[u8]) -> String {
    match Message::parse(response).as_ref().map(Message::start) {
        Ok(Start::Response { reason, .. }) => String::from_utf8_lossy(reason).into_owned(),
        _ => String::new(),
    }
}

/// Any address and port of this host from which `remote` can be reached.
pub(crate) fn any(remote: SocketAddr) -> SocketAddr {
    if remote.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() }
}

/// A socket that hears `frontend` only.
pub(crate) async fn connected(interface: Option<&str>, frontend: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(any(frontend)).await?;
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
