//! The kernel program and its mirror in Rust must agree on every packet.

use std::{io::Write, net::IpAddr, time::Duration};

use aya::{
    Ebpf,
    maps::Array,
    programs::{TestRun, TestRunOptions},
};

use sluicegate_wire::Port;

use super::{layout::Config, program};
use crate::{
    Class, Interface, LocalRule, OwnAddress, Peer, Rules, Side, Translated, classify::Classifier, monotonic_now,
};

const XDP_PASS: u32 = 2;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn verdict(ebpf: &mut Ebpf, frame: &[u8]) -> u32 {
    let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::default() };
    program::program(ebpf, "gate").unwrap().test_run(options).unwrap().return_value
}

fn rules() -> Rules {
    let own = |address: &str, side| OwnAddress { address: address.parse().unwrap(), side };
    let local = |protocol, first, last, side, address: Option<&str>| {
        let address = address.map(|address| address.parse().unwrap());
        LocalRule { protocol, first, last, side, address, rate_pps: u32::MAX }
    };
    let peer = |remote: &str| Peer { remote: remote.parse().unwrap(), own_port: 5059 };
    Rules {
        own: vec![
            own("192.0.2.1", Side::Both),
            own("198.51.100.1", Side::Outside),
            own("2001:db8::1", Side::Both),
            own("fe80::1", Side::Inside),
        ],
        local: vec![
            local(6, 22, 22, Side::Both, None),
            local(17, 5060, 5062, Side::Outside, Some("192.0.2.1")),
            local(17, 5060, 5062, Side::Inside, None),
            local(1, 0, 0, Side::Both, None),
        ],
        peers: vec![peer("203.0.113.9:7443"), peer("[2001:db8::9]:7443")],
        translated: Some(Translated { address: [192, 0, 2, 1].into(), first: 5_060, last: 5_062 }),
        pings: vec![0b010],
    }
}

/// A small generator (xorshift): the same packets in every run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % below
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.next(from.len())]
    }
}

/// An ICMP header and the IP header that it quotes; what follows is the quoted packet's.
fn message(random: &mut Random, v6: bool, ident: &[u8]) -> Vec<u8> {
    let mut message = vec![random.pick(&[0u8, 1, 2, 3, 4, 5, 8, 11, 12, 129]), 0, 0, 0];
    message.extend(&ident[..2]);
    message.extend([0; 2]);
    let protocol = random.pick(&[1u8, 6, 17, 58, 132, 253]);
    if v6 {
        message.extend([random.pick(&[0x60u8, 0x6f, 0x45]), 0, 0, 0, 0, 20, protocol, 64]);
        message.extend([0; 32]);
    } else {
        message.extend([random.pick(&[0x45u8, 0x45, 0x46, 0x60]), 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        message.extend([0; 8]);
    }
    if matches!(protocol, 1 | 58) {
        message.extend([8, 0, 0, 0]);
    }
    message
}

/// A frame whose fields are mostly interesting values, sometimes mutilated.
fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = MAC.to_vec();
    frame.extend([2, 0, 0, 0, 0, 9]);
    let protocol = random.pick(&[0u8, 1, 6, 17, 17, 17, 58, 132]);
    let port =
        |random: &mut Random| random.pick(&[21u16, 22, 23, 5059, 5060, 5062, 5063, 7253, 7443, 0x8500]).to_be_bytes();
    // Both ends of a connection of the host's own are rare by chance.
    let ends = [7443u16.to_be_bytes(), 5059u16.to_be_bytes()];
    let ends = if random.next(4) == 0 { ends } else { [port(random), port(random)] };
    let transport = ends.concat();
    let address = |random: &mut Random, v6: bool| -> Vec<u8> {
        let v4 = ["192.0.2.1", "192.0.2.2", "198.51.100.1", "203.0.113.9"];
        let v6s = ["2001:db8::1", "2001:db8::2", "fe80::1", "2001:db8::9", "ff02::16"];
        match (if v6 { random.pick(&v6s) } else { random.pick(&v4) }).parse().unwrap() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        }
    };
    match random.next(10) {
        0 => frame.extend([0x08, 0x06]),
        1 => frame.extend([0x81, 0x00]),
        2..=5 => {
            let options = random.pick(&[0usize, 0, 0, 4, 40]);
            frame.extend([0x08, 0x00, 0x40 | (5 + options / 4) as u8, 0, 0, random.pick(&[36u8, 36, 40]), 0, 0]);
            frame.extend(random.pick(&[[0u8, 0], [0x40, 0], [0x20, 0], [0, 1], [0, 2], [0x20, 2], [0x80, 0]]));
            frame.extend([64, protocol, 0, 0]);
            frame.extend(address(random, false));
            frame.extend(address(random, false));
            frame.extend(vec![1; options]);
        }
        _ => {
            let fragment = random.next(3) == 0;
            let next = if fragment { 44 } else { protocol };
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, next, random.pick(&[1u8, 64, 254, 255])]);
            frame.extend(address(random, true));
            frame.extend(address(random, true));
            if fragment {
                frame.extend([protocol, 0]);
                frame.extend(random.pick(&[[0u8, 0], [0, 1], [0, 1], [0, 1], [0, 17], [0, 8]]));
                frame.extend([0, 0, 0, random.pick(&[0u8, 0, 8])]);
            }
        }
    }
    if protocol == 58 && random.next(2) == 0 {
        frame.push(random.pick(&[132u8, 133, 134, 135, 136, 137, 138]));
    }
    let v6 = frame[12..14] == [0x86, 0xdd];
    if protocol == if v6 { 58 } else { 1 } && random.next(2) == 0 {
        frame.extend(message(random, v6, &transport));
    }
    frame.extend(transport);
    frame.extend([0; 16]);
    if random.next(3) == 0 {
        let at = random.next(frame.len() - 12) + 12;
        frame[at] = random.next(256) as u8;
    }
    if random.next(3) == 0 {
        frame.truncate(random.next(frame.len() - 14) + 14);
    }
    frame
}

/// The fragment that would follow this one, if it is a first one.
fn following(mut first: Vec<u8>) -> Option<Vec<u8>> {
    let (at, more, offset) =
        if first.get(12..14)? == [0x08, 0x00] { (20, [0x20, 0], [0, 2]) } else { (56, [0, 1], [0, 16]) };
    let field = first.get_mut(at..at + 2).filter(|field| **field == more)?;
    field.copy_from_slice(&offset);
    Some(first)
}

/// Nothing about fragments depends on the time that the test takes.
const WAIT: Duration = Duration::from_secs(86_400);

fn config(ports: &[Interface; 2], rules: &Rules) -> Config {
    Config::new(ports, rules).with_fragments_for(WAIT.as_nanos() as u64)
}

#[test]
fn the_kernel_program_and_its_mirror_agree_on_random_packets() {
    // SAFETY: takes no pointers.
    if unsafe { libc::geteuid() } != 0 {
        // Past the test harness, which would keep it to itself.
        let _ = std::io::stderr().write_all(b"skipped: needs root\n");
        return;
    }
    let port = |index| Interface {
        name: "test".into(),
        index,
        mac: MAC,
        mtu: 1500,
        up: true,
        kind: String::new(),
        addresses: Vec::new(),
    };
    let rules = rules();
    // A test run arrives by the interface with index 1.
    let sides = [(Port::OUTSIDE, [port(1), port(2)]), (Port::INSIDE, [port(2), port(1)])];
    let mut programs =
        sides.map(|(at, ports)| (at, Classifier::new(WAIT), program::configured(&config(&ports, &rules)).unwrap()));
    // A program whose gate has never been heard of lets no answer through, one whose gate is dead does.
    for (_, _, ebpf) in &mut programs {
        let mut heartbeat: Array<_, u64> = ebpf.map_mut("heartbeat").unwrap().try_into().unwrap();
        heartbeat.set(0, 1, 0).unwrap();
        let mut pings: Array<_, u64> = ebpf.map_mut("pings").unwrap().try_into().unwrap();
        pings.set(0, rules.pings[0], 0).unwrap();
    }
    let mut random = Random(0x5eed_5eed_5eed_5eed);
    let (mut seen, mut followed) = ([0usize; 6], [0usize; 2]);
    let mut before = [Vec::new(), Vec::new()];
    for round in 0..300_000 {
        let last = std::mem::take(&mut before[round % 2]);
        let frame = following(last).unwrap_or_else(|| frame(&mut random));
        before[round % 2].clone_from(&frame);
        let (at, mirror, ebpf) = &mut programs[round % 2];
        let class = mirror.classify(monotonic_now(), &rules, *at, &frame);
        let verdict = verdict(ebpf, &frame);
        assert_eq!(verdict == XDP_PASS, class != Class::Gate, "round {round}: {class:?}, {verdict}: {frame:02x?}");
        seen[class as usize] += 1;
        let follows = |v6: bool| match (v6, frame.get(12..).unwrap_or_default()) {
            (false, [8, 0, packet @ ..]) => packet.get(7).is_some_and(|offset| *offset != 0),
            (true, [0x86, 0xdd, packet @ ..]) => {
                packet.get(6) == Some(&44) && packet.get(43).is_some_and(|offset| *offset & 0xf8 != 0)
            }
            _ => false,
        };
        for (count, v6) in followed.iter_mut().zip([false, true]) {
            *count += usize::from(class == Class::Local && follows(v6));
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "the packets are too alike: {seen:?}");
    assert!(followed.iter().all(|count| *count > 20), "too few fragments followed others: {followed:?}");
}
