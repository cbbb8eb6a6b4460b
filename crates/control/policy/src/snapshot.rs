use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use sluicegate_bounded::Gauge;

use crate::{
    Bounds, Effect, Finding, Group, PerUser, Registering, Rule, Schedule, Service, ServiceKind, Severity, SipPeer,
    User, check,
};

/// Everything that a policy is made from, as it was read; nothing is promised about it yet.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Users, from the store.
    pub users: Vec<User>,
    /// Groups, from the store.
    pub groups: Vec<Group>,
    /// Services, from configuration or the store.
    pub services: Vec<Service>,
    /// Rules, from configuration or the store.
    pub rules: Vec<Rule>,
    /// Peers, from configuration.
    pub peers: Vec<SipPeer>,
    /// What one user's grants may hold together, from configuration.
    pub per_user: PerUser,
}

impl Draft {
    /// Everything that is wrong with it or looks wrong, in the order of its parts.
    #[must_use]
    pub fn check(&self, bounds: &Bounds) -> Vec<Finding> {
        check::draft(self, bounds)
    }
}

/// A checked, indexed snapshot of users, groups, services and rules. Cheap to clone: parts are shared.
///
/// It holds no more users, groups, services and rules than its [`Bounds`] say.
#[derive(Debug, Clone)]
pub struct Policy {
    users: HashMap<Arc<str>, Arc<User>>,
    groups: Arc<HashSet<String>>,
    services: Arc<HashMap<String, Arc<Service>>>,
    /// SIP servers that take registrations themselves, by name.
    relaying: Arc<[Arc<Service>]>,
    rules: Arc<[Rule]>,
    /// Peers, each with whom rules take it for.
    peers: Arc<[(Arc<SipPeer>, User)]>,
    per_user: PerUser,
    bounds: Bounds,
}

impl Policy {
    /// The policy made from `draft`, with the warnings about it.
    ///
    /// # Errors
    /// All findings, if one of them is an error.
    pub fn build(draft: Draft, bounds: Bounds) -> Result<(Self, Vec<Finding>), Vec<Finding>> {
        let findings = draft.check(&bounds);
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(findings);
        }
        let services: HashMap<_, _> = draft.services.into_iter().map(|s| (s.name.clone(), Arc::new(s))).collect();
        let is_relaying = |service: &&Arc<Service>| service.register == Registering::Relay;
        let mut relaying: Vec<_> = services.values().filter(is_relaying).cloned().collect();
        relaying.sort_by(|one, other| one.name.cmp(&other.name));
        let policy = Self {
            users: draft.users.into_iter().map(|user| (Arc::from(user.name.as_str()), Arc::new(user))).collect(),
            groups: Arc::new(draft.groups.into_iter().map(|group| group.name).collect()),
            services: Arc::new(services),
            relaying: relaying.into(),
            rules: draft.rules.into(),
            peers: draft.peers.into_iter().map(|peer| (Arc::new(peer.clone()), peer.to_user())).collect(),
            per_user: draft.per_user,
            bounds,
        };
        Ok((policy, findings))
    }

    /// The user with this name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// Who asks under this name: a user, or with `peer:` in front of it a peer.
    #[must_use]
    pub fn party(&self, name: &str) -> Option<&User> {
        let peer = || self.known_peer(name).map(|(_, user)| user);
        self.user(name).map(|user| &**user).or_else(peer)
    }

    /// The peer that asks under this name.
    #[must_use]
    pub fn peer(&self, party: &str) -> Option<&Arc<SipPeer>> {
        self.known_peer(party).map(|(peer, _)| peer)
    }

    fn known_peer(&self, party: &str) -> Option<&(Arc<SipPeer>, User)> {
        let name = SipPeer::name_of(party)?;
        self.peers.iter().find(|(peer, _)| peer.name == name)
    }

    /// All peers, in the order of the configuration.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = &Arc<SipPeer>> {
        self.peers.iter().map(|(peer, _)| peer)
    }

    /// The peer that a service reaches that dials this: the one with the number that fits best.
    #[must_use]
    pub fn peer_dialled(&self, number: &str) -> Option<&Arc<SipPeer>> {
        let fits = self.peers().filter_map(|peer| Some((peer.answers_to(number)?, peer)));
        fits.max_by_key(|(fit, peer)| (*fit, &peer.name)).map(|(_, peer)| peer)
    }

    /// The service with this name.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<&Arc<Service>> {
        self.services.get(name)
    }

    /// The service that somebody reaches who dials this: the one of that name, or a SIP server with the number that fits best.
    #[must_use]
    pub fn dialled(&self, name: &str) -> Option<&Arc<Service>> {
        let by_number = || {
            let fits = self.services.values().filter_map(|service| Some((service.answers_to(name)?, service)));
            fits.max_by_key(|(fit, service)| (*fit, &service.name)).map(|(_, service)| service)
        };
        self.service(name).or_else(by_number)
    }

    /// The SIP server that this user registers, and calls for.
    #[must_use]
    pub fn sip_server_of(&self, registrar: &str) -> Option<&Arc<Service>> {
        let is_theirs = |service: &&Arc<Service>| {
            service.kind == ServiceKind::Sip && service.registrar.as_deref() == Some(registrar)
        };
        self.services.values().filter(is_theirs).min_by_key(|service| &service.name)
    }

    /// Whether telephones of any user are registered at a SIP server.
    #[must_use]
    pub fn relays_registrations(&self) -> bool {
        !self.relaying.is_empty()
    }

    /// The SIP server at which the telephones of this user are registered: the first by name of those that take registrations
    /// and that the user may use at some time. `None`: the frontend.
    #[must_use]
    pub fn registers_at(&self, user: &str) -> Option<&Arc<Service>> {
        let user = self.user(user)?;
        self.relaying.iter().find(|service| self.may_ever_use(user, service))
    }

    /// Whether something allows it at some time, and nothing denies it at all times.
    fn may_ever_use(&self, user: &User, service: &Service) -> bool {
        let mut rules = self.rules.iter().filter(|rule| rule.is_about(user, &service.name));
        let is_allowed = service.allow.iter().any(|subject| user.is(subject))
            || rules.clone().any(|rule| rule.effect == Effect::Allow);
        let is_always = |rule: &Rule| rule.schedule() == Schedule::new(&[], None, None);
        is_allowed && !rules.any(|rule| rule.effect == Effect::Deny && is_always(rule))
    }

    /// What one user's grants may hold together.
    #[must_use]
    pub const fn per_user(&self) -> &PerUser {
        &self.per_user
    }

    /// What the grants of whoever asks under this name may hold together.
    #[must_use]
    pub fn share_of(&self, party: &str) -> PerUser {
        self.peer(party).map_or(self.per_user, |peer| peer.share(&self.per_user))
    }

    /// All users, in no order.
    pub fn users(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// All services, in no order.
    pub fn services(&self) -> impl ExactSizeIterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// All rules, in the order of the configuration.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The fill of each table.
    #[must_use]
    pub fn gauges(&self) -> [Gauge; 5] {
        [
            Gauge::of("policy_users", self.users.len(), self.bounds.users_max),
            Gauge::of("policy_groups", self.groups.len(), self.bounds.groups_max),
            Gauge::of("policy_services", self.services.len(), self.bounds.services_max),
            Gauge::of("policy_rules", self.rules.len(), self.bounds.rules_max),
            Gauge::of("policy_peers", self.peers.len(), self.bounds.peers_max),
        ]
    }
}
