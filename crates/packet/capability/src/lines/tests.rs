use core::{net::Ipv4Addr, time::Duration};
use std::{eprintln, vec::Vec};

use sluicegate_wire::{
    Instant, Reason,
    capability::{ClientId, FlowNonce, Limits},
};

use super::{Allowance, Count, Lines, Moment, lines_needed, model};
use sluicegate_flow::{Key as _, Key4, Line4};

const NONCE: FlowNonce = FlowNonce(0x1234_5678_9abc);
const OTHER: FlowNonce = FlowNonce(0x1234_5678_9abd);
const START: u64 = 100;

fn limits(kilobytes: u16, seconds: u8) -> Limits {
    Limits::new(kilobytes, seconds).unwrap()
}

fn minted(at: u64, kilobytes: u16, seconds: u8) -> Allowance {
    Allowance { limits: limits(kilobytes, seconds), expires: at + u64::from(seconds) }
}

fn moment(millis: u64) -> Moment {
    Moment { now: Instant::from_millis(millis), seconds: START + millis / 1_000 }
}

fn key(flow: u32) -> Key4 {
    Key4::of_capability(Ipv4Addr::from_bits(flow), Ipv4Addr::BROADCAST, ClientId(7))
}

fn admit(
    lines: &mut Lines<Line4<Count>>,
    at: Moment,
    flow: u32,
    nonce: FlowNonce,
    allowance: Allowance,
    len: u32,
) -> Result<(), Reason> {
    let (key, hash) = (key(flow), lines.hash(&key(flow)));
    let found = lines.find(hash, &key);
    lines.admit(at, (hash, &key, found), nonce, &allowance, len)
}

fn charge(lines: &mut Lines<Line4<Count>>, at: Moment, flow: u32, nonce: FlowNonce, len: u32) -> Result<(), Reason> {
    let key = key(flow);
    let index = lines.find(lines.hash(&key), &key).ok_or(Reason::CapabilityUnknown)?;
    lines.charge(at, index, nonce, len)
}

fn ttl(lines: &Lines<Line4<Count>>, at: Moment, flow: u32) -> Duration {
    let key = key(flow);
    lines.ttl_end(lines.find(lines.hash(&key), &key).unwrap()).since(at.now)
}

#[test]
fn tva_13_a_gigabit_link_needs_312_500_lines_whatever_is_sent() {
    assert_eq!(lines_needed(1_000_000_000, limits(4, 10)), 312_500);
    assert_eq!(lines_needed(1_000_000_000, limits(4, 10)) * 100, 31_250_000, "the paper's 100 bytes each: 32 MB");
    let lines: Lines<Line4<Count>> = Lines::new(312_500, &[1; 16]);
    assert!(u64::from(lines.lines_max()) * size_of::<Line4<Count>>() as u64 <= 34_000_000, "{}", lines.lines_max());
}

#[test]
fn tva_13_a_saturated_link_never_needs_more_lines_than_that() {
    // 10 Mbit/s of the smallest capabilities, each used in one burst of all its bytes, for three lifetimes.
    let (least, packet) = (limits(4, 10), 1_000);
    let needed = lines_needed(10_000_000, least) as u32;
    let mut lines: Lines<Line4<Count>> = Lines::new(needed, &[1; 16]);
    let memory = lines.lines_max();
    let mut most = 0;
    for flow in 0..3 * needed {
        for part in 0..4 {
            let nanos = u64::from(flow * 4 + part) * u64::from(packet) * 8 * 100;
            let at = Moment { now: Instant::from_nanos(nanos), seconds: START + nanos / 1_000_000_000 };
            let allowance = minted(at.seconds, 4, 10);
            let passed = match part {
                0 => admit(&mut lines, at, flow, NONCE, allowance, packet),
                _ => charge(&mut lines, at, flow, NONCE, packet),
            };
            assert_eq!(passed, Ok(()), "flow {flow}");
            if flow % 1_000 == 0 {
                most = most.max(lines.live(at.now));
            }
        }
    }
    assert!(most <= needed && most > needed * 9 / 10, "{most} of {needed} lines were needed");
    assert_eq!(lines.lines_max(), memory);
    assert!(lines.reclaimed() > 0);
}

#[test]
fn tva_12_no_capability_carries_more_than_n_bytes_or_2n_where_lines_give_way() {
    let packets = std::env::var("SLUICEGATE_TVA12_PACKETS").ok().and_then(|text| text.parse().ok());
    let packets: u64 = packets.unwrap_or(1_000_000);
    for (seed, site) in (1..).zip(model::Site::ALL) {
        let outcome = model::tva_12(site, packets / model::Site::ALL.len() as u64, seed);
        eprintln!("{site:?}: {outcome:?}");
        assert_eq!(outcome.violations, 0, "{site:?}: {outcome:?}");
        assert!(outcome.regular > outcome.packets / 20 && outcome.capabilities > 100, "{site:?}: {outcome:?}");
        if site.has_memory_pressure() {
            assert!(outcome.reclaimed > outcome.packets / 1_000 && outcome.most > 1.7, "{site:?}: {outcome:?}");
        } else {
            assert!(outcome.reclaimed == 0 && outcome.most > 0.95, "{site:?}: {outcome:?}");
        }
    }
}

#[test]
fn a_packet_moves_the_ttl_by_its_length_times_t_over_n_without_drift() {
    let mut lines = Lines::new(8, &[1; 16]);
    let at = moment(0);
    assert_eq!(admit(&mut lines, at, 1, NONCE, minted(START, 100, 10), 1_000), Ok(()));
    assert_eq!(ttl(&lines, at, 1), Duration::from_millis(100));
    assert_eq!(charge(&mut lines, at, 1, NONCE, 500), Ok(()));
    assert_eq!(ttl(&lines, at, 1), Duration::from_millis(150));
    // 3 KB in 7 s: a byte is 2,333,333.3 ns. Never early, and after all packets late by less than 2 ns each.
    let mut lines = Lines::new(8, &[1; 16]);
    assert_eq!(admit(&mut lines, at, 1, NONCE, minted(START, 3, 7), 1), Ok(()));
    for _ in 1..3_000 {
        assert_eq!(charge(&mut lines, at, 1, NONCE, 1), Ok(()));
    }
    let late = ttl(&lines, at, 1).checked_sub(Duration::from_secs(7)).unwrap();
    assert!(late <= Duration::from_nanos(6_000), "{late:?}");
}

#[test]
fn n_bytes_pass_and_not_one_more() {
    let mut lines = Lines::new(8, &[1; 16]);
    assert_eq!(admit(&mut lines, moment(0), 1, NONCE, minted(START, 4, 10), 1_500), Ok(()));
    assert_eq!(charge(&mut lines, moment(1), 1, NONCE, 1_500), Ok(()));
    assert_eq!(charge(&mut lines, moment(2), 1, NONCE, 1_001), Err(Reason::CapabilitySpent));
    assert_eq!(charge(&mut lines, moment(3), 1, NONCE, 1_000), Ok(()), "a smaller packet still fits");
    assert_eq!(charge(&mut lines, moment(9_999), 1, NONCE, 1), Err(Reason::CapabilitySpent));
    assert_eq!(admit(&mut lines, moment(9_999), 2, NONCE, minted(START, 1, 63), 1_001), Err(Reason::CapabilitySpent));
}

#[test]
fn t_seconds_are_over_for_lines_too_and_the_last_second_begins_none() {
    let mut lines = Lines::new(8, &[1; 16]);
    assert_eq!(admit(&mut lines, moment(0), 1, NONCE, minted(START, 4, 10), 40), Ok(()));
    assert_eq!(charge(&mut lines, moment(10_999), 1, NONCE, 40), Ok(()));
    assert_eq!(charge(&mut lines, moment(11_000), 1, NONCE, 40), Err(Reason::CapabilityExpired));
    assert_eq!(admit(&mut lines, moment(9_999), 2, NONCE, minted(START, 4, 10), 40), Ok(()));
    assert_eq!(admit(&mut lines, moment(10_000), 3, NONCE, minted(START, 4, 10), 40), Err(Reason::CapabilityExpired));
}

#[test]
fn another_nonce_neither_passes_alone_nor_starts_the_count_anew() {
    let mut lines = Lines::new(8, &[1; 16]);
    let allowance = minted(START, 4, 10);
    assert_eq!(admit(&mut lines, moment(0), 1, NONCE, allowance, 3_000), Ok(()));
    assert_eq!(charge(&mut lines, moment(1), 1, OTHER, 40), Err(Reason::CapabilityUnknown));
    assert_eq!(admit(&mut lines, moment(2), 1, OTHER, allowance, 1_001), Err(Reason::CapabilitySpent));
    assert_eq!(charge(&mut lines, moment(3), 1, NONCE, 40), Ok(()), "what failed replaced nothing");
    assert_eq!(admit(&mut lines, moment(4), 1, OTHER, allowance, 900), Ok(()));
    assert_eq!(charge(&mut lines, moment(5), 1, NONCE, 40), Err(Reason::CapabilityUnknown));
    assert_eq!(charge(&mut lines, moment(6), 1, OTHER, 61), Err(Reason::CapabilitySpent));
}

#[test]
fn a_renewed_capability_counts_anew_and_the_old_one_does_not_come_back() {
    let mut lines = Lines::new(8, &[1; 16]);
    let (old, new) = (minted(START, 4, 10), minted(START + 1, 4, 10));
    assert_eq!(admit(&mut lines, moment(1_000), 1, NONCE, old, 4_000), Ok(()));
    assert_eq!(admit(&mut lines, moment(1_001), 1, OTHER, new, 4_001), Err(Reason::CapabilitySpent));
    assert_eq!(admit(&mut lines, moment(1_002), 1, OTHER, new, 4_000), Ok(()));
    assert_eq!(admit(&mut lines, moment(1_003), 1, NONCE, old, 40), Err(Reason::CapabilitySpent));
    assert_eq!(ttl(&lines, moment(1_000), 1), Duration::from_secs(20), "both capabilities keep the line");
}

#[test]
fn of_two_capabilities_of_one_second_the_longer_and_then_the_smaller_is_the_newer() {
    let mut lines = Lines::new(8, &[1; 16]);
    // A destination that renews within one second of the router takes a kilobyte off each time.
    for (kilobytes, seconds) in [(5, 10), (4, 10), (2, 11)] {
        let len = u32::from(kilobytes) * 1_000;
        assert_eq!(admit(&mut lines, moment(0), 1, NONCE, minted(START, kilobytes, seconds), len), Ok(()));
    }
    assert_eq!(admit(&mut lines, moment(0), 1, NONCE, minted(START, 3, 10), 40), Err(Reason::CapabilitySpent));
}

#[test]
fn a_full_table_refuses_new_flows_until_a_ttl_has_passed_and_loses_no_line_that_counts() {
    let mut lines = Lines::new(100, &[1; 16]);
    let memory = lines.lines_max();
    let honest: Vec<u32> = (0..100).collect();
    for flow in &honest {
        assert_eq!(admit(&mut lines, moment(0), *flow, NONCE, minted(START, 8, 10), 4_000), Ok(()));
    }
    let mut full = 0;
    for flow in 1_000..20_000 {
        let admitted = admit(&mut lines, moment(1), flow, NONCE, minted(START, 8, 10), 4_000);
        full += u32::from(admitted == Err(Reason::CapabilityTableFull));
    }
    assert_eq!((lines.len(), full), (memory, 19_000 - (memory - 100)));
    for flow in &honest {
        assert_eq!(charge(&mut lines, moment(4_000), *flow, NONCE, 40), Ok(()), "flow {flow} was pushed out");
    }
    assert_eq!(lines.lines_max(), memory);
    let taken = (30_000..30_020)
        .filter(|flow| admit(&mut lines, moment(8_000), *flow, NONCE, minted(START + 7, 8, 10), 40) == Ok(()));
    assert_eq!(taken.count(), 20, "after their ttl, lines give way");
}

#[test]
fn a_line_that_is_neither_counted_nor_valid_is_swept() {
    let mut lines = Lines::new(100, &[1; 16]);
    for flow in 0..50 {
        assert_eq!(admit(&mut lines, moment(0), flow, NONCE, minted(START, 8, 10), 40), Ok(()));
    }
    let max = lines.lines_max();
    lines.sweep(moment(10_999), max);
    assert_eq!(lines.len(), 50);
    lines.sweep(moment(11_000), max / 2);
    lines.sweep(moment(11_000), max / 2);
    assert_eq!(lines.len(), 0);
}
