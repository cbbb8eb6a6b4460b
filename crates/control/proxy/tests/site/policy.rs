//! Who there is on the site, and what they may.

use sluicegate_policy::{Bounds, Draft, Group, Policy, Service, Subject, User};
use sluicegate_store::password::credentials;

use super::{PASSWORD, REALM};

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
