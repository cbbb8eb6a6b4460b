use super::*;
use crate::samples;
use sluicegate_feed::Selected;
use sluicegate_wire::UnixTime;

fn opened(ledger: &mut Ledger, entry: Entry) {
    ledger.apply(Record::Opened(Box::new(entry)));
}

fn entry(number: u8, user: &str, service: &str, stamp: u64) -> Entry {
    let mut delta = samples::delta(samples::grant(number));
    delta.user = user.into();
    delta.service = service.into();
    Entry { delta, address: samples::GATE_ADDRESS, ports: (20_000, 20_000), stamp }
}

#[test]
fn a_service_keeps_its_number_and_the_feeds_that_announce_it() {
    let mut ledger = Ledger::default();
    for (name, issuer) in [("a", 1), ("b", 1), ("a", 2)] {
        let listed = ledger.announced([issuer; 8], samples::service(name)).unwrap();
        ledger.apply(Record::Service(listed));
    }
    assert_eq!(ledger.service("a").unwrap().number, 0);
    assert_eq!(ledger.service("b").unwrap().number, 1);
    assert_eq!(ledger.service("a").unwrap().issuers, [[1; 8], [2; 8]]);
}

#[test]
fn a_service_belongs_to_the_feed_that_announced_it_first() {
    let mut ledger = Ledger::default();
    let announce = |ledger: &mut Ledger, issuer: u8, service: &FeedService| {
        let listed = ledger.announced([issuer; 8], service.clone())?;
        ledger.apply(Record::Service(listed));
        Ok::<_, LedgerError>(())
    };
    let (first, mut other) = (samples::service("web"), samples::service("web"));
    other.address = IpAddr::from([10, 0, 0, 99]);
    announce(&mut ledger, 1, &first).unwrap();
    assert_eq!(announce(&mut ledger, 2, &other), Err(LedgerError::Owned("web".into())));
    announce(&mut ledger, 2, &first).unwrap();
    assert_eq!(announce(&mut ledger, 2, &other), Err(LedgerError::Owned("web".into())), "agreeing makes no owner");
    announce(&mut ledger, 1, &other).unwrap();
    assert_eq!(ledger.service("web").unwrap().service, other);
    // The next in line owns what the first withdraws, and so does anybody what only a lost frontend had.
    ledger.apply(ledger.withdrawn([1; 8], "web").unwrap());
    announce(&mut ledger, 2, &first).unwrap();
    ledger.only_issuers(&[[3; 8]]);
    announce(&mut ledger, 3, &other).unwrap();
    assert_eq!(ledger.service("web").unwrap().issuers, [[3; 8]]);
    // The gate's own file is first, whenever it comes.
    ledger.own(first.clone()).unwrap();
    assert_eq!(ledger.service("web").unwrap().service, first);
    assert_eq!(announce(&mut ledger, 3, &other), Err(LedgerError::Owned("web".into())));
}

#[test]
fn a_service_is_forgotten_when_no_feed_announces_it_any_more() {
    let mut ledger = Ledger::default();
    for issuer in [1, 2] {
        ledger.apply(Record::Service(ledger.announced([issuer; 8], samples::service("web")).unwrap()));
    }
    assert_eq!(ledger.withdrawn([3; 8], "web"), None);
    ledger.apply(ledger.withdrawn([1; 8], "web").unwrap());
    assert_eq!(ledger.service("web").unwrap().issuers, [[2; 8]]);
    ledger.apply(ledger.withdrawn([2; 8], "web").unwrap());
    assert_eq!(ledger.services().count(), 0);
}

#[test]
fn the_number_of_a_service_that_is_gone_is_not_given_to_the_next() {
    let mut ledger = Ledger::default();
    ledger.apply(Record::Service(ledger.announced([1; 8], samples::service("web")).unwrap()));
    ledger.apply(ledger.withdrawn([1; 8], "web").unwrap());
    assert_eq!(ledger.announced([1; 8], samples::service("ssh")).unwrap().number, 1);
}

#[test]
fn an_older_message_for_a_renewed_grant_does_not_shorten_it() {
    let mut ledger = Ledger::default();
    let mut renewed = samples::grant(1);
    renewed.not_after = renewed.not_after.plus_secs(60);
    let at = |grant, stamp| Entry {
        delta: samples::delta(grant),
        address: samples::GATE_ADDRESS,
        ports: (20_000, 20_000),
        stamp,
    };
    opened(&mut ledger, at(renewed.clone(), 1));
    opened(&mut ledger, at(samples::grant(1), 2));
    let entry = ledger.grant(renewed.id).unwrap();
    assert_eq!((&entry.delta.grant, entry.stamp), (&renewed, 2));
}

#[test]
fn the_full_list_of_services_refuses_a_new_name_but_not_a_change() {
    let mut ledger = Ledger::default();
    for n in 0..SERVICES_MAX {
        let listed = ledger.announced([1; 8], samples::service(&n.to_string())).unwrap();
        ledger.apply(Record::Service(listed));
    }
    assert_eq!(ledger.announced([1; 8], samples::service("one more")), Err(LedgerError::ServicesFull));
    assert!(ledger.announced([1; 8], samples::service("7")).is_ok());
}

#[test]
fn an_end_that_is_heard_late_does_not_end_the_grant_that_was_opened_since() {
    let mut ledger = Ledger::default();
    let id = samples::grant(1).id;
    opened(&mut ledger, entry(1, "alice", "web", 5));
    assert!(ledger.ended(id, 4).is_none());
    ledger.apply(Record::Ended { id: id.0, stamp: 4 });
    assert_eq!(ledger.grants_len(), 1);
    assert!(ledger.ended(id, 6).is_some());
    ledger.apply(Record::Ended { id: id.0, stamp: 6 });
    assert_eq!(ledger.grants_len(), 0);
}

#[test]
fn selectors_name_grants_by_id_call_user_service_time_and_issuer() {
    let mut ledger = Ledger::default();
    opened(&mut ledger, entry(1, "alice", "web", 1));
    opened(&mut ledger, entry(2, "alice", "ssh", 2));
    opened(&mut ledger, entry(3, "bob", "web", 3));
    let grant = samples::grant(1);
    let count = |what, issuer| ledger.select(&Selector::all(what), issuer).len();
    assert_eq!(count(Selected::Grant(grant.id), None), 1);
    assert_eq!(count(Selected::Call(grant.id.call()), None), 1);
    assert_eq!(count(Selected::User("alice".into()), None), 2);
    assert_eq!(count(Selected::Service("web".into()), None), 2);
    assert_eq!(count(Selected::User("alice".into()), Some(grant.issuer)), 2);
    assert_eq!(count(Selected::User("alice".into()), Some([0xEE; 8])), 0);
    let before = |unix| Selector { what: Selected::User("alice".into()), issued_before: Some(UnixTime(unix)) };
    assert_eq!(ledger.select(&before(grant.not_before.0), None).len(), 0);
    assert_eq!(ledger.select(&before(grant.not_before.0 + 1), None).len(), 2);
}

#[test]
fn a_ledger_comes_back_from_its_bytes() {
    let mut ledger = Ledger::default();
    ledger.apply(Record::Service(ledger.announced([1; 8], samples::service("web")).unwrap()));
    opened(&mut ledger, entry(1, "alice", "web", 1));
    ledger.apply(Record::Applied(Resume { issuer: [1; 8], boot_id: 2, seq: 3 }));
    let bytes = postcard::to_allocvec(&ledger).unwrap();
    assert_eq!(postcard::from_bytes::<Ledger>(&bytes).unwrap(), ledger);
    assert_eq!(ledger.resume([1; 8]).map(|resume| resume.seq), Some(3));
}
