//! The grants of one call, from the policy's limits to the gate's answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluicegate_feed::GrantDelta;
use sluicegate_grant::{
    ANY_PORTS, DataMode, FLAG_PROVES_ADDRESS, Grant, GrantId,
    epoch::Epoch,
    mac::{CLIENT_ID_ATTEMPTS, SessionKeys},
};
use sluicegate_policy::{PortProtocol, ServiceMode, data_mode, pseudonym};

use super::{
    admission::Admitted,
    context::Context,
    keys::Keys,
    media::{Opened, Want},
    settings::Settings,
};

/// One grant that is being opened.
#[derive(Debug, Clone)]
struct Part {
    want: Want,
    /// What the gate is told; once it has answered, with its address and ports.
    delta: GrantDelta,
    opened: bool,
}

/// The grants of one call, on their way to the gate and back.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    parts: Vec<Part>,
}

impl Opening {
    /// One grant per want; those of one call share the first 12 bytes of their ids, in the order of the wants, so that a
    /// renewal with the same description renews the same grants.
    pub(super) fn new(cx: &Context, admitted: &Admitted, client: IpAddr, wants: &[Want]) -> Self {
        let service = &admitted.service;
        let parts = wants.iter().zip(0..).map(|(want, index)| {
            let id = GrantId::of_call(admitted.call, index);
            let (seal, session) = seal(cx, admitted, id, want);
            let delta = GrantDelta {
                grant: grant(cx, admitted, client, (id, seal), want),
                user: admitted.user.clone(),
                service: service.name.clone(),
                target: service.address,
                target_ports: (want.range.first, want.range.last),
                mode: service.mode,
                keys: session,
            };
            Part { want: *want, delta, opened: false }
        });
        Self { parts: parts.collect() }
    }

    /// What the gate is told.
    pub(super) fn deltas(&self) -> Vec<GrantDelta> {
        self.parts.iter().map(|part| part.delta.clone()).collect()
    }

    /// The ids that answers come for.
    pub(super) fn ids(&self) -> impl Iterator<Item = GrantId> {
        self.parts.iter().map(|part| part.delta.grant.id)
    }

    /// Notes a gate's answer; whether now all grants are open.
    pub(super) fn note(&mut self, id: GrantId, address: IpAddr, ports: (u16, u16)) -> bool {
        if let Some(part) = self.parts.iter_mut().find(|part| part.delta.grant.id == id) {
            (part.delta.grant.gate_address, part.delta.grant.gate_ports) = (address, ports);
            part.opened = true;
        }
        self.parts.iter().all(|part| part.opened)
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
/// renewal makes new ones, and the new client id tells the agent so.
fn seal(cx: &Context, admitted: &Admitted, id: GrantId, want: &Want) -> (Seal, Option<SessionKeys>) {
    let known = admitted.renewal.then(|| cx.ledger.delta(id)).flatten();
    let known_grant = known.as_ref().map(|delta| &delta.grant);
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
        user_pseudonym: pseudonym(&cx.keys.pseudonyms, &cx.settings.realm, &admitted.user),
    }
}

/// Unguessable, the same for a call's renewals, and never 0, which would mean no capabilities.
fn client_id(keys: &Keys, call: [u8; 12]) -> u32 {
    let bytes = super::derive(&keys.calls, &call);
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte)) | 1
}
