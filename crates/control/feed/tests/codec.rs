//! Feed messages are found in any stream of bytes, and no stream makes the decoder panic or take more room than its bound.

use proptest::{collection::vec, prelude::*};
use sluicegate_feed::{
    ACTIVE_GRANTS_MAX, ActiveGrant, CodecError, Decoder, Delta, EndCause, FRAME_LEN_MAX, FromGate, GrantDelta,
    GrantUsage, JoinSecret, Resume, Selected, Selector, SignedDeltas, ToGate, USAGE_MAX, encode,
};
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId, mac::SessionKeys};
use sluicegate_wire::UnixTime;

fn active() -> ActiveGrant {
    let id = GrantId([7; 16]);
    let delta = GrantDelta {
        grant: Grant {
            flags: 0,
            least_mode: DataMode::Mac,
            protocol: 17,
            id,
            issuer: [9; 8],
            epoch: 9,
            not_before: UnixTime(9),
            not_after: UnixTime(10),
            bytes: 9,
            client_id: 9,
            flows: 9,
            rate_100kbps: 9,
            client_address: [198, 51, 100, 1].into(),
            client_ports: ANY_PORTS,
            gate_address: [203, 0, 113, 1].into(),
            gate_ports: (9, 9),
            holder: [9; 32],
            user_pseudonym: [9; 8],
        },
        user: "alice".into(),
        service: "web".into(),
        target: [10, 0, 0, 1].into(),
        target_ports: (80, 80),
        mode: Default::default(),
        keys: None,
    };
    ActiveGrant { delta, address: [203, 0, 113, 1].into(), ports: (20_000, 20_000), bytes_used: 5, flows: 1 }
}

fn from_gate() -> Vec<FromGate> {
    let (id, active) = (GrantId([7; 16]), active());
    let usage = GrantUsage { id, bytes_used: u64::MAX, error_bytes: u64::MAX, flows: u16::MAX };
    let resume = Resume { issuer: [1; 8], boot_id: u64::MAX, seq: 3 };
    vec![
        FromGate::Join { secret: JoinSecret::new([5; 16]), gate: "ams-1".into() },
        FromGate::Hello { version: 1, gate: "ams-1".into(), resume: Some(resume), unix: UnixTime(u64::MAX) },
        FromGate::Active { grants: vec![active; ACTIVE_GRANTS_MAX], more: true },
        FromGate::Opened { id, address: "2001:db8::1".parse().unwrap(), ports: (1, 2) },
        FromGate::Refused { id, reason: "no external port is free".into() },
        FromGate::Ended { id, cause: EndCause::Spent, bytes_used: 10_000_000 },
        FromGate::Usage { grants: vec![usage; USAGE_MAX] },
        FromGate::Standing { service: "pbx".into(), address: [203, 0, 113, 1].into(), port: 20_001, salt: 7 },
        FromGate::ServiceRefused { service: "pbx".into(), reason: "its address is the gate's own".into() },
        FromGate::Reach { service: "pbx".into(), obstacle: Some("no route to 10.6.0.2".into()) },
        FromGate::Pong { unix: UnixTime(0) },
    ]
}

/// Bytes as two digits each.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn messages_keep_their_bytes_so_that_a_gate_and_a_frontend_can_be_upgraded_one_after_the_other() {
    let unix = UnixTime(1_800_000_000);
    let to_gate = |message: &ToGate| hex(&encode(message).unwrap());
    let from_gate = |message: &FromGate| hex(&encode(message).unwrap());
    assert_eq!(to_gate(&ToGate::Ping { unix }), "000000060480a4a7da06");
    assert_eq!(from_gate(&FromGate::Pong { unix }), "000000060a80a4a7da06");
    let resume = Some(Resume { issuer: [1; 8], boot_id: 300, seq: 3 });
    assert_eq!(
        from_gate(&FromGate::Hello { version: 4, gate: "ams-1".into(), resume, unix }),
        "00000019010405616d732d31010101010101010101ac020380a4a7da06"
    );
    let batch = SignedDeltas { seq: 1, more: false, deltas: vec![0xD1, 0xD2], signature: [0x51; 64] };
    assert_eq!(to_gate(&ToGate::Batch(batch)), format!("0000004603010002d1d2{}", "51".repeat(64)));
    let keys = SessionKeys::from_bytes([[0xA1; 16], [0xB2; 16]]);
    let mut active = active();
    active.delta.keys = Some(keys);
    let grant = hex(&active.delta.grant.encode());
    let rest = format!(
        "05616c69636503776562000a00000150500001{}{}00cb007101a09c01a09c01050100",
        "a1".repeat(16),
        "b2".repeat(16)
    );
    assert_eq!(
        from_gate(&FromGate::Active { grants: vec![active], more: false }),
        format!("000000cb0201{grant}{rest}")
    );
    for (issued_before, bytes) in [(Some(unix), "030205616c6963650180a4a7da06"), (None, "030205616c69636500")] {
        let revoke = Delta::Revoke(Selector { what: Selected::User("alice".into()), issued_before });
        assert_eq!(hex(&postcard::to_allocvec(&revoke).unwrap()), bytes);
    }
}

/// Everything in `stream`, pushed in pieces of `piece` bytes.
fn decode(stream: &[u8], piece: usize) -> Result<Vec<FromGate>, CodecError> {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for mut bytes in stream.chunks(piece) {
        while !bytes.is_empty() {
            let taken = decoder.push(bytes);
            assert!(taken > 0, "there is room once everything was polled");
            bytes = &bytes[taken..];
            while let Some(message) = decoder.poll()? {
                messages.push(message);
            }
        }
    }
    Ok(messages)
}

#[test]
fn messages_are_found_however_the_stream_is_cut() {
    let messages = from_gate();
    let stream: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
    for piece in [1, 2, 3, 7, 100, 4_096, FRAME_LEN_MAX, stream.len()] {
        assert_eq!(decode(&stream, piece).as_ref(), Ok(&messages), "{piece}");
    }
}

#[test]
fn the_largest_message_fits_and_a_larger_one_is_refused_at_both_ends() {
    let around = 70;
    let message = |len| ToGate::Batch(SignedDeltas { seq: 1, more: false, deltas: vec![0; len], signature: [0; 64] });
    let largest = (FRAME_LEN_MAX - around..).find(|len| encode(&message(len + 1)).is_err()).unwrap();
    let bytes = encode(&message(largest)).unwrap();
    assert_eq!(bytes.len(), 4 + FRAME_LEN_MAX);
    let mut decoder = Decoder::new();
    assert_eq!(decoder.push(&bytes), bytes.len());
    assert!(decoder.space().is_empty());
    assert_eq!(decoder.poll(), Ok(Some(message(largest))));
    assert_eq!(decoder.space().len(), 4 + FRAME_LEN_MAX);

    let mut decoder = Decoder::<ToGate>::new();
    decoder.push(&(FRAME_LEN_MAX as u32 + 1).to_be_bytes());
    assert_eq!(decoder.poll(), Err(CodecError::TooLong(FRAME_LEN_MAX + 1)));
}

#[test]
fn an_error_is_final() {
    let mut decoder = Decoder::<FromGate>::new();
    decoder.push(&[0, 0, 0, 1, 0xFF]);
    assert_eq!(decoder.poll(), Err(CodecError::Malformed));
    decoder.push(&encode(&FromGate::Pong { unix: UnixTime(1) }).unwrap());
    assert_eq!(decoder.poll(), Err(CodecError::Malformed));
}

#[test]
fn a_message_with_bytes_behind_it_is_malformed() {
    let mut bytes = encode(&FromGate::Pong { unix: UnixTime(1) }).unwrap();
    bytes.push(0);
    bytes[3] += 1;
    assert_eq!(decode(&bytes, 99), Err(CodecError::Malformed));
    assert_eq!(decode(&[0, 0, 0, 0], 99), Err(CodecError::Malformed));
}

#[test]
fn a_list_is_not_believed_to_be_as_long_as_it_says() {
    // Usage with 2^32 - 1 entries announced and none there; one entry more than there may be.
    let announced = [0, 0, 0, 6, 6, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F];
    assert_eq!(decode(&announced, 99), Err(CodecError::Malformed));
    let usage = GrantUsage { id: GrantId([0; 16]), bytes_used: 0, error_bytes: 0, flows: 0 };
    let long = encode(&FromGate::Usage { grants: vec![usage; USAGE_MAX + 1] }).unwrap();
    assert_eq!(decode(&long, 4_096), Err(CodecError::Malformed));
}

#[test]
fn a_join_secret_is_not_printed() {
    let text = format!("{:?}", from_gate()[0]);
    assert!(text.contains("JoinSecret(..)") && !text.contains("5, 5"), "{text}");
}

/// Bytes that a message holds outside of itself, at most.
fn held(message: &FromGate) -> usize {
    let grants = |delta: &GrantDelta| delta.user.capacity() + delta.service.capacity();
    match message {
        FromGate::Join { gate: text, .. }
        | FromGate::Hello { gate: text, .. }
        | FromGate::Refused { reason: text, .. } => text.capacity(),
        FromGate::ServiceRefused { service, reason } => service.capacity() + reason.capacity(),
        FromGate::Standing { service, .. } => service.capacity(),
        FromGate::Reach { service, obstacle } => service.capacity() + obstacle.as_ref().map_or(0, String::capacity),
        FromGate::Usage { grants } => grants.capacity() * size_of::<GrantUsage>(),
        FromGate::Active { grants: list, .. } => {
            list.capacity() * size_of::<ActiveGrant>() + list.iter().map(|active| grants(&active.delta)).sum::<usize>()
        }
        FromGate::Opened { .. } | FromGate::Ended { .. } | FromGate::Pong { .. } => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_bytes_make_the_decoder_panic_or_hold_more_than_a_small_multiple(
        kind in 0u8..10, body in vec(any::<u8>(), 0..2_000), piece in 1usize..300, framed in any::<bool>(),
    ) {
        let mut stream = body;
        if framed {
            let len = u32::try_from(stream.len() + 1).unwrap();
            stream = [&len.to_be_bytes()[..], &[kind], &stream].concat();
        }
        if let Ok(messages) = decode(&stream, piece) {
            let held: usize = messages.iter().map(held).sum();
            prop_assert!(held <= 8 * stream.len() + 2_048, "{held} of {}", stream.len());
        }
    }

    #[test]
    fn a_damaged_stream_gives_an_error_or_other_messages_but_no_panic(
        at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>(), piece in 1usize..5_000,
    ) {
        let mut stream: Vec<u8> = from_gate().iter().flat_map(|message| encode(message).unwrap()).collect();
        let at = at.index(stream.len());
        stream[at] ^= 1 << bit;
        stream.truncate(cut.index(stream.len()));
        let _ = decode(&stream, piece);
    }
}
