//! Calls whose gate or frontend dies and comes back.

use std::{net::SocketAddr, thread, time::Duration};

use sluicegate_sip::message::{HeaderName, Message, NameAddr, Transport};

use crate::{
    servers::accept,
    support::{
        PATIENCE,
        lab::{CLIENT, FRONTEND, Lab, SERVICE},
        let_run,
        line::Line,
        node::{Config, Node, join, service},
        pbx::{DESCRIPTION, Pbx, opposite, request_within},
        phone::{AUDIO_PORT, Call, Phone, Wish},
        program::run_on,
        stolen, until,
        voices::{Heard, Voices},
    },
};

on_packet!(alone fifty_calls_live_through_a_gate_that_is_killed_and_started_anew, &[], gate_killed);
on_packet!(calls_end_and_begin_while_their_gate_is_away, &[], signalling);
on_packet!(alone a_killed_frontend_stops_no_call_and_after_it_each_side_changes_and_ends_them, &[], frontend_killed);
on_packet!(a_phone_that_lost_its_connection_with_the_frontend_changes_its_call_and_is_reached_in_it, &[], over_tcp);
on_packet!(calls_outlive_their_grants_after_a_killed_frontend_is_back, &[], renewed);
on_packet!(calls_live_through_a_frontend_that_nobody_reaches_for_some_seconds, &["ip"], cut_off);

const SIP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(FRONTEND), 5060);
const CALLS: usize = 50;
/// Longest silence of a stream while its gate is killed and started anew.
const BACK: Duration = Duration::from_secs(2);

/// A frontend and a gate on hosts of their own, a PBX behind, and calls with RTP both ways.
struct Site {
    gate: Node,
    frontend: Node,
    pbx: Pbx,
    calls: Vec<(Phone, Call)>,
    outside: Voices,
    inside: Voices,
    /// The longest silence of any stream.
    longest: Duration,
    lab: Lab,
}

impl Site {
    /// So many calls, whose phones have these lines. `more`: of the service.
    fn talking(datapath: &'static str, calls: usize, line: fn(&Lab) -> Line, more: &str) -> Self {
        let lab = Lab::new();
        let pbx = service("pbx", "\"udp/10000-10199\"", &format!("kind = \"sip\"\n{more}"));
        let listen = format!("listen = [\"udp/{SIP}\", \"tcp/{SIP}\"]\n");
        let config = Config::new(datapath, &pbx).frontend(&listen);
        let frontend = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
        frontend.ready();
        frontend.add_people(&lab);
        let gate_file = config.write_gate(&lab);
        join(&lab, &frontend, &gate_file);
        let gate = Node::start(&lab, "gate", "gate", &gate_file);
        gate.ready();
        frontend.has_gate();
        let pbx = Pbx::apart(&lab);
        let ports = (AUDIO_PORT..).step_by(2).take(calls);
        let calls: Vec<(Phone, Call)> = ports
            .map(|audio_port| {
                let phone = Phone::over(line(&lab), "alice").hearing_at(audio_port);
                let call = phone.call("pbx", Wish::Audio);
                (phone, call)
            })
            .collect();
        let outside = Voices::start(calls.iter().map(|(phone, call)| outer(&lab, phone, call.gate)).collect());
        let inside = Voices::start(calls.iter().map(|(phone, _)| inner(&lab, phone)).collect());
        let mut site = Self { gate, frontend, pbx, calls, outside, inside, longest: Duration::ZERO, lab };
        site.talk_again();
        site
    }

    /// What both sides have heard since this was last asked: of the PBX, then of the phones. The longest silence begins anew.
    fn heard(&mut self) -> Vec<Heard> {
        self.longest = Duration::ZERO;
        [self.outside.heard(), self.inside.heard()].concat()
    }

    /// Waits until the streams of all calls that live flow both ways, those of the PBX from where its phones were told at first.
    fn talk_again(&mut self) {
        let of_calls = |(phone, call): &(Phone, Call)| (usize::from((phone.audio_port - AUDIO_PORT) / 2), call.gate);
        let places: Vec<(usize, SocketAddr)> = self.calls.iter().map(of_calls).collect();
        let mut packets = vec![(0, 0); places.len()];
        until("every stream flows", || {
            let (outside, inside) = (self.outside.heard(), self.inside.heard());
            for ((nth, gate), packets) in places.iter().zip(&mut packets) {
                let (out, within) = (outside[*nth], inside[*nth]);
                assert!(out.from.is_none_or(|from| from == *gate), "{out:?}, {gate}");
                *packets = (packets.0 + out.packets, packets.1 + within.packets);
                self.longest = self.longest.max(out.silence).max(within.silence);
            }
            packets.iter().all(|packets| packets.0 > 25 && packets.1 > 25).then_some(())
        });
    }

    /// Ends all calls, one by one; each takes its own pinhole with it, and no other.
    fn hang_up(&mut self) {
        while let Some((phone, call)) = self.calls.pop() {
            assert_eq!(phone.bye(call).status, 200);
            let left = self.calls.len();
            for node in [&self.frontend, &self.gate] {
                until("its pinhole is closed", || (node.grants().len() == left).then_some(()));
            }
        }
        self.is_over();
    }

    /// Waits until nothing is left of any call.
    fn is_over(&self) {
        for node in [&self.frontend, &self.gate] {
            until("no pinhole is left", || node.grants().is_empty().then_some(()));
        }
        until("no call is left", || (self.used("calls") == 0).then_some(()));
    }

    /// The PBX says something in a call, by the way that its INVITE named.
    fn pbx_says(&self, call: &Call, (method, cseq): (&str, u32), body: &str) {
        let authorised = Message::parse(&call.authorised).expect("an INVITE");
        let call_id = String::from_utf8_lossy(authorised.header(HeaderName::CallId).expect("a Call-ID")).into_owned();
        let heard = self.pbx.heard();
        let invite = heard.iter().find(|heard| heard.starts_with("INVITE") && heard.contains(&call_id));
        let invite = invite.expect("its INVITE").as_bytes();
        let message = Message::parse(invite).expect("an INVITE");
        let route = NameAddr::parse(message.headers(HeaderName::RecordRoute).next().expect("our Record-Route"));
        let route = String::from_utf8_lossy(route.expect("a route").uri).into_owned();
        let place = route.trim_start_matches("sip:").split(';').next().expect("a place");
        let to = place.parse().unwrap_or_else(|_| panic!("{route} is an address and a port"));
        self.pbx
            .send(to, &request_within(invite, (method, cseq), (Transport::Udp, (SERVICE, 5060).into()), ("", body)));
    }

    /// The PBX moves its media, and the phone agrees.
    fn pbx_reinvites(&self, call: &Call, phone: &Phone) {
        self.pbx_says(call, ("INVITE", 1), &DESCRIPTION.replace("10000", "10180"));
        let offer = String::from_utf8_lossy(&accept(phone, "INVITE")).into_owned();
        assert!(offer.contains("c=IN IP4 203.0.113.1"), "{offer}");
        until("the PBX hears that", || {
            let is_answer = |heard: &String| heard.starts_with("SIP/2.0 200") && heard.contains("CSeq: 1 INVITE");
            self.pbx.heard().iter().any(is_answer).then_some(())
        });
        self.pbx_says(call, ("ACK", 1), "");
        assert!(phone.line.receive(PATIENCE).expect("the ACK").starts_with(b"ACK "));
    }

    /// Asserts that no stream paused since it was last asked, but for what the machine was taken away.
    fn never_paused(&mut self, stolen_before: Duration) {
        let heard = self.heard();
        let (silence, taken) =
            (heard.iter().map(|heard| heard.silence).max().unwrap_or_default(), stolen() - stolen_before);
        println!("longest silence: {silence:?}, {taken:?} stolen");
        assert!(silence < Duration::from_secs(1) + taken, "{silence:?}, {taken:?} stolen");
    }

    /// Waits until gate and frontend agree on so many grants.
    fn has_grants(&self, count: usize) {
        for node in [&self.gate, &self.frontend] {
            until("so many pinholes are open", || (node.grants().len() == count).then_some(()));
        }
    }

    /// What one of the frontend's tables holds.
    fn used(&self, table: &str) -> u64 {
        let tables = self.frontend.json(&["status"])["frontend"]["tables"].clone();
        let mut tables = tables.as_array().into_iter().flatten().filter(|row| row["table"] == table);
        tables.next().and_then(|row| row["used"].as_u64()).expect("a table")
    }
}

fn udp(lab: &Lab) -> Line {
    Line::udp(lab, "client", CLIENT, SIP)
}

fn tcp(lab: &Lab) -> Line {
    Line::tcp(lab, "client", SIP)
}

fn outer(lab: &Lab, phone: &Phone, gate: SocketAddr) -> (std::net::UdpSocket, SocketAddr) {
    (lab.udp("client", CLIENT, phone.audio_port), gate)
}

fn inner(lab: &Lab, phone: &Phone) -> (std::net::UdpSocket, SocketAddr) {
    (lab.udp("service", SERVICE, opposite(phone.audio_port)), (CLIENT, phone.audio_port).into())
}

fn gate_killed(datapath: &'static str) {
    let mut site = Site::talking(datapath, CALLS, udp, "");
    let grants = site.gate.grants();
    assert_eq!(grants.len(), CALLS);
    let_run(Duration::from_secs(1));
    site.heard();
    let stolen_before = stolen();
    // The silence lasts from the kill on; who supervises the gate starts it anew at once.
    site.gate.program.kill();
    site.gate.restart(&site.lab);
    site.talk_again();
    let (silence, taken) = (site.longest, stolen() - stolen_before);
    println!("longest silence of {} streams: {silence:?}, {taken:?} stolen", 2 * CALLS);
    assert_eq!(site.gate.grants(), grants, "the same pinholes");
    assert!(silence < BACK + taken, "{silence:?}, {taken:?} stolen");
    site.frontend.has_gate();
    site.hang_up();
}

fn signalling(datapath: &'static str) {
    let mut site = Site::talking(datapath, 3, udp, "");
    site.gate.program.kill();
    let (phone, call) = site.calls.remove(0);
    let another = Phone::over(udp(&site.lab), "alice").hearing_at(AUDIO_PORT + 100);
    let begun = thread::scope(|scope| {
        let bye = scope.spawn(|| phone.bye(call));
        let invite = scope.spawn(|| another.try_call("pbx", Wish::Audio));
        let_run(Duration::from_secs(1));
        site.gate.restart(&site.lab);
        assert_eq!(bye.join().expect("an answer").status, 200);
        invite.join().expect("an answer")
    });
    assert!(site.pbx.heard_of("BYE ") > 0, "the PBX has heard the BYE");
    println!("a call that begins meanwhile: {:?}", begun.as_ref().map_err(|answer| answer.status).map(|_| 200));
    match begun {
        Ok(call) => assert_eq!(another.bye(call).status, 200),
        Err(answer) => assert!([408, 480, 503].contains(&answer.status), "{}", answer.status),
    }
    site.has_grants(2);
    site.talk_again();
    site.hang_up();
}

fn frontend_killed(datapath: &'static str) {
    let mut site = Site::talking(datapath, 4, udp, "");
    let grants = site.gate.grants();
    let stolen_before = stolen();
    site.heard();
    site.frontend.program.kill();
    let_run(Duration::from_secs(1));
    site.frontend.start_again(&site.lab);
    // It comes while the frontend starts, and before the gate has told it what is open.
    let (phone, call) = site.calls.remove(0);
    site.never_paused(stolen_before);
    assert_eq!(phone.bye(call).status, 200);
    site.frontend.ready();
    site.frontend.has_gate();
    site.has_grants(3);

    // A phone moves its media, and then the PBX does.
    let before = site.gate.grants();
    let (mut phone, mut call) = site.calls.remove(0);
    phone.audio_port += 100;
    let answer = phone.reinvite(&mut call);
    assert_eq!(answer.status, 200);
    until("what was moved from is closed", || {
        let grants = site.gate.grants();
        (grants.len() == 3 && grants != before).then_some(())
    });
    let (out, within) = (outer(&site.lab, &phone, answer.media()[0]), inner(&site.lab, &phone));
    let moved = [Voices::start(vec![out]), Voices::start(vec![within])];
    until("audio flows where it moved to", || moved.iter().all(|voices| voices.heard()[0].packets > 0).then_some(()));
    let before = site.gate.grants();
    site.pbx_reinvites(&call, &phone);
    until("what the PBX moved from is closed", || {
        let grants = site.gate.grants();
        (grants.len() == 3 && grants != before).then_some(())
    });

    site.pbx_says(&call, ("BYE", 2), "");
    accept(&phone, "BYE");
    site.has_grants(2);
    site.talk_again();
    assert!(site.gate.grants().iter().all(|grant| grants.contains(grant)), "the others kept theirs");
    site.hang_up();
}

fn over_tcp(datapath: &'static str) {
    let mut site = Site::talking(datapath, 2, tcp, "");
    site.frontend.program.kill();
    site.frontend.restart(&site.lab);
    site.frontend.has_gate();
    site.has_grants(2);
    let (mut phone, mut call) = site.calls.remove(0);
    let contact = phone.local();
    phone.line = tcp(&site.lab);
    call.cseq += 1;
    let bye = phone.in_dialog(&call, "BYE", call.cseq);
    let challenge = phone.ask(&bye);
    assert_eq!(challenge.status, 407, "over a new connection, once");
    let acks = site.pbx.heard_of("ACK ");
    phone.audio_port += 100;
    assert_eq!(phone.reinvite(&mut call).status, 200);
    until("its ACK reaches the PBX", || (site.pbx.heard_of("ACK ") > acks).then_some(()));
    // Registered under the Contact that it has in the call, it is reached over the new connection.
    assert_eq!(phone.register(&format!("Contact: <sip:alice@{contact}>\r\nExpires: 600\r\n")).status, 200);
    site.pbx_reinvites(&call, &phone);
    site.pbx_says(&call, ("BYE", 2), "");
    accept(&phone, "BYE");
    site.has_grants(1);
    // And who has signed in over a connection ends its call without being asked again.
    let (mut phone, call) = site.calls.remove(0);
    phone.line = tcp(&site.lab);
    assert_eq!(phone.register("").status, 200);
    assert_eq!(phone.bye(call).status, 200);
    site.is_over();
}

fn renewed(datapath: &'static str) {
    const LIFETIME_S: u64 = 20;
    let grant = format!("grant = {{ bytes_max = \"50MB\", lifetime_s = {LIFETIME_S}, rate = \"1Mbit\" }}\n");
    let mut site = Site::talking(datapath, 2, udp, &grant);
    let grants = site.gate.grants();
    let stolen_before = stolen();
    site.heard();
    site.frontend.program.kill();
    site.frontend.restart(&site.lab);
    let_run(Duration::from_secs(2 * LIFETIME_S));
    site.never_paused(stolen_before);
    assert_eq!(site.gate.grants(), grants, "the same pinholes");
    site.hang_up();
}

fn cut_off(datapath: &'static str) {
    let mut site = Site::talking(datapath, 4, udp, "");
    let stolen_before = stolen();
    site.heard();
    let frontend = format!("{FRONTEND}/32");
    let route = |verb: &str| {
        run_on(&site.lab, "core", "ip", &["route", verb, "blackhole", &frontend], PATIENCE).expect("a route");
    };
    route("add");
    let (phone, call) = site.calls.remove(0);
    thread::scope(|scope| {
        let bye = scope.spawn(|| phone.bye(call));
        let_run(Duration::from_secs(4));
        route("del");
        assert_eq!(bye.join().expect("an answer").status, 200);
    });
    site.never_paused(stolen_before);
    site.has_grants(3);
    let (mut phone, mut call) = site.calls.remove(0);
    phone.audio_port += 100;
    assert_eq!(phone.reinvite(&mut call).status, 200);
    site.has_grants(3);
    assert_eq!(phone.bye(call).status, 200);
    site.has_grants(2);
    site.hang_up();
}
