//! TUN devices, the raw sockets that bypass them, and a namespace that lives on its host's address.

mod support;

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use sluicegate_datapath::{
    OpenError,
    outer::{Claim, Receiver, Sender},
    tun::{BUFFER_MARGIN, Tun, wait_readable},
};
use sluicegate_netlink::{NextHop, Route, Rtnetlink, nft};
use sluicegate_wire::{HEADROOM, IpProtocol, build, ip::Summary};
use support::{End, Host, connect, is_root, site::ip};

const TABLE: u32 = 7253;
const UDP_PORT: u16 = 7253;
/// How long something that should happen may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Two hosts on one cable.
fn pair() -> (Host, Host) {
    let (left, right) = (Host::new(), Host::new());
    connect(
        (&left, End::new("e0", 1, &[("192.0.2.1", 24), ("2001:db8::1", 64)])),
        (&right, End::new("e0", 2, &[("192.0.2.2", 24), ("2001:db8::2", 64)])),
    );
    (left, right)
}

/// A route of the table that captures, into the device.
fn into(tun: &Tun, to: (IpAddr, u8)) -> Route<'_> {
    Route { table: TABLE, ..Route::new(to, NextHop::Interface(tun.name())) }
}

/// A TUN device that is up and captures `198.51.100.0/24` and `2001:db8:5::/64`.
fn capturing_tun() -> Tun {
    let tun = Tun::open("sg%d").expect("a TUN device");
    let mut netlink = Rtnetlink::open().expect("netlink");
    netlink.set_mtu(tun.name(), 1_400).expect("MTU");
    netlink.set_up(tun.name()).expect("up");
    for (destination, len, source) in [("198.51.100.0", 24, "192.0.2.1"), ("2001:db8:5::", 64, "2001:db8::1")] {
        let destination = ip(destination);
        netlink.add_route(&Route { source: Some(ip(source)), ..into(&tun, (destination, len)) }).expect("a route");
        netlink.add_rule(TABLE, TABLE, destination.is_ipv6()).expect("a rule");
    }
    tun
}

/// The first packet that `read` gives and `wanted` accepts.
fn first<R>(fd: &impl AsFd, mut read: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(found) = read() {
            return found;
        }
        wait_readable(&[fd.as_fd()], Duration::from_millis(50)).expect("ppoll");
    }
    panic!("nothing came within {PATIENCE:?}");
}

fn packet(protocol: u8, src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
    build::packet(ip(src), ip(dst), &(IpProtocol(protocol), payload))
}

#[test]
fn captured_packets_come_out_of_the_device_with_the_hosts_own_source_address() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    left.enter();
    let tun = capturing_tun();
    let mut buffer = vec![0; 1_400 + BUFFER_MARGIN];
    for (to, source) in [("198.51.100.9", "192.0.2.1"), ("2001:db8:5::9", "2001:db8::1")] {
        let any: IpAddr = if to.contains(':') { ip("::") } else { ip("0.0.0.0") };
        let socket = UdpSocket::bind((any, 0)).expect("a UDP socket");
        socket.send_to(b"captured", SocketAddr::new(ip(to), 9)).expect("routed into the device");
        let summary = first(&tun, || {
            let frame = tun.read(&mut buffer).expect("a read")?;
            assert!(frame.start() >= HEADROOM);
            let summary = Summary::parse(frame.bytes()).expect("an IP packet");
            (summary.protocol == IpProtocol::UDP).then_some(summary)
        });
        assert_eq!((summary.src, summary.dst), (ip(source), ip(to)));

        // And an answer, as if it had come from there.
        let port = socket.local_addr().expect("an address").port();
        tun.write(&build::datagram((ip(to), 9), (ip(source), port), b"answer")).expect("a write");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut answer = [0; 64];
        let (len, from) = socket.recv_from(&mut answer).expect("the answer arrives");
        assert_eq!((&answer[..len], from), (&b"answer"[..], SocketAddr::new(ip(to), 9)));
    }
}

#[test]
fn a_bound_sender_bypasses_the_device_and_the_receivers_see_whole_packets() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    let receivers = right.run(|| Receiver::open_all("e0", UDP_PORT).expect("receivers"));
    left.enter();
    let tun = Tun::open("sg%d").expect("a TUN device");
    let mut netlink = Rtnetlink::open().expect("netlink");
    netlink.set_up(tun.name()).expect("up");
    // The neighbour itself is captured.
    for to in ["192.0.2.2", "2001:db8::2"] {
        let destination = ip(to);
        let len = if destination.is_ipv4() { 32 } else { 128 };
        netlink.add_route(&into(&tun, (destination, len))).expect("a route");
        netlink.add_rule(TABLE, TABLE, destination.is_ipv6()).expect("a rule");
        assert_eq!(netlink.way_to(destination).expect("a route").interface, tun.name());
    }
    let sender = Sender::open(Some("e0")).expect("a sender");
    let mut buffer = vec![0; 2_048];
    let udp = [0x1c, 0x55, 0x1c, 0x55, 0, 12, 0, 0, 1, 2, 3, 4];
    let sent = [
        packet(253, "192.0.2.1", "192.0.2.2", b"native header and payload"),
        packet(253, "2001:db8::1", "2001:db8::2", b"native header and payload"),
        packet(17, "192.0.2.1", "192.0.2.2", &udp),
    ];
    for packet in &sent {
        sender.send(packet).expect("sent");
        let received = {
            let end = Instant::now() + PATIENCE;
            loop {
                let found = receivers.iter().find_map(|receiver| {
                    let frame = receiver.receive(&mut buffer).expect("a receive")?;
                    assert!(frame.start() >= HEADROOM);
                    Some(frame.bytes().to_vec())
                });
                if let Some(found) = found {
                    break found;
                }
                assert!(Instant::now() < end, "nothing came");
                let fds: Vec<_> = receivers.iter().map(AsFd::as_fd).collect();
                wait_readable(&fds, Duration::from_millis(50)).expect("ppoll");
            }
        };
        let (ours, theirs) = (Summary::parse(packet).expect("IP"), Summary::parse(&received).expect("IP"));
        assert_eq!((ours.src, ours.dst, ours.protocol), (theirs.src, theirs.dst, theirs.protocol));
        assert_eq!(ours.transport(packet), theirs.transport(&received));
    }
}

#[test]
fn a_second_agent_is_told_that_the_port_is_taken() {
    if !is_root() {
        return;
    }
    Host::new().enter();
    let claim = Claim::new(UDP_PORT).expect("the first");
    let error = Claim::new(UDP_PORT).expect_err("taken");
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    drop(claim);
    Claim::new(UDP_PORT).expect("free again");
}

#[test]
fn rules_and_routes_can_be_taken_away_again() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    left.enter();
    let tun = capturing_tun();
    let mut netlink = Rtnetlink::open().expect("netlink");
    let captured = ip("198.51.100.9");
    assert_eq!(netlink.way_to(captured).expect("a route").interface, tun.name());
    assert_eq!(netlink.way_to(captured).expect("a route").source, Some(ip("192.0.2.1")));
    assert!(netlink.add_rule(TABLE, TABLE, false).expect_err("twice").is_exists());
    netlink.delete_route(&into(&tun, (ip("198.51.100.0"), 24))).expect("removed");
    assert!(netlink.way_to(captured).is_err(), "nothing else leads there");
    netlink.delete_rule(TABLE, TABLE, false).expect("removed");
    assert!(netlink.delete_rule(TABLE, TABLE, false).expect_err("gone").is_missing());
}

#[test]
fn a_namespace_reaches_the_world_by_its_hosts_address_even_in_mid_connection() {
    if !is_root() {
        return;
    }
    let (host, world) = pair();
    let inner = Host::new();
    connect(
        (&host, End::new("down", 3, &[("169.254.72.53", 30)])),
        (&inner, End::new("uplink", 4, &[("169.254.72.54", 30)])),
    );
    let _lent = host.run(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding");
        nft::masquerade("sluicegate_run", "down", "169.254.72.54".parse().expect("an address"), true)
            .expect("masquerading")
    });
    let listener = world.run(|| UdpSocket::bind("192.0.2.2:9000").expect("a UDP socket"));
    listener.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    inner.enter();
    std::fs::write("/proc/sys/net/ipv4/conf/uplink/rp_filter", "0").expect("a setting");
    let tun = Tun::open("sg%d").expect("a TUN device");
    let mut netlink = Rtnetlink::open().expect("netlink");
    netlink.add_address(tun.name(), ip("192.0.2.1"), 32).expect("the host's address");
    netlink.set_up(tun.name()).expect("up");
    netlink.add_route(&Route::default_by(ip("169.254.72.53"), "uplink")).expect("a default route");
    let captured = Route::new((ip("192.0.2.2"), 32), NextHop::Interface(tun.name()));
    netlink.add_route(&Route { source: Some(ip("192.0.2.1")), ..captured }).expect("a route");
    let _untracked = nft::untrack("sluicegate", tun.name(), "uplink").expect("nf_tables");

    let socket = UdpSocket::bind("0.0.0.0:0").expect("a UDP socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.send_to(b"first", "192.0.2.2:9000").expect("captured");
    let mut buffer = vec![0; 1_500 + BUFFER_MARGIN];
    let captured = first(&tun, || {
        let frame = tun.read(&mut buffer).expect("a read")?;
        let summary = Summary::parse(frame.bytes()).ok()?;
        (summary.protocol == IpProtocol::UDP).then(|| frame.bytes().to_vec())
    });
    // The same packet by the uplink: the far end sees the host's address, and its answer finds the socket.
    Sender::open(Some("uplink")).expect("a sender").send(&captured).expect("sent");
    let mut text = [0; 16];
    let (len, from) = listener.recv_from(&mut text).expect("it arrives");
    assert_eq!((&text[..len], from.ip()), (&b"first"[..], ip("192.0.2.1")));
    listener.send_to(b"answer", from).expect("sent");
    let (len, from) = socket.recv_from(&mut text).expect("the answer arrives");
    assert_eq!((&text[..len], from), (&b"answer"[..], "192.0.2.2:9000".parse().expect("an address")));
}
