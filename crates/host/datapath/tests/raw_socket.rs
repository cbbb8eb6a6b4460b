//! Raw sockets and the messages that build a laboratory, on a real veth pair.

mod support;

use std::time::Duration;

use sluicegate_datapath::{Interface, raw};
use sluicegate_netlink::Rtnetlink;
use socket2::{SockFilter, SockRef};
use support::{End, Host, connect, is_root};

fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend([number; 46]);
    frame
}

/// A socket that receives frames of the experimental EtherType only, and has counted nothing yet.
fn experimental(interface: &str, options: &raw::Options) -> raw::Socket {
    let mut socket = raw::Socket::open(interface, options).unwrap();
    let program = [(0x28, 0, 12), (0x15, 1, 0x88b5), (0x06, 0, u32::MAX), (0x06, 0, 0)];
    let filter = program.map(|(code, jump_false, operand)| SockFilter::new(code, 0, jump_false, operand));
    SockRef::from(&socket).attach_filter(&filter).unwrap();
    socket.receive(usize::MAX, &mut |_| {});
    socket.statistics().unwrap();
    socket
}

fn collect(socket: &mut raw::Socket, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while frames.len() < count && socket.wait(Duration::from_secs(2)).unwrap() {
        socket.receive(usize::MAX, &mut |received| {
            assert!(received.timestamp_ns > 1_600_000_000_000_000_000, "kernel time");
            assert_eq!(received.wire_len, received.bytes.len());
            frames.push(received.bytes.to_vec());
        });
    }
    frames
}

#[test]
fn a_batch_arrives_whole_in_order_and_with_kernel_timestamps() {
    if !is_root() {
        return;
    }
    let (left, right) = (Host::new(), Host::new());
    connect((&left, End::new("l0", 1, &[])), (&right, End::new("r0", 2, &[])));
    let mut receiver = right.run(|| experimental("r0", &raw::Options::default()));
    let mut sender = left.run(|| raw::Socket::open("l0", &raw::Options::send_only()).unwrap());
    let frames: Vec<_> = (0..200).map(frame).collect();
    let sent = sender.send(&frames).unwrap();
    assert_eq!(sent, raw::Transmitted { sent: 200, full: 0, refused: 0 });
    assert_eq!(collect(&mut receiver, 200), frames);
    assert_eq!(receiver.statistics().unwrap(), raw::Statistics { received: 200, dropped: 0 });
}

#[test]
fn a_full_ring_drops_and_counts() {
    if !is_root() {
        return;
    }
    let (left, right) = (Host::new(), Host::new());
    connect((&left, End::new("l0", 1, &[])), (&right, End::new("r0", 2, &[])));
    let options = raw::Options { receive_slots: 64, ..raw::Options::default() };
    let mut receiver = right.run(move || experimental("r0", &options));
    let mut sender = left.run(|| raw::Socket::open("l0", &raw::Options::send_only()).unwrap());
    let frames: Vec<_> = (0..100).map(frame).collect();
    sender.send(&frames).unwrap();
    let arrived = collect(&mut receiver, 64);
    let statistics = receiver.statistics().unwrap();
    assert_eq!(arrived, frames[..arrived.len()]);
    assert_eq!(statistics.received, 100);
    assert_eq!(statistics.dropped + arrived.len() as u64, 100);
    assert!(statistics.dropped > 0);
}

#[test]
fn own_frames_are_not_seen() {
    if !is_root() {
        return;
    }
    let (left, right) = (Host::new(), Host::new());
    connect((&left, End::new("l0", 1, &[])), (&right, End::new("r0", 2, &[])));
    let (mut deaf, mut sender) = left.run(|| {
        let quiet = raw::Options { receive_slots: 0, ..raw::Options::default() };
        (experimental("l0", &raw::Options::default()), raw::Socket::open("l0", &quiet).unwrap())
    });
    let mut far = right.run(|| experimental("r0", &raw::Options::default()));
    sender.send(&[frame(1)]).unwrap();
    assert_eq!(collect(&mut far, 1), [frame(1)]);
    assert_eq!(deaf.receive(10, &mut |_| {}), 0);
}

#[test]
fn interfaces_are_described_as_they_were_configured() {
    if !is_root() {
        return;
    }
    let (left, right) = (Host::new(), Host::new());
    let end = End::new("l0", 1, &[("192.0.2.1", 24), ("2001:db8::1", 64)]);
    connect((&left, end.clone()), (&right, End::new("r0", 2, &[])));
    let interface = left.run(|| {
        Rtnetlink::open().unwrap().set_mtu("l0", 1400).unwrap();
        Interface::read("l0").unwrap()
    });
    assert_eq!((interface.mac, interface.mtu, interface.up), ([2, 0, 0, 0, 0, 1], 1400, true));
    assert!(end.addresses.iter().all(|address| interface.addresses.contains(address)), "{interface:?}");
    let missing = left.run(|| Interface::read("nosuch0").unwrap_err());
    assert!(missing.is_missing(), "{missing}");
}

#[test]
fn a_limited_link_drops_what_its_queue_cannot_hold() {
    if !is_root() {
        return;
    }
    let (left, right) = (Host::new(), Host::new());
    connect((&left, End::new("l0", 1, &[])), (&right, End::new("r0", 2, &[])));
    // 1,000 bytes per second: a burst of 25 frames passes at once, ten wait, the rest is refused. The kernel's own
    // multicast reports may take a few of the places.
    left.run(|| Rtnetlink::open().unwrap().limit_rate("l0", 8_000, 1514, 10).unwrap());
    let mut receiver = right.run(|| experimental("r0", &raw::Options::default()));
    let options = raw::Options { receive_slots: 0, ..raw::Options::default() };
    let mut sender = left.run(move || raw::Socket::open("l0", &options).unwrap());
    let frames: Vec<_> = (0..200).map(frame).collect();
    let sent = sender.send(&frames).unwrap();
    assert_eq!(sent.sent + sent.full, 200);
    assert!((10..100).contains(&sent.sent), "{sent:?}");
    assert_eq!(collect(&mut receiver, 5)[..5], frames[..5]);
    left.run(|| Rtnetlink::open().unwrap().limit_rate("l0", 8_000_000_000, 1 << 20, 1_000).unwrap());
    assert_eq!(sender.send(&frames).unwrap().sent, 200);
}
