//! SIP servers over TCP and TLS, and telephones over TCP that obey what stands in Route.

use std::net::SocketAddr;

use sluicegate_sip::{
    message::{HeaderName, Message, NameAddr, Transport},
    uri::Uri,
    write::Response,
};

use crate::authority::Authority;
use crate::support::{
    PATIENCE,
    lab::{CLIENT, GATE, Lab, SERVICE},
    line::Line,
    node::{Config, Node, PASSWORD, service},
    pbx::{DESCRIPTION, Pbx, request_within},
    phone::{Call, Phone, Wish, credentials, token},
    stream_pbx::StreamPbx,
    until,
};

on_packet!(a_server_that_speaks_tcp_is_called_and_speaks_over_either_sides_connection, &[], over_tcp);
on_packet!(a_server_that_speaks_tls_is_known_by_its_certificate, &[], over_tls);
on_packet!(a_call_to_a_server_that_is_not_there_is_refused_at_once, &[], unreached);
on_packet!(a_telephone_over_tcp_and_a_server_over_udp_call_each_other_hold_and_hang_up, &[], strict);

const SIP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(GATE), 5060);
const TLS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(GATE), 5061);
const HOLD: &str = "a=sendonly\r\n";

/// A node that speaks everything, and whose server is described by `more`.
fn node(lab: &Lab, datapath: &'static str, authority: &Authority, more: &str) -> Node {
    let (certificate, key) = authority.sign("frontend", &GATE.to_string());
    let pbx = service("pbx", "\"udp/10000-10099\"", &format!("kind = \"sip\"\nregistrar = \"switch\"\n{more}"));
    let frontend = format!(
        "shards = 1\nlisten = [\"udp/{SIP}\", \"tcp/{SIP}\", \"tls/{TLS}\"]\n\
         tls = {{ certificate = {certificate:?}, key = {key:?}, server_ca = {:?} }}\n",
        authority.ca()
    );
    let local = "local = [\"udp/5060\", \"tcp/5060\", \"tcp/5061\"]\n";
    let node = Node::up(lab, &Config::new(datapath, &pbx).frontend(&frontend).gate(local));
    node.add_user(lab, "switch", None);
    node
}

fn udp_phone(lab: &Lab) -> Phone {
    Phone::new(lab, "client", CLIENT, SIP, "alice")
}

/// Has the telephone accept the next request, which is of this method.
pub(crate) fn accept(phone: &Phone, method: &str) -> Vec<u8> {
    let bytes = phone.line.receive(PATIENCE).expect("a request");
    let request = Message::parse(&bytes).expect("a message");
    assert_eq!(request.method().map(|method| method.as_bytes().to_vec()), Some(method.as_bytes().to_vec()));
    let mut ok = Vec::new();
    let headers = Response::to(&request, 200).to_tag(b"phone-tag").record_route().begin(&mut ok);
    let headers = headers.header("Contact", format!("<sip:alice@{}>", phone.local()));
    match method {
        "INVITE" => headers.body("application/sdp", phone.offer(Wish::Audio).as_bytes()),
        _ => headers.finish(),
    }
    phone.send(&ok);
    bytes
}

/// Has the server change the call and the telephone agree.
fn reinvite_of_server(pbx: &StreamPbx, phone: &Phone, invite: &str, transport: Transport, own: SocketAddr) {
    let reinvite = request_within(invite.as_bytes(), ("INVITE", 1), (transport, own), ("", DESCRIPTION));
    pbx.send(&reinvite);
    let heard = accept(phone, "INVITE");
    assert!(String::from_utf8_lossy(&heard).contains(&format!("c=IN IP4 {GATE}")), "media go through the gate");
    pbx.hears("SIP/2.0 200", "CSeq: 1 INVITE");
    pbx.send(&request_within(invite.as_bytes(), ("ACK", 1), (transport, own), ("", "")));
    assert!(phone.line.receive(PATIENCE).expect("the ACK").starts_with(b"ACK "));
}

fn over_tcp(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let node = node(&lab, datapath, &authority, "sip = [\"tcp/5060\"]\n");
    let pbx = StreamPbx::start(&lab, 5060, None);
    let own = SocketAddr::from((SERVICE, 5060));
    let phone = udp_phone(&lab);
    let call = phone.call("pbx", Wish::Audio);
    let invite = pbx.last_invite();
    assert!(invite.starts_with("INVITE sip:pbx@10.4.0.2:5060;transport=tcp SIP/2.0\r\n"), "{invite}");
    assert!(
        invite.contains(&format!("Via: SIP/2.0/TCP {SIP};"))
            && invite.contains(&format!("<sip:{SIP};transport=tcp;lr;"))
    );
    assert_eq!(phone.bye(call).status, 200);

    phone.call("pbx", Wish::Audio);
    let invite = pbx.last_invite();
    reinvite_of_server(&pbx, &phone, &invite, Transport::Tcp, own);
    // Over a connection of its own the server has to show who it is.
    let line = Line::tcp(&lab, "service", SIP);
    let bye = |cseq, more: &str| request_within(invite.as_bytes(), ("BYE", cseq), (Transport::Tcp, own), (more, ""));
    line.send(&bye(2, ""));
    let challenge = line.receive(PATIENCE).expect("a challenge");
    assert!(challenge.starts_with(b"SIP/2.0 407 "), "{}", String::from_utf8_lossy(&challenge));
    let target =
        invite.lines().find_map(|line| line.strip_prefix("Contact: <")).and_then(|rest| rest.split('>').next());
    let signed = credentials(&challenge, ("switch", PASSWORD), "BYE", target.expect("a Contact"));
    line.send(&bye(3, &signed));
    accept(&phone, "BYE");
    assert!(line.receive(PATIENCE).expect("an answer").starts_with(b"SIP/2.0 200 "));
    // From then on that connection is known as its own.
    phone.call("pbx", Wish::Audio);
    line.send(&request_within(pbx.last_invite().as_bytes(), ("BYE", 1), (Transport::Tcp, own), ("", "")));
    accept(&phone, "BYE");
    assert!(line.receive(PATIENCE).expect("an answer").starts_with(b"SIP/2.0 200 "));
    assert_eq!(pbx.connections(), 1, "one connection for all of it");
    until("no grant is left", || node.grants().is_empty().then_some(()));
}

fn over_tls(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let more = "sip = [\"tls/5061\"]\ncertificate = \"client.example.net\"\n";
    let node = node(&lab, datapath, &authority, more);
    let own = SocketAddr::from((SERVICE, 5061));
    let impostor = StreamPbx::start(&lab, 5061, Some(authority.server("another.example.net")));
    let phone = udp_phone(&lab);
    assert_eq!(phone.try_call("pbx", Wish::Audio).expect_err("nobody is there").status, 503);
    assert!(impostor.heard().is_empty());
    drop(impostor);

    let pbx = StreamPbx::start(&lab, 5061, Some(authority.server("client.example.net")));
    let call = phone.call("pbx", Wish::Audio);
    let invite = pbx.last_invite();
    assert!(
        invite.contains(&format!("Via: SIP/2.0/TLS {TLS};"))
            && invite.contains(&format!("<sip:{TLS};transport=tls;lr;"))
    );
    reinvite_of_server(&pbx, &phone, &invite, Transport::Tls, own);
    assert_eq!(phone.bye(call).status, 200);
    // Its certificate is enough over a connection of its own, and none or another is not.
    for (config, code) in [
        (authority.client(None), 407),
        (authority.client(Some(&Authority::new())), 407),
        (authority.client(Some(&authority)), 200),
    ] {
        let call = phone.call("pbx", Wish::Audio);
        let line = Line::tls(&lab, "service", TLS, config);
        line.send(&request_within(pbx.last_invite().as_bytes(), ("BYE", 1), (Transport::Tls, own), ("", "")));
        if code == 200 {
            accept(&phone, "BYE");
        }
        let answer = line.receive(PATIENCE).expect("an answer");
        assert!(answer.starts_with(format!("SIP/2.0 {code} ").as_bytes()), "{}", String::from_utf8_lossy(&answer));
        if code != 200 {
            assert_eq!(phone.bye(call).status, 200);
        }
    }
    until("no grant is left", || node.grants().is_empty().then_some(()));
}

fn unreached(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let _node = node(&lab, datapath, &authority, "sip = [\"tcp/5060\"]\n");
    let phone = udp_phone(&lab);
    let refusal = phone.try_call("pbx", Wish::Audio).expect_err("nobody is there");
    assert_eq!((refusal.status, refusal.header(HeaderName::RetryAfter).is_some()), (503, true));
    let _pbx = StreamPbx::start(&lab, 5060, None);
    let call = phone.call("pbx", Wish::Audio);
    assert_eq!(phone.bye(call).status, 200);
}

/// Where the first Route leads.
fn first_route(routes: &str) -> (SocketAddr, Option<Transport>) {
    let first = routes.lines().find_map(|line| line.strip_prefix("Route: ")).expect("a Route");
    let address = NameAddr::parse(first.as_bytes()).expect("an address");
    let uri = Uri::parse(address.uri).expect("a URI");
    let host = uri.host.and_then(|host| host.address()).expect("an address");
    let transport = uri.param(b"transport").flatten().and_then(Transport::named);
    (SocketAddr::new(host, uri.port.unwrap_or(5060)), transport)
}

/// A telephone that goes where Route says.
struct Strict<'l> {
    lab: &'l Lab,
    phone: Phone,
}

impl<'l> Strict<'l> {
    fn new(lab: &'l Lab) -> Self {
        Self { lab, phone: Phone::over(Line::tcp(lab, "client", SIP), "alice") }
    }

    /// Another connection, to where the first Route leads, which says over what.
    fn reconnect(&mut self, routes: &str) {
        let (to, transport) = first_route(routes);
        assert_eq!((to, transport), (SIP, Some(Transport::Tcp)));
        self.phone = Phone::over(Line::tcp(self.lab, "client", to), "alice");
    }

    /// A request within the call, again with credentials if it is asked for some.
    fn asks(&self, call: &mut Call, method: &str, sdp: &str) -> u16 {
        let (to, transport) = first_route(call.routes());
        assert_eq!((to, transport), (SIP, Some(Transport::Tcp)));
        call.cseq += 1;
        let plain = self.phone.describing(call, (method, call.cseq), "", sdp);
        let mut answer = self.phone.ask(&plain);
        if answer.status == 407 {
            if method == "INVITE" {
                self.phone.acknowledge(&plain, &answer);
            }
            call.cseq += 1;
            let signed = self.phone.credentials(&answer, method, call.target());
            answer = self.phone.ask(&self.phone.describing(call, (method, call.cseq), &signed, sdp));
        }
        if method == "INVITE" && answer.status == 200 {
            self.phone.send(&self.phone.in_dialog(call, "ACK", call.cseq));
        }
        answer.status
    }
}

/// Has the server over UDP ask something within the call; the telephone agrees.
fn asks_of_server(pbx: &Pbx, phone: &Phone, invite: &str, request: (&str, u32), sdp: &str) {
    let own = SocketAddr::from((SERVICE, 5060));
    pbx.send(SIP, &request_within(invite.as_bytes(), request, (Transport::Udp, own), ("", sdp)));
    accept(phone, request.0);
    let (method, cseq) = request;
    let answered = format!("CSeq: {cseq} {method}");
    until("the server has its answer", || {
        pbx.heard().iter().any(|text| text.starts_with("SIP/2.0 200") && text.contains(&answered)).then_some(())
    });
    if method == "INVITE" {
        pbx.send(SIP, &request_within(invite.as_bytes(), ("ACK", cseq), (Transport::Udp, own), ("", "")));
        assert!(phone.line.receive(PATIENCE).expect("the ACK").starts_with(b"ACK "));
    }
}

fn strict(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let node = node(&lab, datapath, &authority, "");
    let pbx = Pbx::start(&lab);
    let mut strict = Strict::new(&lab);
    let of_call = |pbx: &Pbx| pbx.heard().into_iter().rfind(|text| text.starts_with("INVITE")).expect("an INVITE");

    let mut call = strict.phone.call("pbx", Wish::Audio);
    assert!(call.target().contains(&format!("@{SIP};transport=tcp")), "{}", call.target());
    let invite = of_call(&pbx);
    let offer = strict.phone.offer(Wish::Audio);
    assert_eq!(strict.asks(&mut call, "INVITE", &(offer.clone() + HOLD)), 200);
    assert_eq!(strict.asks(&mut call, "INVITE", &offer), 200);
    asks_of_server(&pbx, &strict.phone, &invite, ("INVITE", 11), &format!("{DESCRIPTION}{HOLD}"));
    asks_of_server(&pbx, &strict.phone, &invite, ("INVITE", 12), DESCRIPTION);
    // Its connection is gone, so it makes another, and has to say again who it is.
    strict.reconnect(call.routes());
    assert_eq!(strict.asks(&mut call, "BYE", ""), 200);
    until("the server hears of it", || {
        (pbx.heard_of("CSeq: ") > 0 && pbx.heard().iter().any(|text| text.starts_with("BYE "))).then_some(())
    });

    strict.phone.call("pbx", Wish::Audio);
    asks_of_server(&pbx, &strict.phone, &of_call(&pbx), ("BYE", 21), "");
    until("no grant is left", || node.grants().is_empty().then_some(()));

    for server_hangs_up in [false, true] {
        let contact = format!("Contact: <sip:alice@{};transport=tcp>\r\n", strict.phone.local());
        assert_eq!(strict.phone.register(&contact).status, 200);
        let (called, tag) = call_of_server(&pbx, &strict.phone);
        hang_up(&pbx, &strict.phone, (&called, &tag), server_hangs_up);
        until("no grant is left", || node.grants().is_empty().then_some(()));
    }
}

/// Has the server call the telephone: the INVITE as that got it, and the server's tag.
fn call_of_server(pbx: &Pbx, phone: &Phone) -> (Vec<u8>, String) {
    let (call_id, tag) = (token(), token());
    let to = "sip:alice@example.net";
    let request = |method: &str, cseq: u32, (target, to_tag, route): (&str, &str, &str), more: &str, sdp: &str| {
        let kind = if sdp.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
        format!(
            "{method} {target} SIP/2.0\r\nVia: SIP/2.0/UDP {SERVICE}:5060;branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n\
             {route}From: <sip:switch@example.net>;tag={tag}\r\nTo: <{to}>{to_tag}\r\nCall-ID: {call_id}\r\n\
             CSeq: {cseq} {method}\r\nContact: <sip:pbx@{SERVICE}:5060>\r\n{more}{kind}\
             Content-Length: {length}\r\n\r\n{sdp}",
            branch = token(),
            length = sdp.len(),
        )
    };
    let answer = |begins: &'static str, cseq: u32| {
        let mine = format!("CSeq: {cseq} INVITE");
        until("the server has its answer", || {
            let is_it = |text: &String| text.starts_with(begins) && text.contains(&call_id) && text.contains(&mine);
            pbx.heard().into_iter().find(is_it)
        })
    };
    pbx.send(SIP, request("INVITE", 1, (to, "", ""), "", DESCRIPTION).as_bytes());
    let challenge = answer("SIP/2.0 407", 1);
    let signed = credentials(challenge.as_bytes(), ("switch", PASSWORD), "INVITE", to);
    pbx.send(SIP, request("INVITE", 2, (to, "", ""), &signed, DESCRIPTION).as_bytes());
    let invite = accept(phone, "INVITE");
    let ok = answer("SIP/2.0 200", 2);
    let ok = Message::parse(ok.as_bytes()).expect("a message");
    let contact = ok.contact().ok().flatten().expect("a Contact");
    let target = String::from_utf8_lossy(contact.uri).into_owned();
    let mut routes: Vec<String> = ok
        .headers(HeaderName::RecordRoute)
        .map(|route| format!("Route: {}\r\n", String::from_utf8_lossy(route)))
        .collect();
    routes.reverse();
    let ack = request("ACK", 2, (&target, ";tag=phone-tag", &routes.concat()), "", "");
    pbx.send(SIP, ack.as_bytes());
    assert!(phone.line.receive(PATIENCE).expect("the ACK").starts_with(b"ACK "));
    (invite, format!("{tag} {call_id} {target} {}", routes.concat()))
}

/// Either side ends a call of the server.
fn hang_up(pbx: &Pbx, phone: &Phone, (invite, server): (&[u8], &str), server_hangs_up: bool) {
    let invite = Message::parse(invite).expect("an INVITE");
    let text = |name| String::from_utf8_lossy(invite.header(name).unwrap_or_default()).into_owned();
    let routes: String = invite
        .headers(HeaderName::RecordRoute)
        .map(|route| format!("Route: {}\r\n", String::from_utf8_lossy(route)))
        .collect();
    assert_eq!(first_route(&routes), (SIP, Some(Transport::Tcp)));
    let contact = invite.contact().ok().flatten().expect("a Contact");
    assert!(contact.uri.ends_with(b";transport=tcp"), "the way back to us is this connection's");
    if !server_hangs_up {
        let bye = format!(
            "BYE {target} SIP/2.0\r\nVia: SIP/2.0/TCP {local};branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n{routes}\
             From: {to};tag=phone-tag\r\nTo: {from}\r\nCall-ID: {call_id}\r\nCSeq: 1 BYE\r\nContent-Length: 0\r\n\r\n",
            target = String::from_utf8_lossy(contact.uri),
            local = phone.local(),
            branch = token(),
            to = text(HeaderName::To),
            from = text(HeaderName::From),
            call_id = text(HeaderName::CallId),
        );
        assert_eq!(phone.ask(bye.as_bytes()).status, 200);
        return;
    }
    let mut parts = server.splitn(4, ' ');
    let [tag, call_id, target, routes] = std::array::from_fn(|_| parts.next().expect("four parts"));
    let bye = format!(
        "BYE {target} SIP/2.0\r\nVia: SIP/2.0/UDP {SERVICE}:5060;branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n{routes}\
         From: <sip:switch@example.net>;tag={tag}\r\nTo: <sip:alice@example.net>;tag=phone-tag\r\nCall-ID: {call_id}\r\n\
         CSeq: 3 BYE\r\nContent-Length: 0\r\n\r\n",
        branch = token(),
    );
    pbx.send(SIP, bye.as_bytes());
    accept(phone, "BYE");
    until("the server has its answer", || {
        pbx.heard()
            .iter()
            .any(|text| text.starts_with("SIP/2.0 200") && text.contains(call_id) && text.contains("3 BYE"))
            .then_some(())
    });
}
