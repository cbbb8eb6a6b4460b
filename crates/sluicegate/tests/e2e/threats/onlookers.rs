//! Attackers on the path. Each sees real packets of a real flow; what they send is their own.

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use sluicegate_capability::secrets::seal;
use sluicegate_wire::{
    IpProtocol,
    capability::{Algorithm, Capability, CapabilityList, ClientId, FlowNonce, Kind, Limits, Repr},
};

use super::site::{CLIENT, Count, GRANT_BYTES, LAN_MATE, OTHER_SERVICE, SERVICE, Site, UDP_PORT, header, packet};
use crate::support::{
    capture::{Capture, Seen},
    let_run,
    node::Node,
    until,
};

/// Bytes that are charged for each packet of an attack.
const PACKET: usize = 1_000;
/// Packets beyond what a grant is worth.
const MANY: usize = 250;
const GRANT_S: u8 = 8;

/// Has the client talk to the service until a packet with its capabilities was seen at `at`; gives the header, and the
/// destinations, who are silent from then on: nothing but what attackers send is counted.
fn overheard(site: &Site, at: (&str, &'static str)) -> (Repr, [UdpSocket; 2]) {
    let capture = Capture::start(&site.lab, at, |seen| seen.from == CLIENT && seen.protocol == 253);
    let [service, other] = [SERVICE, OTHER_SERVICE].map(|address| site.lab.udp("service", address, UDP_PORT));
    service.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let client = site.lab.udp("client", CLIENT, UDP_PORT);
    let seen = until("a packet with capabilities is seen", || {
        client.send_to(&[0x5a; 64], (SERVICE, UDP_PORT)).ok();
        let mut bytes = [0; 256];
        if let Ok((len, from)) = service.recv_from(&mut bytes) {
            service.send_to(&bytes[..len], from).ok();
        }
        capture.seen().iter().filter_map(header).find(is_listed)
    });
    // What hosts still have to say to each other, and what nodes count, which they publish ten times a second.
    let_run(Duration::from_millis(500));
    (seen.with_return(None), [service, other])
}

fn is_listed(header: &Repr) -> bool {
    matches!(header, Repr::Regular { kind: Kind::Capabilities, demoted: false, .. })
}

/// Somewhere to send from: where, towards whom, and the first node that looks.
#[derive(Clone, Copy)]
struct Place<'a> {
    site: &'a Site,
    from: (&'static str, &'static str),
    towards: (&'static str, &'static str),
    node: &'a Node,
}

impl Place<'_> {
    /// Sends so many packets of [`PACKET`] bytes; how many came out behind the gate as regular, and what the first node
    /// that looked made of them.
    fn send(&self, what: &str, (src, dst): (Ipv4Addr, Ipv4Addr), header: &Repr, count: usize) -> (u64, Count) {
        let own = |seen: &Seen| seen.protocol == 253 && seen.bytes.len() == PACKET;
        let behind = Capture::start(&self.site.lab, ("site", "to_gate"), own);
        let before = Count::of(self.node);
        self.site.inject(self.from, self.towards, &vec![packet(src, dst, header, PACKET); count]);
        let counted = Count::of(self.node).since(before);
        let passed = behind.seen().iter().filter_map(self::header).filter(is_regular).count() as u64;
        println!("{what}: {passed} of {count} packets passed as regular; {counted:?}");
        (passed, counted)
    }

    /// As [`Self::send`], for what must be refused as forged.
    #[track_caller]
    fn fails(&self, what: &str, ends: (Ipv4Addr, Ipv4Addr), header: &Repr) {
        let (passed, counted) = self.send(what, ends, header, 20);
        assert_eq!((passed, counted.forged), (0, 20), "{what}");
    }

    /// As [`Self::send`], for what is worth `bytes` and not a byte more.
    #[track_caller]
    fn passes(&self, what: &str, ends: (Ipv4Addr, Ipv4Addr), header: &Repr, bytes: u64) {
        let count = bytes as usize / PACKET + MANY;
        let (passed, counted) = self.send(what, ends, header, count);
        assert!(passed * PACKET as u64 > bytes / 2 && passed * PACKET as u64 <= bytes, "{what}: {passed}");
        assert!(passed + counted.spent <= count as u64 && counted.spent >= MANY as u64, "{what}: {counted:?}");
    }
}

const fn is_regular(header: &Repr) -> bool {
    matches!(header, Repr::Regular { demoted: false, .. })
}

/// The places of the attackers: on the sender's LAN, at another edge of the network, and behind the first router.
fn places(site: &Site) -> [Place<'_>; 3] {
    [
        Place { site, from: ("snoop", "to_r1"), towards: ("r1", "lan"), node: &site.r1 },
        Place { site, from: ("elsewhere", "eth0"), towards: ("r2", "lan"), node: &site.r2 },
        Place { site, from: ("ix", "to_gate"), towards: ("gate", "wan"), node: &site.gate },
    ]
}

pub(super) fn sniffer(datapath: &'static str) {
    let site = Site::new(datapath, GRANT_S);
    let [lan, elsewhere, _] = places(&site);
    let (seen, _silent) = overheard(&site, ("snoop", "to_edge"));
    lan.fails("a copy under another address", (LAN_MATE, SERVICE), &seen);
    lan.fails("a copy to another destination", (CLIENT, OTHER_SERVICE), &seen);
    elsewhere.fails("a copy from another place", (CLIENT, SERVICE), &seen);
    // From where it listens, in the client's name: N bytes, and the rest is demoted.
    lan.passes("a copy", (CLIENT, SERVICE), &seen, GRANT_BYTES);
    // Later: nothing. Lines live no longer than the capability.
    let_run(Duration::from_secs(u64::from(GRANT_S) + 1));
    let (passed, counted) = lan.send("a copy, later", (CLIENT, SERVICE), &seen, 20);
    assert_eq!((passed, counted.expired), (0, 20));
}

pub(super) fn compromised_router(datapath: &'static str) {
    let site = Site::new(datapath, GRANT_S);
    // Behind the first router all that it knows can be seen, and whoever owns it sends from there.
    let [.., place] = places(&site);
    let (seen, _silent) = overheard(&site, ("ix", "to_r1"));
    // Its own entry it can make; the gate's it has to guess.
    let guess = |entry: Capability| Capability(entry.0 ^ 0x5a5a);
    place.fails("capabilities of its own making", (CLIENT, SERVICE), &changed(&seen, guess, None));
    let more = Limits::new(Limits::KILOBYTES_MAX, 63);
    place.fails("the client's with a larger N and T", (CLIENT, SERVICE), &changed(&seen, |entry| entry, more));
    place.fails("the client's to another destination", (CLIENT, OTHER_SERVICE), &seen);
    place.fails("the client's from another source", (LAN_MATE, SERVICE), &seen);
    place.passes("the client's own", (CLIENT, SERVICE), &seen, GRANT_BYTES);
}

/// The header under a nonce of one's own, with other entries or other limits.
fn changed(header: &Repr, entry: impl Fn(Capability) -> Capability, more: Option<Limits>) -> Repr {
    let mut changed = *header;
    let Repr::Regular { nonce, limits, list, .. } = &mut changed else { panic!("{header:?}") };
    *nonce = FlowNonce(nonce.0 ^ 1);
    *limits = more.or(*limits);
    *list = list.iter().map(entry).collect();
    changed
}

pub(super) fn grantor(datapath: &'static str) {
    let site = Site::new(datapath, GRANT_S);
    // On the receiver's LAN requests arrive with everything that a grant is made of.
    let requests = Capture::start(&site.lab, ("site", "to_gate"), |seen| seen.from == LAN_MATE && seen.protocol == 253);
    let request = Repr::request(Algorithm::SipHash, ClientId::NONE, 8, IpProtocol::UDP);
    site.inject(("snoop", "to_r1"), ("r1", "lan"), &[packet(LAN_MATE, SERVICE, &request, PACKET)]);
    let stamped = until("the request arrives", || requests.seen().iter().filter_map(header).next());
    let Repr::Request { entries, .. } = stamped else { panic!("{stamped:?}") };
    assert_eq!(entries.len(), 2, "one of the router, one of the gate");
    let limits = Limits::new(Limits::KILOBYTES_MAX, 60).expect("possible limits");
    let list: CapabilityList = entries.iter().map(|slot| seal(Algorithm::SipHash, slot.capability, limits)).collect();
    let header = Repr::Regular {
        algorithm: Algorithm::SipHash,
        kind: Kind::Capabilities,
        nonce: FlowNonce(77),
        client_id: ClientId::NONE,
        limits: Some(limits),
        list,
        pointer: 0,
        demoted: false,
        upper: IpProtocol::UDP,
        ret: None,
    };

    // The accomplice gets what the two of them agreed on, at that receiver. Nobody else is reached by it, and nobody else
    // can use it.
    let [lan, elsewhere, _] = places(&site);
    lan.fails("to another destination", (LAN_MATE, OTHER_SERVICE), &header);
    lan.fails("by another source", (CLIENT, SERVICE), &header);
    elsewhere.fails("from another place", (LAN_MATE, SERVICE), &header);
    lan.passes("granted in the receiver's name", (LAN_MATE, SERVICE), &header, limits.bytes());
}
