//! Whatever arrives, the gate neither panics nor lets through what is not whole.

use std::time::Duration;

use crate::site::{packets::*, *};
use proptest::prelude::*;
use sluicegate_wire::{
    FrameBuf, Port, Verdict,
    ip::Summary,
    ipv4,
    tcp::{Control, Repr},
};

/// A gate in the middle of its work, and one packet of every kind that it knows.
fn busy() -> (Site, Vec<(Port, Vec<u8>)>) {
    let mut site = Site::with_fragments(config(), 16, 16);
    let (_, udp_gate) = site.open(UDP, 53);
    let (_, tcp_gate) = site.open(TCP, 22);
    for (protocol, client, host) in [(ICMP, CLIENT, TARGET), (UDP, CLIENT, FILTERED), (TCP, CLIENT_V6, FILTERED_V6)] {
        let grant = site.grant(protocol, client);
        site.install(grant, host, if protocol == ICMP { (0, 0) } else { (80, 80) });
    }
    let (c, s) = ((CLIENT, 9), (TARGET, 22));
    let syn = Repr::new(0, 0, Control::Syn, 1);
    let answer = Repr { ack: Some(2), ..Repr::new(0, 0, Control::Syn, 7) };
    let data = Repr { ack: Some(8), payload: b"data", ..Repr::new(0, 0, Control::None, 2) };
    let sent = udp(udp_gate, (CLIENT, 9), b"x");
    let mut packets = vec![
        (Port::OUTSIDE, udp((CLIENT, 9), udp_gate, b"x")),
        (Port::INSIDE, udp((TARGET, 53), (CLIENT, 9), b"y")),
        (Port::OUTSIDE, tcp(c, tcp_gate, syn)),
        (Port::INSIDE, tcp(s, c, answer)),
        (Port::OUTSIDE, tcp(c, tcp_gate, data)),
        (Port::OUTSIDE, echo(CLIENT, GATE.into(), 5, true)),
        (Port::INSIDE, echo(TARGET, CLIENT, 5, false)),
        (Port::INSIDE, echo(TALKER, STRANGER, 5, true)),
        (Port::OUTSIDE, unreachable(STRANGER, GATE.into(), &sent, 8)),
        (Port::INSIDE, udp((TALKER, 6), udp_gate, b"hairpin")),
        (Port::OUTSIDE, tcp((CLIENT_V6, 9), (FILTERED_V6, 80), syn)),
        (Port::OUTSIDE, too_big(STRANGER_V6, FILTERED_V6, 1_280, &tcp((FILTERED_V6, 80), (CLIENT_V6, 9), answer))),
    ];
    for part in fragments(&udp((CLIENT, 9), udp_gate, &payload(3_000)), 3, 1_000) {
        packets.push((Port::OUTSIDE, part));
    }
    for part in fragments(&tcp((CLIENT_V6, 9), (FILTERED_V6, 80), Repr { payload: &payload(2_000), ..syn }), 3, 800) {
        packets.push((Port::OUTSIDE, part));
    }
    (site, packets)
}

/// What is done to a packet: bytes changed, cut or padded, and its IP checksum made right again or not.
#[derive(Debug, Clone)]
struct Damage {
    packet: prop::sample::Index,
    changes: Vec<(prop::sample::Index, u8)>,
    len: Option<prop::sample::Index>,
    padding: usize,
    repaired: bool,
    other_port: bool,
    wait_ms: u64,
}

prop_compose! {
    fn damage()(
        packet in any::<prop::sample::Index>(),
        changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..4),
        len in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        padding in 0usize..8,
        repaired in prop::bool::weighted(0.8),
        other_port in prop::bool::weighted(0.1),
        wait_ms in prop_oneof![9 => 0u64..10, 1 => 0u64..100_000],
    ) -> Damage {
        Damage { packet, changes, len, padding, repaired, other_port, wait_ms }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn damaged_packets_of_every_kind_do_no_harm(damages in prop::collection::vec(damage(), 1..100)) {
        let (mut site, packets) = busy();
        for damage in damages {
            let (port, mut packet) = packets[damage.packet.index(packets.len())].clone();
            for (at, value) in &damage.changes {
                // Headers are where it matters.
                let at = at.index(packet.len().min(64));
                packet[at] = *value;
            }
            if let Some(len) = damage.len {
                packet.truncate(len.index(packet.len()));
            }
            if damage.repaired && packet.len() >= 20 && packet[0] == 0x45 {
                ipv4::Packet::new_unchecked(&mut packet[..]).fill_checksum();
            }
            packet.extend(std::iter::repeat_n(0, damage.padding));
            let port = if damage.other_port { port.opposite() } else { port };
            let mut frame = FrameBuf::from_bytes(&packet);
            match frame.with(|frame| site.gate.on_packet(site.now, port, frame)) {
                Verdict::Forward(_) | Verdict::Reply => {
                    prop_assert!(Summary::parse(frame.bytes()).is_ok(), "{:02x?}", frame.bytes());
                }
                _ => {}
            }
            loop {
                let mut frame = FrameBuf::from_bytes(&[0; 2_048]);
                if frame.with(|frame| site.gate.poll_output(site.now, frame)).is_none() {
                    break;
                }
            }
            site.wait(Duration::from_millis(damage.wait_ms));
        }
        site.wait(Duration::from_secs(8_000));
        prop_assert_eq!((site.used("flows"), site.used("flows_v6"), site.used("bindings")), (0, 0, 0));
        prop_assert_eq!((site.used("fragmented_packets"), site.used("fragments_held")), (0, 0));
        prop_assert_eq!(site.used("fragmented_packets_waiting"), 0);
    }

    #[test]
    fn any_bytes_at_all_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), port in 0u8..2) {
        let (mut site, _) = busy();
        let mut frame = FrameBuf::from_bytes(&bytes);
        let verdict = frame.with(|frame| site.gate.on_packet(site.now, Port(port), frame));
        prop_assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
    }

    #[test]
    fn any_state_at_all_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), magic in any::<bool>()) {
        let mut site = Site::new();
        let bytes = if magic { [b"SGTABLES\x04\0".to_vec(), bytes].concat() } else { bytes };
        prop_assert!(sluicegate_nat::import(&mut site.gate.translator, site.now, site.unix, &bytes).is_err());
    }
}
