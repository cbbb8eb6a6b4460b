//! What is wrong with a peer.

use sluicegate_sip::message::Transport;

use super::{LIST_LEN_MAX, Report, is_host, is_number};
use crate::{Service, SipPeer};

/// Most calls at once, and a second, of one peer.
const CALLS_MAX: u32 = 10_000;

pub(super) fn check(report: &mut Report, peer: &SipPeer, (earlier, services): (&[SipPeer], &[Service])) {
    report.name(&peer.name);
    let lists = [("addresses", peer.addresses.len()), ("media", peer.media.len())];
    let lists = lists.into_iter().chain([("numbers", peer.numbers.len()), ("callers", peer.callers.len())]);
    lists.for_each(|(field, len)| report.list_len(field, len, LIST_LEN_MAX));
    if peer.addresses.is_empty() {
        report.error("addresses", "nobody is it", "write where it connects from: addresses = [\"198.51.100.0/28\"]");
    }
    if peer.certificate.is_none() {
        let message = "an address proves nothing: a peer is known by the certificate that it shows over TLS";
        report.error("certificate", message, "write its name, or certificate = \"sha256:FINGERPRINT\"");
    }
    target(report, peer);
    let numbers = peer.numbers.iter().map(|number| ("numbers", number));
    let callers = peer.callers.iter().map(|caller| ("callers", caller));
    if let Some((field, number)) = numbers.chain(callers).find(|(_, number)| !is_number(number)) {
        report.error(
            field,
            format!("{number:?} is no number"),
            "write a name or its beginning and *, such as \"+49*\"",
        );
    }
    for (field, count) in [("calls_max", peer.calls_max), ("calls_per_s", peer.calls_per_s)] {
        if !(1..=CALLS_MAX).contains(&count) {
            report.error(field, format!("{field} = {count} is out of range"), format!("write 1 to {CALLS_MAX}"));
        }
    }
    let shares = |other: &&SipPeer| {
        let overlaps = |network| other.addresses.iter().any(|theirs| theirs.overlaps(network));
        other.certificate == peer.certificate && peer.addresses.iter().any(overlaps)
    };
    if let Some(other) = earlier.iter().find(shares) {
        let message = format!("peer {:?} shows the same certificate from there", other.name);
        report.error("certificate", message, "two peers differ in their certificates or addresses");
    }
    let is_same =
        |service: &&Service| peer.is_at(service.address) && Some(service.certificate_or_default()) == peer.certificate;
    if let Some(service) = services.iter().find(is_same) {
        let message = format!("service {:?} shows the same certificate from there", service.name);
        report.error("certificate", message, "a server is either behind a gate or a peer: remove one of the two");
    }
}

/// Where it is called, and what for.
fn target(report: &mut Report, peer: &SipPeer) {
    let Some(sip) = peer.sip else {
        if !peer.numbers.is_empty() {
            report.error("numbers", "it is called nowhere", "write sip = \"tls/ADDRESS:PORT\", or remove numbers");
        }
        return;
    };
    if sip.transport != Transport::Tls {
        let message = format!("{sip} is not TLS, and over {} nobody shows a certificate", sip.transport.param());
        report.error("sip", message, format!("write \"tls/{}\"", sip.address));
    }
    if !is_host(sip.address.ip()) || sip.address.port() == 0 {
        report.error("sip", format!("{} is no address and port of a host", sip.address), "write \"tls/ADDRESS:PORT\"");
    }
    if peer.numbers.is_empty() {
        report.warn("sip", "no service calls it", "write what is dialled: numbers = [\"+*\"], or remove sip");
    }
}
