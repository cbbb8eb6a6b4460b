//! Every table has a maximum, and what happens there is stated.

use sluicegate_bounded::Gauge;
use sluicegate_policy::PerUser;
use sluicegate_proxy::{Count, Event, Kind, Outcome, Rung, Tables, datagrams_left};

use crate::site::{AUDIO, Caller, PBX, PHONE, Site, header, reply, status};

fn tables() -> Tables {
    Tables { transactions_max: 4, transactions_per_user_max: 100, replays_max: 100, ..Tables::default() }
}

/// Calls as `user` with a dialog of its own; the status.
fn call(site: &mut Site, user: &str, nth: u32) -> u16 {
    let mut caller = Caller::new(user, PHONE);
    caller.call_id = format!("call-{nth}");
    caller.from = format!("198.51.100.7:{}", 41_000 + nth);
    status(&caller.invite(site, AUDIO))
}

#[test]
fn full_transactions_mean_503_and_nothing_is_opened() {
    let mut site = Site::with(1, tables());
    assert!((0..4).all(|nth| call(&mut site, "alice", nth) == 100));
    site.asked();
    assert_eq!(call(&mut site, "alice", 4), 503);
    assert!(site.asked().is_empty());
    assert_eq!(site.shards[0].gauges(site.instant)[0], Gauge { name: "server_transactions", used: 4, max: 4 });
    assert_eq!(site.metrics[0].count(Count::TableFull), 1);
    // They end by themselves.
    site.pass(std::time::Duration::from_secs(60));
    assert_eq!(call(&mut site, "alice", 5), 100);
}

#[test]
fn one_user_cannot_take_all_transactions() {
    let mut site = Site::with(1, Tables { transactions_max: 64, transactions_per_user_max: 3, ..tables() });
    assert!((0..3).all(|nth| call(&mut site, "alice", nth) == 100));
    assert_eq!(call(&mut site, "alice", 3), 503);
    assert_eq!(call(&mut site, "bob", 4), 403);
}

/// Why this user got a 503, as `trace` shows it.
fn refusals(site: &mut Site, user: &str) -> Vec<String> {
    let decided = std::mem::take(&mut site.events).into_iter().filter_map(|event| match event {
        Event::Decided(decided) => Some(decided.decision),
        _ => None,
    });
    let refused = decided.filter(|decision| decision.user == user && decision.status == 503);
    refused.map(|decision| decision.steps.join("; ")).collect()
}

#[test]
fn who_is_at_a_limit_of_its_own_requests_is_told_to_trace_with_the_key_that_changes_it() {
    let roomy = Tables { transactions_max: 64, replays_max: 64, ..Tables::default() };
    for (limits, key) in [
        (Tables { transactions_per_user_max: 2, ..roomy }, "transactions_per_user_max"),
        (Tables { replays_per_user_max: 2, ..roomy }, "replays_per_user_max"),
        (Tables { replays_max: 2, ..roomy }, "replays_max"),
    ] {
        let mut site = Site::with(1, limits);
        assert!((0..2).all(|nth| call(&mut site, "alice", nth) == 100));
        assert_eq!((refusals(&mut site, "alice"), call(&mut site, "alice", 2)), (vec![], 503));
        let refused = refusals(&mut site, "alice");
        assert!(
            refused.len() == 1 && refused[0].contains(&format!("raise {key} in tables of [frontend]")),
            "{refused:?}"
        );
        // However many come, they do not push out what was noted of others.
        assert!((3..100).all(|nth| call(&mut site, "alice", nth) == 503));
        assert!(refusals(&mut site, "alice").len() < 20);
        assert_eq!(site.metrics[0].count(Count::TableFull), 98);
    }
}

#[test]
fn one_user_waits_for_so_many_answers_of_services() {
    let limits = Tables { transactions_max: 64, exchanges_per_user_max: 3, ..tables() };
    let mut site = Site::with(1, limits);
    // Each is passed on, and nobody answers.
    let invite = |site: &mut Site, nth: u32| {
        let mut caller = Caller { call_id: format!("call-{nth}"), ..Caller::new("alice", PHONE).calls("pbx") };
        caller.from = format!("198.51.100.7:{}", 41_000 + nth);
        let signed = caller.signed(site, "INVITE", "sip:pbx@example.net", "", AUDIO);
        let from = caller.from.clone();
        let sent = site.send(&from, signed);
        let passed_on = sent.iter().find(|(to, _)| to.to_string() == PBX).map(|(_, invite)| invite.clone());
        (passed_on, sent.last().map(|(_, answer)| answer.clone()).unwrap())
    };
    let first = invite(&mut site, 0).0.unwrap();
    assert!((1..3).all(|nth| invite(&mut site, nth).0.is_some()));
    let (passed_on, refused) = invite(&mut site, 3);
    assert_eq!((passed_on, status(&refused), header(&refused, "Retry-After")), (None, 503, Some("5")));
    assert_eq!(site.metrics[0].count(Count::TableFull), 1);
    let transactions = site.shards[0].gauges(site.instant)[0].used;
    assert_eq!(transactions, 3, "what is refused is not remembered");
    // An answer makes room for another, and so does the end of all patience.
    site.send(PBX, reply(&first, 486, ""));
    assert!(invite(&mut site, 4).0.is_some() && invite(&mut site, 5).0.is_none());
    site.pass(std::time::Duration::from_secs(60));
    assert!((6..9).all(|nth| invite(&mut site, nth).0.is_some()));
}

#[test]
fn a_full_replay_set_refuses_rather_than_forgets() {
    let mut site = Site::with(1, Tables { replays_max: 2, transactions_max: 64, ..tables() });
    assert!((0..2).all(|nth| call(&mut site, "alice", nth) == 100));
    let mut caller = Caller::new("alice", PHONE);
    let answer = caller.invite(&mut site, AUDIO);
    assert_eq!((status(&answer), header(&answer, "Retry-After")), (503, Some("5")));
    site.pass(std::time::Duration::from_secs(200));
    assert_eq!(call(&mut site, "alice", 9), 100);
}

#[test]
fn a_full_event_queue_means_503() {
    let mut site = Site::with(1, Tables { events_max: 0, transactions_max: 64, ..tables() });
    assert_eq!(call(&mut site, "alice", 0), 503);
    assert!(site.asked().is_empty());
}

/// Of calls whose ACK never comes there may be many at one time, with a note about each.
#[test]
fn what_ends_is_told_whatever_else_waits() {
    let mut site = Site::with(1, Tables { events_max: 8, transactions_max: 64, ..tables() });
    assert!((0..8).all(|nth| call(&mut site, "alice", nth) == 100));
    site.gate_opens();
    assert_eq!(site.ledger.rows().len(), 8);
    site.revokes();
    site.pass(std::time::Duration::from_secs(32));
    assert_eq!(site.revokes(), 8);
    assert!(site.metrics[0].count(Count::EventsDropped) > 0, "of the notes");
    let events = site.shards[0].gauges(site.instant).into_iter().find(|gauge| gauge.name == "events").unwrap();
    assert_eq!((events.used, events.max), (0, 16));
}

#[test]
fn as_many_grants_as_the_user_may_have_and_no_more() {
    let mut site = Site::with(1, Tables { transactions_max: 256, ..tables() });
    let mut admitted = 0;
    for nth in 0..65 {
        admitted += u32::from(call(&mut site, "alice", nth) == 100);
        site.gate_opens();
    }
    assert_eq!(admitted, 64);
    assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Denied), 1);
}

#[test]
fn a_flood_of_strangers_leaves_no_trace_in_any_table() {
    let mut site = Site::new();
    for nth in 0..10_000_u32 {
        let mut stranger = Caller::new("alice", &format!("198.51.100.7:{}", 1 + nth % 60_000));
        stranger.call_id = format!("flood-{nth}");
        site.send(&stranger.from.clone(), stranger.request("INVITE", "sip:web@example.net", "", AUDIO));
    }
    assert!(site.shards[0].gauges(site.instant).iter().all(|gauge| gauge.used == 0));
    assert!(site.events.is_empty());
}

#[test]
fn wrong_passwords_leave_few_notes_and_nothing_else() {
    let mut site = Site::new();
    for nth in 0..200 {
        let mut caller = Caller { password: "wrong horse".into(), ..Caller::new("alice", PHONE) };
        caller.call_id = format!("guess-{nth}");
        let expected = if nth < 10 { 407 } else { 503 };
        assert_eq!(status(&caller.invite(&mut site, AUDIO)), expected);
    }
    assert!(site.events.len() <= 20, "{}", site.events.len());
    assert!(site.shards[0].gauges(site.instant).iter().all(|gauge| gauge.used == 0));
}

/// A small generator of repeatable noise (xorshift64*).
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33).unwrap() % below
    }

    /// The message with a few bytes changed, cut out or said twice.
    fn mutate(&mut self, message: &[u8]) -> Vec<u8> {
        let mut bytes = message.to_vec();
        for _ in 0..=self.next(4) {
            let at = self.next(bytes.len().max(1));
            match self.next(4) {
                0 => bytes.insert(at.min(bytes.len()), b"\r\n;,<>\"%\0: z9"[self.next(13)]),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 if at < bytes.len() => bytes[at] = u8::try_from(self.next(256)).unwrap(),
                _ => {
                    let end = (at + self.next(60)).min(bytes.len());
                    let piece = bytes.get(at..end).unwrap_or_default().to_vec();
                    let to = self.next(bytes.len() + 1);
                    bytes.splice(to..to, piece);
                }
            }
        }
        bytes
    }
}

#[test]
fn damaged_messages_open_nothing_and_are_never_answered_at_length() {
    let mut site = Site::with(1, Tables { transactions_max: 256, ..Tables::default() });
    let mut alice = Caller::new("alice", PHONE);
    let plain = alice.request("INVITE", "sip:web@example.net", "", AUDIO);
    let challenge = site.send(PHONE, &plain).pop().unwrap().1;
    let wrong = Caller { password: "wrong horse".into(), ..Caller::new("alice", PHONE) };
    let credentials = wrong.authorization(&challenge, "INVITE", "sip:web@example.net");
    let ok = alice.set_up(&mut site, AUDIO);
    let (opened, ended) = (site.ledger.rows().len(), site.revokes());
    // The tag of someone else: damage must not make it this call's.
    alice.to_tag = Some("A".repeat(32));
    let seeds = [
        plain,
        alice.request("INVITE", "sip:web@example.net", &credentials, AUDIO),
        alice.request("BYE", "sip:web@example.net", "Route: <sip:203.0.113.1;lr;sg=x;sv=pbx;cl=y>\r\n", ""),
        alice.request("REGISTER", "sip:example.net", "Contact: *\r\nExpires: 0\r\n", ""),
        alice.request("CANCEL", "sip:web@example.net", "", ""),
        ok,
    ];
    let mut noise = Noise(20_261_121);
    for round in 0..30_000 {
        let bytes = noise.mutate(seeds[round % seeds.len()].as_bytes());
        let sent = site.send("198.51.100.66:5060", &bytes);
        assert!(sent.iter().all(|(_, answer)| answer.len() <= 3 * bytes.len()), "{}", bytes.escape_ascii());
    }
    assert!(site.asked().is_empty());
    assert_eq!((site.ledger.rows().len(), site.revokes()), (opened, ended));
}

#[test]
fn one_user_cannot_use_up_the_replay_set_and_a_refused_request_takes_no_place() {
    let limits = Tables { transactions_max: 64, replays_max: 8, replays_per_user_max: 4, ..tables() };
    let mut site = Site::with(1, Tables { transactions_per_user_max: 2, ..limits });
    assert!((0..20).all(|nth| call(&mut site, "alice", nth) == if nth < 2 { 100 } else { 503 }));
    let used =
        |site: &Site| site.shards[0].gauges(site.instant).iter().find(|gauge| gauge.name == "replays").unwrap().used;
    assert_eq!(used(&site), 2);
    let mut site = Site::with(1, limits);
    assert!((0..20).all(|nth| call(&mut site, "alice", nth) == if nth < 4 { 100 } else { 503 }));
    assert_eq!(used(&site), 4);
    assert_eq!(call(&mut site, "bob", 21), 403, "bob's credentials are looked at");
}

#[test]
fn security_15_a_users_calls_hold_no_more_than_its_share_and_a_renewal_counts_once() {
    let mut site = Site::new();
    // A call for audio takes the service's two ports.
    site.limit(PerUser { ports_max: 5, ..PerUser::default() });
    let mut callers: Vec<Caller> =
        (0..3).map(|nth| Caller { call_id: format!("call-{nth}"), ..Caller::new("alice", PHONE) }).collect();
    for caller in &mut callers[..2] {
        caller.set_up(&mut site, AUDIO);
    }
    assert_eq!(status(&callers[2].invite(&mut site, AUDIO)), 403);
    assert_eq!(status(&callers[0].invite(&mut site, AUDIO)), 100, "what it has already, it may renew");
    site.gate_opens();
    // One request for more than is left is refused as a whole.
    site.limit(PerUser { grants_max: 3, ..PerUser::default() });
    let two = format!("{AUDIO}m=application 9 TCP sluicegate\r\na=service-ports:80\r\n");
    assert_eq!(status(&callers[2].invite(&mut site, &two)), 403);
    assert_eq!(status(&callers[2].invite(&mut site, AUDIO)), 100);
}

#[test]
fn every_datagram_is_counted_at_the_rung_of_the_ladder_where_it_leaves() {
    let mut site = Site::adaptive(64);
    let mut alice = Caller::new("alice", PHONE);
    let signed = alice.signed(&mut site, "INVITE", "sip:web@example.net", "", AUDIO);
    let response = "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 203.0.113.1;branch=z9hG4bKguess\r\nTo: <sip:a@b>;tag=1\r\n\r\n";
    alice.to_tag = Some("of-no-call".into());
    let in_dialog = alice.request("BYE", "sip:web@example.net", "", "");
    let ack = alice.request("ACK", "sip:web@example.net", "", "");
    alice.to_tag = None;
    let options = alice.request("OPTIONS", "sip:web@example.net", "", "");
    let sent = ["\r\n\r\n", response, "no SIP at all\r\n\r\n", &signed, &signed, &in_dialog, &ack, &options];
    sent.iter().for_each(|datagram| drop(site.send(PHONE, datagram)));
    site.shards[0].wait(Some(std::time::Duration::from_secs(1)));
    site.send(PHONE, &options);
    // The INVITE without credentials left at the last but one.
    let left = |site: &Site| -> Vec<u64> {
        let counted = datagrams_left(site.metrics.iter().map(|metrics| &**metrics)).counted();
        Rung::ALL.iter().map(|rung| counted.get(rung.label()).copied().unwrap_or(0)).collect()
    };
    assert_eq!(left(&site), [0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1], "{:?}", Rung::ALL);
    // Who sends most while all wait is not heard.
    for _ in 0..3 {
        (0..100).for_each(|_| drop(site.send("192.0.2.66:5060", &options)));
        site.pass(std::time::Duration::from_millis(100));
        site.measure(1.0);
    }
    let at_pace = Rung::ALL.iter().position(|rung| *rung == Rung::Pace).unwrap();
    assert!(left(&site)[at_pace] > 50, "{:?}", left(&site));
    assert_eq!(left(&site).iter().sum::<u64>(), site.metrics[0].count(Count::Datagrams));
}
