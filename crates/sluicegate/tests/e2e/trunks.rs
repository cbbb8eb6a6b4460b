//! A trunk: a PBX elsewhere calls the one behind the gate over TLS, and is called by it, with media through the gate.

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    process::Command,
    time::Duration,
};

use sluicegate_sip::{
    message::{HeaderName, Message, Transport},
    sdp::Session,
    write::Response,
};

use crate::authority::Authority;
use crate::support::{
    BINARY, PATIENCE,
    lab::{CLIENT, CLIENT_ALIAS, GATE, Lab, SERVICE},
    line::Line,
    node::{Config, Node, PASSWORD, service},
    pbx::{DESCRIPTION, Pbx, request_within},
    phone::{credentials, token},
    program::run,
    until,
};

on_packet!(a_pbx_elsewhere_calls_ours_and_is_called_by_it_known_by_its_certificate, &[], both_ways);

const SIP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(GATE), 5060);
const TLS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(GATE), 5061);
const NUMBER: &str = "sip:+4930123@example.net";
const RULE: &str =
    "[[rule]]\nname = \"trunk\"\nservices = [\"pbx\"]\nsubjects = [\"peer:carrier\"]\neffect = \"allow\"\n";

/// The peer: its media come from another address than its SIP, and not from the first that they may come from.
fn peer() -> String {
    format!(
        "[[peer]]\nname = \"carrier\"\naddresses = [\"{CLIENT}\"]\ncertificate = \"client.example.net\"\n\
         sip = \"tls/{CLIENT}:5061\"\nnumbers = [\"+*\"]\nmedia = [\"198.51.100.0/26\"]\n"
    )
}

fn node(lab: &Lab, datapath: &'static str, authority: &Authority) -> Node {
    let (certificate, key) = authority.sign("frontend", &GATE.to_string());
    let pbx = service("pbx", "\"udp/10000-10099\"", "kind = \"sip\"\nregistrar = \"switch\"\nnumbers = [\"6*\"]\n");
    let frontend = format!(
        "shards = 1\nlisten = [\"udp/{SIP}\", \"tls/{TLS}\"]\n\
         tls = {{ certificate = {certificate:?}, key = {key:?}, server_ca = {:?} }}\n",
        authority.ca()
    );
    let local = "local = [\"udp/5060\", \"tcp/5061\"]\n";
    let node = Node::up(lab, &Config::new(datapath, &(pbx + RULE + &peer())).frontend(&frontend).gate(local));
    node.add_user(lab, "switch", None);
    node
}

fn description(port: u16) -> String {
    format!(
        "v=0\r\no=far 1 1 IN IP4 {CLIENT}\r\ns=-\r\nc=IN IP4 {CLIENT_ALIAS}\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n"
    )
}

/// A request of the far PBX. `within`: the tag of the other side, and Route lines.
fn of_peer(
    line: &Line,
    (method, cseq, call_id): (&str, u32, &str),
    (to_tag, routes): (&str, &str),
    sdp: &str,
) -> Vec<u8> {
    let kind = if sdp.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
    format!(
        "{method} sip:600@example.net SIP/2.0\r\nVia: SIP/2.0/TLS {local};branch=z9hG4bK{branch};rport\r\n\
         Max-Forwards: 70\r\n{routes}From: <sip:+15551234@carrier.example>;tag=far\r\nTo: <sip:600@example.net>{to_tag}\r\n\
         Call-ID: {call_id}\r\nCSeq: {cseq} {method}\r\nContact: <sip:far@{CLIENT}:5061;transport=tls>\r\n{kind}\
         Content-Length: {length}\r\n\r\n{sdp}",
        local = line.local(),
        branch = token(),
        length = sdp.len(),
    )
    .into_bytes()
}

/// The next final answer.
fn answer(line: &Line) -> Vec<u8> {
    until("an answer", || {
        let bytes = line.receive(Duration::from_millis(500))?;
        let code = Message::parse(&bytes).ok()?.status()?;
        (code >= 200).then_some(bytes)
    })
}

fn code(answer: &[u8]) -> u16 {
    Message::parse(answer).ok().and_then(|message| message.status()).expect("a response")
}

/// Where a description has its receiver send.
fn media(message: &[u8]) -> SocketAddr {
    let message = Message::parse(message).expect("a message");
    let session = Session::parse(message.body()).expect("a description");
    let line = session.media().first().expect("media");
    SocketAddr::new(line.address.expect("an address"), line.port)
}

/// Route lines by which the called side of a call speaks, or reversed the calling one.
fn routes(message: &[u8], is_caller: bool) -> String {
    let message = Message::parse(message).expect("a message");
    let line = |value: &[u8]| format!("Route: {}\r\n", String::from_utf8_lossy(value));
    let mut lines: Vec<String> = message.headers(HeaderName::RecordRoute).map(line).collect();
    if is_caller {
        lines.reverse();
    }
    lines.concat()
}

/// Whether a packet arrives in one of some attempts.
fn arrives(from: &UdpSocket, to: SocketAddr, at: &UdpSocket) -> Option<SocketAddr> {
    at.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    (0..10).find_map(|_| {
        from.send_to(b"media", to).expect("a route");
        at.recv_from(&mut [0; 64]).ok().map(|(_, source)| source)
    })
}

/// Media pass both ways between the far PBX's other address and ours, and from nowhere else.
fn talk(far: &UdpSocket, near: &UdpSocket, stranger: &UdpSocket, gate: SocketAddr) {
    let source = until("media arrive", || arrives(far, gate, near));
    assert_eq!(source, far.local_addr().expect("an address"));
    assert!(arrives(near, source, far).is_some(), "and go back");
    while near.recv_from(&mut [0; 64]).is_ok() {}
    assert_eq!(arrives(stranger, gate, near), None, "its SIP address has no media");
}

fn both_ways(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let node = node(&lab, datapath, &authority);
    let pbx = Pbx::start(&lab);
    let [far, stranger] = [CLIENT_ALIAS, CLIENT].map(|address| lab.udp("client", address, 4_100));
    let near = lab.udp("service", SERVICE, 10_000);

    // Who shows another's certificate, or none, is nobody.
    for config in [authority.client(None), authority.client(Some(&Authority::new()))] {
        let line = Line::tls(&lab, "client", TLS, config);
        line.send(&of_peer(&line, ("INVITE", 1, &token()), ("", ""), &description(4_100)));
        assert_eq!(code(&answer(&line)), 407);
    }
    assert!(pbx.heard().is_empty() && node.grants().is_empty());

    // It calls.
    let (line, call_id) = (Line::tls(&lab, "client", TLS, authority.client(Some(&authority))), token());
    line.send(&of_peer(&line, ("INVITE", 1, &call_id), ("", ""), &description(4_100)));
    let ok = answer(&line);
    assert_eq!(code(&ok), 200, "{}", String::from_utf8_lossy(&ok));
    let invite = pbx.heard().pop().expect("the INVITE");
    assert!(invite.contains("P-Asserted-Identity: <sip:+15551234@example.net>\r\n"), "{invite}");
    assert!(invite.contains(&format!("c=IN IP4 {CLIENT_ALIAS}\r\n")), "{invite}");
    let within = (";tag=pbx-tag", routes(&ok, true));
    line.send(&of_peer(&line, ("ACK", 1, &call_id), (within.0, &within.1), ""));
    talk(&far, &near, &stranger, media(&ok));
    line.send(&of_peer(&line, ("BYE", 2, &call_id), (within.0, &within.1), ""));
    assert_eq!(code(&answer(&line)), 200);
    until("no grant is left", || node.grants().is_empty().then_some(()));

    // It is called: its answer says where its media are.
    let listener = lab.listen("client", CLIENT, 5061);
    let (invite, back) = called(&pbx, &listener, &authority);
    talk(&far, &near, &stranger, media(&invite));
    let own = SocketAddr::from((CLIENT, 5061));
    let bye = String::from_utf8(request_within(&invite, ("BYE", 1), (Transport::Tls, own), ("", ""))).expect("text");
    back.send(bye.replace(";tag=pbx-tag", ";tag=far").as_bytes());
    assert_eq!(code(&answer(&back)), 200);
    until("no grant is left", || node.grants().is_empty().then_some(()));

    // Who is no peer any more has no call any more.
    let call_id = token();
    line.send(&of_peer(&line, ("INVITE", 1, &call_id), ("", ""), &description(4_100)));
    let ok = answer(&line);
    line.send(&of_peer(&line, ("ACK", 1, &call_id), (";tag=pbx-tag", &routes(&ok, true)), ""));
    let file = lab.path("site.toml");
    let before = fs::read_to_string(&file).expect("the configuration");
    fs::write(&file, before.replace(&peer(), "").replace(RULE, "")).expect("a file");
    let mut reload = Command::new(BINARY);
    reload.arg("reload").arg(&file);
    let done = lab.host("gate").run_in(|| run(&mut reload, PATIENCE)).expect("a namespace");
    assert!(done.status.success(), "{}", done.err);
    until("the PBX hears of it", || {
        pbx.heard().iter().any(|text| text.starts_with("BYE ") && text.contains(&call_id)).then_some(())
    });
    assert!(node.grants().is_empty());
    line.send(&of_peer(&line, ("INVITE", 1, &token()), ("", ""), &description(4_100)));
    assert_eq!(code(&answer(&line)), 407);
}

/// Has the PBX behind the gate call the far one: the INVITE as that got it, and the connection by which it came.
fn called(pbx: &Pbx, listener: &std::net::TcpListener, authority: &Authority) -> (Vec<u8>, Line) {
    let call_id = token();
    let request = |method: &str, cseq: u32, (target, to_tag, routes): (&str, &str, &str), more: &str, sdp: &str| {
        let kind = if sdp.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
        format!(
            "{method} {target} SIP/2.0\r\nVia: SIP/2.0/UDP {SERVICE}:5060;branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n\
             {routes}From: <sip:600@example.net>;tag=near\r\nTo: <{NUMBER}>{to_tag}\r\nCall-ID: {call_id}\r\n\
             CSeq: {cseq} {method}\r\nContact: <sip:pbx@{SERVICE}:5060>\r\n{more}{kind}\
             Content-Length: {length}\r\n\r\n{sdp}",
            branch = token(),
            length = sdp.len(),
        )
    };
    let heard = |begins: &'static str, cseq: u32| {
        let mine = format!("CSeq: {cseq} INVITE");
        until("the PBX has its answer", || {
            let is_it = |text: &String| text.starts_with(begins) && text.contains(&call_id) && text.contains(&mine);
            pbx.heard().into_iter().find(is_it)
        })
    };
    pbx.send(SIP, request("INVITE", 1, (NUMBER, "", ""), "", DESCRIPTION).as_bytes());
    let challenge = heard("SIP/2.0 407", 1);
    let signed = credentials(challenge.as_bytes(), ("switch", PASSWORD), "INVITE", NUMBER);
    pbx.send(SIP, request("INVITE", 2, (NUMBER, "", ""), &signed, DESCRIPTION).as_bytes());
    let line = Line::accepted(listener, Some(authority.server("client.example.net"))).expect("a connection");
    let invite = line.receive(PATIENCE).expect("the INVITE");
    let start = format!("INVITE sip:+4930123@{CLIENT}:5061;transport=tls SIP/2.0\r\n");
    assert!(invite.starts_with(start.as_bytes()), "{}", String::from_utf8_lossy(&invite));
    let message = Message::parse(&invite).expect("a message");
    let mut ok = Vec::new();
    let headers = Response::to(&message, 200).to_tag(b"far").record_route().begin(&mut ok);
    let headers = headers.header("Contact", format!("<sip:far@{CLIENT}:5061;transport=tls>"));
    headers.body("application/sdp", description(4_100).as_bytes());
    line.send(&ok);
    let ok = heard("SIP/2.0 200", 2);
    let parsed = Message::parse(ok.as_bytes()).expect("a message");
    let contact = parsed.contact().ok().flatten().expect("a Contact");
    let target = String::from_utf8_lossy(contact.uri).into_owned();
    let ack = request("ACK", 2, (&target, ";tag=far", &routes(ok.as_bytes(), true)), "", "");
    pbx.send(SIP, ack.as_bytes());
    assert!(line.receive(PATIENCE).expect("the ACK").starts_with(b"ACK "));
    (invite, line)
}
