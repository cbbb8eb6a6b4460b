//! Frames of another VLAN, as they come by the gate's untagged interface.

use std::{fs::File, os::fd::AsFd, time::Duration};

use sluicegate_datapath::{
    offload,
    raw::{Options, Socket},
};
use sluicegate_netlink::Rtnetlink;

use crate::support::{
    agent::{UdpEcho, talk},
    capture::{Capture, Seen},
    lab::{CLIENT, GATE, Lab},
    node::{Config, Node, service},
    phone::{AUDIO_PORT, Phone, Wish},
    program::run_on,
    until,
};

on_each_datapath!(security_26_a_tagged_frame_passes_no_gate, &[], super::tagged);
on_packet!(security_26_where_tags_are_beside_the_frames_auto_takes_what_sees_them, &["ip"], beside);

/// A telephone's call to the echo service, and its packet as the router in front of the gate sees it.
fn called(lab: &Lab, node: &Node) -> Seen {
    let seen = Capture::start(lab, ("core", "to_client"), |seen| seen.from == CLIENT && seen.ports.0 == AUDIO_PORT);
    let call = Phone::new(lab, "client", CLIENT, (GATE, 5060).into(), "alice").call("echo", Wish::Audio);
    let socket = lab.udp("client", CLIENT, AUDIO_PORT);
    socket.connect(call.gate).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    talk(&socket, "untagged");
    assert_eq!(node.dropped("ethertype_unsupported"), 0);
    seen.seen().last().expect("a packet of the call").clone()
}

/// Sends copies of `packet` by `interface` of the router, each with what stands between the addresses and the packet.
fn send(lab: &Lab, interface: &'static str, ethertype: &[u8], packet: &[u8]) {
    let link = [&lab.mac("gate", "outside")[..], &lab.mac("core", "to_gate"), ethertype].concat();
    let socket =
        lab.host("core").run_in(|| Socket::open(interface, &Options { bypass_qdisc: false, ..Options::send_only() }));
    let mut socket = socket.expect("a namespace").expect("a raw socket");
    let frames = vec![[&link[..], packet].concat(); COPIES as usize];
    assert_eq!(socket.send(&frames).expect("the link is up").sent, frames.len());
}

const COPIES: u64 = 20;

fn tagged(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")));
    let packet = called(&lab, &node);
    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT);
    send(&lab, "to_gate", &[0x81, 0x00, 0x00, 0x05, 0x08, 0x00], &packet.bytes);
    send(&lab, "to_gate", &[0x88, 0xa8, 0x00, 0x05, 0x81, 0x00, 0x00, 0x06, 0x08, 0x00], &packet.bytes);
    until("all are dropped", || (node.dropped("ethertype_unsupported") >= 2 * COPIES).then_some(()));
    assert_eq!(reached.count(), 0, "{:?}", reached.seen().first());
}

/// Makes the gate's outside anew, with a bridge at the other end, to which `far` leads: a bridge takes tags off the frames and
/// carries them beside those, and so does a veth unless that is switched off.
fn behind_a_bridge(lab: &Lab) {
    let core =
        lab.host("core").run_in(|| File::open("/proc/thread-self/ns/net")).and_then(|file| file).expect("a file");
    let ip = |host: &str, arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        run_on(lab, host, "ip", &arguments, Duration::from_secs(5)).expect("ip")
    };
    ip("core", "link del to_gate");
    let made = lab.host("gate").run_in(|| {
        let peer = Some(core.as_fd());
        Rtnetlink::open().expect("netlink").create_veth("outside", "near", peer).expect("a pair");
        offload::disable("outside").expect("offloads");
    });
    made.expect("a namespace");
    ip("gate", "addr add 203.0.113.1/24 dev outside");
    ip("gate", "link set outside up");
    ip("gate", "route replace default via 203.0.113.254");
    ip("core", "link add to_gate type bridge");
    ip("core", "link add far type veth peer name hub");
    for port in ["near", "hub"] {
        ip("core", &format!("link set {port} master to_gate"));
    }
    for link in ["near", "hub", "far", "to_gate"] {
        ip("core", &format!("link set {link} up"));
    }
    ip("core", "addr add 203.0.113.254/24 dev to_gate");
}

fn beside(_: &'static str) {
    let lab = Lab::new();
    behind_a_bridge(&lab);
    let _echo = UdpEcho::start(&lab);
    let node = Node::up(&lab, &Config::new("auto", &service("echo", "\"udp/5004\"", "")));
    let packet = called(&lab, &node);
    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT);
    send(&lab, "far", &[0x81, 0x00, 0x00, 0x05, 0x08, 0x00], &packet.bytes);
    until("all are dropped", || (node.dropped("ethertype_unsupported") >= COPIES).then_some(()));
    assert_eq!(reached.count(), 0, "{:?}", reached.seen().first());
}
