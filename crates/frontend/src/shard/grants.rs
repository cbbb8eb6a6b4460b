//! The grants of one call, from the policy's limits to the gate's answers.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use sluicegate_capability::{ANY_PORTS, Grant, GrantId, Mode, epoch::Epoch};
use sluicegate_policy::{Limits, Service, ServiceMode, pseudonym};
use sluicegate_store::feed::{GrantDelta, Selected, Selector};
use sluicegate_wire::UnixTime;

use super::{
    keys::Keys,
    media::{Opened, Want},
    settings::Settings,
};

/// One grant that is being opened.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) want: Want,
    pub(super) grant: Grant,
    opened: bool,
}

/// The grants of one call, on their way to the gate and back.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    pub(super) call: [u8; 12],
    pub(super) user: String,
    pub(super) service: Arc<Service>,
    /// Whether the client is an agent, which gets portable copies.
    pub(super) agent: bool,
    /// Whether the call is open already and these grants last longer.
    pub(super) renewal: bool,
    pub(super) lifetime_s: u32,
    parts: Vec<Part>,
}

/// Who gets what in a call.
pub(super) struct Terms<'t> {
    pub(super) call: [u8; 12],
    pub(super) user: &'t str,
    pub(super) service: &'t Arc<Service>,
    pub(super) client: IpAddr,
    pub(super) limits: Limits,
    pub(super) agent: bool,
    pub(super) renewal: bool,
}

impl Opening {
    /// One grant per want; those of one call share the first 12 bytes of their ids, in the order of the wants, so that a
    /// renewal with the same description renews the same grants.
    pub(super) fn new(settings: &Settings, keys: &Keys, unix: UnixTime, terms: &Terms<'_>, wants: &[Want]) -> Self {
        let parts = wants.iter().zip(0..).map(|(want, index)| {
            let grant = grant(settings, keys, unix, terms, GrantId::of_call(terms.call, index), want);
            Part { want: *want, grant, opened: false }
        });
        Self {
            call: terms.call,
            user: terms.user.to_owned(),
            service: Arc::clone(terms.service),
            agent: terms.agent,
            renewal: terms.renewal,
            lifetime_s: terms.limits.lifetime_s,
            parts: parts.collect(),
        }
    }

    /// What the gate is told.
    pub(super) fn deltas(&self) -> Vec<GrantDelta> {
        let delta = |part: &Part| GrantDelta {
            body: part.grant.encode(),
            user: self.user.clone(),
            service: self.service.name.clone(),
            target: self.service.address,
            target_ports: (part.want.range.first, part.want.range.last),
            mode: self.service.mode,
        };
        self.parts.iter().map(delta).collect()
    }

    /// The ids that answers come for.
    pub(super) fn ids(&self) -> impl Iterator<Item = GrantId> {
        self.parts.iter().map(|part| part.grant.id)
    }

    /// Notes a gate's answer; whether now all grants are open.
    pub(super) fn note(&mut self, id: GrantId, address: IpAddr, ports: (u16, u16)) -> bool {
        if let Some(part) = self.parts.iter_mut().find(|part| part.grant.id == id) {
            part.grant.gate_address = address;
            part.grant.gate_ports = ports;
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
        let opened = |part: &Part| Opened {
            want: part.want,
            address: part.grant.gate_address,
            first_port: part.grant.gate_ports.0,
        };
        self.parts.iter().filter(|part| part.opened).map(opened).collect()
    }

    /// The portable copies, 200 bytes each.
    pub(super) fn signed(&self, settings: &Settings) -> Vec<u8> {
        self.parts.iter().flat_map(|part| settings.issuer.sign(&part.grant).to_bytes()).collect()
    }

    /// What ends all of them.
    pub(super) const fn selector(&self) -> Selector {
        Selector::all(Selected::Call(self.call))
    }
}

fn grant(settings: &Settings, keys: &Keys, unix: UnixTime, terms: &Terms<'_>, id: GrantId, want: &Want) -> Grant {
    let service = terms.service;
    let unspecified =
        if service.address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let is_filter = service.mode == ServiceMode::Filter;
    Grant {
        flags: 0,
        least_mode: Mode::Pinhole,
        protocol: want.range.protocol.number(service.address),
        id,
        issuer: settings.issuer.public().id(),
        epoch: Epoch::at(unix).0,
        not_before: unix,
        not_after: unix.plus_secs(terms.limits.lifetime_s.into()),
        bytes: terms.limits.bytes_max,
        client_id: client_id(keys, terms.call),
        flows: terms.limits.flows_max,
        rate_100kbps: terms.limits.rate_100kbps(),
        client_address: terms.client.to_canonical(),
        client_ports: ANY_PORTS,
        gate_address: if is_filter { service.address } else { unspecified },
        gate_ports: if is_filter { (want.range.first, want.range.last) } else { (0, 0) },
        holder: [0; 32],
        user_pseudonym: pseudonym(&keys.pseudonyms, &settings.realm, terms.user),
    }
}

/// Unguessable, the same for a call's renewals, and never 0, which would mean no capabilities.
fn client_id(keys: &Keys, call: [u8; 12]) -> u32 {
    let bytes = super::derive(&keys.calls, &call);
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte)) | 1
}
