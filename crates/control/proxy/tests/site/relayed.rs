//! Calls to a service that takes SIP itself.

use sluicegate_policy::Service;
use sluicegate_proxy::Flow;
use sluicegate_sip::{message::Message, write::Response};

use super::{AUDIO, Caller, PBX, PHONE, Site, status};

/// What the SIP server answers with: its own address and ports.
pub(crate) const ANSWER: &str = "v=0\r\no=pbx 5 5 IN IP4 10.0.0.2\r\ns=-\r\nc=IN IP4 10.0.0.2\r\nt=0 0\r\n\
    m=audio 4500 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";

impl Site {
    /// From now on this service is another.
    pub(crate) fn change_service(&mut self, name: &str, change: impl FnOnce(&mut Service)) {
        let mut services: Vec<Service> = self.policy.services().map(|service| Service::clone(service)).collect();
        change(services.iter_mut().find(|service| service.name == name).unwrap());
        self.change(services, *self.policy.per_user());
    }

    /// What shard 0 has to send, and over which flows.
    pub(crate) fn take_flows(&mut self) -> Vec<(Flow, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let sent = self.shards[0].transmits().iter().map(|(flow, bytes)| (flow, text(bytes))).collect();
        self.drain(0);
        sent
    }
}

pub(crate) fn phone() -> Caller {
    Caller::new("alice", PHONE).calls("pbx")
}

/// Calls the SIP server; the INVITE as it got there.
pub(crate) fn relayed(site: &mut Site, alice: &mut Caller) -> String {
    let signed = alice.signed(site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let mut sent = site.send(PHONE, signed);
    let trying = sent.pop().unwrap();
    assert_eq!((trying.0.to_string().as_str(), status(&trying.1)), (PHONE, 100));
    let (to, invite) = sent.pop().unwrap();
    assert_eq!(to.to_string(), PBX);
    invite
}

pub(crate) fn reply(to: &str, code: u16, body: &str) -> String {
    let request = Message::parse(to.as_bytes()).unwrap();
    let mut out = Vec::new();
    let headers = Response::to(&request, code).to_tag(b"pbx-tag").record_route().begin(&mut out);
    let headers = headers.header("Contact", "<sip:pbx@10.0.0.2:5060>");
    if body.is_empty() {
        headers.finish();
    } else {
        headers.body("application/sdp", body.as_bytes());
    }
    String::from_utf8(out).unwrap()
}

/// Sets a call to the SIP server up, ACK included; the 200 as the telephone got it.
pub(crate) fn set_up(site: &mut Site, alice: &mut Caller) -> String {
    let invite = relayed(site, alice);
    assert!(site.send(PBX, reply(&invite, 200, ANSWER)).is_empty(), "the answer waits for the gate");
    let (to, ok) = site.gate_opens().pop().unwrap();
    assert_eq!((to.to_string().as_str(), status(&ok)), (PHONE, 200));
    alice.take_dialog(&ok);
    let ack = alice.request("ACK", "sip:pbx@10.0.0.2:5060", "", "");
    let (to, ack) = site.send(PHONE, ack).pop().unwrap();
    assert_eq!(to.to_string(), PBX);
    assert!(ack.starts_with("ACK sip:pbx@10.0.0.2:5060 "));
    ok
}

/// A BYE as the service sends it.
pub(crate) fn bye_of_service(alice: &Caller) -> String {
    of_service(alice, "BYE", 1, "")
}

/// A request within the call as the service sends it: the roles of From and To swapped.
pub(crate) fn of_service(alice: &Caller, method: &str, cseq: u32, body: &str) -> String {
    let kind = if body.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
    format!(
        "{method} sip:alice@{PHONE} SIP/2.0\r\nVia: SIP/2.0/UDP {PBX};branch=z9hG4bKpbx{method}{cseq};rport\r\nMax-Forwards: 70\r\n\
        Route: {}\r\nFrom: <{}>;tag={}\r\nTo: <sip:alice@example.net>;tag=alice-tag\r\nCall-ID: {}\r\nCSeq: {cseq} {method}\r\n\
        Contact: <sip:pbx@10.0.0.2:5060>\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        alice.route.as_ref().unwrap(),
        alice.to,
        alice.to_tag.as_ref().unwrap(),
        alice.call_id,
        body.len(),
    )
}
