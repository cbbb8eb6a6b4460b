//! From session descriptions to what is to be opened, and back to descriptions that name the gate.

use std::net::IpAddr;

use sluicegate_grant::ANY_PORTS;
use sluicegate_policy::{PortProtocol, PortRange, Service, WANTED_MAX};
use sluicegate_sip::sdp::{Answer, MediaAnswer, MediaEdit, Rewrite, Session, Transport, Wanted};

/// One grant's worth of ports, and the media line that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    /// Position of the media line.
    pub(super) media: usize,
    /// Ports of the service.
    pub(super) range: PortRange,
    /// Whether it is the RTCP of the media line, on a port away from its RTP.
    pub(super) is_rtcp: bool,
    /// Ports that a telephone's packets may come from: those that it named.
    pub(super) client_ports: (u16, u16),
}

/// The port that stands for none (RFC 8866 section 5.14 and common use: discard).
const NO_PORT: u16 = 9;

/// Narrows what is opened to the ports that the client's offer names for each media line: RTP and RTCP send from where
/// they receive (RFC 4961). Any port may send where the offer names none that the gate would see: none at all, discard, or
/// ports of another address than the request came from, which a NAT stands in front of.
pub(super) fn narrow(wants: &mut [Want], offer: Option<&Session<'_>>, client: IpAddr) {
    for want in wants {
        let line = offer.and_then(|offer| offer.media().get(want.media));
        let named = line.filter(|line| {
            let address = line.address.is_some_and(|address| address.to_canonical() == client.to_canonical());
            address && ![0, NO_PORT].contains(&line.port)
        });
        want.client_ports = named.map_or(ANY_PORTS, |line| {
            let rtcp = line.rtcp().unwrap_or(line.port);
            (line.port.min(rtcp), line.port.max(rtcp))
        });
    }
}

fn protocol(transport: Transport) -> Option<PortProtocol> {
    match transport {
        Transport::Udp => Some(PortProtocol::Udp),
        Transport::Tcp => Some(PortProtocol::Tcp),
        Transport::Ip(number) => PortProtocol::from_number(number),
        Transport::Other => None,
    }
}

/// What an offer wants of a service that the frontend answers for itself. An agent names ports; a telephone's streams get
/// the service's port ranges of their protocol, in order, and those without one are refused.
pub(super) fn wanted_of_offer(offer: &Session<'_>, service: &Service) -> Vec<Want> {
    let mut used = [0_usize; 2];
    let mut wants = Vec::new();
    for wanted in offer.wanted() {
        let (media, transport) = match wanted {
            Wanted::Service { media, transport, .. } | Wanted::Stream { media, transport, .. } => (media, transport),
        };
        let Some(protocol) = protocol(transport) else { continue };
        let range = match wanted {
            Wanted::Service { first, last, .. } => Some(PortRange { protocol, first, last }),
            Wanted::Stream { .. } => {
                let Some(nth) = used.get_mut(usize::from(protocol == PortProtocol::Tcp)) else { continue };
                *nth += 1;
                service.ports.iter().filter(|range| range.protocol == protocol).nth(*nth - 1).copied()
            }
        };
        wants.extend(range.map(|range| Want { media, range, is_rtcp: false, client_ports: ANY_PORTS }));
        // One too many, so that the policy sees it and says so.
        if wants.len() > WANTED_MAX {
            break;
        }
    }
    wants
}

/// What the answer of a relayed service names. Ports that the service is not declared to offer are left out, and their
/// media are refused.
pub(super) fn wanted_of_answer(answer: &Session<'_>, service: &Service) -> Vec<Want> {
    let mut wants = Vec::new();
    for wanted in answer.wanted() {
        let (media, transport, first, last, rtcp) = match wanted {
            Wanted::Service { media, transport, first, last } => (media, transport, first, last, None),
            Wanted::Stream { media, transport, first, last, rtcp, .. } => (media, transport, first, last, rtcp),
        };
        let Some(protocol) = protocol(transport) else { continue };
        let range = PortRange { protocol, first, last };
        let rtcp = rtcp.map(|port| PortRange::single(protocol, port));
        let offered = [Some(range), rtcp].into_iter().flatten().all(|range| service.offers(&range));
        if !offered || wants.len() + 2 > WANTED_MAX {
            continue;
        }
        wants.push(Want { media, range, is_rtcp: false, client_ports: ANY_PORTS });
        wants.extend(rtcp.map(|range| Want { media, range, is_rtcp: true, client_ports: ANY_PORTS }));
    }
    wants
}

/// Where one want was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) want: Want,
    pub(super) address: IpAddr,
    pub(super) first_port: u16,
}

/// The answer to an offer that the frontend answers for itself.
pub(super) fn answer(
    offer: &Session<'_>,
    opened: &[Opened],
    fallback: IpAddr,
    call: [u8; 12],
    version: u64,
) -> Vec<u8> {
    let of_media = |media: usize| opened.iter().find(|opened| opened.want.media == media && !opened.want.is_rtcp);
    let media: Vec<MediaAnswer> = (0..offer.media().len())
        .map(|media| {
            of_media(media).map_or(MediaAnswer::Refused, |opened| MediaAnswer::Accepted {
                address: opened.address,
                port: opened.first_port,
            })
        })
        .collect();
    let address = opened.first().map_or(fallback, |opened| opened.address);
    let mut out = Vec::new();
    Answer { offer, session_id: session_id(call), version, address, media: &media }.write(&mut out);
    out
}

/// A service's description with the gate's addresses and ports; media that were not opened are refused.
pub(super) fn rewrite_answer(session: &Session<'_>, opened: &[Opened], fallback: IpAddr) -> Vec<u8> {
    let address = opened.first().map_or(fallback, |opened| opened.address);
    let edits: Vec<MediaEdit> = session
        .media()
        .iter()
        .enumerate()
        .map(|(media, line)| {
            let of = |is_rtcp| opened.iter().find(|o| o.want.media == media && o.want.is_rtcp == is_rtcp);
            match of(false) {
                None => MediaEdit { media, address, port: 0, rtcp_port: None },
                Some(rtp) => {
                    let offset = line.rtcp().map(|rtcp| rtcp.wrapping_sub(line.port));
                    let beside = offset.and_then(|offset| rtp.first_port.checked_add(offset));
                    let rtcp_port = of(true).map_or(beside, |rtcp| Some(rtcp.first_port));
                    MediaEdit { media, address: rtp.address, port: rtp.first_port, rtcp_port }
                }
            }
        })
        .collect();
    let mut out = Vec::new();
    Rewrite { session, address, edits: &edits }.write(&mut out);
    out
}

/// A client's description with the address that its request came from, which the service sends to, and not one that it
/// could have made up. A media line on hold keeps its all-zero address.
pub(super) fn rewrite_offer(session: &Session<'_>, client: IpAddr) -> Vec<u8> {
    let edits: Vec<MediaEdit> = session
        .media()
        .iter()
        .enumerate()
        .map(|(media, line)| {
            let address = line.address.filter(IpAddr::is_unspecified).unwrap_or(client);
            MediaEdit { media, address, port: line.port, rtcp_port: line.rtcp() }
        })
        .collect();
    let mut out = Vec::new();
    Rewrite { session, address: client, edits: &edits }.write(&mut out);
    out
}

fn session_id(call: [u8; 12]) -> u64 {
    // 63 bits: some telephones read it as a signed number.
    call.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_policy::{Limits, Outbound, ServiceDefault, ServiceKind, ServiceMode};

    fn service(ports: &[&str]) -> Service {
        Service {
            name: "pbx".into(),
            kind: ServiceKind::Declared,
            mode: ServiceMode::Nat,
            address: "10.0.0.2".parse().unwrap(),
            default: ServiceDefault::Off,
            ports: ports.iter().map(|text| text.parse().unwrap()).collect(),
            sip_port: None,
            outbound: Outbound::None,
            limits: Limits::DEFAULT,
            allow: Vec::new(),
            registrar: None,
            numbers: Vec::new(),
            sip: Vec::new(),
            certificate: None,
            register: sluicegate_policy::Registering::default(),
            backups: Vec::new(),
        }
    }

    const PHONE: &[u8] = b"v=0\r\no=a 1 1 IN IP4 192.168.0.9\r\ns=-\r\nc=IN IP4 192.168.0.9\r\nt=0 0\r\n\
        m=audio 4000 RTP/AVP 0\r\nm=video 4002 RTP/AVP 31\r\na=rtcp:4010\r\n";

    fn ranges(wants: &[Want]) -> Vec<(usize, String, bool)> {
        wants.iter().map(|want| (want.media, want.range.to_string(), want.is_rtcp)).collect()
    }

    #[test]
    fn a_telephones_streams_get_the_services_ranges_in_order() {
        let session = Session::parse(PHONE).unwrap();
        let wants = wanted_of_offer(&session, &service(&["tcp/22", "udp/5004-5005"]));
        assert_eq!(ranges(&wants), [(0, "udp/5004-5005".to_owned(), false)]);
    }

    #[test]
    fn an_answers_ports_are_opened_as_far_as_the_service_offers_them() {
        let session = Session::parse(PHONE).unwrap();
        let all = wanted_of_answer(&session, &service(&["udp/4000-4100"]));
        let expected = [("udp/4000-4001", 0, false), ("udp/4002", 1, false), ("udp/4010", 1, true)];
        assert_eq!(ranges(&all), expected.map(|(range, media, rtcp)| (media, range.to_owned(), rtcp)));
        let some = wanted_of_answer(&session, &service(&["udp/4000-4002"]));
        assert_eq!(ranges(&some), [(0, "udp/4000-4001".to_owned(), false)]);
    }

    #[test]
    fn a_telephone_sends_from_the_ports_that_it_names_unless_a_translator_stands_before_it() {
        let session = Session::parse(PHONE).unwrap();
        let service = service(&["udp/5004-5005", "udp/5006-5007"]);
        let ports = |offer: Option<&Session<'_>>, client: &str| {
            let mut wants = wanted_of_offer(&session, &service);
            narrow(&mut wants, offer, client.parse().unwrap());
            wants.iter().map(|want| want.client_ports).collect::<Vec<_>>()
        };
        assert_eq!(ports(Some(&session), "192.168.0.9"), [(4000, 4001), (4002, 4010)]);
        assert_eq!(ports(Some(&session), "198.51.100.7"), [ANY_PORTS; 2], "its NAT changes them");
        assert_eq!(ports(None, "192.168.0.9"), [ANY_PORTS; 2]);
        let discard = String::from_utf8(PHONE.to_vec()).unwrap().replace("audio 4000", "audio 9");
        let discard = Session::parse(discard.as_bytes()).unwrap();
        assert_eq!(ports(Some(&discard), "192.168.0.9")[0], ANY_PORTS);
    }

    #[test]
    fn a_rewritten_answer_names_the_gate_and_refuses_what_was_not_opened() {
        let session = Session::parse(PHONE).unwrap();
        let want = wanted_of_answer(&session, &service(&["udp/4000-4001"]))[0];
        let gate = "203.0.113.1".parse().unwrap();
        let text = rewrite_answer(&session, &[Opened { want, address: gate, first_port: 20_000 }], gate);
        let rewritten = Session::parse(&text).unwrap();
        assert_eq!(rewritten.media()[0].port, 20_000);
        assert_eq!((rewritten.media()[0].address, rewritten.media()[1].port), (Some(gate), 0));
        assert!(!String::from_utf8(text).unwrap().contains("192.168"));
    }

    #[test]
    fn a_clients_description_names_where_its_request_came_from() {
        let session = Session::parse(PHONE).unwrap();
        let client = "198.51.100.7".parse().unwrap();
        let text = rewrite_offer(&session, client);
        let rewritten = Session::parse(&text).unwrap();
        assert!(rewritten.media().iter().all(|media| media.address == Some(client)));
        assert_eq!(rewritten.media()[1].rtcp_port, Some(4010));
        let held = String::from_utf8(PHONE.to_vec()).unwrap().replace("c=IN IP4 192.168.0.9", "c=IN IP4 0.0.0.0");
        let text = rewrite_offer(&Session::parse(held.as_bytes()).unwrap(), client);
        assert!(Session::parse(&text).unwrap().media()[0].address.unwrap().is_unspecified(), "still on hold");
    }
}
