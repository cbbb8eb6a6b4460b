//! Writes the first inputs of the `wire_*` fuzz targets: small valid packets of every kind.
//!
//! `cargo run -p sluicegate-wire --example fuzz_seeds -- fuzz/corpus`

use std::{
    env, fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use sluicegate_wire::{
    FrameBuf, IpProtocol,
    capability::{self, Algorithm, Capability, ClientId, FlowNonce, Kind, Limits, Return, shim},
    ethernet::{self, EtherType},
    icmp,
    ip::{FragmentOffset, Version},
    ipv4, ipv6,
    tcp::{self, Timestamps, WindowScale},
    udp,
};

const SRC4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DST4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SRC6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const HOST: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Names and bytes.
type Seeds = Vec<(&'static str, Vec<u8>)>;

fn main() -> io::Result<()> {
    let corpus = env::args_os().nth(1).map_or_else(|| PathBuf::from("fuzz/corpus"), PathBuf::from);
    let targets: [(&str, Seeds); 6] = [
        ("wire_ethernet", frames()),
        ("wire_ipv4", ipv4_packets()),
        ("wire_ipv6", ipv6_packets()),
        ("wire_transport", transports(IpAddr::V4(SRC4), IpAddr::V4(DST4))),
        ("wire_icmp", icmp_messages()),
        ("wire_capability", capability_headers()),
    ];
    for (target, seeds) in targets {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds {
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}

fn frame(ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let repr = ethernet::Repr { dst: ethernet::BROADCAST, src: HARDWARE, ethertype };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut ethernet::Packet::new_unchecked(&mut bytes[..]));
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

fn frames() -> Seeds {
    let datagram = udp_datagram(IpAddr::V4(SRC4), IpAddr::V4(DST4));
    let packet = ipv4_packet(IpProtocol::UDP, &datagram);
    let mut tag = 5u16.to_be_bytes().to_vec();
    tag.extend_from_slice(&EtherType::IPV4.0.to_be_bytes());
    tag.extend_from_slice(&packet);
    vec![
        ("ipv4", frame(EtherType::IPV4, &packet)),
        ("ipv6", frame(EtherType::IPV6, &ipv6_packet(IpProtocol::NO_NEXT_HEADER, &[]))),
        ("vlan", frame(EtherType::VLAN, &tag)),
    ]
}

fn ipv4_packet(protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let repr = ipv4::Repr::new(SRC4, DST4, protocol, payload.len() as u16);
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..]));
    bytes.extend_from_slice(payload);
    bytes
}

fn ipv4_packets() -> Seeds {
    let transports = transports(IpAddr::V4(SRC4), IpAddr::V4(DST4));
    let mut packets: Vec<_> = transports
        .into_iter()
        .map(|(name, bytes)| {
            let protocol = if name.starts_with("udp") { IpProtocol::UDP } else { IpProtocol::TCP };
            (name, ipv4_packet(protocol, &bytes))
        })
        .collect();
    let ping = icmp_message(&icmp::Repr::EchoRequest { ident: 1, seq: 2, data: b"ping" }, SRC4.into(), DST4.into());
    packets.push(("icmp_echo", ipv4_packet(IpProtocol::ICMP, &ping)));
    // Router alert and a loose source route in the first 12 bytes of what was payload.
    let mut options = ipv4_packet(IpProtocol::UDP, &[148, 4, 0, 0, 131, 7, 4, 203, 0, 113, 1, 0, 1, 2, 3, 4]);
    let mut view = ipv4::Packet::new_unchecked(&mut options[..]);
    view.set_version_and_header_len(32);
    view.fill_checksum();
    packets.push(("options", options));
    let mut fragment = ipv4_packet(IpProtocol::UDP, &[7; 16]);
    let mut view = ipv4::Packet::new_unchecked(&mut fragment[..]);
    view.set_fragmentation(false, true, FragmentOffset::from_units(185));
    view.fill_checksum();
    packets.push(("fragment", fragment));
    packets
}

fn ipv6_packet(next_header: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let repr = ipv6::Repr::new(SRC6, DST6, next_header, payload.len() as u16);
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut ipv6::Packet::new_unchecked(&mut bytes[..]));
    bytes.extend_from_slice(payload);
    bytes
}

fn ipv6_packets() -> Seeds {
    let (src, dst) = (IpAddr::V6(SRC6), IpAddr::V6(DST6));
    let datagram = udp_datagram(src, dst);
    let mut packets: Vec<_> = transports(src, dst)
        .into_iter()
        .map(|(name, bytes)| {
            let protocol = if name.starts_with("udp") { IpProtocol::UDP } else { IpProtocol::TCP };
            (name, ipv6_packet(protocol, &bytes))
        })
        .collect();
    let behind = |headers: &[u8]| [headers, &datagram[..]].concat();
    let hop_by_hop = behind(&[60, 0, 5, 2, 0, 0, 1, 0, 17, 0, 1, 4, 0, 0, 0, 0]);
    packets.push(("options", ipv6_packet(IpProtocol::HOP_BY_HOP, &hop_by_hop)));
    let routing = behind(&[17, 0, 4, 0, 0, 0, 0, 0]);
    packets.push(("routing", ipv6_packet(IpProtocol::IPV6_ROUTE, &routing)));
    let authentication = behind(&[17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5]);
    packets.push(("authentication", ipv6_packet(IpProtocol::AUTHENTICATION, &authentication)));
    let first = [&[17, 0, 0, 1, 0, 0, 0, 9], &datagram[..8]].concat();
    packets.push(("fragment_first", ipv6_packet(IpProtocol::IPV6_FRAGMENT, &first)));
    let last = [&[17, 0, 0, 8, 0, 0, 0, 9], &datagram[8..]].concat();
    packets.push(("fragment_last", ipv6_packet(IpProtocol::IPV6_FRAGMENT, &last)));
    packets
}

fn udp_datagram(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    let repr = udp::Repr { src_port: 40_000, dst_port: 5060, payload: b"OPTIONS sip:" };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut udp::Packet::new_unchecked(&mut bytes[..]), src, dst);
    bytes
}

fn transports(src: IpAddr, dst: IpAddr) -> Seeds {
    let segment = |repr: tcp::Repr<'_>| {
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut tcp::Packet::new_unchecked(&mut bytes[..]), src, dst);
        bytes
    };
    let syn = tcp::Repr {
        mss: Some(1460),
        window_scale: Some(WindowScale::new(7)),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 0 }),
        ..tcp::Repr::new(40_000, 22, tcp::Control::Syn, 1)
    };
    let data =
        tcp::Repr { ack: Some(9), push: true, payload: b"data", ..tcp::Repr::new(40_000, 22, tcp::Control::None, 2) };
    let reset = tcp::Repr { ack: Some(9), ..tcp::Repr::new(40_000, 22, tcp::Control::Rst, 6) };
    vec![
        ("udp", udp_datagram(src, dst)),
        ("tcp_syn", segment(syn)),
        ("tcp_data", segment(data)),
        ("tcp_reset", segment(reset)),
    ]
}

fn icmp_message(repr: &icmp::Repr<'_>, src: IpAddr, dst: IpAddr) -> Vec<u8> {
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes, src, dst);
    bytes
}

fn icmp_messages() -> Seeds {
    let (src4, dst4, router, host) = (IpAddr::V4(SRC4), IpAddr::V4(DST4), IpAddr::V6(ROUTER), IpAddr::V6(HOST));
    let (packet4, packet6) = (
        ipv4_packet(IpProtocol::UDP, &udp_datagram(src4, dst4)),
        ipv6_packet(IpProtocol::UDP, &udp_datagram(IpAddr::V6(SRC6), IpAddr::V6(DST6))),
    );
    let quote = |packet| icmp::Quote::new(packet).expect("a packet of our own making");
    let errors = |quote| {
        [
            icmp::Repr::Unreachable { why: icmp::Unreachable::Port, quote },
            icmp::Repr::PacketTooBig { mtu: 1400, quote },
            icmp::Repr::TimeExceeded { quote },
        ]
    };
    let reply = icmp::Repr::EchoReply { ident: 1, seq: 2, data: b"ping" };
    let request = icmp::Repr::EchoRequest { ident: 1, seq: 2, data: b"ping" };
    let v4 = [reply].into_iter().chain(errors(quote(&packet4))).map(|repr| icmp_message(&repr, src4, dst4));
    let v6 = [request].into_iter().chain(errors(quote(&packet6))).map(|repr| icmp_message(&repr, router, host));
    let names = [
        ["v4_echo", "v4_unreachable", "v4_too_big", "v4_time_exceeded"],
        ["v6_echo", "v6_unreachable", "v6_too_big", "v6_time_exceeded"],
    ];
    let mut seeds: Seeds = names.concat().into_iter().zip(v4.chain(v6)).collect();
    // A parameter problem of byte 8, and an unknown next header at byte 40.
    for (name, of, head) in
        [("v4_parameter", 3, [12, 0, 0, 0, 8, 0, 0, 0]), ("v6_parameter", 7, [4, 1, 0, 0, 0, 0, 0, 40])]
    {
        let mut bytes = seeds[of].1.clone();
        bytes[..8].copy_from_slice(&head);
        let (version, src, dst) = if of == 3 { (Version::V4, src4, dst4) } else { (Version::V6, router, host) };
        icmp::Packet::new_unchecked(version, &mut bytes[..]).fill_checksum(src, dst);
        seeds.push((name, bytes));
    }
    seeds
}

fn capability_headers() -> Seeds {
    let (algorithm, client_id, upper) = (Algorithm::SipHash, ClientId(7), IpProtocol::UDP);
    let limits = Limits::new(100, 10).expect("N and T in range");
    let granted = Return::granted(limits, (1..3).map(Capability).collect());
    let request = capability::Repr::request(algorithm, client_id, 3, upper);
    let nonce_only = capability::Repr::nonce_only(Algorithm::Aes, client_id, FlowNonce(5), upper);
    let listed = |kind, pointer| capability::Repr::Regular {
        algorithm,
        kind,
        nonce: FlowNonce(5),
        client_id,
        limits: Some(limits),
        list: (1..3).map(Capability).collect(),
        pointer,
        demoted: false,
        upper,
        ret: None,
    };
    let headers = [
        ("request", request),
        ("request_returns", request.with_return(Some(granted))),
        ("capabilities", listed(Kind::Capabilities, 1)),
        ("renewal", listed(Kind::Renewal, 0)),
        ("nonce_only", nonce_only),
        ("notice", nonce_only.with_return(Some(Return { demoted: true, ..granted }))),
        ("refusal", nonce_only.with_return(Some(Return::refused()))),
    ];
    let mut seeds: Seeds = headers
        .iter()
        .map(|(name, repr)| {
            let mut bytes = vec![0; repr.buffer_len()];
            repr.emit(&mut capability::Packet::new_unchecked(&mut bytes[..]));
            (*name, bytes)
        })
        .collect();
    let carried = |plain: &[u8], repr: &capability::Repr, carriage| {
        let mut frame = FrameBuf::from_bytes(plain);
        frame.with(|frame| shim::insert(frame, repr, carriage)).expect("a header that fits");
        frame.bytes().to_vec()
    };
    let encapsulated = shim::Carriage::Encapsulated { src_port: 40_000 };
    let plain4 = ipv4_packet(upper, &udp_datagram(IpAddr::V4(SRC4), IpAddr::V4(DST4)));
    let plain6 = ipv6_packet(upper, &udp_datagram(IpAddr::V6(SRC6), IpAddr::V6(DST6)));
    let native = carried(&plain4, &listed(Kind::Capabilities, 0), shim::Carriage::Native);
    let quote = icmp::Quote::new(&native).expect("a packet of our own making");
    let error = icmp_message(&icmp::Repr::TimeExceeded { quote }, SRC4.into(), DST4.into());
    seeds.extend([
        ("v4_encapsulated", carried(&plain4, &request, encapsulated)),
        ("v6_native", carried(&plain6, &nonce_only, shim::Carriage::Native)),
        ("v6_encapsulated", carried(&plain6, &listed(Kind::Renewal, 1), encapsulated)),
        ("v4_answer", carried(&plain4, &nonce_only, shim::Carriage::Answer { dst_port: 61_234 })),
        ("v4_quoted", ipv4_packet(IpProtocol::ICMP, &error)),
        ("v4_native", native),
    ]);
    seeds
}
