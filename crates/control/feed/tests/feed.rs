//! A frontend and a gate on one feed: what is signed, numbered, resumed, and refused.

use std::{sync::Arc, time::Duration};

use sluicegate_feed::{
    Decoder, Delta, Event, FEED_VERSION, FeedError, FeedReceiver, FeedSender, FeedService, FromGate, GrantDelta,
    OPENING_WINDOW_MAX, PING_INTERVAL, Resume, SILENCE_MAX, Selected, Selector, SendError, SenderOptions, SignedDeltas,
    ToGate, WINDOW_MAX,
};
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId, IssuerKey, mac::SessionKeys};
use sluicegate_wire::{Instant, UnixTime};

const UNIX: UnixTime = UnixTime(1_800_000_000);
const START: Instant = Instant::from_secs(1);

fn key() -> IssuerKey {
    IssuerKey::from_seed([1; 32])
}

fn sender(boot_id: u64, options: SenderOptions) -> FeedSender {
    FeedSender::new(key(), boot_id, "frontend-1", options)
}

fn receiver() -> FeedReceiver {
    FeedReceiver::new(key().public(), "ams-1", None)
}

fn grant(n: u8) -> Grant {
    Grant {
        flags: 0,
        least_mode: DataMode::Pinhole,
        protocol: 6,
        id: GrantId([n; 16]),
        issuer: key().public().id(),
        epoch: 0,
        not_before: UNIX,
        not_after: UNIX.plus_secs(300),
        bytes: 1_000_000,
        client_id: 0,
        flows: 0,
        rate_100kbps: 0,
        client_address: [198, 51, 100, 1].into(),
        client_ports: ANY_PORTS,
        gate_address: [0, 0, 0, 0].into(),
        gate_ports: (0, 0),
        holder: [0; 32],
        user_pseudonym: [0; 8],
    }
}

fn delta_of(grant: &Grant) -> GrantDelta {
    GrantDelta {
        grant: grant.clone(),
        user: "alice".into(),
        service: "web".into(),
        target: [10, 0, 0, 1].into(),
        target_ports: (80, 80),
        mode: Default::default(),
        keys: Some(SessionKeys::from_bytes([[0x5e; 16]; 2])),
    }
}

fn install(n: u8) -> Delta {
    Delta::Install(Box::new(delta_of(&grant(n))))
}

fn service(name: &str) -> FeedService {
    FeedService {
        name: name.into(),
        mode: Default::default(),
        address: [10, 0, 0, 1].into(),
        default: Default::default(),
        ports: vec!["tcp/80".parse().unwrap()],
        outbound: Default::default(),
        sip: None,
    }
}

fn messages(frames: &[Arc<[u8]>]) -> Vec<ToGate> {
    let mut decoder = Decoder::new();
    let poll = |frame: &Arc<[u8]>| {
        assert_eq!(decoder.push(frame), frame.len());
        let message = decoder.poll().unwrap().unwrap();
        assert_eq!(decoder.poll(), Ok(None), "one message a frame");
        message
    };
    frames.iter().map(poll).collect()
}

/// Says hello and takes the answer; what it meant.
fn connect(sender: &mut FeedSender, receiver: &mut FeedReceiver, state: Vec<Delta>) -> Vec<Event> {
    let FromGate::Hello { resume, .. } = receiver.connect(START, UNIX) else { panic!("a hello comes first") };
    let frames = sender.welcome(UNIX, resume, || state).unwrap();
    take(receiver, &frames).unwrap()
}

fn take(receiver: &mut FeedReceiver, frames: &[Arc<[u8]>]) -> Result<Vec<Event>, FeedError> {
    let mut events = Vec::new();
    for message in messages(frames) {
        events.extend(receiver.handle(START, UNIX, message)?);
    }
    Ok(events)
}

/// The batch frame that is due a window after `now`, past any ping.
fn batch(sender: &mut FeedSender, now: Instant) -> Arc<[u8]> {
    loop {
        let frame = sender.poll_transmit(now + WINDOW_MAX, UNIX).unwrap();
        if matches!(messages(std::slice::from_ref(&frame))[0], ToGate::Batch(_)) {
            return frame;
        }
    }
}

fn installed(events: &[Event]) -> Vec<u8> {
    let id = |event: &Event| match event {
        Event::Install(install) => Some(install.grant.id.0[0]),
        _ => None,
    };
    events.iter().filter_map(id).collect()
}

#[test]
fn a_new_gate_gets_everything_that_is_open_and_then_what_changes() {
    let (mut sender, mut receiver) = (sender(7, SenderOptions::default()), receiver());
    let events = connect(&mut sender, &mut receiver, vec![Delta::Service(service("web")), install(1), install(2)]);
    assert_eq!(events[0], Event::Service(service("web")));
    assert_eq!(installed(&events), [1, 2]);
    let resume = Resume { issuer: key().public().id(), boot_id: 7, seq: 0 };
    assert_eq!(events[3], Event::UpToDate(resume));

    sender.push(START, UNIX, install(3)).unwrap();
    sender.push(START, UNIX, Delta::ServiceGone("web".into())).unwrap();
    let events = take(&mut receiver, &[batch(&mut sender, START)]).unwrap();
    let Event::Install(installed) = &events[0] else { panic!("{events:?}") };
    assert_eq!(**installed, delta_of(&grant(3)));
    assert_eq!(events[1..], [Event::ServiceGone("web".into()), Event::UpToDate(Resume { seq: 1, ..resume })]);
    assert_eq!(receiver.resume(), Some(Resume { seq: 1, ..resume }));
}

#[test]
fn a_change_after_a_quiet_time_goes_out_at_once_and_more_wait_for_each_other() {
    let mut sender = sender(7, SenderOptions::default());
    let ms = |ms| START + Duration::from_millis(ms);
    while sender.poll_transmit(START, UNIX).is_some() {}
    sender.push(START, UNIX, Delta::ServiceGone("web".into())).unwrap();
    assert_eq!(sender.poll_timeout(), START);
    assert!(sender.poll_transmit(START, UNIX).is_some());

    for after in [2, 4] {
        sender.push(ms(after), UNIX, Delta::ServiceGone("web".into())).unwrap();
        assert_eq!(sender.poll_timeout(), START + WINDOW_MAX);
    }
    assert!(sender.poll_transmit(ms(9), UNIX).is_none());
    let mut receiver = receiver();
    connect(&mut sender, &mut receiver, vec![]);
    let frame = sender.poll_transmit(START + WINDOW_MAX, UNIX).unwrap();
    assert_eq!(take(&mut receiver, &[frame]).unwrap().len(), 3, "two changes, and the number of the batch");
    assert!(sender.poll_transmit(START + WINDOW_MAX, UNIX).is_none());
}

#[test]
fn what_is_to_be_opened_waits_less_and_takes_what_waits_along() {
    let mut sender = sender(7, SenderOptions::default());
    let ms = |ms| START + Duration::from_millis(ms);
    while sender.poll_transmit(START, UNIX).is_some() {}
    sender.push(START, UNIX, install(1)).unwrap();
    assert!(sender.poll_transmit(START, UNIX).is_some(), "nothing was sent before");
    let mut receiver = receiver();
    connect(&mut sender, &mut receiver, vec![]);

    sender.push(START, UNIX, Delta::ServiceGone("web".into())).unwrap();
    sender.push(ms(1), UNIX, install(2)).unwrap();
    sender.push(ms(1), UNIX, install(3)).unwrap();
    assert_eq!(sender.poll_timeout(), START + OPENING_WINDOW_MAX);
    let frame = sender.poll_transmit(START + OPENING_WINDOW_MAX, UNIX).unwrap();
    let events = take(&mut receiver, &[frame]).unwrap();
    assert_eq!((events.len(), installed(&events)), (4, vec![2, 3]));
    // What comes then waits for the next batch.
    sender.push(ms(3), UNIX, install(4)).unwrap();
    assert_eq!(sender.poll_timeout(), START + 2 * OPENING_WINDOW_MAX);
}

#[test]
fn more_changes_than_fit_into_one_message_come_in_several() {
    let (mut sender, mut receiver) = (sender(7, SenderOptions::default()), receiver());
    connect(&mut sender, &mut receiver, vec![]);
    for n in 0..1_000 {
        sender.push(START, UNIX, install((n % 251) as u8)).unwrap();
    }
    let mut count = 0;
    while let Some(frame) = sender.poll_transmit(START + WINDOW_MAX, UNIX) {
        count += installed(&take(&mut receiver, &[frame]).unwrap()).len();
    }
    assert!(receiver.resume().unwrap().seq > 1);
    assert_eq!(count, 1_000);
    let state: Vec<_> = (0..1_000).map(|n| install((n % 251) as u8)).collect();
    receiver.forget();
    assert_eq!(installed(&connect(&mut sender, &mut receiver, state)).len(), 1_000);
}

#[test]
fn as_many_changes_wait_as_may() {
    let mut sender = sender(7, SenderOptions { pending_max: 2, ..SenderOptions::default() });
    sender.push(START, UNIX, install(1)).unwrap();
    sender.push(START, UNIX, install(2)).unwrap();
    assert_eq!(sender.push(START, UNIX, install(3)), Err(SendError::Full(2)));
    assert_eq!(sender.gauges()[0], ("feed_pending", 2, 2));
    let long = FeedService { name: "x".repeat(70_000), ..service("") };
    batch(&mut sender, START);
    assert!(matches!(sender.push(START, UNIX, Delta::Service(long)), Err(SendError::TooLong(_))));
}

#[test]
fn a_gate_that_was_away_gets_what_it_missed_and_nothing_else() {
    let (mut sender, mut receiver) = (sender(7, SenderOptions::default()), receiver());
    connect(&mut sender, &mut receiver, vec![install(9)]);
    for n in 1..=3 {
        sender.push(START, UNIX, install(n)).unwrap();
        let frame = batch(&mut sender, START);
        if n == 1 {
            take(&mut receiver, &[frame]).unwrap();
        }
    }
    let events = connect(&mut sender, &mut receiver, vec![install(8)]);
    assert_eq!(installed(&events), [2, 3]);
    assert!(matches!(events[0], Event::UpToDate(Resume { seq: 1, .. })));
    assert_eq!(receiver.resume().unwrap().seq, 3);
}

#[test]
fn a_gate_that_was_away_too_long_gets_a_snapshot() {
    let options = SenderOptions { log_bytes_max: 600, ..SenderOptions::default() };
    let (mut sender, mut receiver) = (sender(7, options), receiver());
    connect(&mut sender, &mut receiver, vec![]);
    for n in 1..=3 {
        sender.push(START, UNIX, install(n)).unwrap();
        batch(&mut sender, START);
    }
    assert!(sender.gauges()[1].1 <= 600);
    assert_eq!(installed(&connect(&mut sender, &mut receiver, vec![install(2), install(3)])), [2, 3]);
    assert_eq!(receiver.resume().unwrap().seq, 3);
}

#[test]
fn a_restarted_frontend_is_followed_from_a_snapshot() {
    let mut receiver = receiver();
    let mut first = sender(7, SenderOptions::default());
    connect(&mut first, &mut receiver, vec![]);
    first.push(START, UNIX, install(1)).unwrap();
    take(&mut receiver, &[batch(&mut first, START)]).unwrap();

    let mut second = sender(8, SenderOptions::default());
    let events = connect(&mut second, &mut receiver, vec![]);
    assert!(
        matches!(events[..], [Event::UpToDate(Resume { boot_id: 8, seq: 0, .. })]),
        "it removes nothing: {events:?}"
    );
    second.push(START, UNIX, install(2)).unwrap();
    assert_eq!(installed(&take(&mut receiver, &[batch(&mut second, START)]).unwrap()), [2]);
}

#[test]
fn a_revoke_is_repeated_to_gates_that_were_away_and_spares_what_was_issued_since() {
    let mut sender = sender(7, SenderOptions { revokes_max: 2, ..SenderOptions::default() });
    let revoke = |what| Delta::Revoke(Selector::all(what));
    sender.push(START, UNIX, revoke(Selected::Service("old".into()))).unwrap();
    sender.push(START, UNIX, revoke(Selected::Grant(GrantId([1; 16])))).unwrap();
    sender.push(START, UNIX, revoke(Selected::User("alice".into()))).unwrap();
    assert_eq!(sender.gauges()[2], ("feed_revokes", 2, 2));

    let revoked = |sender: &mut FeedSender, unix| {
        let frames = sender.welcome(unix, None, || [install(5)]).unwrap();
        let mut receiver = receiver();
        let _ = receiver.connect(START, UNIX);
        let events = take(&mut receiver, &frames).unwrap();
        let position = events.iter().position(|event| matches!(event, Event::Install(_))).unwrap();
        let revokes = events.iter().filter_map(|event| match event {
            Event::Revoke(selector) => Some(selector.clone()),
            _ => None,
        });
        let revokes: Vec<_> = revokes.collect();
        assert_eq!(revokes.len(), position, "revokes come before what is open now");
        revokes
    };
    let revokes = revoked(&mut sender, UNIX);
    assert_eq!(revokes.len(), 2);
    let of_alice = &revokes[1];
    assert!(of_alice.selects(&grant(1), "alice", "web"));
    assert!(!of_alice.selects(&grant(1), "bob", "web"));
    let later = Grant { not_before: UNIX.plus_secs(1), ..grant(1) };
    assert!(!of_alice.selects(&later, "alice", "web"));
    assert!(revoked(&mut sender, UNIX.plus_secs(86_400)).is_empty(), "nothing that it meant can be alive");
}

#[test]
fn selectors_mean_what_they_say() {
    let selects = |what, n| Selector::all(what).selects(&grant(n), "alice", "web");
    assert!(selects(Selected::Grant(GrantId([1; 16])), 1) && !selects(Selected::Grant(GrantId([1; 16])), 2));
    assert!(selects(Selected::Call([1; 12]), 1) && !selects(Selected::Call([1; 12]), 2));
    assert!(selects(Selected::Service("web".into()), 1) && !selects(Selected::Service("ftp".into()), 1));
}

/// A gate that follows boot 7 up to batch 1, and the next three batches.
fn following() -> (FeedReceiver, Vec<SignedDeltas>) {
    let (mut sender, mut receiver) = (sender(7, SenderOptions::default()), receiver());
    connect(&mut sender, &mut receiver, vec![]);
    let mut frames = Vec::new();
    for n in 1..=4 {
        sender.push(START, UNIX, install(n)).unwrap();
        frames.push(batch(&mut sender, START));
    }
    take(&mut receiver, &frames[..1]).unwrap();
    let batches = messages(&frames[1..]).into_iter().map(|message| match message {
        ToGate::Batch(batch) => batch,
        other => panic!("{other:?}"),
    });
    (receiver, batches.collect())
}

#[test]
fn a_missing_or_repeated_batch_ends_the_connection_and_the_place_is_kept() {
    let (mut receiver, batches) = following();
    let before = receiver.resume();
    let gap = receiver.handle(START, UNIX, ToGate::Batch(batches[1].clone()));
    assert_eq!(gap, Err(FeedError::Gap { expected: 2, found: 3 }));
    assert_eq!((receiver.resume(), receiver.poll_timeout()), (before, None));
    let after = receiver.handle(START, UNIX, ToGate::Batch(batches[0].clone()));
    assert!(matches!(after, Err(FeedError::Unexpected(_))), "a closed connection stays closed");

    let (mut receiver, batches) = following();
    receiver.handle(START, UNIX, ToGate::Batch(batches[0].clone())).unwrap();
    let again = receiver.handle(START, UNIX, ToGate::Batch(batches[0].clone()));
    assert_eq!(again, Err(FeedError::Replay { last: 2, found: 2 }));
}

#[test]
fn nothing_signed_for_another_place_purpose_or_by_another_issuer_is_accepted() {
    type Change = fn(&mut SignedDeltas);
    let forge = |key: &IssuerKey, boot_id, snapshot, seq| {
        let signature = key.sign_batch(&SignedDeltas::signed(boot_id, snapshot, seq, false, &[]));
        ToGate::Batch(SignedDeltas { seq, more: false, deltas: vec![], signature })
    };
    let changes: [Change; 3] = [|b| b.deltas[9] ^= 1, |b| b.signature[9] ^= 1, |b| b.more = true];
    let (_, batches) = following();
    let altered = changes.map(|change| {
        let mut batch = batches[0].clone();
        change(&mut batch);
        ToGate::Batch(batch)
    });
    let renumbered = ToGate::Batch(SignedDeltas { seq: 2, ..batches[2].clone() });
    let forged = [
        forge(&IssuerKey::from_seed([2; 32]), 7, false, 2),
        forge(&key(), 8, false, 2),
        forge(&key(), 7, true, 2),
        renumbered,
    ];
    for message in altered.into_iter().chain(forged) {
        let (mut receiver, _) = following();
        let refused = receiver.handle(START, UNIX, message.clone());
        assert!(matches!(refused, Err(FeedError::Signature(_))), "{message:?}: {refused:?}");
        assert_eq!(receiver.resume().unwrap().seq, 1);
    }
    let (mut receiver, _) = following();
    assert!(receiver.handle(START, UNIX, forge(&key(), 7, false, 2)).is_ok(), "the forgery differs by its key alone");
}

#[test]
fn a_signed_batch_that_cannot_be_read_changes_nothing() {
    let (mut receiver, _) = following();
    let deltas = vec![0xFF];
    let signature = key().sign_batch(&SignedDeltas::signed(7, false, 2, false, &deltas));
    let message = ToGate::Batch(SignedDeltas { seq: 2, more: false, deltas, signature });
    assert_eq!(receiver.handle(START, UNIX, message), Err(FeedError::Malformed));
    assert_eq!(receiver.resume().unwrap().seq, 1);
}

#[test]
fn a_grant_that_cannot_be_is_refused_by_its_id_and_the_others_are_installed() {
    let (mut sender, mut receiver) = (sender(7, SenderOptions::default()), receiver());
    connect(&mut sender, &mut receiver, vec![]);
    let broken = Grant { bytes: 0, ..grant(1) };
    let foreign = Grant { issuer: [0; 8], ..grant(2) };
    for grant in [broken, foreign, grant(3)] {
        sender.push(START, UNIX, Delta::Install(Box::new(delta_of(&grant)))).unwrap();
    }
    let events = take(&mut receiver, &[batch(&mut sender, START)]).unwrap();
    assert!(
        matches!(&events[0], Event::Refuse(id, text) if *id == grant(1).id && text.contains("0 bytes")),
        "{events:?}"
    );
    assert!(
        matches!(&events[1], Event::Refuse(id, text) if *id == grant(2).id && text.contains("issuer")),
        "{events:?}"
    );
    assert_eq!(installed(&events), [3]);
}

#[test]
fn the_greeting_must_be_right() {
    let hello = |version, issuer: IssuerKey, resumed| ToGate::Hello {
        version,
        issuer: issuer.public().to_bytes(),
        boot_id: 7,
        name: "frontend-1".into(),
        resumed,
    };
    let greet = |message| {
        let mut receiver = receiver();
        let _ = receiver.connect(START, UNIX);
        receiver.handle(START, UNIX, message)
    };
    assert_eq!(greet(hello(FEED_VERSION, key(), false)), Ok(vec![]));
    assert_eq!(greet(hello(FEED_VERSION + 1, key(), false)), Err(FeedError::Version(FEED_VERSION + 1)));
    assert_eq!(greet(hello(FEED_VERSION, IssuerKey::from_seed([2; 32]), false)), Err(FeedError::Issuer));
    assert!(matches!(greet(hello(FEED_VERSION, key(), true)), Err(FeedError::Unexpected(_))));
    assert!(matches!(greet(ToGate::Ping { unix: UNIX }), Err(FeedError::Unexpected(_))));
    let refused = greet(ToGate::Refused { reason: "unknown gate".into() });
    assert_eq!(refused, Err(FeedError::Refused("unknown gate".into())));
    assert!(receiver().handle(START, UNIX, hello(FEED_VERSION, key(), false)).is_err(), "before it has dialled");
}

#[test]
fn a_ping_is_answered_and_clocks_apart_are_an_alarm() {
    let (mut receiver, _) = following();
    let mut ping = |unix| receiver.handle(START, UNIX, ToGate::Ping { unix }).unwrap();
    let pong = Event::Reply(FromGate::Pong { unix: UNIX });
    assert_eq!(ping(UNIX.plus_secs(2)), std::slice::from_ref(&pong));
    assert_eq!(ping(UNIX.plus_secs(3)), [pong.clone(), Event::Skew(3)]);
    assert_eq!(ping(UnixTime(UNIX.0 - 60)), [pong, Event::Skew(-60)]);
}

#[test]
fn silence_ends_the_connection_and_pings_prevent_it() {
    let mut sender = sender(7, SenderOptions::default());
    assert!(sender.poll_transmit(START, UNIX).is_some());
    assert!(sender.poll_transmit(START, UNIX).is_none());
    assert_eq!(sender.poll_timeout(), START + PING_INTERVAL);
    assert!(sender.poll_transmit(START + PING_INTERVAL, UNIX).is_some());

    let (mut receiver, _) = following();
    assert_eq!(receiver.poll_timeout(), Some(START + SILENCE_MAX));
    assert_eq!(receiver.handle_timeout(START + PING_INTERVAL), Ok(()));
    receiver.handle(START + PING_INTERVAL, UNIX, ToGate::Ping { unix: UNIX }).unwrap();
    assert_eq!(receiver.handle_timeout(START + SILENCE_MAX), Ok(()));
    assert_eq!(receiver.handle_timeout(START + SILENCE_MAX + PING_INTERVAL), Err(FeedError::Silent));
    assert_eq!(receiver.poll_timeout(), None);
}

#[test]
fn several_feeds_share_one_key() {
    let key = Arc::new(key());
    let one = FeedSender::new(key.clone(), 1, "frontend-1", SenderOptions::default());
    let other = FeedSender::new(key, 2, "frontend-1", SenderOptions::default());
    assert_eq!(one.issuer(), other.issuer());
}

#[test]
fn a_place_in_another_issuers_stream_is_not_resumed() {
    let resume = Resume { issuer: [9; 8], boot_id: 7, seq: 3 };
    assert_eq!(FeedReceiver::new(key().public(), "ams-1", Some(resume)).resume(), None);
    let frames = sender(7, SenderOptions::default()).welcome(UNIX, Some(resume), Vec::new).unwrap();
    assert!(matches!(messages(&frames)[..], [ToGate::Hello { resumed: false, .. }, ToGate::Snapshot(_)]));
    // A place that this start has not reached is not resumed either.
    let ahead = Resume { issuer: key().public().id(), boot_id: 7, seq: 3 };
    let frames = sender(7, SenderOptions::default()).welcome(UNIX, Some(ahead), Vec::new).unwrap();
    assert!(matches!(messages(&frames)[0], ToGate::Hello { resumed: false, .. }));
}

#[test]
fn a_session_key_reaches_the_gate_and_is_in_no_debug_text() {
    let delta = delta_of(&grant(1));
    let text = format!("{delta:?}");
    assert!(text.contains("to_client: SessionKey(..)"), "{text}");
    let bytes = postcard::to_allocvec(&delta).unwrap();
    assert_eq!(postcard::from_bytes::<GrantDelta>(&bytes).unwrap(), delta);
    assert_eq!(delta.without_keys().keys, None);
}
