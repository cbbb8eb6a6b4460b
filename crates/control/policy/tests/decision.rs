//! Who may do what, when, and how much of it.

use std::net::IpAddr;

use proptest::prelude::*;
use sluicegate_grant::DataMode;
use sluicegate_policy::{
    Bounds, Credentials, DenyReason, Draft, Effect, Group, Limits, Outcome, PerUser, Policy, PortRange, Request, Rule,
    Service, Share, User, WANTED_MAX, decide,
};
use sluicegate_wire::UnixTime;

/// 2026-11-20 00:00 UTC, a Friday.
const FRIDAY: u64 = 1_795_132_800;
const NOON: u64 = FRIDAY + 12 * 3600;

fn user(name: &str, group: &str) -> User {
    let credentials = Credentials { ha1_sha256: [0; 32], ha1_md5: [0; 16] };
    User { groups: vec![group.into()], credentials: Some(credentials), ..User::new(name) }
}

fn service(allow: &str) -> Service {
    let text =
        format!("name = \"web\"\naddress = \"10.0.0.1\"\nports = [\"tcp/80\", \"udp/100-199\"]\nallow = [{allow}]");
    toml::from_str(&text).unwrap()
}

fn rule(name: &str, effect: Effect, rest: &str) -> Rule {
    let effect = if effect == Effect::Allow { "allow" } else { "deny" };
    let text =
        format!("name = \"{name}\"\neffect = \"{effect}\"\nservices = [\"web\"]\nsubjects = [\"group:staff\"]\n{rest}");
    toml::from_str(&text).unwrap()
}

fn policy(allow: &str, rules: Vec<Rule>) -> Policy {
    let group = |name: &str| Group { name: name.into(), description: String::new() };
    let disabled = User { enabled: false, ..user("mallory", "staff") };
    let draft = Draft {
        users: vec![user("alice", "staff"), user("bob", "guests"), disabled],
        groups: vec![group("staff"), group("guests")],
        services: vec![service(allow)],
        rules,
        ..Draft::default()
    };
    Policy::build(draft, Bounds::default()).unwrap().0
}

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));

fn ask(policy: &Policy, user: &str, wanted: &[&str], now: u64) -> Outcome {
    ask_as(DataMode::Pinhole, policy, user, wanted, now)
}

/// The same for a client whose packets can prove so much.
fn ask_as(proves: DataMode, policy: &Policy, user: &str, wanted: &[&str], now: u64) -> Outcome {
    let wanted: Vec<PortRange> = wanted.iter().map(|text| text.parse().unwrap()).collect();
    let request = Request {
        user,
        service: "web",
        client: CLIENT,
        wanted: &wanted,
        proves,
        now: UnixTime(now),
        held: Share::default(),
    };
    let decision = decide(policy, &request);
    assert_eq!(decision, decide(policy, &request), "a decision depends on its arguments alone");
    assert!(!decision.steps.is_empty());
    let denied = decision.steps.iter().any(|step| !step.passed);
    assert_eq!(denied, matches!(decision.outcome, Outcome::Deny(_)), "{decision}");
    decision.outcome
}

#[test]
fn what_nothing_allows_is_denied() {
    let policy = policy("\"user:bob\"", vec![]);
    assert_eq!(ask(&policy, "alice", &["tcp/80"], NOON), Outcome::Deny(DenyReason::NotAllowed));
    assert_eq!(ask(&policy, "bob", &["tcp/80"], NOON), Outcome::Allow(Limits::DEFAULT));
}

#[test]
fn an_empty_policy_denies_everyone() {
    let policy = Policy::build(Draft::default(), Bounds::default()).unwrap().0;
    assert_eq!(ask(&policy, "alice", &["tcp/80"], NOON), Outcome::Deny(DenyReason::UnknownUser));
}

#[test]
fn a_group_is_allowed_through_its_members() {
    let policy = policy("\"group:staff\"", vec![]);
    assert_eq!(ask(&policy, "alice", &["tcp/80"], NOON), Outcome::Allow(Limits::DEFAULT));
    assert_eq!(ask(&policy, "bob", &["tcp/80"], NOON), Outcome::Deny(DenyReason::NotAllowed));
    assert_eq!(ask(&policy, "mallory", &["tcp/80"], NOON), Outcome::Deny(DenyReason::UserDisabled));
    assert_eq!(ask(&policy, "carol", &["tcp/80"], NOON), Outcome::Deny(DenyReason::UnknownUser));
}

#[test]
fn only_what_the_service_offers_can_be_opened() {
    let policy = policy("\"group:staff\"", vec![]);
    assert!(matches!(ask(&policy, "alice", &["udp/110-120", "tcp/80"], NOON), Outcome::Allow(_)));
    for wanted in ["tcp/81", "udp/190-200", "udp/80", "icmp"] {
        let reason = DenyReason::PortNotOffered(wanted.parse().unwrap());
        assert_eq!(ask(&policy, "alice", &["tcp/80", wanted], NOON), Outcome::Deny(reason));
    }
    assert_eq!(ask(&policy, "alice", &[], NOON), Outcome::Deny(DenyReason::NothingWanted));
    assert_eq!(ask(&policy, "alice", &["tcp/80"; WANTED_MAX + 1], NOON), Outcome::Deny(DenyReason::TooManyPorts));
}

#[test]
fn an_ipv6_client_cannot_reach_an_ipv4_service() {
    let policy = policy("\"group:staff\"", vec![]);
    let wanted = ["tcp/80".parse().unwrap()];
    let request = |client: &str| Request {
        user: "alice",
        service: "web",
        client: client.parse().unwrap(),
        wanted: &wanted,
        proves: DataMode::Pinhole,
        now: UnixTime(NOON),
        held: Share::default(),
    };
    assert_eq!(decide(&policy, &request("2001:db8::1")).outcome, Outcome::Deny(DenyReason::AddressFamily));
    assert!(matches!(decide(&policy, &request("::ffff:198.51.100.1")).outcome, Outcome::Allow(_)));
    let unknown = Request { service: "ftp", ..request("198.51.100.1") };
    assert_eq!(decide(&policy, &unknown).outcome, Outcome::Deny(DenyReason::UnknownService));
    let busy = Request { held: Share { grants: 64, ..Share::default() }, ..request("198.51.100.1") };
    assert_eq!(decide(&policy, &busy).outcome, over("grants", 64, 1, 64));
}

#[test]
fn a_rule_that_denies_wins_while_it_applies() {
    let night = rule("night", Effect::Deny, "from = \"22:00\"\nto = \"06:00\"");
    let policy = policy("\"group:staff\"", vec![rule("always", Effect::Allow, ""), night]);
    let denied = Outcome::Deny(DenyReason::DeniedByRule("night".into()));
    assert_eq!(ask(&policy, "alice", &["tcp/80"], FRIDAY + 23 * 3600), denied);
    assert_eq!(ask(&policy, "alice", &["tcp/80"], FRIDAY + 5 * 3600), denied);
    assert!(matches!(ask(&policy, "alice", &["tcp/80"], NOON), Outcome::Allow(_)));
}

#[test]
fn a_grant_ends_with_the_permission_behind_it() {
    let office = rule("office", Effect::Allow, "days = [\"fri\"]\nto = \"18:00\"");
    let policy_of = |rules| policy("", rules);
    let lifetime = |outcome| match outcome {
        Outcome::Allow(limits) => limits.lifetime_s,
        Outcome::Deny(reason) => panic!("{reason}"),
    };
    let policy_office = policy_of(vec![office.clone()]);
    assert_eq!(lifetime(ask(&policy_office, "alice", &["tcp/80"], NOON)), 300);
    assert_eq!(lifetime(ask(&policy_office, "alice", &["tcp/80"], FRIDAY + 18 * 3600 - 120)), 120);
    let closed = Outcome::Deny(DenyReason::OutsideHours("office".into()));
    assert_eq!(ask(&policy_office, "alice", &["tcp/80"], FRIDAY + 18 * 3600), closed);

    let refused_soon = rule("lunch", Effect::Deny, "from = \"12:01\"\nto = \"13:00\"");
    let policy_lunch = policy_of(vec![office, refused_soon]);
    assert_eq!(lifetime(ask(&policy_lunch, "alice", &["tcp/80"], NOON)), 60);
}

#[test]
fn the_strictest_limits_of_service_user_and_rules_hold() {
    let rules = vec![
        rule("short", Effect::Allow, "grant = { lifetime_s = 30 }"),
        rule("small", Effect::Allow, "grant = { bytes_max = \"64KB\", flows_max = 9 }"),
        rule("generous", Effect::Allow, "grant = { bytes_max = \"1GB\", rate = \"none\" }"),
    ];
    let policy = policy("\"group:staff\"", rules);
    let expected = Limits { bytes_max: 64_000, lifetime_s: 30, flows_max: 9, ..Limits::DEFAULT };
    assert_eq!(ask(&policy, "alice", &["tcp/80"], NOON), Outcome::Allow(expected));
}

fn over(what: &'static str, held: u64, more: u64, max: u64) -> Outcome {
    Outcome::Deny(DenyReason::OverShare { what, held, more, max })
}

/// A policy whose users may hold so much, and what it says to alice who holds so much.
fn sharing(per_user: PerUser) -> impl Fn(&[&str], Share) -> Outcome {
    let draft = Draft {
        users: vec![user("alice", "staff")],
        groups: vec![Group { name: "staff".into(), description: String::new() }],
        services: vec![service("\"group:staff\"")],
        per_user,
        ..Draft::default()
    };
    let (policy, _) = Policy::build(draft, Bounds::default()).unwrap();
    move |wanted, held| {
        let wanted: Vec<PortRange> = wanted.iter().map(|text| text.parse().unwrap()).collect();
        let (now, proves) = (UnixTime(NOON), DataMode::Pinhole);
        let request = Request { user: "alice", service: "web", client: CLIENT, wanted: &wanted, proves, now, held };
        decide(&policy, &request).outcome
    }
}

/// Asks for one grant after the other until the answer is no; what they hold together then.
fn take_all(ask: &impl Fn(&[&str], Share) -> Outcome, wanted: &[&str]) -> Share {
    let mut held = Share::default();
    for _ in 0..10_000 {
        let Outcome::Allow(limits) = ask(wanted, held) else { return held };
        let wants = wanted.len() as u64;
        let ranges = wanted.iter().map(|text| u64::from(text.parse::<PortRange>().unwrap().len()));
        held = held.plus(Share {
            grants: wants,
            ports: ranges.sum(),
            flows: wants * u64::from(limits.flows_max),
            bytes: wants * limits.bytes_max,
            rate_bps: wants * u64::from(limits.rate_100kbps()) * 100_000,
        });
    }
    panic!("no end: {held:?}");
}

#[test]
fn security_15_one_request_that_asks_for_many_stays_within_the_users_share() {
    let ask = sharing(PerUser::default());
    let held = |grants| Share { grants, ..Share::default() };
    assert_eq!(ask(&["tcp/80"; 2], held(63)), over("grants", 63, 2, 64));
    assert!(matches!(ask(&["tcp/80"], held(63)), Outcome::Allow(_)));
    assert_eq!(ask(&["tcp/80"; WANTED_MAX], held(33)), over("grants", 33, 32, 64));
    // Ports of all ranges of the request.
    let ask = sharing(PerUser { ports_max: 250, ..PerUser::default() });
    let whole = "udp/100-199";
    assert!(matches!(ask(&[whole; 2], Share::default()), Outcome::Allow(_)));
    assert_eq!(ask(&[whole; 3], Share::default()), over("external ports", 0, 300, 250));
    let held = Share { ports: 151, ..Share::default() };
    assert_eq!(ask(&[whole], held), over("external ports", 151, 100, 250));
}

#[test]
fn security_15_all_grants_of_a_user_together_hold_no_more_than_its_share() {
    let per_user =
        PerUser { grants_max: 40, ports_max: 900, flows_max: 500, bytes_max: 55_000_000, rate_bps: 33_000_000 };
    let each = [
        PerUser { grants_max: 40, ..PerUser::default() },
        PerUser { ports_max: 900, ..PerUser::default() },
        PerUser { flows_max: 500, ..PerUser::default() },
        PerUser { bytes_max: 55_000_000, ..PerUser::default() },
        PerUser { rate_bps: 33_000_000, ..PerUser::default() },
        per_user,
    ];
    for limits in each {
        for wanted in [&["tcp/80"][..], &["udp/100-119"], &["tcp/80", "udp/100-103", "udp/110"]] {
            let held = take_all(&sharing(limits), wanted);
            assert!(held.grants > 0, "{limits:?}");
            assert!(held.grants <= limits.grants_max.into() && held.ports <= limits.ports_max.into(), "{held:?}");
            assert!(held.flows <= limits.flows_max.into(), "{held:?} {limits:?}");
            assert!(held.bytes <= limits.bytes_max && held.rate_bps <= limits.rate_bps, "{held:?} {limits:?}");
        }
    }
    // What is left is given in even parts, and a rest that is no grant is refused.
    let ask = sharing(PerUser { flows_max: 100, ..PerUser::default() });
    let flows = |outcome| match outcome {
        Outcome::Allow(limits) => limits.flows_max,
        Outcome::Deny(reason) => panic!("{reason}"),
    };
    let held = |flows| Share { flows, ..Share::default() };
    assert_eq!(flows(ask(&["tcp/80"; 4], held(40))), 15);
    assert_eq!(flows(ask(&["tcp/80"], held(99))), 1);
    assert_eq!(ask(&["tcp/80"], held(100)), over("flows", 100, 1, 100));
    assert_eq!(ask(&["tcp/80"; 2], held(99)), over("flows", 99, 2, 100));
}

#[test]
fn conformance_05_a_least_mode_admits_only_who_proves_as_much() {
    let demand = |mode| vec![rule("strict", Effect::Allow, &format!("grant = {{ least_mode = \"{mode}\" }}"))];
    let weak = |range: &str, proves, least| {
        Outcome::Deny(DenyReason::ModeTooWeak { range: range.parse().unwrap(), proves, least })
    };
    let capability = policy("\"group:staff\"", demand("capability"));
    let (tcp, udp) = (&["tcp/80"][..], &["udp/100"][..]);
    for wanted in [tcp, udp] {
        let allowed = Limits { least_mode: DataMode::Capability, ..Limits::DEFAULT };
        assert_eq!(ask_as(DataMode::Capability, &capability, "alice", wanted, NOON), Outcome::Allow(allowed));
        let refused = ask(&capability, "alice", wanted, NOON);
        assert_eq!(refused, weak(wanted[0], DataMode::Pinhole, DataMode::Capability));
    }
    let refused = ask_as(DataMode::Mac, &capability, "alice", udp, NOON);
    assert_eq!(refused, weak("udp/100", DataMode::Mac, DataMode::Capability));
    // One range that is too weak is enough, wherever it stands.
    let mac = policy("\"group:staff\"", demand("mac"));
    assert!(matches!(ask_as(DataMode::Mac, &mac, "alice", udp, NOON), Outcome::Allow(_)));
    let refused = ask_as(DataMode::Mac, &mac, "alice", &["udp/100", "tcp/80"], NOON);
    assert_eq!(refused, weak("tcp/80", DataMode::Pinhole, DataMode::Mac));
    // Who may not use the service learns nothing of what it demands.
    assert_eq!(ask(&mac, "bob", udp, NOON), Outcome::Deny(DenyReason::NotAllowed));
}

#[test]
fn the_explanation_names_what_decided() {
    let policy = policy("", vec![rule("office", Effect::Allow, "from = \"08:00\"\nto = \"18:00\"")]);
    let wanted = ["tcp/80".parse().unwrap()];
    let request = Request {
        user: "alice",
        service: "web",
        client: CLIENT,
        wanted: &wanted,
        proves: DataMode::Pinhole,
        now: UnixTime(NOON),
        held: Share::default(),
    };
    let yes = decide(&policy, &request).to_string();
    assert!(
        yes.contains("+ rule \"office\" allows it (every day 08:00-18:00 UTC)") && yes.ends_with("= allowed"),
        "{yes}"
    );
    let no = decide(&policy, &Request { now: UnixTime(FRIDAY), ..request }).to_string();
    assert!(no.contains("- rule \"office\" allows it at other times only"), "{no}");
}

proptest! {
    /// A permission given at one second lasts, second by second, at least as long as the lifetime it was given.
    #[test]
    fn no_grant_outlives_its_permission(
        offset in 0u64..14 * 86_400, from in 0u32..24, to in 0u32..25, deny_from in 0u32..24, probe in 0u64..300,
    ) {
        prop_assume!(from != to && deny_from + 1 != 24);
        let window = |from, to| format!("from = \"{from:02}:00\"\nto = \"{to:02}:00\"");
        let rules = vec![
            rule("open", Effect::Allow, &format!("days = [\"mon\", \"tue\", \"fri\"]\n{}", window(from, to))),
            rule("shut", Effect::Deny, &window(deny_from, deny_from + 1)),
        ];
        let policy = policy("", rules);
        if let Outcome::Allow(limits) = ask(&policy, "alice", &["tcp/80"], FRIDAY + offset) {
            prop_assert!(limits.lifetime_s > 0);
            let later = FRIDAY + offset + probe.min(u64::from(limits.lifetime_s) - 1);
            prop_assert!(matches!(ask(&policy, "alice", &["tcp/80"], later), Outcome::Allow(_)));
        }
    }
}

#[test]
fn telephones_are_registered_at_the_first_sip_server_that_their_user_may_use_at_some_time() {
    let sip = |name: &str, last: u8, register: &str, allow: &str| -> Service {
        let text = format!(
            "name='{name}'\nkind='sip'\naddress='10.0.1.{last}'\nports=['udp/100-199']\nregister='{register}'\nallow=[{allow}]"
        );
        toml::from_str(&text).unwrap()
    };
    let of = |services: Vec<Service>, rules: Vec<Rule>| {
        let rules = rules.into_iter().map(|rule| Rule { services: vec!["b".into()], ..rule }).collect();
        let group = Group { name: "staff".into(), description: String::new() };
        let users = vec![user("alice", "staff")];
        let draft = Draft { users, groups: vec![group], services, rules, ..Draft::default() };
        Policy::build(draft, Bounds::default()).unwrap().0
    };
    let staff = "\"group:staff\"";
    let at = |policy: &Policy| policy.registers_at("alice").map(|service| service.name.clone());
    // The last by name stands first, and those before it take none or are not for her.
    let services =
        |allow: &str| vec![sip("c", 3, "relay", staff), sip("b", 2, "relay", allow), sip("a", 1, "frontend", staff)];
    let (by_rule, never) = (rule("r", Effect::Allow, "days = [\"sat\"]"), rule("r", Effect::Deny, ""));
    let at_night = rule("r", Effect::Deny, "from = \"22:00\"\nto = \"06:00\"");
    for (allow, rules, expected) in [
        (staff, vec![], "b"),
        ("", vec![], "c"),
        // Whatever the day is: a telephone does not change its registrar at night.
        ("", vec![by_rule], "b"),
        (staff, vec![at_night], "b"),
        (staff, vec![never], "c"),
    ] {
        let policy = of(services(allow), rules);
        assert_eq!(at(&policy).as_deref(), Some(expected));
        assert!(policy.relays_registrations() && policy.registers_at("nobody").is_none());
    }
    assert!(!of(vec![sip("a", 1, "frontend", staff)], vec![]).relays_registrations());
}
