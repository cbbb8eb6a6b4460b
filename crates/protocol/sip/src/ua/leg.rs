use alloc::{
    borrow::ToOwned as _,
    string::{String, ToString as _},
    vec::Vec,
};
use core::fmt;

use super::Field;
use crate::{
    dialog::Dialog,
    message::Method,
    transaction::Token,
    write::{Headers, Party, Request, ViaLine},
};

/// Names a leg, and is the local tag of everything in it: whoever answers or asks within a leg names it by that tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LegId(pub(super) u128);

impl LegId {
    /// The leg that a local tag names; `None` if it is not one of ours.
    #[must_use]
    pub fn of_tag(tag: &[u8]) -> Option<Self> {
        let text = core::str::from_utf8(tag).ok().filter(|text| text.len() == 32)?;
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

/// The tag: 32 hexadecimal digits.
impl fmt::Display for LegId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Whom the requests of a leg are from and for, before there is a dialog. All are URIs without brackets.
#[derive(Debug, Clone, Copy)]
pub struct Parties<'a> {
    /// From.
    pub from: &'a str,
    /// To.
    pub to: &'a str,
    /// The Request-URI.
    pub uri: &'a str,
    /// The user part of our Contact.
    pub contact: &'a str,
}

/// What a message has besides what the user agent writes itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Content {
    fields: Vec<Field>,
    body: Option<(&'static str, Vec<u8>)>,
}

impl Content {
    /// With one more header field.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<Vec<u8>>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some((content_type, body.into()));
        self
    }

    pub(super) fn finish(&self, mut headers: Headers<'_>, credentials: &[Field]) {
        for (name, value) in self.fields.iter().chain(credentials) {
            headers = headers.header(name, value);
        }
        match &self.body {
            Some((content_type, body)) => headers.body(content_type, body),
            None => headers.finish(),
        }
    }
}

/// A request of ours that waits for its final response.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) token: Token,
    pub(super) method: Method<'static>,
    pub(super) bytes: Vec<u8>,
    pub(super) content: Content,
    pub(super) challenges: u8,
    pub(super) cancel: Cancel,
}

/// Whether an INVITE is still wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cancel {
    No,
    /// It is not, but nothing provisional has come yet, and before that a CANCEL might overtake it.
    Due,
    Sent,
}

/// An INVITE of the other side that waits for our final response.
#[derive(Debug)]
pub(super) struct Invited {
    pub(super) token: Token,
    pub(super) request: Vec<u8>,
}

/// Everything with one Call-ID and one local tag: a call, a registration, or a question.
#[derive(Debug)]
pub(super) struct Leg<C> {
    pub(super) method: Method<'static>,
    from: String,
    to: String,
    uri: String,
    pub(super) contact: String,
    call_id: String,
    number: u32,
    pub(super) dialog: Option<Dialog>,
    pub(super) credentials: Option<C>,
    pub(super) under_way: Option<UnderWay>,
    pub(super) invited: Option<Invited>,
    /// The last ACK to a 2xx, for when that comes again.
    pub(super) ack: Vec<u8>,
}

impl<C> Leg<C> {
    pub(super) fn ours(method: Method<'static>, parties: Parties<'_>, call_id: String, credentials: Option<C>) -> Self {
        Self {
            from: parties.from.to_owned(),
            to: parties.to.to_owned(),
            uri: parties.uri.to_owned(),
            contact: parties.contact.to_owned(),
            call_id,
            credentials,
            ..Self::theirs(method)
        }
    }

    pub(super) const fn theirs(method: Method<'static>) -> Self {
        Self {
            method,
            from: String::new(),
            to: String::new(),
            uri: String::new(),
            contact: String::new(),
            call_id: String::new(),
            number: 0,
            dialog: None,
            credentials: None,
            under_way: None,
            invited: None,
            ack: Vec::new(),
        }
    }

    /// Begins the next request, within the dialog if there is one.
    pub(super) fn begin<'b>(
        &mut self,
        method: Method<'static>,
        id: LegId,
        via: ViaLine<'_>,
        out: &'b mut Vec<u8>,
    ) -> Headers<'b> {
        if let Some(dialog) = &mut self.dialog {
            return dialog.begin(method.as_bytes(), via, out);
        }
        self.number += 1;
        let tag = id.to_string();
        Request {
            method: method.as_bytes(),
            uri: self.uri.as_bytes(),
            via,
            from: Party { uri: self.from.as_bytes(), tag: Some(tag.as_bytes()) },
            to: Party { uri: self.to.as_bytes(), tag: None },
            call_id: self.call_id.as_bytes(),
            cseq: self.number,
            routes: &[],
        }
        .begin(out)
    }
}
