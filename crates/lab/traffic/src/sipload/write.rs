//! The requests of a load, and whose answer an answer is.

use std::io::Write as _;

use sluicegate_sip::message::{HeaderName, Message};

use super::lines::Phone;

/// What begins every branch (RFC 3261 section 8.1.1.7).
const COOKIE: &str = "z9hG4bK";
/// Session description of an offer; it has a connection address and a port in it.
const SDP_LEN_MAX: usize = 256;

/// Which request of which call; what a branch says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The call's slot, and which call of this slot it is.
    pub(super) slot: u32,
    pub(super) turn: u32,
    /// CSeq of the request.
    pub(super) number: u8,
}

/// Writes what all requests of one worker have in common.
pub(super) struct Writer {
    seed: u32,
    realm: String,
    service: String,
    /// Port of the media that INVITEs offer; 0: they have no offer.
    media_port: u16,
}

/// Who calls, and by which telephone.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) user: &'a str,
    pub(super) phone: &'a Phone,
}

impl Writer {
    pub(super) fn new(seed: u64, realm: &str, service: &str, media_port: u16) -> Self {
        Self { seed: seed as u32, realm: realm.to_owned(), service: service.to_owned(), media_port }
    }

    /// The Request-URI of an INVITE.
    pub(super) fn uri(&self) -> String {
        format!("sip:{}@{}", self.service, self.realm)
    }

    pub(super) fn realm(&self) -> &str {
        &self.realm
    }

    /// `credentials` is a whole header field, or nothing.
    pub(super) fn invite(&self, out: &mut Vec<u8>, mark: Mark, caller: Caller<'_>, credentials: &[u8]) {
        let Self { realm, service, .. } = self;
        let _ = write!(out, "INVITE sip:{service}@{realm} SIP/2.0\r\n");
        self.begin(out, mark, caller);
        let _ = write!(out, "To: <sip:{service}@{realm}>\r\nCSeq: {} INVITE\r\n", mark.number);
        let _ = write!(
            out,
            "Contact: <sip:{}@{}{}>\r\nAllow: INVITE, ACK, BYE, CANCEL, OPTIONS, INFO, UPDATE\r\nUser-Agent: Sluicegate load\r\n",
            caller.user, caller.phone.local, caller.phone.uri_parameter
        );
        out.extend_from_slice(credentials);
        if self.media_port == 0 {
            out.extend_from_slice(b"Content-Length: 0\r\n\r\n");
            return;
        }
        let ip = caller.phone.address;
        let family = if ip.is_ipv4() { "IP4" } else { "IP6" };
        let mut sdp = Vec::with_capacity(SDP_LEN_MAX);
        let _ = write!(
            sdp,
            "v=0\r\no=- {0} {0} IN {family} {ip}\r\ns=-\r\nc=IN {family} {ip}\r\nt=0 0\r\nm=audio {1} RTP/AVP 0 8\r\n\
             a=rtpmap:0 PCMU/8000\r\na=rtpmap:8 PCMA/8000\r\na=ptime:20\r\na=sendrecv\r\n",
            mark.turn, self.media_port
        );
        let _ = write!(out, "Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n", sdp.len());
        out.extend_from_slice(&sdp);
    }

    /// The ACK to an answer that is no success, which belongs to the INVITE's transaction (RFC 3261 section 17.1.1.3).
    pub(super) fn ack_of_refusal(&self, out: &mut Vec<u8>, mark: Mark, caller: Caller<'_>, to: &[u8]) {
        let _ = write!(out, "ACK sip:{}@{} SIP/2.0\r\n", self.service, self.realm);
        self.begin(out, mark, caller);
        self.end(out, to, mark.number, "ACK");
    }

    /// A request within a dialog, which has a transaction of its own.
    pub(super) fn in_dialog(
        &self,
        out: &mut Vec<u8>,
        (method, mark): (&str, Mark),
        number: u8,
        caller: Caller<'_>,
        dialog: Dialog<'_>,
    ) {
        let _ = write!(out, "{method} ");
        out.extend_from_slice(dialog.uri);
        out.extend_from_slice(b" SIP/2.0\r\n");
        self.begin(out, mark, caller);
        out.extend_from_slice(dialog.routes);
        self.end(out, dialog.to, number, method);
    }

    /// Every message has these, so they are not left to the formatter.
    fn begin(&self, out: &mut Vec<u8>, mark: Mark, caller: Caller<'_>) {
        let (Mark { slot, turn, number }, phone) = (mark, caller.phone);
        let call = |out: &mut Vec<u8>| {
            push_hex(out, slot, 8);
            push_hex(out, turn, 8);
        };
        push(out, &["Via: SIP/2.0/", phone.transport, " ", &phone.local, ";branch=", COOKIE]);
        push_hex(out, self.seed, 8);
        call(out);
        push_hex(out, number.into(), 2);
        push(out, &[";rport\r\nMax-Forwards: 70\r\nFrom: <sip:", caller.user, "@", &self.realm, ">;tag="]);
        call(out);
        push(out, &["\r\nCall-ID: "]);
        call(out);
        push_hex(out, self.seed, 8);
        push(out, &["@", &phone.ip, "\r\n"]);
    }

    fn end(&self, out: &mut Vec<u8>, to: &[u8], number: u8, method: &str) {
        out.extend_from_slice(b"To: ");
        out.extend_from_slice(to);
        let _ = write!(out, "\r\nCSeq: {number} {method}\r\nContent-Length: 0\r\n\r\n");
    }

    /// Whose request this answers: its topmost Via is ours. `None` if it is nobody's here.
    pub(super) fn mark_of(&self, answer: &[u8]) -> Option<Mark> {
        const SEED_LEN: usize = 8;
        let at = find(answer, COOKIE.as_bytes())? + COOKIE.len();
        let digits = answer.get(at..at + SEED_LEN + 18)?;
        let hex =
            |from: usize, to: usize| u32::from_str_radix(std::str::from_utf8(digits.get(from..to)?).ok()?, 16).ok();
        if hex(0, 8)? != self.seed {
            return None;
        }
        Some(Mark { slot: hex(8, 16)?, turn: hex(16, 24)?, number: u8::try_from(hex(24, 26)?).ok()? })
    }
}

/// What a caller has to know of a dialog, in one piece of memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialog<'a> {
    /// The Contact of the 200.
    pub(super) uri: &'a [u8],
    /// Route header fields.
    pub(super) routes: &'a [u8],
    /// The value of To.
    pub(super) to: &'a [u8],
}

/// Where the parts of a [`Dialog`] end that was written into memory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ends {
    uri: u16,
    routes: u16,
}

impl<'a> Dialog<'a> {
    /// Keeps what a 200 says of its dialog.
    pub(super) fn keep(answer: &Message<'_>, kept: &mut Vec<u8>) -> Option<Ends> {
        kept.clear();
        let contact = answer.contact().ok().flatten()?;
        kept.extend_from_slice(contact.uri);
        let uri = u16::try_from(kept.len()).ok()?;
        let mut routes: Vec<&[u8]> = answer.headers(HeaderName::RecordRoute).collect();
        routes.reverse();
        for route in routes {
            kept.extend_from_slice(b"Route: ");
            kept.extend_from_slice(route);
            kept.extend_from_slice(b"\r\n");
        }
        let routes = u16::try_from(kept.len()).ok()?;
        kept.extend_from_slice(answer.header(HeaderName::To)?);
        Some(Ends { uri, routes })
    }

    /// What was kept.
    pub(super) fn kept(kept: &'a [u8], ends: Ends) -> Self {
        let (uri, rest) = kept.split_at(kept.len().min(ends.uri.into()));
        let (routes, to) = rest.split_at(rest.len().min(usize::from(ends.routes - ends.uri)));
        Self { uri, routes, to }
    }
}

fn push(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

fn push_hex(out: &mut Vec<u8>, value: u32, digits: u32) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend((0..digits).rev().map(|place| DIGITS[(value >> (4 * place) & 15) as usize]));
}

/// The status of an answer; `None` of a request or what is no SIP.
pub(super) fn status_of(answer: &[u8]) -> Option<u16> {
    let digits = answer.strip_prefix(b"SIP/2.0 ")?.first_chunk::<3>()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = *what.first()?;
    let mut at = 0;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == first)?;
        if bytes.get(at..)?.starts_with(what) {
            return Some(at);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_sip::message::Method;

    use super::*;
    use crate::stream::Over;

    const MARK: Mark = Mark { slot: 70_000, turn: 3, number: 2 };

    fn written(write: impl FnOnce(&Writer, &mut Vec<u8>, Caller<'_>)) -> Vec<u8> {
        let phone = Phone::new("198.18.1.2:40000".parse().unwrap(), Over::Udp);
        let mut out = Vec::new();
        write(&Writer::new(7, "lab.example", "office", 4_000), &mut out, Caller { user: "alice", phone: &phone });
        out
    }

    #[test]
    fn every_request_is_sip_and_says_by_its_branch_which_it_is() {
        let dialog =
            Dialog { uri: b"sip:office@10.4.0.2", routes: b"Route: <sip:203.0.113.9;lr>\r\n", to: b"<sip:o@l>;tag=1" };
        let requests = [
            (Method::Invite, written(|writer, out, caller| writer.invite(out, MARK, caller, b""))),
            (Method::Ack, written(|writer, out, caller| writer.ack_of_refusal(out, MARK, caller, b"<sip:o@l>;tag=1"))),
            (Method::Bye, written(|writer, out, caller| writer.in_dialog(out, ("BYE", MARK), 2, caller, dialog))),
        ];
        for (method, text) in requests {
            let message = Message::parse(&text).unwrap();
            assert_eq!(message.method(), Some(method));
            assert!(message.essentials().is_ok(), "{}", String::from_utf8_lossy(&text));
            assert_eq!(Writer::new(7, "", "", 0).mark_of(&text), Some(MARK));
            assert_eq!(Writer::new(8, "", "", 0).mark_of(&text), None, "another worker's");
        }
    }

    #[test]
    fn a_dialog_goes_back_by_the_way_that_it_came() {
        let answer = b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 198.18.1.2:40000;branch=z9hG4bKx\r\n\
            Record-Route: <sip:203.0.113.1;lr>, <sip:203.0.113.2;lr>\r\nRecord-Route: <sip:203.0.113.3;lr>\r\n\
            From: <sip:a@l>;tag=1\r\nTo: <sip:o@l>;tag=2\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\nContact: <sip:o@10.4.0.2>\r\n\
            Content-Length: 0\r\n\r\n";
        let mut kept = Vec::new();
        let ends = Dialog::keep(&Message::parse(answer).unwrap(), &mut kept).unwrap();
        let dialog = Dialog::kept(&kept, ends);
        assert_eq!((dialog.uri, dialog.to), (&b"sip:o@10.4.0.2"[..], &b"<sip:o@l>;tag=2"[..]));
        let routes = String::from_utf8_lossy(dialog.routes);
        let numbers: Vec<_> = routes.lines().filter_map(|line| line.strip_prefix("Route: <sip:203.0.113.")).collect();
        assert_eq!(numbers, ["3;lr>", "2;lr>", "1;lr>"]);
    }

    #[test]
    fn a_status_is_found_in_answers_alone() {
        assert_eq!(status_of(b"SIP/2.0 486 Busy Here\r\n"), Some(486));
        assert_eq!(status_of(b"INVITE sip:x SIP/2.0\r\n"), None);
    }
}
