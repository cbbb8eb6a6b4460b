//! The fields that every request must have, checked together.

use super::{
    Fault, HeaderName, Message, Method, NameAddr, ParseError, Via,
    scan::{Class, Cursor, decimal_u32},
};

/// Sequence number and method (RFC 3261 section 20.16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CSeq<'a> {
    /// 0 to 2^32 - 1.
    pub number: u32,
    /// The method, equal to the request line's if [`Message::essentials`] passed.
    pub method: Method<'a>,
}

/// The fields that every message must have (RFC 3261 section 8.1.1), each valid.
#[derive(Debug, Clone, Copy)]
pub struct Essentials<'a> {
    /// The topmost Via value.
    pub via: Via<'a>,
    /// Caller.
    pub from: NameAddr<'a>,
    /// Called.
    pub to: NameAddr<'a>,
    /// The call identifier.
    pub call_id: &'a [u8],
    /// Sequence number and method.
    pub cseq: CSeq<'a>,
    /// Hops left; `None` from an RFC 2543 client, which counts as 70.
    pub max_forwards: Option<u8>,
}

impl<'a> Message<'a> {
    /// The check of RFC 3261 section 16.3 (1): Via, From, To, Call-ID, CSeq and Max-Forwards are there once, follow
    /// their grammar and fit the start line. What else stands in the message is not looked at.
    ///
    /// # Errors
    /// The first fault, with the status code to answer with.
    pub fn essentials(&self) -> Result<Essentials<'a>, ParseError> {
        let cseq = self.cseq()?;
        if self.method().is_some_and(|method| method != cseq.method) {
            let is_known = self.method().is_some_and(|method| method.is_known());
            return Err(self.refuse(if is_known { Fault::MethodMismatch } else { Fault::UnknownMethodMismatch }));
        }
        let via = self.top_via()?;
        if via.has_empty_branch() {
            return Err(self.refuse(Fault::Branch));
        }
        Ok(Essentials {
            via,
            from: self.from()?,
            to: self.to()?,
            call_id: self.call_id()?,
            cseq,
            max_forwards: self.max_forwards()?,
        })
    }

    /// Sequence number and method.
    ///
    /// # Errors
    /// Missing, repeated, malformed or out of range.
    pub fn cseq(&self) -> Result<CSeq<'a>, ParseError> {
        let value = self.single(HeaderName::CSeq, true)?;
        CSeq::parse(value).ok_or_else(|| self.refuse(Fault::Malformed(HeaderName::CSeq)))
    }
}

impl<'a> CSeq<'a> {
    fn parse(value: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(value);
        let number = decimal_u32(cursor.take(Class::DIGIT))?;
        let before = cursor.position();
        cursor.skip_lws();
        if cursor.position() == before {
            return None;
        }
        let method = cursor.token();
        (!method.is_empty() && cursor.is_at_end()).then(|| Self { number, method: Method::of(method) })
    }
}
