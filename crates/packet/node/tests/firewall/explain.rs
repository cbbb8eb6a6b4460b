//! What the gate says about a packet is what it does with it.

use std::{net::IpAddr, time::Duration};

use crate::site::{packets::*, *};
use sluicegate_nat::{Explanation, Probe};
use sluicegate_pinhole::Tuple;
use sluicegate_wire::{Port, Reason, Verdict};

fn ask(site: &Site, port: Port, src: End, dst: End) -> Explanation {
    let tuple = Tuple { protocol: UDP, src, dst };
    site.gate.translator.explain(site.now, site.unix, &Probe { tuple, port })
}

#[test]
fn it_names_the_reason_the_grant_and_the_line() {
    let mut site = Site::new();
    let (grant, gate) = site.open(UDP, 53);
    let first = ask(&site, Port::OUTSIDE, (CLIENT, 7), gate);
    assert_eq!((first.verdict, first.pinhole), (Verdict::Forward(Port::INSIDE), Some(grant.id)));
    assert_eq!(first.steps[0], "No flow has this packet: it would have to start one.");
    exchange(&mut site, (CLIENT, 7), gate, (TARGET, 53));
    let known = ask(&site, Port::OUTSIDE, (CLIENT, 7), gate);
    assert_eq!(known.steps[0], "A flow has this packet: answered, last packet 0 s ago.");
    assert_eq!(known.steps[1], format!("It is translated to {TARGET} port 53."));
    assert!(known.steps.iter().any(|step| step.contains("32 of 1000000 bytes used")), "{:?}", known.steps);
    let back = ask(&site, Port::INSIDE, (TARGET, 53), (CLIENT, 7));
    assert_eq!(back.verdict, Verdict::Forward(Port::OUTSIDE));
    let stranger = ask(&site, Port::OUTSIDE, (STRANGER, 7), gate);
    assert_eq!((stranger.verdict, stranger.pinhole), (Verdict::Drop(Reason::NoPinhole), None));
}

#[test]
fn it_knows_why_a_grant_is_over() {
    let mut site = Site::new();
    let (grant, gate) = site.open(UDP, 53);
    site.gate.translator.revoke(site.now, grant.id);
    let revoked = ask(&site, Port::OUTSIDE, (CLIENT, 7), gate);
    assert_eq!((revoked.verdict, revoked.pinhole), (Verdict::Drop(Reason::GrantRevoked), Some(grant.id)));
    assert!(revoked.steps.contains(&Reason::GrantRevoked.explanation().to_owned()));
    let (grant, gate) = site.open(UDP, 53);
    site.wait(Duration::from_secs(3_601));
    let expired = ask(&site, Port::OUTSIDE, (CLIENT, 7), gate);
    assert_eq!((expired.verdict, expired.pinhole), (Verdict::Drop(Reason::GrantExpired), Some(grant.id)));
}

#[test]
fn it_explains_pings_without_a_port() {
    let mut site = Site::new();
    let grant = site.grant(ICMP, CLIENT);
    let opened = site.install(grant, TARGET, (0, 0));
    site.outside_sends(&echo(CLIENT, opened.address, 77, true)).inside();
    let tuple = Tuple { protocol: ICMP, src: (TARGET, 77), dst: (CLIENT, 0) };
    let probe = Probe { tuple, port: Port::INSIDE };
    let reply = site.gate.translator.explain(site.now, site.unix, &probe);
    assert_eq!(reply.verdict, Verdict::Forward(Port::OUTSIDE));
    assert!(reply.steps[0].starts_with("A flow has this packet"), "{:?}", reply.steps);
}

#[test]
fn explanation_and_treatment_agree() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 53);
    let grant = site.grant(UDP, CLIENT);
    site.install(grant, FILTERED, (53, 53));
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, 53));
    let (expired, old) = site.open(UDP, 54);
    site.gate.translator.revoke(site.now, expired.id);
    let unknown: IpAddr = "192.0.2.99".parse().unwrap();
    let gate_ends = [gate, old, (GATE.into(), 20_500), (FILTERED, 53), (FILTERED, 54), (unknown, 53), (TARGET, 53)];
    for dst in gate_ends {
        for src in [(CLIENT, 1), (CLIENT, 2), (STRANGER, 1)] {
            let said = ask(&site, Port::OUTSIDE, src, dst).verdict;
            assert_eq!(site.outside_sends(&udp(src, dst, b"x")).verdict, said, "{src:?} -> {dst:?}");
        }
    }
    for src in [(TARGET, 53), (TARGET, 54), (TARGET, 55), (TALKER, 1), (FILTERED, 53), (FILTERED, 1), (unknown, 1)] {
        for dst in [(CLIENT, 1), (CLIENT, 2), (STRANGER, 1), (TALKER, 1), gate] {
            if src.0 == dst.0 {
                continue;
            }
            let said = ask(&site, Port::INSIDE, src, dst).verdict;
            assert_eq!(site.inside_sends(&udp(src, dst, b"x")).verdict, said, "{src:?} -> {dst:?}");
        }
    }
}
