//! Nothing is allocated for whom nobody knows: counted, not promised.

use std::net::SocketAddr;

use allocation_counter::measure;
use sluicegate_proxy::{Contact, Flow, Locations, Now};

use crate::{
    keep_alives::BINDING,
    site::{AUDIO, Caller, PHONE, Site, phone, set_up},
};

/// What one datagram allocates that has come before, answer included.
fn allocations(site: &mut Site, datagram: &[u8]) -> u64 {
    let flow = Flow::datagrams(0, PHONE.parse().unwrap());
    let now = Now { instant: site.instant, unix: site.unix };
    let shard = &mut site.shards[0];
    let mut counted = 0;
    // The first fills buffers that are kept, and the notes that `trace` gets of a second's wrong passwords.
    for _ in 0..100 {
        counted = measure(|| shard.on_datagram(now, flow, datagram)).count_total;
        shard.transmits().clear();
        while shard.poll_event().is_some() {}
    }
    counted
}

#[test]
fn d15_no_datagram_without_proof_allocates() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let uri = "sip:pbx@example.net";
    let fresh = |method: &str, headers: &str| {
        Caller { call_id: "fresh".into(), ..phone() }.request(method, uri, headers, AUDIO)
    };
    let plain = fresh("INVITE", "");
    let (_, challenge) = site.send(PHONE, &plain).pop().unwrap();
    let mut wrong = Caller { password: "guess".into(), call_id: "wrong".into(), ..phone() };
    let wrong = wrong.answered(&challenge, "INVITE", uri, "", AUDIO);
    let escaped = wrong.replacen("username=\"alice\"", "username=\"al\\ice\"", 1);
    let stale = wrong.replacen("nonce=\"", "nonce=\"A", 1);
    let other =
        "Proxy-Authorization: Digest username=\"a\", realm=\"o\\ther\", nonce=\"n\", uri=\"x\", response=\"0\"\r\n";
    let agent = Caller::new("alice", PHONE).agent().request("INVITE", uri, "", AUDIO);
    let forged = alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "").replacen(";sg=", ";sg=A", 1);
    let tagged = alice.request("INVITE", uri, "", AUDIO).replacen("Route:", "X:", 1);
    let response = |branch: &str| {
        format!("SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 203.0.113.1;branch={branch}\r\nCSeq: 1 INVITE\r\n\r\n")
    };
    for (what, datagram) in [
        ("garbage", "abc".to_owned()),
        ("keep-alive", "\r\n\r\n".to_owned()),
        ("bare LF", plain.replace("\r\n", "\n")),
        ("INVITE", plain),
        ("INVITE of an agent", agent),
        ("REGISTER", fresh("REGISTER", "")),
        ("OPTIONS", fresh("OPTIONS", "")),
        ("BYE", fresh("BYE", "")),
        ("ACK", fresh("ACK", "")),
        ("CANCEL", fresh("CANCEL", "")),
        ("MESSAGE", fresh("MESSAGE", "")),
        ("unknown extensions", fresh("OPTIONS", "Require: a, b, c\r\n")),
        ("credentials for others", fresh("INVITE", other)),
        ("wrong digest", wrong),
        ("a name with escapes", escaped),
        ("stale nonce", stale),
        ("forged cookie", forged),
        ("foreign tag", tagged),
        ("foreign response", response("z9hG4bKother")),
        ("response that might be ours", response("z9hG4bKAAAAAAAAAAAAAAAAAAAAAAAA")),
    ] {
        assert_eq!(allocations(&mut site, datagram.as_bytes()), 0, "{what}");
    }
    for (what, datagram) in [("STUN", BINDING.to_vec()), ("other STUN", [b"\x01", &BINDING[1..]].concat())] {
        assert_eq!(allocations(&mut site, &datagram), 0, "{what}");
    }
}

/// What a registered telephone takes, at most, in bytes: about four times what it says.
const BYTES_PER_PHONE: u64 = 1_024;

#[test]
fn a_hundred_thousand_registered_telephones_take_less_than_a_kilobyte_each() {
    const PHONES: usize = 100_000;
    let mut site = Site::new();
    let contact = "Contact: <sip:alice@192.168.0.9:5060;transport=udp;line=f6a9c1d2e3>;q=0.9;\
        +sip.instance=\"<urn:uuid:00000000-0000-1000-8000-AABBCCDDEEFF>\";reg-id=1\r\nSupported: outbound, path\r\n";
    Caller { to: "sip:alice@example.net".into(), ..phone() }.sign_in(
        &mut site,
        "REGISTER",
        "sip:example.net",
        contact,
        "",
    );
    let known = site.locations.of(site.instant, "alice");
    let locations = Locations::new(PHONES, 10);
    let measured = measure(|| {
        for nth in 0..PHONES {
            let ports = u16::try_from(nth % 60_000).unwrap_or_default();
            let flow = Flow { peer: (PHONE.parse::<SocketAddr>().unwrap().ip(), ports).into(), ..known[0].flow };
            let contact = Contact { flow, ..Contact::clone(&known[0]) };
            locations.restore(site.instant, &format!("user-{nth:06}"), vec![contact]);
        }
    });
    assert_eq!(locations.gauge().used, PHONES as u64);
    let each = u64::try_from(measured.bytes_current).unwrap() / PHONES as u64;
    let most = measured.bytes_max / PHONES as u64;
    println!("{each} bytes for each of {PHONES} telephones, at most {most} while their table grew");
    assert!(each <= BYTES_PER_PHONE);
    // All of it comes back.
    let freed = measure(|| {
        locations.expire(known[0].expires);
        assert_eq!(locations.take_changed().len(), PHONES);
    });
    println!("{} bytes for each are free again", -freed.bytes_current / PHONES as i64);
    assert_eq!(locations.users(), 0);
}
