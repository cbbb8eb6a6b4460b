use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use sluicegate_capability::host::{Config, Host, Inbound, Knowledge, REQUEST_BURST, ServerConfig};
use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol, Reason, build,
    capability::{Kind, Repr, UDP_PORT, shim, shim::Carriage},
    icmp, ip, ipv4, ipv6,
    tcp::{self, Control},
    udp,
};

use super::{
    client, server,
    world::{A, B, World, address, datagram, packet_between, segment},
};

const PORT: u16 = 50_123;
const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));

fn encapsulated() -> Config {
    let carriage = Carriage::Encapsulated { src_port: PORT };
    Config { carriage, peers_max: 64, remotes_max: 64, ..Config::default() }
}

fn announced(packet: &[u8]) -> u16 {
    let summary = ip::Summary::parse(packet).unwrap();
    assert!(summary.verify_transport_checksum(packet));
    let segment = tcp::Packet::new_checked(summary.transport(packet)).unwrap();
    let mss = segment.options().find_map(|option| match option {
        Ok(tcp::TcpOption::MaximumSegmentSize(mss)) => Some(mss),
        _ => None,
    });
    mss.unwrap()
}

#[test]
fn syn_and_syn_ack_announce_segments_that_leave_room_for_the_header() {
    for (config, most) in [(Config::default(), 1_500 - 40 - 48), (encapsulated(), 1_500 - 40 - 56)] {
        let mut world = World::with_config(config, client(7), server(ServerConfig::default()), 2);
        world.send(A, &segment(A, Control::Syn, 1, None, 0)).unwrap();
        world.run(25);
        world.send(B, &segment(B, Control::Syn, 9, Some(2), 0)).unwrap();
        world.run(25);
        assert_eq!(announced(&world.got(B)[0].bytes), most);
        assert_eq!(announced(&world.got(A)[0].bytes), most);
    }
}

#[test]
fn a_mss_option_at_an_odd_offset_is_clamped_with_a_right_checksum() {
    let mut bytes = segment(A, Control::Syn, 1, None, 0);
    // One byte of padding in front of the option: 01 02 04 05 b4 00 00 00.
    bytes.truncate(40);
    bytes.extend_from_slice(&[1, 2, 4, 0x05, 0xb4, 0, 0, 0]);
    let mut header = ipv4::Packet::new_unchecked(&mut bytes[..]);
    header.set_total_len(48);
    header.fill_checksum();
    let mut tcp = tcp::Packet::new_unchecked(&mut bytes[20..]);
    tcp.set_header_len(28);
    tcp.fill_checksum(address(A), address(B));
    let mut world = World::new(client(7), server(ServerConfig::default()), 1);
    world.send(A, &bytes).unwrap();
    world.run(25);
    assert_eq!(announced(&world.got(B)[0].bytes), 1_500 - 40 - 48);
}

#[test]
fn full_segments_never_exceed_the_mtu_and_none_goes_without_capability_once_there_is_one() {
    for routers in [0, 3, 7] {
        let mut world = World::new(client(7), server(ServerConfig::default()), routers);
        world.send(A, &segment(A, Control::Syn, 1, None, 0)).unwrap();
        world.run(25);
        world.send(B, &segment(B, Control::Syn, 9, Some(2), 0)).unwrap();
        world.run(25);
        let before = world.wire.len();
        for n in 0..100 {
            world.send(A, &segment(A, Control::None, 2 + n * 1_412, Some(10), 1_412)).unwrap();
            world.send(B, &segment(B, Control::None, 10, Some(2 + n * 1_412), 0)).unwrap();
            world.run(10);
        }
        assert!(world.wire.iter().all(|seen| seen.len <= 1_500));
        let bare = world.wire[before..].iter().filter(|seen| seen.from == A && seen.kind.is_none()).count();
        assert!(bare <= 1, "{bare} with {routers} routers");
    }
}

#[test]
fn a_packet_that_must_not_be_fragmented_and_has_no_room_for_a_nonce_is_too_big() {
    let mut world = World::new(client(7), server(ServerConfig::default()), 2);
    world.send(A, &datagram(A, 1_472)).unwrap();
    assert_eq!(world.wire[0].kind, None, "a full first packet goes plain");
    assert!(world.wire[1].alone && world.wire[1].kind == Some(Kind::Request), "and the request beside it");
    world.run(200);
    assert_eq!(world.send(A, &datagram(A, 1_472)), Err(Reason::PacketTooBig));
    let most = usize::from(world.hosts[A].plain_mtu()) - 28;
    assert_eq!(most, 1_500 - 12 - 28);
    world.send(A, &datagram(A, most)).unwrap();
    let mut may_fragment = datagram(A, 1_472);
    let mut header = ipv4::Packet::new_unchecked(&mut may_fragment[..]);
    header.set_fragmentation(false, false, ip::FragmentOffset::ZERO);
    header.fill_checksum();
    world.send(A, &may_fragment).unwrap();
    assert_eq!(world.wire.last().unwrap().kind, None, "what may be fragmented goes plain");
    assert!(world.wire.iter().all(|seen| seen.len <= 1_500));
}

#[test]
fn a_smaller_mtu_on_the_way_is_learnt_from_an_error_that_quotes_our_nonce() {
    let mut world = World::new(client(7), server(ServerConfig::default()), 1);
    world.send(A, &datagram(A, 1_000)).unwrap();
    world.run(100);
    let mut frame = FrameBuf::from_bytes(&datagram(A, 1_400));
    let now = world.now;
    let (host, policy) = (&mut world.hosts[A], &mut world.policies[A]);
    frame.with(|frame| host.outbound(now, &mut **policy, frame)).unwrap();
    let error = too_big(frame.bytes(), 1_300);
    let mut frame = FrameBuf::from_bytes(&error);
    assert_eq!(frame.with(|frame| host.inbound(now, &mut **policy, frame)), Ok(Inbound::Deliver));
    let summary = ip::Summary::parse(frame.bytes()).unwrap();
    let icmp = icmp::Packet::new_checked(summary.version(), summary.transport(frame.bytes())).unwrap();
    assert!(icmp.verify_checksum(summary.src, summary.dst));
    assert_eq!(icmp.mtu(), 1_288, "what is left for a plain packet");
    let quoted = ip::Summary::parse_quoted(icmp.quoted()).unwrap();
    assert_eq!((quoted.protocol, quoted.total_len), (IpProtocol::UDP, 1_428));
    assert_eq!(world.send(A, &datagram(A, 1_300)), Err(Reason::PacketTooBig));
    assert_eq!(world.hosts[A].plain_mtu(), 1_288);
}

fn too_big(packet: &[u8], mtu: u16) -> Vec<u8> {
    error(&icmp::Repr::PacketTooBig { mtu, quote: icmp::Quote::new(packet).unwrap() })
}

fn error(message: &icmp::Repr<'_>) -> Vec<u8> {
    build::packet(ROUTER, address(A), message)
}

fn protocol_unreachable(packet: &[u8]) -> Vec<u8> {
    let quote = icmp::Quote::new(packet).unwrap();
    let mut bytes = error(&icmp::Repr::Unreachable { why: icmp::Unreachable::Port, quote });
    bytes[20 + 1] = 2;
    icmp::Packet::new_unchecked(ip::Version::V4, &mut bytes[20..]).fill_checksum(ROUTER, address(A));
    bytes
}

#[test]
fn protocol_unreachable_makes_a_legacy_host_only_if_it_quotes_our_request() {
    let now = Instant::from_secs(5);
    let mut host = Host::new(Config { peers_max: 8, remotes_max: 8, ..Config::default() }, [1; 32]);
    let mut policy = client(7);
    let mut frame = FrameBuf::from_bytes(&datagram(A, 100));
    frame.with(|frame| host.outbound(now, &mut *policy, frame)).unwrap();
    let request = frame.bytes().to_vec();
    let mut forged = request.clone();
    forged[20 + 15] ^= 1; // a bit of the entry that only who saw the request knows
    for (packet, knowledge) in [(&forged, None), (&request, Some(Knowledge::Legacy))] {
        let mut frame = FrameBuf::from_bytes(&protocol_unreachable(packet));
        frame.with(|frame| host.inbound(now, &mut *policy, frame)).unwrap();
        assert_eq!(host.knowledge(now, address(B)), knowledge);
    }
    let mut frame = FrameBuf::from_bytes(&datagram(A, 100));
    frame.with(|frame| host.outbound(now, &mut *policy, frame)).unwrap();
    assert_eq!(frame.bytes(), datagram(A, 100), "and then packets stay plain");
}

#[test]
fn encapsulated_hosts_talk_through_udp_and_follow_a_nat_only_when_it_is_proved() {
    let mut world = World::with_config(encapsulated(), client(7), server(ServerConfig::default()), 2);
    world.send(A, &datagram(A, 300)).unwrap();
    world.run(25);
    world.send(B, &datagram(B, 300)).unwrap();
    world.run(25);
    world.send(A, &datagram(A, 300)).unwrap();
    world.run(25);
    let port = |world: &World| world.hosts[B].peers(world.now).next().unwrap().carriage;
    assert_eq!(port(&world), Carriage::Answer { dst_port: PORT });
    assert_eq!(world.got(A)[0].bytes, datagram(B, 300));

    // A stranger elsewhere sends a request in the client's name: answers go there, the client's data does not.
    let mut frame = FrameBuf::from_bytes(&datagram(A, 10));
    let algorithm = Config::default().algorithm;
    let mut request = Repr::request(algorithm, sluicegate_wire::capability::ClientId(7), 8, IpProtocol::UDP);
    if let Repr::Request { entries, .. } = &mut request {
        let _ = entries.push(Default::default());
    }
    frame.with(|frame| shim::insert(frame, &request, Carriage::Encapsulated { src_port: 6_666 })).unwrap();
    world.inject(A, frame.bytes());
    world.run(1);
    assert_eq!(port(&world), Carriage::Answer { dst_port: PORT });

    // The NAT has moved the client: its next packet carries the nonce that only it knows.
    let mut frame = FrameBuf::from_bytes(&datagram(A, 10));
    let now = world.now;
    let (host, policy) = (&mut world.hosts[A], &mut world.policies[A]);
    frame.with(|frame| host.outbound(now, &mut **policy, frame)).unwrap();
    let mut moved = frame.bytes().to_vec();
    let mut datagram = udp::Packet::new_unchecked(&mut moved[20..]);
    assert_eq!((datagram.src_port(), datagram.dst_port()), (PORT, UDP_PORT));
    datagram.set_src_port(60_001);
    datagram.fill_checksum(address(A), address(B));
    world.inject(A, &moved);
    world.run(1);
    assert_eq!(port(&world), Carriage::Answer { dst_port: 60_001 });
}

#[test]
fn an_answer_that_waits_refuses_no_packet_in_udp_that_fits_without_it() {
    let outcomes = |peer_asked: bool| -> Vec<_> {
        let outcome = |len| {
            let everyone = || server(ServerConfig::default());
            let mut world = World::with_config(encapsulated(), everyone(), everyone(), 2);
            // So many that the next one may not ask.
            (0..=REQUEST_BURST).for_each(|_| world.send(A, &datagram(A, 30)).unwrap());
            if peer_asked {
                world.send(B, &datagram(B, 30)).unwrap();
            }
            world.run(30);
            world.send(A, &datagram(A, len))
        };
        (1_380..1_480).map(outcome).collect()
    };
    let without = outcomes(false);
    assert!(without.contains(&Ok(())) && without.contains(&Err(Reason::PacketTooBig)));
    assert_eq!(outcomes(true), without);
}

proptest! {
    #[test]
    fn what_goes_out_and_comes_in_is_the_same_packet(
        payload in prop::collection::vec(any::<u8>(), 0..1_380),
        protocol in prop_oneof![Just(17u8), Just(6), Just(1), Just(132), Just(47), Just(58)],
        v6 in any::<bool>(),
        udp in any::<bool>(),
    ) {
        let (src, dst) = if v6 { ("2001:db8::1", "2001:db8:1::2") } else { ("192.0.2.1", "198.51.100.2") };
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        let packet = packet_between(src, dst, IpProtocol(protocol), &payload);
        let config = if udp { encapsulated() } else { Config { peers_max: 8, remotes_max: 8, ..Config::default() } };
        let (mut here, mut there) = (Host::new(config, [1; 32]), Host::new(config, [2; 32]));
        let (mut policy, mut other) = (client(7), server(ServerConfig::default()));
        let mut frame = FrameBuf::from_bytes(&packet);
        let sent = frame.with(|frame| here.outbound(Instant::ZERO, &mut *policy, frame));
        prop_assert_eq!(sent, Ok(()));
        let limit = usize::from(config.mtu);
        prop_assert!(frame.bytes().len() <= limit);
        let got = frame.with(|frame| there.inbound(Instant::ZERO, &mut *other, frame));
        prop_assert!(got.is_ok());
        // A SYN that happens to announce a segment is the one thing that changes.
        let least = if v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
        if protocol != 6 {
            prop_assert_eq!(frame.bytes(), &packet[..]);
        } else {
            prop_assert_eq!(&frame.bytes()[..least], &packet[..least]);
        }
    }

    #[test]
    fn no_bytes_from_the_network_make_a_host_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), native in any::<bool>()) {
        let mut host = Host::new(Config { peers_max: 4, remotes_max: 4, ..Config::default() }, [1; 32]);
        let mut policy = server(ServerConfig::default());
        let protocol = if native { IpProtocol::CAPABILITY } else { IpProtocol::UDP };
        let packet = packet_between(address(A), address(B), protocol, &bytes);
        let mut frame = FrameBuf::from_bytes(&packet);
        let _ = frame.with(|frame| host.inbound(Instant::ZERO, &mut *policy, frame));
        let mut out = FrameBuf::from_bytes(&[0; 40]);
        while out.with(|frame| host.poll_output(Instant::from_secs(1), frame)) {}
    }
}
