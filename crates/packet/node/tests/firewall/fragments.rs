//! Fragments: in any order, never overlapping, never a stranger's, and never more than the tables hold.

use std::time::Duration;

use crate::site::{packets::*, *};
use sluicegate_wire::{Port, Reason, Verdict};

fn flow() -> (Site, End) {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, 5_004));
    (site, gate)
}

/// Everything that came out, put together; its checksums are right.
fn assemble(parts: &[Vec<u8>]) -> Vec<u8> {
    let whole = reassemble(parts);
    check_checksums(&whole);
    assert_eq!(ends(&whole), ((CLIENT, 9_000), (TARGET, 5_004)));
    whole[28..].to_vec()
}

#[test]
fn fragments_in_order_pass_one_by_one() {
    let (mut site, gate) = flow();
    let parts = fragments(&udp((CLIENT, 9_000), gate, &payload(4_000)), 1, 1_000);
    let arrived: Vec<_> = parts.iter().map(|part| site.outside_sends(part).inside()).collect();
    assert_eq!(assemble(&arrived), payload(4_000));
    assert_eq!((site.used("fragmented_packets"), site.used("fragments_held")), (0, 0));
}

#[test]
fn fragments_in_any_order_pass_after_the_first() {
    let orders = [[1, 0, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1], [0, 3, 1, 2], [1, 2, 3, 0]];
    for (id, order) in orders.into_iter().enumerate() {
        let (mut site, gate) = flow();
        let parts = fragments(&udp((CLIENT, 9_000), gate, &payload(3_900)), id as u16, 1_000);
        let mut arrived = Vec::new();
        for at in order {
            let out = site.outside_sends(&parts[at]);
            match out.verdict {
                Verdict::Queue => {}
                _ => arrived.push(out.inside()),
            }
            arrived.extend(site.released().into_iter().map(|(_, part)| part));
        }
        assert_eq!(assemble(&arrived), payload(3_900), "{order:?}");
        assert_eq!((site.used("fragmented_packets"), site.used("fragments_held")), (0, 0), "{order:?}");
    }
}

#[test]
fn fragments_inside_sends_leave_with_the_external_address() {
    let (mut site, gate) = flow();
    let parts = fragments(&udp((TARGET, 5_004), (CLIENT, 9_000), &payload(3_000)), 5, 1_000);
    let mut left = Vec::new();
    assert_eq!(site.inside_sends(&parts[1]).verdict, Verdict::Queue);
    left.push(site.inside_sends(&parts[0]).outside());
    left.extend(site.released().into_iter().map(|(_, part)| part));
    left.extend(parts[2..].iter().map(|part| site.inside_sends(part).outside()));
    let whole = reassemble(&left);
    check_checksums(&whole);
    assert_eq!(ends(&whole), (gate, (CLIENT, 9_000)));
}

#[test]
fn every_fragment_is_charged() {
    let mut site = Site::new();
    let (grant, gate) = site.open(UDP, 5_004);
    let parts = fragments(&udp((CLIENT, 9_000), gate, &payload(3_000)), 5, 1_000);
    let bytes: usize = parts.iter().map(|part| site.outside_sends(part).inside().len()).sum();
    assert_eq!(site.gate.translator.usage(grant.id).unwrap().bytes_used, bytes as u64);
}

#[test]
fn a_spent_budget_stops_later_fragments_too() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.bytes = 1_500;
    let opened = site.install(grant, TARGET, (5_004, 5_004));
    let parts = fragments(&udp((CLIENT, 9_000), (opened.address, opened.ports.0), &payload(3_000)), 5, 1_000);
    site.outside_sends(&parts[0]).inside();
    assert_eq!(site.outside_sends(&parts[1]).dropped(), Reason::BudgetSpent);
}

#[test]
fn overlapping_and_impossible_fragments_are_dropped() {
    let (mut site, gate) = flow();
    let parts = fragments(&udp((CLIENT, 9_000), gate, &payload(4_000)), 1, 1_000);
    let finer = fragments(&udp((CLIENT, 9_000), gate, &payload(4_000)), 1, 1_400);
    site.outside_sends(&parts[0]).inside();
    assert_eq!(site.outside_sends(&parts[0]).dropped(), Reason::FragmentInvalid, "the first, again");
    site.outside_sends(&parts[1]).inside();
    assert_eq!(site.outside_sends(&parts[1]).dropped(), Reason::FragmentInvalid, "a later one, again");
    assert_eq!(site.outside_sends(&finer[1]).dropped(), Reason::FragmentInvalid, "overlaps the second");
    let longer = fragments(&udp((CLIENT, 9_000), gate, &payload(6_000)), 1, 1_000);
    site.outside_sends(&parts[4]).inside();
    assert_eq!(site.outside_sends(&longer[5]).dropped(), Reason::FragmentInvalid, "behind the end");
    let arrived = [2, 3].map(|at| site.outside_sends(&parts[at]).inside());
    assert_eq!(arrived.len(), 2, "the honest ones still pass");
}

#[test]
fn a_first_fragment_without_the_whole_header_is_dropped() {
    let mut site = Site::new();
    let (_, gate) = site.open(TCP, 22);
    let syn = sluicegate_wire::tcp::Repr::new(0, 0, sluicegate_wire::tcp::Control::Syn, 1);
    let parts = fragments(&tcp((CLIENT, 9), gate, syn), 1, 8);
    assert_eq!(site.outside_sends(&parts[0]).dropped(), Reason::FragmentInvalid);
    assert_eq!(site.used("flows"), 0);
}

#[test]
fn a_strangers_fragments_take_no_memory() {
    let (mut site, gate) = flow();
    for id in 0..5_000u16 {
        let parts = fragments(&udp((STRANGER, 9_000), gate, &payload(2_000)), id, 1_000);
        for part in &parts {
            assert_eq!(site.outside_sends(part).dropped(), Reason::NoPinhole);
        }
    }
    assert_eq!((site.used("fragmented_packets"), site.used("fragments_held")), (0, 0));
}

#[test]
fn fragments_whose_first_never_comes_time_out() {
    let (mut site, gate) = flow();
    let parts = fragments(&udp((CLIENT, 9_000), gate, &payload(3_000)), 1, 1_000);
    assert_eq!(site.outside_sends(&parts[1]).verdict, Verdict::Queue);
    assert_eq!(site.outside_sends(&parts[2]).verdict, Verdict::Queue);
    assert_eq!((site.used("fragmented_packets_waiting"), site.used("fragments_held")), (1, 2));
    site.wait(Duration::from_millis(4_999));
    assert_eq!(site.used("fragments_held"), 2);
    site.wait(Duration::from_millis(1));
    assert_eq!((site.used("fragmented_packets_waiting"), site.used("fragments_held")), (0, 0));
    assert_eq!(site.drops(Reason::FragmentTimeout), 2);
}

#[test]
fn what_waited_for_a_refused_first_fragment_is_dropped_for_the_same_reason() {
    let (mut site, gate) = flow();
    let closed = (gate.0, if gate.1 == 20_999 { 20_000 } else { gate.1 + 1 });
    let parts = fragments(&udp((CLIENT, 9_000), closed, &payload(3_000)), 1, 1_000);
    assert_eq!(site.outside_sends(&parts[1]).verdict, Verdict::Queue);
    assert_eq!(site.outside_sends(&parts[0]).dropped(), Reason::NoPinhole);
    assert_eq!(site.outside_sends(&parts[2]).dropped(), Reason::NoPinhole);
    assert_eq!(site.drops(Reason::NoPinhole), 3);
    assert_eq!(site.used("fragments_held"), 0);
    assert!(site.released().is_empty());
}

#[test]
fn a_flood_of_fragments_from_a_spoofed_client_fills_only_its_own_share() {
    let (mut site, gate) = flow();
    let other = site.grant(UDP, OTHER_CLIENT);
    let opened = site.install(other, TARGET, (5_004, 5_004));
    let others = (opened.address, opened.ports.0);
    for id in 0..10_000u16 {
        let parts = fragments(&udp((CLIENT, 9_000), gate, &payload(3_000)), id, 1_000);
        let verdict = site.outside_sends(&parts[1]).verdict;
        assert_eq!(verdict, Verdict::Queue);
    }
    assert!(site.used("fragmented_packets_waiting") <= 8 && site.used("fragments_held") <= 64);
    let parts = fragments(&udp((OTHER_CLIENT, 7), others, &payload(3_000)), 1, 1_000);
    assert_eq!(site.outside_sends(&parts[2]).verdict, Verdict::Queue);
    site.outside_sends(&parts[0]).inside();
    assert_eq!(site.released().len(), 1);
}

#[test]
fn the_tables_of_fragments_give_up_the_oldest_when_they_are_full_and_recover() {
    let mut site = Site::with_fragments(config(), 16, 8);
    for client in 0..40u8 {
        let address = std::net::IpAddr::from([198, 51, 100, client + 1]);
        let grant = site.grant(UDP, address);
        let opened = site.install(grant, TARGET, (5_004, 5_004));
        let parts = fragments(&udp((address, 7), (opened.address, opened.ports.0), &payload(2_000)), 1, 1_000);
        assert_eq!(site.outside_sends(&parts[1]).verdict, Verdict::Queue);
        let parts = fragments(&udp((address, 7), (opened.address, opened.ports.0), &payload(2_000)), 2, 1_000);
        site.outside_sends(&parts[0]).inside();
    }
    assert_eq!(site.gauge("fragments_held"), (8, 8));
    assert_eq!(site.gauge("fragmented_packets"), (16, 16));
    assert_eq!(site.drops(Reason::FragmentTableFull), 32);
    site.wait(Duration::from_secs(6));
    assert_eq!((site.used("fragments_held"), site.used("fragmented_packets")), (0, 0));
    assert_eq!(site.used("fragmented_packets_waiting"), 0);
}

#[test]
fn ipv6_fragments_pass_a_filter_service() {
    let mut site = Site::new();
    let grant = site.grant(UDP, CLIENT_V6);
    site.install(grant, FILTERED_V6, (5_004, 5_004));
    let parts = fragments(&udp((CLIENT_V6, 9_000), (FILTERED_V6, 5_004), &payload(3_000)), 9, 1_000);
    assert_eq!(site.outside_sends(&parts[2]).verdict, Verdict::Queue);
    let mut arrived = vec![site.outside_sends(&parts[0]).inside()];
    arrived.extend(site.released().into_iter().map(|(port, part)| {
        assert_eq!(port, Port::INSIDE);
        part
    }));
    arrived.extend(parts[1..2].iter().chain(&parts[3..]).map(|part| site.outside_sends(part).inside()));
    check_checksums(&reassemble(&arrived));
    let strangers = fragments(&udp((STRANGER_V6, 9_000), (FILTERED_V6, 5_004), &payload(3_000)), 9, 1_000);
    assert_eq!(site.outside_sends(&strangers[1]).dropped(), Reason::NoPinhole);
}

/// Eight forged fragments once shut the client's own out for five seconds.
#[test]
fn whoever_proves_a_flow_finds_a_place_whatever_is_forged_in_its_name() {
    let (mut site, gate) = flow();
    let data = payload(3_000);
    for round in 0..200u16 {
        // Later fragments of packets that never come, to the granted ends.
        for forged in 0..40 {
            let parts = fragments(&udp((CLIENT, 9_000), gate, &data), 1 + round * 41 + forged, 1_000);
            assert_eq!(site.outside_sends(&parts[2]).verdict, Verdict::Queue);
        }
        let parts = fragments(&udp((CLIENT, 9_000), gate, &data), round * 41 + 41, 1_000);
        assert_eq!(site.outside_sends(&parts[1]).verdict, Verdict::Queue, "even before the first");
        let mut arrived = vec![site.outside_sends(&parts[0]).inside()];
        arrived.extend(site.released().into_iter().map(|(_, part)| part));
        arrived.extend(parts[2..].iter().map(|part| site.outside_sends(part).inside()));
        assert_eq!(assemble(&arrived), data);
    }
    assert!(site.used("fragmented_packets_waiting") <= 8 && site.used("fragments_held") <= 64);
    assert_eq!(site.used("fragmented_packets"), 0);
}

#[test]
fn many_granted_sources_together_leave_buffers_to_one_more() {
    let mut site = Site::with(sluicegate_nat::Config { mtu: [1_500, 1_000], pinholes_max: 512, ..config() });
    let mut ends = Vec::new();
    for host in 0..100u8 {
        let client = std::net::IpAddr::from([198, 51, 100, host]);
        let grant = site.grant(UDP, client);
        let opened = site.install(grant, TARGET, (5_004, 5_004));
        ends.push((client, (opened.address, opened.ports.0)));
    }
    for (client, gate) in &ends[1..] {
        for id in 0..8 {
            let parts = fragments(&udp((*client, 9_000), *gate, &payload(900)), id, 96);
            for part in &parts[1..9] {
                assert_eq!(site.outside_sends(part).verdict, Verdict::Queue);
            }
        }
    }
    assert_eq!(site.gauge("fragments_held"), (256, 256));
    let (client, gate) = ends[0];
    let parts = fragments(&udp((client, 9_000), gate, &payload(3_000)), 1, 1_000 & !7);
    for part in [3, 2, 1] {
        assert_eq!(site.outside_sends(&parts[part]).verdict, Verdict::Queue);
    }
    let _ = site.outside_sends(&parts[0]).inside();
    // Each part of 1,000 bytes and a header is cut in two for the narrow link.
    assert!(site.released().len() >= 6);
}

#[test]
fn incomplete_packets_of_one_source_take_no_place_of_anothers() {
    let mut site = Site::with_fragments(config(), 32, 256);
    let (_, gate) = site.open(UDP, 5_004);
    let grant = site.grant(UDP, OTHER_CLIENT);
    let opened = site.install(grant, TARGET, (5_004, 5_004));
    let others = (opened.address, opened.ports.0);
    let parts = fragments(&udp((OTHER_CLIENT, 7), others, &payload(3_000)), 1, 1_000);
    site.outside_sends(&parts[0]).inside();
    for id in 0..200 {
        let lossy = fragments(&udp((CLIENT, 9_000), gate, &payload(3_000)), id, 1_000);
        site.outside_sends(&lossy[0]).inside();
        site.outside_sends(&lossy[1]).inside();
    }
    assert_eq!(site.gauge("fragmented_packets"), (32, 32));
    parts[1..].iter().for_each(|part| drop(site.outside_sends(part).inside()));
    assert_eq!(site.used("fragmented_packets"), 31);
}

#[test]
fn what_follows_a_refused_first_fragment_is_refused_and_not_held() {
    let (mut site, gate) = flow();
    let closed = (gate.0, if gate.1 == 20_999 { 20_000 } else { gate.1 + 1 });
    let parts = fragments(&udp((CLIENT, 9_000), closed, &payload(3_000)), 1, 1_000);
    for part in &parts {
        assert_eq!(site.outside_sends(part).dropped(), Reason::NoPinhole);
    }
    assert_eq!(site.used("fragments_held"), 0);
}
