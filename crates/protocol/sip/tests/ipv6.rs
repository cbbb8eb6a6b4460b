//! IPv6 addresses wherever RFC 5118 puts them.

use sluicegate_sip::{
    message::{HeaderName, Message, Via},
    sdp::Session,
    uri::{Host, Uri, UriError},
};

macro_rules! messages {
    ($($name:literal),*) => { [$(($name, include_bytes!(concat!("torture/", $name, ".dat")) as &[u8])),*] };
}

/// The messages of RFC 5118 but for the one that is wrong.
const VALID: [(&str, &[u8]); 11] = messages!(
    "ipv6-good",
    "port-ambiguous",
    "port-unambiguous",
    "via-received-param-with-delim",
    "via-received-param-no-delim",
    "ipv6-in-sdp",
    "mult-ip-in-header",
    "mult-ip-in-sdp",
    "ipv4-mapped-ipv6",
    "ipv6-bug-abnf-3-colons",
    "ipv6-correct-abnf-2-colons"
);

#[test]
fn the_messages_of_the_rfc_are_read_whole() {
    for (name, bytes) in VALID {
        let message = Message::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let fields = message.essentials().unwrap_or_else(|error| panic!("{name}: {error}"));
        for uri in [message.request_uri().unwrap(), fields.to.uri, fields.from.uri] {
            assert!(Uri::parse(uri).is_ok(), "{name}: {}", String::from_utf8_lossy(uri));
        }
        assert!(message.contacts().all(|contact| Uri::parse(contact.unwrap().uri).is_ok()), "{name}");
        assert!(message.headers(HeaderName::Via).all(|via| Via::parse(via).is_ok()), "{name}");
        assert!(message.body().is_empty() || Session::parse(message.body()).is_ok(), "{name}");
    }
    let [(_, bad)] = messages!("ipv6-bad");
    assert_eq!(Uri::parse(Message::parse(bad).unwrap().request_uri().unwrap()), Err(UriError::Host));
}

fn host(text: &str) -> Host<'_> {
    Host::Address(text.parse().unwrap())
}

#[test]
fn a_literal_without_brackets_is_no_host() {
    assert_eq!(Uri::parse(b"sip:2001:db8::10"), Err(UriError::Host));
    assert_eq!(Uri::parse(b"sip:[2001:db8::10]").unwrap().host, Some(host("2001:db8::10")));
}

#[test]
fn a_port_inside_the_brackets_is_part_of_the_address() {
    let uri = Uri::parse(b"sip:[2001:db8::10:5070]").unwrap();
    assert_eq!((uri.host, uri.port), (Some(host("2001:db8::10:5070")), None));
    let uri = Uri::parse(b"sip:[2001:db8::10]:5070").unwrap();
    assert_eq!((uri.host, uri.port), (Some(host("2001:db8::10")), Some(5070)));
}

#[test]
fn received_comes_with_and_without_brackets() {
    for received in ["2001:db8::9:255", "[2001:db8::9:255]"] {
        let text = format!("SIP/2.0/UDP [2001:db8::9:1];received={received};branch=z9hG4bKas3");
        let via = Via::parse(text.as_bytes()).unwrap();
        assert_eq!(via.received, Some(received.as_bytes()));
        assert_eq!((via.host, via.branch), (host("2001:db8::9:1"), Some(&b"z9hG4bKas3"[..])));
    }
}

#[test]
fn a_colon_too_many_before_dotted_decimals_is_borne_and_a_mapped_address_is_one() {
    let bug = Uri::parse(b"sip:user@[2001:db8:::192.0.2.1]").unwrap();
    assert_eq!(bug.host, Some(host("2001:db8::192.0.2.1")));
    assert!(bug.names_same_address(&Uri::parse(b"sip:user@[2001:db8::192.0.2.1]").unwrap()));
    for wrong in ["2001:db8:::1", "2001:db8::::192.0.2.1", ":::192.0.2", "1:2:3:4:5:6:::192.0.2.1", "1::2:::192.0.2.1"]
    {
        assert_eq!(Uri::parse(format!("sip:user@[{wrong}]").as_bytes()), Err(UriError::Host), "{wrong}");
    }
    assert!(Uri::parse(b"sip:user@[::ffff:192.0.2.10]").unwrap().host_is("[::ffff:192.0.2.10]"));
}

#[test]
fn both_families_may_stand_in_one_message() {
    let text = "INVITE sip:user@[2001:db8::20] SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1\r\n\
        To: <sip:user@[2001:db8::20]>\r\nFrom: <sip:user@192.0.2.1>;tag=1\r\nCall-ID: a@[2001:db8::1]\r\n\
        CSeq: 1 INVITE\r\nContact: <sip:user@[2001:db8::1]:5062;transport=udp>\r\n\r\n\
        v=0\r\no=- 1 1 IN IP6 2001:db8::20\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n\
        m=audio 2000 RTP/AVP 0\r\nc=IN IP6 2001:db8::20\r\nm=video 3000 RTP/AVP 31\r\n";
    let message = Message::parse(text.as_bytes()).unwrap();
    let fields = message.essentials().unwrap();
    assert_eq!(fields.call_id, b"a@[2001:db8::1]");
    let contact = message.contact().unwrap().unwrap();
    assert_eq!(Uri::parse(contact.uri).unwrap().port, Some(5062));
    let session = Session::parse(message.body()).unwrap();
    let addresses: Vec<_> = session.media().iter().map(|media| media.address.unwrap().is_ipv6()).collect();
    assert_eq!(addresses, [true, false]);
}
