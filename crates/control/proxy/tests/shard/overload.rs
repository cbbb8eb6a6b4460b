//! More arrives than can be served.

use std::{sync::Arc, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_overload::{Durations, Engineered, Load, Refusing};
use sluicegate_proxy::{Count, Emergency, Kind, Outcome, Overload, Shard, Tables, load};
use sluicegate_sip::message::{HeaderName, Message};

use crate::site::{AUDIO, Caller, PBX, PHONE, Site, header, phone, relayed, reply, set_up, status};

/// Lets a tenth of a second pass in which the thread was busy for this share of it.
fn measure(site: &mut Site, cpu: f64) -> Vec<(std::net::SocketAddr, String)> {
    let mut sent = site.pass(Duration::from_millis(100));
    sent.extend(site.measure(cpu));
    sent
}

fn invite(caller: &str, from: &str) -> String {
    Caller::new(caller, from).calls("pbx").request("INVITE", "sip:pbx@example.net", "", "")
}

/// A flood from one address keeps the thread busy for six seconds.
fn flood(site: &mut Site) -> Vec<String> {
    flood_from(site, "192.0.2.66:5060")
}

fn flood_from(site: &mut Site, from: &str) -> Vec<String> {
    let mut answers = Vec::new();
    for _ in 0..60 {
        for _ in 0..100 {
            answers.extend(site.send(from, invite("mallory", from)).into_iter().map(|(_, text)| text));
        }
        measure(site, 1.0);
    }
    answers
}

#[test]
fn a_thread_that_others_keep_from_the_processor_is_busy_all_the_same() {
    let mut site = Site::adaptive(64);
    site.runs = 0.25;
    let answers = flood(&mut site);
    assert_eq!(status(answers.last().unwrap()), 500);
}

#[test]
fn who_floods_is_refused_while_others_are_served() {
    let mut site = Site::adaptive(64);
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let answers = flood(&mut site);
    let (first, last) = (&answers[0], answers.last().unwrap());
    assert_eq!((status(first), status(last)), (407, 500));
    let after: u32 = header(last, "Retry-After").unwrap().parse().unwrap();
    assert!((1..=10).contains(&after), "{last}");
    assert!(site.metrics[0].requests(Kind::Invite, Outcome::Overload) > 4_000);
    // Ten others, of whom each calls once.
    for nth in 1..=10 {
        let from = format!("198.51.100.{nth}:5060");
        let answers = site.send(&from, invite("carol", &from));
        assert_eq!(answers.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [407]);
    }
    // A call that lives ends.
    let bye = alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "");
    assert!(site.send(PHONE, bye).iter().any(|(to, _)| to.to_string() == PBX));
    // It is over soon.
    for _ in 0..20 {
        measure(&mut site, 0.0);
    }
    assert_eq!(status(&site.send("192.0.2.66:5060", invite("mallory", "192.0.2.66:5060"))[0].1), 407);
}

#[test]
fn an_address_where_two_users_signed_in_is_let_in_twice_as_often() {
    const OFFICE: &str = "198.51.100.50:5060";
    let mut site = Site::adaptive(64);
    for name in ["alice", "bob"] {
        let register = Caller::new(name, OFFICE).calls(name).signed(&mut site, "REGISTER", "sip:example.net", "", "");
        assert_eq!(status(&site.send(OFFICE, register)[0].1), 200);
    }
    let crowd: Vec<String> = (1..=20).map(|nth| format!("203.0.113.{nth}:5060")).collect();
    let (mut of_office, mut of_crowd) = (0, 0);
    for interval in 0..100 {
        let mut let_in = 0;
        for (nth, from) in crowd.iter().map(String::as_str).chain([OFFICE]).cycle().take(21 * 10).enumerate() {
            // Whose Call-IDs are alike are judged alike.
            let mut caller = Caller::new("alice", from).calls("pbx");
            caller.call_id = format!("{interval}-{nth}");
            let answers = site.send(from, caller.request("INVITE", "sip:pbx@example.net", "", ""));
            if status(&answers[0].1) == 407 {
                let_in += 1;
                *(if from == OFFICE { &mut of_office } else { &mut of_crowd }) += u32::from(interval >= 50);
            }
        }
        // Sixty in an interval are what it can do.
        measure(&mut site, f64::from(let_in) / 60.0);
    }
    let times = f64::from(of_office) * 20.0 / f64::from(of_crowd);
    assert!((1.6..=2.4).contains(&times), "{of_office} of the office, {of_crowd} of twenty others: {times} times");
}

#[test]
fn a_call_for_help_is_let_in_from_where_somebody_signed_in_and_so_many_a_second() {
    const STRANGER: &str = "192.0.2.66:5060";
    let mut site = Site::adaptive(64);
    site.emergency = Arc::new(Emergency { numbers: vec!["112".into()], calls_per_s: 5 });
    site.start(1);
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    // Somebody in the same house floods, and has it refused.
    flood_from(&mut site, PHONE);
    flood_from(&mut site, STRANGER);
    let mut calls = 0..;
    let mut codes = |site: &mut Site, from: &str, number: &str, count: usize| {
        let uri = format!("sip:{number}@example.net");
        let mut one = || {
            let call_id = format!("help-{}", calls.next().unwrap());
            let invite = Caller { call_id, ..Caller::new("alice", from).calls(number) }.request("INVITE", &uri, "", "");
            status(&site.send(from, invite)[0].1)
        };
        (0..count).map(|_| one()).collect::<Vec<_>>()
    };
    assert_eq!(codes(&mut site, PHONE, "1120", 2), [500, 500], "a number is meant whole");
    let mut help = Caller { call_id: "help".into(), ..Caller::new("alice", PHONE).calls("112") };
    let signed = help.signed(&mut site, "INVITE", "sip:112@example.net", "", AUDIO);
    assert!(site.send(PHONE, signed).iter().any(|(to, _)| to.to_string() == PBX));
    assert_eq!(
        codes(&mut site, PHONE, "112", 7),
        [407, 407, 407, 407, 407, 407, 500],
        "of one source four calls at once"
    );
    assert_eq!(codes(&mut site, STRANGER, "112", 1), [500], "nobody signed in there");
    site.pass(Duration::from_secs(1));
    flood_from(&mut site, PHONE);
    assert_eq!(codes(&mut site, PHONE, "112", 1), [407]);
    assert_eq!(site.metrics[0].count(Count::Emergency), 9);
}

#[test]
fn whom_an_operator_lets_send_more_is_not_refused() {
    let mut site = Site::adaptive(64);
    flood(&mut site);
    let listed = site.limits.status(site.instant, 0);
    assert_eq!(listed.iter().map(|limit| limit.source.to_string()).collect::<Vec<_>>(), ["192.0.2.66/32"]);
    assert!(listed[0].refused > 4_000, "{listed:?}");
    let minute = Duration::from_secs(60);
    site.limits.lift(site.instant, "192.0.2.0/24".parse().unwrap(), minute, "an office").unwrap();
    assert!(flood(&mut site).iter().all(|answer| status(answer) == 407));
    site.pass(minute);
    assert!(flood(&mut site).iter().any(|answer| status(answer) == 500), "it ends by its time");
}

#[test]
fn who_forges_an_address_takes_nothing_from_those_who_are_shown_to_be_there() {
    let mut site = Site::adaptive(64);
    let mut alice = phone();
    let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let mut calls = 0..;
    let mut is_let_in = |site: &mut Site| {
        let call_id = format!("call-{}", calls.next().unwrap());
        let invite =
            Caller { call_id, ..Caller::new("mallory", PHONE) }.request("INVITE", "sip:pbx@example.net", "", "");
        status(&site.send(PHONE, invite)[0].1) == 407
    };
    for _ in 0..60 {
        let let_in = (0..300).filter(|_| is_let_in(&mut site)).count();
        // Ten in an interval are what it can do.
        measure(&mut site, let_in as f64 / 10.0);
    }
    let let_in = (0..100).filter(|_| is_let_in(&mut site)).count();
    assert!(let_in <= 20, "anybody may have sent them, and {let_in} of 100 are let in");
    assert!(site.send(PHONE, signed).iter().any(|(to, _)| to.to_string() == PBX));
}

#[test]
fn what_is_refused_is_refused_again_when_it_comes_again() {
    let mut site = Site::adaptive(64);
    flood(&mut site);
    let (mut refused, mut differ) = (0, 0);
    for _ in 0..50 {
        let invite = invite("mallory", "192.0.2.66:5060");
        let codes = [0, 1].map(|_| status(&site.send("192.0.2.66:5060", &invite)[0].1));
        refused += u32::from(codes == [500, 500]);
        differ += u32::from(codes[0] != codes[1]);
    }
    assert!(refused >= 48 && differ <= 1, "{refused} refused, {differ} judged otherwise the second time");
}

#[test]
fn what_has_waited_for_too_long_begins_nothing() {
    let mut site = Site::adaptive(64);
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    site.shards[0].wait(Some(Duration::from_millis(501)));
    assert_eq!(site.send(PHONE, invite("carol", PHONE)), [], "what its sender has sent again comes soon");
    let bye = alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "");
    assert!(
        site.send(PHONE, bye).iter().any(|(to, _)| to.to_string() == PBX),
        "what ends something is done however late"
    );
    site.shards[0].wait(Some(Duration::from_millis(499)));
    assert_eq!(status(&site.send(PHONE, invite("carol", PHONE))[0].1), 407);
}

#[test]
fn who_sends_most_is_not_heard_while_all_wait_for_too_long() {
    let mut site = Site::adaptive(64);
    let mut alice = phone();
    let invite_of_alice = relayed(&mut site, &mut alice);
    let bye = invite("mallory", "192.0.2.66:5060").replace("INVITE", "BYE").replace("\r\nCall-ID", ";tag=1\r\nCall-ID");
    let mut answered = 0;
    for _ in 0..20 {
        answered = 0;
        for _ in 0..200 {
            site.shards[0].wait(Some(Duration::from_millis(150)));
            answered += site.send("192.0.2.66:5060", &bye).len();
        }
        site.pass(Duration::from_millis(100));
        site.measure(1.0);
    }
    assert!(answered <= 2, "{answered} of 200 in the last tenth of a second");
    site.shards[0].wait(Some(Duration::from_millis(1)));
    assert_eq!(site.send(PHONE, invite("alice", PHONE)).len(), 1, "somebody signed in there");
    // As many answers as a SIP server gives are none too many.
    for _ in 0..200 {
        assert_eq!(site.send(PBX, reply(&invite_of_alice, 180, "")).len(), 1);
    }
    for _ in 0..60 {
        site.pass(Duration::from_millis(100));
        site.measure(0.0);
    }
    assert_eq!(site.send("192.0.2.66:5060", &bye).len(), 1, "it is over when it is over");
}

#[test]
fn while_gates_are_slow_to_open_less_is_let_in_and_while_they_are_dead_it_is_not_less() {
    for (answers, is_refused) in [(true, true), (false, false)] {
        let mut site = Site::adaptive(4_096);
        let mut refused = 0;
        for nth in 0..40 {
            let calls =
                (0..5).map(|call| Caller { call_id: format!("call-{nth}-{call}"), ..Caller::new("alice", PHONE) });
            for mut call in calls.collect::<Vec<_>>() {
                let invite = call.request("INVITE", "sip:web@example.net", "", AUDIO);
                let (_, challenge) = site.send(PHONE, invite).pop().unwrap();
                if status(&challenge) == 500 {
                    refused += 1;
                    continue;
                }
                let signed = call.answered(&challenge, "INVITE", "sip:web@example.net", "", AUDIO);
                site.send(PHONE, signed);
            }
            site.pass(Duration::from_millis(400));
            if answers {
                site.gate_opens();
            }
            site.measure(0.1);
        }
        assert_eq!(refused > 60, is_refused, "{refused} of 200 are refused");
    }
}

#[test]
fn what_waits_in_streams_or_frames_is_refused_although_other_datagrams_do_not_wait() {
    let over_stream = |shard: &mut Shard, waited| shard.wait_over_stream(waited, u32::MAX);
    for wait in [over_stream, Shard::wait_in_frame] {
        let mut site = Site::adaptive(64);
        let mut refused = 0;
        for _ in 0..30 {
            for _ in 0..50 {
                site.shards[0].wait(Some(Duration::from_millis(1)));
                refused +=
                    u32::from(status(&site.send("192.0.2.66:5060", invite("mallory", "192.0.2.66:5060"))[0].1) == 500);
                wait(&mut site.shards[0], Duration::from_millis(80));
            }
            site.pass(Duration::from_millis(100));
            site.measure(0.5);
        }
        assert!(refused > 500, "{refused} of 1500");
    }
}

#[test]
fn where_what_cannot_be_refused_takes_the_time_nobody_is_refused() {
    let mut site = Site::adaptive(64);
    let bye = invite("mallory", "192.0.2.66:5060").replace("INVITE", "BYE").replace("\r\nCall-ID", ";tag=1\r\nCall-ID");
    for _ in 0..60 {
        for _ in 0..100 {
            assert_eq!(status(&site.send("192.0.2.66:5060", &bye)[0].1), 481);
            site.shards[0].spend(Duration::from_millis(1));
        }
        let answers = site.send(PHONE, invite("alice", PHONE));
        site.shards[0].spend(Duration::from_millis(5));
        assert_eq!(status(&answers[0].1), 407);
        measure(&mut site, 1.0);
    }
    assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Overload), 0);
}

#[test]
fn what_a_socket_had_no_room_for_has_requests_refused_and_no_flood_of_others() {
    let bye = invite("mallory", "192.0.2.66:5060").replace("INVITE", "BYE").replace("\r\nCall-ID", ";tag=1\r\nCall-ID");
    for (invites, byes, lost, is_refused) in [(50, 0, 50, true), (50, 0, 0, false), (2, 98, 50, false)] {
        let mut site = Site::adaptive(64);
        for interval in 0..10 {
            // A little less each time, which alone has nobody refused.
            let waits = Some(Duration::from_millis(20 - interval));
            for number in 0..invites {
                site.shards[0].wait(waits);
                let from = format!("192.0.2.{number}:5060");
                site.send(&from, invite(&format!("caller{interval}x{number}"), &from));
                // However cheap the others are.
                site.shards[0].spend(Duration::from_micros(100));
            }
            for _ in 0..byes {
                site.shards[0].wait(waits);
                site.send("192.0.2.66:5060", &bye);
                site.shards[0].spend(Duration::from_micros(1));
            }
            site.shards[0].lose(lost);
            measure(&mut site, 0.8);
        }
        let refused = site.metrics[0].requests(Kind::Invite, Outcome::Overload);
        assert_eq!(refused > 100, is_refused, "{refused}");
        assert_eq!(site.metrics[0].count(Count::DatagramsLost), 10 * u64::from(lost));
    }
}

#[test]
fn switched_off_it_refuses_nobody() {
    let mut site = Site::new();
    site.overload = Overload::Off;
    site.start(1);
    assert!(flood(&mut site).iter().all(|answer| status(answer) == 407));
    assert_eq!(site.shards[0].poll_timeout(), None, "nor is an idle thread woken to be measured");
    assert!(site.shards[0].measure_due() <= site.instant + Duration::from_millis(100));
}

/// What the metrics of shard 0 say: busy, wait, admitted and heard of each source.
fn shown(site: &Site) -> [Option<f64>; 4] {
    load(site.metrics.iter().map(|metrics| &**metrics)).map(|metric| {
        assert!(metric.samples.iter().all(|(labels, _)| labels[0] == "0"));
        metric.samples.first().map(|(_, value)| *value)
    })
}

#[test]
fn metrics_show_how_busy_a_thread_is_although_nothing_is_controlled() {
    let mut site = Site::new();
    site.shards[0].wait(Some(Duration::from_millis(20)));
    site.shards[0].wait(Some(Duration::from_millis(30)));
    site.measure(0.25);
    assert_eq!(shown(&site), [Some(0.25), Some(0.02), None, None]);
    measure(&mut site, 0.5);
    assert_eq!(shown(&site), [Some(0.5), Some(0.0), None, None]);
    assert!(site.shards[0].gauges(site.instant).iter().all(|gauge| gauge.name != "members"));
}

#[test]
fn metrics_show_what_each_source_may_have_and_infinity_while_that_is_all() {
    let mut site = Site::adaptive(64);
    measure(&mut site, 0.1);
    let unlimited = [Some(f64::INFINITY); 2];
    assert_eq!(shown(&site)[2..], unlimited);
    flood(&mut site);
    let [busy, _, admitted, heard] = shown(&site);
    assert!(admitted.unwrap() < 100.0, "{admitted:?}");
    assert_eq!((busy, heard), (Some(1.0), Some(f64::INFINITY)), "all are heard as long as nothing waits");
    for _ in 0..3 {
        (0..100).for_each(|_| drop(site.send("192.0.2.66:5060", invite("mallory", "192.0.2.66:5060"))));
        site.shards[0].wait(Some(Duration::from_millis(300)));
        // Its thread is as busy as before.
        site.pass(Duration::from_millis(100));
    }
    let [_, wait, _, heard] = shown(&site);
    assert!(wait == Some(0.3) && heard.unwrap().is_finite(), "{wait:?} {heard:?}");
    (0..60).for_each(|_| drop(measure(&mut site, 0.0)));
    assert_eq!(shown(&site), [Some(0.0), Some(0.0), unlimited[0], unlimited[1]]);
}

#[test]
fn users_whose_source_is_remembered_have_a_gauge() {
    let mut site = Site::adaptive(64);
    let gauge =
        |site: &Site| *site.shards[0].gauges(site.instant).iter().find(|gauge| gauge.name == "members").unwrap();
    assert_eq!(gauge(&site), Gauge { name: "members", used: 0, max: 32_768 });
    for (name, times) in [("alice", 2), ("bob", 1)] {
        for nth in 0..times {
            let caller = Caller { call_id: format!("{name}-{nth}"), ..Caller::new(name, PHONE).calls(name) };
            let register = { caller }.signed(&mut site, "REGISTER", "sip:example.net", "", "");
            assert_eq!(status(&site.send(PHONE, register)[0].1), 200);
        }
    }
    assert_eq!(gauge(&site).used, 2);
}

/// One that refuses all that begins something.
fn used_up(unproved_answers_per_s: u32) -> Site {
    let mut site = Site::new();
    site.overload = engineered(Refusing::Proportionally);
    site.unproved_answers_per_s = unproved_answers_per_s;
    site.start(1);
    site.pass(Duration::from_secs(1));
    site.measure(1.0);
    site
}

/// What one INVITE is answered there.
fn refused(site: &mut Site, call_id: &str) -> String {
    let from = "192.0.2.66:5060";
    let request = Caller { call_id: call_id.to_owned(), ..Caller::new("mallory", from) }.calls("pbx");
    let answers = site.send(from, { request }.request("INVITE", "sip:pbx@example.net", "", ""));
    answers.into_iter().next().map(|(_, text)| text).unwrap_or_default()
}

#[test]
fn refusals_of_calls_with_names_of_almost_one_length_are_equally_long() {
    let mut site = used_up(1_000_000);
    let lengths: Vec<usize> = (0..24)
        .map(|more| {
            let call_id = "c".repeat(20 + more);
            let answer = refused(&mut site, &call_id);
            let message = Message::parse(answer.as_bytes()).unwrap();
            assert_eq!((message.status(), message.call_id()), (Some(500), Ok(call_id.as_bytes())));
            let after = std::str::from_utf8(message.header(HeaderName::RetryAfter).unwrap()).unwrap();
            assert!((1..=10).contains(&after.parse::<u32>().unwrap()), "{answer}");
            answer.len()
        })
        .collect();
    assert!(lengths.iter().all(|len| len % 64 == 0));
    assert!(lengths.windows(2).filter(|two| two[0] != two[1]).count() <= 1, "{lengths:?}");
}

#[test]
fn a_refusal_is_charged_all_its_bytes() {
    let mut site = used_up(100);
    let sent: Vec<usize> = (0..1_000).map(|nth| refused(&mut site, &format!("{nth:04}")).len()).collect();
    let all: usize = sent.iter().sum();
    let half = 100 * 512;
    assert!((half..half + sent[0]).contains(&all), "{all} bytes of {half}");
}

fn engineered(refusing: Refusing) -> Overload {
    let load = Load { invites: 10.0, in_dialog: 0.0, registers: 0.0, others: 0.0 };
    Overload::Rsoca(Engineered { load, ..Engineered::PAPER }, refusing)
}

/// RS-3: not more than B_en times the engineered load in an interval.
#[test]
fn r_soca_lets_no_more_in_than_its_burst() {
    let mut site = Site::new();
    site.overload = engineered(Refusing::Proportionally);
    site.start(1);
    let codes: Vec<u16> = (0..50).map(|_| status(&site.send(PHONE, invite("alice", PHONE))[0].1)).collect();
    assert_eq!(codes.iter().filter(|code| **code == 407).count(), 17);
    assert_eq!(codes.iter().filter(|code| **code == 500).count(), 33);
}

/// RS-6: its baseline says 503, when and only when something is used up.
#[test]
fn the_baseline_says_503_while_a_resource_is_used_up() {
    let mut site = Site::new();
    site.overload = engineered(Refusing::Unavailable);
    site.start(1);
    site.pass(Duration::from_secs(1));
    assert_eq!(status(&site.send(PHONE, invite("alice", PHONE))[0].1), 407);
    site.measure(1.0);
    let refused = site.send(PHONE, invite("alice", PHONE)).remove(0).1;
    let after: u32 = header(&refused, "Retry-After").unwrap().parse().unwrap();
    assert!(status(&refused) == 503 && (1..=3).contains(&after), "{refused}");
}

/// R-SOCA section III-D, and what it leaves out: what was sent on is called off.
#[test]
fn an_invite_that_rings_for_long_while_memory_is_short_is_ended_on_both_sides() {
    let mut site = Site::adaptive(3);
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 180, ""));
    site.pass(Duration::from_secs(59));
    assert!(site.measure(0.0).is_empty(), "it may ring for a minute");
    let sent = site.pass(Duration::from_secs(2));
    let to =
        |peer: &str| sent.iter().filter(|(to, _)| to.to_string() == peer).map(|(_, text)| text).collect::<Vec<_>>();
    assert!(to(PBX).iter().any(|text| text.starts_with("CANCEL ")), "{sent:?}");
    assert!(to(PHONE).iter().any(|text| status(text) == 500), "{sent:?}");
    assert_eq!(site.metrics[0].count(Count::EndedEarly), 1);
    let gauge = site.shards[0].gauges(site.instant).into_iter().find(|gauge| gauge.name == "exchanges").unwrap();
    assert_eq!(gauge.used, 0);
}

#[test]
fn however_many_are_too_old_at_one_time_they_end_then() {
    let mut site = Site::with(1, Tables::default());
    let paper = Engineered::PAPER;
    let load = Load { invites: 20.0, ..paper.load };
    let durations = Durations { invite: Duration::from_secs(1), ..paper.durations };
    let engineered = Engineered { load, durations, stretch: 20.0, ..paper };
    site.overload = Overload::Rsoca(engineered, Refusing::Unavailable);
    site.start(1);
    for nth in 0..100 {
        let mut alice = Caller { call_id: format!("call-{nth}"), ..phone() };
        let _ = relayed(&mut site, &mut alice);
    }
    site.pass(Duration::from_secs(1));
    site.measure(0.0);
    site.pass(Duration::from_secs(18));
    assert_eq!(site.metrics[0].count(Count::EndedEarly), 0);
    site.pass(Duration::from_secs(1));
    assert_eq!(site.metrics[0].count(Count::EndedEarly), 100);
}

#[test]
fn one_that_has_not_rung_yet_is_called_off_when_it_does() {
    let mut site = Site::new();
    let paper = Engineered::PAPER;
    let load = Load { invites: 0.2, ..paper.load };
    let durations = Durations { invite: Duration::from_secs(1), ..paper.durations };
    let engineered = Engineered { load, durations, burst: 10.0, stretch: 11.0, ..paper };
    site.overload = Overload::Rsoca(engineered, Refusing::Proportionally);
    site.start(1);
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.pass(Duration::from_secs(1));
    site.measure(0.0);
    site.pass(Duration::from_secs(12));
    let sent = site.measure(0.0);
    assert!(!sent.iter().any(|(_, text)| text.starts_with("CANCEL ")), "{sent:?}");
    let sent = site.send(PBX, reply(&invite, 180, ""));
    assert!(sent.iter().any(|(to, text)| to.to_string() == PBX && text.starts_with("CANCEL ")), "{sent:?}");
}
