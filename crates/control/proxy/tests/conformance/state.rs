//! What is remembered of calls: how many, how long, and in how much memory.

use std::{sync::Arc, time::Duration};

use allocation_counter::measure;
use sluicegate_policy::{Bounds, Draft, Group, PerUser, Policy, Service, User};
use sluicegate_proxy::{Count, Input, Tables};
use sluicegate_store::password::credentials;

use crate::site::{
    ANSWER, AUDIO, Caller, GATE, PASSWORD, PBX, PHONE, REALM, Sent, Site, header, phone, relayed, reply, status,
};

const INSIDE: &str = "sip:pbx@10.0.0.2:5060";

/// A site with so many more users, `user-0` and so on, whose calls may hold what they like.
fn site_of(users: usize) -> Site {
    let mut site = Site::with(1, Tables::default());
    let names = (0..users).map(|nth| format!("user-{nth}"));
    let more = names.map(|name| User {
        phone: true,
        credentials: Some(credentials(&name, REALM, PASSWORD).unwrap()),
        groups: vec!["staff".into()],
        ..User::new(&name)
    });
    let draft = Draft {
        users: site.policy.users().map(|user| User::clone(user)).chain(more).collect(),
        groups: vec![Group { name: "staff".into(), description: String::new() }],
        services: site.policy.services().map(|service| Service::clone(service)).collect(),
        per_user: PerUser { grants_max: 1_000, ..PerUser::default() },
        ..Draft::default()
    };
    site.policy = Arc::new(Policy::build(draft, Bounds::default()).unwrap().0);
    let policy = Arc::clone(&site.policy);
    site.tell(0, Input::Policy(policy));
    site
}

/// Calls the SIP server as `user` with a dialog of its own, and hangs up: what the INVITE was answered.
fn call(site: &mut Site, user: &str, nth: u32) -> u16 {
    let mut caller = Caller { call_id: format!("call-{nth}"), ..Caller::new(user, PHONE).calls("pbx") };
    caller.cseq = nth;
    let signed = caller.signed(site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let mut sent = site.send(PHONE, signed);
    let refused = sent.pop().map(|(_, text)| status(&text)).filter(|code| *code >= 300);
    let Some((_, invite)) = sent.pop() else { return refused.unwrap_or(0) };
    site.send(PBX, reply(&invite, 200, ANSWER));
    let (_, ok) = site.gate_opens().pop().unwrap();
    caller.take_dialog(&ok);
    site.send(PHONE, caller.request("ACK", INSIDE, "", ""));
    let (_, bye) = site.send(PHONE, caller.request("BYE", INSIDE, "", "")).pop().unwrap();
    site.send(PBX, reply(&bye, 200, ""));
    site.events.clear();
    // As the gate says when it has closed what the BYE ended.
    site.ledger.rows().iter().for_each(|row| drop(site.ledger.ended("gate-1", row.id)));
    status(&ok)
}

fn used(site: &Site, table: &str) -> u64 {
    site.shards[0].gauges(site.instant).iter().find(|gauge| gauge.name == table).unwrap().used
}

/// A trunk calls 20 times a second, others 580 times, each for a moment; the tables are as large as nobody said otherwise.
#[test]
fn d01_six_hundred_calls_a_second_fit_and_so_does_a_trunk_for_ever() {
    let fixed = measure(|| drop(Site::with(1, Tables::default()))).bytes_max;
    let least = measure(|| drop(Site::with(1, Tables { transactions_max: 1, ..Tables::default() }))).bytes_max;
    let mut site = site_of(15);
    let mut nth = 0;
    let mut second = |site: &mut Site, others: u32| {
        for call_of in 0..20 + others {
            let user = if call_of < 20 { 0 } else { 1 + call_of % 14 };
            assert_eq!(call(site, &format!("user-{user}"), nth), 200, "call {nth}");
            nth += 1;
        }
        site.pass(Duration::from_secs(1));
    };
    // After 32 seconds as many end as begin.
    let kept = measure(|| (0..36).for_each(|_| second(&mut site, 580))).bytes_current;
    let remembered = used(&site, "server_transactions") + used(&site, "client_transactions");
    println!("tables of transactions: {} bytes", fixed - least);
    println!("{remembered} transactions remembered in {kept} bytes beside: {}", kept / remembered.cast_signed());
    assert!(remembered >= 2 * 31 * 600);
    assert!(fixed - least <= 2 * 64 * 65_536);
    // What finds the call of an answer that comes again, and no message.
    assert!(kept / remembered.cast_signed() < 100);
    (0..100).for_each(|_| second(&mut site, 0));
    assert_eq!(site.metrics[0].count(Count::TableFull), 0);
    site.pass(Duration::from_secs(60));
    assert_eq!((used(&site, "server_transactions"), used(&site, "client_transactions")), (0, 0));
}

/// RFC 3261 section 16.7 (5): the ACK may have been lost behind us.
#[test]
fn d01_a_2xx_that_comes_again_is_passed_on_as_before_and_after_its_ack_with_what_is_open() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 200, ANSWER));
    let first = site.gate_opens();
    assert_eq!(site.send(PBX, reply(&invite, 200, ANSWER)), first, "byte by byte");
    alice.take_dialog(&first[0].1);
    site.send(PHONE, alice.request("ACK", INSIDE, "", ""));
    let again = site.send(PBX, reply(&invite, 200, ANSWER));
    let body = |sent: &Sent| sent[0].1.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!((again.len(), again[0].0, status(&again[0].1)), (1, first[0].0, 200));
    assert_eq!(body(&again), body(&first));
    assert!(body(&again).contains(GATE) && !again[0].1.contains("10.0.0.2"));
    assert_eq!(header(&again[0].1, "Contact"), header(&first[0].1, "Contact"));
    assert_eq!(header(&again[0].1, "To"), header(&first[0].1, "To"));
    let ack = site.send(PHONE, alice.request("ACK", INSIDE, "", ""));
    assert!(ack[0].1.starts_with("ACK sip:pbx@10.0.0.2:5060 "));
    assert!(site.asked().is_empty());
}
