use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_sip::{
    digest::{Answer, ha1, strongest},
    message::{HeaderName, Message, Transport},
    sdp::Session,
    write::{Party, Request, ViaLine, ack_for_final},
};
use sluicegate_wire::Instant;

use sluicegate_site::clock::Random;

/// First interval between retransmissions (RFC 3261 section 17.1.1.1).
const T1: Duration = Duration::from_millis(500);
/// Longest interval between retransmissions of a BYE (RFC 3261 section 17.1.2.1).
const T2: Duration = Duration::from_secs(4);
/// Challenges that are answered before giving up: the first, and some for nonces that were stale.
const CHALLENGES_MAX: u32 = 4;

/// Who calls whom; shared by all calls of one user.
#[derive(Debug)]
pub(super) struct Caller {
    pub user: String,
    pub password: String,
    /// `sip:user@realm`
    pub address: String,
    /// `sip:service@realm`
    pub service: String,
    pub media_port: u16,
    /// A UDP port of the service to ask for instead of offering audio; 0: audio.
    pub service_port: u16,
    /// How long to wait for each answer before giving up.
    pub patience: Duration,
}

impl Caller {
    /// The line of the session description that says what to open.
    fn media_line(&self) -> String {
        match self.service_port {
            0 => format!("m=audio {} RTP/AVP 0\r\na=sendrecv", self.media_port),
            port => format!("m=application {} UDP sluicegate\r\na=service-ports:{port}", self.media_port),
        }
    }
}

/// Where a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// An INVITE is out.
    Inviting,
    /// 200 came and was acknowledged.
    Established,
    /// A BYE is out.
    Ending,
    /// It was established and has ended.
    Ended,
    /// The front end said no, with this status.
    Refused(u16),
    /// No answer came in time.
    TimedOut,
}

/// One call from its first INVITE to the answer of its BYE: the client side of RFC 3261 over UDP, as a phone does it.
///
/// After every call of [`Dialog::on_response`], [`Dialog::on_timeout`] and [`Dialog::bye`], send what
/// [`Dialog::transmit`] gives.
#[derive(Debug)]
pub(super) struct Dialog {
    caller: Arc<Caller>,
    local: SocketAddr,
    call_id: String,
    from_tag: String,
    to_tag: Option<Vec<u8>>,
    /// Request-URI and routes of requests inside the dialog.
    target: Vec<u8>,
    routes: Vec<Vec<u8>>,
    cseq: u32,
    challenges: u32,
    random: Random,
    state: State,
    /// The request that waits for an answer.
    request: Vec<u8>,
    /// When to send it again, and how long to wait then; `None` once a provisional answer came.
    again: Option<(Instant, Duration)>,
    give_up: Instant,
    /// The last ACK, for answers that come again.
    ack: Vec<u8>,
    out: VecDeque<Vec<u8>>,
    started: Instant,
    established: Option<Instant>,
    media: Option<SocketAddr>,
    authorised: bool,
}

impl Dialog {
    /// Begins a call: the first INVITE, without credentials, is ready to be sent.
    pub(super) fn new(now: Instant, caller: Arc<Caller>, local: SocketAddr, call_id: String, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let from_tag = format!("{:x}", random.next());
        let target = caller.service.clone().into_bytes();
        let mut dialog = Self {
            caller,
            local,
            call_id,
            from_tag,
            to_tag: None,
            target,
            routes: Vec::new(),
            cseq: 0,
            challenges: 0,
            random,
            state: State::Inviting,
            request: Vec::new(),
            again: None,
            give_up: now,
            ack: Vec::new(),
            out: VecDeque::new(),
            started: now,
            established: None,
            media: None,
            authorised: false,
        };
        dialog.invite(now, None);
        dialog
    }

    /// Where it stands.
    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// Time from the first INVITE to the 200; `None` before.
    pub(super) fn setup_time(&self) -> Option<Duration> {
        self.established.map(|at| at.since(self.started))
    }

    /// The gate's address and port for the media, from the 200's session description.
    pub(super) const fn media(&self) -> Option<SocketAddr> {
        self.media
    }

    /// The authorised INVITE, while it is the last one sent.
    pub(super) fn authorised_invite(&self) -> Option<&[u8]> {
        (self.authorised && self.state == State::Inviting).then_some(&self.request)
    }

    /// The next message to send.
    pub(super) fn transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Takes in a response with this call's Call-ID.
    pub(super) fn on_response(&mut self, now: Instant, response: &Message<'_>) {
        let (Some(status), Ok(cseq)) = (response.status(), response.cseq()) else { return };
        if cseq.number != self.cseq {
            // An answer to an earlier INVITE came again: its ACK was lost.
            if status >= 300 && cseq.number + 1 == self.cseq && !self.ack.is_empty() {
                self.out.push_back(self.ack.clone());
            }
            return;
        }
        match (self.state, status) {
            (State::Inviting | State::Ending, 100..=199) => self.again = None,
            (State::Inviting, 200..=299) => self.on_success(now, response),
            (State::Inviting, 401 | 407) if self.challenges < CHALLENGES_MAX => self.on_challenge(now, response),
            (State::Inviting, _) => {
                self.acknowledge(response);
                self.state = State::Refused(status);
                self.again = None;
            }
            (State::Established, 200..=299) => self.out.push_back(self.ack.clone()),
            (State::Ending, _) => {
                self.state = State::Ended;
                self.again = None;
            }
            _ => {}
        }
    }

    /// Sends again what was not answered, or gives up.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        if !matches!(self.state, State::Inviting | State::Ending) {
            return;
        }
        if now >= self.give_up {
            self.state = State::TimedOut;
            self.again = None;
        } else if let Some((at, interval)) = self.again.filter(|(at, _)| now >= *at) {
            let longest = if self.state == State::Ending { T2 } else { Duration::MAX };
            let next = interval.saturating_mul(2).min(longest);
            self.again = Some((at + next, next));
            self.out.push_back(self.request.clone());
        }
    }

    /// Ends an established call.
    pub(super) fn bye(&mut self, now: Instant) {
        if self.state != State::Established {
            return;
        }
        self.state = State::Ending;
        self.cseq += 1;
        let mut message = Vec::new();
        self.begin(b"BYE", &mut message, |request, out| request.begin(out).finish());
        self.send_request(now, message);
    }

    fn invite(&mut self, now: Instant, authorization: Option<(HeaderName, Vec<u8>)>) {
        self.cseq += 1;
        self.authorised = authorization.is_some();
        let body = format!(
            "v=0\r\no={user} 1 1 IN {family} {ip}\r\ns=-\r\nc=IN {family} {ip}\r\nt=0 0\r\n{media}\r\n",
            user = self.caller.user,
            family = if self.local.is_ipv4() { "IP4" } else { "IP6" },
            ip = self.local.ip(),
            media = self.caller.media_line(),
        );
        let contact = format!("<sip:{}@{}>", self.caller.user, self.local);
        let mut message = Vec::new();
        self.begin(b"INVITE", &mut message, |request, out| {
            let mut headers = request.begin(out).header("Contact", &contact);
            if let Some((name, value)) = &authorization {
                headers = headers.header(name.as_str(), value);
            }
            headers.body("application/sdp", body.as_bytes());
        });
        self.send_request(now, message);
    }

    /// Writes a request of this call with a new branch.
    fn begin(&mut self, method: &[u8], out: &mut Vec<u8>, write: impl FnOnce(&Request<'_>, &mut Vec<u8>)) {
        let branch = format!("z9hG4bK{:x}", self.random.next());
        let routes: Vec<&[u8]> = self.routes.iter().map(Vec::as_slice).collect();
        let request = Request {
            method,
            uri: &self.target,
            via: ViaLine { transport: Transport::Udp, sent_by: self.local, branch: branch.as_bytes(), rport: true },
            from: Party { uri: self.caller.address.as_bytes(), tag: Some(self.from_tag.as_bytes()) },
            to: Party { uri: self.caller.service.as_bytes(), tag: self.to_tag.as_deref() },
            call_id: self.call_id.as_bytes(),
            cseq: self.cseq,
            routes: &routes,
        };
        write(&request, out);
    }

    fn send_request(&mut self, now: Instant, message: Vec<u8>) {
        self.out.push_back(message.clone());
        self.request = message;
        self.again = Some((now + T1, T1));
        self.give_up = now + self.caller.patience;
    }

    /// Sends the ACK of a final response other than 2xx.
    fn acknowledge(&mut self, response: &Message<'_>) {
        let Ok(request) = Message::parse(&self.request) else { return };
        let mut ack = Vec::new();
        if ack_for_final(&request, response, &mut ack).is_ok() {
            self.out.push_back(ack.clone());
            self.ack = ack;
        }
    }

    fn on_challenge(&mut self, now: Instant, response: &Message<'_>) {
        self.acknowledge(response);
        self.challenges += 1;
        let (challenge_name, answer_name) = if response.status() == Some(401) {
            (HeaderName::WwwAuthenticate, HeaderName::Authorization)
        } else {
            (HeaderName::ProxyAuthenticate, HeaderName::ProxyAuthorization)
        };
        let challenge = strongest(response.headers_raw(challenge_name));
        let refused = State::Refused(response.status().unwrap_or(0));
        let Some((challenge, realm)) = challenge.and_then(|challenge| Some((challenge, challenge.realm_text()?)))
        else {
            self.state = refused;
            return;
        };
        // A second challenge that does not call the nonce stale means that the password is wrong.
        if self.challenges > 1 && !challenge.stale {
            self.state = refused;
            return;
        }
        let ha1 = ha1(challenge.algorithm, &self.caller.user, &realm, &self.caller.password);
        let cnonce = format!("{:016x}", self.random.next());
        let mut value = Vec::new();
        let answer = Answer {
            challenge: &challenge,
            username: &self.caller.user,
            ha1: &ha1,
            method: b"INVITE",
            uri: &self.target,
            cnonce: &cnonce,
            nc: 1,
        };
        answer.write(&mut value);
        self.invite(now, Some((answer_name, value)));
    }

    fn on_success(&mut self, now: Instant, response: &Message<'_>) {
        self.state = State::Established;
        self.established = Some(now);
        self.again = None;
        self.to_tag = response.to().ok().and_then(|to| to.tag).map(<[u8]>::to_vec);
        if let Ok(Some(contact)) = response.contact() {
            self.target = contact.uri.to_vec();
        }
        let routes = response.record_routes().flatten().map(|route| [b"<", route.uri, b">"].concat());
        self.routes = routes.collect();
        self.routes.reverse();
        self.media = Session::parse(response.body()).ok().and_then(|session| {
            let media = session.media().iter().find(|media| media.port != 0)?;
            Some(SocketAddr::new(media.address?, media.port))
        });
        let mut ack = Vec::new();
        self.begin(b"ACK", &mut ack, |request, out| request.begin(out).finish());
        self.out.push_back(ack.clone());
        self.ack = ack;
    }
}

#[cfg(test)]
mod tests;
