//! Where services take SIP: where their agents registered from, or where their gates say.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_policy::{Service, ServiceKind};
use sluicegate_signin::HEADER;
use sluicegate_sip::{message::NameAddr, transaction::Role};
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
        transactions::Transactions,
    },
    transmits::Flow,
};

/// Registration without an Expires.
const REGISTRATION_SECS_DEFAULT: u32 = 3_600;
/// Shortest registration but 0 (RFC 3261 section 10.3).
const REGISTRATION_SECS_MIN: u32 = 10;

/// Where requests for a service go, and under which URI.
pub(crate) struct Hop {
    pub(crate) flow: Flow,
    pub(crate) uri: Vec<u8>,
}

impl Registrar {
    /// Where a service takes SIP: where its agent registered from; or for a SIP server under the address that its gate
    /// told, or its own.
    pub(crate) fn hop(&self, cx: &Context, service: &Service) -> Option<Hop> {
        if let Some(binding) = self.at(cx.now.instant, &service.name) {
            return Some(Hop { flow: binding.flow, uri: binding.contact.clone() });
        }
        if service.kind != ServiceKind::Sip {
            return None;
        }
        let own = SocketAddr::new(service.address, service.sip_port_or_default()?);
        let peer = self.standing.get(&service.name).map_or(own, |standing| standing.address);
        let flow = Flow::datagrams(cx.settings.listener_for(peer.ip()), peer);
        Some(Hop { flow, uri: format!("sip:{}@{own}", service.name).into_bytes() })
    }

    /// The service whose distant gate is at this address. What comes from there was sealed by that gate.
    pub(in crate::shard) fn standing_at(&self, cx: &Context, peer: SocketAddr) -> Option<Arc<Service>> {
        let mut standing = self.standing.iter();
        let (service, _) = standing.find(|(_, standing)| standing.address == peer)?;
        cx.policy.service(service).filter(|service| service.kind == ServiceKind::Sip).cloned()
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

/// Whether this user registers the service.
pub(super) fn is_theirs(service: &Service, user: &str) -> bool {
    service.kind != ServiceKind::Declared && service.registrar.as_deref() == Some(user)
}

/// How long a registration is asked for, and no longer than it may last.
fn registration_secs(asked: Asked<'_>, contact: &NameAddr<'_>, max: u32) -> u32 {
    let of_contact = contact.params.value(b"expires").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    of_contact.or(asked.message.expires()).unwrap_or(REGISTRATION_SECS_DEFAULT).min(max)
}
