use alloc::vec::Vec;
use core::net::SocketAddr;

use super::{Headers, phrase, push_address, push_decimal, push_header, push_name, push_value};
use crate::message::{HeaderName, Message, Rport, Via};

/// A response to a request (RFC 3261 section 8.2.6).
///
/// Also answers what [`Message::salvage`] could read of a malformed request: header fields that are missing there are
/// left out.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Response<'m, 'a> {
    request: &'m Message<'a>,
    code: u16,
    source: Option<SocketAddr>,
    to_tag: Option<&'m [u8]>,
    record_route: bool,
}

impl<'m, 'a> Response<'m, 'a> {
    /// A response, with the usual reason phrase.
    pub const fn to(request: &'m Message<'a>, code: u16) -> Self {
        Self { request, code, source: None, to_tag: None, record_route: false }
    }

    /// Where the request came from: goes into the topmost Via as `received` and `rport` where RFC 3261 section 18.2.1
    /// and RFC 3581 ask for it, so that the answer reaches a client behind a NAT.
    pub const fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// The tag to put on To if the request has none there. Needed in all responses but 100.
    pub const fn to_tag(mut self, tag: &'m [u8]) -> Self {
        self.to_tag = Some(tag);
        self
    }

    /// Copies Record-Route, as a response that makes a dialog must (RFC 3261 section 12.1.1).
    pub const fn record_route(mut self) -> Self {
        self.record_route = true;
        self
    }

    /// Writes status line, Via, From, To, Call-ID, CSeq and Record-Route; more header fields can follow.
    pub fn begin<'b>(&self, out: &'b mut Vec<u8>) -> Headers<'b> {
        out.clear();
        out.extend_from_slice(b"SIP/2.0 ");
        push_decimal(out, u32::from(self.code));
        out.push(b' ');
        out.extend_from_slice(phrase(self.code).as_bytes());
        out.extend_from_slice(b"\r\n");
        push_vias(out, self.request, self.source);
        if self.record_route {
            for value in self.request.headers_raw(HeaderName::RecordRoute) {
                push_header(out, "Record-Route", value);
            }
        }
        for name in [HeaderName::From, HeaderName::To, HeaderName::CallId, HeaderName::CSeq] {
            if let Some(line) = self.request.plain(name) {
                out.extend_from_slice(line);
            } else if let Some(value) = self.request.header(name) {
                push_name(out, name.as_str());
                push_value(out, value);
            } else {
                continue;
            }
            if let (HeaderName::To, Some(tag)) = (name, self.to_tag)
                && !self.has_to_tag()
            {
                out.extend_from_slice(b";tag=");
                push_value(out, tag);
            }
            out.extend_from_slice(b"\r\n");
        }
        // How long the request was on its way (RFC 3261 section 8.2.6.1).
        if let Some(value) = self.request.header(HeaderName::Timestamp).filter(|_| self.code == 100) {
            push_header(out, HeaderName::Timestamp.as_str(), value);
        }
        Headers { out }
    }

    fn has_to_tag(&self) -> bool {
        let value = self.request.header(HeaderName::To).unwrap_or_default();
        // Most requests outside a dialog have no parameter there at all.
        if memchr::memchr(b';', value).is_none() {
            return false;
        }
        match self.request.to() {
            Ok(to) => to.tag.is_some(),
            Err(_) => value.windows(5).any(|window| window.eq_ignore_ascii_case(b";tag=")),
        }
    }
}

/// All Via values in their order, the topmost with where it came from.
pub(super) fn push_vias(out: &mut Vec<u8>, request: &Message<'_>, source: Option<SocketAddr>) {
    for (position, value) in request.headers_raw(HeaderName::Via).enumerate() {
        push_name(out, "Via");
        match (position, source, request.top_via()) {
            (0, Some(source), Ok(via)) => {
                push_received(out, &via, source);
                push_value(out, value.get(via.len..).unwrap_or_default());
            }
            _ => push_value(out, value),
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The Via value with `received` and `rport` as the source says. What the client itself claimed there is left out.
fn push_received(out: &mut Vec<u8>, via: &Via<'_>, source: SocketAddr) {
    push_value(out, via.head);
    let plain = via.plain_params();
    out.extend_from_slice(plain.unwrap_or_default());
    let others = via.params.iter().filter(|_| plain.is_none());
    for param in others {
        if param.name.eq_ignore_ascii_case(b"received") || param.name.eq_ignore_ascii_case(b"rport") {
            continue;
        }
        out.push(b';');
        out.extend_from_slice(param.name);
        if let Some(value) = param.value {
            out.push(b'=');
            push_value(out, value);
        }
    }
    let asked = via.rport != Rport::Absent;
    if asked || via.host.address() != Some(source.ip()) {
        out.extend_from_slice(b";received=");
        push_address(out, source.ip());
    }
    if asked {
        out.extend_from_slice(b";rport=");
        push_decimal(out, u32::from(source.port()));
    }
}
