//! The ladder: what a datagram must pass before anything is done for it, cheap steps first.

use std::{convert::Infallible, sync::Arc};

use sluicegate_sip::{
    message::{Essentials, HeaderName, Message, Method, ParseError, Peek, Start},
    stun::is_stun,
    transaction::Received,
    uri::Uri,
};

use super::{
    Now, Shard,
    admission::admit,
    answer::kind_of,
    auth::Proof,
    dialog::{ends_refusal, on_ack, pass_back},
    inbound::call_user,
    keys::BranchOwner,
    names::user_in,
    paths::{is_by_path, register, registers_at},
    shedding::{hears, shed},
    transactions::Id,
    watch,
};
use crate::{
    metrics::{Count, Kind, Outcome, labelled},
    proofs::Proofs,
    transmits::Flow,
};

/// One request on its way up the ladder.
#[derive(Clone, Copy)]
pub(super) struct Asked<'m> {
    pub(super) flow: Flow,
    pub(super) message: &'m Message<'m>,
    pub(super) essentials: &'m Essentials<'m>,
    pub(super) method: Method<'m>,
    pub(super) kind: Kind,
}

impl Asked<'_> {
    /// The user part of the Request-URI: the service. Empty if there is none.
    pub(super) fn service(&self) -> String {
        self.message.request_uri().and_then(user_in).unwrap_or_default()
    }

    /// Where it came from, and all of it, to be remembered.
    pub(super) fn kept(&self) -> (Flow, Arc<[u8]>) {
        (self.flow, self.message.as_bytes().into())
    }

    /// What can be told of a request outside dialogs before anybody is asked for credentials (RFC 3261 section 16.3).
    ///
    /// # Errors
    /// The status to answer with.
    fn check(&self) -> Result<(), u16> {
        let uri = Uri::parse(self.message.request_uri().unwrap_or_default()).map_err(|_| 400_u16)?;
        if !uri.is_sip() {
            return Err(416);
        }
        // Whoever asks what is spoken at the last hop that its request reaches is answered there (section 11).
        if self.essentials.max_forwards == Some(0) && self.method != Method::Options {
            return Err(483);
        }
        Ok(())
    }

    /// In which fields it demands extensions of us, before it is known whether we answer it ourselves.
    const fn demands(&self) -> &'static [HeaderName] {
        match self.method {
            Method::Options | Method::Register => &[HeaderName::ProxyRequire, HeaderName::Require],
            _ => &[HeaderName::ProxyRequire],
        }
    }
}

labelled! {
    /// Where a datagram leaves the ladder. In the order in which it is climbed; before [`Rung::Credentials`] nothing is
    /// allocated or remembered.
    Rung {
        /// Is it a distant gate's? Needs the bytes and their source. One look-up, and for those gates one SipHash over all of it.
        Seal = "seal",
        /// Is it a keep-alive? Needs the first eight bytes, and all of them if they are line breaks or STUN, which has a short
        /// answer.
        KeepAlive = "keep_alive",
        /// May it be an answer to a request of ours? Needs a [`Peek`], a few lines. One MAC, for responses only. ACKs of answers
        /// that are not remembered end here as well, but are heard first; with one look-up.
        Glance = "glance",
        /// Do all wait for too long, and does its source send more than others? One keyed hash and two counters, of datagrams only.
        Pace = "pace",
        /// Does it follow the grammar? Needs all of it, and reads it once: some 300 ns.
        Grammar = "grammar",
        /// A response: has the topmost Via a branch of ours? Needs the fields that make a transaction. One MAC, then a look-up.
        Response = "response",
        /// ACK and CANCEL, which nobody is asked for credentials of: are they of a transaction or dialog? One or two look-ups.
        Transaction = "transaction",
        /// Was it answered before? One keyed hash and a look-up; its answer is sent again.
        Retransmission = "retransmission",
        /// Does more come than can be served? One or two keyed hashes; what is refused has one answer written.
        Overload = "overload",
        /// Within a dialog: was its tag or cookie made here, does the call live, who speaks? One MAC, one look-up under the lock
        /// of the directory.
        Dialog = "dialog",
        /// Is it to be answered whoever sent it: OPTIONS, or what no proxy passes on (RFC 3261 section 16.3)? Writes one answer.
        Method = "method",
        /// Who is it? One MAC for a nonce, three hashes for a digest, a look-up for a replay; for agents a handshake of three
        /// X25519.
        Credentials = "credentials",
        /// What may it? Whatever the rules cost; what passes has a transaction, and is relayed or opened.
        Rules = "rules",
    }
}

/// What a rung lets pass, or that it ends here.
type Passed<T> = Result<T, Rung>;

impl Shard {
    /// Takes one datagram from `flow`.
    pub fn on_datagram(&mut self, now: Now, flow: Flow, datagram: &[u8]) {
        self.cx.now = now;
        self.cx.metrics.one(Count::Datagrams);
        let Err(left) = self.climb(flow, datagram);
        self.cx.metrics.left(left);
        self.cx.metrics.add(Count::TransmitDropped, self.cx.out.take_dropped());
    }

    /// Takes one message that came over a connection, over which this was proved.
    pub fn on_message(&mut self, now: Now, flow: Flow, proofs: &Arc<Proofs>, message: &[u8]) {
        self.cx.proofs = Some(Arc::clone(proofs));
        self.on_datagram(now, flow, message);
        self.cx.proofs = None;
    }

    /// A request that cannot be sent: what it is for goes on as if its receiver had answered 503 (RFC 3261 sections 8.1.3.1
    /// and 16.9).
    pub(super) fn on_undelivered(&mut self, flow: Flow, message: &[u8]) {
        let Ok(request) = Message::parse(message) else { return };
        // A response has no answer, and neither has an ACK.
        if request.method().is_none_or(|method| method == Method::Ack) {
            return;
        }
        self.cx.write_answer(flow, &request, 503, &[]);
        let answer = std::mem::take(&mut self.cx.scratch);
        if let Ok(answer) = Message::parse(&answer) {
            self.cx.is_undelivered = true;
            self.on_response(flow, &answer, 503);
            self.cx.is_undelivered = false;
        }
    }

    /// A stream from `flow` has ended in what is no message; `begun` is what came of it. Answers it where it can be.
    pub fn on_broken(&mut self, now: Now, flow: Flow, begun: &[u8], error: ParseError) {
        self.cx.now = now;
        self.cx.metrics.one(Count::Datagrams);
        self.cx.answer_malformed(flow, begun, error.status());
        self.cx.metrics.left(Rung::Grammar);
    }

    /// The ladder. A verdict that needs no more than a rung has found out goes behind that rung.
    fn climb(&mut self, flow: Flow, datagram: &[u8]) -> Passed<Infallible> {
        let datagram = self.unseal(flow, datagram)?;
        self.take_keep_alive(flow, datagram)?;
        if !self.glance(datagram)? {
            self.hear(flow)?;
        }
        self.end_refusal(flow, datagram)?;
        let message = self.parse(flow, datagram)?;
        watch::note_received(&self.cx, flow, &message);
        let method = self.take_response(flow, &message)?;
        let essentials = self.essentials(flow, &message)?;
        let kind = kind_of(method, essentials.to.tag.is_some());
        let asked = Asked { flow, message: &message, essentials: &essentials, method, kind };
        self.end_transaction(asked)?;
        self.absorb(asked)?;
        self.shed(asked)?;
        self.take_in_dialog(asked)?;
        self.answer_method(asked)?;
        self.take_of_service(asked)?;
        let proof = self.authenticate(asked).ok_or(Rung::Credentials)?;
        self.decide(asked, proof);
        Err(Rung::Rules)
    }

    fn unseal<'d>(&mut self, flow: Flow, datagram: &'d [u8]) -> Passed<&'d [u8]> {
        // The shard that a datagram was handed over by has looked at its trailer.
        let opened = if self.cx.handed_over { Ok(datagram) } else { self.cx.out.links.open(flow, datagram) };
        opened.map_err(|_| {
            self.cx.metrics.one(Count::RelayUnproved);
            Rung::Seal
        })
    }

    fn take_keep_alive(&mut self, flow: Flow, datagram: &[u8]) -> Passed<()> {
        if is_stun(datagram) {
            self.cx.answer_stun(flow, datagram);
        } else if are_line_breaks(datagram) {
            self.cx.metrics.one(Count::Keepalives);
        } else {
            return Ok(());
        }
        Err(Rung::KeepAlive)
    }

    /// Whether it may be an answer to a request of ours. A flood of made-up responses costs no more than this.
    fn glance(&self, datagram: &[u8]) -> Passed<bool> {
        let head = datagram.trim_ascii_start().first_chunk::<4>();
        if !head.is_some_and(|head| head.eq_ignore_ascii_case(b"SIP/")) {
            return Ok(false);
        }
        let Some(Peek { method: None, branch, .. }) = Peek::at(datagram) else { return Ok(false) };
        if branch.is_some_and(|branch| self.cx.keys.may_have_made(branch)) {
            return Ok(true);
        }
        self.cx.metrics.one(Count::ResponsesUnmatched);
        Err(Rung::Glance)
    }

    /// Before anything is spent on it.
    fn hear(&mut self, flow: Flow) -> Passed<()> {
        match hears(&self.cx, &mut self.shedding, &self.registrar, flow) {
            true => Ok(()),
            false => Err(Rung::Pace),
        }
    }

    /// The ACK of a refusal that is not remembered. Whoever traces is to see all of it.
    fn end_refusal(&self, flow: Flow, datagram: &[u8]) -> Passed<()> {
        if self.cx.settings.traces.is_on() || !ends_refusal(&self.cx, &self.exchanges, flow, datagram) {
            return Ok(());
        }
        self.cx.metrics.request(Kind::Ack, Outcome::Absorbed);
        Err(Rung::Glance)
    }

    fn parse<'d>(&mut self, flow: Flow, datagram: &'d [u8]) -> Passed<Message<'d>> {
        Message::parse(datagram).map_err(|error| {
            self.cx.answer_malformed(flow, datagram, error.status());
            Rung::Grammar
        })
    }

    fn essentials<'d>(&mut self, flow: Flow, message: &Message<'d>) -> Passed<Essentials<'d>> {
        message.essentials().map_err(|error| {
            self.cx.answer_malformed(flow, message.as_bytes(), error.status());
            Rung::Grammar
        })
    }

    /// Responses end here; the method of a request.
    fn take_response<'d>(&mut self, flow: Flow, message: &Message<'d>) -> Passed<Method<'d>> {
        match message.start() {
            Start::Request { method, .. } => Ok(method),
            Start::Response { code, .. } => {
                self.on_response(flow, message, code);
                Err(Rung::Response)
            }
        }
    }

    /// A response: of use only if its branch is ours.
    fn on_response(&mut self, flow: Flow, message: &Message<'_>, code: u16) {
        let cx = &mut self.cx;
        match cx.keys.owner_of(flow, message) {
            None => cx.metrics.one(Count::ResponsesUnmatched),
            Some(BranchOwner::Stateless(..)) if !cx.may_pass(message) => cx.metrics.one(Count::ResponsesTooMany),
            Some(BranchOwner::Stateless(direction, to)) => pass_back(cx, flow, message, (direction, to)),
            Some(BranchOwner::Shard(shard)) if shard == cx.settings.shard => {
                self.exchanges.on_response(cx, &mut self.legs, flow, message, code);
            }
            Some(BranchOwner::Shard(_)) if cx.handed_over => {}
            Some(BranchOwner::Shard(shard)) => cx.hand_over(shard, flow, message.as_bytes()),
        }
    }

    fn end_transaction(&mut self, asked: Asked<'_>) -> Passed<()> {
        match asked.method {
            Method::Ack => on_ack(&mut self.cx, &mut self.exchanges, (&self.registrar, &self.legs), asked),
            Method::Cancel => self.exchanges.on_cancel(&mut self.cx, asked),
            _ => return Ok(()),
        }
        Err(Rung::Transaction)
    }

    fn take_in_dialog(&mut self, asked: Asked<'_>) -> Passed<()> {
        if asked.essentials.to.tag.is_none() {
            return Ok(());
        }
        self.on_in_dialog(asked);
        Err(Rung::Dialog)
    }

    /// What could not be carried out is not worth asking for credentials.
    fn answer_method(&mut self, asked: Asked<'_>) -> Passed<()> {
        if let Err(code) = asked.check() {
            self.cx.answer(asked, (Outcome::Malformed, code), &[]);
            return Err(Rung::Method);
        }
        if self.cx.refuse_extensions(asked, asked.demands()) {
            return Err(Rung::Method);
        }
        match asked.method {
            Method::Options if !self.is_of_service(asked) && !is_by_path(&self.cx, asked.message) => {
                self.cx.on_options(asked);
            }
            Method::Bye => self.cx.unmatched(asked),
            _ => return Ok(()),
        }
        Err(Rung::Method)
    }

    fn decide(&mut self, asked: Asked<'_>, proof: Proof) {
        let Self { cx, exchanges, registrar, .. } = self;
        if cx.policy.peer(&proof.user).is_some() && asked.method == Method::Register {
            let why = "a peer is known by its certificate and registers nowhere";
            return exchanges.transactions.deny(cx, asked, &proof.user, Outcome::Denied, why);
        }
        if asked.method == Method::Register {
            return match registers_at(cx, asked, &proof) {
                Some(service) => register(cx, exchanges, registrar, asked, (proof.user, service)),
                None => registrar.on_register(cx, &mut exchanges.transactions, asked, proof),
            };
        }
        let is_ours = cx.settings.is_for_us(asked.message);
        let name = if is_ours { asked.service() } else { String::new() };
        // Whoever registers a SIP server calls for it, unless what it calls is a service.
        let is_to_service = cx.policy.service(&name).is_some() && !is_by_path(cx, asked.message);
        if let (false, Some(service)) = (is_to_service, cx.policy.sip_server_of(&proof.user).cloned()) {
            return call_user(cx, exchanges, registrar, asked, service, &name);
        }
        let service = cx.policy.dialled(&name).map_or(name, |service| service.name.clone());
        admit(cx, exchanges, registrar, asked, proof, (&service, None));
    }

    /// Whether a service shows without credentials that it sent this.
    fn is_of_service(&self, asked: Asked<'_>) -> bool {
        self.registrar.sender(&self.cx, asked.flow).is_some()
    }

    /// What a service sends its users, if that is shown without credentials.
    fn take_of_service(&mut self, asked: Asked<'_>) -> Passed<()> {
        let Self { cx, exchanges, registrar, .. } = self;
        // Who registers shows a password, whoever it is.
        let sender = registrar.sender(cx, asked.flow).filter(|_| asked.method != Method::Register);
        let Some(service) = sender else { return Ok(()) };
        let name = if cx.settings.is_for_us(asked.message) { asked.service() } else { String::new() };
        call_user(cx, exchanges, registrar, asked, service, &name);
        Err(Rung::Rules)
    }

    fn shed(&mut self, asked: Asked<'_>) -> Passed<()> {
        if shed(&mut self.cx, &mut self.shedding, (&self.registrar, &self.authenticator), asked) {
            Err(Rung::Overload)
        } else {
            Ok(())
        }
    }

    /// A retransmission of something authenticated before: its last answer again, without a look at its credentials.
    fn absorb(&mut self, asked: Asked<'_>) -> Passed<()> {
        let transactions = &mut self.exchanges.transactions;
        match transactions.receive(&self.cx, asked) {
            Received::New => return Ok(()),
            Received::Resend(token) => {
                transactions.respond_again(&mut self.cx, Id { listener: asked.flow.listener, token });
            }
            Received::Absorbed | Received::Acknowledged(_) => {}
        }
        self.cx.metrics.request(asked.kind, Outcome::Absorbed);
        Err(Rung::Retransmission)
    }
}

/// Line breaks (RFC 5626 section 4.4.1), or nothing at all.
fn are_line_breaks(datagram: &[u8]) -> bool {
    datagram.iter().all(|byte| matches!(byte, b'\r' | b'\n' | 0))
}
