use alloc::vec::Vec;
use core::net::SocketAddr;

use super::{Headers, push_args, push_header, push_name, push_socket_addr, push_value};
use crate::message::{HeaderName, Message, ParseError, Transport};

/// Our own Via.
#[derive(Debug, Clone, Copy)]
pub struct ViaLine<'a> {
    /// Of the next hop.
    pub transport: Transport,
    /// Where answers are to go, if nothing on the way says otherwise.
    pub sent_by: SocketAddr,
    /// Transaction identifier; begins with [`MAGIC_COOKIE`](crate::message::MAGIC_COOKIE).
    pub branch: &'a [u8],
    /// Ask for the answer at the source port (RFC 3581). For clients that may stand behind a NAT.
    pub rport: bool,
}

impl ViaLine<'_> {
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        push_args(out, format_args!("Via: SIP/2.0/{} ", self.transport.name()));
        push_socket_addr(out, self.sent_by);
        out.extend_from_slice(b";branch=");
        push_value(out, self.branch);
        out.extend_from_slice(if self.rport { b";rport\r\n" } else { b"\r\n" });
    }
}

/// One end of a call: From or To.
#[derive(Debug, Clone, Copy)]
pub struct Party<'a> {
    /// Without angle brackets.
    pub uri: &'a [u8],
    /// `None` in the To of a request outside a dialog.
    pub tag: Option<&'a [u8]>,
}

impl Party<'_> {
    fn push(&self, out: &mut Vec<u8>, name: &str) {
        push_name(out, name);
        out.push(b'<');
        push_value(out, self.uri);
        out.push(b'>');
        if let Some(tag) = self.tag {
            out.extend_from_slice(b";tag=");
            push_value(out, tag);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// A request of our own (RFC 3261 section 8.1.1).
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// A token.
    pub method: &'a [u8],
    /// The Request-URI.
    pub uri: &'a [u8],
    /// Our Via.
    pub via: ViaLine<'a>,
    /// Caller.
    pub from: Party<'a>,
    /// Called.
    pub to: Party<'a>,
    /// Unique for the call (or the registration).
    pub call_id: &'a [u8],
    /// One more than that of the request before in the same dialog.
    pub cseq: u32,
    /// Route values in their order, each with its brackets.
    pub routes: &'a [&'a [u8]],
}

/// Hops that a new request may go (RFC 3261 section 8.1.1.6).
pub(super) const MAX_FORWARDS: u8 = 70;

impl Request<'_> {
    /// Writes the request line and the fields above; more header fields can follow.
    pub fn begin<'b>(&self, out: &'b mut Vec<u8>) -> Headers<'b> {
        out.clear();
        push_request_line(out, self.method, self.uri);
        self.via.push(out);
        push_args(out, format_args!("Max-Forwards: {MAX_FORWARDS}\r\n"));
        for route in self.routes {
            push_header(out, "Route", route);
        }
        self.from.push(out, "From");
        self.to.push(out, "To");
        push_header(out, "Call-ID", self.call_id);
        push_cseq(out, self.cseq, self.method);
        Headers { out }
    }
}

pub(super) fn push_request_line(out: &mut Vec<u8>, method: &[u8], uri: &[u8]) {
    push_value(out, method);
    out.push(b' ');
    push_value(out, uri);
    out.extend_from_slice(b" SIP/2.0\r\n");
}

fn push_cseq(out: &mut Vec<u8>, number: u32, method: &[u8]) {
    push_args(out, format_args!("CSeq: {number} "));
    push_value(out, method);
    out.extend_from_slice(b"\r\n");
}

/// The ACK that a client transaction sends for a final response other than 2xx (RFC 3261 section 17.1.1.3).
///
/// # Errors
/// `request` is not one that we wrote: its Via or CSeq cannot be read.
pub fn ack_for_final(request: &Message<'_>, response: &Message<'_>, out: &mut Vec<u8>) -> Result<(), ParseError> {
    same_transaction(request, b"ACK", response, out)
}

/// The CANCEL for a request (RFC 3261 section 9.1). To be sent only after a provisional response.
///
/// # Errors
/// `request` is not one that we wrote: its Via or CSeq cannot be read.
pub fn cancel_for(request: &Message<'_>, out: &mut Vec<u8>) -> Result<(), ParseError> {
    same_transaction(request, b"CANCEL", request, out)
}

/// A request with the topmost Via, Request-URI and Route of `request`, and To as in `to_from`.
fn same_transaction(
    request: &Message<'_>,
    method: &[u8],
    to_from: &Message<'_>,
    out: &mut Vec<u8>,
) -> Result<(), ParseError> {
    let via = request.top_via()?;
    let cseq = request.cseq()?;
    out.clear();
    push_request_line(out, method, request.request_uri().unwrap_or_default());
    let top = request.header(HeaderName::Via).and_then(|value| value.get(..via.len)).unwrap_or_default();
    push_header(out, "Via", top);
    push_args(out, format_args!("Max-Forwards: {MAX_FORWARDS}\r\n"));
    for route in request.headers_raw(HeaderName::Route) {
        push_header(out, "Route", route);
    }
    for (name, message) in [(HeaderName::From, request), (HeaderName::To, to_from), (HeaderName::CallId, request)] {
        push_header(out, name.as_str(), message.header(name).unwrap_or_default());
    }
    push_cseq(out, cseq.number, method);
    Headers { out }.finish();
    Ok(())
}
