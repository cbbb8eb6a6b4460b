//! Proxy forwarding as edits on the original bytes (RFC 3261 sections 16.6 and 16.7): what is not edited stays as the
//! sender wrote it.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    ViaLine, push_args, push_body, push_header,
    request::{MAX_FORWARDS, push_request_line},
    response::push_vias,
};
use crate::{
    digest::{DigestError, realm_of},
    message::{HeaderName, Line, Message, Method, ParseError, Start, Via, scan::Cursor},
};

/// Why a message cannot be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// No hops left: answer 483.
    #[error("Max-Forwards is 0; answer 483")]
    NoHops,
    /// A response whose only Via is ours: it is for this element.
    #[error("the response has no further Via: it ends here")]
    NoNextVia,
    /// The next Via names a broadcast, multicast or unspecified address: drop it (RFC 4475 section 3.3.10).
    #[error("the response would go to an address that is not one host's")]
    NextVia,
    /// A request where a response is wanted, or the other way round.
    #[error("not a message of this direction")]
    Direction,
    /// A field that must be edited cannot be read.
    #[error(transparent)]
    Malformed(#[from] ParseError),
}

/// A body that takes the place of the original one; empty: there is none any more.
#[derive(Debug, Clone, Copy)]
pub struct NewBody<'m> {
    /// Value of Content-Type, where there is a body.
    pub content_type: &'m [u8],
    /// The body.
    pub bytes: &'m [u8],
}

/// A request to be passed on.
#[derive(Debug, Clone, Copy)]
pub struct ForwardRequest<'m, 'a> {
    /// The request as it came.
    pub request: &'m Message<'a>,
    /// Where it came from: noted in its topmost Via (RFC 3261 section 18.2.1, RFC 3581).
    pub source: SocketAddr,
    /// Our Via, to go on top.
    pub via: ViaLine<'m>,
    /// The new Request-URI.
    pub uri: Option<&'m [u8]>,
    /// Our Record-Route values with their brackets, topmost first; two where the request changes sides (RFC 5658).
    pub record_routes: &'m [&'m [u8]],
    /// Take off so many of the first Route values, because they are ours (RFC 3261 section 16.4).
    pub remove_routes: usize,
    /// Header fields to leave out, such as P-Preferred-Identity.
    pub remove: &'m [HeaderName],
    /// Our realm: credentials for it, or for a part of it (`realm;…`), go no further; those for others do (RFC 3261 section
    /// 22.3). Of a REGISTER those for a registrar too, which may be what we were until now.
    pub credentials_of: Option<&'m str>,
    /// Header fields to put in.
    pub add: &'m [(&'m str, &'m [u8])],
    /// A new body.
    pub body: Option<NewBody<'m>>,
}

impl ForwardRequest<'_, '_> {
    /// Writes the request as it is to be sent. Max-Forwards is one less, or 70 if there was none.
    ///
    /// # Errors
    /// See [`ForwardError`]; `out` is then not a message.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), ForwardError> {
        out.clear();
        let Start::Request { method, uri } = self.request.start() else { return Err(ForwardError::Direction) };
        let hops = match self.request.max_forwards()? {
            Some(hops) => hops.checked_sub(1).ok_or(ForwardError::NoHops)?,
            None => MAX_FORWARDS,
        };
        push_request_line(out, method.as_bytes(), self.uri.unwrap_or(uri));
        self.via.push(out);
        push_vias(out, self.request, Some(self.source));
        for value in self.record_routes {
            push_header(out, "Record-Route", value);
        }
        push_args(out, format_args!("Max-Forwards: {hops}\r\n"));
        let mut routes_pending = self.remove_routes;
        for line in self.request.lines() {
            match line.name {
                HeaderName::Via | HeaderName::MaxForwards => {}
                HeaderName::Authorization if method == Method::Register && self.are_ours(line.value) => {}
                HeaderName::ProxyAuthorization if self.are_ours(line.value) => {}
                HeaderName::Route if routes_pending > 0 && !self.remove.contains(&HeaderName::Route) => {
                    routes_pending -= push_without_first(out, &line, routes_pending);
                }
                _ => push_kept(out, &line, self.remove, self.body.is_some()),
            }
        }
        push_end(out, self.add, self.body, self.request.body());
        Ok(())
    }

    /// Whether credentials are for our realm. Those that cannot be read are nobody's, and go no further either.
    fn are_ours(&self, credentials: &[u8]) -> bool {
        let Some(own) = self.credentials_of else { return false };
        match realm_of(credentials) {
            Ok(realm) => realm.strip_prefix(own.as_bytes()).is_some_and(|rest| matches!(rest, [] | [b';', ..])),
            Err(error) => error != DigestError::Scheme,
        }
    }
}

/// A response to be passed on towards the client.
#[derive(Debug, Clone, Copy)]
pub struct ForwardResponse<'m, 'a> {
    /// The response as it came, our own Via on top.
    pub response: &'m Message<'a>,
    /// Header fields to leave out.
    pub remove: &'m [HeaderName],
    /// Header fields to put in.
    pub add: &'m [(&'m str, &'m [u8])],
    /// A new body.
    pub body: Option<NewBody<'m>>,
}

impl ForwardResponse<'_, '_> {
    /// Writes the response as it is to be sent: without our Via.
    ///
    /// # Errors
    /// See [`ForwardError`]; `out` is then not a message.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), ForwardError> {
        out.clear();
        let Start::Response { code, reason } = self.response.start() else { return Err(ForwardError::Direction) };
        check_next_via(self.response)?;
        push_args(out, format_args!("SIP/2.0 {code} "));
        out.extend_from_slice(reason);
        out.extend_from_slice(b"\r\n");
        let mut via_pending = true;
        for line in self.response.lines() {
            if line.name == HeaderName::Via && via_pending {
                via_pending = false;
                push_without_first(out, &line, 1);
            } else {
                push_kept(out, &line, self.remove, self.body.is_some());
            }
        }
        push_end(out, self.add, self.body, self.response.body());
        Ok(())
    }
}

fn check_next_via(response: &Message<'_>) -> Result<(), ForwardError> {
    response.top_via()?;
    let next = response.headers(HeaderName::Via).nth(1).ok_or(ForwardError::NoNextVia)?;
    let via = Via::parse(next).map_err(|_| ForwardError::NextVia)?;
    let is_unicast = |address: IpAddr| {
        let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
        !is_broadcast && !address.is_multicast() && !address.is_unspecified()
    };
    if via.host.address().is_none_or(is_unicast) { Ok(()) } else { Err(ForwardError::NextVia) }
}

/// The line as it came, unless it is to be left out or describes a body that is replaced.
fn push_kept(out: &mut Vec<u8>, line: &Line<'_>, remove: &[HeaderName], new_body: bool) {
    let describes_body =
        matches!(line.name, HeaderName::ContentType | HeaderName::ContentEncoding | HeaderName::ContentDisposition);
    if line.name == HeaderName::ContentLength || (describes_body && new_body) || remove.contains(&line.name) {
        return;
    }
    out.extend_from_slice(line.text);
    out.extend_from_slice(b"\r\n");
}

/// A list field without its first members, `count` at most; nothing at all if it has no others. How many there were.
fn push_without_first(out: &mut Vec<u8>, line: &Line<'_>, count: usize) -> usize {
    let mut cursor = Cursor::new(line.value);
    for removed in 1..=count {
        // Empty members are not counted, here as in `Message::headers`.
        while cursor.eat_spaced(b',') {}
        cursor.skip_to_comma();
        if !cursor.eat_spaced(b',') || cursor.rest().is_empty() {
            return removed;
        }
    }
    push_header(out, line.name.as_str(), cursor.rest());
    count
}

fn push_end(out: &mut Vec<u8>, add: &[(&str, &[u8])], body: Option<NewBody<'_>>, original: &[u8]) {
    for (name, value) in add {
        push_header(out, name, value);
    }
    if let Some(body) = body.filter(|body| !body.bytes.is_empty()) {
        push_header(out, "Content-Type", body.content_type);
    }
    push_body(out, body.map_or(original, |body| body.bytes));
}
