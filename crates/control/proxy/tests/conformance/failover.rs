//! SIP servers with backups: RFC 3261 sections 16.7 and 21.5.4, RFC 3263 section 4.3.

use std::{sync::Arc, time::Duration};

use sluicegate_policy::{Registering, Service};
use sluicegate_proxy::{Count, Flow, Input, Tables};

use crate::site::{ANNEX, ANSWER, AUDIO, Caller, PBX, PHONE, Sent, Site, header, reply, status};

const PATIENCE: Duration = Duration::from_millis(4_100);

/// A site whose SIP server has a backup.
fn site() -> Site {
    let mut site = Site::new();
    with_annex(&mut site);
    site
}

fn with_annex(site: &mut Site) {
    site.registers_at(&["annex"]);
    site.change_service("annex", |annex| annex.register = Registering::Frontend);
    site.change_service("pbx", |pbx| pbx.backups = vec!["annex".into()]);
    for name in ["pbx", "annex"] {
        site.change_service(name, |service: &mut Service| service.allow.push("user:bob".parse().unwrap()));
    }
}

/// A call of this user; each with a Call-ID of its own.
fn caller(user: &str, nth: u32) -> Caller {
    let from = format!("198.51.100.7:{}", 41_000 + nth);
    Caller { call_id: format!("call-{user}-{nth}"), from, ..Caller::new(user, PHONE).calls("pbx") }
}

fn invite(site: &mut Site, caller: &mut Caller) -> Sent {
    let invite = caller.signed(site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let from = caller.from.clone();
    site.send(&from, invite)
}

/// What went to this address.
fn to(sent: &Sent, address: &str) -> Vec<String> {
    sent.iter().filter(|(to, _)| to.to_string() == address).map(|(_, text)| text.clone()).collect()
}

/// The INVITE of a call as its first server got it, and where that is.
fn first(site: &mut Site, caller: &mut Caller) -> (String, String) {
    let sent = invite(site, caller);
    let (to, text) = sent.iter().find(|(_, text)| text.starts_with("INVITE ")).expect("an INVITE");
    (to.to_string(), text.clone())
}

/// The server that is asked first, which refuses.
fn asks(site: &mut Site, user: &str, nth: u32) -> String {
    let (asked, invite) = first(site, &mut caller(user, nth));
    site.send(&asked, reply(&invite, 486, ""));
    asked
}

fn out(site: &Site) -> Vec<String> {
    site.outages.out(site.instant)
}

/// A call that the SIP server does not answer, and its backup refuses.
fn unanswered(site: &mut Site, user: &str, nth: u32) {
    let (asked, _) = first(site, &mut caller(user, nth));
    assert_eq!(asked, PBX, "{user} {nth}");
    let sent = site.pass(PATIENCE);
    site.send(ANNEX, reply(&to(&sent, ANNEX)[0], 486, ""));
}

#[test]
fn a_call_that_is_not_answered_goes_on_to_the_backup_with_its_media_and_all_that_follows() {
    let mut site = site();
    let mut alice = caller("alice", 1);
    let (asked, lost) = first(&mut site, &mut alice);
    assert_eq!(asked, PBX);
    let sent = site.pass(PATIENCE);
    assert_eq!(to(&sent, PBX).len(), 3, "it is repeated at half a second, and twice as late each time");
    let again = to(&sent, ANNEX);
    assert_eq!(again.len(), 1, "{sent:?}");
    let again = &again[0];
    assert!(again.starts_with("INVITE sip:pbx@10.0.0.5:5060 "), "{again}");
    assert_ne!(header(again, "Via"), header(&lost, "Via"));
    assert_eq!(header(again, "From"), header(&lost, "From"));
    assert_eq!(site.metrics[0].count(Count::FailedOver), 1);

    let answer = ANSWER.replace("10.0.0.2", "10.0.0.5");
    assert!(site.send(ANNEX, reply(again, 200, &answer).replace("10.0.0.2", "10.0.0.5")).is_empty());
    assert_eq!(site.gates.service, "annex", "what is opened is the backup's");
    let (_, ok) = site.gate_opens().pop().unwrap();
    assert_eq!(status(&ok), 200);
    alice.take_dialog(&ok);
    let from = alice.from.clone();
    for method in ["ACK", "INFO", "BYE"] {
        let request = alice.request(method, "sip:pbx@203.0.113.1:5060", "", "");
        let sent = site.send(&from, request);
        assert_eq!(to(&sent, ANNEX).len(), 1, "{method}: {sent:?}");
        assert!(to(&sent, PBX).is_empty(), "{method}");
    }
}

#[test]
fn a_call_that_its_server_makes_too_late_is_ended_there() {
    let mut site = site();
    let (_, lost) = first(&mut site, &mut caller("alice", 1));
    let sent = site.pass(PATIENCE);
    assert_eq!(to(&sent, ANNEX).len(), 1);
    // It rings there: it is cancelled. It is answered all the same: the call is ended.
    let sent = site.send(PBX, reply(&lost, 180, ""));
    assert!(to(&sent, PBX)[0].starts_with("CANCEL ") && sent.len() == 1, "{sent:?}");
    let sent = site.send(PBX, reply(&lost, 200, ANSWER));
    let methods: Vec<_> = to(&sent, PBX).iter().map(|text| text[..4].to_owned()).collect();
    assert_eq!((methods, sent.len()), (vec!["ACK ".to_owned(), "BYE ".to_owned()], 2), "{sent:?}");
    assert!(site.asked().is_empty());
}

#[test]
fn a_registration_goes_on_to_a_backup_that_takes_some() {
    for registers in [&["annex", "pbx"][..], &["annex"]] {
        let mut site = Site::new();
        site.registers_at(registers);
        site.change_service("annex", |annex| annex.backups = vec!["pbx".into()]);
        let mut alice = Caller { to: "sip:alice@example.net".into(), ..caller("alice", 1) };
        let from = alice.from.clone();
        let register =
            alice.signed(&mut site, "REGISTER", "sip:example.net", "Contact: <sip:alice@192.168.0.9>\r\n", "");
        let sent = site.send(&from, register);
        let path = |text: &str| header(text, "Path").map(str::to_owned);
        let first = path(&to(&sent, ANNEX)[0]);
        let sent = site.pass(PATIENCE);
        let again: Vec<_> = to(&sent, PBX).iter().map(|text| path(text)).collect();
        assert_eq!(again.len(), registers.len() - 1, "{sent:?}");
        assert!(again.iter().all(|path| path.is_some() && *path != first), "its own Path leads back from there");
    }
}

#[test]
fn requests_that_make_no_call_go_on_too() {
    let mut site = site();
    let mut alice = caller("alice", 1);
    let message = alice.signed(&mut site, "MESSAGE", "sip:pbx@example.net", "", "");
    let from = alice.from.clone();
    assert_eq!(to(&site.send(&from, message), PBX).len(), 1);
    let sent = site.pass(PATIENCE);
    let again = to(&sent, ANNEX);
    assert!(again[0].starts_with("MESSAGE ") && again.len() == 1, "{sent:?}");
    assert_eq!(status(&site.send(ANNEX, reply(&again[0], 200, ""))[0].1), 200);
}

#[test]
fn with_503_a_call_goes_on_at_once_and_if_all_say_so_the_client_hears_it() {
    for (more, is_out) in [("", false), ("Retry-After: 60 (maintenance)\r\n", true)] {
        let mut site = site();
        let refuse = |invite: &str| reply(invite, 503, "").replacen("Contact:", &format!("{more}Contact:"), 1);
        for (nth, user) in [(1, "alice"), (2, "bob")] {
            let mut caller = caller(user, nth);
            let (asked, invite) = first(&mut site, &mut caller);
            assert_eq!(asked, PBX, "what one user hears is no other's");
            let sent = site.send(PBX, refuse(&invite));
            assert!(to(&sent, PBX)[0].starts_with("ACK "));
            let again = to(&sent, ANNEX);
            assert!(again.len() == 1 && to(&sent, &caller.from).is_empty(), "{sent:?}");
            let sent = site.send(ANNEX, reply(&again[0], 503, ""));
            assert_eq!(to(&sent, &caller.from).iter().map(|text| status(text)).collect::<Vec<_>>(), [503]);
        }
        assert_eq!(out(&site), if is_out { vec!["pbx".to_owned()] } else { vec![] });
        let instead = if is_out { ANNEX } else { PBX };
        assert_eq!(asks(&mut site, "alice", 3), instead);
        site.pass(Duration::from_secs(50));
        assert_eq!(asks(&mut site, "alice", 4), instead);
        site.pass(Duration::from_secs(20));
        assert_eq!(asks(&mut site, "alice", 5), PBX);
    }
}

#[test]
fn if_nobody_answers_the_caller_hears_408_after_each_was_asked() {
    let mut site = site();
    let mut alice = caller("alice", 1);
    first(&mut site, &mut alice);
    let sent = site.pass(PATIENCE);
    assert_eq!(to(&sent, ANNEX).len(), 1);
    let sent = site.pass(Duration::from_secs(40));
    let heard: Vec<_> = to(&sent, &alice.from).iter().map(|text| status(text)).collect();
    assert_eq!((heard.first(), to(&sent, PBX).len()), (Some(&408), 0), "{sent:?}");
    assert_eq!(site.shards[0].gauges(site.instant).iter().find(|gauge| gauge.name == "exchanges").unwrap().used, 0);
}

#[test]
fn what_rings_or_is_cancelled_stays_where_it_is() {
    let mut site = site();
    let mut alice = caller("alice", 1);
    let (_, invite) = first(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 180, ""));
    let sent = site.send(PBX, reply(&invite, 503, ""));
    assert!(to(&sent, ANNEX).is_empty() && status(&to(&sent, &alice.from)[0]) == 503, "{sent:?}");
    // 100 alone says that the server is there.
    let (_, invite) = first(&mut site, &mut caller("alice", 2));
    site.send(PBX, reply(&invite, 100, ""));
    assert!(to(&site.pass(PATIENCE), ANNEX).is_empty());
    // A refusal of the called is an answer.
    let (_, invite) = first(&mut site, &mut caller("alice", 3));
    let sent = site.send(PBX, reply(&invite, 486, ""));
    assert!(to(&sent, ANNEX).is_empty());
    let mut alice = caller("alice", 4);
    first(&mut site, &mut alice);
    let cancel = alice.request("CANCEL", "sip:pbx@example.net", "", "").replacen("z9hG4bKalice3", "z9hG4bKalice2", 1);
    let from = alice.from.clone();
    site.send(&from, cancel);
    assert!(to(&site.pass(Duration::from_secs(40)), ANNEX).is_empty());
}

#[test]
fn one_user_is_answered_by_the_backup_at_once_and_only_a_second_one_makes_that_so_for_all() {
    let mut site = site();
    unanswered(&mut site, "alice", 1);
    assert!(out(&site).is_empty());
    // However often.
    assert!((2..9).all(|nth| asks(&mut site, "alice", nth) == ANNEX));
    unanswered(&mut site, "bob", 1);
    assert_eq!(out(&site), ["pbx"]);
    assert_eq!(first(&mut site, &mut caller("bob", 2)).0, ANNEX);
}

#[test]
fn a_server_that_answers_anybody_meanwhile_is_not_out() {
    let mut site = site();
    // Two users send what the server does not answer, and a third party's call is answered.
    let (_, answered) = first(&mut site, &mut caller("alice", 9));
    first(&mut site, &mut caller("alice", 1));
    first(&mut site, &mut caller("bob", 1));
    site.pass(Duration::from_secs(1));
    site.send(PBX, reply(&answered, 180, ""));
    site.pass(PATIENCE);
    assert!(out(&site).is_empty());
    assert_eq!(first(&mut site, &mut caller("bob", 2)).0, PBX);
}

#[test]
fn nobody_but_the_server_says_that_it_is_there_or_not() {
    let mut site = site();
    let (_, invite) = first(&mut site, &mut caller("alice", 1));
    let refusal = reply(&invite, 503, "").replacen("Contact:", "Retry-After: 60\r\nContact:", 1);
    // From elsewhere, though the branch is right; from there, with another branch.
    assert!(site.send("198.51.100.66:5060", &refusal).is_empty());
    assert!(site.send(PBX, refusal.replace("z9hG4bK", "z9hG4bKx")).is_empty());
    assert!(site.send("198.51.100.66:5060", reply(&invite, 100, "")).is_empty());
    assert_eq!(site.metrics[0].count(Count::FailedOver), 0);
    assert_eq!(to(&site.pass(PATIENCE), ANNEX).len(), 1, "it is silent all the same");
    let tables = site.shards[0].gauges(site.instant);
    assert_eq!(tables.iter().find(|gauge| gauge.name == "silences").unwrap().used, 0);
}

#[test]
fn one_request_tries_a_server_that_was_out_and_an_answer_brings_it_back() {
    let mut site = site();
    unanswered(&mut site, "alice", 1);
    unanswered(&mut site, "bob", 1);
    site.pass(Duration::from_secs(31));
    assert_eq!(first(&mut site, &mut caller("alice", 2)).0, PBX);
    assert_eq!(asks(&mut site, "bob", 2), ANNEX, "all others wait for that one");
    // It fails, so the next comes half a minute later.
    let sent = site.pass(PATIENCE);
    site.send(ANNEX, reply(&to(&sent, ANNEX)[0], 486, ""));
    site.pass(Duration::from_secs(20));
    assert_eq!(asks(&mut site, "bob", 3), ANNEX);
    site.pass(Duration::from_secs(10));
    assert_eq!(asks(&mut site, "alice", 4), PBX);
    assert!(out(&site).is_empty());
    assert_eq!(asks(&mut site, "bob", 4), PBX);
}

#[test]
fn where_all_are_out_each_is_asked_all_the_same() {
    let mut site = site();
    for user in ["alice", "bob"] {
        first(&mut site, &mut caller(user, 1));
    }
    site.pass(Duration::from_secs(45));
    let mut alice = caller("alice", 2);
    let (asked, invite) = first(&mut site, &mut alice);
    let sent = site.send(&asked, reply(&invite, 503, ""));
    let other = if asked == PBX { ANNEX } else { PBX };
    assert_eq!(to(&sent, other).len(), 1, "{sent:?}");
}

#[test]
fn who_may_not_use_the_backup_goes_without_it() {
    let mut site = site();
    site.change_service("annex", |annex| annex.allow.retain(|subject| subject.to_string() != "user:bob"));
    let mut bob = caller("bob", 1);
    let (_, invite) = first(&mut site, &mut bob);
    let sent = site.send(PBX, reply(&invite, 503, ""));
    assert!(to(&sent, ANNEX).is_empty() && status(&to(&sent, &bob.from)[0]) == 503, "{sent:?}");
}

#[test]
fn a_server_that_cannot_be_reached_is_one_that_does_not_answer() {
    let mut site = site();
    let (_, invite) = first(&mut site, &mut caller("alice", 1));
    let (now, flow) = (site.now(), Flow::datagrams(0, PBX.parse().unwrap()));
    site.shards[0].on_input(now, Input::Undelivered { flow, message: invite.into_bytes() });
    let sent: Sent = site.take_flows().into_iter().map(|(flow, text)| (flow.peer, text)).collect();
    assert_eq!(to(&sent, ANNEX).len(), 1, "{sent:?}");
    assert_eq!(first(&mut site, &mut caller("alice", 2)).0, ANNEX);
}

#[test]
fn shards_share_what_they_know_of_servers() {
    let mut site = site();
    unanswered(&mut site, "alice", 1);
    unanswered(&mut site, "bob", 1);
    let known = Arc::clone(&site.outages);
    site.start(1);
    assert!(Arc::ptr_eq(&known, &site.outages));
    assert_eq!(first(&mut site, &mut caller("bob", 2)).0, ANNEX);
}

#[test]
fn as_many_requests_wait_for_the_first_word_as_there_are_transactions() {
    let mut site = Site::with(1, Tables { transactions_max: 4, replays_max: 64, ..Tables::default() });
    with_annex(&mut site);
    for nth in 0..4 {
        first(&mut site, &mut caller("alice", nth));
    }
    let gauge = |site: &Site| {
        let gauges = site.shards[0].gauges(site.instant);
        gauges.into_iter().find(|gauge| gauge.name == "silences").map(|gauge| (gauge.used, gauge.max))
    };
    assert_eq!(gauge(&site), Some((4, 4)));
    let refused = invite(&mut site, &mut caller("alice", 4));
    assert_eq!(refused.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [503]);
    // There is no slot for the way to the backup either: each is told so, and nothing is left.
    let sent = site.pass(PATIENCE);
    let failed: Vec<_> = sent.iter().map(|(_, text)| status(text)).filter(|code| *code != 0).collect();
    assert_eq!((failed, gauge(&site)), (vec![503; 4], Some((0, 4))));
}

/// A redirection to these Contacts.
fn redirect(invite: &str, code: u16, contacts: &str) -> String {
    reply(invite, code, "").replacen("<sip:pbx@10.0.0.2:5060>", contacts, 1)
}

/// What a redirection makes of a call to the SIP server: the answers that the caller gets, and where INVITEs go.
fn redirected(site: &mut Site, code: u16, contacts: &str) -> (Vec<String>, Vec<String>) {
    let mut alice = caller("alice", 1);
    let (asked, invite) = first(site, &mut alice);
    let sent = site.send(&asked, redirect(&invite, code, contacts));
    assert!(to(&sent, &asked)[0].starts_with("ACK "), "{sent:?}");
    let invites = sent.iter().filter(|(_, text)| text.starts_with("INVITE ")).map(|(to, _)| to.to_string());
    (to(&sent, &alice.from), invites.collect())
}

#[test]
fn a_redirection_to_a_backup_is_followed_whose_ports_are_then_opened() {
    for (code, contacts) in [
        (302, "<sip:pbx@10.0.0.5>"),
        (300, "<sip:pbx@198.51.100.99>, <sip:pbx@10.0.0.5:5060>"),
        (301, "<sip:pbx@10.0.0.5:5060;transport=udp>;q=0.5"),
        (305, "<sip:pbx@10.0.0.5:5060>"),
    ] {
        let mut site = site();
        let (answers, invites) = redirected(&mut site, code, contacts);
        assert_eq!((answers.len(), invites), (0, vec![ANNEX.to_owned()]), "{code} {contacts}");
        assert!(out(&site).is_empty(), "a redirection is an answer");
    }
}

/// Who could have calls sent anywhere would have an open relay.
#[test]
fn a_redirection_elsewhere_goes_to_the_client_without_what_is_inside() {
    for (code, contacts) in [
        (302, "<sip:pbx@198.51.100.99>"),
        (302, "<sip:pbx@10.0.0.5:5080>"),
        (302, "<sip:pbx@10.0.0.5;transport=tcp>"),
        (302, "<sip:other@10.0.0.5>"),
        (302, "<sip:pbx@10.0.0.3:5060>"),
        (302, "<sip:pbx@annex>"),
        (302, "<tel:+4912345>"),
        (302, "*"),
        (304, "<sip:pbx@10.0.0.5>"),
        (380, "<sip:pbx@10.0.0.5>"),
    ] {
        let mut site = site();
        let (answers, invites) = redirected(&mut site, code, contacts);
        assert!(invites.is_empty(), "{contacts}: {invites:?}");
        assert_eq!(answers.iter().map(|text| status(text)).collect::<Vec<_>>(), [code], "{contacts}");
        assert!(!answers[0].contains("10.0.0.") && !answers[0].contains("198.51.100.99"), "{}", answers[0]);
        site.pass(Duration::from_secs(60));
        assert_eq!(site.metrics[0].count(Count::FailedOver), 0);
    }
}

#[test]
fn servers_that_redirect_to_each_other_are_asked_once_each() {
    let mut site = site();
    let mut alice = caller("alice", 1);
    let (_, invite) = first(&mut site, &mut alice);
    let many = "<sip:pbx@10.0.0.5>, ".repeat(500);
    let sent = site.send(PBX, redirect(&invite, 302, &format!("{many}<sip:pbx@10.0.0.5>")));
    let again = to(&sent, ANNEX);
    assert_eq!((again.len(), to(&sent, &alice.from).len()), (1, 0));
    let sent = site.send(ANNEX, redirect(&again[0], 302, "<sip:pbx@10.0.0.2:5060>"));
    let answer = &to(&sent, &alice.from)[0];
    assert_eq!((status(answer), header(answer, "Contact")), (302, Some("<sip:pbx@example.net>")));
    assert!(!sent.iter().any(|(_, text)| text.starts_with("INVITE ")), "{sent:?}");
}

#[test]
fn who_may_not_use_the_backup_is_not_redirected_there() {
    let mut site = site();
    site.change_service("annex", |annex| annex.allow.clear());
    let (answers, invites) = redirected(&mut site, 302, "<sip:pbx@10.0.0.5>");
    assert!(invites.is_empty());
    assert!(status(&answers[0]) == 302 && !answers[0].contains("10.0.0."), "{}", answers[0]);
}

#[test]
fn each_server_that_a_request_goes_to_counts_as_a_request_of_its_user() {
    for (per_user, goes_on) in [(1, false), (2, true)] {
        let tables = Tables { transactions_per_user_max: per_user, transactions_max: 64, ..Tables::default() };
        let mut site = Site::with(1, tables);
        with_annex(&mut site);
        let mut alice = caller("alice", 1);
        let (_, invite) = first(&mut site, &mut alice);
        let sent = site.send(PBX, reply(&invite, 503, ""));
        assert_eq!((to(&sent, ANNEX).len() == 1, to(&sent, &alice.from).is_empty()), (goes_on, goes_on), "{sent:?}");
    }
}

#[test]
fn a_call_to_a_service_that_no_gate_reaches_is_refused_at_once_and_goes_to_its_backup_where_one_is_reached() {
    let mut site = site();
    let cut_off = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    site.outages.cut_off(cut_off(&["pbx"]));
    let (asked, lost) = first(&mut site, &mut caller("alice", 1));
    assert_eq!(asked, ANNEX);
    site.send(ANNEX, reply(&lost, 486, ""));
    site.outages.cut_off(cut_off(&["annex", "pbx"]));
    let mut alice = caller("alice", 2);
    let refused = invite(&mut site, &mut alice);
    let (whom, answer) = refused.last().expect("an answer");
    assert_eq!((whom.to_string().as_str(), status(answer)), (alice.from.as_str(), 503));
    assert!(header(answer, "Retry-After").is_some(), "{answer}");
    assert!(refused.iter().all(|(_, text)| !text.starts_with("INVITE ")), "it is sent nowhere: {refused:?}");
    site.outages.cut_off(cut_off(&[]));
    let (asked, _) = first(&mut site, &mut caller("alice", 3));
    assert_eq!(asked, PBX);
}
