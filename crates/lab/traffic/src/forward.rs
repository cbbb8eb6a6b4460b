//! A forwarding proxy in front of another server: what senders give it over UDP goes on over one connection, and back.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, ErrorKind},
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_sip::{
    message::{HeaderName, Message, Method, Rport, Start, Via},
    stream::{Framer, Item},
    write::{ForwardRequest, ForwardResponse, Response, ViaLine},
};

use crate::{
    sockets::wait_ready,
    stream::{Connecting, Stream},
};
use sluicegate_site::{During, LabError, clock::unix_ns, node::SIP_PORT, worker::Context};

/// Datagrams that are read before anything is sent.
const BATCH: usize = 64;
const DATAGRAM_MAX: usize = 65_535;
/// Bytes that wait for the server to read them; what comes beyond that is lost, as in a socket's buffer.
const UNSENT_MAX: usize = 1 << 20;
const TICK: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_millis(20);
/// How long a server is left alone that says 503 and not for how long (RFC 3261 section 21.5.4 has it guess).
const PAUSE: Duration = Duration::from_secs(1);
/// The To tag of its own answers: their ACKs go nowhere.
const OWN_TAG: &[u8] = b"held";

/// Specification of the worker `forward`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardSpec {
    /// Where senders reach it, over UDP.
    pub listen: SocketAddr,
    /// The server.
    pub to: SocketAddr,
    /// How to connect to it.
    pub way: Connecting,
    /// How long to forward.
    pub seconds: u32,
}

/// What a second was like, as [`forward`] tells of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardedSecond {
    /// When it ended, nanoseconds since 1970.
    pub at_ns: u64,
    /// INVITEs that begin a call, as they came from senders.
    pub invites: u64,
    /// Of these, those that were answered here, since the server is left alone.
    pub held: u64,
    /// BYEs.
    pub byes: u64,
    /// Answers of the server to INVITEs, and to BYEs, by status.
    pub invite_answers: BTreeMap<u16, u64>,
    /// The same of BYEs.
    pub bye_answers: BTreeMap<u16, u64>,
    /// Messages that were lost because the server did not read.
    pub lost: u64,
}

/// A stateless proxy (RFC 3261 section 16.11) that leaves a server alone for as long as its 503 says in `Retry-After`: until
/// then it answers new INVITEs with 503 itself. Every other answer goes to whoever asked. Senders repeat what they sent; over a
/// connection a proxy with transactions would not, and what the server drops would be lost.
struct Forwarder<'a> {
    spec: &'a ForwardSpec,
    socket: UdpSocket,
    tls: Option<Arc<ClientConfig>>,
    stream: Stream,
    framer: Framer,
    /// Its end of the connection, for Via.
    own: SocketAddr,
    paused_until: Option<Instant>,
    second: ForwardedSecond,
    /// To be sent over the connection at the end of a turn, and what is being written.
    pending: Vec<u8>,
    scratch: Vec<u8>,
}

/// Runs the worker `forward`: prints `{"event":"second",...}` with the fields of [`ForwardedSecond`] for each.
pub(crate) fn forward(spec: &ForwardSpec, context: &Context) -> Result<(), LabError> {
    let tls = spec.way.tls().during(|| "preparing TLS".to_owned())?;
    let mut forwarder = Forwarder::open(spec, tls).during(|| format!("connecting {} to {}", spec.listen, spec.to))?;
    context.ready();
    let (began, mut next) = (Instant::now(), TICK);
    let mut connections = 1;
    while began.elapsed() < Duration::from_secs(spec.seconds.into()) && !context.stopped() {
        connections += u64::from(forwarder.turn().during(|| "forwarding".to_owned())?);
        if began.elapsed() >= next {
            next += TICK;
            forwarder.second.at_ns = unix_ns();
            context.say("second", &std::mem::take(&mut forwarder.second));
        }
    }
    context.result(&json!({ "connections": connections }));
    Ok(())
}

impl<'a> Forwarder<'a> {
    fn open(spec: &'a ForwardSpec, tls: Option<Arc<ClientConfig>>) -> io::Result<Self> {
        if !spec.way.over.is_stream() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a server is reached over TCP or TLS here"));
        }
        let socket = UdpSocket::bind(spec.listen)?;
        socket.set_nonblocking(true)?;
        let stream = Stream::open(SocketAddr::new(spec.listen.ip(), 0), spec.to, tls.as_ref())?;
        let own = stream.socket.local_addr()?;
        let (pending, scratch) = (Vec::new(), Vec::new());
        let second = ForwardedSecond::default();
        Ok(Self { spec, socket, tls, stream, framer: Framer::new(), own, paused_until: None, second, pending, scratch })
    }

    /// Waits for something and passes it on. Whether the connection had to be made anew.
    fn turn(&mut self) -> io::Result<bool> {
        let ends = [(self.socket.as_fd(), false), (self.stream.socket.as_fd(), self.stream.has_unsent())];
        let ready = wait_ready(ends.into_iter(), WAIT_MAX)?;
        if ready.first().is_some_and(|ready| *ready) {
            self.take_datagrams();
        }
        self.take_answers();
        if !self.pending.is_empty() {
            self.stream.send(&self.pending);
            self.pending.clear();
        } else if self.stream.has_unsent() {
            self.stream.push();
        }
        let is_over = self.stream.is_over();
        if is_over {
            std::thread::sleep(WAIT_MAX);
            self.stream = Stream::open(SocketAddr::new(self.spec.listen.ip(), 0), self.spec.to, self.tls.as_ref())?;
            (self.own, self.framer) = (self.stream.socket.local_addr()?, Framer::new());
        }
        Ok(is_over)
    }

    fn take_datagrams(&mut self) {
        let mut bytes = [0; DATAGRAM_MAX];
        for _ in 0..BATCH {
            // Errors are about answers to senders that are gone.
            let Ok((len, from)) = self.socket.recv_from(&mut bytes) else { return };
            let Some(Ok(message)) = bytes.get(..len).map(Message::parse) else { continue };
            if let Some(method) = message.method() {
                self.on_request(&message, method, from);
            }
        }
    }

    fn on_request(&mut self, request: &Message<'_>, method: Method<'_>, from: SocketAddr) {
        let to_tag = request.to().ok().and_then(|to| to.tag);
        match method {
            Method::Ack if to_tag == Some(OWN_TAG) => return,
            Method::Invite if to_tag.is_none() => {
                self.second.invites += 1;
                let left = self.paused_until.map(|until| until.saturating_duration_since(Instant::now()));
                if let Some(left) = left.filter(|left| !left.is_zero()) {
                    self.second.held += 1;
                    return self.refuse(request, from, left);
                }
            }
            Method::Bye => self.second.byes += 1,
            _ => {}
        }
        if self.stream.unsent() + self.pending.len() > UNSENT_MAX {
            self.second.lost += 1;
            return;
        }
        let Some(branch) = branch_of(request, from) else { return };
        let via = ViaLine {
            transport: self.spec.way.over.transport(),
            sent_by: self.own,
            branch: branch.as_bytes(),
            rport: true,
        };
        let written = ForwardRequest {
            request,
            source: from,
            via,
            uri: None,
            record_routes: &[],
            remove_routes: 0,
            remove: &[],
            credentials_of: None,
            add: &[],
            body: None,
        }
        .write(&mut self.scratch);
        if written.is_ok() {
            self.pending.extend_from_slice(&self.scratch);
        }
    }

    /// 503 in the place of the server that is left alone.
    fn refuse(&mut self, request: &Message<'_>, from: SocketAddr, left: Duration) {
        let after = left.as_secs_f64().ceil() as u64;
        let answer = Response::to(request, 503).source(from).to_tag(OWN_TAG);
        answer.begin(&mut self.scratch).header_args("Retry-After", format_args!("{after}")).finish();
        // Who does not take it asks again.
        let _ = self.socket.send_to(&self.scratch, from);
    }

    fn take_answers(&mut self) {
        let Self { stream, framer, socket, paused_until, second, scratch, .. } = self;
        stream.read(&mut |mut bytes| {
            while let Ok(Some((used, item))) = framer.next(bytes) {
                if let Item::Message(message) = item
                    && let Ok(message) = Message::parse(message)
                    && let Start::Response { code, .. } = message.start()
                {
                    note(second, &message, code);
                    if code == 503 {
                        let until = Instant::now() + retry_after(&message).unwrap_or(PAUSE);
                        *paused_until = Some(paused_until.map_or(until, |before| before.max(until)));
                    }
                    pass_back(socket, &message, scratch);
                }
                bytes = bytes.get(used..).unwrap_or_default();
            }
        });
    }
}

fn note(second: &mut ForwardedSecond, response: &Message<'_>, code: u16) {
    let answers = match response.cseq().map(|cseq| cseq.method) {
        Ok(Method::Invite) => &mut second.invite_answers,
        Ok(Method::Bye) => &mut second.bye_answers,
        _ => return,
    };
    *answers.entry(code).or_insert(0) += 1;
}

/// To where the next Via says that it came from.
fn pass_back(socket: &UdpSocket, response: &Message<'_>, scratch: &mut Vec<u8>) {
    let written = ForwardResponse { response, remove: &[], add: &[], body: None }.write(scratch);
    let via = response.headers(HeaderName::Via).nth(1).and_then(|via| Via::parse(via).ok());
    if let (Ok(()), Some(to)) = (written, via.and_then(|via| came_from(&via))) {
        let _ = socket.send_to(scratch, to);
    }
}

/// RFC 3261 section 18.2.2, RFC 3581 section 4.
fn came_from(via: &Via<'_>) -> Option<SocketAddr> {
    let received = via.received.and_then(|address| std::str::from_utf8(address).ok()?.parse().ok());
    let port = match via.rport {
        Rport::Port(port) => port,
        Rport::Absent | Rport::Asked => via.port.unwrap_or(SIP_PORT),
    };
    Some(SocketAddr::new(received.or_else(|| via.host.address())?, port))
}

fn retry_after(response: &Message<'_>) -> Option<Duration> {
    let value = response.header(HeaderName::RetryAfter)?;
    let digits = value.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok().map(Duration::from_secs)
}

/// The same for all that belongs together: what is sent again, its ACK and its CANCEL (RFC 3261 section 16.11).
fn branch_of(request: &Message<'_>, from: SocketAddr) -> Option<String> {
    let via = request.top_via().ok()?;
    let mut hasher = DefaultHasher::new();
    (via.branch?, from).hash(&mut hasher);
    Some(format!("z9hG4bK{:016x}", hasher.finish()))
}
