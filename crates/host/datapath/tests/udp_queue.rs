//! A server's datagrams as frames, end to end on real veth pairs, beside the server's ordinary sockets.

mod support;

use std::process::Command;

use sluicegate_datapath::{Interface, OpenError, UdpQueue};
use sluicegate_wire::{Reason, build, checksum};
use support::{
    is_root,
    site::{Site, ip, received, wait_for},
    wire::{CLIENT, PATIENCE, PORT, SERVER, Wire, at, datagram, frame, listeners},
};

#[test]
fn datagrams_of_both_versions_come_as_frames_and_are_answered_where_they_came_from() {
    if !is_root() {
        return;
    }
    for offloads in [false, true] {
        let mut wire = Wire::new(offloads);
        for (version, (listener, own)) in listeners().into_iter().enumerate() {
            let client = Site::udp(&wire.client, CLIENT[version], 4000);
            for text in ["one", "two"] {
                client.send_to(text.as_bytes(), own).unwrap();
                let peer = at(CLIENT, version, 4000);
                assert_eq!(wire.take(1), [(listener, peer, true, text.as_bytes().to_vec())], "offloads: {offloads}");
                assert!(wire.queues[0].answer(listener, peer, format!("{text}!").as_bytes()));
                wire.queues[0].flush();
                // Its kernel has checked the checksum.
                assert_eq!(wait_for(&client), (format!("{text}!").into_bytes(), own));
                assert!(received(&wire.sockets[version]).is_none(), "it came twice");
            }
        }
        let counts = wire.queues[0].counts();
        assert_eq!((counts.received, counts.answered), (4, 4));
    }
}

#[test]
fn what_is_no_whole_datagram_in_one_frame_reaches_the_sockets() {
    if !is_root() {
        return;
    }
    let mut wire = Wire::new(false);
    for (version, address) in CLIENT.into_iter().enumerate() {
        let client = Site::udp(&wire.client, address, 4000);
        client.send_to(&[7; 4_000], at(SERVER, version, PORT)).unwrap();
        wire.sockets[version].set_nonblocking(false).unwrap();
        wire.sockets[version].set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 8_000];
        let (len, from) = wire.sockets[version].recv_from(&mut buffer).expect("fragments are the kernel's");
        assert_eq!((len, from), (4_000, at(CLIENT, version, 4000)));
    }
    // An option that says nothing, in a header of six words.
    let plain = build::datagram((ip(CLIENT[0]), 4001), at(SERVER, 0, PORT), b"with options");
    let mut packet = [&plain[..20], &[1, 1, 1, 0], &plain[20..]].concat();
    let len = packet.len() as u16;
    packet[0] = 0x46;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[10..12].fill(0);
    let sum = checksum::internet(&packet[..24]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    wire.send(&[frame(&packet)]);
    assert_eq!(wait_for(&wire.sockets[0]).0, b"with options");
    // Another port, and another host's frame, which the kernel throws away.
    let mut foreign = datagram((CLIENT[0], 4001), at(SERVER, 0, PORT), b"foreign");
    foreign[5] = 9;
    let mut tagged = datagram((CLIENT[0], 4001), at(SERVER, 0, PORT), b"tagged");
    tagged.splice(12..12, [0x81, 0x00, 0, 5]);
    wire.send(&[foreign, tagged, datagram((CLIENT[0], 4001), at(SERVER, 0, PORT), b"last")]);
    assert_eq!(wire.take(1)[0].3, b"last");
    assert!(received(&wire.sockets[0]).is_none());
}

#[test]
fn what_the_kernel_would_have_refused_is_dropped_by_reason() {
    if !is_root() {
        return;
    }
    let mut wire = Wire::new(false);
    let to = [at(SERVER, 0, PORT), at(SERVER, 1, PORT)];
    let changed = |mut frame: Vec<u8>, at: usize| {
        frame[at] ^= 0x55;
        frame
    };
    // The last byte of the payload.
    let wrong = [0, 1].map(|version| {
        let frame = datagram((CLIENT[version], 1), to[version], b"changed");
        let last = frame.len() - 1;
        changed(frame, last)
    });
    // Over IPv6 there is no datagram without one.
    let mut without = datagram((CLIENT[1], 1), to[1], b"none");
    without[14 + 40 + 6..14 + 40 + 8].fill(0);
    // A header checksum, a length beyond the packet, one below the header.
    let header = changed(datagram((CLIENT[0], 1), to[0], b"header"), 14 + 10);
    let [mut long, mut short] =
        [datagram((CLIENT[0], 1), to[0], b"length"), datagram((CLIENT[0], 1), to[0], b"length")];
    long[14 + 24..14 + 26].copy_from_slice(&400_u16.to_be_bytes());
    short[14 + 24..14 + 26].copy_from_slice(&7_u16.to_be_bytes());
    let sources = ["0.0.0.1", "127.0.0.1", "224.0.0.1", "255.255.255.255", "198.51.100.255", SERVER[0]];
    let sources6 = ["::", "::1", "ff02::1", "::ffff:198.51.100.2", SERVER[1]];
    let mut frames: Vec<_> = wrong.into_iter().chain([without, header, long, short]).collect();
    frames.extend(sources.map(|source| datagram((source, 1), to[0], b"whose")));
    frames.extend(sources6.map(|source| datagram((source, 1), to[1], b"whose")));
    frames.push(datagram((CLIENT[0], 0), to[0], b"no port"));
    wire.send(&frames);
    assert_eq!(wire.take(frames.len()), []);
    assert_eq!(wire.dropped(Reason::ChecksumWrong), 3);
    assert_eq!(wire.dropped(Reason::TransportHeaderInvalid), 3);
    assert_eq!(wire.dropped(Reason::AddressInvalid), 12);
    // Over IPv4 there is.
    let mut without = datagram((CLIENT[0], 1), to[0], b"none");
    without[14 + 20 + 6..14 + 20 + 8].fill(0);
    wire.send(&[without]);
    assert_eq!(wire.take(1)[0].3, b"none");
}

#[test]
fn only_who_has_just_sent_something_is_answered_by_a_frame_and_only_what_fits_one() {
    if !is_root() {
        return;
    }
    let mut wire = Wire::new(false);
    let peer = at(CLIENT, 0, 4000);
    let client = Site::udp(&wire.client, CLIENT[0], 4000);
    client.send_to(b"?", at(SERVER, 0, PORT)).unwrap();
    wire.take(1);
    let queue = &mut wire.queues[0];
    assert!(!queue.answer(3, at(CLIENT, 0, 4001), b"a stranger"));
    assert!(!queue.answer(5, peer, b"another listener"));
    assert!(!queue.answer(3, peer, &[0; 1_473]), "the MTU is 1,500");
    assert!(queue.answer(3, peer, &[1; 1_472]));
    queue.flush();
    assert_eq!(wait_for(&client).0, [1; 1_472]);
    assert!(!queue.answer(3, peer, b"too late"));
}

#[test]
fn so_many_datagrams_wait_and_so_many_answers_and_the_rest_is_counted_or_refused() {
    if !is_root() {
        return;
    }
    let mut wire = Wire::new(false);
    let burst: Vec<_> = (0..64).map(|_| datagram((CLIENT[0], 4000), at(SERVER, 0, PORT), b"?")).collect();
    for _ in 0..80 {
        wire.send(&burst);
    }
    assert_eq!(wire.take(2_048).len(), 2_048);
    assert_eq!(wire.dropped(Reason::ReceiveFull), 80 * 64 - 2_048);
    let peer = at(CLIENT, 0, 4000);
    assert!(Command::new("ip").args(["link", "set", "f0", "down"]).status().unwrap().success());
    let queue = &mut wire.queues[0];
    let queued = (0..5_000).filter(|_| queue.answer(3, peer, b"!")).count();
    assert!((2_048..5_000).contains(&queued), "{queued}");
}

#[test]
fn without_its_queues_the_interface_is_as_before_and_one_program_has_it_at_a_time() {
    if !is_root() {
        return;
    }
    let mut wire = Wire::new(false);
    let again = UdpQueue::open(&Interface::read("f0").unwrap(), &listeners());
    assert!(matches!(&again, Err(OpenError::Busy { .. })), "{again:?}");
    let client = Site::udp(&wire.client, CLIENT[0], 4000);
    client.send_to(b"frame", at(SERVER, 0, PORT)).unwrap();
    assert_eq!(wire.take(1)[0].3, b"frame");
    wire.queues.clear();
    client.send_to(b"socket", at(SERVER, 0, PORT)).unwrap();
    assert_eq!(wait_for(&wire.sockets[0]).0, b"socket");
    let many = vec![(0, at(SERVER, 0, PORT)); 9];
    let error = UdpQueue::open(&Interface::read("f0").unwrap(), &many).unwrap_err();
    assert!(matches!(error, OpenError::TooMany { max: 8, .. }), "{error}");
}

#[test]
fn an_address_leads_to_its_interface() {
    if !is_root() {
        return;
    }
    let _wire = Wire::new(false);
    for own in SERVER {
        assert_eq!(Interface::with_address(ip(own)).unwrap().unwrap().name, "f0");
    }
    assert_eq!(Interface::with_address(ip(CLIENT[0])).unwrap(), None);
}
