//! How requests are answered: those of strangers so that no memory is spent on them, others in their transactions.

use std::net::IpAddr;

use sluicegate_sip::{
    message::{HeaderName, Message, Method, Rport, part, part_range},
    sdp::Session,
    stun::BindingRequest,
    write::{Response, with_part},
};

use super::{
    context::Context,
    keys::StatelessTag,
    ladder::Asked,
    media::rewrite_answer,
    registrar::REGISTER_EXTENSIONS,
    settings::{AMPLIFICATION_MAX, RETRY_AFTER_SECS},
};
use crate::{
    metrics::{Count, Kind, Outcome},
    transmits::Flow,
};

/// The methods that the frontend answers or passes on, for Allow.
pub(super) const ALLOW: &str = "INVITE, ACK, CANCEL, BYE, OPTIONS, REGISTER";
/// Methods that others define, and that there are not here.
const ELSEWHERE: [&[u8]; 8] = [b"INFO", b"MESSAGE", b"NOTIFY", b"PRACK", b"PUBLISH", b"REFER", b"SUBSCRIBE", b"UPDATE"];
/// The media type of session descriptions.
pub(super) const SDP: &str = "application/sdp";
/// The extensions that we have where we answer ourselves.
const SUPPORTED: [&str; 2] = ["sluicegate", "timer"];
/// Unknown extensions that an answer names.
const UNSUPPORTED_MAX: usize = 8;
/// Says when to come again. The last of the fields of a refusal for load: most of those to one peer are equally long, a multiple
/// of so many bytes, so that they can be sent as one message.
pub(super) const RETRY_AFTER: &str = "Retry-After";
const REFUSAL_BYTES: usize = 64;
/// Where a sender without a port in its Via is reached (RFC 3261 section 19.1.2).
const SIP_PORT_DEFAULT: u16 = 5060;

/// Where answers to a request go: back to its source, unless a client that is not behind a NAT wants them at the port in
/// its Via (RFC 3261 section 18.2.2, RFC 3581). Never to another address than the source's, and down the same connection.
pub(super) fn answer_flow(flow: Flow, message: &Message<'_>) -> Flow {
    let mut to = flow;
    if flow.connection.is_none()
        && let Ok(via) = message.top_via()
        && via.rport == Rport::Absent
        && via.host.address() == Some(flow.peer.ip())
    {
        to.peer.set_port(via.port.unwrap_or(SIP_PORT_DEFAULT));
    }
    to
}

pub(super) const fn kind_of(method: Method<'_>, in_dialog: bool) -> Kind {
    match method {
        Method::Invite if in_dialog => Kind::Reinvite,
        Method::Invite => Kind::Invite,
        Method::Ack => Kind::Ack,
        Method::Cancel => Kind::Cancel,
        Method::Bye => Kind::Bye,
        Method::Options => Kind::Options,
        Method::Register => Kind::Register,
        Method::Other(b"PRACK") => Kind::Prack,
        Method::Other(b"UPDATE") => Kind::Update,
        Method::Other(b"INFO") => Kind::Info,
        Method::Other(b"REFER") => Kind::Refer,
        Method::Other(b"MESSAGE") => Kind::Message,
        Method::Other(b"SUBSCRIBE") => Kind::Subscribe,
        Method::Other(b"NOTIFY") => Kind::Notify,
        Method::Other(b"PUBLISH") => Kind::Publish,
        Method::Other(_) => Kind::Other,
    }
}

/// Whether an option tag is of an extension that we have.
pub(super) fn is_supported(tag: &[u8]) -> bool {
    SUPPORTED.iter().any(|own| tag.eq_ignore_ascii_case(own.as_bytes()))
}

/// Header fields that an answer has besides those that each has.
pub(super) type Fields<'h> = &'h [(&'h str, &'h [u8])];

/// Whether the body of a message is a session description, or has one among its parts.
pub(super) fn has_sdp(message: &Message<'_>) -> bool {
    part_range(message, SDP).is_some()
}

/// The session description in a message, if it can be read.
pub(super) fn session_of<'a>(message: &Message<'a>) -> Option<Session<'a>> {
    Session::parse(part(message, SDP)?).ok()
}

/// The body of a message with another session description in place of its own, and of all others that it has; and its type.
pub(super) fn with_session<'a>(message: &Message<'a>, sdp: &[u8]) -> Option<(&'a [u8], Vec<u8>)> {
    Some((message.header(HeaderName::ContentType)?, with_part(message, SDP, Some(sdp))?))
}

/// The body of a message without a session description that nobody can read, and its type. `None` if there is none.
pub(super) fn without_session<'a>(message: &Message<'a>) -> Option<(&'a [u8], Vec<u8>)> {
    Some((message.header(HeaderName::ContentType)?, with_part(message, SDP, None)?))
}

/// The body of a service's message as a client may see it where nothing is open for what it describes, and its type. `None` if
/// it describes nothing.
pub(super) fn with_closed_session<'a>(message: &Message<'a>, own: IpAddr) -> Option<(&'a [u8], Vec<u8>)> {
    match session_of(message) {
        Some(session) => with_session(message, &rewrite_answer(&session, &[], own)),
        None => without_session(message),
    }
}

impl Context {
    /// Counts what became of a request, and answers it as one of a sender that is not proved.
    pub(super) fn answer(&mut self, asked: Asked<'_>, (outcome, code): (Outcome, u16), more: Fields<'_>) {
        self.metrics.request(asked.kind, outcome);
        self.answer_stranger(asked, code, more);
    }

    /// Answers a request whose sender is not proved, if the answer is not much larger than the request and the sender's
    /// neighbours were not sent too much: who spoofs a source gains nothing by it. Who has a connection spoofs none.
    pub(super) fn answer_stranger(&mut self, asked: Asked<'_>, code: u16, more: Fields<'_>) {
        let tag = self.keys.stateless_tag_of(asked.essentials);
        self.answer_unproved(asked.flow, asked.message, &tag, code, more);
    }

    fn answer_unproved(&mut self, flow: Flow, message: &Message<'_>, tag: &StatelessTag, code: u16, more: Fields<'_>) {
        if flow.connection.is_some() {
            self.write_tagged(flow, message, tag, code, more);
        } else {
            let Some(charged) = self.unproved.admit(self.now.instant, flow.peer.ip()) else {
                return self.metrics.one(Count::AnswersTooMany);
            };
            self.write_tagged(flow, message, tag, code, more);
            if self.scratch.len() > AMPLIFICATION_MAX * message.as_bytes().len() {
                return self.metrics.one(Count::AnswersTooLarge);
            }
            self.unproved.charge(charged, self.scratch.len());
        }
        self.out.push(answer_flow(flow, message), &self.scratch);
    }

    /// The same for a proved sender: sent whatever its size.
    pub(super) fn answer_once(&mut self, asked: Asked<'_>, (outcome, code): (Outcome, u16)) {
        self.metrics.request(asked.kind, outcome);
        self.write_answer(asked.flow, asked.message, code, &[]);
        self.out.push(answer_flow(asked.flow, asked.message), &self.scratch);
    }

    /// A Binding request of STUN (RFC 5626 section 8) is told where it came from, as one answer of those that strangers get. Datagrams
    /// alone: a connection is kept by line breaks.
    pub(super) fn answer_stun(&mut self, flow: Flow, datagram: &[u8]) {
        const { assert!(BindingRequest::ANSWER_LEN_MAX <= AMPLIFICATION_MAX * BindingRequest::LEN_MIN) };
        let Some(request) = BindingRequest::parse(datagram).ok().filter(|_| flow.connection.is_none()) else {
            return self.metrics.one(Count::StunDropped);
        };
        self.metrics.one(Count::Keepalives);
        let Some(charged) = self.unproved.admit(self.now.instant, flow.peer.ip()) else {
            return self.metrics.one(Count::AnswersTooMany);
        };
        request.answer(flow.peer, &mut self.scratch);
        self.unproved.charge(charged, self.scratch.len());
        self.out.push(flow, &self.scratch);
    }

    /// Writes an answer to `scratch`; one of 503 says when to try again.
    pub(super) fn write_answer(&mut self, flow: Flow, message: &Message<'_>, code: u16, more: Fields<'_>) {
        // The same for each retransmission, without remembering it (RFC 3261 section 8.2.7).
        let tag = self.keys.stateless_tag(message);
        self.write_tagged(flow, message, &tag, code, more);
    }

    fn write_tagged(&mut self, flow: Flow, message: &Message<'_>, tag: &StatelessTag, code: u16, more: Fields<'_>) {
        let response = Response::to(message, code).source(flow.peer).to_tag(tag);
        let (others, after) = match more {
            [others @ .., (RETRY_AFTER, after)] => (others, Some(after)),
            others => (others, None),
        };
        let headers = response.begin(&mut self.scratch);
        let headers = others.iter().fold(headers, |headers, (name, value)| headers.header(name, value));
        match after {
            Some(after) => headers.finish_evenly(RETRY_AFTER, after, REFUSAL_BYTES),
            None if code == 503 => headers.header_args(RETRY_AFTER, format_args!("{RETRY_AFTER_SECS}")).finish(),
            None => headers.finish(),
        }
    }

    /// Answers what could not be parsed, if it is answerable at all.
    pub(super) fn answer_malformed(&mut self, flow: Flow, datagram: &[u8], status: Option<u16>) {
        let Some((code, message)) = status.zip(Message::salvage(datagram)) else {
            self.metrics.one(Count::Garbage);
            return;
        };
        let kind = message.method().map_or(Kind::Other, |method| kind_of(method, false));
        self.metrics.request(kind, Outcome::Malformed);
        let tag = self.keys.stateless_tag(&message);
        self.answer_unproved(flow, &message, &tag, code, &[]);
    }

    /// 481: names a dialog or transaction that it does not prove to know.
    pub(super) fn unmatched(&mut self, asked: Asked<'_>) {
        self.answer(asked, (Outcome::Unmatched, 481), &[]);
    }

    /// 503 without a transaction, for a proved sender.
    pub(super) fn unavailable_once(&mut self, asked: Asked<'_>) {
        self.answer(asked, (Outcome::Unavailable, 503), &[]);
    }

    /// 405 for a method that is known and not offered here, 501 for one that nobody knows (RFC 3261 sections 21.4.6 and 21.5.2).
    pub(super) fn no_such_method(&mut self, asked: Asked<'_>) {
        let is_defined = asked.method.is_known() || ELSEWHERE.contains(&asked.method.as_bytes());
        let code = if is_defined { 405 } else { 501 };
        self.answer(asked, (Outcome::Unsupported, code), &[("Allow", ALLOW.as_bytes())]);
    }

    /// 488: would open what no gate was asked for.
    pub(super) fn not_acceptable(&mut self, asked: Asked<'_>) {
        self.answer(asked, (Outcome::Unsupported, 488), &[]);
    }

    /// 420, if one of these fields names an extension that there is not here.
    pub(super) fn refuse_extensions(&mut self, asked: Asked<'_>, fields: &[HeaderName]) -> bool {
        let mut unknown = [("Unsupported", &b""[..]); UNSUPPORTED_MAX];
        let own = if asked.method == Method::Register { &REGISTER_EXTENSIONS[..] } else { &[] };
        let is_known =
            |tag: &&[u8]| is_supported(tag) || own.iter().any(|own| tag.eq_ignore_ascii_case(own.as_bytes()));
        let tags = fields.iter().flat_map(|field| asked.message.headers(*field)).filter(|tag| !is_known(tag));
        let named = unknown.iter_mut().zip(tags).map(|(line, tag)| line.1 = tag).count();
        if named > 0 {
            self.answer(asked, (Outcome::Unsupported, 420), &unknown[..named]);
        }
        named > 0
    }

    /// What is spoken here.
    pub(super) fn on_options(&mut self, asked: Asked<'_>) {
        if !self.settings.is_for_us(asked.message) {
            return self.answer(asked, (Outcome::Denied, 404), &[]);
        }
        let supported: Fields<'_> =
            &[("Allow", ALLOW.as_bytes()), ("Accept", SDP.as_bytes()), ("Supported", b"sluicegate, timer")];
        self.answer(asked, (Outcome::Answered, 200), supported);
    }
}
