//! Peers: what is refused about them, whom rules take them for, and which of them a number reaches.

use sluicegate_policy::{
    Bounds, Draft, Outcome, PerUser, Policy, Request, Rule, Service, Severity, Share, SipPeer, User, decide,
};
use sluicegate_wire::UnixTime;

const CARRIER: &str = "name = \"carrier\"\naddresses = [\"198.51.100.32/28\"]\ncertificate = \"sbc.carrier.example\"\n\
    sip = \"tls/198.51.100.40:5061\"\nnumbers = [\"+*\", \"0*\"]\ncalls_max = 3\n";

fn peer(from: &str, to: &str) -> SipPeer {
    assert!(CARRIER.contains(from));
    toml::from_str(&CARRIER.replacen(from, to, 1)).unwrap()
}

fn carrier() -> SipPeer {
    peer("carrier", "carrier")
}

fn pbx(more: &str) -> Service {
    let text = "name = \"pbx\"\nkind = \"sip\"\naddress = \"10.4.0.2\"\nports = [\"udp/10000-10099\"]\n";
    toml::from_str(&format!("{text}{more}")).unwrap()
}

fn policy(peers: Vec<SipPeer>, services: Vec<Service>, rules: Vec<Rule>) -> Policy {
    let users = vec![User::new("alice")];
    Policy::build(Draft { users, services, rules, peers, ..Draft::default() }, Bounds::default()).unwrap().0
}

fn allows(policy: &Policy, user: &str) -> bool {
    let wanted = ["udp/10000".parse().unwrap()];
    let request = Request {
        user,
        service: "pbx",
        client: "198.51.100.33".parse().unwrap(),
        wanted: &wanted,
        proves: sluicegate_grant::DataMode::Pinhole,
        now: UnixTime(1_800_000_000),
        held: Share::default(),
    };
    matches!(decide(policy, &request).outcome, Outcome::Allow(_))
}

#[test]
fn each_mistake_about_a_peer_is_found_with_what_to_write() {
    let errors = |peers: Vec<SipPeer>, services: Vec<Service>| {
        let found = Draft { peers, services, ..Draft::default() }.check(&Bounds::default());
        let errors = found.into_iter().filter(|finding| finding.severity == Severity::Error);
        errors.map(|finding| format!("{} {finding}", finding.field)).collect::<Vec<_>>()
    };
    assert_eq!(errors(vec![carrier()], Vec::new()), Vec::<String>::new());
    for (from, to, field, what) in [
        ("certificate = \"sbc.carrier.example\"\n", "", "certificate", "an address proves nothing"),
        ("\"tls/198", "\"udp/198", "sip", "over udp nobody shows a certificate (write \"tls/198.51.100.40:5061\")"),
        ("\"tls/198", "\"tcp/198", "sip", "is not TLS"),
        ("40:5061", "40:0", "sip", "no address and port of a host"),
        ("sip = \"tls/198.51.100.40:5061\"\n", "", "numbers", "it is called nowhere"),
        ("[\"198.51.100.32/28\"]", "[]", "addresses", "nobody is it"),
        ("\"0*\"", "\"a b\"", "numbers", "is no number"),
        ("calls_max = 3", "callers = [\"\"]", "callers", "is no number"),
        ("calls_max = 3", "calls_max = 0", "calls_max", "write 1 to 10000"),
        ("calls_max = 3", "calls_per_s = 20000", "calls_per_s", "write 1 to 10000"),
        ("\"carrier\"", "\"a:b\"", "name", "the name cannot be used"),
    ] {
        let found = errors(vec![peer(from, to)], Vec::new());
        assert!(found.len() == 1 && found[0].starts_with(field) && found[0].contains(what), "{to}: {found:?}");
    }
    let second = SipPeer { name: "second".into(), ..carrier() };
    assert!(
        errors(vec![carrier(), second.clone()], Vec::new())[0].contains("peer \"carrier\" shows the same certificate")
    );
    assert!(errors(vec![carrier(), carrier()], Vec::new()).iter().any(|error| error.contains("used twice")));
    let elsewhere = SipPeer { addresses: vec!["192.0.2.1".parse().unwrap()], ..second };
    assert_eq!(errors(vec![carrier(), elsewhere], Vec::new()), Vec::<String>::new());
    let server = Service {
        address: "198.51.100.34".parse().unwrap(),
        sip: vec!["tls/5061".parse().unwrap()],
        certificate: carrier().certificate,
        ..pbx("")
    };
    assert!(errors(vec![carrier()], vec![server])[0].contains("service \"pbx\" shows the same certificate"));
    let many = (0..65).map(|nth| SipPeer {
        name: format!("peer-{nth}"),
        addresses: vec![format!("192.0.2.{nth}").parse().unwrap()],
        sip: None,
        numbers: Vec::new(),
        ..carrier()
    });
    assert!(errors(many.collect(), Vec::new())[0].contains("65 peers, but at most 64 fit"));
}

#[test]
fn a_peer_is_let_in_by_its_own_name_and_is_no_user() {
    let of = |allow: &str| policy(vec![carrier()], vec![pbx(allow)], Vec::new());
    let named = of("allow = [\"peer:carrier\"]");
    assert!(allows(&named, "peer:carrier") && !allows(&named, "carrier") && !allows(&named, "peer:other"));
    assert!(named.user("peer:carrier").is_none() && named.party("peer:carrier").is_some());
    let another = of("allow = [\"user:alice\"]");
    assert!(allows(&another, "alice") && !allows(&another, "peer:carrier"));
    let deny = "name = \"no\"\nservices = [\"pbx\"]\nsubjects = [\"peer:carrier\"]\neffect = \"deny\"";
    let denied = policy(vec![carrier()], vec![pbx("allow = [\"peer:carrier\"]")], vec![toml::from_str(deny).unwrap()]);
    assert!(!allows(&denied, "peer:carrier"));
    let unknown = Draft { services: vec![pbx("allow = [\"peer:nobody\"]")], ..Draft::default() };
    let found = unknown.check(&Bounds::default());
    assert!(found.iter().any(|finding| finding.to_string().contains("there is no peer \"nobody\"")), "{found:?}");
}

#[test]
fn a_number_reaches_the_peer_whose_number_fits_best() {
    let national = SipPeer {
        name: "national".into(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        numbers: vec!["+49*".into(), "112".into()],
        ..carrier()
    };
    let silent = SipPeer { name: "silent".into(), sip: None, numbers: vec!["+4930*".into()], ..national.clone() };
    let draft = Draft { peers: vec![carrier(), national, silent], ..Draft::default() };
    // Its mistakes do not matter here.
    let peers: Vec<SipPeer> = draft.peers.iter().take(2).cloned().collect();
    let policy = policy(peers, Vec::new(), Vec::new());
    let reached = |number: &str| policy.peer_dialled(number).map(|peer| peer.name.clone());
    for (number, expected) in [
        ("+4930123", Some("national")),
        ("+1555", Some("carrier")),
        ("112", Some("national")),
        ("0112", Some("carrier")),
        ("112x", None),
        ("", None),
        ("+49 30", None),
    ] {
        assert_eq!(reached(number).as_deref(), expected, "{number}");
    }
    assert_eq!(draft.peers[2].answers_to("+4930123"), None, "it is called nowhere");
}

#[test]
fn a_peer_holds_what_its_calls_may_as_one_user_each() {
    let policy = policy(vec![carrier()], vec![pbx("allow = [\"peer:carrier\"]")], Vec::new());
    let (one, all) = (policy.share_of("alice"), policy.share_of("peer:carrier"));
    assert_eq!(one, PerUser::default());
    assert_eq!((all.grants_max, all.ports_max), (3 * one.grants_max, 3 * one.ports_max));
    assert_eq!((all.rate_bps, all.bytes_max), (one.rate_bps, one.bytes_max), "no limit stays none");
}
