//! The ladder: what a datagram must pass before anything is done for it, cheap steps first.

use sluicegate_api::Decision;
use sluicegate_policy::is_name;
use sluicegate_sip::{
    message::{Essentials, HeaderName, Message, Method, Start},
    transaction::Received,
    uri::Uri,
};

use super::{
    Now, Shard,
    answer::{ALLOW, credential_fields, kind_of},
    auth::{Claimed, Proof, Verdict},
    events::Event,
    settings::RETRY_AFTER_SECS,
};
use crate::{
    decisions::Decided,
    metrics::{Count, Kind, Outcome},
    transmits::{Flow, Transmits},
};

/// Notes for `trace user` about senders that are not proved, per second.
const UNPROVED_NOTES_PER_SEC: u32 = 20;
/// Stands in notes for what is no name of a user or service.
const NO_NAME: &str = "(no name)";

/// One request on its way up the ladder.
#[derive(Clone, Copy)]
pub(super) struct Asked<'m, 'a> {
    pub(super) flow: Flow,
    pub(super) message: &'m Message<'a>,
    pub(super) essentials: &'m Essentials<'a>,
    pub(super) method: Method<'a>,
    pub(super) kind: Kind,
}

impl Asked<'_, '_> {
    /// The user part of the Request-URI: the service. Empty if there is none.
    pub(super) fn service(&self) -> String {
        let uri = self.message.request_uri().and_then(|uri| Uri::parse(uri).ok());
        let user: Vec<u8> =
            uri.and_then(|uri| uri.user).map(|user| sluicegate_sip::uri::unescape(user).collect()).unwrap_or_default();
        String::from_utf8(user).unwrap_or_default()
    }
}

impl Shard {
    /// Takes one datagram from `flow`.
    pub fn on_datagram(&mut self, now: Now, flow: Flow, datagram: &[u8], out: &mut Transmits) {
        self.instant = now.instant;
        self.metrics.one(Count::Datagrams);
        // The shard that a datagram was handed over by has looked at its trailer.
        let opened = if self.handed_over { Ok(datagram) } else { out.links.open(flow, datagram) };
        let Ok(datagram) = opened else { return self.metrics.one(Count::RelayUnproved) };
        if is_keepalive(datagram) {
            self.metrics.one(Count::Keepalives);
            return;
        }
        match Message::parse(datagram) {
            Err(error) => self.answer_malformed(flow, datagram, error.status(), out),
            Ok(message) => match message.start() {
                Start::Response { code, .. } => self.on_response(now, flow, &message, code, out),
                Start::Request { method, .. } => self.on_request(now, flow, &message, method, out),
            },
        }
        self.metrics.add(Count::TransmitDropped, out.take_dropped());
    }

    fn on_request(&mut self, now: Now, flow: Flow, message: &Message<'_>, method: Method<'_>, out: &mut Transmits) {
        let essentials = match message.essentials() {
            Ok(essentials) => essentials,
            Err(error) => return self.answer_malformed(flow, message.as_bytes(), error.status(), out),
        };
        let in_dialog = essentials.to.tag.is_some();
        let kind = kind_of(method, in_dialog);
        let asked = Asked { flow, message, essentials: &essentials, method, kind };
        match method {
            Method::Ack => return self.on_ack(now, asked, out),
            Method::Cancel => return self.on_cancel(now, asked, out),
            _ => {}
        }
        if self.absorb(now, asked, out) {
            self.metrics.request(kind, Outcome::Absorbed);
            return;
        }
        match method {
            _ if in_dialog => self.on_in_dialog(now, asked, out),
            Method::Options => self.on_options(asked, out),
            Method::Invite => self.on_invite(now, asked, out),
            Method::Register => self.on_register(now, asked, out),
            Method::Bye => self.unmatched(asked, out),
            _ => {
                self.metrics.request(kind, Outcome::Unsupported);
                self.answer_stranger(flow, message, 405, out, |headers| headers.header("Allow", ALLOW));
            }
        }
    }

    /// A retransmission of something authenticated before: its last answer again, without a look at its credentials.
    fn absorb(&mut self, now: Now, asked: Asked<'_, '_>, out: &mut Transmits) -> bool {
        let listener = asked.flow.listener;
        let Some(tables) = self.exchanges.listener(listener) else { return true };
        match tables.server.receive(now.instant, asked.message, asked.essentials) {
            Received::New => return false,
            Received::Resend(token) => {
                if let Some((bytes, peer)) = tables.server.response(token) {
                    out.push(Flow { listener, peer }, bytes);
                }
            }
            Received::Absorbed | Received::Acknowledged(_) => {}
        }
        true
    }

    /// 481: names a dialog or transaction that it does not prove to know.
    pub(super) fn unmatched(&mut self, asked: Asked<'_, '_>, out: &mut Transmits) {
        self.metrics.request(asked.kind, Outcome::Unmatched);
        self.answer_stranger(asked.flow, asked.message, 481, out, |headers| headers);
    }

    /// 503 without a transaction, for a proved sender.
    pub(super) fn unavailable_once(&mut self, asked: Asked<'_, '_>, out: &mut Transmits) {
        self.metrics.request(asked.kind, Outcome::Unavailable);
        self.answer_stranger(asked.flow, asked.message, 503, out, |headers| {
            headers.header_args("Retry-After", format_args!("{RETRY_AFTER_SECS}"))
        });
    }

    fn on_options(&mut self, asked: Asked<'_, '_>, out: &mut Transmits) {
        self.metrics.request(asked.kind, Outcome::Answered);
        self.answer_stranger(asked.flow, asked.message, 200, out, |headers| {
            headers.header("Allow", ALLOW).header("Accept", "application/sdp").header("Supported", "sluicegate")
        });
    }

    /// Who proved to have sent this, or `None` after having asked for (other) credentials.
    pub(super) fn authenticate(&mut self, now: Now, asked: Asked<'_, '_>, out: &mut Transmits) -> Option<Proof> {
        let Asked { flow, message, method, kind, .. } = asked;
        let (_, _, field) = credential_fields(method);
        let verdict = self.authenticator.judge(
            (now.instant, now.unix),
            &self.settings,
            &self.policy,
            (field, message),
            flow.peer,
        );
        match verdict {
            Verdict::Proved(claimed) => {
                // The user is charged before the nonce is used up: else one user's requests, refused or not, would fill
                // the set of used nonces, and nobody could sign in.
                let charged = self.exchanges.charge(now.instant, &claimed.user)
                    && self.authenticator.accept(now.instant, &claimed).is_ok();
                if charged {
                    self.unproved.proved(now.instant, flow.peer.ip());
                    return self.shake_hands(now, asked, claimed, out);
                }
                self.metrics.one(Count::TableFull);
                self.unavailable_once(asked, out);
            }
            Verdict::Challenge { stale, outcome, claimed } => {
                self.metrics.request(kind, outcome);
                if let Some(user) = claimed {
                    let why = match outcome {
                        Outcome::Replay => "these credentials had been used before",
                        _ => "wrong password, disabled, or not allowed to log in this way",
                    };
                    self.decided(now, asked, &user, (outcome, if kind == Kind::Register { 401 } else { 407 }), [why]);
                }
                self.challenge(now, flow, message, method, stale, out);
            }
            Verdict::Malformed => {
                self.metrics.request(kind, Outcome::Malformed);
                self.answer_stranger(flow, message, 400, out, |headers| headers);
            }
            Verdict::Guessing(user) => {
                self.metrics.request(kind, Outcome::Guessing);
                let why = "too many wrong passwords came for this user; one more is looked at every ten seconds";
                self.decided(now, asked, &user, (Outcome::Guessing, 503), [why]);
                self.answer_stranger(flow, message, 503, out, |headers| {
                    headers.header_args("Retry-After", format_args!("{RETRY_AFTER_SECS}"))
                });
            }
        }
        None
    }

    /// The handshake of an agent; of a telephone there is none.
    fn shake_hands(&mut self, now: Now, asked: Asked<'_, '_>, claimed: Claimed, out: &mut Transmits) -> Option<Proof> {
        let Claimed { user, agent, .. } = claimed;
        let Some(claim) = agent else { return Some(Proof { user, agent: None }) };
        match self.authenticator.handshake(&self.settings, asked.message, &claim) {
            Ok(session) => Some(Proof { user, agent: Some(session) }),
            Err(error) => {
                self.metrics.request(asked.kind, Outcome::Handshake);
                let why = error.to_string();
                self.decided(now, asked, &user, (Outcome::Handshake, 403), [why]);
                self.refuse_with(now, asked, 403, None, out);
                None
            }
        }
    }

    /// Leaves a note for `trace user`.
    pub(super) fn decided<S: Into<String>>(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        user: &str,
        (outcome, status): (Outcome, u16),
        steps: impl IntoIterator<Item = S>,
    ) {
        let is_unproved = matches!(outcome, Outcome::BadDigest | Outcome::Guessing | Outcome::Replay);
        if is_unproved && !self.may_note(now) {
            self.unnoted += 1;
            return;
        }
        // What is no name is anything that a stranger may write, and an operator's terminal would obey it.
        let named = |text: &str| if is_name(text) { text.to_owned() } else { NO_NAME.to_owned() };
        let decision = Decision {
            unix: now.unix.0,
            user: named(user),
            service: named(&asked.service()),
            client: asked.flow.peer,
            outcome: outcome.label().into(),
            status,
            steps: steps.into_iter().map(Into::into).collect(),
        };
        let decided = Decided {
            decision,
            renewal: asked.kind == Kind::Reinvite,
            left_out: if is_unproved { std::mem::take(&mut self.unnoted) } else { 0 },
        };
        self.raise(Event::Decided(decided));
    }

    /// Whether one more note about an unproved sender may be left: a flood of wrong passwords must not push out everything
    /// else.
    const fn may_note(&mut self, now: Now) -> bool {
        if self.notes.0 != now.unix.0 {
            self.notes = (now.unix.0, 0);
        }
        self.notes.1 += 1;
        self.notes.1 <= UNPROVED_NOTES_PER_SEC
    }

    /// Whether the request names us or our realm: no one else's calls are carried.
    pub(super) fn is_for_us(&self, message: &Message<'_>) -> bool {
        let Some(Ok(uri)) = message.request_uri().map(Uri::parse) else { return false };
        uri.host_is(&self.settings.realm)
            || uri
                .host
                .and_then(|host| host.address())
                .is_some_and(|ip| self.settings.addresses.iter().any(|own| own.ip() == ip))
    }

    /// Extensions that the sender demands of us and that we do not have (RFC 3261 section 8.2.2.3).
    pub(super) fn unsupported(message: &Message<'_>) -> Vec<u8> {
        let fields = [HeaderName::Require, HeaderName::ProxyRequire];
        let tags = fields.into_iter().flat_map(|field| message.headers(field));
        let unknown: Vec<&[u8]> = tags.filter(|tag| !tag.eq_ignore_ascii_case(b"sluicegate")).collect();
        unknown.join(&b", "[..])
    }
}

/// Line breaks (RFC 5626 section 4.4.1), nothing at all, or STUN, which never begins like text.
fn is_keepalive(datagram: &[u8]) -> bool {
    let is_stun = datagram.len() >= 20 && datagram.get(4..8) == Some(&[0x21, 0x12, 0xa4, 0x42]);
    is_stun || datagram.iter().all(|byte| matches!(byte, b'\r' | b'\n' | 0))
}
