//! STUN on SIP ports (RFC 5626 sections 4.4.2, 5.4 and 8).

use sluicegate_proxy::{ConnectionId, Count, Flow};

use crate::site::{PHONE, Site, phone, status};

/// A Binding request without attributes, as RFC 5626 section 8 has it, with the transaction of RFC 5769.
pub(crate) const BINDING: &[u8] = b"\x00\x01\x00\x00\x21\x12\xa4\x42\xb7\xe7\xa7\x01\xbc\x34\xd6\x86\xfa\x87\xdf\xae";

/// Section 8: "MUST include the XOR-MAPPED-ADDRESS", here the one of RFC 5769 section 2.2.
#[test]
fn a_binding_request_is_told_whence_it_came_and_nothing_else_happens() {
    let mut site = Site::new();
    let mut sent = site.send_raw("192.0.2.1:32853", BINDING);
    let (to, answer) = sent.pop().unwrap();
    assert_eq!((to.to_string().as_str(), sent.len()), ("192.0.2.1:32853", 0));
    assert_eq!(answer[..20], [&[1, 1, 0, 12], &BINDING[4..]].concat());
    assert_eq!(answer[20..], *b"\x00\x20\x00\x08\x00\x01\xa1\x47\xe1\x12\xa6\x43");
    assert_eq!((site.metrics[0].count(Count::Keepalives), site.metrics[0].count(Count::Garbage)), (1, 0));
    assert!(site.events.is_empty() && site.shards[0].gauges(site.instant).iter().all(|gauge| gauge.used == 0));
    // SIP goes on over the same flow.
    let options = phone().request("OPTIONS", "sip:example.net", "", "");
    assert_eq!(status(&site.send(PHONE, options)[0].1), 200);
}

#[test]
fn stun_that_is_no_binding_request_is_dropped_and_counted() {
    let mut site = Site::new();
    let with = |at: usize, byte| {
        let mut changed = BINDING.to_vec();
        changed[at] = byte;
        changed
    };
    let fingerprint = [&with(3, 8)[..], b"\x80\x28\x00\x04\x01\x02\x03\x04"].concat();
    let dropped = [with(0, 1), with(1, 0x11), with(1, 3), with(3, 4), with(3, 1), BINDING[..12].to_vec(), fingerprint];
    for (datagram, nth) in dropped.iter().zip(1..) {
        assert!(site.send_raw(PHONE, datagram).is_empty(), "{datagram:x?}");
        assert_eq!(site.metrics[0].count(Count::StunDropped), nth);
    }
    // Section 4.4.2: "it MUST NOT be used for connection-oriented transports".
    let connected = Flow { connection: ConnectionId::new(0, 1), ..Flow::datagrams(0, PHONE.parse().unwrap()) };
    assert!(site.send_over(connected, BINDING).is_empty());
    assert_eq!(site.metrics[0].count(Count::Keepalives), 0);
}

#[test]
fn answers_to_stun_come_out_of_what_strangers_get_together() {
    let mut site = Site::new();
    site.unproved_answers_per_s = 1;
    site.start(1);
    let answered = |site: &mut Site| (0..1_000).filter(|_| !site.send_raw(PHONE, BINDING).is_empty()).count();
    // The upper half of 1,024 bytes: the lower one is for those who have not had their own ten answers yet.
    assert_eq!(answered(&mut site), 512 / 32);
    assert_eq!(site.metrics[0].count(Count::AnswersTooMany), 1_000 - 512 / 32);
    let options = phone().request("OPTIONS", "sip:example.net", "", "");
    assert!(site.send_raw(PHONE, options).is_empty(), "nor is SIP answered there any more");
}
