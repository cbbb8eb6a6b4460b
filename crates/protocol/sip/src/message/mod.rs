//! A SIP message as an index over the datagram that holds it (RFC 3261 section 7).
//!
//! Pass 1, [`Message::parse`], finds the lines, names the header fields and checks size, count and `Content-Length`.
//! Pass 2 happens when a field is asked for, and only for that field; the topmost Via, which every step asks for, is read
//! once. Nothing is allocated in either: a message borrows the datagram and keeps at most [`HEADERS_MAX`] offsets by value.

mod address;
mod error;
mod essentials;
mod headers;
mod index;
pub(crate) mod multipart;
mod name;
mod peek;
pub(crate) mod scan;
mod start;
mod via;

pub use address::{NameAddr, Param, Params};
pub use error::{Fault, ParseError};
pub use essentials::{CSeq, Essentials};
pub use index::Line;
pub use multipart::{part, part_range};
pub use name::HeaderName;
pub use peek::{Peek, PeekAck};
pub use start::{Method, Start};
pub use via::{MAGIC_COOKIE, Rport, Transport, Via};

use index::{Index, Strictness, find_line};
use scan::decimal;

/// The longest message that is read, in bytes.
pub const MESSAGE_LEN_MAX: usize = 32_768;
/// The longest body that is read, in bytes.
pub const BODY_LEN_MAX: usize = 16_384;
/// The most header fields that a message may have.
pub const HEADERS_MAX: usize = 64;

/// A SIP request or response, borrowed from the datagram that carried it.
#[derive(Clone)]
pub struct Message<'a> {
    /// Start line, header fields and body, without leading line breaks and trailing noise.
    bytes: &'a [u8],
    start: Start<'a>,
    index: Index,
    /// The topmost Via value; `None` if it is missing or malformed.
    via: Option<Via<'a>>,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Indexes one datagram. Bytes behind the body, as `Content-Length` counts it, are ignored (RFC 3261 section 18.3).
    ///
    /// # Errors
    /// A [`ParseError`] with the status code to answer with. [`Message::salvage`] then gives what an answer needs.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let bytes = skip_line_breaks(datagram);
        if bytes.is_empty() {
            return Err(ParseError::new(Fault::Empty, false));
        }
        let (mut message, body_at) = Self::head(bytes)?;
        let present = bytes.get(body_at..).unwrap_or_default();
        let body_len = message.body_len(present.len()).map_err(|fault| refuse(bytes, fault))?;
        message.body = present.get(..body_len).unwrap_or_default();
        message.bytes = bytes.get(..body_at + body_len).unwrap_or_default();
        message.via = message.parse_via().ok();
        Ok(message)
    }

    /// How long the message is that begins with `head`, which ends with the empty line, on a stream: there it must say so
    /// itself (RFC 3261 section 18.3).
    pub(crate) fn len_on_stream(head: &'a [u8]) -> Result<usize, ParseError> {
        let (message, body_at) = Self::head(head)?;
        let missing = Fault::Missing(HeaderName::ContentLength);
        let body_len =
            message.content_length().and_then(|len| len.ok_or(missing)).map_err(|fault| refuse(head, fault))?;
        if body_len > BODY_LEN_MAX as u64 {
            return Err(refuse(head, Fault::BodyLength));
        }
        let len = body_at + body_len as usize;
        if len > MESSAGE_LEN_MAX { Err(refuse(head, Fault::MessageLength)) } else { Ok(len) }
    }

    /// Start line and header fields, and where the body begins.
    fn head(bytes: &'a [u8]) -> Result<(Self, usize), ParseError> {
        let refuse = |fault| refuse(bytes, fault);
        if bytes.len() > MESSAGE_LEN_MAX {
            return Err(refuse(Fault::MessageLength));
        }
        let start_len = find_line(bytes).map_err(refuse)?;
        let start_line = bytes.get(..start_len).unwrap_or_default();
        let start = Start::parse(start_line).map_err(|(fault, answerable)| ParseError::new(fault, answerable))?;
        let mut message = Self { bytes, start, index: Index::new(), via: None, body: &[] };
        let body_at = message.index.fill(bytes, start_len + 2, Strictness::Refuse).map_err(refuse)?;
        Ok((message, body_at))
    }

    /// What can be read of a request that [`Message::parse`] refused, so that it can be answered: the header fields
    /// that are whole, and no body. `None` if it is a response or ACK, or no request line can be made out.
    #[must_use]
    pub fn salvage(datagram: &'a [u8]) -> Option<Self> {
        let bytes = skip_line_breaks(datagram);
        let bytes = bytes.get(..MESSAGE_LEN_MAX).unwrap_or(bytes);
        let (start_len, next) = Strictness::Skip.find_line(bytes).ok()?;
        let start = Start::salvage(bytes.get(..start_len)?)?;
        if matches!(start, Start::Request { method: Method::Ack, .. }) {
            return None;
        }
        let mut message = Self { bytes, start, index: Index::new(), via: None, body: &[] };
        message.index.fill(bytes, next, Strictness::Skip).ok()?;
        message.via = message.parse_via().ok();
        Some(message)
    }

    /// The first line.
    #[must_use]
    pub const fn start(&self) -> Start<'a> {
        self.start
    }

    /// The request's method; `None` for a response.
    #[must_use]
    pub const fn method(&self) -> Option<Method<'a>> {
        match self.start {
            Start::Request { method, .. } => Some(method),
            Start::Response { .. } => None,
        }
    }

    /// The request's URI; `None` for a response.
    #[must_use]
    pub const fn request_uri(&self) -> Option<&'a [u8]> {
        match self.start {
            Start::Request { uri, .. } => Some(uri),
            Start::Response { .. } => None,
        }
    }

    /// The response's status code; `None` for a request.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        match self.start {
            Start::Request { .. } => None,
            Start::Response { code, .. } => Some(code),
        }
    }

    /// The body: as long as `Content-Length` says, or all that is left of the datagram.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The whole message, without what stood before the start line and behind the body.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    fn body_len(&self, present: usize) -> Result<usize, Fault> {
        let len = self.content_length()?.unwrap_or(present as u64);
        if len > present as u64 {
            return Err(Fault::ContentLength);
        }
        if len > BODY_LEN_MAX as u64 { Err(Fault::BodyLength) } else { Ok(len as usize) }
    }

    fn content_length(&self) -> Result<Option<u64>, Fault> {
        match self.header(HeaderName::ContentLength) {
            None => Ok(None),
            Some(_) if self.index.is_repeated(HeaderName::ContentLength) => Err(Fault::ContentLength),
            Some(value) => decimal(value, u64::MAX).map(Some).ok_or(Fault::ContentLength),
        }
    }

    /// An error about this message, answerable if it is a request other than ACK.
    const fn refuse(&self, fault: Fault) -> ParseError {
        let answerable = matches!(self.start, Start::Request { method, .. } if !matches!(method, Method::Ack));
        ParseError::new(fault, answerable)
    }
}

impl core::fmt::Debug for Message<'_> {
    /// The start line only: header fields may hold credentials.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Message")
            .field("start", &self.start)
            .field("headers", &self.index.len())
            .field("body_len", &self.body.len())
            .finish()
    }
}

/// An error about what begins with `bytes`. Whoever sends more than we read must at least be told so, which needs to know
/// request from response.
pub(crate) fn refuse(bytes: &[u8], fault: Fault) -> ParseError {
    ParseError::new(fault, !bytes.starts_with(b"ACK ") && !bytes.starts_with(b"SIP/"))
}

fn skip_line_breaks(mut bytes: &[u8]) -> &[u8] {
    while let [b'\r' | b'\n', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests;
