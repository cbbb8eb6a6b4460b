//! A policy that cannot work is refused with what is wrong, where, and what to write instead.

use sluicegate_grant::DataMode;
use sluicegate_policy::{
    Bounds, Draft, Finding, Group, Place, Policy, Registering, Rule, Service, ServiceDefault, ServiceKind, Severity,
    SipPeer, User,
};

fn service(text: &str) -> Service {
    toml::from_str(text).unwrap()
}

fn web() -> Service {
    service("name = \"web\"\naddress = \"10.0.0.1\"\nports = [\"tcp/80\"]\nallow = [\"group:staff\"]")
}

fn pbx(more: &str) -> Service {
    service(&format!(
        "name = \"web\"\nkind = \"sip\"\naddress = \"10.0.0.1\"\nports = [\"tcp/5000-5010\"]\nallow = [\"group:staff\"]\n{more}"
    ))
}

fn carrier(name: &str, host: u8) -> SipPeer {
    let text = format!("name = \"{name}\"\naddresses = [\"198.51.100.{host}\"]\ncertificate = \"{name}.example\"");
    toml::from_str(&text).unwrap()
}

fn draft() -> Draft {
    let rule =
        "name = \"night\"\neffect = \"deny\"\nservices = [\"web\"]\nsubjects = [\"group:staff\"]\nfrom = \"22:00\"";
    Draft {
        users: vec![User { enabled: false, ..User::new("alice") }],
        groups: vec![Group { name: "staff".into(), description: String::new() }],
        services: vec![web()],
        rules: vec![toml::from_str::<Rule>(rule).unwrap()],
        peers: vec![carrier("carrier", 1)],
        ..Draft::default()
    }
}

fn findings(change: impl FnOnce(&mut Draft)) -> Vec<Finding> {
    let mut draft = draft();
    change(&mut draft);
    draft.check(&Bounds::default())
}

#[test]
fn a_sound_policy_has_no_findings() {
    assert_eq!(findings(|_| ()), []);
    let (_, warnings) = Policy::build(draft(), Bounds::default()).unwrap();
    assert_eq!(warnings, []);
}

#[test]
fn each_error_names_its_place_and_says_what_to_write() {
    type Change = fn(&mut Draft);
    let cases: [(Change, &str, &str, &str); 47] = [
        (|d| d.services[0].numbers = vec!["1*".into()], "service", "numbers", "only a SIP server"),
        (|d| d.services[0].backups = vec!["pbx".into()], "service", "backups", "only a SIP server"),
        (|d| d.services[0] = pbx("backups = [\"web\"]"), "service", "backups", "no other service"),
        (|d| d.services[0] = pbx("backups = [\"nobody\"]"), "service", "backups", "no other service"),
        (|d| d.services[0] = pbx(&format!("backups = {:?}", ["x"; 5])), "service", "backups", "5 entries"),
        (
            |d| {
                d.services[0] = pbx("backups = [\"two\", \"two\"]");
                let address = [10, 0, 0, 2].into();
                d.services.push(Service { name: "two".into(), address, backups: Vec::new(), ..d.services[0].clone() });
            },
            "service",
            "backups",
            "there twice",
        ),
        (|d| d.services[0].register = Registering::Relay, "service", "register", "only a SIP server"),
        (|d| d.services[0].numbers = vec!["a b".into()], "service", "numbers", "cannot be dialled"),
        (|d| d.services[0].name = "a b".into(), "service", "name", "cannot be used"),
        (|d| d.services.push(Service { address: [10, 0, 0, 2].into(), ..web() }), "service", "name", "used twice"),
        (
            |d| d.services.push(Service { name: "two".into(), ..web() }),
            "service",
            "ports",
            "belongs to service \"web\"",
        ),
        (|d| d.services[0].ports.clear(), "service", "ports", "open anything"),
        (|d| d.services[0].ports.push("tcp/70-90".parse().unwrap()), "service", "ports", "overlaps tcp/80"),
        (|d| d.services[0].ports[0].last = 1, "service", "ports", "no port range"),
        (|d| d.services[0].ports = vec!["tcp/80".parse().unwrap(); 33], "service", "ports", "33 entries"),
        (|d| d.services[0].address = [0, 0, 0, 0].into(), "service", "address", "no address of a host"),
        (|d| d.services[0].address = "fd00::1".parse().unwrap(), "service", "mode", "IPv4 only"),
        (|d| d.services[0].limits.lifetime_s = 5, "service", "grant", "lifetime_s = 5"),
        (|d| d.services[0].limits.lifetime_s = 90_000, "service", "grant", "lifetime_s = 90000"),
        (|d| d.services[0].limits.bytes_max = 0, "service", "grant", "bytes_max = 0"),
        (|d| d.services[0].limits.rate_bps = 99_999, "service", "grant", "rate"),
        (|d| d.services[0].limits.flows_max = 0, "service", "grant", "flows_max"),
        (
            |d| {
                d.services[0].limits.least_mode = DataMode::Capability;
                d.services[0].ports.push("icmp".parse().unwrap());
            },
            "service",
            "grant",
            "icmp would never be opened",
        ),
        (
            |d| {
                let text = "name = \"web\"\nkind = \"sip\"\naddress = \"10.0.0.1\"\nports = [\"udp/5004\"]\n\
                            grant = { least_mode = \"mac\" }";
                d.services[0] = service(text);
            },
            "service",
            "grant",
            "lets no telephone in",
        ),
        (
            |d| {
                d.services[0].default = ServiceDefault::Open;
                d.services[0].limits.least_mode = DataMode::Capability;
            },
            "service",
            "grant",
            "granted to nobody",
        ),
        (|d| d.services[0].sip_port = Some(5060), "service", "sip_port", "no SIP"),
        (|d| d.services[0].sip = vec!["tcp/5060".parse().unwrap()], "service", "sip", "no SIP"),
        (|d| d.services[0] = pbx("sip_port = 5060\nsip = [\"tcp/5060\"]"), "service", "sip_port", "already where"),
        (
            |d| d.services[0] = pbx("sip = [\"tcp/5060\", \"udp/5060\", \"tcp/7\"]"),
            "service",
            "sip",
            "tcp/7 is the second",
        ),
        (|d| d.services[0] = pbx("sip = [\"tls/5004\"]"), "service", "ports", "tcp/5000-5010 includes its SIP port"),
        (
            |d| {
                d.services[0] = pbx("sip = [\"tls/5061\"]");
                let trunk = pbx("sip = [\"tls/5061\"]\ncertificate = \"trunk.example.net\"");
                d.services.push(Service { name: "trunk".into(), ports: vec!["udp/9".parse().unwrap()], ..trunk });
            },
            "service",
            "certificate",
            "with another certificate",
        ),
        (|d| d.services[0] = pbx("certificate = \"pbx.example.net\""), "service", "certificate", "no SIP over TLS"),
        (
            |d| {
                d.services[0] = pbx("sip = [\"tcp/5060\"]\nregistrar = \"alice\"");
                d.services[0].kind = ServiceKind::Agent;
            },
            "service",
            "sip",
            "over UDP alone",
        ),
        (
            |d| {
                d.services[0] = Service { default: ServiceDefault::Open, ..pbx("sip = [\"tcp/5060\"]") };
            },
            "service",
            "sip",
            "is sent no SIP",
        ),
        (|d| d.services[0].default = ServiceDefault::Open, "service", "default", "without translation"),
        (|d| d.services[0].default = ServiceDefault::Open, "service", "ports", "open on all ports"),
        (|d| d.services[0].default = ServiceDefault::Open, "service", "allow", "open to everyone"),
        (|d| d.services[0].registrar = Some("alice".into()), "service", "registrar", "does not register"),
        (
            |d| {
                d.services[0] =
                    service("name = \"web\"\nkind = \"agent\"\naddress = \"10.0.0.1\"\nports = [\"tcp/80\"]");
            },
            "service",
            "registrar",
            "no one may register",
        ),
        (
            |d| {
                d.services[0] =
                    service("name = \"web\"\nkind = \"sip\"\naddress = \"10.0.0.1\"\nports = [\"udp/5000-6000\"]");
            },
            "service",
            "ports",
            "SIP port",
        ),
        (|d| d.rules[0].services.push("ftp".into()), "rule", "services", "no service \"ftp\""),
        (|d| d.rules[0].services.clear(), "rule", "services", "no service"),
        (|d| d.rules[0].subjects.clear(), "rule", "subjects", "no one"),
        (|d| d.rules[0].to = d.rules[0].from, "rule", "to", "ends when it begins"),
        (|d| d.rules[0].limits = Some(Default::default()), "rule", "grant", "grants nothing"),
        (|d| d.users.push(d.users[0].clone()), "user", "name", "used twice"),
        (|d| d.groups[0].name = "-".into(), "group", "name", "cannot be used"),
    ];
    for (change, place, field, message) in cases {
        let findings = findings(change);
        let found = findings.iter().find(|f| f.severity == Severity::Error && f.message.contains(message));
        let found = found.unwrap_or_else(|| panic!("{message}: {findings:?}"));
        assert!(found.subject.to_string().starts_with(place), "{found}");
        assert_eq!(found.field, field, "{found}");
        assert!(!found.hint.is_empty());
        let mut draft = draft();
        change(&mut draft);
        assert!(Policy::build(draft, Bounds::default()).is_err(), "{message}");
    }
}

#[test]
fn what_only_looks_wrong_is_a_warning_and_opens_nothing() {
    type Change = fn(&mut Draft);
    let cases: [(Change, &str); 8] = [
        (
            |d| {
                d.services[0] = pbx("backups = [\"two\"]");
                let (name, address) = ("two".into(), [10, 0, 0, 2].into());
                let allow = vec!["user:alice".parse().unwrap()];
                d.services.push(Service { name, address, allow, backups: Vec::new(), ..d.services[0].clone() });
            },
            "group:staff may use this and not \"two\"",
        ),
        (|d| d.groups.clear(), "there is no group \"staff\""),
        (|d| d.services[0].allow.clear(), "no one may use it"),
        (|d| d.services[0].allow.push("user:bob".parse().unwrap()), "there is no user \"bob\""),
        (|d| (d.users[0].enabled, d.users[0].phone) = (true, true), "has no password"),
        (|d| d.users[0].groups.push("phones".into()), "there is no group \"phones\""),
        (|d| d.services[0].limits.least_mode = DataMode::Mac, "tcp/80 carries no packet MACs"),
        (|d| d.services[0].ports[0] = "udp/10000-20000".parse().unwrap(), "10001 of the gate's external ports"),
    ];
    for (change, message) in cases {
        let findings = findings(change);
        assert!(findings.iter().all(|f| f.severity == Severity::Warning), "{findings:?}");
        assert!(findings.iter().any(|f| f.message.contains(message)), "{message}: {findings:?}");
    }
}

#[test]
fn every_table_refuses_one_more_than_its_maximum() {
    type Change = fn(&mut Draft);
    let bounds = Bounds { users_max: 1, groups_max: 1, services_max: 1, rules_max: 1, peers_max: 1 };
    let (policy, _) = Policy::build(draft(), bounds).unwrap();
    assert!(policy.gauges().iter().all(|gauge| (gauge.used, gauge.max) == (1, 1)));
    let one_more: [(Change, &str); 5] = [
        (|d| d.users.push(User::new("bob")), "2 users, but at most 1 fit"),
        (|d| d.groups.push(Group { name: "guests".into(), description: String::new() }), "2 groups"),
        (|d| d.services.push(Service { name: "two".into(), address: [10, 0, 0, 2].into(), ..web() }), "2 services"),
        (|d| d.rules.push(Rule { name: "two".into(), ..d.rules[0].clone() }), "2 rules"),
        (|d| d.peers.push(carrier("other", 2)), "2 peers"),
    ];
    for (add, message) in one_more {
        let mut draft = draft();
        add(&mut draft);
        let errors = Policy::build(draft, bounds).unwrap_err();
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        assert_eq!((&error.subject, error.severity), (&Place::Whole, Severity::Error));
        assert!(error.message.starts_with(message), "{error}");
    }
    let none = Bounds { users_max: 0, groups_max: 0, services_max: 0, rules_max: 0, peers_max: 0 };
    let errors = Policy::build(draft(), none).unwrap_err();
    let whole = errors.iter().filter(|f| f.subject == Place::Whole && f.severity == Severity::Error);
    assert_eq!(whole.count(), 5);
}
