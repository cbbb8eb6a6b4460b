//! Where services take SIP: where their agents registered from, or where their gates say.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use sluicegate_bounded::Gauge;
use sluicegate_policy::{Service, ServiceKind, SipPort};
use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::{NameAddr, Transport},
    transaction::Role,
};
use sluicegate_wire::Instant;

use super::Registrar;
use crate::{
    links::Standing,
    metrics::{Count, Outcome},
    shard::{
        auth::AgentSession,
        context::Context,
        events::{Binding, Event},
        ladder::Asked,
        settings::{Settings, place},
        transactions::Transactions,
    },
    transmits::{ConnectionId, Flow},
};

/// Registration without an Expires.
const REGISTRATION_SECS_DEFAULT: u32 = 3_600;
/// Shortest registration but 0 (RFC 3261 section 10.3).
const REGISTRATION_SECS_MIN: u32 = 10;

/// Longest request that goes by datagram where there is another way (RFC 3261 section 18.1.1).
const DATAGRAM_LEN_MAX: usize = 1_300;

/// Where requests for a service go, and under which URI.
#[derive(Debug, Clone)]
pub(crate) struct Hop {
    pub(crate) flow: Flow,
    pub(crate) uri: Vec<u8>,
    /// The way of requests that are too long for this one.
    pub(crate) of_long: Option<Box<Self>>,
}

impl Hop {
    /// A place with one way to it.
    pub(crate) const fn new(flow: Flow, uri: Vec<u8>) -> Self {
        Self { flow, uri, of_long: None }
    }

    /// The other way of a request of this length, if it has to take that.
    pub(crate) fn instead(&self, len: usize) -> Option<&Self> {
        self.of_long.as_deref().filter(|_| is_long(len))
    }
}

/// Whether a request of this length should not go by datagram.
pub(super) const fn is_long(len: usize) -> bool {
    len > DATAGRAM_LEN_MAX
}

/// The ways to a SIP server at its own address, preferred first.
pub(crate) fn ways<'s>(settings: &'s Settings, service: &'s Service) -> impl Iterator<Item = Flow> + 's {
    let ports = service.sip_ports().into_iter();
    ports.filter_map(|SipPort { transport, port }| settings.way(transport, SocketAddr::new(service.address, port)))
}

impl Registrar {
    /// Where a service takes SIP: where its agent registered from; or for a SIP server under the address that its gate
    /// told, or its own.
    pub(crate) fn hop(&self, cx: &Context, service: &Service) -> Option<Hop> {
        if let Some(binding) = self.at(cx.now.instant, &service.name) {
            return Some(Hop::new(binding.flow, binding.contact.clone()));
        }
        if service.kind != ServiceKind::Sip {
            return None;
        }
        let transport = |flow: Flow| cx.settings.listening(flow.listener).transport;
        let uri = |own, transport| format!("sip:{}@{}", service.name, place(own, transport)).into_bytes();
        if let Some(Standing { address, .. }) = self.standing.get(&service.name) {
            // What gates relay are datagrams.
            let own = SocketAddr::new(service.address, service.sip_port_over(Transport::Udp)?);
            return Some(Hop::new(cx.settings.way(Transport::Udp, *address)?, uri(own, Transport::Udp)));
        }
        let hop = |flow: Flow| Hop::new(flow, uri(flow.peer, transport(flow)));
        let first = ways(&cx.settings, service).next()?;
        let of_long = ways(&cx.settings, service).find(|way| transport(*way).is_reliable());
        let of_long = of_long.filter(|_| transport(first) == Transport::Udp);
        Some(Hop { of_long: of_long.map(|way| Box::new(hop(way))), ..hop(first) })
    }

    /// Whether what comes from here is a service's own: from where it is asked, or over a connection that we made to it.
    /// Over one that somebody made from its address there must be proof besides.
    pub(in crate::shard) fn is_of(&self, cx: &Context, service: &Service, flow: Flow) -> bool {
        let is_way = |way: Flow| {
            let is_tls = cx.settings.listening(way.listener).transport == Transport::Tls;
            way == flow || (!is_tls && flow.is_dialled_for(way))
        };
        let hop = self.hop(cx, service);
        let is_direct =
            hop.as_ref().is_some_and(|hop| hop.flow.connection.is_none() && hop.flow.peer.ip() == service.address);
        hop.is_some_and(|hop| is_way(hop.flow))
            || (is_direct && ways(&cx.settings, service).any(is_way))
            || has_certificate(cx, service, flow)
            || has_signed_in(cx, service, flow)
    }

    /// The SIP server that this message shows to have sent it, without credentials: by the seal of its distant gate, which
    /// lets nobody else speak from there, or by a certificate.
    pub(in crate::shard) fn sender(&self, cx: &Context, flow: Flow) -> Option<Arc<Service>> {
        let standing = self.standing.iter().find(|(_, standing)| standing.address == flow.peer);
        if let Some((service, _)) = standing.filter(|_| flow.connection.is_none()) {
            return cx.policy.service(service).filter(|service| service.kind == ServiceKind::Sip).cloned();
        }
        cx.proofs.as_ref().filter(|proofs| !proofs.certificates.is_empty())?;
        let services = cx.policy.services().filter(|service| has_certificate(cx, service, flow));
        services.min_by_key(|service| &service.name).cloned()
    }

    /// Addresses of distant gates where services take SIP.
    pub(in crate::shard) fn gates(&self) -> impl Iterator<Item = IpAddr> {
        self.standing.values().map(|standing| standing.address.ip())
    }

    /// A distant gate tells where a service takes SIP; `None`: the service is reached itself.
    pub(crate) fn stand(&mut self, cx: &mut Context, service: String, standing: Option<Standing>) {
        match standing {
            Some(standing) => drop(self.standing.insert(service, standing)),
            None => drop(self.standing.remove(&service)),
        }
        self.link(cx);
    }

    /// Forgets the gates of services that there are not any more, and has what goes to the others sealed.
    pub(crate) fn link(&mut self, cx: &mut Context) {
        self.standing.retain(|service, _| cx.policy.service(service).is_some());
        cx.out.links.set(cx.settings.addresses(), cx.settings.shard, self.standing.values());
    }

    /// Where a service is registered now.
    fn at(&self, now: Instant, service: &str) -> Option<&Binding> {
        self.bindings.get(service).filter(|binding| binding.expires > now)
    }

    /// Takes a registration, or its end; `false` if there is no room. One that has ended frees its place.
    pub(crate) fn bind(&mut self, now: Instant, binding: Binding) -> bool {
        if binding.expires <= now {
            self.bindings.remove(&binding.service);
            return true;
        }
        if !self.bindings.contains_key(&binding.service) && self.bindings.len() >= self.bindings_max {
            self.bindings.retain(|_, other| other.expires > now);
            if self.bindings.len() >= self.bindings_max {
                return false;
            }
        }
        self.bindings.insert(binding.service.clone(), binding);
        true
    }

    /// A connection has ended, and with it every registration that came over it: all other shards are told.
    pub(super) fn unbind(&mut self, cx: &mut Context, connection: ConnectionId) {
        let over = self.bindings.values().filter(|binding| binding.flow.connection == Some(connection));
        let ended: Vec<_> = over.map(|binding| Binding { expires: cx.now.instant, ..binding.clone() }).collect();
        for binding in ended {
            self.bindings.remove(&binding.service);
            cx.raise(Event::Bind(binding));
        }
    }

    pub(crate) fn gauge(&self) -> Gauge {
        Gauge::of("bindings", self.bindings.len(), self.bindings_max)
    }

    /// A REGISTER of a service: who proves to be its registrar may say where its calls go, which is where it sent this from,
    /// whatever its Contact says.
    pub(super) fn on_service(
        &mut self,
        cx: &mut Context,
        transactions: &mut Transactions,
        asked: Asked<'_>,
        (service, user, agent): (&Service, &str, Option<AgentSession>),
    ) {
        let Ok(contact) = asked.message.contact() else {
            return transactions.refuse(cx, asked, (Outcome::Malformed, 400), &[]);
        };
        // Without a Contact the agent only asks what is registered.
        let Some(contact) = contact else { return self.confirm(cx, transactions, asked, (&service.name, agent)) };
        let secs = registration_secs(asked, &contact, cx.settings.registration_secs_max);
        if contact.is_star() && secs != 0 {
            return transactions.refuse(cx, asked, (Outcome::Malformed, 400), &[]);
        }
        if secs != 0 && secs < REGISTRATION_SECS_MIN {
            let least = REGISTRATION_SECS_MIN.to_string();
            let too_short = (Outcome::Unsupported, 423);
            return transactions.refuse(cx, asked, too_short, &[("Min-Expires", least.as_bytes())]);
        }
        let binding = Binding {
            service: service.name.clone(),
            flow: asked.flow,
            contact: contact.uri.to_vec(),
            expires: cx.now.instant + Duration::from_secs(secs.into()),
        };
        let is_known = self.at(cx.now.instant, &service.name).is_some();
        if !self.bind(cx.now.instant, binding.clone()) {
            cx.metrics.one(Count::TableFull);
            return transactions.refuse(cx, asked, (Outcome::Unavailable, 503), &[]);
        }
        cx.raise(Event::Bind(binding));
        if !is_known && secs > 0 {
            cx.decided(asked, user, (Outcome::Admitted, 200), ["+ registered where the service takes calls"]);
        }
        self.confirm(cx, transactions, asked, (&service.name, agent));
    }

    /// 200 with what is registered now.
    fn confirm(
        &self,
        cx: &mut Context,
        transactions: &mut Transactions,
        asked: Asked<'_>,
        (service, agent): (&str, Option<AgentSession>),
    ) {
        cx.metrics.request(asked.kind, Outcome::Admitted);
        let Some(id) = transactions.open(cx, asked, Role::UserAgent) else { return };
        let contact = self.at(cx.now.instant, service).map(|binding| {
            let secs = binding.expires.since(cx.now.instant).as_secs();
            [b"<", &binding.contact[..], format!(">;expires={secs}").as_bytes()].concat()
        });
        let proof = agent.map(|agent| agent.answer(contact.as_deref().unwrap_or_default(), b""));
        let contact = contact.as_deref().map(|contact| ("Contact", contact));
        let proof = proof.as_deref().map(|proof| (HEADER.as_str(), proof.as_bytes()));
        let more: Vec<_> = contact.into_iter().chain(proof).collect();
        cx.write_answer(asked.flow, asked.message, 200, &more);
        transactions.respond(cx, id, 200);
    }
}

/// Whether the present message came from a SIP server's address over a connection over which its certificate was shown.
fn has_certificate(cx: &Context, service: &Service, flow: Flow) -> bool {
    let shown = cx.proofs.as_ref().filter(|_| is_from(service, flow)).map(|proofs| &proofs.certificates);
    let takes_tls = service.sip_port_over(Transport::Tls).is_some();
    takes_tls && shown.is_some_and(|shown| shown.contains(&service.certificate_or_default()))
}

/// The same of its registrar's password.
fn has_signed_in(cx: &Context, service: &Service, flow: Flow) -> bool {
    let user = cx.proofs.as_ref().filter(|_| is_from(service, flow)).and_then(|proofs| proofs.user.as_deref());
    let user = user.filter(|user| cx.policy.user(user).is_some_and(|user| user.enabled));
    user.is_some() && user == service.registrar.as_deref()
}

fn is_from(service: &Service, flow: Flow) -> bool {
    flow.connection.is_some() && flow.peer.ip() == service.address && service.kind == ServiceKind::Sip
}

/// Whether this may be a SIP server's own connection, so that it is worth asking for its registrar's password.
pub(crate) fn may_be_of(service: &Service, flow: Flow) -> bool {
    is_from(service, flow) && service.registrar.is_some()
}

/// Whether this user registers the service.
pub(super) fn is_theirs(service: &Service, user: &str) -> bool {
    service.kind != ServiceKind::Declared && service.registrar.as_deref() == Some(user)
}

/// How long a registration is asked for, and no longer than it may last.
fn registration_secs(asked: Asked<'_>, contact: &NameAddr<'_>, max: u32) -> u32 {
    let of_contact = contact.params.value(b"expires").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    of_contact.or(asked.message.expires()).unwrap_or(REGISTRATION_SECS_DEFAULT).min(max)
}
