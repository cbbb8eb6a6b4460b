//! Agents register their services: a bounded table of where each service is reached.

use std::{collections::HashMap, time::Duration};

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
    Now, Shard,
    auth::{AgentSession, Proof},
    events::{Binding, Event},
    ladder::Asked,
};
use crate::{
    metrics::{Count, Outcome},
    transmits::Transmits,
};

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

    /// Used and maximum.
    pub(super) fn gauge(&self) -> (u64, u64) {
        (self.bindings.len() as u64, self.max as u64)
    }
}

impl Shard {
    /// A REGISTER: who proves to be the registrar of a service may say where its calls go, which is where it sent this
    /// from, whatever its Contact says.
    pub(super) fn on_register(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        Proof { user, agent }: Proof,
        out: &mut Transmits,
    ) {
        let name = user_part(&asked.essentials.to);
        let service = name.and_then(|name| self.policy.service(&name).cloned());
        let registrar = |kind, registrar: &Option<String>| {
            kind != ServiceKind::Declared && registrar.as_deref() == Some(user.as_str())
        };
        let Some(service) = service.filter(|service| registrar(service.kind, &service.registrar)) else {
            self.metrics.request(asked.kind, Outcome::Denied);
            self.decided(
                now,
                asked,
                &user,
                (Outcome::Denied, 403),
                ["the user is not the registrar of such a service"],
            );
            return self.refuse_with(now, asked, 403, None, out);
        };
        let Ok(contact) = asked.message.contact() else {
            self.metrics.request(asked.kind, Outcome::Malformed);
            return self.refuse_with(now, asked, 400, None, out);
        };
        // Without a Contact the agent only asks what is registered.
        let Some(contact) = contact else { return self.confirm(now, asked, (&service.name, agent), out) };
        let secs = self.registration_secs(asked, &contact);
        if contact.is_star() && secs != 0 {
            self.metrics.request(asked.kind, Outcome::Malformed);
            return self.refuse_with(now, asked, 400, None, out);
        }
        if secs != 0 && secs < REGISTRATION_SECS_MIN {
            self.metrics.request(asked.kind, Outcome::Unsupported);
            let min = REGISTRATION_SECS_MIN.to_string().into_bytes();
            return self.refuse_with(now, asked, 423, Some(("Min-Expires", min)), out);
        }
        let binding = Binding {
            service: service.name.clone(),
            flow: asked.flow,
            contact: contact.uri.to_vec(),
            expires: now.instant + Duration::from_secs(secs.into()),
        };
        let is_known = self.registrar.at(now.instant, &service.name).is_some();
        if !self.registrar.bind(now.instant, binding.clone()) {
            self.metrics.one(Count::TableFull);
            self.metrics.request(asked.kind, Outcome::Unavailable);
            return self.refuse_with(now, asked, 503, None, out);
        }
        self.raise(Event::Bind(binding));
        if !is_known && secs > 0 {
            self.decided(now, asked, &user, (Outcome::Admitted, 200), ["+ registered where the service takes calls"]);
        }
        self.confirm(now, asked, (&service.name, agent), out);
    }

    fn registration_secs(&self, asked: Asked<'_, '_>, contact: &NameAddr<'_>) -> u32 {
        let of_contact = contact.params.value(b"expires").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let asked_secs = of_contact.or(asked.message.expires()).unwrap_or(REGISTRATION_SECS_DEFAULT);
        asked_secs.min(self.settings.registration_secs_max)
    }

    /// 200 with what is registered now.
    fn confirm(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        (service, agent): (&str, Option<AgentSession>),
        out: &mut Transmits,
    ) {
        self.metrics.request(asked.kind, Outcome::Admitted);
        let Some(id) = self.open_transaction(now, asked, Role::UserAgent, out) else { return };
        let tag = self.keys.stateless_tag(asked.message);
        let binding = self.registrar.at(now.instant, service);
        let contact = binding.map(|binding| {
            let secs = binding.expires.since(now.instant).as_secs();
            [b"<", &binding.contact[..], format!(">;expires={secs}").as_bytes()].concat()
        });
        let proof = agent.map(|agent| agent.answer(contact.as_deref().unwrap_or_default(), b""));
        let mut answer = std::mem::take(&mut self.scratch);
        Response::to(asked.message, 200)
            .source(asked.flow.peer)
            .to_tag(tag.as_bytes())
            .begin(&mut answer)
            .header_opt("Contact", contact.as_deref())
            .header_opt(HEADER.as_str(), proof.as_deref().map(str::as_bytes))
            .finish();
        self.send_answer(now, id, 200, &answer, out);
        self.scratch = answer;
    }
}

/// The user part of an address of record.
fn user_part(address: &NameAddr<'_>) -> Option<String> {
    let user = Uri::parse(address.uri).ok()?.user?;
    String::from_utf8(unescape(user).collect()).ok()
}
