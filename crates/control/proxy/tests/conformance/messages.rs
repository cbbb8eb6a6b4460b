//! Requests outside of calls that a proxy passes on as they are: MESSAGE (RFC 3428), SUBSCRIBE and NOTIFY (RFC 6665), REFER
//! (RFC 3515), PUBLISH (RFC 3903), and those that nobody has defined yet.

use std::time::Duration;

use sluicegate_policy::{Draft, Policy, User};
use sluicegate_proxy::Input;

use crate::{
    inbound::{OTHER, TO_ALICE, answered, codes, methods, register, switch, to},
    site::{Caller, PBX, PHONE, Site, header, phone, reply},
};

const PBX_URI: &str = "sip:pbx@example.net";
const INSIDE: &str = "sip:pbx@10.0.0.2:5060";

/// A request of alice's to the SIP server, as it got there.
fn sent(site: &mut Site, alice: &mut Caller, method: &str, headers: &str) -> String {
    let signed = alice.signed(site, method, PBX_URI, headers, "");
    let sent = site.send(PHONE, signed);
    assert_eq!((methods(&sent, PBX), codes(&sent, PHONE).len()), (vec![method], 0), "{sent:?}");
    to(&sent, PBX)[0].to_owned()
}

#[test]
fn any_method_reaches_a_sip_server_from_who_may_use_it() {
    for method in ["MESSAGE", "PUBLISH", "NOTIFY", "INFO", "FROBNICATE"] {
        let mut site = Site::new();
        let mut alice = phone();
        let arrived = sent(&mut site, &mut alice, method, "Event: presence\r\n");
        assert!(arrived.starts_with(&format!("{method} {INSIDE} SIP/2.0\r\n")), "{arrived}");
        assert_eq!(header(&arrived, "P-Asserted-Identity"), Some("<sip:alice@example.net>"));
        assert!(!arrived.contains("Record-Route") && !arrived.contains("Proxy-Authorization"));
        assert!(!arrived.contains("Session-Expires"));
        let answer = site.send(PBX, reply(&arrived, 202, ""));
        assert_eq!(codes(&answer, PHONE), [202]);
        assert_eq!(site.ledger.gauges()[1].used, 0, "it makes no call");
        assert!(site.asked().is_empty());
    }
}

#[test]
fn who_may_not_use_the_server_sends_it_nothing() {
    let mut site = Site::new();
    let plain = site.send(PHONE, phone().request("MESSAGE", PBX_URI, "", ""));
    assert_eq!(codes(&plain, PHONE), [407]);
    let mut bob = Caller::new("bob", OTHER).calls("pbx");
    let signed = bob.signed(&mut site, "MESSAGE", PBX_URI, "", "");
    assert_eq!(codes(&site.send(OTHER, signed), OTHER), [403]);
    // A declared service has nobody who would read it.
    let mut alice = Caller::new("alice", PHONE);
    let signed = alice.signed(&mut site, "MESSAGE", "sip:web@example.net", "", "");
    let sent = site.send(PHONE, signed);
    assert!(!codes(&sent, PHONE).contains(&200) && methods(&sent, PBX).is_empty(), "{sent:?}");
}

/// RFC 4320: the sender of what is no INVITE gives up by itself.
#[test]
fn what_is_not_answered_is_repeated_and_then_forgotten_without_a_408() {
    let mut site = Site::new();
    let mut alice = phone();
    sent(&mut site, &mut alice, "MESSAGE", "");
    let passed = site.pass(Duration::from_secs(60));
    assert!(methods(&passed, PBX).len() > 5);
    assert!(codes(&passed, PHONE).is_empty(), "{passed:?}");
    let left = site.shards[0].gauges(site.instant).into_iter().filter(|gauge| gauge.name.ends_with("transactions"));
    assert_eq!(left.map(|gauge| gauge.used).sum::<u64>(), 0);
}

#[test]
fn a_subscription_lives_as_long_as_it_is_refreshed_and_its_user_may() {
    let mut site = Site::new();
    let mut alice = phone();
    let arrived = sent(&mut site, &mut alice, "SUBSCRIBE", "Event: dialog\r\nExpires: 600\r\n");
    assert!(arrived.contains("Record-Route"));
    let ok = reply(&arrived, 200, "").replacen("Contact:", "Expires: 600\r\nContact:", 1);
    let ok = site.send(PBX, ok);
    alice.take_dialog(to(&ok, PHONE)[0]);
    let notify = crate::site::of_service(&alice, "NOTIFY", 1, "");
    let pass = |site: &mut Site, secs: u64| {
        for _ in 0..secs {
            site.pass(Duration::from_secs(1));
            site.ledger.expire(site.unix);
        }
    };
    pass(&mut site, 500);
    assert_eq!(methods(&site.send(PBX, &notify), PHONE), ["NOTIFY"]);
    let refresh = alice.request("SUBSCRIBE", INSIDE, "Event: dialog\r\nExpires: 600\r\n", "");
    assert_eq!(methods(&site.send(PHONE, refresh), PBX), ["SUBSCRIBE"]);
    pass(&mut site, 500);
    assert_eq!(methods(&site.send(PBX, &notify), PHONE), ["NOTIFY"]);
    // Its user is disabled.
    let users = site.policy.users().map(|user| User { enabled: user.name != "alice", ..User::clone(user) }).collect();
    let services = site.policy.services().map(|service| sluicegate_policy::Service::clone(service)).collect();
    let groups = vec![sluicegate_policy::Group { name: "staff".into(), description: String::new() }];
    let draft = Draft { users, groups, services, ..Draft::default() };
    site.policy = Policy::build(draft, sluicegate_policy::Bounds::default()).unwrap().0.into();
    let policy = site.policy.clone();
    site.tell(0, Input::Policy(policy));
    let refresh = alice.request("SUBSCRIBE", INSIDE, "Event: dialog\r\nExpires: 600\r\n", "");
    assert_eq!(codes(&site.send(PHONE, refresh), PHONE), [403]);
    pass(&mut site, 200);
    assert_eq!(codes(&site.send(PBX, &notify), PBX), [481]);
}

#[test]
fn a_refused_subscription_leaves_no_dialog() {
    let mut site = Site::new();
    let mut alice = phone();
    let arrived = sent(&mut site, &mut alice, "SUBSCRIBE", "Event: dialog\r\n");
    assert_eq!(codes(&site.send(PBX, reply(&arrived, 489, "")), PHONE), [489]);
    assert_eq!(site.ledger.gauges()[1].used, 0);
}

#[test]
fn a_server_sends_messages_to_the_telephones_of_a_user_and_the_first_to_take_one_answers() {
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    register(&mut site, "alice", OTHER, "");
    let mut switch = switch();
    let message = switch.signed(&mut site, "MESSAGE", TO_ALICE, "", "");
    let sent = site.send(PBX, message);
    assert_eq!((methods(&sent, PHONE), methods(&sent, OTHER)), (vec!["MESSAGE"], vec!["MESSAGE"]));
    assert!(to(&sent, PHONE)[0].starts_with(&format!("MESSAGE sip:alice@{PHONE};line=1 ")));
    let (one, other) = (to(&sent, PHONE)[0].to_owned(), to(&sent, OTHER)[0].to_owned());
    assert!(codes(&site.send(PHONE, answered(&one, 486, "a", "")), PBX).is_empty());
    assert_eq!(codes(&site.send(OTHER, answered(&other, 200, "b", "")), PBX), [200]);
    assert_eq!(site.ledger.gauges()[1].used, 0);
}
