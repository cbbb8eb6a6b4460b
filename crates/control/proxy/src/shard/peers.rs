//! Peers: carriers and PBXs elsewhere. They show certificates instead of passwords, say for others who calls, and their media
//! come from elsewhere than their SIP.

use std::{net::IpAddr, sync::Arc};

use sluicegate_policy::SipPeer;
use sluicegate_sip::{
    message::{HeaderName, Message, NameAddr},
    sdp::Session,
    uri::Uri,
};

use super::{
    admission::Admitted,
    context::Context,
    events::Event,
    exchanges::Exchange,
    forks::Target,
    ladder::Asked,
    names::{is_anonymous, user_in},
    responses::description,
    settings::place,
};
use crate::{calls::CallId, ledger::Begun, metrics::Count, transmits::Flow};

/// Why a description of a peer opens nothing.
pub(super) const MEDIA_ELSEWHERE: &str =
    "its media come from several addresses, or from none that the peer's may come from";

/// The peer whose message this is: it came from one of its addresses, over TLS, by whoever showed its certificate.
pub(super) fn sending_peer(cx: &Context, flow: Flow) -> Option<&Arc<SipPeer>> {
    let shown = &cx.proofs.as_ref().filter(|_| flow.connection.is_some())?.certificates;
    let is_it = |peer: &&Arc<SipPeer>| {
        peer.is_at(flow.peer.ip()) && peer.certificate.as_ref().is_some_and(|own| shown.contains(own))
    };
    cx.policy.peers().find(is_it)
}

/// Whether one more call may begin that way, as far as peers are held to a rate.
pub(super) fn may_begin(cx: &Context, party: &str, begun: Begun) -> bool {
    let peer = cx.policy.peer(party);
    peer.is_none_or(|peer| cx.ledger.begin(cx.now.instant, party, begun, peer.calls_per_s))
}

/// 503 to what is more than a peer is held to. A note for each would push out what others did.
pub(super) fn peer_busy(cx: &mut Context, asked: Asked<'_>) {
    cx.metrics.one(Count::PeerBusy);
    cx.unavailable_once(asked);
}

/// How many calls whoever goes by this name may have at once.
pub(super) fn calls_max(cx: &Context, party: &str) -> usize {
    cx.policy.peer(party).map_or(usize::MAX, |peer| peer.calls_max as usize)
}

/// Whether whoever goes by this name may send a request with its From and identity: a user its own, a peer those for whom
/// it speaks, and nobody else's here.
pub(super) fn may_call_as(cx: &Context, asked: Asked<'_>, party: &str) -> bool {
    let Some(peer) = cx.policy.peer(party) else { return cx.settings.is_from(asked, party) };
    let from = asked.essentials.from.uri;
    let is_nobody = Uri::parse(from).is_ok_and(|uri| is_anonymous(&uri));
    let mut said = asserted(asked.message).into_iter().chain((!is_nobody).then_some(from));
    said.all(|uri| user_in(uri).is_some_and(|caller| may_speak_for(cx, peer, &caller)))
}

fn may_speak_for(cx: &Context, peer: &SipPeer, caller: &str) -> bool {
    let is_ours = cx.policy.party(caller).is_some() || cx.policy.service(caller).is_some();
    peer.may_speak_for(caller) && !is_ours
}

/// Who calls, as a service may believe it (RFC 3325): nobody is named if a peer does not say.
pub(super) fn identity(cx: &Context, party: &str, message: &Message<'_>) -> Option<String> {
    let name = match cx.policy.peer(party) {
        None => party.to_owned(),
        Some(_) => {
            let from = message.from().ok().map(|from| from.uri);
            let from = from.filter(|uri| Uri::parse(uri).is_ok_and(|uri| !is_anonymous(&uri)));
            user_in(asserted(message).or(from)?)?
        }
    };
    Some(format!("<sip:{name}@{}>", cx.settings.realm))
}

/// Where a service's request for this number goes, if a peer takes it.
pub(super) fn called_peer(cx: &Context, number: &str) -> Option<(String, Target)> {
    let peer = cx.policy.peer_dialled(number)?;
    let sip = peer.sip?;
    let flow = cx.settings.way(sip.transport, sip.address)?;
    let uri = format!("sip:{number}@{}", place(sip.address, sip.transport)).into_bytes();
    Some((peer.party(), Target { flow, uri, routes: Vec::new(), q: 0, others: Vec::new() }))
}

/// Where the media of whoever goes by this name come from that describes them so, or if nothing is described where they
/// came from in this call, or else come from first. `None`: no peer, whose media come from where it signed in.
///
/// # Errors
/// [`MEDIA_ELSEWHERE`].
pub(super) fn media_address(
    cx: &Context,
    party: &str,
    call: Option<CallId>,
    described: Option<&Session<'_>>,
) -> Result<Option<IpAddr>, &'static str> {
    let Some(peer) = cx.policy.peer(party) else { return Ok(None) };
    let known = || call.and_then(|call| cx.ledger.media_of(call));
    let first = || peer.media().first().map(|network| network.first());
    Ok(described_address(peer, described)?.or_else(known).or_else(first))
}

/// Where the client of a call sends from, who signed in from here.
pub(super) fn client_ip(cx: &Context, call: CallId, client: Flow) -> IpAddr {
    cx.ledger.media_of(call).unwrap_or_else(|| client.peer.ip())
}

impl Exchange {
    /// Where the client sends from.
    pub(super) fn client_ip(&self) -> IpAddr {
        self.admitted.media.unwrap_or_else(|| self.client().peer.ip())
    }
}

/// The one address that a peer's description names; none if it is on hold or describes nothing.
fn described_address(peer: &SipPeer, described: Option<&Session<'_>>) -> Result<Option<IpAddr>, &'static str> {
    let lines = described.into_iter().flat_map(|session| session.media()).filter(|line| line.port != 0);
    let mut named = lines.filter_map(|line| line.address).filter(|address| !address.is_unspecified());
    let Some(first) = named.next().map(|address| address.to_canonical()) else { return Ok(None) };
    let is_one = named.all(|address| address.to_canonical() == first);
    if is_one && peer.has_media_at(first) { Ok(Some(first)) } else { Err(MEDIA_ELSEWHERE) }
}

/// The SIP URI by which a message asserts who sent it.
fn asserted<'m>(message: &Message<'m>) -> Option<&'m [u8]> {
    let values = message.headers(HeaderName::PAssertedIdentity).filter_map(NameAddr::parse);
    values.map(|address| address.uri).find(|uri| Uri::parse(uri).is_ok_and(|uri| uri.is_sip()))
}

/// Notes where the media of a peer come from that was called, as its answer says. Early ones are let in from there at once.
///
/// # Errors
/// They may not come from there.
pub(super) fn note_media(
    cx: &mut Context,
    exchange: &mut Exchange,
    message: &Message<'_>,
    code: u16,
) -> Result<(), &'static str> {
    let Some(session) = description(message, code) else { return Ok(()) };
    let Admitted { user, service, call, .. } = &exchange.admitted;
    let Some(media) = media_address(cx, user, Some(*call), Some(&session))? else { return Ok(()) };
    cx.ledger.set_media(*call, media);
    let service = service.name.clone();
    exchange.admitted.media = Some(media);
    if let Some(opening) = exchange.opening.as_mut().filter(|_| code < 200) {
        let deltas = opening.narrowed(&session, media);
        if !deltas.is_empty() {
            cx.raise(Event::Open { service, deltas });
        }
    }
    Ok(())
}
