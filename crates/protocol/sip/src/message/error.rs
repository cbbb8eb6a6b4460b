use super::HeaderName;

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing but line breaks: a keep-alive (RFC 5626 section 3.5.1), not an error to anyone.
    #[error("the datagram holds no message")]
    Empty,
    /// Longer than [`MESSAGE_LEN_MAX`](super::MESSAGE_LEN_MAX).
    #[error("the message is longer than {} bytes", super::MESSAGE_LEN_MAX)]
    MessageLength,
    /// More than [`HEADERS_MAX`](super::HEADERS_MAX) header fields.
    #[error("the message has more than {} header fields", super::HEADERS_MAX)]
    HeaderCount,
    /// A body longer than [`BODY_LEN_MAX`](super::BODY_LEN_MAX).
    #[error("the body is longer than {} bytes", super::BODY_LEN_MAX)]
    BodyLength,
    /// A carriage return or line feed on its own: the next element might see other lines than we do.
    #[error("a line does not end in CR LF")]
    LineEnding,
    /// No empty line after the header fields.
    #[error("the empty line after the header fields is missing")]
    Unterminated,
    /// The first line is neither a request line nor a status line.
    #[error("the start line is malformed")]
    StartLine,
    /// The request URI has white space, brackets, header fields or no scheme.
    #[error("the Request-URI is malformed")]
    RequestUri,
    /// A SIP version other than 2.0.
    #[error("the SIP version is not 2.0")]
    Version,
    /// A status code outside 100 to 699.
    #[error("the status code is not in 100..=699")]
    StatusCode,
    /// A line without a name and a colon.
    #[error("a header line has no name or no colon")]
    HeaderLine,
    /// `Content-Length` repeated, not a number, or larger than what arrived (RFC 3261 section 18.3).
    #[error("the Content-Length does not fit the message")]
    ContentLength,
    /// A header field that every message must have is not there.
    #[error("the {} header field is missing", .0.as_str())]
    Missing(HeaderName),
    /// A header field that may stand once stands there more often.
    #[error("the {} header field is repeated", .0.as_str())]
    Repeated(HeaderName),
    /// The value of this header field does not follow its grammar or range.
    #[error("the {} header field is malformed", .0.as_str())]
    Malformed(HeaderName),
    /// A branch that is the magic cookie and nothing else names no transaction (RFC 4475 section 3.2.1).
    #[error("the Via branch identifies no transaction")]
    Branch,
    /// The method in CSeq is not the one of the request line.
    #[error("the CSeq method is not the request's")]
    MethodMismatch,
    /// The same for a method that we do not know (RFC 4475 section 3.1.2.18).
    #[error("the method is unknown and not the one in CSeq")]
    UnknownMethodMismatch,
}

impl Fault {
    /// The status code that RFC 3261 gives for this fault in a request; 0 where there is none.
    const fn status(self) -> u16 {
        match self {
            Self::Empty | Self::StatusCode => 0,
            Self::MessageLength | Self::HeaderCount => 513,
            Self::BodyLength => 413,
            Self::Version => 505,
            Self::UnknownMethodMismatch => 501,
            _ => 400,
        }
    }
}

/// Why a message is refused, and how to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct ParseError {
    /// What is wrong.
    pub fault: Fault,
    answerable: bool,
}

impl ParseError {
    pub(crate) const fn new(fault: Fault, answerable: bool) -> Self {
        Self { fault, answerable }
    }

    /// The status code to answer with. `None`: discard silently, because it is a response, an ACK or no message at all.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        match self.fault.status() {
            0 => None,
            code if self.answerable => Some(code),
            _ => None,
        }
    }
}
