//! Our own requests, and what answers them.

use alloc::vec::Vec;
use core::net::SocketAddr;

use sluicegate_wire::Instant;

use super::{
    CHALLENGES_MAX, Challenged, Content, Credentials, Event, Failure, Field, LegId, Parties, UserAgent,
    leg::{Cancel, Leg, UnderWay},
};
use crate::{
    dialog::{Dialog, DialogError},
    message::{Message, Method, Transport},
    transaction::{Reply, StartError, Token},
    write::cancel_for,
};

impl<C: Credentials> UserAgent<C> {
    /// Begins a leg with its first request: INVITE, REGISTER, or a question such as OPTIONS. The leg stays until it ends
    /// ([`Event::Ended`]) or [`UserAgent::forget`] is called.
    ///
    /// # Errors
    /// [`StartError`]: nothing was sent, and there is no leg.
    pub fn start(
        &mut self,
        now: Instant,
        method: Method<'static>,
        parties: Parties<'_>,
        content: Content,
        credentials: Option<C>,
    ) -> Result<LegId, StartError> {
        let id = LegId(self.tokens.number());
        let call_id = self.tokens.text();
        self.legs.insert(id, Leg::ours(method, parties, call_id, credentials));
        self.send(now, id, method, content, &[], 0).inspect_err(|_| self.forget(id))?;
        Ok(id)
    }

    /// Sends the first request of a leg anew: a re-INVITE, or a REGISTER that refreshes.
    ///
    /// # Errors
    /// [`StartError`]: nothing was sent.
    pub fn again(&mut self, now: Instant, leg: LegId, content: Content) -> Result<(), StartError> {
        let Some(method) = self.legs.get(&leg).map(|leg| leg.method) else { return Ok(()) };
        self.send(now, leg, method, content, &[], 0)
    }

    /// Ends a call: BYE, or CANCEL while its INVITE waits. [`Event::Ended`] or the INVITE's answer follows.
    ///
    /// # Errors
    /// [`StartError`]: nothing was sent.
    pub fn end(&mut self, now: Instant, leg: LegId, content: Content) -> Result<(), StartError> {
        let Some(ended) = self.legs.get_mut(&leg) else { return Ok(()) };
        if ended.dialog.is_some() {
            return self.send(now, leg, Method::Bye, content, &[], 0);
        }
        let Some(under_way) = &mut ended.under_way else { return Ok(()) };
        if under_way.cancel == Cancel::No {
            under_way.cancel = Cancel::Due;
            self.cancel(now, leg);
        }
        Ok(())
    }

    /// Forgets a leg: nothing of it is answered or sent any more, but for the ends of its transactions.
    pub fn forget(&mut self, leg: LegId) {
        if let Some(under_way) = self.legs.remove(&leg).and_then(|leg| leg.under_way) {
            self.clients.forget(under_way.token);
        }
    }

    /// From now on we are at `local` and the server at `target`: we moved, or the server fell silent and another one takes
    /// its place. What waits for an answer is asked there, from the beginning.
    pub fn fail_over(&mut self, now: Instant, transport: Transport, local: SocketAddr, target: SocketAddr) {
        (self.settings.transport, self.settings.local, self.settings.target) = (transport, local, target);
        self.clients.set_reliable(transport.is_reliable());
        self.servers.set_reliable(transport.is_reliable());
        let waiting: Vec<_> = self.legs.iter_mut().filter_map(|(id, leg)| Some((*id, leg.under_way.take()?))).collect();
        for (id, UnderWay { token, method, content, .. }) in waiting {
            self.clients.forget(token);
            if self.send(now, id, method, content, &[], 0).is_err() {
                self.events.push_back(Event::Failed { leg: id, failure: Failure::Silent });
            }
        }
    }

    fn send(
        &mut self,
        now: Instant,
        id: LegId,
        method: Method<'static>,
        content: Content,
        credentials: &[Field],
        challenges: u8,
    ) -> Result<(), StartError> {
        let branch = self.tokens.branch();
        let via = self.via(&branch);
        let Some(leg) = self.legs.get_mut(&id) else { return Ok(()) };
        let mut bytes = Vec::new();
        let mut headers = leg.begin(method, id, via, &mut bytes);
        if matches!(method, Method::Invite | Method::Register) {
            headers = headers.header_args("Contact", format_args!("<sip:{}@{}>", leg.contact, via.sent_by));
        }
        content.finish(headers, credentials);
        let token = self.clients.start(now, &Message::parse(&bytes)?, self.settings.target)?;
        if let Some(patience) = self.settings.patience {
            self.patience_ends.push_back((now + patience, id, token));
        }
        let under_way = UnderWay { token, method, bytes: bytes.clone(), content, challenges, cancel: Cancel::No };
        if let Some(before) = leg.under_way.replace(under_way) {
            self.clients.forget(before.token);
        }
        self.transmit(bytes);
        Ok(())
    }

    pub(super) fn on_response(&mut self, now: Instant, from: SocketAddr, response: &Message<'_>) {
        let token = match self.clients.receive(now, response, |peer| peer == from) {
            Reply::Deliver(token) => token,
            Reply::DeliverAndAck(token) => {
                self.transmit_ack(token);
                token
            }
            Reply::Ack(token) => return self.transmit_ack(token),
            Reply::Absorbed | Reply::Unmatched => return,
        };
        // The leg has a copy of what it asked.
        self.clients.release(token);
        let (Some(code), Ok(from)) = (response.status(), response.from()) else { return };
        let Some(id) = from.tag.and_then(LegId::of_tag) else { return };
        let Some(leg) = self.legs.get_mut(&id) else { return };
        match leg.under_way.take_if(|under_way| under_way.token == token) {
            Some(under_way) if code < 200 => {
                leg.under_way = Some(under_way);
                self.cancel(now, id);
            }
            Some(under_way) => self.on_final(now, id, under_way, code, response),
            // A 2xx that comes again: its ACK was lost.
            None if !leg.ack.is_empty() && code / 100 == 2 => {
                let ack = leg.ack.clone();
                self.transmit(ack);
            }
            None => {}
        }
    }

    fn on_final(&mut self, now: Instant, id: LegId, asked: UnderWay, code: u16, response: &Message<'_>) {
        if asked.method == Method::Bye {
            self.legs.remove(&id);
            return self.events.push_back(Event::Ended { leg: id });
        }
        let Some(leg) = self.legs.get_mut(&id) else { return };
        let failure = if code / 100 == 2 {
            self.on_success(now, id, &asked, response).err()
        } else {
            let is_answered =
                matches!(code, 401 | 407) && asked.challenges < CHALLENGES_MAX && asked.cancel == Cancel::No;
            let token = self.tokens.text();
            let target = self.settings.target;
            let credentials = leg.credentials.as_mut().filter(|_| is_answered);
            let fields = credentials.zip(Message::parse(&asked.bytes).ok()).and_then(|(credentials, request)| {
                credentials.answer(Challenged { token: &token, target, request: &request, response })
            });
            if let Some(fields) = fields {
                let sent = self.send(now, id, asked.method, asked.content, &fields, asked.challenges + 1);
                if sent.is_ok() {
                    return;
                }
            }
            None
        };
        self.events.push_back(match failure {
            Some(failure) => Event::Failed { leg: id, failure },
            None => Event::Answered { leg: id, code, response: response.as_bytes().to_vec() },
        });
    }

    fn on_success(&mut self, now: Instant, id: LegId, asked: &UnderWay, response: &Message<'_>) -> Result<(), Failure> {
        let branch = self.tokens.branch();
        let via = self.via(&branch);
        let Some(leg) = self.legs.get_mut(&id) else { return Ok(()) };
        if leg.credentials.as_mut().is_some_and(|credentials| !credentials.believe(response)) {
            return Err(Failure::Distrusted);
        }
        if asked.method != Method::Invite {
            return Ok(());
        }
        let number = response.cseq().map_err(|error| Failure::Dialog(DialogError::Malformed(error)))?.number;
        let dialog = match &mut leg.dialog {
            Some(dialog) => {
                dialog.refresh_target(response);
                dialog
            }
            none => none.insert(Dialog::from_response(response).map_err(Failure::Dialog)?),
        };
        leg.ack.clear();
        dialog.begin_ack(number, via, &mut leg.ack).finish();
        let ack = leg.ack.clone();
        self.transmit(ack);
        if asked.cancel != Cancel::No {
            // The CANCEL came too late, or never left.
            let _ = self.end(now, id, Content::default());
        }
        Ok(())
    }

    /// Sends the CANCEL that is due, once a provisional response has come (RFC 3261 section 9.1).
    fn cancel(&mut self, now: Instant, id: LegId) {
        let Some(under_way) = self.legs.get_mut(&id).and_then(|leg| leg.under_way.as_mut()) else { return };
        if under_way.cancel == Cancel::Due && self.clients.cancel(now, under_way.token) {
            self.send_cancel(now, id);
        }
    }

    /// Nobody answered while it rang (RFC 3261 section 16.8).
    pub(super) fn rang_too_long(&mut self, now: Instant, token: Token) {
        let waits = |leg: &Leg<C>| leg.under_way.as_ref().is_some_and(|under_way| under_way.token == token);
        if let Some(id) = self.legs.iter().find_map(|(id, leg)| waits(leg).then_some(*id)) {
            self.send_cancel(now, id);
        }
    }

    fn send_cancel(&mut self, now: Instant, id: LegId) {
        let Some(under_way) = self.legs.get_mut(&id).and_then(|leg| leg.under_way.as_mut()) else { return };
        under_way.cancel = Cancel::Sent;
        let mut cancel = Vec::new();
        let Ok(request) = Message::parse(&under_way.bytes) else { return };
        if cancel_for(&request, &mut cancel).is_err() {
            return;
        }
        if let Ok(message) = Message::parse(&cancel) {
            // Without room for its transaction it is sent once.
            let _ = self.clients.start(now, &message, self.settings.target);
        }
        self.transmit(cancel);
    }

    /// A transaction ended without a final response.
    pub(super) fn gave_up(&mut self, token: Token) {
        let waits = |leg: &Leg<C>| leg.under_way.as_ref().is_some_and(|under_way| under_way.token == token);
        let Some((id, leg)) = self.legs.iter_mut().find(|(_, leg)| waits(leg)) else { return };
        let id = *id;
        let is_bye = leg.under_way.take().is_some_and(|under_way| under_way.method == Method::Bye);
        if is_bye {
            self.legs.remove(&id);
        }
        self.events.push_back(match is_bye {
            true => Event::Ended { leg: id },
            false => Event::Failed { leg: id, failure: Failure::Silent },
        });
    }

    fn transmit_ack(&mut self, token: Token) {
        if let Some((ack, _)) = self.clients.request(token) {
            let ack = ack.to_vec();
            self.transmit(ack);
        }
    }
}
