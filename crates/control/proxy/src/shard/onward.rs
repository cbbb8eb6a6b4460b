//! A request within a call, or to a client, on its way to the other side.

use sluicegate_sip::{
    message::{HeaderName, Message},
    write::{ForwardRequest, NewBody},
};

use super::{
    answer::{answer_flow, with_session, without_session},
    context::Context,
    keys::Direction,
    names::{NOT_FORWARDED, refusal_of},
    registrar::Hop,
};
use crate::transmits::Flow;

/// One request.
pub(super) struct Onward<'m> {
    pub(super) message: &'m Message<'m>,
    pub(super) from: Flow,
    /// Which way it goes, and where.
    pub(super) to: (Direction, &'m Hop),
    /// The session description in place of its own.
    pub(super) sdp: Option<&'m [u8]>,
    /// Our own Record-Route values, of a request that makes a call.
    pub(super) record_routes: &'m [String],
    /// Route values by which it gets there.
    pub(super) routes: &'m [Vec<u8>],
    /// Max-Breadth in place of its own.
    pub(super) breadth: Option<u16>,
}

impl Onward<'_> {
    /// Sends it without a transaction: both ends repeat it until it is answered.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) fn send(&self, cx: &mut Context) -> Result<(), u16> {
        let ways = |hop: &Hop| (self.to.0, answer_flow(self.from, self.message), hop.flow);
        let to = self.write(cx, |cx, hop| cx.keys.stateless_branch(ways(hop), self.message))?;
        cx.out.push(to, &cx.scratch);
        Ok(())
    }

    /// Writes it to `cx.scratch`, as it goes on with this branch; where it goes.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) fn write(
        &self,
        cx: &mut Context,
        branch: impl Fn(&mut Context, &Hop) -> Option<Vec<u8>>,
    ) -> Result<Flow, u16> {
        let mut hop = self.to.1;
        loop {
            let branch = branch(cx, hop).ok_or(400_u16)?;
            self.write_to(cx, hop, &branch)?;
            match hop.instead(cx.scratch.len()) {
                Some(other) => hop = other,
                None => return Ok(hop.flow),
            }
        }
    }

    fn write_to(&self, cx: &mut Context, hop: &Hop, branch: &[u8]) -> Result<(), u16> {
        let (message, direction, to) = (self.message, self.to.0, hop.flow);
        let body = match self.sdp {
            Some(sdp) => with_session(message, sdp),
            None => without_session(message),
        };
        let contact = match direction {
            Direction::ToClient => cx.outer_contact(message, self.from, to),
            Direction::ToService => None,
        };
        let contact = contact.as_deref().map(|value| ("Contact", value));
        let routes = self.routes.iter().map(|route| ("Route", route.as_slice()));
        let breadth = self.breadth.map(|breadth| breadth.to_string());
        let breadth = breadth.as_deref().map(|breadth| ("Max-Breadth", breadth.as_bytes()));
        let add: Vec<_> = contact.into_iter().chain(routes).chain(breadth).collect();
        let record_routes: Vec<&[u8]> = self.record_routes.iter().map(String::as_bytes).collect();
        let mut remove = NOT_FORWARDED.to_vec();
        remove.extend((direction == Direction::ToClient).then_some(HeaderName::Contact));
        remove.extend(self.breadth.map(|_| HeaderName::MaxBreadth));
        let written = ForwardRequest {
            request: message,
            source: self.from.peer,
            via: cx.settings.via(to, branch),
            uri: Some(&hop.uri),
            record_routes: &record_routes,
            remove_routes: cx.settings.own_routes(message),
            remove: &remove,
            credentials_of: Some(&cx.settings.realm),
            add: &add,
            body: body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes }),
        }
        .write(&mut cx.scratch);
        written.map_err(refusal_of)?;
        if cx.out.links.is_too_long(to.peer, cx.scratch.len()) { Err(513) } else { Ok(()) }
    }
}
