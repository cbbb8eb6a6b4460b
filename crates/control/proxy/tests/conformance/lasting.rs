//! How long a call lasts: for as long as one of its sides says so (RFC 4028), or its media flow.

use std::{collections::HashSet, time::Duration};

use sluicegate_feed::GrantUsage;

use crate::{
    inbound::{TO_ALICE, answered, register, switch, to},
    site::{ANSWER, AUDIO, Caller, PBX, PHONE, Sent, Site, header, of_service, phone, relayed, reply, set_up, status},
};

const INSIDE: &str = "sip:pbx@10.0.0.2:5060";

/// Different BYEs to the service, each of which is repeated until it is answered.
fn byes(sent: &Sent) -> usize {
    let byes = sent.iter().filter(|(to, text)| to.to_string() == PBX && text.starts_with("BYE"));
    byes.map(|(_, text)| text.as_str()).collect::<HashSet<_>>().len()
}

fn called(shards: u8) -> (Site, Caller) {
    let mut site = Site::with(shards, sluicegate_proxy::Tables::default());
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    (site, alice)
}

/// Lets a second pass, so many times; the gate reports that so much more was carried in each.
fn talk(site: &mut Site, seconds: u32, bytes: u64) -> Sent {
    carry(site, seconds, bytes, |_| 0)
}

/// The same, of which `errors` were ICMP errors.
fn carry(site: &mut Site, seconds: u32, bytes: u64, errors: impl Fn(u64) -> u64) -> Sent {
    let mut sent = Sent::new();
    for _ in 0..seconds {
        for row in site.ledger.rows() {
            let bytes_used = row.bytes_used.unwrap_or(0) + bytes;
            let used = GrantUsage { id: row.id, bytes_used, error_bytes: errors(bytes_used), flows: 1 };
            site.ledger.used("gate-1", &used);
        }
        sent.extend(site.pass(Duration::from_secs(1)));
        sent.extend(site.gate_opens());
        site.ledger.expire(site.unix);
    }
    sent
}

#[test]
fn d03_a_call_lasts_for_as_long_as_its_media_flow() {
    let (mut site, _) = called(1);
    assert_eq!(byes(&talk(&mut site, 2_000, 8_000)), 0);
    assert_eq!(site.ledger.rows().len(), 1);
    // The telephone is unplugged.
    assert_eq!(byes(&talk(&mut site, 400, 0)), 1, "its service hears of it");
    assert!(site.ledger.rows().is_empty());
}

/// The telephone is dead and its host is not: what the service says is answered with "port unreachable".
#[test]
fn d03_icmp_errors_keep_no_call() {
    let (mut site, _) = called(1);
    talk(&mut site, 200, 8_000);
    let said = site.ledger.rows()[0].bytes_used.expect("a figure");
    assert_eq!(byes(&carry(&mut site, 110, 228, |used| used - said)), 1);
    assert!(site.ledger.rows().is_empty());
}

#[test]
fn d03_media_that_flowed_once_do_not_keep_a_call() {
    let (mut site, _) = called(1);
    talk(&mut site, 200, 8_000);
    assert_eq!(byes(&talk(&mut site, 110, 0)), 1);
}

/// An INVITE may ring for minutes; that gives a call nothing once it is answered.
#[test]
fn d03_a_call_lasts_no_longer_than_what_it_has_open_however_long_it_might_have_rung() {
    let mut site = Site::new();
    site.open_for(10);
    set_up(&mut site, &mut phone());
    assert_eq!(byes(&talk(&mut site, 60, 8_000)), 0);
    assert_eq!(byes(&talk(&mut site, 20, 0)), 1);
}

/// RFC 3261 section 12.1: a request of our own takes the way that the dialog's others take.
#[test]
fn a_service_behind_proxies_hears_by_way_of_these_that_a_call_is_over() {
    let behind = "Record-Route: <sip:10.0.0.9;lr>, <sip:10.0.0.8;lr>\r\nRecord-Route:";
    let route = |sent: &Sent| {
        let bye = sent.iter().find(|(to, text)| to.to_string() == PBX && text.starts_with("BYE"));
        header(&bye.expect("a BYE").1, "Route").map(str::to_owned)
    };
    let mut site = Site::new();
    let invite = relayed(&mut site, &mut phone());
    site.send(PBX, reply(&invite, 200, ANSWER).replacen("Record-Route:", behind, 1));
    site.gate_opens();
    assert_eq!(route(&talk(&mut site, 310, 0)).as_deref(), Some("<sip:10.0.0.8;lr>, <sip:10.0.0.9;lr>"));

    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    let through = behind.trim_end_matches("Record-Route:");
    let invite = switch().signed(&mut site, "INVITE", TO_ALICE, through, ANSWER);
    site.send(PBX, invite);
    let invite = to(&site.gate_opens(), PHONE)[0].to_owned();
    site.send(PHONE, answered(&invite, 200, "alice-tag", AUDIO));
    assert_eq!(route(&talk(&mut site, 310, 0)).as_deref(), Some("<sip:10.0.0.9;lr>, <sip:10.0.0.8;lr>"));
}

#[test]
fn d03_a_user_who_may_not_any_more_is_not_renewed() {
    let (mut site, _) = called(1);
    talk(&mut site, 100, 8_000);
    site.limit(sluicegate_policy::PerUser { grants_max: 0, ..*site.policy.per_user() });
    assert_eq!(byes(&talk(&mut site, 210, 8_000)), 1);
}

#[test]
fn d03_what_one_shard_renews_no_other_ends() {
    let (mut site, alice) = called(2);
    talk(&mut site, 200, 0);
    // The service's requests come to another shard than the telephone's.
    for cseq in 1..6 {
        let sent = site.send_to(1, PBX, of_service(&alice, "UPDATE", cseq, ""));
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(byes(&talk(&mut site, 200, 0)), 0);
    }
    assert_eq!(byes(&talk(&mut site, 200, 0)), 1);
}

#[test]
fn d03_a_refresh_of_either_side_renews_what_the_call_has_open() {
    let (mut site, mut alice) = called(1);
    for cseq in 1..8 {
        assert_eq!(byes(&talk(&mut site, 140, 0)), 0);
        let update = if cseq % 2 == 0 {
            of_service(&alice, "UPDATE", cseq, "")
        } else {
            alice.request("UPDATE", INSIDE, "", "")
        };
        let from = if cseq % 2 == 0 { PBX } else { PHONE };
        let sent = site.send(from, update);
        assert!(sent[0].1.starts_with("UPDATE "), "{sent:?}");
        site.gate_opens();
    }
    assert_eq!(site.ledger.rows().len(), 1);
    // A stranger's refresh is worth nothing.
    talk(&mut site, 140, 0);
    site.send("198.51.100.66:5060", alice.request("UPDATE", INSIDE, "", ""));
    assert_eq!(byes(&talk(&mut site, 170, 0)), 1);
}

/// RFC 4028 section 8.1.
#[test]
fn d03_a_session_timer_is_put_in_and_never_above_what_was_asked() {
    for (asked, passed) in [
        ("", "300"),
        ("Session-Expires: 1800\r\n", "300"),
        ("Session-Expires: 120;refresher=uas\r\n", "120;refresher=uas"),
        ("Session-Expires: 3600;refresher=uac\r\nMin-SE: 900\r\n", "900;refresher=uac"),
    ] {
        let mut site = Site::new();
        let mut alice = phone();
        let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", asked, AUDIO);
        let invite = site.send(PHONE, signed).remove(0).1;
        assert_eq!(header(&invite, "Session-Expires"), Some(passed), "{invite}");
        assert_eq!(invite.matches("Session-Expires").count(), 1);
    }
}

/// RFC 4028 section 8.2.
#[test]
fn d03_a_caller_with_timers_is_asked_to_refresh_where_the_service_has_none() {
    let answered = |supported: &str, answer: &str| {
        let mut site = Site::new();
        let mut alice = phone();
        let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", supported, AUDIO);
        let invite = site.send(PHONE, signed).remove(0).1;
        site.send(PBX, reply(&invite, 200, ANSWER).replacen("Contact:", &format!("{answer}Contact:"), 1));
        site.gate_opens().remove(0).1
    };
    let ok = answered("Supported: timer\r\n", "");
    assert_eq!((header(&ok, "Session-Expires"), header(&ok, "Require")), (Some("300;refresher=uac"), Some("timer")));
    let ok = answered("Supported: timer\r\n", "Session-Expires: 200;refresher=uas\r\n");
    assert_eq!((header(&ok, "Session-Expires"), status(&ok)), (Some("200;refresher=uas"), 200));
    assert_eq!(header(&answered("", ""), "Session-Expires"), None);
}

#[test]
fn a_service_that_hung_up_at_another_shard_hears_no_more_of_it() {
    let (mut site, alice) = called(2);
    let sent = site.send_to(1, PBX, of_service(&alice, "BYE", 1, ""));
    assert!(sent[0].1.starts_with("BYE ") && sent[0].0.to_string() == PHONE);
    let call = site.ledger.rows()[0].id.call();
    let sent = site.tell(0, sluicegate_proxy::Input::Over([call].into()));
    assert_eq!(byes(&sent) + byes(&talk(&mut site, 400, 0)), 0);
}
