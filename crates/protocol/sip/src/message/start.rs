//! The first line.

use super::{
    error::Fault,
    scan::{Class, Cursor, decimal_u16, is_scheme, is_token, split_once},
};

/// A request method (RFC 3261 section 7.1). Case matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method<'a> {
    /// `INVITE`
    Invite,
    /// `ACK`
    Ack,
    /// `CANCEL`
    Cancel,
    /// `BYE`
    Bye,
    /// `OPTIONS`
    Options,
    /// `REGISTER`
    Register,
    /// Any other token; a proxy passes it on.
    Other(&'a [u8]),
}

impl<'a> Method<'a> {
    /// The method with this name. Does not check that it is a token.
    #[must_use]
    pub fn of(name: &'a [u8]) -> Self {
        match name {
            b"INVITE" => Self::Invite,
            b"ACK" => Self::Ack,
            b"CANCEL" => Self::Cancel,
            b"BYE" => Self::Bye,
            b"OPTIONS" => Self::Options,
            b"REGISTER" => Self::Register,
            other => Self::Other(other),
        }
    }

    /// The name as it stands in a message.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::Invite => b"INVITE",
            Self::Ack => b"ACK",
            Self::Cancel => b"CANCEL",
            Self::Bye => b"BYE",
            Self::Options => b"OPTIONS",
            Self::Register => b"REGISTER",
            Self::Other(name) => name,
        }
    }

    /// Whether RFC 3261 defines a transaction for this method that is not the plain non-INVITE one.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        !matches!(self, Self::Other(_))
    }
}

/// The first line of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start<'a> {
    /// A request line.
    Request {
        /// What is asked.
        method: Method<'a>,
        /// The Request-URI, with a scheme and without white space, brackets or header fields. See [`crate::uri::Uri`].
        uri: &'a [u8],
    },
    /// A status line.
    Response {
        /// 100 to 699.
        code: u16,
        /// Text for people; any bytes, may be empty.
        reason: &'a [u8],
    },
}

const VERSION: &[u8] = b"SIP/2.0";

impl<'a> Start<'a> {
    /// Parses the line without its line break. The flag tells whether the fault may be answered.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, (Fault, bool)> {
        if line.get(..4).is_some_and(|head| head.eq_ignore_ascii_case(b"SIP/")) {
            return Self::response(line).map_err(|fault| (fault, false));
        }
        Self::request(line)
    }

    /// What can be told about a request line that [`Start::parse`] refused; `None` for a response.
    pub(super) fn salvage(line: &'a [u8]) -> Option<Self> {
        if line.get(..4).is_some_and(|head| head.eq_ignore_ascii_case(b"SIP/")) {
            return None;
        }
        let (method, uri) = split_once(b' ', line)?;
        is_token(method).then_some(Self::Request { method: Method::of(method), uri })
    }

    fn request(line: &'a [u8]) -> Result<Self, (Fault, bool)> {
        let mut cursor = Cursor::new(line);
        let name = cursor.token();
        if name.is_empty() || !cursor.eat(b' ') {
            return Err((Fault::StartLine, true));
        }
        let (method, rest) = (Method::of(name), cursor.rest());
        let answerable = method != Method::Ack;
        let refuse = |fault| (fault, answerable);
        let uri = match rest.strip_suffix(b" SIP/2.0") {
            Some(uri) => uri,
            None => {
                let (uri, version) = rsplit_at_space(rest).ok_or((Fault::StartLine, answerable))?;
                check_version(version).map_err(refuse)?;
                uri
            }
        };
        if is_request_uri(uri) { Ok(Self::Request { method, uri }) } else { Err(refuse(Fault::RequestUri)) }
    }

    fn response(line: &'a [u8]) -> Result<Self, Fault> {
        // A server that leaves out the blank after the code means an empty reason.
        let (version, rest) = split_once(b' ', line).ok_or(Fault::StartLine)?;
        check_version(version)?;
        let (code, reason) = split_once(b' ', rest).unwrap_or((rest, &[]));
        match decimal_u16(code) {
            Some(number @ 100..=699) if code.len() == 3 => Ok(Self::Response { code: number, reason }),
            _ => Err(Fault::StatusCode),
        }
    }
}

fn rsplit_at_space(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memrchr(b' ', line)?;
    Some((line.get(..at)?, line.get(at + 1..)?))
}

fn check_version(version: &[u8]) -> Result<(), Fault> {
    if version.eq_ignore_ascii_case(VERSION) {
        return Ok(());
    }
    let Some((head, number)) = version.split_at_checked(4) else { return Err(Fault::StartLine) };
    let is_version = head.eq_ignore_ascii_case(b"SIP/")
        && number.contains(&b'.')
        && number.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    Err(if is_version { Fault::Version } else { Fault::StartLine })
}

/// A scheme, a colon and something behind, all of it visible characters. SIP URIs must not carry header fields here
/// (RFC 3261 section 19.1.1, RFC 4475 section 3.1.2.11).
fn is_request_uri(uri: &[u8]) -> bool {
    let usual = uri.strip_prefix(b"sip:").map(|rest| (&b"sip"[..], rest));
    let Some((scheme, rest)) = usual.or_else(|| split_once(b':', uri)) else { return false };
    if !is_scheme(scheme) || rest.is_empty() || !Class::URI.covers(rest) {
        return false;
    }
    let Some(question_mark) = memchr::memchr(b'?', rest) else { return true };
    let is_sip = scheme.eq_ignore_ascii_case(b"sip") || scheme.eq_ignore_ascii_case(b"sips");
    // The user part may hold a question mark; what follows the `@` may not.
    let in_user = memchr::memrchr(b'@', rest)
        .is_some_and(|at| question_mark < at && !rest.iter().skip(at).any(|byte| *byte == b'?'));
    !is_sip || in_user
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines_have_exactly_one_space_between_their_parts() {
        let ok = Start::parse(b"INVITE sip:a@b SIP/2.0").unwrap();
        assert_eq!(ok, Start::Request { method: Method::Invite, uri: b"sip:a@b" });
        for (line, fault) in [
            (&b"INVITE  sip:a@b SIP/2.0"[..], Fault::RequestUri),
            (b"INVITE sip:a@b  SIP/2.0", Fault::RequestUri),
            (b"INVITE sip:a@b SIP/2.0 ", Fault::StartLine),
            (b"INVITE sip:a@b; lr SIP/2.0", Fault::RequestUri),
            (b"INVITE <sip:a@b> SIP/2.0", Fault::RequestUri),
            (b"INVITE sip:a@b?Route=x SIP/2.0", Fault::RequestUri),
            (b"INVITE a@b SIP/2.0", Fault::RequestUri),
            (b"INVITE sip: SIP/2.0", Fault::RequestUri),
            (b"INVITE sip:a@b", Fault::StartLine),
            (b"INV(TE sip:a@b SIP/2.0", Fault::StartLine),
            (b"INVITE sip:a@b HTTP/1.1", Fault::StartLine),
            (b"INVITE sip:a@b SIP/3.0", Fault::Version),
            (b"", Fault::StartLine),
        ] {
            assert_eq!(Start::parse(line), Err((fault, true)), "{line:?}");
        }
    }

    #[test]
    fn status_codes_have_three_digits_and_a_known_class() {
        assert_eq!(Start::parse(b"SIP/2.0 200 OK"), Ok(Start::Response { code: 200, reason: b"OK" }));
        assert_eq!(Start::parse(b"SIP/2.0 100 "), Ok(Start::Response { code: 100, reason: b"" }));
        assert_eq!(Start::parse(b"SIP/2.0 100"), Ok(Start::Response { code: 100, reason: b"" }));
        for line in [&b"SIP/2.0 099 x"[..], b"SIP/2.0 700 x", b"SIP/2.0 0200 x", b"SIP/2.0 4294967301 x"] {
            assert_eq!(Start::parse(line), Err((Fault::StatusCode, false)));
        }
    }

    #[test]
    fn an_ack_is_never_answerable() {
        assert_eq!(Start::parse(b"ACK <sip:a@b> SIP/2.0"), Err((Fault::RequestUri, false)));
    }
}
