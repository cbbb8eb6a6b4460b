//! Agents register their services: a bounded table of where each service is reached.

use std::{collections::HashMap, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_policy::ServiceKind;
use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::NameAddr,
    transaction::Role,
    uri::{Uri, unescape},
    write::Response,
};
use sluicegate_wire::Instant;

use super::{
    Shard,
    auth::{AgentSession, Proof},
    events::{Binding, Event},
    ladder::Asked,
};
use crate::metrics::{Count, Outcome};

/// Registration without an Expires.
const REGISTRATION_SECS_DEFAULT: u32 = 3_600;
/// Shortest registration but 0 (RFC 3261 section 10.3).
const REGISTRATION_SECS_MIN: u32 = 10;

/// Where services are reached that register. Bounded.
#[derive(Debug)]
pub(super) struct Registrar {
    bindings: HashMap<String, Binding>,
    max: usize,
}

impl Registrar {
    pub(super) fn new(max: usize) -> Self {
        Self { bindings: HashMap::new(), max }
    }

    /// Where a service is registered now.
    pub(super) fn at(&self, now: Instant, service: &str) -> Option<&Binding> {
        self.bindings.get(service).filter(|binding| binding.expires > now)
    }

    /// Takes a registration, or its end; `false` if there is no room. One that has ended frees its place.
    pub(super) fn bind(&mut self, now: Instant, binding: Binding) -> bool {
        if binding.expires <= now {
            self.bindings.remove(&binding.service);
            return true;
        }
        if !self.bindings.contains_key(&binding.service) && self.bindings.len() >= self.max {
            self.bindings.retain(|_, other| other.expires > now);
            if self.bindings.len() >= self.max {
                return false;
            }
        }
        self.bindings.insert(binding.service.clone(), binding);
        true
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::of("bindings", self.bindings.len(), self.max)
    }
}

impl Shard {
    /// A REGISTER: who proves to be the registrar of a service may say where its calls go, which is where it sent this
    /// from, whatever its Contact says.
    pub(super) fn on_register(&mut self, asked: Asked<'_, '_>, Proof { user, agent }: Proof) {
        let name = user_part(&asked.essentials.to);
        let service = name.and_then(|name| self.cx.policy.service(&name).cloned());
        let registrar = |kind, registrar: &Option<String>| {
            kind != ServiceKind::Declared && registrar.as_deref() == Some(user.as_str())
        };
        let Some(service) = service.filter(|service| registrar(service.kind, &service.registrar)) else {
            return self.exchanges.transactions.deny(
                &mut self.cx,
                asked,
                &user,
                Outcome::Denied,
                "the user is not the registrar of such a service",
            );
        };
        let Ok(contact) = asked.message.contact() else {
            return self.exchanges.transactions.refuse(&mut self.cx, asked, (Outcome::Malformed, 400));
        };
        // Without a Contact the agent only asks what is registered.
        let Some(contact) = contact else { return self.confirm(asked, (&service.name, agent)) };
        let secs = self.registration_secs(asked, &contact);
        if contact.is_star() && secs != 0 {
            return self.exchanges.transactions.refuse(&mut self.cx, asked, (Outcome::Malformed, 400));
        }
        if secs != 0 && secs < REGISTRATION_SECS_MIN {
            return self.exchanges.transactions.refuse_with(
                &mut self.cx,
                asked,
                (Outcome::Unsupported, 423),
                |headers| headers.header_args("Min-Expires", format_args!("{REGISTRATION_SECS_MIN}")),
            );
        }
        let binding = Binding {
            service: service.name.clone(),
            flow: asked.flow,
            contact: contact.uri.to_vec(),
            expires: self.cx.now.instant + Duration::from_secs(secs.into()),
        };
        let is_known = self.registrar.at(self.cx.now.instant, &service.name).is_some();
        if !self.registrar.bind(self.cx.now.instant, binding.clone()) {
            self.cx.metrics.one(Count::TableFull);
            return self.exchanges.transactions.refuse(&mut self.cx, asked, (Outcome::Unavailable, 503));
        }
        self.cx.raise(Event::Bind(binding));
        if !is_known && secs > 0 {
            self.cx.decided(asked, &user, (Outcome::Admitted, 200), ["+ registered where the service takes calls"]);
        }
        self.confirm(asked, (&service.name, agent));
    }

    fn registration_secs(&self, asked: Asked<'_, '_>, contact: &NameAddr<'_>) -> u32 {
        let of_contact = contact.params.value(b"expires").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let asked_secs = of_contact.or(asked.message.expires()).unwrap_or(REGISTRATION_SECS_DEFAULT);
        asked_secs.min(self.cx.settings.registration_secs_max)
    }

    /// 200 with what is registered now.
    fn confirm(&mut self, asked: Asked<'_, '_>, (service, agent): (&str, Option<AgentSession>)) {
        self.cx.metrics.request(asked.kind, Outcome::Admitted);
        let Some(id) = self.exchanges.transactions.open(&mut self.cx, asked, Role::UserAgent) else { return };
        let tag = self.cx.keys.stateless_tag(asked.message);
        let binding = self.registrar.at(self.cx.now.instant, service);
        let contact = binding.map(|binding| {
            let secs = binding.expires.since(self.cx.now.instant).as_secs();
            [b"<", &binding.contact[..], format!(">;expires={secs}").as_bytes()].concat()
        });
        let proof = agent.map(|agent| agent.answer(contact.as_deref().unwrap_or_default(), b""));
        Response::to(asked.message, 200)
            .source(asked.flow.peer)
            .to_tag(tag.as_bytes())
            .begin(&mut self.cx.scratch)
            .header_opt("Contact", contact.as_deref())
            .header_opt(HEADER.as_str(), proof.as_deref().map(str::as_bytes))
            .finish();
        self.exchanges.transactions.respond(&mut self.cx, id, 200);
    }
}

/// The user part of an address of record.
fn user_part(address: &NameAddr<'_>) -> Option<String> {
    let user = Uri::parse(address.uri).ok()?.user?;
    String::from_utf8(unescape(user).collect()).ok()
}
