//! Readers of what the kernel says, against messages as it writes them and against any bytes at all.

use netlink_packet_core::{DefaultNla, Emitable};
use netlink_packet_route::{
    AddressFamily,
    link::{InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAttribute, RouteMessage, RouteNextHop, RouteType, RouteVia},
};
use proptest::prelude::*;

use super::*;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

fn bytes(message: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}

fn route(attributes: Vec<RouteAttribute>) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.kind = RouteType::Unicast;
    message.header.table = libc::RT_TABLE_MAIN;
    message.header.destination_prefix_length = 24;
    message.attributes = attributes;
    message
}

fn neighbour(state: NeighbourState) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    (message.header.ifindex, message.header.state) = (7, state);
    let mac = NeighbourAttribute::LinkLayerAddress(vec![2; 6]);
    message.attributes = vec![NeighbourAttribute::Destination(V6.into()), mac];
    message
}

fn link() -> LinkMessage {
    let mut message = LinkMessage::default();
    (message.header.index, message.header.flags) = (7, LinkFlags::Up);
    message.attributes = vec![
        LinkAttribute::IfName("uplink".into()),
        LinkAttribute::Address(vec![2; 6]),
        LinkAttribute::Mtu(1400),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)]),
    ];
    message
}

#[test]
fn a_route_is_read_whatever_way_its_next_hop_is_written() {
    let by = |attributes| route::parse_route(&bytes(&route(attributes)));
    let oif = RouteAttribute::Oif(7);
    let entry = |gateway| Some(RouteEntry { index: 7, destination: V4, prefix_len: 24, gateway, metric: 0 });
    let to = RouteAttribute::Destination(V4.into());
    assert_eq!(by(vec![to.clone(), oif.clone()]), entry(None));
    assert_eq!(by(vec![to.clone(), RouteAttribute::Gateway(V4.into()), oif.clone()]), entry(Some(V4)));
    assert_eq!(by(vec![to.clone(), oif.clone(), RouteAttribute::Via(RouteVia::from(V6))]), entry(Some(V6)));
    let hop = |index| {
        let mut hop = RouteNextHop::default();
        (hop.interface_index, hop.attributes) = (index, vec![RouteAttribute::Gateway(V4.into())]);
        hop
    };
    assert_eq!(by(vec![to.clone(), RouteAttribute::MultiPath(vec![hop(7), hop(8)])]), entry(Some(V4)));
    assert_eq!(by(vec![to.clone(), oif, RouteAttribute::Table(7253)]), None, "another table");
    assert_eq!(by(vec![to]), None, "leads nowhere");
}

#[test]
fn a_neighbour_has_an_address_as_long_as_its_state_allows_to_use_it() {
    let of = |state, removed| route::parse_neighbour(&bytes(&neighbour(state)), removed).expect("a neighbour");
    let reachable = of(NeighbourState::Reachable, false);
    assert_eq!(reachable, Neighbour { index: 7, address: V6, mac: Some([2; 6]), stale: false });
    assert_eq!(of(NeighbourState::Stale, false), Neighbour { stale: true, ..reachable });
    for (state, removed) in
        [(NeighbourState::Failed, false), (NeighbourState::Incomplete, false), (NeighbourState::Reachable, true)]
    {
        assert_eq!(of(state, removed), Neighbour { mac: None, ..reachable });
    }
}

#[test]
fn an_attribute_of_an_unknown_form_hides_nothing_else_of_a_link() {
    let mut message = link();
    let garbage = [libc::IFLA_STATS64, libc::IFLA_AF_SPEC, libc::IFLA_MAP, 4_000];
    message.attributes.extend(garbage.map(|kind| LinkAttribute::Other(DefaultNla::new(kind, vec![9; 5]))));
    let read = link::parse_link(&bytes(&message)).expect("a link");
    assert_eq!((read.index, read.name.as_str(), read.kind.as_str()), (7, "uplink", "veth"));
    assert_eq!((read.up, read.mac, read.mtu, read.tunnel), (true, Some([2; 6]), 1400, None));
    let port = 4789u16.to_be_bytes();
    let vxlan = vec![InfoVxlan::Group(Ipv4Addr::new(192, 0, 2, 1)), InfoVxlan::Port(u16::from_be_bytes(port))];
    message
        .attributes
        .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vxlan), LinkInfo::Data(InfoData::Vxlan(vxlan))]));
    let read = link::parse_link(&bytes(&message)).expect("a link");
    assert_eq!(read.tunnel, Some(Tunnel { remote: V4, protocol: 17, port: 4789 }));
}

/// Every reader of this crate.
fn read_all(bytes: &[u8]) {
    let _ = link::parse_link(bytes);
    let _ = route::parse_route(bytes);
    let _ = route::parse_neighbour(bytes, false);
    let _ = route::parse_address(bytes, 7);
    let _ = link::parse_queue(bytes, 7);
    let _ = tunnel::parse(bytes);
    let _ = crate::nft::counted(Some(bytes));
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(random in proptest::collection::vec(any::<u8>(), 0..300)) {
        read_all(&random);
    }

    #[test]
    fn no_damaged_message_makes_a_reader_panic(which in 0..3usize, at in any::<prop::sample::Index>(), to: u8, cut in any::<prop::sample::Index>()) {
        let hops = RouteAttribute::MultiPath(vec![RouteNextHop::default()]);
        let mut message = [bytes(&link()), bytes(&neighbour(NeighbourState::Stale)), bytes(&route(vec![hops]))][which].clone();
        let at = at.index(message.len());
        message[at] = to;
        read_all(&message[..cut.index(message.len() + 1)]);
    }
}
