//! The grants of one call, from the policy's limits to the gate's answers.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use sluicegate_feed::GrantDelta;
use sluicegate_grant::{
    ANY_PORTS, DataMode, FLAG_PROVES_ADDRESS, Grant, GrantId,
    epoch::Epoch,
    mac::{CLIENT_ID_ATTEMPTS, SessionKeys},
};
use sluicegate_policy::{PortProtocol, PortRange, ServiceKind, ServiceMode, data_mode, pseudonym};
use sluicegate_sip::sdp::Session;

use super::{
    admission::{Admitted, readmit},
    context::Context,
    events::Event,
    keys::Keys,
    media::{self, Opened, Want},
    peers,
    settings::Settings,
};
use crate::{calls::CallId, ledger::KnownGrant, metrics::Count, transmits::Flow};

/// One grant that is being opened.
#[derive(Debug, Clone)]
struct Part {
    want: Want,
    /// What the gate is told; once it has answered, with its address and ports.
    delta: GrantDelta,
    opened: bool,
    /// Whether the call had no such grant before.
    is_new: bool,
}

/// The grants of one call, on their way to the gate and back.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    parts: Vec<Part>,
    /// How often the call's sides had agreed on media before.
    agreed: u32,
}

impl Opening {
    /// One grant per want; those of one call share the first 12 bytes of their ids. What the call has open already is
    /// renewed, as a grant stays what it is; for other ports there is another grant, and the call has both until it is
    /// certain which of them it keeps.
    pub(super) fn new(cx: &Context, admitted: &Admitted, client: IpAddr, wants: &[Want]) -> Self {
        let service = &admitted.service;
        let mut known = cx.ledger.grants_of(admitted.call);
        let mut next = known.iter().map(|known| known.id.index() + 1).max().unwrap_or(0);
        let parts = wants.iter().map(|want| {
            let protocol = want.range.protocol.number(service.address);
            let is_same =
                |known: &KnownGrant| (known.protocol, known.ports) == (protocol, (want.range.first, want.range.last));
            let same = known.iter().position(is_same).map(|at| known.remove(at));
            let id = same.map_or_else(|| GrantId::of_call(admitted.call, next), |same| same.id);
            next = next.saturating_add(same.is_none().into());
            let (seal, session) = seal(cx, admitted, id, want);
            let mut delta = GrantDelta {
                grant: grant(cx, admitted, client, (id, seal), want),
                user: admitted.user.clone(),
                service: service.name.clone(),
                target: service.address,
                target_ports: (want.range.first, want.range.last),
                mode: service.mode,
                keys: session,
            };
            let open_at = same.and_then(|same| same.open_at);
            if let Some((address, ports)) = open_at {
                (delta.grant.gate_address, delta.grant.gate_ports) = (address, ports);
            }
            Part { want: *want, delta, opened: open_at.is_some(), is_new: same.is_none() && !admitted.continued }
        });
        Self { parts: parts.collect(), agreed: cx.ledger.agreed(admitted.call) }
    }

    /// Whether it is what the call's sides agree on now: of an INVITE that goes on, a PRACK or UPDATE may have agreed on other
    /// media since.
    pub(super) fn is_latest(&self, cx: &Context, call: CallId) -> bool {
        self.agreed == cx.ledger.agreed(call)
    }

    /// Whether all of it was open before.
    pub(super) fn is_open(&self) -> bool {
        self.parts.iter().all(|part| part.opened)
    }

    /// What the gate is told.
    pub(super) fn deltas(&self) -> Vec<GrantDelta> {
        self.parts.iter().map(|part| part.delta.clone()).collect()
    }

    /// The ids that answers come for.
    pub(super) fn ids(&self) -> impl Iterator<Item = GrantId> {
        self.parts.iter().map(|part| part.delta.grant.id)
    }

    /// Those that the call did not have before.
    pub(super) fn new_ids(&self) -> impl Iterator<Item = GrantId> {
        self.parts.iter().filter(|part| part.is_new).map(|part| part.delta.grant.id)
    }

    /// Narrows what is open to the ports that a telephone's answer names, and for a peer moves it to where that says that its
    /// media are; gives what the gate is to be told of it.
    pub(super) fn narrowed(&mut self, answer: &Session<'_>, client: IpAddr) -> Vec<GrantDelta> {
        let mut wants: Vec<Want> = self.parts.iter().map(|part| part.want).collect();
        media::narrow(&mut wants, Some(answer), client);
        let client = client.to_canonical();
        let told = self.parts.iter_mut().zip(wants).filter_map(|(part, want)| {
            let grant = &mut part.delta.grant;
            if grant.proves_address() || (want.client_ports, client) == (grant.client_ports, grant.client_address) {
                return None;
            }
            // A gate takes from a grant that it has only what makes it last longer.
            grant.not_after = grant.not_after.plus_secs(1);
            (grant.client_ports, grant.client_address) = (want.client_ports, client);
            Some(part.delta.clone())
        });
        told.collect()
    }

    /// Notes a gate's answer; whether now all grants are open.
    pub(super) fn note(&mut self, id: GrantId, address: IpAddr, ports: (u16, u16)) -> bool {
        if let Some(part) = self.parts.iter_mut().find(|part| part.delta.grant.id == id) {
            (part.delta.grant.gate_address, part.delta.grant.gate_ports) = (address, ports);
            part.opened = true;
        }
        self.is_open()
    }

    /// Whether exactly this is open.
    pub(super) fn opens(&self, wants: &[Want]) -> bool {
        self.parts.len() == wants.len()
            && self.parts.iter().zip(wants).all(|(part, want)| part.opened && part.want == *want)
    }

    /// Where each want was opened.
    pub(super) fn opened(&self) -> Vec<Opened> {
        let opened = |Part { want, delta, .. }: &Part| Opened {
            want: *want,
            address: delta.grant.gate_address,
            first_port: delta.grant.gate_ports.0,
        };
        self.parts.iter().filter(|part| part.opened).map(opened).collect()
    }

    /// The portable copies, 200 bytes each.
    pub(super) fn signed(&self, settings: &Settings) -> Vec<u8> {
        self.parts.iter().flat_map(|part| settings.issuer.sign(&part.delta.grant).to_bytes()).collect()
    }
}

/// Where what a service's description names was opened, of what its call has open.
pub(super) fn open_already(cx: &Context, call: CallId, session: &Session<'_>) -> Vec<Opened> {
    let service = cx.ledger.call(call).and_then(|(_, service)| cx.policy.service(&service).cloned());
    let Some(service) = service else { return Vec::new() };
    let known = cx.ledger.grants_of(call);
    let opened = media::wanted_of_answer(session, &service).into_iter().filter_map(|want| {
        let key = (want.range.protocol.number(service.address), (want.range.first, want.range.last));
        let same = known.iter().find(|known| (known.protocol, known.ports) == key)?;
        let (address, (first_port, _)) = same.open_at?;
        Some(Opened { want, address, first_port })
    });
    opened.collect()
}

/// Has gates keep what a telephone's call has open, for as long again as the policy now allows.
pub(super) fn renew(cx: &mut Context, call: CallId) {
    let known = cx.ledger.plain_grants_of(call);
    let Some(client) = known.first().map(|delta| delta.grant.client_address) else { return };
    let range = |delta: &GrantDelta| {
        let (first, last) = delta.target_ports;
        PortProtocol::from_number(delta.grant.protocol).map(|protocol| PortRange { protocol, first, last })
    };
    let wanted: Vec<PortRange> = known.iter().filter_map(range).collect();
    let client = Flow::datagrams(0, SocketAddr::new(client, 0));
    let Some(admitted) = readmit(cx, (call, client), &wanted) else { return };
    let deltas = known.into_iter().map(|mut delta| {
        let limits = &admitted.limits;
        let grant = &mut delta.grant;
        (grant.epoch, grant.not_before) = (Epoch::at(cx.now.unix).0, cx.now.unix);
        grant.not_after = cx.now.unix.plus_secs(limits.lifetime_s.into());
        (grant.bytes, grant.flows, grant.rate_100kbps) = (limits.bytes_max, limits.flows_max, limits.rate_100kbps());
        delta
    });
    let order = Event::Open { service: admitted.service.name.clone(), deltas: deltas.collect() };
    cx.ledger.keep_call(
        call,
        (&admitted.user, &admitted.service.name),
        cx.now.unix.plus_secs(admitted.limits.lifetime_s.into()),
    );
    if cx.raise(order) {
        cx.metrics.one(Count::CallsRenewed);
    }
}

/// Notes where a peer's media come from by this description, and has gates let what its call has open in from there.
///
/// # Errors
/// They may not come from there.
pub(super) fn move_media(cx: &mut Context, call: CallId, session: Option<&Session<'_>>) -> Result<(), &'static str> {
    let Some((party, service)) = cx.ledger.call(call) else { return Ok(()) };
    let Some(media) = peers::media_address(cx, &party, Some(call), session)? else { return Ok(()) };
    cx.ledger.set_media(call, media);
    let moved = cx.ledger.plain_grants_of(call).into_iter().filter(|delta| delta.grant.client_address != media);
    let moved = moved.map(|mut delta| {
        // A gate takes from a grant that it has only what makes it last longer.
        delta.grant.not_after = delta.grant.not_after.plus_secs(1);
        (delta.grant.client_address, delta.grant.client_ports) = (media, ANY_PORTS);
        delta
    });
    let deltas: Vec<_> = moved.collect();
    if !deltas.is_empty() {
        cx.raise(Event::Open { service, deltas });
    }
    Ok(())
}

/// Keeps the calls to SIP servers whose media flow. Without a server that ends them, others would go on for as long as somebody
/// sends under the client's address. As many at a time as can be told.
pub(super) fn renew_flowing(cx: &mut Context) {
    for call in cx.ledger.look(cx.now.unix, cx.openings_left()) {
        let service = cx.ledger.call(call).and_then(|(_, service)| cx.policy.service(&service).cloned());
        if service.is_some_and(|service| service.kind == ServiceKind::Sip) {
            renew(cx, call);
        }
    }
}

/// What a grant's packets must prove, and under which client id.
#[derive(Debug, Clone, Copy)]
struct Seal {
    /// Whether the client proves its address.
    proves: bool,
    least_mode: DataMode,
    client_id: u32,
}

/// An agent proves its address under the grant's session keys, and its packets prove as much as it and their protocol can.
/// A renewal keeps mode, client id and keys of the grant; if this frontend has not got the keys (it was restarted), the
/// agent's renewal makes new ones, and the new client id tells the agent so. A renewal that is not the agent's own leaves
/// the keys where they are.
fn seal(cx: &Context, admitted: &Admitted, id: GrantId, want: &Want) -> (Seal, Option<SessionKeys>) {
    let known = admitted.renewal.then(|| cx.ledger.delta(id)).flatten();
    let known_grant = known.as_ref().map(|delta| &delta.grant);
    if let Some(grant) = known_grant.filter(|grant| grant.proves_address() && admitted.agent.is_none()) {
        let seal = Seal { proves: true, least_mode: grant.least_mode, client_id: grant.client_id };
        return (seal, known.as_ref().and_then(|delta| delta.keys.clone()));
    }
    // Who pings proves nothing, and has no more than its address.
    let is_proved = want.range.protocol != PortProtocol::Icmp;
    let was_sealed = known_grant.is_none_or(Grant::proves_address);
    let Some(agent) = admitted.agent.as_ref().filter(|_| is_proved && was_sealed) else {
        let client_id = known_grant.map_or_else(|| client_id(&cx.keys, admitted.call), |grant| grant.client_id);
        return (Seal { proves: false, least_mode: DataMode::Pinhole, client_id }, None);
    };
    let (secret, mode) = (&agent.secret, data_mode(agent.proves, want.range.protocol));
    let least_mode = known_grant.map_or(mode, |grant| grant.least_mode);
    if let Some(GrantDelta { grant, keys: Some(keys), .. }) = &known {
        return (Seal { proves: true, least_mode, client_id: grant.client_id }, Some(keys.clone()));
    }
    let mut ids = (0..CLIENT_ID_ATTEMPTS).map(|attempt| secret.client_id(id, attempt));
    let client_id = ids.find(|client_id| !cx.ledger.has_client(*client_id)).unwrap_or_else(|| secret.client_id(id, 0));
    (Seal { proves: true, least_mode, client_id }, Some(secret.keys(id)))
}

fn grant(cx: &Context, admitted: &Admitted, client: IpAddr, (id, seal): (GrantId, Seal), want: &Want) -> Grant {
    let service = &admitted.service;
    let unspecified =
        if service.address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let is_filter = service.mode == ServiceMode::Filter;
    Grant {
        flags: if seal.proves { FLAG_PROVES_ADDRESS } else { 0 },
        least_mode: seal.least_mode,
        protocol: want.range.protocol.number(service.address),
        id,
        issuer: cx.settings.issuer.public().id(),
        epoch: Epoch::at(cx.now.unix).0,
        not_before: cx.now.unix,
        not_after: cx.now.unix.plus_secs(admitted.limits.lifetime_s.into()),
        bytes: admitted.limits.bytes_max,
        client_id: seal.client_id,
        flows: admitted.limits.flows_max,
        rate_100kbps: admitted.limits.rate_100kbps(),
        client_address: client.to_canonical(),
        // Of an agent, a key decides who sends, and for TCP its host chooses the port.
        client_ports: if seal.proves { ANY_PORTS } else { want.client_ports },
        gate_address: if is_filter { service.address } else { unspecified },
        gate_ports: if is_filter { (want.range.first, want.range.last) } else { (0, 0) },
        holder: [0; 32],
        user_pseudonym: pseudonym(&cx.keys.pseudonyms, &cx.settings.realm, &accountable(admitted)),
    }
}

/// Who uses what the gate shares between users: of a peer each caller, as the gate would have all its calls share one's rate.
fn accountable(admitted: &Admitted) -> Cow<'_, str> {
    match admitted.media {
        None => Cow::Borrowed(&admitted.user),
        Some(_) => Cow::Owned(format!("{} {}", admitted.user, GrantId::of_call(admitted.call, 0))),
    }
}

/// Unguessable, the same for a call's renewals, and never 0, which would mean no capabilities.
fn client_id(keys: &Keys, call: [u8; 12]) -> u32 {
    let bytes = super::derive(&keys.calls, &call);
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte)) | 1
}
