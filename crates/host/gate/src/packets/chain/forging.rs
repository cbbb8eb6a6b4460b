//! Whoever has seen a capability packet of somebody else, and what a gate makes of what they send.

use super::*;
use sluicegate_wire::{
    IpProtocol,
    capability::{Capability, FlowNonce, Kind, Repr, shim, shim::Carriage},
};

const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 8);
const GATE_AT: End = (1, Port::OUTSIDE);

/// A regular packet as its sender made it.
#[derive(Clone)]
struct Seen {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    repr: Repr,
    payload: Vec<u8>,
}

impl Seen {
    fn read(packet: &[u8]) -> Option<Self> {
        let ip = Summary::parse(packet).ok()?;
        let found = shim::find(&ip, packet).ok()??;
        let repr = Repr::parse(&found.packet(packet)).ok()?;
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (ip.src, ip.dst) else { return None };
        let payload = packet[found.payload_at + udp::HEADER_LEN..].to_vec();
        Some(Self { src, dst, repr, payload })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut frame = FrameBuf::from_bytes(&datagram(self.src, self.dst, &self.payload));
        frame.with(|frame| shim::insert(frame, &self.repr, Carriage::Native)).unwrap();
        frame.bytes().to_vec()
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    fn nonce_only(&self, nonce: FlowNonce) -> Self {
        let Repr::Regular { algorithm, client_id, .. } = self.repr else { panic!("{:?}", self.repr) };
        self.with(|seen| seen.repr = Repr::nonce_only(algorithm, client_id, nonce, IpProtocol::UDP))
    }

    fn nonce(&self) -> FlowNonce {
        let Repr::Regular { nonce, .. } = self.repr else { panic!("{:?}", self.repr) };
        nonce
    }
}

/// A client whose agent holds a capability, and the gate of the service that demands one. Between them is whoever the
/// test is about: nothing passes unless it is carried.
fn tapped() -> (Chain, Seen) {
    let (mut chain, client, _) = private(CLIENT_ID, DataMode::Capability);
    chain.nodes.remove(1);
    chain.cables.clear();
    chain.send(client, &datagram(CLIENT, SERVER, b"request"));
    carry(&mut chain);
    chain.wait(Duration::from_millis(50));
    carry(&mut chain);
    chain.send(client, &datagram(CLIENT, SERVER, b"capable"));
    let sent = std::mem::take(&mut chain.arrived);
    // The agent's answer to the gate may be on its way by itself before.
    let mut seen = sent.last().and_then(|(_, packet)| Seen::read(packet)).expect("a capability packet");
    seen.repr = seen.repr.with_return(None);
    assert_eq!(seen.payload, b"capable");
    assert!(matches!(seen.repr, Repr::Regular { kind: Kind::Capabilities, .. }), "{:?}", seen.repr);
    (chain, seen)
}

/// Carries what waits between the client and the gate.
fn carry(chain: &mut Chain) {
    for (end, packet) in std::mem::take(&mut chain.arrived) {
        match end {
            (0, Port::OUTSIDE) => chain.send(GATE_AT, &packet),
            GATE_AT => chain.send((0, Port::OUTSIDE), &packet),
            _ => {}
        }
    }
}

/// Sends a packet to the gate: what came of it there, as (passed as regular, reached the service).
fn offer(chain: &mut Chain, packet: &[u8]) -> (bool, bool) {
    let before: u64 = chain.passed(1)[1..4].iter().sum();
    chain.arrived.clear();
    chain.send(GATE_AT, packet);
    let regular = chain.passed(1)[1..4].iter().sum::<u64>() > before;
    (regular, chain.arrived.iter().any(|(end, _)| *end == (1, Port::INSIDE)))
}

fn demoted(chain: &Chain, reason: Reason) -> u64 {
    chain.nodes[1].published(chain.now, &[]).0.demoted[reason as usize]
}

type Forgery = (&'static str, Reason, fn(&Seen) -> Seen);

const FORGERIES: [Forgery; 12] = [
    ("another source", Reason::CapabilityForged, |seen| seen.with(|seen| seen.src = OTHER)),
    ("another destination", Reason::CapabilityForged, |seen| seen.with(|seen| seen.dst = OTHER)),
    ("another client id", Reason::CapabilityForged, |seen| {
        seen.with(|seen| {
            let Repr::Regular { client_id, .. } = &mut seen.repr else { panic!() };
            *client_id = ClientId(CLIENT_ID + 1);
        })
    }),
    ("no client id", Reason::CapabilityForged, |seen| {
        seen.with(|seen| {
            let Repr::Regular { client_id, .. } = &mut seen.repr else { panic!() };
            *client_id = ClientId::NONE;
        })
    }),
    ("a larger N", Reason::CapabilityForged, |seen| seen.with(|seen| set_limits(seen, |n, t| (n + 1, t)))),
    ("a smaller N", Reason::CapabilityForged, |seen| seen.with(|seen| set_limits(seen, |n, t| (n - 1, t)))),
    ("another T", Reason::CapabilityForged, |seen| {
        seen.with(|seen| set_limits(seen, |n, t| (n, if t > 1 { t - 1 } else { t + 1 })))
    }),
    ("another hash", Reason::CapabilityForged, |seen| seen.with(|seen| set_capability(seen, |bits| bits ^ 1))),
    ("another time", Reason::CapabilityForged, |seen| seen.with(|seen| set_capability(seen, |bits| bits ^ 1 << 56))),
    ("a list that is used up", Reason::CapabilityList, |seen| {
        seen.with(|seen| {
            let Repr::Regular { pointer, list, .. } = &mut seen.repr else { panic!() };
            *pointer = list.len() as u8;
        })
    }),
    ("a nonce alone, which no line knows", Reason::CapabilityUnknown, |seen| seen.nonce_only(seen.nonce())),
    ("demoted before", Reason::AlreadyDemoted, |seen| {
        seen.with(|seen| {
            let Repr::Regular { demoted, .. } = &mut seen.repr else { panic!() };
            *demoted = true;
        })
    }),
];

fn set_limits(seen: &mut Seen, change: impl FnOnce(u16, u8) -> (u16, u8)) {
    let Repr::Regular { limits: Some(limits), .. } = &mut seen.repr else { panic!() };
    let (kilobytes, seconds) = change(limits.kilobytes(), limits.seconds());
    *limits = Limits::new(kilobytes, seconds).unwrap();
}

fn set_capability(seen: &mut Seen, change: impl Fn(u64) -> u64) {
    // The first entry is the sender's own; the pointer says which one is the gate's.
    let Repr::Regular { list, pointer, .. } = &mut seen.repr else { panic!() };
    let forged = |(at, entry): (usize, Capability)| {
        if at == usize::from(*pointer) { Capability(change(entry.0)) } else { entry }
    };
    *list = list.iter().enumerate().map(forged).collect();
}

#[test]
fn what_is_forged_in_any_field_does_not_pass_the_gate_and_has_its_reason() {
    for (name, reason, forge) in FORGERIES {
        for kind in [Kind::Capabilities, Kind::Renewal] {
            let (mut chain, seen) = tapped();
            let forged = forge(&seen).with(|seen| match &mut seen.repr {
                Repr::Regular { kind: shown, .. } if *shown != Kind::Nonce => *shown = kind,
                _ => {}
            });
            assert_eq!(offer(&mut chain, &forged.bytes()), (false, false), "{name}");
            assert_eq!(demoted(&chain, reason), 1, "{name}");
            // The true packet is worth as much as before.
            assert_eq!(offer(&mut chain, &seen.bytes()), (true, true), "{name}");
        }
    }
}

#[test]
fn a_capability_replayed_after_its_seconds_does_not_pass_the_gate() {
    let (mut chain, seen) = tapped();
    let Repr::Regular { limits: Some(limits), .. } = seen.repr else { panic!() };
    assert_eq!(offer(&mut chain, &seen.bytes()), (true, true));
    chain.now = chain.now + Duration::from_secs(u64::from(limits.seconds()) + 1);
    for forged in [seen.clone(), seen.nonce_only(seen.nonce())] {
        assert_eq!(offer(&mut chain, &forged.bytes()), (false, false));
    }
    assert_eq!(demoted(&chain, Reason::CapabilityExpired), 2);
}

#[test]
fn a_capability_of_another_gate_does_not_pass_this_one() {
    let (_, elsewhere) = tapped();
    let (mut chain, _) = tapped();
    assert_eq!(offer(&mut chain, &elsewhere.bytes()), (false, false));
    assert_eq!(demoted(&chain, Reason::CapabilityForged), 1);
}

#[test]
fn whoever_copies_a_capability_gets_n_bytes_through_and_none_more() {
    let (mut chain, seen) = tapped();
    let Repr::Regular { limits: Some(limits), .. } = seen.repr else { panic!() };
    let mut passed = 0;
    for number in 0..3_000_u32 {
        // Lists and nonces in turn: one capability, whatever it is shown with.
        let shown = if number % 2 == 0 { seen.clone() } else { seen.nonce_only(seen.nonce()) };
        let bytes = shown.with(|shown| shown.payload = vec![0; 1_200]).bytes();
        let (regular, delivered) = offer(&mut chain, &bytes);
        assert!(regular || !delivered, "packet {number}");
        passed += if delivered { bytes.len() as u64 } else { 0 };
    }
    assert!(passed > limits.bytes() / 2 && passed <= limits.bytes(), "{passed} of {}", limits.bytes());
    assert!(demoted(&chain, Reason::CapabilitySpent) > 1_000);
}

#[test]
fn a_header_cut_at_any_byte_does_not_pass_the_gate() {
    let (mut chain, seen) = tapped();
    let packet = seen.bytes();
    let found = shim::find(&Summary::parse(&packet).unwrap(), &packet).unwrap().unwrap();
    let cuts = found.header_at..found.payload_at;
    for len in cuts.clone() {
        let mut bytes = packet[..len].to_vec();
        let mut view = ipv4::Packet::new_unchecked(&mut bytes[..]);
        view.set_total_len(len as u16);
        view.fill_checksum();
        assert_eq!(offer(&mut chain, &bytes), (false, false), "{len} bytes");
    }
    assert_eq!(demoted(&chain, Reason::CapabilityHeader), cuts.len() as u64);
    assert_eq!(offer(&mut chain, &packet), (true, true));
}

#[test]
fn any_byte_of_the_header_changed_passes_only_where_the_sender_may_choose_it() {
    let (mut chain, mut seen) = tapped();
    let (mut passed, mut tried) = (Vec::new(), 0);
    let header_len = seen.repr.buffer_len();
    for at in 0..header_len {
        for change in [0x01, 0x10, 0x80, 0xff] {
            let mut bytes = seen.bytes();
            bytes[ipv4::HEADER_LEN + at] ^= change;
            tried += 1;
            if offer(&mut chain, &bytes).0 {
                passed.push(at);
                // The gate's line knows the nonce now, and would not look at the list.
                (chain, seen) = tapped();
            }
        }
    }
    assert!(tried >= 90 && !passed.is_empty());
    // Kind, upper protocol and nonce are the sender's own, as are entries of others and how many there are. Of what the
    // gate reads behind the nonce, nothing is: client id, pointer, N, T and its own capability.
    let own = 16 + 8;
    assert!(passed.iter().all(|at| *at < 8 || *at == 12 || (16..own).contains(at)), "{passed:?}");
}
