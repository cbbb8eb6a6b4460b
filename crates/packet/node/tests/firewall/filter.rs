//! `filter` services: the same default-off without translation, for both IP versions; and observe mode.

use crate::site::{packets::*, *};
use sluicegate_wire::{
    Reason, Verdict,
    tcp::{Control, Repr},
};

fn syn() -> Repr<'static> {
    Repr::new(0, 0, Control::Syn, 1)
}

#[test]
fn a_granted_client_reaches_the_services_own_address() {
    for (client, stranger, service) in [(CLIENT, STRANGER, FILTERED), (CLIENT_V6, STRANGER_V6, FILTERED_V6)] {
        let mut site = Site::new();
        let grant = site.grant(TCP, client);
        let opened = site.install(grant, service, (443, 443));
        assert_eq!((opened.address, opened.ports), (service, (443, 443)));
        let packet = tcp((client, 7), (service, 443), syn());
        let arrived = site.outside_sends(&packet).inside();
        assert_eq!(ends(&arrived), ((client, 7), (service, 443)));
        let answer = Repr { ack: Some(2), ..syn() };
        site.inside_sends(&tcp((service, 443), (client, 7), answer)).outside();
        assert_eq!(site.outside_sends(&tcp((stranger, 7), (service, 443), syn())).dropped(), Reason::NoPinhole);
        assert_eq!(site.outside_sends(&tcp((client, 7), (service, 80), syn())).dropped(), Reason::NoPinhole);
        let out = site.inside_sends(&tcp((service, 5_000), (stranger, 80), syn()));
        assert_eq!(out.dropped(), Reason::OutboundDisabled);
    }
}

#[test]
fn an_ipv6_client_with_a_grant_may_ping() {
    let mut site = Site::new();
    let grant = site.grant(ICMPV6, CLIENT_V6);
    site.install(grant, FILTERED_V6, (0, 0));
    site.outside_sends(&echo(CLIENT_V6, FILTERED_V6, 3, true)).inside();
    site.inside_sends(&echo(FILTERED_V6, CLIENT_V6, 3, false)).outside();
    assert_eq!(site.outside_sends(&echo(STRANGER_V6, FILTERED_V6, 3, true)).dropped(), Reason::NoPinhole);
}

#[test]
fn ipv6_errors_pass_only_about_a_live_flow() {
    let mut site = Site::new();
    let grant = site.grant(UDP, CLIENT_V6);
    site.install(grant, FILTERED_V6, (53, 53));
    site.outside_sends(&udp((CLIENT_V6, 7), (FILTERED_V6, 53), b"x")).inside();
    let answer = site.inside_sends(&udp((FILTERED_V6, 53), (CLIENT_V6, 7), b"y")).outside();
    site.outside_sends(&too_big(STRANGER_V6, FILTERED_V6, 1_280, &answer)).inside();
    let never = udp((FILTERED_V6, 53), (CLIENT_V6, 8), b"y");
    assert_eq!(site.outside_sends(&too_big(STRANGER_V6, FILTERED_V6, 1_280, &never)).dropped(), Reason::IcmpNoFlow);
}

#[test]
fn an_ipv6_packet_too_long_for_the_protected_link_is_answered() {
    let mut site = Site::with(sluicegate_nat::Config { mtu: [9_000, 1_400], ..config() });
    let grant = site.grant(UDP, CLIENT_V6);
    site.install(grant, FILTERED_V6, (53, 53));
    let out = site.outside_sends(&udp((CLIENT_V6, 7), (FILTERED_V6, 53), &payload(1_500)));
    assert_eq!(out.verdict, Verdict::Reply);
    let message = message(&out.packet);
    assert_eq!((message.kind(), message.mtu()), (sluicegate_wire::icmp::Kind::PacketTooBig, 1_400));
}

#[test]
fn extension_headers_are_refused() {
    let mut site = Site::new();
    let grant = site.grant(UDP, CLIENT_V6);
    site.install(grant, FILTERED_V6, (53, 53));
    let datagram = udp((CLIENT_V6, 7), (FILTERED_V6, 53), b"x")[40..].to_vec();
    for (header, reason) in [(60, Reason::IpOptions), (0, Reason::IpOptions), (43, Reason::SourceRoute)] {
        let payload = [&[17, 0, 0, 0, 0, 0, 0, 0][..], &datagram].concat();
        let packet = ip(CLIENT_V6, FILTERED_V6, sluicegate_wire::IpProtocol(header), &payload);
        assert_eq!(site.outside_sends(&packet).dropped(), reason);
    }
}

#[test]
fn two_clients_behind_one_address_share_a_port_and_each_grant_counts_its_ports() {
    let mut site = Site::new();
    let mut first = site.grant(UDP, CLIENT);
    first.client_ports = (1_000, 1_999);
    let mut second = site.grant(UDP, CLIENT);
    second.client_ports = (2_000, 2_999);
    site.install(first.clone(), FILTERED, (53, 53));
    site.install(second.clone(), FILTERED, (53, 53));
    site.outside_sends(&udp((CLIENT, 1_500), (FILTERED, 53), b"x")).inside();
    site.outside_sends(&udp((CLIENT, 2_500), (FILTERED, 53), &payload(100))).inside();
    assert_eq!(site.outside_sends(&udp((CLIENT, 3_000), (FILTERED, 53), b"x")).dropped(), Reason::NoPinhole);
    assert_eq!(site.gate.translator.usage(first.id).unwrap().bytes_used, 29);
    assert_eq!(site.gate.translator.usage(second.id).unwrap().bytes_used, 128);
}

#[test]
fn observe_mode_counts_and_forwards_what_policy_would_drop() {
    let mut site = Site::new();
    site.gate.translator.observe(true);
    let stranger = udp((STRANGER, 7), (FILTERED, 53), b"x");
    site.outside_sends(&stranger).inside();
    site.inside_sends(&udp((FILTERED, 53), (STRANGER, 7), b"x")).outside();
    let observed = site.gate.translator.pinholes().counters.observed;
    assert_eq!(observed[Reason::NoPinhole as usize], 1);
    assert_eq!(observed[Reason::OutboundDisabled as usize], 1);
    assert_eq!(site.drops(Reason::NoPinhole), 0);
    let parts = fragments(&udp((STRANGER, 9_000), (FILTERED, 53), &payload(3_000)), 9, 1_000);
    for part in &parts {
        site.outside_sends(part).inside();
    }
    site.outside_sends(&tcp((STRANGER, 7), (FILTERED, 22), Repr { ack: Some(1), ..Repr::new(0, 0, Control::None, 1) }))
        .inside();
    assert_eq!(site.used("flows"), 0, "and keeps nothing for them");
    site.gate.translator.observe(false);
    assert_eq!(site.outside_sends(&stranger).dropped(), Reason::NoPinhole);
}

#[test]
fn observe_mode_never_forwards_what_is_malformed_or_untranslated() {
    let mut site = Site::new();
    site.gate.translator.observe(true);
    let spoofed = udp((TARGET, 7), (FILTERED, 53), b"x");
    assert_eq!(site.outside_sends(&spoofed).dropped(), Reason::AddressInvalid);
    let unknown = udp((STRANGER, 7), ("192.0.2.99".parse().unwrap(), 53), b"x");
    assert_eq!(site.outside_sends(&unknown).dropped(), Reason::NotForService);
    let no_binding = udp((STRANGER, 7), (GATE.into(), 20_001), b"x");
    assert_eq!(site.outside_sends(&no_binding).dropped(), Reason::NoPinhole);
    let untranslated = udp((TARGET, 7), (STRANGER, 53), b"x");
    assert_eq!(site.inside_sends(&untranslated).dropped(), Reason::OutboundDisabled);
}

#[test]
fn observe_mode_waives_budget_rate_and_window_of_nat_flows() {
    let mut site = Site::new();
    site.gate.translator.observe(true);
    let mut grant = site.grant(UDP, CLIENT);
    grant.bytes = 100;
    let opened = site.install(grant, TARGET, (53, 53));
    for _ in 0..5 {
        let packet = udp((CLIENT, 7), (opened.address, opened.ports.0), &payload(50));
        assert_eq!(ends(&site.outside_sends(&packet).inside()).1, (TARGET, 53));
    }
    assert_eq!(site.gate.translator.pinholes().counters.observed[Reason::BudgetSpent as usize], 4);
}
