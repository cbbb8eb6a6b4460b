//! A phone: SIP (RFC 3261), written out by hand so that a test can send exactly what it means to.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use sluicegate_sip::{
    digest::{Answer, ha1, strongest},
    message::{HeaderName, Message},
    sdp::Session,
};

use super::{
    lab::Lab,
    line::Line,
    node::{PASSWORD, REALM},
};

/// How long to wait for an answer that must come: longer than a request of ours is repeated (RFC 3261, timers B and F).
const ANSWER_TIME: Duration = Duration::from_secs(40);
/// How long to wait for an answer that must not come.
const SILENCE: Duration = Duration::from_millis(700);
/// Retransmission interval (RFC 3261 T1).
const T1: Duration = Duration::from_millis(500);

/// Makes every token of this process different.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// A token that was never used: for branches, tags and Call-IDs.
pub(crate) fn token() -> String {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{:x}{number:x}", std::process::id())
}

/// What an INVITE asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wish {
    /// An audio stream: the UDP ports of a declared service.
    Audio,
    /// These TCP ports of the service.
    Tcp(u16, u16),
    /// These UDP ports of the service.
    Udp(u16, u16),
}

/// One SIP response.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) bytes: Vec<u8>,
}

impl Response {
    /// The value of a header field.
    pub(crate) fn header(&self, name: HeaderName) -> Option<String> {
        let message = Message::parse(&self.bytes).ok()?;
        message.header(name).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// Whether it asks for new credentials because the nonce, not the password, was at fault.
    pub(crate) fn is_stale(&self) -> bool {
        self.header(HeaderName::ProxyAuthenticate).is_some_and(|value| value.contains("stale=true"))
    }

    fn cseq(&self) -> Option<u32> {
        Message::parse(&self.bytes).ok()?.cseq().ok().map(|cseq| cseq.number)
    }

    fn call_id(&self) -> Option<String> {
        self.header(HeaderName::CallId)
    }

    /// Where the gate offers each accepted media line.
    pub(crate) fn media(&self) -> Vec<SocketAddr> {
        let Ok(message) = Message::parse(&self.bytes) else { return Vec::new() };
        let Ok(session) = Session::parse(message.body()) else { return Vec::new() };
        let accepted = session.media().iter().filter(|media| media.port != 0);
        accepted.filter_map(|media| Some(SocketAddr::new(media.address?, media.port))).collect()
    }
}

/// A call that was answered.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Where the gate lets this phone send.
    pub(crate) gate: SocketAddr,
    /// The INVITE that carried the credentials.
    pub(crate) authorised: Vec<u8>,
    call_id: String,
    from_tag: String,
    to: String,
    target: String,
    /// Whole Route lines.
    routes: String,
    pub(crate) cseq: u32,
}

impl Call {
    /// Its Route lines.
    pub(crate) fn routes(&self) -> &str {
        &self.routes
    }

    /// The Contact of the 200.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }
}

/// The header line with which this user answers a 401 or 407.
pub(crate) fn credentials(challenge: &[u8], (user, password): (&str, &str), method: &str, uri: &str) -> String {
    let message = Message::parse(challenge).expect("a response that can be read");
    let (asked, field) = match message.status() {
        Some(401) => (HeaderName::WwwAuthenticate, "Authorization"),
        _ => (HeaderName::ProxyAuthenticate, "Proxy-Authorization"),
    };
    let asked = strongest(message.headers_raw(asked)).expect("a challenge");
    let realm = asked.realm_text().expect("a realm");
    let ha1 = ha1(asked.algorithm, user, &realm, password);
    let (method, uri, cnonce) = (method.as_bytes(), uri.as_bytes(), token());
    let answer = Answer { challenge: &asked, username: user, ha1: &ha1, method, uri, cnonce: &cnonce, nc: 1 };
    let mut value = Vec::new();
    answer.write(&mut value);
    format!("{field}: {}\r\n", String::from_utf8_lossy(&value))
}

/// The port that a phone names for its audio unless it is told another, and sends from.
pub(crate) const AUDIO_PORT: u16 = 6000;

/// A phone on a host of the lab.
#[derive(Debug)]
pub(crate) struct Phone {
    pub(crate) line: Line,
    user: String,
    pub(crate) password: String,
    /// The port that it names for its audio.
    pub(crate) audio_port: u16,
}

impl Phone {
    /// A phone of `user` at `address`, any port, over UDP.
    pub(crate) fn new(lab: &Lab, host: &str, address: impl Into<IpAddr>, frontend: SocketAddr, user: &str) -> Self {
        Self::over(Line::udp(lab, host, address, frontend), user)
    }

    /// A phone of `user` that has this line.
    pub(crate) fn over(line: Line, user: &str) -> Self {
        Self { line, user: user.to_owned(), password: PASSWORD.to_owned(), audio_port: AUDIO_PORT }
    }

    /// The same with its audio at this port.
    pub(crate) fn hearing_at(self, audio_port: u16) -> Self {
        Self { audio_port, ..self }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.line.local()
    }

    /// Calls `service`: 200 or a panic. An overloaded 503 is asked again, as phones do.
    pub(crate) fn call(&self, service: &str, wish: Wish) -> Call {
        for _ in 0..3 {
            match self.try_call(service, wish) {
                Ok(call) => return call,
                Err(response) if response.status == 503 => super::let_run(Duration::from_secs(1)),
                Err(response) => panic!("{}", String::from_utf8_lossy(&response.bytes)),
            }
        }
        panic!("{service} stays unavailable");
    }

    /// Calls `service`, answers one challenge, acknowledges; or the final answer that was no 200.
    pub(crate) fn try_call(&self, service: &str, wish: Wish) -> Result<Call, Response> {
        let (call_id, from_tag) = (token(), token());
        let invite =
            |cseq: u32, credentials: &str| self.invite(service, wish, (&call_id, &from_tag, cseq), credentials);
        let first = invite(1, "");
        let challenge = self.ask(&first);
        if challenge.status != 407 {
            return Err(challenge);
        }
        self.acknowledge(&first, &challenge);
        let authorised = invite(2, &self.credentials(&challenge, "INVITE", &format!("sip:{service}@{REALM}")));
        let answer = self.ask(&authorised);
        if answer.status != 200 {
            self.acknowledge(&authorised, &answer);
            return Err(answer);
        }
        let message = Message::parse(&answer.bytes).expect("a response that can be read");
        let contact = message.contact().ok().flatten().expect("a 200 names a contact");
        let routes = message.record_routes().flatten().map(|route| String::from_utf8_lossy(route.uri).into_owned());
        let routes: Vec<String> = routes.collect();
        let call = Call {
            gate: *answer.media().first().expect("a 200 names where to send"),
            authorised,
            call_id,
            from_tag,
            to: answer.header(HeaderName::To).expect("a To"),
            target: String::from_utf8_lossy(contact.uri).into_owned(),
            routes: routes.iter().rev().map(|uri| format!("Route: <{uri}>\r\n")).collect(),
            cseq: 2,
        };
        self.send(&self.in_dialog(&call, "ACK", call.cseq));
        Ok(call)
    }

    /// Ends a call.
    pub(crate) fn bye(&self, mut call: Call) -> Response {
        call.cseq += 1;
        self.ask(&self.in_dialog(&call, "BYE", call.cseq))
    }

    /// Registers with these header lines, and answers one challenge; the final answer.
    pub(crate) fn register(&self, headers: &str) -> Response {
        let (call_id, uri) = (token(), format!("sip:{REALM}"));
        let challenge = self.ask(&self.register_request((&call_id, 1), headers));
        if !matches!(challenge.status, 401 | 407) {
            return challenge;
        }
        let credentials = self.credentials(&challenge, "REGISTER", &uri);
        self.ask(&self.register_request((&call_id, 2), &format!("{credentials}{headers}")))
    }

    /// The same once: whether it was taken. A frontend that is away says nothing.
    pub(crate) fn register_once(&self, headers: &str) -> bool {
        let (call_id, uri) = (token(), format!("sip:{REALM}"));
        let answer = |request: &[u8]| {
            self.send(request);
            let cseq = Message::parse(request).ok()?.cseq().ok()?.number;
            let fits = |response: &Response| response.cseq() == Some(cseq) && response.status >= 200;
            std::iter::from_fn(|| self.receive(SILENCE))
                .find(|answer| fits(answer) && answer.call_id().as_ref() == Some(&call_id))
        };
        let Some(challenge) = answer(&self.register_request((&call_id, 1), headers)) else { return false };
        let credentials = self.credentials(&challenge, "REGISTER", &uri);
        let answer = answer(&self.register_request((&call_id, 2), &format!("{credentials}{headers}")));
        answer.is_some_and(|answer| answer.status == 200)
    }

    fn register_request(&self, (call_id, cseq): (&str, u32), headers: &str) -> Vec<u8> {
        let (local, user) = (self.local(), &self.user);
        format!(
            "REGISTER sip:{REALM} SIP/2.0\r\nVia: SIP/2.0/{transport} {local};branch=z9hG4bK{branch};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:{user}@{REALM}>;tag={tag}\r\nTo: <sip:{user}@{REALM}>\r\n\
             Call-ID: {call_id}\r\nCSeq: {cseq} REGISTER\r\n{headers}Content-Length: 0\r\n\r\n",
            transport = self.line.transport().name(),
            branch = token(),
            tag = token(),
        )
        .into_bytes()
    }

    /// Changes the call to what the phone would offer now, answers one challenge, acknowledges; the final answer.
    pub(crate) fn reinvite(&self, call: &mut Call) -> Response {
        let (offer, target) = (self.offer(Wish::Audio), call.target.clone());
        let mut ask = |credentials: &str| {
            call.cseq += 1;
            let request = self.describing(call, ("INVITE", call.cseq), credentials, &offer);
            let answer = self.ask(&request);
            match answer.status {
                200 => self.send(&self.in_dialog(call, "ACK", call.cseq)),
                _ => self.acknowledge(&request, &answer),
            }
            answer
        };
        let answer = ask("");
        match answer.status {
            407 => ask(&self.credentials(&answer, "INVITE", &target)),
            _ => answer,
        }
    }

    /// An INVITE; `credentials` is empty or whole header lines.
    pub(crate) fn invite(
        &self,
        service: &str,
        wish: Wish,
        (call_id, from_tag, cseq): (&str, &str, u32),
        credentials: &str,
    ) -> Vec<u8> {
        let (local, user) = (self.local(), &self.user);
        let body = self.offer(wish);
        format!(
            "INVITE sip:{service}@{REALM} SIP/2.0\r\nVia: SIP/2.0/{transport} {local};branch=z9hG4bK{branch};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:{user}@{REALM}>;tag={from_tag}\r\nTo: <sip:{service}@{REALM}>\r\n\
             Call-ID: {call_id}\r\nCSeq: {cseq} INVITE\r\nContact: <sip:{user}@{local}>\r\n{credentials}\
             Content-Type: application/sdp\r\nContent-Length: {length}\r\n\r\n{body}",
            transport = self.line.transport().name(),
            branch = token(),
            length = body.len(),
        )
        .into_bytes()
    }

    /// What it describes of its media.
    pub(crate) fn offer(&self, wish: Wish) -> String {
        let ip = self.local().ip();
        let family = if ip.is_ipv4() { "IP4" } else { "IP6" };
        let media = match wish {
            Wish::Audio => format!("m=audio {} RTP/AVP 0\r\n", self.audio_port),
            Wish::Tcp(first, last) => format!("m=application 9 TCP sluicegate\r\na=service-ports:{first}-{last}\r\n"),
            Wish::Udp(first, last) => format!("m=application 9 UDP sluicegate\r\na=service-ports:{first}-{last}\r\n"),
        };
        format!("v=0\r\no=phone 1 1 IN {family} {ip}\r\ns=-\r\nc=IN {family} {ip}\r\nt=0 0\r\n{media}")
    }

    /// The header line that answers a challenge.
    pub(crate) fn credentials(&self, challenge: &Response, method: &str, uri: &str) -> String {
        credentials(&challenge.bytes, (&self.user, &self.password), method, uri)
    }

    /// A request within the call.
    pub(crate) fn in_dialog(&self, call: &Call, method: &str, cseq: u32) -> Vec<u8> {
        self.describing(call, (method, cseq), "", "")
    }

    /// The same with more header lines, and a session description unless it is empty.
    pub(crate) fn describing(&self, call: &Call, (method, cseq): (&str, u32), more: &str, sdp: &str) -> Vec<u8> {
        let (local, user) = (self.local(), &self.user);
        let kind = match sdp {
            "" => String::new(),
            _ => format!("Contact: <sip:{user}@{local}>\r\nContent-Type: application/sdp\r\n"),
        };
        format!(
            "{method} {target} SIP/2.0\r\nVia: SIP/2.0/{transport} {local};branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n\
             {routes}From: <sip:{user}@{REALM}>;tag={from_tag}\r\nTo: {to}\r\nCall-ID: {call_id}\r\n\
             CSeq: {cseq} {method}\r\n{more}{kind}Content-Length: {length}\r\n\r\n{sdp}",
            routes = call.routes,
            length = sdp.len(),
            target = call.target,
            transport = self.line.transport().name(),
            branch = token(),
            from_tag = call.from_tag,
            to = call.to,
            call_id = call.call_id,
        )
        .into_bytes()
    }

    /// The ACK to a final answer other than 2xx (RFC 3261 section 17.1.1.3).
    pub(crate) fn acknowledge(&self, invite: &[u8], answer: &Response) {
        let (Ok(request), Some(to)) = (Message::parse(invite), answer.header(HeaderName::To)) else { return };
        let field = |name| String::from_utf8_lossy(request.header(name).unwrap_or_default()).into_owned();
        let uri = String::from_utf8_lossy(request.request_uri().unwrap_or_default()).into_owned();
        let ack = format!(
            "ACK {uri} SIP/2.0\r\nVia: {via}\r\nMax-Forwards: 70\r\nFrom: {from}\r\nTo: {to}\r\nCall-ID: {call_id}\r\n\
             CSeq: {cseq} ACK\r\nContent-Length: 0\r\n\r\n",
            via = field(HeaderName::Via),
            from = field(HeaderName::From),
            call_id = field(HeaderName::CallId),
            cseq = request.cseq().map_or(0, |cseq| cseq.number),
        );
        self.send(ack.as_bytes());
    }

    /// Sends bytes to the frontend.
    pub(crate) fn send(&self, bytes: &[u8]) {
        self.line.send(bytes);
    }

    /// Sends a request, again while nothing comes, and gives its final answer.
    pub(crate) fn ask(&self, request: &[u8]) -> Response {
        let asked = Message::parse(request).ok();
        let cseq = asked.as_ref().and_then(|asked| asked.cseq().ok()).map(|cseq| cseq.number);
        let call_id = asked.and_then(|asked| asked.call_id().ok().map(|id| String::from_utf8_lossy(id).into_owned()));
        let end = Instant::now() + ANSWER_TIME;
        let (mut again, mut interval, mut heard) = (Instant::now(), T1, false);
        while Instant::now() < end {
            if Instant::now() >= again && !heard {
                self.send(request);
                // Over a connection nothing is sent again (RFC 3261 section 17).
                again = if self.line.transport().is_reliable() { end } else { Instant::now() + interval };
                interval *= 2;
            }
            let wait = if heard { end } else { again };
            let Some(response) = self.receive(wait.saturating_duration_since(Instant::now())) else { continue };
            let is_ours = cseq.is_none() || (response.cseq() == cseq && response.call_id() == call_id);
            heard |= is_ours;
            if is_ours && response.status >= 200 {
                return response;
            }
        }
        panic!("no answer to {}", String::from_utf8_lossy(request));
    }

    /// Sends bytes once and gives every final answer that comes, until it is silent.
    pub(crate) fn try_ask(&self, bytes: &[u8]) -> Vec<Response> {
        self.send(bytes);
        std::iter::from_fn(|| self.receive(SILENCE)).filter(|response| response.status >= 200).collect()
    }

    fn receive(&self, wait: Duration) -> Option<Response> {
        let bytes = self.line.receive(wait)?;
        let status = Message::parse(&bytes).ok().and_then(|message| message.status())?;
        Some(Response { status, bytes })
    }
}
