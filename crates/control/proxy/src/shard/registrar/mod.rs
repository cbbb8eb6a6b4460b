//! Who is reached where: services where their agents registered from, or where their gates say; users where their
//! telephones registered from.

mod services;
mod users;

use std::{collections::HashMap, sync::Arc};

use sluicegate_policy::Policy;
use sluicegate_wire::Instant;

pub(super) use self::{
    services::{Hop, may_be_of, ways},
    users::{REGISTER_EXTENSIONS, check_relayed, flow_back, number, path, refuse, tail, thousandths},
};
use self::{
    services::{is_long, is_theirs},
    users::callable,
};
use super::{
    auth::Proof, context::Context, events::Binding, ladder::Asked, names::user_in, settings::Settings,
    transactions::Transactions,
};
use crate::{
    links::Standing,
    locations::{Contact, Contacts, Locations},
    metrics::Outcome,
    transmits::{ConnectionId, Flow},
};

/// What a request may become longer by on its way through us: a Via, Record-Route values.
const ADDED_LEN: usize = 512;

/// Where services and users are reached. Every table is bounded.
#[derive(Debug)]
pub(super) struct Registrar {
    bindings: HashMap<String, Binding>,
    bindings_max: usize,
    /// Gate addresses of services that cannot be reached directly. Bounded by the policy's services.
    standing: HashMap<String, Standing>,
    /// Of users, known to all shards.
    locations: Arc<Locations>,
}

impl Registrar {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            bindings: HashMap::new(),
            bindings_max: settings.tables.bindings_max,
            standing: HashMap::new(),
            locations: Arc::clone(&settings.locations),
        }
    }

    /// A REGISTER, of a service by its registrar or of a user by itself. Nobody registers anybody else.
    pub(super) fn on_register(
        &mut self,
        cx: &mut Context,
        transactions: &mut Transactions,
        asked: Asked<'_>,
        Proof { user, agent }: Proof,
    ) {
        let named = user_in(asked.essentials.to.uri).unwrap_or_default();
        let service = cx.policy.service(&named).filter(|service| is_theirs(service, &user)).cloned();
        match service {
            Some(service) => self.on_service(cx, transactions, asked, (&service, &user, agent)),
            None if named == user && agent.is_none() => self.on_user(cx, transactions, asked, &user),
            None => {
                let why = "To names neither the user itself nor a service whose registrar it is";
                transactions.deny(cx, asked, &user, Outcome::Denied, why);
            }
        }
    }

    /// Where a request of this length can go for a user now, preferred places first: the flows of each telephone.
    pub(super) fn contacts(&self, now: Instant, user: &str, len: usize) -> impl Iterator<Item = Vec<Arc<Contact>>> {
        callable(&self.locations.of(now, user), is_long(len + ADDED_LEN)).into_iter()
    }

    /// Where a user's telephone is now that was reached over `was`. One that lost its connection is where it registered anew:
    /// under the Contact that it has in its call, or else as the only one at that address.
    pub(super) fn now_at(&self, now: Instant, user: &str, was: Flow, contact: &[u8]) -> Flow {
        let contacts = if was.connection.is_some() { self.locations.of(now, user) } else { Contacts::default() };
        if contacts.iter().any(|known| known.flow == was) {
            return was;
        }
        let mut there =
            contacts.iter().filter(|known| known.flow.connection.is_some() && known.flow.peer.ip() == was.peer.ip());
        let alone = there.next().filter(|_| there.next().is_none());
        let same = contacts.iter().find(|known| known.flow.connection.is_some() && known.uri == contact);
        same.or(alone).map_or(was, |known| known.flow)
    }

    /// Nobody is reached any more who may not be registered now and might before. What a shard took by the old policy ends with
    /// that, whenever the others change theirs.
    pub(super) fn end_users(&self, now: Instant, before: &Policy, after: &Policy) {
        let may_register = |name: &str| after.user(name).is_some_and(|user| user.may_register());
        for user in before.users().filter(|user| user.may_register() && !may_register(&user.name)) {
            self.locations.end(now, &user.name);
        }
    }

    /// A connection has ended: nobody is reached over it any more.
    pub(super) fn close(&mut self, cx: &mut Context, connection: ConnectionId) {
        self.locations.close(connection);
        self.unbind(cx, connection);
    }
}
