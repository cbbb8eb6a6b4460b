//! What clients and services say: bodies, fields, answers, and requests within a call.

use sluicegate_sip::{
    message::{HeaderName, Message},
    write::Response,
};

/// Where a service's media are, which is for nobody outside to know.
pub(super) const MEDIA_INSIDE: &str = "10.0.0.222";
/// Status codes of answers, provisional ones first and most of them.
pub(super) const CODES: [u16; 16] = [100, 180, 183, 200, 183, 200, 200, 202, 302, 404, 422, 481, 486, 487, 491, 603];
/// Methods of requests within a call.
pub(super) const METHODS: [&str; 10] =
    ["INVITE", "UPDATE", "BYE", "ACK", "INVITE", "PRACK", "INFO", "OPTIONS", "REFER", "NOTIFY"];

/// Fields that somebody adds; in many cases none.
const FIELDS: [&str; 12] = [
    "",
    "Supported: timer\r\n",
    "Supported: timer\r\nSession-Expires: 90;refresher=uas\r\nMin-SE: 90\r\n",
    "Require: 100rel\r\nRSeq: 1\r\n",
    "Session-Expires: 3600\r\nRequire: timer\r\n",
    "Max-Forwards: 0\r\n",
    "Proxy-Require: other\r\n",
    "Require: other\r\n",
    "Content-Encoding: gzip\r\n",
    "P-Asserted-Identity: <sip:root@example.net>\r\n",
    "Via: SIP/2.0/UDP 192.0.2.200;branch=z9hG4bKfar\r\n",
    "Contact: <sip:elsewhere@192.0.2.200;transport=tcp>, <sip:two@192.0.2.201>\r\n",
];

pub(super) fn fields(which: u8) -> &'static str {
    FIELDS.get(usize::from(which % 16)).copied().unwrap_or_default()
}

/// A body, and the header field that says what it is.
pub(super) struct Body {
    pub(super) kind: String,
    pub(super) text: String,
}

impl Body {
    fn sdp(text: String) -> Self {
        Self { kind: "Content-Type: application/sdp\r\n".to_owned(), text }
    }

    /// A description alone, for those who say themselves that their bodies are some.
    pub(super) fn description(self) -> String {
        if self.kind.contains("application/sdp") { self.text } else { String::new() }
    }

    fn parts(parts: &[(&str, &str)]) -> Self {
        let part = |(kind, text): &(&str, &str)| format!("--b1\r\nContent-Type: {kind}\r\n\r\n{text}\r\n");
        let text = parts.iter().map(part).collect::<String>() + "--b1--\r\n";
        Self { kind: "Content-Type: multipart/mixed;boundary=b1\r\n".to_owned(), text }
    }
}

/// A description of one side whose media are at `address`.
fn description(address: &str, connection: &str, lines: &str) -> String {
    format!("v=0\r\no=- 5 5 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {connection}\r\nt=0 0\r\n{lines}")
}

/// What one side says of its media, which are at `address`: in most cases something that can be opened.
pub(super) fn body(which: u8, address: &str) -> Body {
    let of = |lines: &str| description(address, address, lines);
    let audio = "m=audio 4500 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";
    let first = of(audio);
    match which % 20 {
        0 | 1 => Body { kind: String::new(), text: String::new() },
        2 | 3 => Body::sdp(first),
        4 => Body::sdp(of("m=audio 4600 RTP/AVP 0\r\n")),
        5 => Body::sdp(of(&format!("{audio}a=sendonly\r\n"))),
        6 => Body::sdp(description(address, "0.0.0.0", audio)),
        7 => Body::sdp(of(&format!("{audio}m=video 4700 RTP/AVP 31\r\na=rtcp:4711 IN IP4 {address}\r\n"))),
        8 => Body::sdp(of(&format!("m=audio 22 RTP/AVP 0\r\na=candidate:1 1 UDP 1 {address} 4500 typ host\r\n"))),
        9 => Body::sdp(of("m=audio 0 RTP/AVP 0\r\n")),
        10 => Body::sdp(of("m=application 9 TCP sluicegate\r\na=setup:active\r\na=service-ports:80\r\n")),
        11 => Body::sdp(of("m=application 9 TCP sluicegate\r\na=setup:active\r\na=service-ports:22-23\r\n")),
        12 => Body::sdp(first.replace("t=0 0", "no line of a description")),
        13 => Body::parts(&[("application/isup", "x"), ("application/sdp", &first)]),
        14 => Body::sdp(of(&audio.repeat(8))),
        15 => Body::parts(&[("application/sdp", &first), ("application/sdp", &of("m=audio 4600 RTP/AVP 0\r\n"))]),
        16 => {
            let Body { text, .. } = Body::parts(&[("application/sdp", &first)]);
            Body::parts(&[("multipart/alternative;boundary=b2", &text.replace("--b1", "--b2")), ("text/plain", "x")])
        }
        17 => Body { kind: "Content-Type: multipart/mixed\r\n".to_owned(), text: first },
        18 => Body { kind: "Content-Type: application/sdp\r\nContent-Encoding: gzip\r\n".to_owned(), text: first },
        _ => Body { kind: "Content-Type: text/plain\r\n".to_owned(), text: "lunch?".to_owned() },
    }
}

/// Where a telephone or a service is to be called.
pub(super) fn contact(user: &str, from: &str, which: u8) -> String {
    let here = format!("<sip:{user}@{from}>");
    match which % 8 {
        0..=2 => format!("Contact: {here}\r\n"),
        3 => format!("Contact: {here};q=0.5;expires=60\r\n"),
        4 => format!("Contact: {here};expires=0\r\n"),
        5 => "Expires: 0\r\nContact: *\r\n".to_owned(),
        6 => format!("Contact: <sip:{user}2@{from};line=2>;q=0.1, <sip:{user}@192.0.2.200>;q=0.2\r\n"),
        _ => format!("Supported: path\r\nPath: <sip:192.0.2.200;lr>\r\nContact: {here}\r\n"),
    }
}

/// The values of a field.
pub(super) fn all(message: &str, name: HeaderName) -> Vec<String> {
    let Ok(message) = Message::parse(message.as_bytes()) else { return Vec::new() };
    message.headers_raw(name).map(|value| String::from_utf8_lossy(value).into_owned()).collect()
}

pub(super) fn one(message: &str, name: HeaderName) -> String {
    all(message, name).into_iter().next().unwrap_or_default()
}

/// An answer to a request.
pub(super) fn answer(request: &str, (code, tag): (u16, &str), more: &str, body: &Body) -> Option<String> {
    let request = Message::parse(request.as_bytes()).ok()?;
    let mut out = Vec::new();
    Response::to(&request, code).to_tag(tag.as_bytes()).record_route().begin(&mut out).finish();
    let head = String::from_utf8(out).ok()?;
    let head = head.split("Content-Length").next()?;
    Some(with_body(&format!("{head}{more}"), body))
}

fn with_body(head: &str, body: &Body) -> String {
    format!("{head}{}Content-Length: {}\r\n\r\n{}", body.kind, body.text.len(), body.text)
}

/// What belongs to an INVITE hop by hop: the ACK to a refusal (RFC 3261 section 17.1.1.3), and the CANCEL (section 9.1).
pub(super) fn beside(invite: &str, method: &str, to: &str) -> String {
    let mut lines = invite.split("\r\n\r\n").next().unwrap_or_default().split("\r\n");
    let uri = lines.next().and_then(|start| start.split(' ').nth(1)).unwrap_or_default();
    let mut text = format!("{method} {uri} SIP/2.0\r\n");
    let mut is_first_via = true;
    for line in lines {
        let is_kept = match line.split(':').next().unwrap_or_default() {
            "Via" => std::mem::take(&mut is_first_via),
            "Max-Forwards" | "Route" | "From" | "Call-ID" => true,
            "To" if to.is_empty() => true,
            "CSeq" => {
                text += &format!("{}\r\n", line.replace("INVITE", method));
                false
            }
            _ => false,
        };
        if is_kept {
            text += &format!("{line}\r\n");
        }
    }
    let to = if to.is_empty() { String::new() } else { format!("To: {to}\r\n") };
    format!("{text}{to}Content-Length: 0\r\n\r\n")
}

/// A call as its service knows it, from the INVITE that made it.
#[derive(Debug, Clone)]
pub(super) struct Known {
    routes: String,
    from: String,
    to: String,
    call_id: String,
    contact: String,
    cseq: u32,
}

impl Known {
    pub(super) fn of(invite: &str, tag: &str) -> Self {
        let contact = one(invite, HeaderName::Contact);
        let contact = contact.trim_start_matches('<').split('>').next().unwrap_or_default().to_owned();
        Self {
            routes: all(invite, HeaderName::RecordRoute).iter().map(|value| format!("Route: {value}\r\n")).collect(),
            from: format!("{};tag={tag}", one(invite, HeaderName::To)),
            to: one(invite, HeaderName::From),
            call_id: one(invite, HeaderName::CallId),
            contact,
            cseq: 0,
        }
    }

    /// A request of the service's, from `own`, whose branch has a number that none had before.
    pub(super) fn request(&mut self, (own, branch): (&str, u32), method: &str, more: &str, body: &Body) -> String {
        self.cseq += u32::from(method != "ACK");
        let Self { routes, from, to, call_id, contact, cseq } = self;
        let is_long = more.contains("Max-Forwards");
        let hops = if is_long { "" } else { "Max-Forwards: 70\r\n" };
        with_body(
            &format!(
                "{method} {contact} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bK{branch}-{own};rport\r\n{hops}{routes}\
                 From: {from}\r\nTo: {to}\r\nCall-ID: {call_id}\r\nCSeq: {cseq} {method}\r\nContact: <sip:pbx@{own}>\r\n{more}"
            ),
            body,
        )
    }
}
