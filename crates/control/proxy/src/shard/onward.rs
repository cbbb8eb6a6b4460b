//! A request on its way to the other side: to its service, within a call, or to a client.

use sluicegate_policy::ServiceKind;
use sluicegate_sip::{
    message::{HeaderName, Message, Method},
    sdp::Session,
    write::{ForwardRequest, NewBody},
};

use super::{
    admission::Admitted,
    answer::{answer_flow, with_session, without_session},
    context::Context,
    keys::{Caller, Direction, Route},
    ladder::Asked,
    media,
    names::{NOT_FORWARDED, refusal_of},
    paths, peers,
    registrar::Hop,
    responses::Makes,
    timers,
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

/// A request as it goes to its service.
///
/// # Errors
/// The status to answer with.
pub(super) fn forwarded(
    cx: &mut Context,
    asked: Asked<'_>,
    admitted: &Admitted,
    hop: &Hop,
    offer: Option<&Session<'_>>,
) -> Result<Vec<u8>, u16> {
    if asked.method == Method::Register {
        return paths::forwarded(cx, asked, admitted, hop);
    }
    let Asked { flow, message, essentials, .. } = asked;
    let branch = cx.new_branch(Some((Direction::ToService.sender(), message)));
    let route = Route {
        call: admitted.call,
        service: admitted.service.name.clone(),
        client: flow,
        caller: Direction::ToService.sender(),
    };
    let caller = Caller { call_id: essentials.call_id, tag: essentials.from.tag.unwrap_or_default() };
    let makes = Makes::of(message);
    let record_routes = match makes {
        Makes::Nothing => Vec::new(),
        _ => cx.record_routes(&route, caller, [hop.flow, flow]),
    };
    let record_routes: Vec<&[u8]> = record_routes.iter().map(String::as_bytes).collect();
    let identity = peers::identity(cx, &admitted.user, message);
    let sdp = offer.map(|offer| media::rewrite_offer(offer, admitted.media.unwrap_or_else(|| flow.peer.ip())));
    let body = sdp.and_then(|sdp| with_session(message, &sdp));
    // Within a dialog the client names the service's own Contact, as far as it knows that; outside of it the service's name, or
    // what the service knows by another.
    let is_own_name = !admitted.renewal && asked.service() == admitted.service.name;
    let uri = if is_own_name { Some(hop.uri.clone()) } else { cx.inner_uri(message, &hop.uri) };
    // Our agent is told how long what it lets in lasts; with a SIP server, one of the two sides is asked to refresh.
    let timer = match admitted.service.kind {
        ServiceKind::Agent => admitted.limits.lifetime_s.to_string(),
        _ => timers::for_service(message, admitted.limits.lifetime_s),
    };
    let identity = identity.as_ref().map(|identity| ("P-Asserted-Identity", identity.as_bytes()));
    let timer = (makes == Makes::Call).then_some(("Session-Expires", timer.as_bytes()));
    let add: Vec<_> = identity.into_iter().chain(timer).collect();
    let remove = [NOT_FORWARDED, &[HeaderName::SessionExpires]].concat();
    let mut out = Vec::with_capacity(message.as_bytes().len() + 512);
    let request = ForwardRequest {
        request: message,
        source: flow.peer,
        via: cx.settings.via(hop.flow, &branch),
        uri: uri.as_deref(),
        record_routes: &record_routes,
        remove_routes: cx.settings.own_routes(message),
        remove: &remove,
        credentials_of: Some(&cx.settings.realm),
        add: &add,
        body: body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes }),
    };
    request.write(&mut out).map(|()| out).map_err(refusal_of)
}
