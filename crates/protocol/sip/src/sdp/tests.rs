use std::{format, net::IpAddr, string::String, vec::Vec};

use super::*;

const PHONE: &[u8] = b"v=0\r\n\
o=mhandley 29739 7272939 IN IP4 192.0.2.1\r\n\
s=-\r\n\
c=IN IP4 192.0.2.1\r\n\
t=0 0\r\n\
a=ice-ufrag:x\r\n\
m=audio 49170 RTP/AVP 0 8\r\n\
i=talk\r\n\
a=rtpmap:0 PCMU/8000\r\n\
a=candidate:1 1 UDP 1 10.0.0.1 9 typ host\r\n\
a=sendonly\r\n\
m=video 51372/2 RTP/AVP 31\r\n\
c=IN IP4 224.2.36.42/127\r\n\
m=audio 0 RTP/AVP 0\r\n\
m=audio 6000 RTP/SAVPF 0\r\n\
a=rtcp:53020 IN IP4 192.0.2.9\r\n\
m=image 7000 udptl t38\r\n\
a=inactive\r\n\
m=audio 8000 UDP/TLS/RTP/SAVPF 0\r\n\
a=rtcp-mux\r\n\
m=message 9 SCTP x\r\n";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn text(out: &[u8]) -> String {
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn a_phones_media_say_what_to_open() {
    let session = Session::parse(PHONE).unwrap();
    assert_eq!((session.origin.version, session.address), (&b"7272939"[..], Some(address("192.0.2.1"))));
    assert_eq!(session.media().len(), 7);
    let udp = |media, at: &str, first, last, rtcp| Wanted::Stream {
        media,
        transport: Transport::Udp,
        address: Some(address(at)),
        first,
        last,
        rtcp,
    };
    let wanted: Vec<_> = session.wanted().collect();
    assert_eq!(
        wanted,
        [
            udp(0, "192.0.2.1", 49_170, 49_171, None),
            udp(1, "224.2.36.42", 51_372, 51_375, None),
            udp(3, "192.0.2.1", 6_000, 6_000, Some(53_020)),
            udp(4, "192.0.2.1", 7_000, 7_000, None),
            udp(5, "192.0.2.1", 8_000, 8_000, None),
        ]
    );
    assert_eq!(session.media()[3].rtcp_address, Some(address("192.0.2.9")));
    assert_eq!(session.media()[0].direction, Direction::SendOnly);
    assert_eq!(session.media()[4].direction, Direction::Inactive);
}

#[test]
fn a_zero_address_is_hold() {
    let held = text(PHONE).replace("c=IN IP4 192.0.2.1", "c=IN IP4 0.0.0.0");
    assert!(Session::parse(held.as_bytes()).unwrap().media()[0].address.unwrap().is_unspecified());
}

#[test]
fn lines_may_end_in_line_feeds_alone() {
    let unix = text(PHONE).replace("\r\n", "\n");
    assert_eq!(Session::parse(unix.as_bytes()).unwrap().wanted().count(), 5);
}

#[test]
fn an_agents_offer_names_service_ports() {
    let ports = [
        ServicePorts { transport: Transport::Tcp, first: 22, last: 22 },
        ServicePorts { transport: Transport::Udp, first: 5004, last: 5100 },
    ];
    let mut offer = Vec::new();
    ServiceOffer { session_id: 5, version: 1, address: address("10.0.0.1"), ports: &ports }.write(&mut offer);
    assert_eq!(
        text(&offer),
        "v=0\r\no=- 5 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\n\
        m=application 9 TCP sluicegate\r\na=setup:active\r\na=connection:new\r\na=service-ports:22\r\n\
        m=application 9 UDP sluicegate\r\na=service-ports:5004-5100\r\n"
    );
    let session = Session::parse(&offer).unwrap();
    let wanted: Vec<_> = session.wanted().collect();
    assert_eq!(wanted[0], Wanted::Service { media: 0, transport: Transport::Tcp, first: 22, last: 22 });
    assert_eq!(wanted[1], Wanted::Service { media: 1, transport: Transport::Udp, first: 5004, last: 5100 });

    let mut answer = Vec::new();
    let media = [MediaAnswer::Accepted { address: address("203.0.113.1"), port: 20_007 }];
    Answer { offer: &session, session_id: 1, version: 1, address: address("203.0.113.1"), media: &media }
        .write(&mut answer);
    let answer = Session::parse(&answer).unwrap();
    assert_eq!(answer.media()[0].service_ports, Some((22, 22)));
    assert_eq!((answer.media()[0].port, answer.media()[0].setup), (20_007, Some(Setup::Passive)));
    assert_eq!((answer.media().len(), answer.media()[1].port), (2, 0));
}

#[test]
fn an_answer_keeps_number_and_order_of_the_media() {
    let offer = Session::parse(PHONE).unwrap();
    let gate = address("2001:db8::1");
    let accepted = MediaAnswer::Accepted { address: gate, port: 30_000 };
    let media = [accepted, MediaAnswer::Refused, accepted];
    let mut out = Vec::new();
    Answer { offer: &offer, session_id: 1, version: 2, address: gate, media: &media }.write(&mut out);
    let answer = Session::parse(&out).unwrap();
    let ports: Vec<_> = answer.media().iter().map(|media| media.port).collect();
    assert_eq!(ports, [30_000, 0, 0, 0, 0, 0, 0]);
    for (one, two) in answer.media().iter().zip(offer.media()) {
        assert_eq!((one.kind, one.protocol, one.formats), (two.kind, two.protocol, two.formats));
    }
    assert_eq!(answer.media()[0].direction, Direction::RecvOnly);
    assert!(text(&out).contains("a=rtpmap:0 PCMU/8000\r\n") && text(&out).contains("c=IN IP6 2001:db8::1\r\n"));
}

#[test]
fn a_rewrite_moves_the_given_media_and_nothing_else() {
    let session = Session::parse(PHONE).unwrap();
    let gate = address("203.0.113.1");
    let edits = [
        MediaEdit { media: 0, address: gate, port: 20_000, rtcp_port: Some(20_001) },
        MediaEdit { media: 3, address: gate, port: 20_002, rtcp_port: Some(20_009) },
    ];
    let mut out = Vec::new();
    Rewrite { session: &session, address: gate, edits: &edits }.write(&mut out);
    assert_eq!(
        text(&out),
        "v=0\r\n\
        o=mhandley 29739 7272939 IN IP4 203.0.113.1\r\n\
        s=-\r\n\
        c=IN IP4 203.0.113.1\r\n\
        t=0 0\r\n\
        m=audio 20000 RTP/AVP 0 8\r\n\
        i=talk\r\n\
        c=IN IP4 203.0.113.1\r\n\
        a=rtpmap:0 PCMU/8000\r\n\
        a=sendonly\r\n\
        m=video 51372/2 RTP/AVP 31\r\n\
        c=IN IP4 224.2.36.42/127\r\n\
        m=audio 0 RTP/AVP 0\r\n\
        c=IN IP4 192.0.2.1\r\n\
        m=audio 20002 RTP/SAVPF 0\r\n\
        c=IN IP4 203.0.113.1\r\n\
        a=rtcp:20009 IN IP4 203.0.113.1\r\n\
        m=image 7000 udptl t38\r\n\
        c=IN IP4 192.0.2.1\r\n\
        a=inactive\r\n\
        m=audio 8000 UDP/TLS/RTP/SAVPF 0\r\n\
        c=IN IP4 192.0.2.1\r\n\
        a=rtcp-mux\r\n\
        m=message 9 SCTP x\r\n\
        c=IN IP4 192.0.2.1\r\n"
    );
}

#[test]
fn malformed_descriptions_say_which_line() {
    let good = text(PHONE);
    for (text, error) in [
        (String::new(), SdpError::Line),
        (good.replace("v=0", "v=1"), SdpError::Line),
        (good.replace("s=-", "no equals sign"), SdpError::Line),
        (good.replace("s=-", "s=a\rb"), SdpError::Line),
        (good.replace("o=mhandley 29739", "o=x"), SdpError::Origin),
        (good.replace("o=mhandley", "x=mhandley"), SdpError::Origin),
        (good.replace("c=IN IP4 192.0.2.1", "c=IN IP4"), SdpError::Connection),
        (good.replace("audio 49170", "audio 70000"), SdpError::Media),
        (good.replace("51372/2", "51372/0"), SdpError::Media),
        (good.replace(" RTP/AVP 31", " RTP/AVP"), SdpError::Media),
        (good.replace("rtcp:53020", "rtcp:x"), SdpError::Attribute),
        (good.replace("a=sendonly", "a=service-ports:30-22"), SdpError::Attribute),
        (good.replace("a=sendonly", "a=service-ports:0"), SdpError::Attribute),
        (format!("{good}x={}", "y".repeat(crate::message::BODY_LEN_MAX)), SdpError::Length),
    ] {
        assert_eq!(Session::parse(text.as_bytes()).err(), Some(error), "{text}");
    }
}

#[test]
fn media_lines_are_bounded() {
    let head = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\n";
    let full = format!("{head}{}", "m=audio 9 RTP/AVP 0\r\n".repeat(MEDIA_MAX));
    assert_eq!(Session::parse(full.as_bytes()).unwrap().media().len(), MEDIA_MAX);
    let over = format!("{full}m=audio 9 RTP/AVP 0\r\n");
    assert_eq!(Session::parse(over.as_bytes()).err(), Some(SdpError::MediaCount));
}

#[test]
fn ports_past_the_last_are_not_wanted() {
    let text = b"v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\nm=audio 65535/9 RTP/AVP 0\r\nm=audio 65535 RTP/AVP 0\r\n";
    let session = Session::parse(text).unwrap();
    // RTCP of port 65535 would be on port 65536: there is none to open.
    let wanted: Vec<_> = session.wanted().collect();
    assert!(matches!(wanted[..], [Wanted::Stream { media: 1, first: 65_535, last: 65_535, rtcp: None, .. }]));
}

/// RFC 8866 section 5: attributes come last.
#[test]
fn where_rtcp_goes_is_said_behind_the_bandwidth() {
    let text = b"v=0\r\no=a 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\ni=x\r\nb=AS:64\r\n\
        a=rtcp:4010\r\na=sendrecv\r\nm=video 4002 RTP/AVP 31\r\nb=AS:9\r\n";
    let session = Session::parse(text).unwrap();
    let address = "203.0.113.1".parse().unwrap();
    let edits = [0, 1].map(|media| MediaEdit { media, address, port: 20_000, rtcp_port: Some(20_010) });
    let mut out = Vec::new();
    Rewrite { session: &session, address, edits: &edits }.write(&mut out);
    let text = String::from_utf8(out).unwrap();
    let letters: String = text.lines().filter_map(|line| line.chars().next()).collect();
    assert_eq!(letters, "vosctmicbaamcba", "{text}");
    assert_eq!(text.matches("a=rtcp:20010 IN IP4 203.0.113.1\r\n").count(), 2);
}
