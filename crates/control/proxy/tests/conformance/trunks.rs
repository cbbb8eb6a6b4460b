//! Trunks: a peer outside, known by its certificate, calls a SIP server and is called by it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_feed::{GrantDelta, Selected, Selector};
use sluicegate_policy::{SipCertificate, SipPeer};
use sluicegate_proxy::{ConnectionId, Count, Flow, Input, Listening, Proofs};
use sluicegate_sip::message::Transport;

use crate::{
    inbound::{answered, switch},
    site::{ANSWER, AUDIO, Caller, FRONTEND, GATE, PBX, PHONE, Site, bye_of_service, header, reply, status},
};

const TLS: u8 = 1;
const NAME: &str = "sbc.carrier.example";
const NUMBER: &str = "sip:+4930123@example.net";
const FROM: &str = "sip:+15551234@carrier.example";
/// Where the carrier's media come from: another host than its SIP.
const MEDIA: &str = "192.0.2.77";

fn carrier() -> SipPeer {
    toml::from_str(&format!(
        "name='carrier'\naddresses=['198.51.100.32/28']\ncertificate='{NAME}'\nsip='tls/198.51.100.40:5061'\n\
         numbers=['+*']\nmedia=['192.0.2.64/26']\ncalls_max=2\ncalls_per_s=5"
    ))
    .unwrap()
}

fn site() -> Site {
    let mut site = Site::new();
    let own: SocketAddr = FRONTEND.parse().unwrap();
    site.listening.push(Listening::new(Transport::Tls, SocketAddr::new(own.ip(), 5061)));
    site.start(1);
    site.peers(vec![carrier()]);
    site
}

/// A connection from here, over which this certificate was shown.
fn connection(peer: &str, number: u32, certificate: &str) -> (Flow, Arc<Proofs>) {
    let flow = Flow { listener: TLS, peer: peer.parse().unwrap(), connection: ConnectionId::new(0, number) };
    let certificates = vec![SipCertificate::Name(certificate.into())];
    (flow, Arc::new(Proofs { certificates, ..Proofs::default() }))
}

fn carriers() -> (Flow, Arc<Proofs>) {
    connection("198.51.100.33:40001", 7, NAME)
}

fn over(site: &mut Site, (flow, proofs): &(Flow, Arc<Proofs>), message: &str) -> Vec<(Flow, String)> {
    let now = site.now();
    site.shards[0].on_message(now, *flow, proofs, message.as_bytes());
    site.take_flows()
}

/// Statuses of what was sent.
fn codes(sent: &[(Flow, String)]) -> Vec<u16> {
    sent.iter().map(|(_, text)| status(text)).collect()
}

fn offer(address: &str) -> String {
    AUDIO.replace("192.168.0.9", address)
}

/// The carrier's side of a call to the SIP server.
fn caller(call_id: &str) -> Caller {
    Caller { to: NUMBER.into(), call_id: call_id.into(), ..Caller::new("carrier", "198.51.100.33:40001") }
}

/// An INVITE of the carrier that says who calls.
fn invite(caller: &mut Caller, from: &str, more: &str, body: &str) -> String {
    let plain = caller.request("INVITE", "sip:101@example.net", more, body);
    plain.replacen("sip:carrier@example.net", from, 1)
}

/// Has the carrier call; what was sent.
fn calls(site: &mut Site, call_id: &str, from: &str, more: &str) -> Vec<(Flow, String)> {
    let request = invite(&mut caller(call_id), from, more, &offer(MEDIA));
    over(site, &carriers(), &request)
}

/// A call of the carrier that is answered and acknowledged: its side.
fn answered_call(site: &mut Site) -> Caller {
    let mut carrier = caller("from-outside");
    let request = invite(&mut carrier, FROM, "", &offer(MEDIA));
    let sent = over(site, &carriers(), &request);
    let (to, heard) = &sent[0];
    assert_eq!((to.peer.to_string().as_str(), codes(&sent[1..])), (PBX, vec![100]), "no credentials are asked for");
    assert!(
        heard.contains(&format!("c=IN IP4 {MEDIA}\r\n")),
        "the SIP server sends where the carrier's media are: {heard}"
    );
    assert_eq!(header(heard, "P-Asserted-Identity"), Some("<sip:+15551234@example.net>"));
    assert!(site.send(PBX, reply(heard, 200, ANSWER)).is_empty(), "the answer waits for the gate");
    let (_, ok) = site.gate_opens().pop().unwrap();
    assert!(status(&ok) == 200 && ok.contains(&format!("c=IN IP4 {GATE}\r\n")), "{ok}");
    carrier.take_dialog(&ok);
    let ack = carrier.request("ACK", "sip:pbx@10.0.0.2:5060", "", "").replacen("sip:carrier@example.net", FROM, 1);
    assert!(over(site, &carriers(), &ack)[0].1.starts_with("ACK "));
    carrier
}

/// Has the SIP server call a number; what the gate is asked to open, and what was sent.
fn dials(site: &mut Site, switch: &mut Caller, number: &str) -> (Vec<GrantDelta>, Vec<(Flow, String)>) {
    let signed = switch.signed(site, "INVITE", number, "", ANSWER);
    let trying = site.send(PBX, signed);
    assert_eq!(status(&trying[0].1), 100, "{trying:?}");
    let asked = site.asked();
    let mut sent = Vec::new();
    for delta in &asked {
        let (id, address) = (delta.grant.id, GATE.parse().unwrap());
        site.ledger.opening(delta, "gate-1", 0).unwrap();
        site.ledger.opened("gate-1", id, address, (20_000, 20_001));
        let now = site.now();
        let opened = sluicegate_proxy::GateAnswer { id, opened: Ok((address, (20_000, 20_001))) };
        site.shards[0].on_input(now, Input::Gate(opened));
        sent.extend(site.take_flows());
    }
    (asked, sent)
}

/// The connection that we made to the carrier.
fn dialled() -> (Flow, Arc<Proofs>) {
    let (flow, proofs) = connection("198.51.100.40:5061", 9, NAME);
    (Flow { connection: flow.connection.map(ConnectionId::dialled), ..flow }, proofs)
}

fn switch_to(number: &str) -> Caller {
    Caller { to: number.into(), ..switch() }
}

#[test]
fn a_peer_calls_a_sip_server_and_its_media_come_from_where_it_says() {
    let mut site = site();
    let mut carrier = answered_call(&mut site);
    let rows = site.ledger.rows();
    assert_eq!((rows.len(), rows[0].user.as_str(), rows[0].client.to_string().as_str()), (1, "peer:carrier", MEDIA));
    // Over another of its connections.
    let bye = carrier.request("BYE", "sip:pbx@10.0.0.2:5060", "", "").replacen("sip:carrier@example.net", FROM, 1);
    let sent = over(&mut site, &connection("198.51.100.34:40002", 8, NAME), &bye);
    assert!(sent[0].1.starts_with("BYE ") && site.revokes() == 1, "{sent:?}");
}

#[test]
fn a_sip_server_calls_a_peer_whose_answer_says_where_its_media_are() {
    let mut site = site();
    let mut switch = switch_to(NUMBER);
    let (asked, sent) = dials(&mut site, &mut switch, NUMBER);
    assert_eq!(asked[0].grant.client_address.to_string(), "192.0.2.64", "the first that they may come from");
    let (to, invite) = &sent[0];
    assert_eq!((to.listener, to.peer.to_string().as_str()), (TLS, "198.51.100.40:5061"));
    assert!(invite.starts_with("INVITE sip:+4930123@198.51.100.40:5061;transport=tls SIP/2.0\r\n"), "{invite}");
    assert!(invite.contains(&format!("c=IN IP4 {GATE}\r\n")) && !invite.contains("IP4 10.0.0.2"), "{invite}");
    let ringing = over(&mut site, &dialled(), &answered(invite, 183, "far", &offer(MEDIA)));
    assert_eq!(codes(&ringing), [183]);
    let early = site.asked();
    assert_eq!(early[0].grant.client_address.to_string(), MEDIA, "early media are let in");
    let ok = over(&mut site, &dialled(), &answered(invite, 200, "far", &offer("192.0.2.78")));
    assert_eq!(codes(&ok), [200]);
    assert!(ok[0].1.contains("c=IN IP4 192.0.2.78\r\n"), "{ok:?}");
    let moved = site.asked();
    assert_eq!(
        (moved[0].grant.id, moved[0].grant.client_address.to_string()),
        (asked[0].grant.id, "192.0.2.78".into())
    );
    assert_eq!(moved[0].grant.client_ports, (4_100, 4_101));
    assert!(asked[0].grant.not_after < early[0].grant.not_after && early[0].grant.not_after < moved[0].grant.not_after);
    switch.take_dialog(&ok[0].1);
    let ack = switch.request("ACK", "sip:alice@192.168.0.9:5060", "", "");
    let now = site.now();
    site.shards[0].on_datagram(now, Flow::datagrams(0, PBX.parse().unwrap()), ack.as_bytes());
    let sent = site.take_flows();
    assert_eq!((sent[0].0.listener, sent[0].0.peer.to_string().as_str()), (TLS, "198.51.100.40:5061"));
}

#[test]
fn whoever_shows_another_certificate_or_comes_from_elsewhere_or_without_tls_is_asked_for_a_password() {
    let mut site = site();
    let others = [
        connection("198.51.100.33:40001", 7, "sbc.other.example"),
        connection("198.51.100.77:40001", 7, NAME),
        (carriers().0, Arc::default()),
    ];
    for other in others {
        let request = invite(&mut caller("forged"), FROM, "", &offer(MEDIA));
        assert_eq!(codes(&over(&mut site, &other, &request)), [407], "{other:?}");
    }
    let request = invite(&mut caller("forged"), FROM, "", &offer(MEDIA));
    assert_eq!(status(&site.send("198.51.100.33:5060", &request)[0].1), 407, "an address alone is nobody");
    // Nobody signs in as the peer, or as somebody for whom it speaks.
    let mut alice = Caller { to: NUMBER.into(), ..Caller::new("alice", PHONE).calls("pbx") };
    let forged = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let as_carriers = forged.replacen("From: <sip:alice@example.net>", &format!("From: <{FROM}>"), 1);
    assert_eq!(status(&site.send(PHONE, as_carriers)[0].1), 403);
    let mut guess = Caller::new("peer:carrier", PHONE).calls("pbx");
    let guess = guess.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    assert_eq!(status(&site.send(PHONE, guess)[0].1), 407);
    assert!(site.ledger.rows().is_empty() && site.asked().is_empty());
}

#[test]
fn nobody_else_speaks_in_a_peers_call() {
    let mut site = site();
    let mut carrier = answered_call(&mut site);
    let bye = carrier.request("BYE", "sip:pbx@10.0.0.2:5060", "", "").replacen("sip:carrier@example.net", FROM, 1);
    for other in [connection("198.51.100.33:40009", 8, "sbc.other.example"), connection("203.0.113.66:1", 8, NAME)] {
        assert_eq!(codes(&over(&mut site, &other, &bye)), [407]);
    }
    assert_eq!(site.ledger.gauges()[1].used, 1);
    let renamed = bye.replacen(FROM, "sip:alice@example.net", 1);
    assert_eq!(codes(&over(&mut site, &carriers(), &renamed)), [481], "it speaks for others as it did before");
}

#[test]
fn a_peer_speaks_for_those_it_may_and_for_none_of_ours() {
    let mut site = site();
    site.peers(vec![SipPeer { callers: vec!["+1*".into(), "a*".into(), "pbx".into()], ..carrier() }]);
    let said = [
        ("sip:+4930999@carrier.example", "", 403),
        ("sip:alice@carrier.example", "", 403),
        ("sip:alice@example.net", "", 403),
        ("sip:pbx@example.net", "", 403),
        (FROM, "P-Asserted-Identity: <sip:alice@example.net>\r\n", 403),
        (FROM, "P-Asserted-Identity: <sip:+15550000@carrier.example>\r\n", 0),
        ("sip:anonymous@anonymous.invalid", "P-Asserted-Identity: <tel:+1555>\r\n", 0),
    ];
    for (nth, (from, more, expected)) in said.into_iter().enumerate() {
        site.instant = site.instant + Duration::from_secs(60);
        let sent = calls(&mut site, &format!("said-{nth}"), from, more);
        assert_eq!(status(&sent[0].1), expected, "{from} {more}");
        if expected == 0 {
            let identity = if from == FROM { Some("<sip:+15550000@example.net>") } else { None };
            assert_eq!(header(&sent[0].1, "P-Asserted-Identity"), identity);
        }
    }
}

#[test]
fn media_from_elsewhere_open_nothing() {
    let mut site = site();
    for address in ["198.51.100.33", "10.0.0.2", "192.0.2.63"] {
        let request = invite(&mut caller(address), FROM, "", &offer(address));
        assert_eq!(codes(&over(&mut site, &carriers(), &request)), [488], "{address}");
    }
    let two = format!("{}m=video 4200 RTP/AVP 31\r\nc=IN IP4 192.0.2.78\r\n", offer(MEDIA));
    let request = invite(&mut caller("two"), FROM, "", &two);
    assert_eq!(codes(&over(&mut site, &carriers(), &request)), [488]);
    // In an answer: the call ends at both sides.
    let mut switch = switch_to(NUMBER);
    let (_, sent) = dials(&mut site, &mut switch, NUMBER);
    let refused = over(&mut site, &dialled(), &answered(&sent[0].1, 200, "far", &offer("203.0.113.66")));
    let begin: Vec<_> = refused.iter().map(|(_, text)| text.split(' ').next().unwrap()).collect();
    assert_eq!(begin, ["ACK", "BYE", "SIP/2.0"]);
    assert_eq!((status(&refused[2].1), site.asked().len(), site.ledger.gauges()[1].used), (503, 0, 0));
}

#[test]
fn a_peer_that_moves_its_media_has_them_let_in_from_there() {
    let mut site = site();
    let mut carrier = answered_call(&mut site);
    let mut reinvite = |address: &str| {
        carrier.request("INVITE", "sip:pbx@10.0.0.2:5060", "", &offer(address)).replacen(
            "sip:carrier@example.net",
            FROM,
            1,
        )
    };
    let (elsewhere, request) = (reinvite("203.0.113.66"), reinvite("192.0.2.80"));
    assert_eq!(codes(&over(&mut site, &carriers(), &elsewhere)), [488]);
    let sent = over(&mut site, &carriers(), &request);
    assert!(sent[0].1.starts_with("INVITE ") && sent[0].1.contains("c=IN IP4 192.0.2.80\r\n"), "{sent:?}");
    site.instant = site.instant + Duration::from_secs(2);
    site.unix = site.unix.plus_secs(2);
    assert_eq!(
        codes(&{
            let now = site.now();
            site.shards[0].on_datagram(
                now,
                Flow::datagrams(0, PBX.parse().unwrap()),
                reply(&sent[0].1, 200, ANSWER).as_bytes(),
            );
            site.take_flows()
        }),
        [200]
    );
    let asked = site.asked();
    assert_eq!(asked.last().unwrap().grant.client_address.to_string(), "192.0.2.80");
}

#[test]
fn a_peer_has_so_many_calls_at_once_and_a_second_and_others_have_theirs() {
    let mut site = site();
    let other = SipPeer {
        name: "other".into(),
        addresses: vec!["203.0.113.128/28".parse().unwrap()],
        certificate: Some(SipCertificate::Name("sbc.other.example".into())),
        sip: None,
        numbers: Vec::new(),
        ..carrier()
    };
    site.peers(vec![carrier(), other]);
    let of = |site: &mut Site, nth: u32| status(&calls(site, &format!("call-{nth}"), FROM, "")[0].1);
    let all: Vec<u16> = (0..1_000).map(|nth| of(&mut site, nth)).collect();
    assert!(all[..2].iter().all(|code| *code == 0) && all[2..].iter().all(|code| *code == 503), "{:?}", &all[..12]);
    let busy = site.metrics[0].count(Count::PeerBusy);
    assert_eq!(busy, 990, "ten of a thousand were looked at");
    let request = invite(&mut caller("others"), FROM, "", &offer(MEDIA));
    let sent = over(&mut site, &connection("203.0.113.130:40001", 8, "sbc.other.example"), &request);
    assert!(sent[0].1.starts_with("INVITE "), "{sent:?}");
    assert_eq!(site.ledger.peers_gauge(site.instant).used, 2);
}

#[test]
fn a_peer_that_no_rule_allows_calls_nothing_and_is_not_called() {
    let mut site = site();
    site.change_service("pbx", |pbx| pbx.allow.retain(|subject| subject.to_string() != "peer:carrier"));
    assert_eq!(codes(&calls(&mut site, "one", FROM, "")), [403]);
    let mut switch = switch_to(NUMBER);
    let signed = switch.signed(&mut site, "INVITE", NUMBER, "", ANSWER);
    let sent = site.send(PBX, signed);
    assert_eq!(sent.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [100, 403]);
    for number in ["sip:peer%3Acarrier@example.net", "sip:elsewhere@example.net"] {
        let mut switch = Caller { call_id: number.into(), ..switch_to(number) };
        let signed = switch.signed(&mut site, "INVITE", number, "", ANSWER);
        assert_eq!(status(&site.send(PBX, signed)[0].1), 404, "{number}");
    }
}

#[test]
fn a_peer_registers_nowhere_and_reaches_sip_servers_alone() {
    let mut site = site();
    site.change_service("web", |web| web.allow.push("peer:carrier".parse().unwrap()));
    let register = caller("register").request("REGISTER", "sip:example.net", "Contact: <sip:a@192.0.2.1>\r\n", "");
    assert_eq!(codes(&over(&mut site, &carriers(), &register)), [403]);
    let request = invite(&mut caller("web"), FROM, "", &offer(MEDIA)).replacen("sip:101@", "sip:web@", 1);
    assert_eq!(codes(&over(&mut site, &carriers(), &request)), [403]);
    assert!(site.asked().is_empty());
}

#[test]
fn a_peer_that_is_removed_is_nobody_and_its_calls_end() {
    let mut site = site();
    answered_call(&mut site);
    site.peers(Vec::new());
    let over_now = site.ledger.revoke(site.unix, &Selector::all(Selected::User("peer:carrier".into())), None);
    let sent = site.tell(0, Input::Over(over_now.into()));
    assert!(sent[0].1.starts_with("BYE ") && site.ledger.rows().is_empty(), "{sent:?}");
    assert_eq!(codes(&calls(&mut site, "again", FROM, "")), [407]);
}

#[test]
fn a_service_hangs_up_a_peers_call() {
    let mut site = site();
    let carrier = answered_call(&mut site);
    let bye = bye_of_service(&carrier).replace("alice-tag", "carrier-tag");
    let now = site.now();
    site.shards[0].on_datagram(now, Flow::datagrams(0, PBX.parse().unwrap()), bye.as_bytes());
    let sent = site.take_flows();
    assert_eq!((sent[0].0, site.revokes()), (carriers().0, 1), "over the connection by which it called");
}
