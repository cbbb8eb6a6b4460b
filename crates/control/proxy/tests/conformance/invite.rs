//! The INVITE transaction through a proxy: CANCEL, timer C, and more than one answer.

use std::time::Duration;

use sluicegate_proxy::Tables;

use crate::site::{
    ANSWER, AUDIO, Caller, PBX, PHONE, Sent, Site, bye_of_service, header, phone, relayed, reply, status,
};

const INSIDE: &str = "sip:pbx@10.0.0.2:5060";
/// Timer C, and what a cancelled request is waited for (64 T1).
const TIMER_C: Duration = Duration::from_secs(181);
const CANCELLED: Duration = Duration::from_secs(32);

/// The methods of what was sent there.
fn methods<'s>(sent: &'s Sent, addressee: &str) -> Vec<&'s str> {
    let texts = sent.iter().filter(|(to, _)| to.to_string() == addressee).map(|(_, text)| text.as_str());
    texts.filter_map(|text| text.split(' ').next()).collect()
}

fn to_pbx(sent: &Sent) -> Vec<&str> {
    methods(sent, PBX)
}

fn to_phone(sent: &Sent) -> Vec<u16> {
    sent.iter().filter(|(to, _)| to.to_string() == PHONE).map(|(_, text)| status(text)).collect()
}

fn cancel(alice: &mut Caller) -> String {
    alice.request("CANCEL", "sip:pbx@example.net", "", "").replacen("z9hG4bKalice3", "z9hG4bKalice2", 1)
}

/// RFC 3261 section 16.8.
#[test]
fn d09_timer_c_cancels_what_rings_and_the_client_hears_what_becomes_of_it() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 180, ""));
    assert_eq!(to_pbx(&site.pass(TIMER_C - Duration::from_millis(1))), [""; 0]);
    let sent = site.pass(Duration::from_millis(1));
    assert_eq!((to_pbx(&sent), to_phone(&sent)), (vec!["CANCEL"], vec![]));
    site.send(PBX, reply(&sent[0].1, 200, ""));
    let sent = site.send(PBX, reply(&invite, 487, ""));
    assert_eq!((to_pbx(&sent), to_phone(&sent)), (vec!["ACK"], vec![487]));
}

#[test]
fn d09_what_does_not_answer_a_cancel_is_given_up_and_a_call_that_it_makes_later_is_ended() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 180, ""));
    let sent = site.pass(TIMER_C + CANCELLED);
    // The CANCEL itself is repeated until it is answered.
    assert!(to_pbx(&sent).iter().all(|method| *method == "CANCEL"));
    assert_eq!(to_phone(&sent)[0], 408);
    let sent = site.send(PBX, reply(&invite, 200, ANSWER));
    assert_eq!((to_pbx(&sent), to_phone(&sent)), (vec!["ACK", "BYE"], vec![]));
    assert!(site.asked().is_empty(), "nothing is opened for it");
    let again = site.send(PBX, reply(&invite, 200, ANSWER));
    assert_eq!(to_pbx(&again), ["ACK"], "whose first ACK was lost");
}

#[test]
fn d09_a_service_that_answers_after_the_client_was_told_408_is_hung_up() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    assert_eq!(to_phone(&site.pass(CANCELLED))[0], 408);
    assert_eq!(to_pbx(&site.send(PBX, reply(&invite, 180, ""))), [""; 0]);
    assert_eq!(to_pbx(&site.send(PBX, reply(&invite, 200, ANSWER))), ["ACK", "BYE"]);
}

/// What the client is told of nothing may ring all the same: a service's early media that no gate opens.
#[test]
fn d09_who_waits_is_answered_however_often_the_service_says_that_it_rings() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 180, ""));
    site.pass(Duration::from_secs(80));
    let early = reply(&invite, 183, ANSWER).replacen("Contact:", "Require: 100rel\r\nRSeq: 1\r\nContact:", 1);
    site.send(PBX, early);
    assert!(to_phone(&site.pass(Duration::from_secs(1))).is_empty(), "nothing was opened, and it comes again");
    let sent = site.pass(TIMER_C + CANCELLED);
    assert_eq!((to_pbx(&sent)[0], to_phone(&sent)[0]), ("CANCEL", 408));
}

#[test]
fn a_client_hears_that_it_rings_where_early_media_are_not_opened() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 180, ANSWER));
    let sent = site.pass(Duration::from_secs(1));
    assert_eq!(to_phone(&sent), [180]);
    assert!(sent[0].1.ends_with("Content-Length: 0\r\n\r\n") && !sent[0].1.contains("Content-Type"), "{}", sent[0].1);
    assert_eq!(header(&sent[0].1, "Contact"), Some("<sip:pbx@203.0.113.1:5060>"));
    // The answer is opened all the same.
    site.send(PBX, reply(&invite, 200, ANSWER));
    assert_eq!(to_phone(&site.gate_opens()), [200]);
}

/// Each that is answered too late is remembered for as long as that answer may come again, and there are never more than there may
/// be.
#[test]
fn d09_what_was_hung_up_is_forgotten_once_its_answer_comes_no_more() {
    let mut site = Site::with(1, Tables { transactions_max: 4, ..Tables::default() });
    let gauge = |site: &Site, name: &str| {
        let gauges = site.shards[0].gauges(site.instant);
        gauges.iter().find(|gauge| gauge.name == name).map(|gauge| (gauge.used, gauge.max)).unwrap()
    };
    for turn in 0..4 {
        let mut alice = Caller { call_id: format!("late-{turn}"), ..phone() };
        let invite = relayed(&mut site, &mut alice);
        site.pass(CANCELLED * 2 - Duration::from_secs(2));
        let sent = site.send(PBX, reply(&invite, 200, ANSWER));
        assert_eq!(to_pbx(&sent), ["ACK", "BYE"]);
        site.send(PBX, reply(&sent[1].1, 200, ""));
        assert_eq!((gauge(&site, "hung_up"), gauge(&site, "lingering")), ((1, 8), (1, 8)));
    }
    site.pass(CANCELLED);
    assert_eq!((gauge(&site, "hung_up"), gauge(&site, "lingering")), ((0, 8), (0, 8)));
}

/// RFC 3261 section 9.1.
#[test]
fn d10_a_cancelled_call_ends_after_64_t1_if_the_service_does_not_say_so() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 180, ""));
    let sent = site.send(PHONE, cancel(&mut alice));
    assert_eq!((to_phone(&sent), to_pbx(&sent)), (vec![200], vec!["CANCEL"]));
    site.pass(CANCELLED - Duration::from_millis(1));
    assert_eq!(to_phone(&site.pass(Duration::from_millis(1)))[0], 487);
}

/// A 200 that crosses the CANCEL is the client's to end (RFC 3261 section 9.2).
#[test]
fn a_200_that_crosses_a_cancel_is_passed_on() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 180, ""));
    site.send(PHONE, cancel(&mut alice));
    site.send(PBX, reply(&invite, 200, ANSWER));
    assert_eq!(to_phone(&site.gate_opens()), [200]);
}

/// RFC 3261 section 16.7 (5): each 2xx is forwarded. RFC 3261 section 13.2.2.4: the caller ends all but one.
#[test]
fn d12_each_2xx_of_a_service_that_forks_is_passed_on_and_the_caller_ends_one() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 200, ANSWER));
    let first = site.gate_opens().pop().unwrap().1;
    let other = reply(&invite, 200, &ANSWER.replace("4500", "4600")).replace("pbx-tag", "other-tag");
    let sent = site.send(PBX, &other);
    assert_eq!(to_phone(&sent), [200]);
    let second = &sent[0].1;
    assert!(header(second, "To").unwrap().ends_with(";tag=other-tag"), "{second}");
    assert!(!second.contains("10.0.0.2") && second.contains("m=audio 0"), "nothing inside is shown: {second}");
    assert!(site.asked().is_empty(), "nor opened");
    assert_eq!(site.send(PBX, &other), sent, "until it is acknowledged");

    let mut ended = phone();
    ended.take_dialog(second);
    ended.cseq = 2;
    assert_eq!(to_pbx(&site.send(PHONE, ended.request("ACK", INSIDE, "", ""))), ["ACK"]);
    assert_eq!(to_pbx(&site.send(PHONE, ended.request("BYE", INSIDE, "", ""))), ["BYE"]);
    assert_eq!(site.revokes(), 0, "the other call lives");
    alice.take_dialog(&first);
    assert_eq!(to_pbx(&site.send(PHONE, alice.request("BYE", INSIDE, "", ""))), ["BYE"]);
    assert_eq!(site.revokes(), 1);
}

/// RFC 3261 section 8.2.6.1.
#[test]
fn d25_a_100_says_when_the_request_was_sent() {
    let mut site = Site::new();
    let signed = phone().signed(&mut site, "INVITE", "sip:pbx@example.net", "Timestamp: 54\r\n", AUDIO);
    let sent = site.send(PHONE, signed);
    let (_, trying) = sent.iter().find(|(_, text)| status(text) == 100).unwrap();
    assert_eq!(header(trying, "Timestamp"), Some("54"));
}

/// A service that breaks RFC 3261 section 12.1.1 has no tag by which one could tell that another than the first ends the call.
#[test]
fn a_call_whose_service_names_no_tag_ends_when_the_service_says_so() {
    for tag in ["", ";tag=named-later"] {
        let mut site = Site::new();
        let mut alice = phone();
        let invite = relayed(&mut site, &mut alice);
        site.send(PBX, reply(&invite, 200, ANSWER).replace(";tag=pbx-tag", ""));
        let ok = site.gate_opens().pop().unwrap().1;
        assert_eq!(header(&ok, "To"), Some("<sip:pbx@example.net>"));
        alice.take_dialog(&ok);
        alice.to_tag = Some("none".into());
        let bye = bye_of_service(&alice).replace(";tag=none", tag);
        assert_eq!(methods(&site.send(PBX, bye), PHONE), ["BYE"]);
        assert_eq!(site.revokes(), 1, "{tag}");
    }
}
