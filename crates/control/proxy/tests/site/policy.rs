//! Who there is on the site, and what they may.

use std::sync::Arc;

use sluicegate_grant::DataMode;
use sluicegate_policy::{Bounds, Draft, Group, PerUser, Policy, Registering, Service, SipPeer, Subject, User};
use sluicegate_proxy::Input;
use sluicegate_signin::UserSecret;
use sluicegate_store::password::credentials;

use super::{PASSWORD, REALM, Site};

/// alice: agent and telephone; bob: telephone without any permission; carol: disabled; dave: agent only; switch: what the SIP
/// server calls as.
pub(super) fn policy() -> Policy {
    let user = User::new;
    let phone = |name: &str| {
        let credentials = Some(credentials(name, REALM, PASSWORD).unwrap());
        User { phone: true, credentials, ..user(name) }
    };
    let alice = User { groups: vec!["staff".into()], ..phone("alice") };
    let dave = User { groups: vec!["staff".into()], ..user("dave") };
    let carol = User { enabled: false, ..phone("carol") };
    let service = |text: &str| -> Service { toml::from_str(text).unwrap() };
    let services = vec![
        service("name='web'\naddress='10.0.0.1'\nports=['tcp/80','udp/5004-5005']\nallow=['group:staff']"),
        service(
            "name='vault'\naddress='10.0.0.4'\nports=['tcp/80','udp/5004-5005']\nallow=['group:staff']\ngrant={least_mode='capability'}",
        ),
        service(
            "name='pbx'\nkind='sip'\naddress='10.0.0.2'\nports=['udp/4000-4999']\nallow=['group:staff']\nregistrar='switch'\nnumbers=['1*','bob']",
        ),
        service(
            "name='files'\nkind='agent'\naddress='10.0.0.3'\nports=['tcp/22-23']\nallow=['group:staff']\nregistrar='registrar'",
        ),
    ];
    assert!(services[0].allow.contains(&Subject::Group("staff".into())));
    let groups = vec![Group { name: "staff".into(), description: String::new() }];
    let users = vec![alice, phone("bob"), carol, dave, user("registrar"), phone("switch")];
    let draft = Draft { users, groups, services, ..Draft::default() };
    let (policy, _) = Policy::build(draft, Bounds::default()).unwrap();
    policy
}

impl Site {
    /// From now on every service demands that packets prove so much.
    pub(crate) fn demand(&mut self, least_mode: DataMode) {
        self.limit_services(|service| {
            service.limits.least_mode = if service.name == "pbx" { DataMode::Pinhole } else { least_mode };
        });
    }

    /// From now on what services open lasts so long, in seconds.
    pub(crate) fn open_for(&mut self, lifetime_s: u32) {
        self.limit_services(|service| service.limits.lifetime_s = lifetime_s);
    }

    fn limit_services(&mut self, limit: impl Fn(&mut Service)) {
        let services = self.policy.services().map(|service| Service::clone(service));
        let services = services.map(|mut service| {
            limit(&mut service);
            service
        });
        let services = services.collect();
        self.change(services, *self.policy.per_user());
    }

    /// From now on these SIP servers take registrations themselves. `annex` is one that there is only then.
    pub(crate) fn registers_at(&mut self, names: &[&str]) {
        let service = |service: &Service| Service {
            register: if names.contains(&service.name.as_str()) { Registering::Relay } else { Registering::Frontend },
            ..service.clone()
        };
        let services = self.policy.services().filter(|service| service.name != "annex").map(|known| service(known));
        let mut services: Vec<_> = services.collect();
        let pbx = services.iter().find(|service| service.name == "pbx").cloned().unwrap();
        let annex = Service { name: "annex".into(), address: [10, 0, 0, 5].into(), numbers: Vec::new(), ..pbx };
        services.extend(names.contains(&"annex").then(|| service(&Service { registrar: None, ..annex })));
        self.change(services, *self.policy.per_user());
    }

    /// From now on these are the peers, which may use the SIP server.
    pub(crate) fn peers(&mut self, peers: Vec<SipPeer>) {
        let mut services: Vec<Service> = self.policy.services().map(|service| Service::clone(service)).collect();
        let pbx = services.iter_mut().find(|service| service.name == "pbx").unwrap();
        pbx.allow.retain(|subject| !matches!(subject, Subject::Peer(_)));
        pbx.allow.extend(peers.iter().map(|peer| Subject::Peer(peer.name.clone())));
        self.peers = peers;
        self.change(services, *self.policy.per_user());
    }

    /// From now on the grants of one user hold no more than this.
    pub(crate) fn limit(&mut self, per_user: PerUser) {
        let services = self.policy.services().map(|service| Service::clone(service)).collect();
        self.change(services, per_user);
    }

    /// The policy with other users, as every shard is told it one after the other.
    pub(crate) fn with_users(&self, change: impl Fn(User) -> Option<User>) -> Arc<Policy> {
        let services = self.policy.services().map(|service| Service::clone(service)).collect();
        self.policy_with(services, *self.policy.per_user(), change)
    }

    pub(super) fn change(&mut self, services: Vec<Service>, per_user: PerUser) {
        self.policy = self.policy_with(services, per_user, Some);
        for shard in 0..self.shards.len() {
            self.tell(shard, Input::Policy(Arc::clone(&self.policy)));
        }
    }

    fn policy_with(
        &self,
        services: Vec<Service>,
        per_user: PerUser,
        change: impl Fn(User) -> Option<User>,
    ) -> Arc<Policy> {
        let groups = vec![Group { name: "staff".into(), description: String::new() }];
        let users = self.policy.users().filter_map(|user| change(User::clone(user))).collect();
        let draft = Draft { users, groups, services, per_user, peers: self.peers.clone(), ..Draft::default() };
        Arc::new(Policy::build(draft, Bounds::default()).unwrap().0)
    }
}

/// A user's secret: not made as slowly as the real one.
pub(crate) fn secret_of(user: &str, password: &str) -> UserSecret {
    let mut bytes = [0_u8; 32];
    for (at, byte) in format!("{user}:{password}").bytes().enumerate() {
        bytes[at % 32] = bytes[at % 32].rotate_left(3) ^ byte;
    }
    UserSecret::from_bytes(bytes)
}
