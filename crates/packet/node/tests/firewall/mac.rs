//! Grants of mode `mac`: what passes, what does not, and what that costs the grant.

use std::net::IpAddr;

use crate::site::{
    packets::{End, fragments},
    *,
};
use proptest::prelude::*;
use sluicegate_grant::{
    DataMode, Grant,
    mac::{Ends, Purpose, SEQ_MAX, SessionKey, SessionKeys, TRAILER_LEN},
};
use sluicegate_nat::Probe;
use sluicegate_node::Forwarding;
use sluicegate_pinhole::{InstallError, Permission, PinholeSpec, Tuple};
use sluicegate_wire::{Port, Reason, Verdict, tcp, udp};

const CLIENT_ID: u32 = 0x00c0_ffee;
const PORT: u16 = 5_004;

fn keys() -> SessionKeys {
    SessionKeys::from_bytes([[0x42; 16], [0x43; 16]])
}

fn key() -> SessionKey {
    keys().to_service
}

/// A trailer that covers no client port, so that one test may send from several.
fn trailer(key: &SessionKey, client_id: u32, gate_port: u16, seq: u64, payload: &[u8]) -> [u8; TRAILER_LEN] {
    let ends = Ends { client: (CLIENT, 9_000), gate_port };
    key.trailer(client_id, Purpose::Translated, seq, &ends, payload)
}

fn spec_with(grant: Grant, target: IpAddr, keys: Option<SessionKeys>) -> PinholeSpec {
    PinholeSpec { keys, ..spec(grant, target, (PORT, PORT)) }
}

/// A grant of mode `mac` to `target`, and where it listens.
fn open_mac(site: &mut Site, client: IpAddr, target: IpAddr, protocol: u8, keys: Option<SessionKeys>) -> (Grant, End) {
    let grant = Grant { least_mode: DataMode::Mac, client_id: CLIENT_ID, ..site.grant(protocol, client) };
    let opened = site.gate.translator.install(site.now, site.unix, spec_with(grant.clone(), target, keys)).unwrap();
    (grant, (opened.address, opened.ports.0))
}

fn sealed(gate: End, seq: u64, payload: &[u8]) -> Vec<u8> {
    [payload, &trailer(&key(), CLIENT_ID, gate.1, seq, payload)].concat()
}

fn datagram(gate: End, seq: u64, payload: &[u8]) -> Vec<u8> {
    packets::udp((CLIENT, 9_000), gate, &sealed(gate, seq, payload))
}

fn payload_of(packet: &[u8]) -> Vec<u8> {
    let ip = sluicegate_wire::ip::Summary::parse(packet).unwrap();
    udp::Packet::new_checked(ip.transport(packet)).unwrap().payload().to_vec()
}

/// The payload of an answer, if its trailer is right at the client.
fn opened(answer: &[u8], gate: End) -> Result<Vec<u8>, Reason> {
    let sealed = payload_of(answer);
    let ends = Ends { client: ends(answer).1, gate_port: gate.1 };
    keys().to_client.check(CLIENT_ID, &ends, &sealed)?;
    Ok(sealed[..sealed.len() - TRAILER_LEN].to_vec())
}

/// A site with one open grant of mode `mac`.
fn site() -> (Site, Grant, End) {
    let mut site = Site::new();
    let (grant, gate) = open_mac(&mut site, CLIENT, TARGET, UDP, Some(keys()));
    (site, grant, gate)
}

#[test]
fn the_service_gets_the_payload_without_the_trailer_and_its_answers_get_one() {
    let (mut site, _, gate) = site();
    for (seq, text) in [(1, &b"even"[..]), (2, b"odd"), (3, b"")] {
        let inside = site.outside_sends(&datagram(gate, seq, text)).inside();
        assert_eq!((ends(&inside).1, payload_of(&inside)), ((TARGET, PORT), text.to_vec()));
    }
    for text in [&b"even"[..], b"odd", b""] {
        let answer = site.inside_sends(&packets::udp((TARGET, PORT), (CLIENT, 9_000), text)).outside();
        check_checksums(&answer);
        assert_eq!(opened(&answer, gate), Ok(text.to_vec()));
    }
    assert_eq!(site.used("flows"), 1);
}

#[test]
fn an_ipv6_datagram_to_a_filter_service_is_stripped_too() {
    let mut site = Site::new();
    let (_, gate) = open_mac(&mut site, CLIENT_V6, FILTERED_V6, UDP, Some(keys()));
    let inside = site.outside_sends(&packets::udp((CLIENT_V6, 9_000), gate, &sealed(gate, 1, b"hello"))).inside();
    assert_eq!(payload_of(&inside), b"hello");
}

#[test]
fn a_copy_a_forgery_and_a_bare_datagram_open_nothing_and_cost_nothing() {
    let (mut site, grant, gate) = site();
    let other_client = [&b"x"[..], &trailer(&key(), CLIENT_ID + 1, gate.1, 1, b"x")].concat();
    let mut forged = sealed(gate, 1, b"pay 10");
    forged[4] = b'9';
    for (text, reason) in [
        (&b""[..], Reason::MacMissing),
        (b"no trailer at all, but long enough", Reason::MacMissing),
        (&other_client, Reason::MacMissing),
        (&forged, Reason::MacForged),
    ] {
        assert_eq!(site.outside_sends(&packets::udp((CLIENT, 9_000), gate, text)).dropped(), reason);
        assert_eq!((site.used("flows"), site.gate.translator.usage(grant.id).unwrap().bytes_used), (0, 0));
    }
    let honest = datagram(gate, 1, b"pay 10");
    site.outside_sends(&honest).inside();
    let used = site.gate.translator.usage(grant.id).unwrap().bytes_used;
    assert_eq!(used, honest.len() as u64, "the budget pays for the packet as it came");
    for _ in 0..1_000 {
        assert_eq!(site.outside_sends(&honest).dropped(), Reason::MacReplayed);
        assert_eq!(site.outside_sends(&packets::udp((CLIENT, 9_000), gate, &forged)).dropped(), Reason::MacForged);
    }
    // From another port of the same address it is no new flow either.
    assert_eq!(
        site.outside_sends(&packets::udp((CLIENT, 9_001), gate, &sealed(gate, 1, b"pay 10"))).dropped(),
        Reason::MacReplayed
    );
    assert_eq!((site.used("flows"), site.gate.translator.usage(grant.id).unwrap().bytes_used), (1, used));
    site.outside_sends(&datagram(gate, 2, b"go on")).inside();
}

#[test]
fn a_forged_high_number_does_not_move_the_window() {
    let (mut site, _, gate) = site();
    site.outside_sends(&datagram(gate, 1, b"a")).inside();
    let mut far = sealed(gate, SEQ_MAX, b"b");
    *far.last_mut().unwrap() ^= 1;
    assert_eq!(site.outside_sends(&packets::udp((CLIENT, 9_000), gate, &far)).dropped(), Reason::MacForged);
    site.outside_sends(&datagram(gate, 2, b"c")).inside();
}

#[test]
fn datagrams_may_overtake_each_other_by_63_and_no_more() {
    let (mut site, _, gate) = site();
    site.outside_sends(&datagram(gate, 100, b"a")).inside();
    assert_eq!(site.outside_sends(&datagram(gate, 36, b"late")).dropped(), Reason::MacReplayed);
    site.outside_sends(&datagram(gate, 37, b"in time")).inside();
}

#[test]
fn what_the_service_starts_is_answered_only_with_a_mac() {
    let (mut site, _, gate) = site();
    site.inside_sends(&packets::udp((TARGET, PORT), (CLIENT, 9_000), b"are you there")).outside();
    assert_eq!(
        site.outside_sends(&packets::udp((CLIENT, 9_000), gate, b"a spoofed yes, long enough")).dropped(),
        Reason::MacMissing
    );
    site.outside_sends(&datagram(gate, 1, b"yes")).inside();
}

#[test]
fn a_mac_covers_whole_datagrams_so_fragments_are_refused() {
    let (mut site, grant, gate) = site();
    for part in fragments(&datagram(gate, 1, &payload(1_000)), 7, 520) {
        assert_ne!(site.outside_sends(&part).verdict, Verdict::Forward(Port::INSIDE));
    }
    assert_eq!(site.drops(Reason::MacMissing), 2);
    site.wait(Forwarding::default().fragments_wait);
    assert_eq!((site.drops(Reason::FragmentTimeout), site.released().len()), (0, 0));
    assert_eq!(site.gate.translator.usage(grant.id).unwrap().bytes_used, 0);
}

#[test]
fn without_its_key_a_grant_lets_nothing_in_until_the_key_comes() {
    let mut site = Site::new();
    let (grant, gate) = open_mac(&mut site, CLIENT, TARGET, UDP, None);
    let first = datagram(gate, 1, b"first");
    assert_eq!(site.outside_sends(&first).dropped(), Reason::ModeTooWeak);
    // The frontend's snapshot installs the same grant again.
    site.gate.translator.install(site.now, site.unix, spec_with(grant, TARGET, Some(keys()))).unwrap();
    site.outside_sends(&first).inside();
}

#[test]
fn tcp_and_a_grant_of_mode_capability_need_a_capability_of_the_same_client() {
    let mut site = Site::new();
    let (_, tcp_gate) = open_mac(&mut site, CLIENT, TARGET, TCP, Some(keys()));
    let grant = Grant { least_mode: DataMode::Capability, client_id: CLIENT_ID, ..site.grant(UDP, CLIENT) };
    let opened = site.install(grant, TARGET, (53, 53));
    let udp_gate = (opened.address, opened.ports.0);
    let syn = packets::tcp((CLIENT, 9_000), tcp_gate, tcp::Repr::new(0, 0, tcp::Control::Syn, 1));
    let query = packets::udp((CLIENT, 9_000), udp_gate, b"query, long enough for a trailer");
    for packet in [&syn, &query] {
        assert_eq!(site.outside_sends(packet).dropped(), Reason::ModeTooWeak);
        let with = |site: &mut Site, mode, client_id| {
            let out = site.send_with(Port::OUTSIDE, packet, Permission { mode, client_id });
            (out.verdict, out.packet.len())
        };
        assert_eq!(with(&mut site, DataMode::Capability, CLIENT_ID + 1).0, Verdict::Drop(Reason::ModeTooWeak));
        assert_eq!(with(&mut site, DataMode::Capability, CLIENT_ID), (Verdict::Forward(Port::INSIDE), packet.len()));
    }
}

#[test]
fn a_capability_of_the_client_stands_in_for_a_trailer_and_a_trailer_beside_it_is_taken_off() {
    let (mut site, _, gate) = site();
    let permission = Permission { mode: DataMode::Capability, client_id: CLIENT_ID };
    let mut with = |packet: &[u8]| {
        let out = site.send_with(Port::OUTSIDE, packet, permission);
        (out.verdict, out.packet)
    };
    let inside = Verdict::Forward(Port::INSIDE);
    let (verdict, out) = with(&packets::udp((CLIENT, 9_000), gate, b"bare, and long enough for a trailer"));
    assert_eq!((verdict, payload_of(&out)), (inside, b"bare, and long enough for a trailer".to_vec()));
    let (verdict, out) = with(&datagram(gate, 1, b"both"));
    assert_eq!((verdict, payload_of(&out)), (inside, b"both".to_vec()));
    check_checksums(&out);
    assert_eq!(with(&datagram(gate, 1, b"both")).0, Verdict::Drop(Reason::MacReplayed));
}

#[test]
fn a_renewal_goes_on_with_key_and_numbers_and_another_client_id_begins_anew() {
    let (mut site, grant, gate) = site();
    site.outside_sends(&datagram(gate, 7, b"a")).inside();
    let later = Grant { not_after: grant.not_after.plus_secs(60), ..grant };
    site.gate.translator.install(site.now, site.unix, spec_with(later.clone(), TARGET, None)).unwrap();
    assert_eq!(site.outside_sends(&datagram(gate, 7, b"a")).dropped(), Reason::MacReplayed);
    site.outside_sends(&datagram(gate, 8, b"b")).inside();
    let (other_id, other_key) = (CLIENT_ID + 1, SessionKeys::from_bytes([[1; 16]; 2]));
    let again = Grant { not_after: later.not_after.plus_secs(60), client_id: other_id, ..later };
    site.gate.translator.install(site.now, site.unix, spec_with(again, TARGET, Some(other_key.clone()))).unwrap();
    assert_eq!(site.outside_sends(&datagram(gate, 9, b"c")).dropped(), Reason::MacMissing);
    let fresh = [&b"c"[..], &trailer(&other_key.to_service, other_id, gate.1, 1, b"c")].concat();
    site.outside_sends(&packets::udp((CLIENT, 9_000), gate, &fresh)).inside();
    let weaker = Grant { not_after: later.not_after.plus_secs(120), least_mode: DataMode::Pinhole, ..later };
    let refused = site.gate.translator.install(site.now, site.unix, spec_with(weaker, TARGET, None));
    assert_eq!(refused, Err(InstallError::Conflict(later.id)), "a grant does not change its mode under its flows");
}

#[test]
fn a_restart_forgets_the_key_and_remembers_what_came() {
    let (mut site, grant, gate) = site();
    let (seen, next) = (datagram(gate, 5, b"seen"), datagram(gate, 6, b"next"));
    site.outside_sends(&seen).inside();
    let mut bytes = Vec::new();
    sluicegate_nat::Export::whole(&site.gate.translator, &mut |part| bytes.extend_from_slice(part));
    assert!(!bytes.windows(16).any(|window| window == key().expose()), "no key is written");
    let mut again = Site::new();
    again.gate = firewall(config(), [200; 16], 99);
    again.gate.translator.set_services(&services()).unwrap();
    sluicegate_nat::import(&mut again.gate.translator, again.now, again.unix, &bytes).unwrap();
    assert_eq!(again.outside_sends(&next).dropped(), Reason::ModeTooWeak);
    again.gate.translator.install(again.now, again.unix, spec_with(grant, TARGET, Some(keys()))).unwrap();
    assert_eq!(again.outside_sends(&seen).dropped(), Reason::MacReplayed);
    assert_eq!(again.outside_sends(&datagram(gate, 4, b"older")).dropped(), Reason::MacReplayed);
    again.outside_sends(&next).inside();
}

#[test]
fn a_revoked_grants_key_is_gone_and_the_table_is_as_large_as_that_of_pinholes() {
    let (mut site, grant, _) = site();
    let (pinholes, max) = site.gauge("pinholes");
    assert_eq!(site.gauge("packet_macs"), (1, max));
    for _ in pinholes..max {
        open_mac(&mut site, CLIENT, TARGET, UDP, Some(keys()));
    }
    let used = site.used("packet_macs");
    assert_eq!(used, max - pinholes + 1);
    let next = Grant { least_mode: DataMode::Mac, ..site.grant(UDP, CLIENT) };
    let full = site.gate.translator.install(site.now, site.unix, spec_with(next.clone(), TARGET, Some(keys())));
    assert_eq!(full, Err(InstallError::Full(max)));
    site.gate.translator.revoke(site.now, grant.id).unwrap();
    let pinholes = site.gate.translator.pinholes();
    let has_key = |slot| pinholes.macs.seals.at(slot).unwrap().has_key();
    assert!(pinholes.table.iter().any(|(slot, pinhole)| !pinhole.is_live() && !has_key(slot)));
    // The remembered one gives way.
    site.gate.translator.install(site.now, site.unix, spec_with(next, TARGET, Some(keys()))).unwrap();
    assert_eq!(site.used("packet_macs"), used);
}

#[test]
fn observe_mode_counts_and_forwards_and_hides_the_trailer_from_the_service() {
    let (mut site, _, gate) = site();
    site.gate.translator.observe(true);
    let replayed = datagram(gate, 1, b"hello");
    assert_eq!(payload_of(&site.outside_sends(&replayed).inside()), b"hello");
    assert_eq!(payload_of(&site.outside_sends(&replayed).inside()), b"hello");
    assert_eq!(payload_of(&site.outside_sends(&packets::udp((CLIENT, 9_000), gate, b"bare")).inside()), b"bare");
    let observed = |reason| site.gate.translator.pinholes().counters.observed[reason as usize];
    assert_eq!((observed(Reason::MacReplayed), observed(Reason::MacMissing)), (1, 1));
}

#[test]
fn trace_names_the_mode_and_a_missing_key() {
    let (site, _, gate) = site();
    let tuple = |gate: End| Tuple { protocol: UDP, src: (CLIENT, 9_000), dst: gate };
    let probe = |gate: End| Probe { tuple: tuple(gate), port: Port::OUTSIDE };
    let told = site.gate.translator.explain(site.now, site.unix, &probe(gate));
    assert_eq!(told.verdict, Verdict::Forward(Port::INSIDE));
    assert!(told.steps.iter().any(|step| step.starts_with("Mode mac: a datagram")), "{:?}", told.steps);
    let mut site = Site::new();
    let (_, gate) = open_mac(&mut site, CLIENT, TARGET, UDP, None);
    let told = site.gate.translator.explain(site.now, site.unix, &probe(gate));
    assert_eq!(told.verdict, Verdict::Drop(Reason::ModeTooWeak));
    assert!(told.steps.iter().any(|step| step.starts_with("Mode mac, but this gate has not got the key")));
}

proptest! {
    /// The site checks the checksums of all that leaves.
    #[test]
    fn any_payload_comes_out_as_it_went_in_with_right_lengths_and_checksums(
        text in proptest::collection::vec(any::<u8>(), 0..1_400),
        has_checksum in any::<bool>(),
        padding in 0usize..20,
    ) {
        let (mut site, _, gate) = site();
        let mut packet = datagram(gate, 1, &text);
        if !has_checksum {
            packet[26..28].fill(0);
        }
        packet.extend(vec![0; padding]);
        let inside = site.outside_sends(&packet).inside();
        prop_assert_eq!(inside.len(), 28 + text.len());
        prop_assert_eq!(payload_of(&inside), text);
        prop_assert_eq!(inside[26..28] == [0, 0], !has_checksum);
    }

    #[test]
    fn no_change_to_a_captured_datagram_brings_a_byte_to_the_service(
        text in proptest::collection::vec(any::<u8>(), 0..64),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        cut in 0usize..40,
    ) {
        let (mut site, grant, gate) = site();
        let mut captured = sealed(gate, 1, &text);
        let at = at.index(captured.len());
        captured[at] ^= flip;
        let forged = site.outside_sends(&packets::udp((CLIENT, 9_000), gate, &captured)).dropped();
        prop_assert!(matches!(forged, Reason::MacForged | Reason::MacMissing));
        captured[at] ^= flip;
        if cut > 0 {
            let len = captured.len().saturating_sub(cut);
            prop_assert!(matches!(
                site.outside_sends(&packets::udp((CLIENT, 9_000), gate, &captured[..len])).dropped(),
                Reason::MacForged | Reason::MacMissing
            ));
        }
        prop_assert_eq!(site.gate.translator.usage(grant.id).unwrap().bytes_used, 0);
        prop_assert_eq!(site.outside_sends(&packets::udp((CLIENT, 9_000), gate, &captured)).inside().len(), 28 + captured.len() - TRAILER_LEN);
    }
}
