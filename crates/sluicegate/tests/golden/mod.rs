//! The packets of the golden captures, made by the product's own code.

use std::net::IpAddr;

use sluicegate_wire::{
    FrameBuf, IpProtocol, build,
    capability::{
        Algorithm, CAPABILITY_ONLY, Capability, CapabilityList, ClientId, FlowNonce, Kind, Limits, PathId, Repr,
        Return, Slot, shim,
    },
    icmp, ip, ipv4, tcp,
};

const CLIENT: ClientId = ClientId(0x0000_2a17);
const NONCE: FlowNonce = FlowNonce(0x0102_0304_0506);
const ENCAPSULATED: shim::Carriage = shim::Carriage::Encapsulated { src_port: 40_000 };

/// A header of the captures.
pub(crate) struct Header {
    repr: Repr,
    /// Whether a TCP segment follows.
    pub(crate) inner: bool,
}

fn capability(number: u64) -> Capability {
    Capability::new(0xe0 + number as u8, 0x00a1_a2a3_a4a5_a6a7 + number)
}

fn capabilities(count: u64) -> CapabilityList {
    (0..count).map(capability).collect()
}

fn limits() -> Limits {
    Limits::new(100, 10).unwrap()
}

fn request(filled: u64, ret: Option<Return>) -> Repr {
    let slot = |number| Slot {
        path_id: if number == 0 { PathId(0x81b0) } else { PathId::NONE },
        capability: capability(number),
    };
    Repr::Request {
        algorithm: Algorithm::SipHash,
        client_id: CLIENT,
        slots: 3,
        entries: (0..filled).map(slot).collect(),
        demoted: false,
        upper: IpProtocol::TCP,
        ret,
    }
}

fn regular(kind: Kind, pointer: u8, demoted: bool, ret: Option<Return>) -> Repr {
    let has_list = kind.has_list();
    Repr::Regular {
        algorithm: Algorithm::Aes,
        kind,
        nonce: NONCE,
        client_id: CLIENT,
        limits: has_list.then(limits),
        list: capabilities(if has_list { 2 } else { 0 }),
        pointer,
        demoted,
        upper: IpProtocol::TCP,
        ret,
    }
}

/// Every kind of header, and every kind of return information.
pub(crate) fn headers() -> Vec<Header> {
    let granted = Return::granted(limits(), capabilities(2));
    let both = Return { demoted: true, ..granted };
    let inner = |repr| Header { repr, inner: true };
    vec![
        inner(request(0, None)),
        inner(request(2, None)),
        inner(request(3, Some(granted))),
        inner(regular(Kind::Capabilities, 0, false, None)),
        inner(regular(Kind::Nonce, 0, false, None)),
        inner(regular(Kind::Renewal, 1, false, None)),
        inner(regular(Kind::Nonce, 0, true, Some(Return::demotion()))),
        inner(regular(Kind::Capabilities, 2, true, Some(both))),
        Header { repr: regular(Kind::Nonce, 0, false, Some(Return::refused())), inner: false },
    ]
}

/// The source and destination of a capture.
fn addresses(v6: bool) -> (IpAddr, IpAddr) {
    let parse = |text: &str| text.parse().unwrap();
    if v6 { (parse("2001:db8::1"), parse("2001:db8:1::2")) } else { (parse("192.0.2.1"), parse("198.51.100.1")) }
}

fn ip_packet((src, dst): (IpAddr, IpAddr), protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &(protocol, payload))
}

fn tcp_packet(path: (IpAddr, IpAddr), number: u32) -> Vec<u8> {
    let repr = tcp::Repr {
        payload: b"sluice",
        ack: Some(1),
        ..tcp::Repr::new(50_000, 443, tcp::Control::None, 7 + 6 * number)
    };
    let mut segment = vec![0; repr.buffer_len()];
    repr.emit(&mut tcp::Packet::new_unchecked(&mut segment[..]), path.0, path.1);
    ip_packet(path, IpProtocol::TCP, &segment)
}

fn with_header(plain: &[u8], repr: &Repr, carriage: shim::Carriage) -> Vec<u8> {
    let mut frame = FrameBuf::from_bytes(plain);
    frame.with(|frame| shim::insert(frame, repr, carriage)).unwrap();
    frame.bytes().to_vec()
}

/// Each header in a packet of this family and carriage.
fn packets(v6: bool, carriage: shim::Carriage) -> Vec<Vec<u8>> {
    let path = addresses(v6);
    let plain = |(number, header): (usize, &Header)| {
        if header.inner { tcp_packet(path, number as u32) } else { ip_packet(path, CAPABILITY_ONLY, &[]) }
    };
    let headers = headers();
    let plain: Vec<_> = headers.iter().enumerate().map(plain).collect();
    plain.iter().zip(&headers).map(|(plain, header)| with_header(plain, &header.repr, carriage)).collect()
}

/// Native packets whose header a router refuses, each for another reason.
fn malformed() -> Vec<Vec<u8>> {
    let header_of = |repr: &Repr| {
        let packet = with_header(&ip_packet(addresses(false), CAPABILITY_ONLY, &[]), repr, shim::Carriage::Native);
        packet[ipv4::HEADER_LEN..].to_vec()
    };
    let request = header_of(&request(1, None));
    let listed = header_of(&regular(Kind::Capabilities, 0, false, None));
    let returning = header_of(&regular(Kind::Nonce, 0, false, Some(Return::granted(limits(), capabilities(1)))));
    let changed = |header: &[u8], at: usize, value: u8| {
        let mut header = header.to_vec();
        header[at] = value;
        header
    };
    let headers = [
        changed(&request, 0, 0x90),
        changed(&request, 1, 253),
        changed(&request, 2, 9),
        changed(&request, 3, 4),
        changed(&listed, 12, 0),
        changed(&listed, 14, 0),
        changed(&returning, 12, 4),
        request[..11].to_vec(),
        request[..30].to_vec(),
        listed[..14].to_vec(),
        listed[..31].to_vec(),
        returning[..12].to_vec(),
        returning[..15].to_vec(),
        returning[..20].to_vec(),
    ];
    headers.iter().map(|header| ip_packet(addresses(false), IpProtocol::CAPABILITY, header)).collect()
}

/// Errors that quote capability packets, and answers of a gate.
fn errors_and_answers() -> Vec<Vec<u8>> {
    let router4 = ("203.0.113.1".parse().unwrap(), addresses(false).0);
    let router6 = ("2001:db8:2::1".parse().unwrap(), addresses(true).0);
    let header = regular(Kind::Capabilities, 1, false, None);
    let quoted4 = with_header(&tcp_packet(addresses(false), 0), &header, shim::Carriage::Native);
    let quoted6 = with_header(&tcp_packet(addresses(true), 0), &header, ENCAPSULATED);
    let mut error4 = [&[3, 1, 0, 0, 0, 0, 0, 0], &quoted4[..]].concat();
    icmp::Packet::new_unchecked(ip::Version::V4, &mut error4[..]).fill_checksum(router4.0, router4.1);
    let mut error6 = [&[2, 0, 0, 0, 0, 0, 5, 0], &quoted6[..]].concat();
    icmp::Packet::new_unchecked(ip::Version::V6, &mut error6[..]).fill_checksum(router6.0, router6.1);
    let answer = shim::Carriage::Answer { dst_port: 61_234 };
    let packets = vec![
        ip_packet(router4, IpProtocol::ICMP, &error4),
        ip_packet(router6, IpProtocol::ICMPV6, &error6),
        with_header(&tcp_packet(addresses(false), 1), &request(1, Some(Return::refused())), answer),
    ];
    assert!(packets.iter().all(|packet| ip::Summary::parse(packet).is_ok()));
    packets
}

/// All captures by name.
pub(crate) fn captures() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![
        ("ipv4-native", packets(false, shim::Carriage::Native)),
        ("ipv4-encapsulated", packets(false, ENCAPSULATED)),
        ("ipv6-native", packets(true, shim::Carriage::Native)),
        ("ipv6-encapsulated", packets(true, ENCAPSULATED)),
        ("errors-and-answers", errors_and_answers()),
        ("malformed", malformed()),
    ]
}

/// The packets as a capture file: no link layer, one packet a millisecond from the start of 2026.
pub(crate) fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    const MAGIC: u32 = 0xa1b2_c3d4;
    const VERSION: [u16; 2] = [2, 4];
    const SNAPSHOT_LEN: u32 = 65_535;
    const LINKTYPE_RAW: u32 = 101;
    const START_S: u32 = 1_767_225_600;
    let mut file = MAGIC.to_le_bytes().to_vec();
    VERSION.iter().for_each(|part| file.extend(part.to_le_bytes()));
    [0, 0, SNAPSHOT_LEN, LINKTYPE_RAW].iter().for_each(|part: &u32| file.extend(part.to_le_bytes()));
    for (number, packet) in packets.iter().enumerate() {
        let len = packet.len() as u32;
        [START_S, number as u32 * 1_000, len, len].iter().for_each(|part| file.extend(part.to_le_bytes()));
        file.extend(packet);
    }
    file
}
