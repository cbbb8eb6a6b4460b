//! Requests of the other side, and our answers.

use alloc::{string::ToString as _, vec::Vec};

use sluicegate_wire::Instant;

use super::{
    Content, Credentials, EVENTS_MAX, Event, LegId, UserAgent,
    leg::{Invited, Leg},
};
use crate::{
    dialog::{Dialog, DialogError},
    message::{Essentials, Message, Method},
    transaction::{Received, Role, Token},
    write::Response,
};

/// When to try again, for whom there is no room.
const RETRY_AFTER_S: u32 = 4;

impl<C: Credentials> UserAgent<C> {
    /// Answers the INVITE of [`Event::Invited`]. A 2xx makes the leg a call, with `contact` as the user part of our
    /// Contact; any other final response to a new one ends the leg. Nothing happens if it was answered or cancelled.
    pub fn respond(&mut self, now: Instant, leg: LegId, code: u16, contact: &str, content: &Content) {
        let own_contact = self.contact(contact);
        let target = self.settings.target;
        let Some(called) = self.legs.get_mut(&leg) else { return };
        let Some(Invited { token, request }) = called.invited.take() else { return };
        let Ok(message) = Message::parse(&request) else { return };
        let (tag, mut code) = (leg.to_string(), code);
        if code / 100 == 2 && called.dialog.is_none() {
            match Dialog::from_request(&message, tag.as_bytes()) {
                Ok(dialog) => called.dialog = Some(dialog),
                Err(_) => code = 400,
            }
        }
        let is_over = code >= 300 && called.dialog.is_none();
        let response = Response::to(&message, code).source(target).to_tag(tag.as_bytes());
        let mut bytes = Vec::new();
        match code {
            200..=299 => {
                let headers = response.record_route().begin(&mut bytes).header("Contact", own_contact);
                content.finish(headers, &[]);
            }
            400 => response.begin(&mut bytes).finish(),
            _ => content.finish(response.begin(&mut bytes), &[]),
        }
        if code < 200 {
            called.invited = Some(Invited { token, request });
        }
        if is_over {
            self.legs.remove(&leg);
        }
        self.reply(now, token, code, bytes);
    }

    pub(super) fn on_request(&mut self, now: Instant, request: &Message<'_>) {
        let Ok(fields) = request.essentials() else { return };
        match self.servers.receive(now, request, &fields) {
            Received::New if request.method() == Some(Method::Ack) => {}
            Received::New => self.on_new_request(now, request, &fields),
            Received::Resend(token) => {
                if let Some((response, _)) = self.servers.response(token) {
                    let response = response.to_vec();
                    self.transmit(response);
                }
            }
            Received::Absorbed | Received::Acknowledged(_) => {}
        }
    }

    fn on_new_request(&mut self, now: Instant, request: &Message<'_>, fields: &Essentials<'_>) {
        let tag = self.tokens.text();
        let has_room = self.events.len() < EVENTS_MAX;
        let opened = has_room.then(|| self.servers.open(now, request, fields, self.settings.target, Role::UserAgent));
        let Some(Ok(token)) = opened else {
            let mut bytes = Vec::new();
            let headers = Response::to(request, 503).to_tag(tag.as_bytes()).begin(&mut bytes);
            headers.header_args("Retry-After", format_args!("{RETRY_AFTER_S}")).finish();
            return self.transmit(bytes);
        };
        let within = self.within(request, fields);
        let code = match (request.method(), within) {
            (Some(Method::Cancel), _) => self.on_cancel(now, fields),
            (Some(Method::Options), _) => 200,
            // Of a call from before this side started anew: accepting it again is what keeps it (RFC 3261 section 12.2.2).
            (Some(Method::Invite), Some(Err(DialogError::NoMatch))) => match self.forgotten(fields) {
                Some(leg) => return self.pass_on(token, request, leg, true),
                None => 481,
            },
            (_, Some(Err(DialogError::Order))) => 500,
            (_, Some(Err(_))) => 481,
            (Some(Method::Bye), Some(Ok(leg))) => {
                self.forget(leg);
                self.events.push_back(Event::Ended { leg });
                200
            }
            (Some(Method::Bye), None) => 481,
            (Some(Method::Invite), Some(Ok(leg))) => match self.legs.get(&leg) {
                Some(Leg { invited: Some(_), .. }) => 500,
                // Ours has crossed it (RFC 3261 section 14.2).
                Some(Leg { under_way: Some(_), .. }) => 491,
                _ => return self.pass_on(token, request, leg, false),
            },
            (Some(Method::Invite), None) => {
                let leg = LegId(self.tokens.number());
                return self.pass_on(token, request, leg, true);
            }
            _ => 405,
        };
        self.answer(now, token, request, code, &tag);
    }

    /// The leg whose dialog a request names; `None` if it names none.
    fn within(&mut self, request: &Message<'_>, fields: &Essentials<'_>) -> Option<Result<LegId, DialogError>> {
        let id = LegId::of_tag(fields.to.tag?);
        let dialog = id.and_then(|id| self.legs.get_mut(&id)?.dialog.as_mut());
        let (Some(id), Some(dialog)) = (id, dialog) else { return Some(Err(DialogError::NoMatch)) };
        Some(dialog.accept(request, fields).map(|()| id))
    }

    /// The leg that a To-tag of ours names, if that leg is not there.
    fn forgotten(&self, fields: &Essentials<'_>) -> Option<LegId> {
        LegId::of_tag(fields.to.tag?).filter(|id| !self.legs.contains_key(id))
    }

    /// Passes an INVITE on to the owner.
    fn pass_on(&mut self, token: Token, request: &Message<'_>, leg: LegId, is_new: bool) {
        let request = request.as_bytes().to_vec();
        let called = self.legs.entry(leg).or_insert_with(|| Leg::theirs(Method::Invite));
        called.invited = Some(Invited { token, request: request.clone() });
        self.events.push_back(Event::Invited { leg, is_new, request });
    }

    /// Ends what a CANCEL is for, if that still waits; the answer to the CANCEL itself (RFC 3261 section 9.2).
    fn on_cancel(&mut self, now: Instant, fields: &Essentials<'_>) -> u16 {
        let Some(cancelled) = self.servers.invite_of(fields) else { return 481 };
        let waits = |leg: &Leg<C>| leg.invited.as_ref().is_some_and(|invited| invited.token == cancelled);
        let Some(id) = self.legs.iter().find(|(_, leg)| waits(leg)).map(|(id, _)| *id) else { return 200 };
        self.respond(now, id, 487, "", &Content::default());
        if !self.legs.contains_key(&id) {
            self.events.push_back(Event::Ended { leg: id });
        }
        200
    }

    fn answer(&mut self, now: Instant, token: Token, request: &Message<'_>, code: u16, tag: &str) {
        let mut bytes = Vec::new();
        Response::to(request, code).source(self.settings.target).to_tag(tag.as_bytes()).begin(&mut bytes).finish();
        self.reply(now, token, code, bytes);
    }

    fn reply(&mut self, now: Instant, token: Token, code: u16, bytes: Vec<u8>) {
        if self.servers.respond(now, token, code, &bytes) {
            self.transmit(bytes);
        }
    }
}
