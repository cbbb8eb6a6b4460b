//! A telephone in one dialog: it writes SIP as telephones do and answers challenges.

use std::net::SocketAddr;

use sluicegate_policy::User;
use sluicegate_sip::{
    digest::{Algorithm, Answer, Challenge, Ha1},
    message::{HeaderName, Message},
    write::Response,
};

use crate::frontend::REALM;

/// One audio stream.
const OFFER: &str = "v=0\r\no=a 1 1 IN IP4 192.168.0.9\r\ns=-\r\nc=IN IP4 192.168.0.9\r\nt=0 0\r\n\
    m=audio 4100 RTP/AVP 0\r\n";
const ANSWER: &str = "v=0\r\no=pbx 5 5 IN IP4 10.0.0.2\r\ns=-\r\nc=IN IP4 10.0.0.2\r\nt=0 0\r\n\
    m=audio 4500 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";

/// Who calls whom, from where.
#[derive(Debug, Clone)]
pub(crate) struct Telephone {
    pub(crate) user: String,
    /// What its digests are made with.
    pub(crate) secret: Ha1,
    pub(crate) address: SocketAddr,
    pub(crate) call_id: String,
    pub(crate) is_connected: bool,
    /// The session that it offers.
    pub(crate) offer: &'static str,
    service: &'static str,
    target: String,
    to_tag: Option<String>,
    routes: String,
    cseq: u32,
    sent: u32,
}

impl Telephone {
    pub(crate) fn new(user: &User, address: SocketAddr, service: &'static str, call_id: String) -> Self {
        let bytes = user.credentials.as_ref().map(|known| known.ha1_sha256).unwrap_or_default();
        Self {
            user: user.name.clone(),
            secret: Ha1::from_sha256(bytes),
            address,
            call_id,
            is_connected: false,
            offer: OFFER,
            service,
            target: format!("sip:{service}@{REALM}"),
            to_tag: None,
            routes: String::new(),
            cseq: 0,
            sent: 0,
        }
    }

    /// A request with further header lines. ACK and CANCEL have the number of what they are for.
    pub(crate) fn request(&mut self, method: &str, lines: &str) -> String {
        self.sent += 1;
        self.cseq += u32::from(!matches!(method, "ACK" | "CANCEL"));
        let branch = self.sent;
        self.write(method, branch, lines)
    }

    /// The ACK of an answer that is no 2xx, which is of the same transaction.
    pub(crate) fn ack_of_refusal(&self) -> String {
        self.write("ACK", self.sent, "")
    }

    fn write(&self, method: &str, branch: u32, lines: &str) -> String {
        let Self { user, address, call_id, service, target, routes, cseq, .. } = self;
        let transport = if self.is_connected { "TCP" } else { "UDP" };
        let tag = self.to_tag.as_ref().map_or(String::new(), |tag| format!(";tag={tag}"));
        let has_offer = matches!(method, "INVITE" | "UPDATE");
        let (kind, body) =
            if has_offer { ("Content-Type: application/sdp\r\n", self.offer) } else { Default::default() };
        format!(
            "{method} {target} SIP/2.0\r\nVia: SIP/2.0/{transport} {address};branch=z9hG4bK{call_id}-{branch};rport\r\n\
            Max-Forwards: 70\r\n{routes}From: <sip:{user}@{REALM}>;tag={user}\r\nTo: <sip:{service}@{REALM}>{tag}\r\n\
            Call-ID: {call_id}\r\nCSeq: {cseq} {method}\r\nContact: <sip:{user}@{address}>\r\n{lines}{kind}\
            Content-Length: {len}\r\n\r\n{body}",
            len = body.len(),
        )
    }

    /// Whether this answers its last request.
    pub(crate) fn is_current(&self, answer: &Message<'_>) -> bool {
        answer.cseq().is_ok_and(|cseq| cseq.number == self.cseq)
    }

    /// The credentials that answer a challenge, as a header line.
    pub(crate) fn credentials(&self, challenge: &[u8], method: &str) -> Option<String> {
        let message = Message::parse(challenge).ok()?;
        let mut values = message.headers_raw(HeaderName::ProxyAuthenticate);
        let challenge = values.find_map(|value| {
            Challenge::parse(value).ok().filter(|challenge| challenge.algorithm == Algorithm::Sha256)
        })?;
        Some(self.proof(&challenge, method))
    }

    /// The same for a challenge that nobody has sent.
    pub(crate) fn proof(&self, challenge: &Challenge<'_>, method: &str) -> String {
        let mut value = Vec::new();
        let (username, uri) = (self.user.as_str(), self.target.as_bytes());
        let method = method.as_bytes();
        Answer { challenge, username, ha1: &self.secret, method, uri, cnonce: "c0ffee", nc: 1 }.write(&mut value);
        format!("Proxy-Authorization: {}\r\n", String::from_utf8_lossy(&value))
    }

    /// What a 2xx tells of the dialog.
    pub(crate) fn begin_dialog(&mut self, answer: &[u8]) {
        let Ok(message) = Message::parse(answer) else { return };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.to_tag = message.to().ok().and_then(|to| to.tag.map(text));
        let mut routes: Vec<String> = message.headers_raw(HeaderName::RecordRoute).map(text).collect();
        routes.reverse();
        self.routes = routes.iter().map(|route| format!("Route: {route}\r\n")).collect();
        if self.service == "pbx" {
            self.target = "sip:pbx@10.0.0.2:5060".into();
        }
    }
}

/// What the SIP server answers; nothing to an ACK.
pub(crate) fn answer_of_server(request: &[u8]) -> Option<Vec<u8>> {
    let request = Message::parse(request).ok()?;
    let mut out = Vec::new();
    let headers = Response::to(&request, 200).to_tag(b"pbx").record_route();
    match request.method()?.as_bytes() {
        b"INVITE" => {
            let headers = headers.begin(&mut out).header("Contact", "<sip:pbx@10.0.0.2:5060>");
            headers.body("application/sdp", ANSWER.as_bytes());
        }
        b"BYE" => headers.begin(&mut out).finish(),
        _ => return None,
    }
    Some(out)
}
