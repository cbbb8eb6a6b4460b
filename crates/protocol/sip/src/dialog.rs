//! A dialog as a user agent keeps it (RFC 3261 section 12): identifiers, sequence numbers, remote target, route set.

use alloc::vec::Vec;

use crate::{
    message::{Essentials, HeaderName, Message, Method, ParseError},
    uri::Uri,
    write::{Headers, Party, Request, ViaLine},
};

/// The most Route values that a dialog keeps.
pub const ROUTES_MAX: usize = 8;

/// Why there is no dialog, or a request is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialogError {
    /// A field that the dialog is made of cannot be read.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// No Contact with a SIP URI: there is nowhere to send the next request.
    #[error("no usable Contact")]
    Contact,
    /// A side has no tag.
    #[error("a tag is missing")]
    Tag,
    /// More than [`ROUTES_MAX`] Record-Route values.
    #[error("more than {ROUTES_MAX} Record-Route values")]
    Routes,
    /// Call-ID or tags are those of another dialog: answer 481.
    #[error("the request is not in this dialog; answer 481")]
    NoMatch,
    /// A sequence number below one seen before: answer 500 (RFC 3261 section 12.2.2).
    #[error("the sequence number is out of order; answer 500")]
    Order,
}

/// One side of a dialog.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Side {
    uri: Vec<u8>,
    tag: Vec<u8>,
}

impl Side {
    fn party(&self) -> Party<'_> {
        Party { uri: &self.uri, tag: Some(&self.tag) }
    }
}

/// A dialog. Made once per call, so it owns its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialog {
    call_id: Vec<u8>,
    local: Side,
    remote: Side,
    remote_target: Vec<u8>,
    routes: Vec<Vec<u8>>,
    local_number: u32,
    remote_number: Option<u32>,
}

impl Dialog {
    /// The caller's side: from our INVITE and a response that has a To tag (RFC 3261 section 12.1.2).
    ///
    /// # Errors
    /// See [`DialogError`].
    pub fn from_response(response: &Message<'_>) -> Result<Self, DialogError> {
        let fields = response.essentials()?;
        let mut routes = route_set(response)?;
        routes.reverse();
        Ok(Self {
            call_id: fields.call_id.to_vec(),
            local: Side { uri: fields.from.uri.to_vec(), tag: fields.from.tag.ok_or(DialogError::Tag)?.to_vec() },
            remote: Side { uri: fields.to.uri.to_vec(), tag: fields.to.tag.ok_or(DialogError::Tag)?.to_vec() },
            remote_target: target(response)?,
            routes,
            local_number: fields.cseq.number,
            remote_number: None,
        })
    }

    /// The called side: from an INVITE and the tag that we put on To (RFC 3261 section 12.1.1).
    ///
    /// # Errors
    /// See [`DialogError`].
    pub fn from_request(request: &Message<'_>, local_tag: &[u8]) -> Result<Self, DialogError> {
        let fields = request.essentials()?;
        // An RFC 2543 caller has no tag: its absence is a value too.
        let remote_tag = fields.from.tag.unwrap_or_default().to_vec();
        Ok(Self {
            call_id: fields.call_id.to_vec(),
            local: Side { uri: fields.to.uri.to_vec(), tag: local_tag.to_vec() },
            remote: Side { uri: fields.from.uri.to_vec(), tag: remote_tag },
            remote_target: target(request)?,
            routes: route_set(request)?,
            local_number: 0,
            remote_number: Some(fields.cseq.number),
        })
    }

    /// Begins our next request in the dialog, with the next sequence number (RFC 3261 section 12.2.1.1). Not for ACK and CANCEL.
    pub fn begin<'b>(&mut self, method: &[u8], via: ViaLine<'_>, out: &'b mut Vec<u8>) -> Headers<'b> {
        self.local_number = self.local_number.wrapping_add(1) & i32::MAX as u32;
        self.write(method, self.local_number, via, out)
    }

    /// Begins the ACK for a 2xx to the INVITE of this sequence number (RFC 3261 section 13.2.2.4). It has a branch of
    /// its own.
    pub fn begin_ack<'b>(&self, number: u32, via: ViaLine<'_>, out: &'b mut Vec<u8>) -> Headers<'b> {
        self.write(b"ACK", number, via, out)
    }

    /// Whether a request from the other side is in this dialog and in order; notes its number and, for INVITE, its
    /// Contact.
    ///
    /// # Errors
    /// [`DialogError::NoMatch`], [`DialogError::Order`].
    pub fn accept(&mut self, request: &Message<'_>, fields: &Essentials<'_>) -> Result<(), DialogError> {
        let same = fields.call_id == self.call_id
            && fields.to.tag == Some(&self.local.tag)
            && fields.from.tag.unwrap_or_default() == self.remote.tag;
        if !same {
            return Err(DialogError::NoMatch);
        }
        let is_new_number = !matches!(fields.cseq.method, Method::Ack | Method::Cancel);
        if is_new_number {
            if self.remote_number.is_some_and(|last| fields.cseq.number < last) {
                return Err(DialogError::Order);
            }
            self.remote_number = Some(fields.cseq.number);
        }
        if fields.cseq.method == Method::Invite {
            self.refresh_target(request);
        }
        Ok(())
    }

    /// Takes over the Contact of a re-INVITE or its 2xx, if it has one (RFC 3261 section 12.2).
    pub fn refresh_target(&mut self, message: &Message<'_>) {
        if let Ok(uri) = target(message) {
            self.remote_target = uri;
        }
    }

    fn write<'b>(&self, method: &[u8], number: u32, via: ViaLine<'_>, out: &'b mut Vec<u8>) -> Headers<'b> {
        let mut routes = [&[][..]; ROUTES_MAX];
        for (to, from) in routes.iter_mut().zip(&self.routes) {
            *to = from;
        }
        Request {
            method,
            uri: &self.remote_target,
            via,
            from: self.local.party(),
            to: self.remote.party(),
            call_id: &self.call_id,
            cseq: number,
            routes: routes.get(..self.routes.len()).unwrap_or_default(),
        }
        .begin(out)
    }
}

fn target(message: &Message<'_>) -> Result<Vec<u8>, DialogError> {
    let contact = message.contact()?.ok_or(DialogError::Contact)?;
    let uri = Uri::parse(contact.uri).map_err(|_| DialogError::Contact)?;
    if uri.is_sip() { Ok(contact.uri.to_vec()) } else { Err(DialogError::Contact) }
}

/// Record-Route in the order of the message.
fn route_set(message: &Message<'_>) -> Result<Vec<Vec<u8>>, DialogError> {
    let mut routes = Vec::new();
    for value in message.headers(HeaderName::RecordRoute) {
        if routes.len() == ROUTES_MAX {
            return Err(DialogError::Routes);
        }
        routes.push(value.to_vec());
    }
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use std::{string::String, vec};

    use super::*;
    use crate::message::Transport;

    const INVITE: &str = "INVITE sip:bob@example.net SIP/2.0\r\n\
        Via: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1\r\nRecord-Route: <sip:p2;lr>, <sip:p1;lr>\r\n\
        From: <sip:alice@example.net>;tag=a\r\nTo: <sip:bob@example.net>\r\nCall-ID: c\r\nCSeq: 5 INVITE\r\n\
        Contact: <sip:alice@192.0.2.1>\r\n\r\n";

    fn via<'a>() -> ViaLine<'a> {
        ViaLine {
            transport: Transport::Udp,
            sent_by: "192.0.2.9:5060".parse().unwrap(),
            branch: b"z9hG4bK2",
            rport: false,
        }
    }

    fn response(routes: &str) -> String {
        INVITE
            .replace("INVITE sip:bob@example.net SIP/2.0", "SIP/2.0 200 OK")
            .replace("To: <sip:bob@example.net>", "To: <sip:bob@example.net>;tag=b")
            .replace("<sip:p2;lr>, <sip:p1;lr>", routes)
            .replace("alice@192.0.2.1", "bob@192.0.2.2")
    }

    #[test]
    fn both_sides_agree_on_the_dialog_and_mirror_the_route_set() {
        let request = Message::parse(INVITE.as_bytes()).unwrap();
        let mut called = Dialog::from_request(&request, b"b").unwrap();
        let answer = response("<sip:p2;lr>, <sip:p1;lr>");
        let mut caller = Dialog::from_response(&Message::parse(answer.as_bytes()).unwrap()).unwrap();
        assert_eq!((&caller.local, &caller.remote), (&called.remote, &called.local));
        assert_eq!((&caller.routes[0], &called.routes[0]), (&b"<sip:p1;lr>".to_vec(), &b"<sip:p2;lr>".to_vec()));

        let mut bye = vec![];
        caller.begin(b"BYE", via(), &mut bye).finish();
        let bye = Message::parse(&bye).unwrap();
        let fields = bye.essentials().unwrap();
        assert_eq!((bye.request_uri(), fields.cseq.number), (Some(&b"sip:bob@192.0.2.2"[..]), 6));
        assert_eq!(bye.routes().count(), 2);
        assert_eq!(called.accept(&bye, &fields), Ok(()));

        let mut bye = vec![];
        called.begin(b"BYE", via(), &mut bye).finish();
        let bye = Message::parse(&bye).unwrap();
        assert_eq!(caller.accept(&bye, &bye.essentials().unwrap()), Ok(()));
    }

    #[test]
    fn an_ack_has_the_number_of_its_invite() {
        let answer = response("<sip:p1;lr>");
        let caller = Dialog::from_response(&Message::parse(answer.as_bytes()).unwrap()).unwrap();
        let mut ack = vec![];
        caller.begin_ack(5, via(), &mut ack).finish();
        let ack = Message::parse(&ack).unwrap();
        assert_eq!((ack.method(), ack.cseq().unwrap().number), (Some(Method::Ack), 5));
    }

    #[test]
    fn requests_out_of_order_or_of_other_dialogs_are_refused() {
        let request = Message::parse(INVITE.as_bytes()).unwrap();
        let mut called = Dialog::from_request(&request, b"b").unwrap();
        let again = INVITE.replace("To: <sip:bob@example.net>", "To: <sip:bob@example.net>;tag=b");
        for (from, to, error) in [
            ("CSeq: 5", "CSeq: 4", DialogError::Order),
            ("tag=b", "tag=x", DialogError::NoMatch),
            ("tag=a", "tag=x", DialogError::NoMatch),
            ("Call-ID: c", "Call-ID: d", DialogError::NoMatch),
        ] {
            let text = again.replace(from, to);
            let message = Message::parse(text.as_bytes()).unwrap();
            assert_eq!(called.accept(&message, &message.essentials().unwrap()), Err(error));
        }
        let text = again.replace("CSeq: 5", "CSeq: 6").replace("alice@192.0.2.1", "alice@192.0.2.7");
        let message = Message::parse(text.as_bytes()).unwrap();
        called.accept(&message, &message.essentials().unwrap()).unwrap();
        assert_eq!(called.remote_target, b"sip:alice@192.0.2.7");
    }

    #[test]
    fn what_cannot_become_a_dialog_says_why() {
        let tests = [
            (response("<sip:p;lr>").replace(";tag=b", ""), DialogError::Tag),
            (response("<sip:p;lr>").replace("Contact", "X-Contact"), DialogError::Contact),
            (response("<sip:p;lr>").replace("<sip:bob@192.0.2.2>", "<tel:+1>"), DialogError::Contact),
            (response(&"<sip:p;lr>,".repeat(ROUTES_MAX + 1)), DialogError::Routes),
        ];
        for (text, error) in tests {
            assert_eq!(Dialog::from_response(&Message::parse(text.as_bytes()).unwrap()), Err(error), "{text}");
        }
    }
}
