//! What one shard of a frontend makes of what nobody should be able to say. The real object, on a virtual clock.

use sluicegate_proxy::{Count, Event, Tables};
use sluicegate_sip::{message::Message, write::Response};

use crate::signin::site::{AUDIO, Caller, PBX, PHONE, Site, status};

const WEB: &str = "sip:web@example.net";
const STRANGER: &str = "192.0.2.66:5060";

fn handed_over(site: &mut Site) -> Vec<u8> {
    let events = std::mem::take(&mut site.events);
    let shards = events.iter().filter_map(|event| match event {
        Event::HandOver { shard, .. } => Some(*shard),
        _ => None,
    });
    shards.collect()
}

#[test]
fn security_19_an_ack_is_read_by_the_shard_that_its_tag_names_only() {
    let mut site = Site::with(8, Tables::default());
    let mut alice = Caller::new("alice", PHONE);
    alice.set_up(&mut site, AUDIO);
    let ack = alice.request("ACK", WEB, "", "");
    (1..8).for_each(|shard| drop(site.send_to(shard, STRANGER, &ack)));
    assert_eq!(handed_over(&mut site), [0; 7]);
    let bye = alice.request("BYE", WEB, "", "");
    site.send(PHONE, bye);
    (0..8).for_each(|shard| drop(site.send_to(shard, STRANGER, &ack)));
    assert!(handed_over(&mut site).is_empty(), "the call is over");
}

#[test]
fn security_23_a_strangers_text_reaches_no_operators_terminal() {
    let mut site = Site::new();
    let mut stranger = Caller { password: "wrong".into(), ..Caller::new("alice", STRANGER) };
    stranger.sign_in(&mut site, "INVITE", "sip:%1b%5b31mFAKE%20LINE%0a@example.net", "", AUDIO);
    let notes = site.events.iter().filter_map(|event| match event {
        Event::Decided(decided) => Some(format!("{} {}", decided.decision.user, decided.decision.service)),
        _ => None,
    });
    assert_eq!(notes.collect::<Vec<_>>(), ["alice (no name)"]);
}

#[test]
fn security_27_an_answer_counts_only_from_where_the_request_went_and_from_this_start() {
    let mut site = Site::new();
    let relayed = |site: &mut Site, call_id: &str| {
        let mut alice = Caller { call_id: call_id.into(), ..Caller::new("alice", PHONE).calls("pbx") };
        let signed = alice.signed(site, "INVITE", "sip:pbx@example.net", "", AUDIO);
        site.send(PHONE, signed).remove(0).1
    };
    let invite = relayed(&mut site, "one");
    let mut refusal = Vec::new();
    Response::to(&Message::parse(invite.as_bytes()).unwrap(), 403).to_tag(b"x").begin(&mut refusal).finish();
    assert!(site.send("10.0.0.3:5060", &refusal).is_empty());
    site.start(1);
    relayed(&mut site, "two");
    assert!(site.send(PBX, &refusal).is_empty());
    assert_eq!(site.metrics[0].count(Count::ResponsesUnmatched), 1);
}

#[test]
fn security_31_unproved_senders_of_one_prefix_are_answered_so_often() {
    let mut site = Site::new();
    site.unproved_answers_per_s = 50;
    site.start(1);
    let mut stranger = Caller::new("nobody", STRANGER);
    let answered = (0..1_000).filter(|_| {
        let invite = stranger.request("INVITE", WEB, "", AUDIO);
        site.send(STRANGER, invite).first().is_some_and(|(_, text)| status(text) == 407)
    });
    let answered = answered.count();
    assert!(answered <= 110, "{answered}");
    Caller::new("alice", "192.0.2.7:5060").set_up(&mut site, AUDIO);
}
