//! Requests refused in the kernel in a server's place, end to end on real veth pairs: beside ordinary sockets, and beside
//! datagrams that come as frames.

mod support;

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Instant,
};

use siphasher::sip::SipHasher24;
use sluicegate_datapath::{Interface, OpenError, SHARES, SPARED_MAX, Sieve, SieveCounts, Sieved, UdpPort};
use sluicegate_sip::{
    message::{HeaderName, Message, Rport},
    write::Response,
};
use sluicegate_wire::ip::sender_of;
use support::{
    is_root,
    site::{Site, ip, received, wait_for},
    wire::{CLIENT, PATIENCE, PORT, SERVER, Wire, at, datagram, listeners},
};

const TAG: &str = "0123456789abcdef";
const SIEVE: Sieve = Sieve { key: [9; 16], tag: *b"0123456789abcdef", bytes_per_s: u32::MAX as u64 };
const ALL: u32 = u32::MAX;
/// Frames of one batch.
const BATCH: usize = 32;

/// A server with a sieve, which takes connections too.
struct Server {
    wire: Wire,
    port: UdpPort,
}

impl Server {
    fn new(takes_frames: bool, offloads: bool, sieve: &Sieve) -> Self {
        let mut opened = None;
        let wire = Wire::with(offloads, |interface| {
            let (port, queues) =
                UdpPort::open(interface, (&listeners(), &streams()), takes_frames, Some(sieve)).unwrap();
            assert_eq!(takes_frames, !queues.is_empty());
            opened = Some(port);
            queues
        });
        Self { wire, port: opened.unwrap() }
    }

    /// Refuses everybody.
    fn refusing(takes_frames: bool) -> Self {
        let mut sieved = Self::new(takes_frames, false, &SIEVE);
        sieved.port.set_shares(Sieved::Requests, &[0; SHARES]);
        sieved
    }

    /// What has come to the server.
    fn passed(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for queue in &mut self.wire.queues {
            while queue.receive(|_, _, _, bytes| all.push(bytes.to_vec())) > 0 {}
        }
        for socket in &self.wire.sockets {
            all.extend(std::iter::from_fn(|| received(socket)).map(|(bytes, _)| bytes));
        }
        all
    }

    /// Sends frames; which payloads the server gets, and what is counted meanwhile.
    fn sift(&mut self, frames: &[Vec<u8>]) -> (Vec<Vec<u8>>, SieveCounts) {
        let before = self.port.counts();
        let (mut passed, mut sent) = (Vec::new(), 0);
        let until = Instant::now() + PATIENCE;
        for batch in frames.chunks(BATCH) {
            self.wire.send(batch);
            sent += batch.len();
            loop {
                passed.extend(self.passed());
                let counts = since(before, self.port.counts());
                if passed.len() as u64 + counts.refused + counts.acks + counts.over_budget >= sent as u64 {
                    break;
                }
                assert!(Instant::now() < until, "{} of {sent} passed, {counts:?}", passed.len());
            }
        }
        let counts = since(before, self.port.counts());
        assert_eq!(passed.len() as u64 + counts.refused + counts.acks + counts.over_budget, sent as u64);
        (passed, counts)
    }

    /// Whether the server gets this, of an IPv4 client.
    fn passes(&mut self, text: &[u8]) -> bool {
        let (passed, _) = self.sift(&[from(CLIENT[0], text)]);
        assert!(passed.iter().all(|bytes| bytes == text), "it was changed");
        !passed.is_empty()
    }
}

fn since(before: SieveCounts, now: SieveCounts) -> SieveCounts {
    SieveCounts {
        refused: now.refused - before.refused,
        acks: now.acks - before.acks,
        over_budget: now.over_budget - before.over_budget,
        unread: now.unread - before.unread,
        resets: now.resets - before.resets,
    }
}

/// Where the server takes connections.
fn streams() -> [SocketAddr; 2] {
    [at(SERVER, 0, PORT), at(SERVER, 1, PORT)]
}

/// A frame from a client, to the server's address of the same version.
fn from(source: &str, text: &[u8]) -> Vec<u8> {
    let version = usize::from(ip(source).is_ipv6());
    datagram((source, 4000), at(SERVER, version, PORT), text)
}

/// A request as telephones send it.
fn request(method: &str) -> String {
    format!(
        "{method} sip:bob@example.org SIP/2.0\r\n\
         Via: SIP/2.0/UDP 10.9.8.7:5070;rport;branch=z9hG4bK-1\r\n\
         Max-Forwards: 70\r\n\
         v:SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK-0, SIP/2.0/UDP 10.0.0.2;branch=z9hG4bK-2\r\n\
         From: \"Alice; tagged\" <sip:alice@example.org>;tag=a1\r\n\
         To: <sip:bob@example.org>\r\n\
         Call-ID: 1-2-3@10.9.8.7\r\n\
         CSeq: 7 {method}\r\n\
         Contact: <sip:alice@10.9.8.7:5070>\r\n\
         User-Agent: a telephone with a name that is not short\r\n\
         Allow: INVITE, ACK, CANCEL, BYE, OPTIONS, REGISTER, INFO, UPDATE\r\n\
         Content-Length: 0\r\n\r\n"
    )
}

/// The request with one thing changed.
fn changed(what: &str, by: &str) -> String {
    let whole = request("INVITE");
    assert!(whole.contains(what), "{what}");
    whole.replacen(what, by, 1)
}

#[test]
fn a_refusal_is_what_the_server_itself_would_answer() {
    if !is_root() {
        return;
    }
    for (takes_frames, offloads) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut sieved = Server::new(takes_frames, offloads, &SIEVE);
        sieved.port.set_shares(Sieved::Requests, &[0; SHARES]);
        eprintln!("{}", sieved.port.describe());
        for (version, method) in [(0, "INVITE"), (0, "REGISTER"), (1, "INVITE"), (1, "REGISTER")] {
            let text = request(method);
            let client = Site::udp(&sieved.wire.client, CLIENT[version], 4000);
            client.send_to(text.as_bytes(), at(SERVER, version, PORT)).unwrap();
            // Its kernel has checked the checksums.
            let (answer, by) = wait_for(&client);
            assert_eq!(by, at(SERVER, version, PORT));
            assert!(answer.len() <= text.len());
            check(&answer, &text, at(CLIENT, version, 4000));
        }
        assert_eq!(sieved.passed(), [b""; 0]);
        assert_eq!(sieved.port.counts(), SieveCounts { refused: 4, ..SieveCounts::default() });
    }
}

/// Compares an answer with that which the server's own writer makes.
fn check(answer: &[u8], text: &str, peer: SocketAddr) {
    let shown = String::from_utf8_lossy(answer);
    let request = Message::parse(text.as_bytes()).unwrap();
    let mut own = Vec::new();
    Response::to(&request, 500).source(peer).to_tag(TAG.as_bytes()).begin(&mut own).header("Retry-After", "1").finish();
    let (own, got) = (Message::parse(&own).unwrap(), Message::parse(answer).unwrap_or_else(|e| panic!("{e}: {shown}")));
    assert!(got.lines().map(|line| line.name).eq(own.lines().map(|line| line.name)), "{shown}");
    assert!(answer.starts_with(b"SIP/2.0 500 Server Internal Error\r\n"), "{shown}");
    for name in [HeaderName::From, HeaderName::To, HeaderName::CallId, HeaderName::CSeq, HeaderName::ContentLength] {
        assert_eq!(got.header(name), own.header(name), "{shown}");
    }
    assert_eq!(got.to().unwrap().tag, Some(TAG.as_bytes()));
    assert!(got.headers(HeaderName::Via).skip(1).eq(own.headers(HeaderName::Via).skip(1)), "{shown}");
    let (via, own_via) = (got.top_via().unwrap(), own.top_via().unwrap());
    assert_eq!(via.rport, Rport::Port(peer.port()));
    let received = std::str::from_utf8(via.received.unwrap()).unwrap();
    assert_eq!(received.parse::<IpAddr>(), Ok(peer.ip()), "{shown}");
    assert_eq!((via.host, via.port, via.branch), (own_via.host, own_via.port, own_via.branch));
    let after = shown.lines().find_map(|line| line.strip_prefix("Retry-After: ")).unwrap();
    assert!((1..=8).contains(&after.parse::<u32>().unwrap()), "{shown}");
}

#[test]
fn every_address_and_port_is_told_as_it_is() {
    if !is_root() {
        return;
    }
    let sieved = Server::refusing(false);
    let text = request("INVITE");
    let mut capture =
        sieved.wire.client.run(|| sluicegate_datapath::raw::Socket::open("c0", &Default::default()).unwrap());
    let sources = ["1.2.3.4", "100.200.0.255", "203.0.113.99", "2001:db8:1::2", "2001:db8:10:203:4050:0:a0b:c00d"];
    for (source, port) in sources.into_iter().flat_map(|source| [1, 65_535, 5060, 10_000].map(|port| (source, port))) {
        let version = usize::from(ip(source).is_ipv6());
        sieved.wire.send(&[datagram((source, port), at(SERVER, version, PORT), text.as_bytes())]);
        let (mut frame, until) = (None, Instant::now() + PATIENCE);
        while frame.is_none() {
            assert!(Instant::now() < until, "no answer to {source}");
            let _ = capture.wait(PATIENCE);
            capture.receive(8, &mut |got| {
                let is_ours = got.bytes.windows(4).any(|four| four == b" 500") && got.bytes[..6] == [2, 0, 0, 0, 0, 1];
                frame = is_ours.then(|| got.bytes.to_vec()).or(frame.take());
            });
        }
        let packet = frame.unwrap().split_off(14);
        let summary = sluicegate_wire::ip::Summary::parse(&packet).unwrap();
        assert_eq!((summary.src, summary.dst), (ip(SERVER[version]), ip(source)));
        let udp = sluicegate_wire::udp::Packet::new_checked(&packet[summary.transport_offset..]).unwrap();
        assert!(udp.verify_checksum(summary.src, summary.dst), "{source}");
        assert_eq!((udp.src_port(), udp.dst_port()), (PORT, port));
        check(&packet[summary.transport_offset + 8..], &text, SocketAddr::new(ip(source), port));
    }
}

#[test]
fn a_source_passes_with_the_higher_of_its_two_probabilities() {
    if !is_root() {
        return;
    }
    for takes_frames in [false, true] {
        let mut sieved = Server::new(takes_frames, false, &SIEVE);
        let many = |count: usize| vec![from(CLIENT[0], request("REGISTER").as_bytes()); count];
        assert_eq!(sieved.sift(&many(100)).1.refused, 0, "nobody is, before anything is said");
        sieved.port.set_shares(Sieved::Requests, &[0; SHARES]);
        assert_eq!(sieved.sift(&many(100)).1.refused, 100);
        sieved.port.set_shares(Sieved::Requests, &[1 << 31; SHARES]);
        let half = sieved.sift(&many(1_000)).1.refused;
        assert!((400..600).contains(&half), "{half}");
        sieved.port.set_shares(Sieved::Requests, &[ALL / 10; SHARES]);
        let most = sieved.sift(&many(1_000)).1.refused;
        assert!((800..980).contains(&most), "{most}");
        sieved.port.set_shares(Sieved::Requests, &[ALL; SHARES]);
        assert_eq!(sieved.sift(&many(100)).1.refused, 0);
        // By source, in either row; of an IPv6 /64 all are one.
        for (source, twin, stranger) in [
            ("198.51.100.2", "198.51.100.2", "198.51.100.3"),
            ("2001:db8:1::2", "2001:db8:1:0:ffff::9", "2001:db8:1:1::2"),
        ] {
            let hash = match sender_of(ip(source)) {
                IpAddr::V4(v4) => SipHasher24::new_with_key(&SIEVE.key).hash(&v4.octets()),
                IpAddr::V6(v6) => SipHasher24::new_with_key(&SIEVE.key).hash(&v6.octets()),
            };
            for row in 0..2 {
                let mut shares = vec![0; SHARES];
                shares[row * 4_096 + (hash >> (16 * row)) as usize % 4_096] = ALL;
                sieved.port.set_shares(Sieved::Requests, &shares);
                for (source, refused) in [(source, 0), (twin, 0), (stranger, 1)] {
                    let text = request("INVITE");
                    assert_eq!(sieved.sift(&[from(source, text.as_bytes())]).1.refused, refused, "{source} {row}");
                }
            }
        }
    }
}

#[test]
fn of_spared_prefixes_nothing_is_refused_and_there_are_so_many() {
    if !is_root() {
        return;
    }
    let mut sieved = Server::refusing(false);
    let refused = |sieved: &mut Server, source| sieved.sift(&[from(source, request("INVITE").as_bytes())]).1.refused;
    for (source, len, twin) in [(CLIENT[0], 28, "198.51.100.15"), (CLIENT[1], 56, "2001:db8:1:ff::1")] {
        sieved.port.spare(&[(ip("192.0.2.1"), 32), (ip(source), len)]).unwrap();
        assert_eq!((refused(&mut sieved, source), refused(&mut sieved, twin)), (0, 0));
        for other in ["198.51.100.16", "2001:db8:1:100::1", "192.0.2.2"] {
            assert_eq!(refused(&mut sieved, other), 1, "{other}");
        }
    }
    let many: Vec<_> = (0..=SPARED_MAX as u32).map(|n| (IpAddr::V4((0xcb00_7100 + n).into()), 32)).collect();
    let error = sieved.port.spare(&many).unwrap_err();
    assert!(matches!(error, OpenError::TooMany { table: "spared", max: SPARED_MAX, .. }), "{error}");
    assert_eq!(refused(&mut sieved, CLIENT[1]), 0, "it was as before");
    sieved.port.spare(&many[1..]).unwrap();
    assert_eq!(refused(&mut sieved, "203.0.113.0"), 1);
    assert_eq!(refused(&mut sieved, "203.0.113.1"), 0);
    assert_eq!(refused(&mut sieved, CLIENT[1]), 1);
    sieved.port.spare(&[]).unwrap();
    assert_eq!(refused(&mut sieved, "203.0.113.1"), 1);
}

#[test]
fn what_is_not_understood_whole_is_the_servers_to_judge() {
    if !is_root() {
        return;
    }
    for takes_frames in [false, true] {
        let mut sieved = Server::refusing(takes_frames);
        for text in passing() {
            assert!(sieved.passes(text.as_bytes()), "{text}");
        }
        assert_eq!(sieved.port.counts(), SieveCounts { unread: passing().len() as u64, ..SieveCounts::default() });
        // What looks like it and is nothing of the kind.
        for (what, by) in [
            ("Max-Forwards: 70", "max-forwards: 70\r\nTopic: <x>;tag=1\r\nVictor: 1\r\nAuth: 1"),
            ("To: <sip:bob@", "t:<sip:stage-tag@"),
            ("To:", "TO:"),
            ("Call-ID:", "i:"),
            ("From:", "f:"),
            ("CSeq:", "cseq:"),
            (";rport", ";alias;RPORT"),
            ("<sip:bob@example.org>\r\n", "<sip:bob@example.org>;x=y \r\n"),
            ("Content-Length: 0\r\n\r\n", "Content-Length: 5\r\n\r\nv=0\r\n"),
        ] {
            assert!(!sieved.passes(changed(what, by).as_bytes()), "{by}");
        }
        // Wherever in a word or block lines end.
        for len in 0..130 {
            assert!(!sieved.passes(changed("70", &"7".repeat(len + 1)).as_bytes()), "{len}");
        }
        let others = ["OPTIONS", "BYE", "CANCEL", "INVITER", "REGISTERS", "invite", "UPDATE"];
        let unread = sieved.port.counts().unread;
        for method in others {
            assert!(sieved.passes(request(method).as_bytes()), "{method}");
        }
        assert_eq!(sieved.port.counts().unread, unread, "nobody looked at those");
    }
}

/// A request that is shorter than its answer.
fn without_needless() -> String {
    let is_needed = |line: &&str| !["Contact", "User-Agent", "Allow"].iter().any(|name| line.starts_with(name));
    request("INVITE").split_inclusive("\r\n").filter(is_needed).collect()
}

/// Requests with something about them.
fn passing() -> Vec<String> {
    let max = "Max-Forwards: 70\r\n";
    let with = |lines: &str| changed(max, &format!("{lines}\r\n"));
    let mut all = vec![
        with("Authorization: Digest username=\"alice\""),
        with("authorization:Digest username=\"alice\""),
        with("Proxy-Authorization: Digest username=\"alice\""),
        with("PROXY-AUTHORIZATION: Digest username=\"alice\""),
        with("Subject: folded\r\n here"),
        with("Subject: folded\r\n\there"),
        with("Subject: a\ttab"),
        with("Subject: bare\rcarriage return"),
        with("Subject: bare\nline feed"),
        with("Subject: ends twice\r"),
        with("Subject: a\0zero"),
        with("To : <sip:carol@example.org>"),
        with("Call-ID : 5"),
        with(&format!("Subject: long\r\n{}", ["X: y"; 60].join("\r\n"))),
        without_needless()
            .replace("To: <sip:bob@example.org>", &format!("To: <sip:bob@example.org;{}>", "x".repeat(1_000))),
        request("INVITE").replace("\r\n", "\n"),
        request("INVITE").replace("\r\n", "\r"),
        request("INVITE").replace("\r\n\r\n", "\r\n"),
        changed("<sip:bob@example.org>\r\n", "<sip:bob@example.org>;tag=5\r\n"),
        changed("<sip:bob@example.org>\r\n", "<sip:bob@example.org>; TAG =5\r\n"),
        changed("<sip:bob@example.org>\r\n", "<sip:bob@example.org>;x=y;Tag=5;z\r\n"),
        changed(";rport", ""),
        changed(";rport", ";rport=5070"),
        changed(";rport", ";rport =5070"),
        changed(";rport", "; rport"),
        changed(";rport", ";rport;rport"),
        changed(";rport", ";rport;received=192.0.2.1"),
        changed(";rport", ";received=192.0.2.1;rport"),
        changed(";rport", ";x=\"y\";rport"),
        changed(";rport;", ", SIP/2.0/UDP 10.0.0.9;rport;"),
        changed(" SIP/2.0\r\n", " SIP/3.0\r\n"),
        changed("sip:bob@example.org SIP/2.0\r\n", "\r\n"),
        // The answer would be longer.
        without_needless(),
    ];
    for name in ["From", "To", "Call-ID", "CSeq"] {
        let whole = request("INVITE");
        let line = whole.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap().to_owned() + "\r\n";
        all.push(whole.replace(&line, ""));
        all.push(whole.replace(&line, &line.repeat(2)));
    }
    let whole = request("INVITE");
    let vias = whole.lines().filter(|line| line.starts_with("Via:") || line.starts_with("v:"));
    all.push(vias.fold(whole.clone(), |text, line| text.replace(&format!("{line}\r\n"), "")));
    all
}

#[test]
fn cut_and_binary_datagrams_pass_as_they_are() {
    if !is_root() {
        return;
    }
    let mut sieved = Server::refusing(false);
    let whole = request("INVITE").into_bytes();
    let cut: Vec<_> = (1..whole.len()).map(|len| from(CLIENT[0], &whole[..len])).collect();
    let (passed, counts) = sieved.sift(&cut);
    assert_eq!((passed.len(), counts.refused), (cut.len(), 0), "a request without an end");
    // Noise of all kinds behind what is looked for, and as long as frames are.
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let alphabet = b"\r\n\r\n;:, =\"<>tagrportviaVfi\0\xff\tReceived";
    for start in ["INVITE ", "REGISTER ", "ACK ", "INVITE sip:a SIP/2.0\r\n", ""] {
        let frames: Vec<_> = (0..400)
            .map(|n| {
                let len = (n * 37) % (1_472 - start.len());
                let mut text = start.as_bytes().to_vec();
                text.extend(
                    (0..len).map(|_| if n % 2 == 0 { noise() } else { alphabet[noise() as usize % alphabet.len()] }),
                );
                from(CLIENT[0], &text)
            })
            .collect();
        let (passed, _) = sieved.sift(&frames);
        assert_eq!(passed.len(), frames.len(), "{start}");
    }
    // One byte changed: refused or passed, and each refusal is one that the server could have made.
    let client = Site::udp(&sieved.wire.client, CLIENT[0], 4000);
    for at in 0..whole.len() {
        let mut text = whole.clone();
        text[at] = noise();
        let (passed, counts) = sieved.sift(&[from(CLIENT[0], &text)]);
        assert_eq!(passed.len() as u64 + counts.refused, 1);
        if counts.refused == 1 {
            let (answer, _) = wait_for(&client);
            assert!(answer.len() <= text.len());
            assert!(Message::parse(&answer).is_ok() || Message::parse(&text).is_err(), "{text:?}");
        }
    }
    assert_eq!(sieved.sift(&[from(CLIENT[0], &whole)]).1.refused, 1, "and it works as before");
}

#[test]
fn an_acknowledgement_of_a_refusal_ends_here_and_all_others_pass() {
    if !is_root() {
        return;
    }
    for takes_frames in [false, true] {
        let mut sieved = Server::new(takes_frames, false, &SIEVE);
        let ack = |end: &str| changed("To: <sip:bob@example.org>", &format!("To: <sip:bob@example.org>{end}"));
        let ack = |end: &str| ack(end).replace("INVITE", "ACK");
        for end in [";tag=0123456789abcdef", ";x=y;tag=0123456789abcdef;z", "; TAG=0123456789abcdef"] {
            assert!(!sieved.passes(ack(end).as_bytes()), "{end}");
        }
        assert_eq!(sieved.port.counts().acks, 3);
        for end in
            ["", ";tag=0123456789abcdee", ";tag=0123456789abcdef0", ";tag=0123456789ABCDEF", ";tag=0123456789abcde"]
        {
            assert!(sieved.passes(ack(end).as_bytes()), "{end}");
        }
        let from_has_it = changed("tag=a1", "tag=0123456789abcdef").replace("INVITE", "ACK");
        assert!(sieved.passes(from_has_it.as_bytes()));
        assert!(sieved.passes(format!("ACK \r\n{}", ";tag=0123456789abcdef").as_bytes()));
    }
}

#[test]
fn a_neighbourhood_is_sent_so_much_in_a_second() {
    if !is_root() {
        return;
    }
    let mut sieved = Server::new(false, false, &Sieve { bytes_per_s: 10_000, ..SIEVE });
    sieved.port.set_shares(Sieved::Requests, &[0; SHARES]);
    let text = request("INVITE");
    let flood = |prefix: &str, host: fn(usize) -> String| {
        (0..200).map(|n| from(&format!("{prefix}{}", host(n)), text.as_bytes())).collect::<Vec<_>>()
    };
    let client = Site::udp(&sieved.wire.client, CLIENT[0], 4000);
    client.send_to(text.as_bytes(), at(SERVER, 0, PORT)).unwrap();
    // Other addresses are a few characters shorter.
    let shortest = wait_for(&client).0.len() as u64 - 10;
    for frames in [flood("192.0.2.", |n| (n + 1).to_string()), flood("2001:db8:7:7:", |n| format!("{n:x}:1:2:3"))] {
        let started = Instant::now();
        let (passed, counts) = sieved.sift(&frames);
        let seconds = started.elapsed().as_secs() + 2;
        assert!(passed.is_empty());
        assert!((1..=seconds * (10_000 / shortest)).contains(&counts.refused), "{counts:?}");
        assert_eq!(counts.refused + counts.over_budget, 200);
        // Each second has its own.
        let until = Instant::now() + PATIENCE;
        while sieved.sift(&frames[..1]).1.refused == 0 {
            assert!(Instant::now() < until, "no second has its own");
        }
    }
    let other = from("203.0.113.5", text.as_bytes());
    assert_eq!(sieved.sift(&[other]).1.refused, 1, "another neighbourhood has its own");
}

#[test]
fn connections_are_refused_by_shares_of_their_own() {
    if !is_root() {
        return;
    }
    for offloads in [false, true] {
        let mut sieved = Server::new(false, offloads, &SIEVE);
        let listeners = streams().map(|own| TcpListener::bind(own).unwrap());
        let connect = |sieved: &Server, to: SocketAddr| {
            sieved.wire.client.run(|| TcpStream::connect_timeout(&to, PATIENCE).map(drop).map_err(|error| error.kind()))
        };
        let refused = Err(ErrorKind::ConnectionRefused);
        sieved.port.set_shares(Sieved::Requests, &[0; SHARES]);
        for (own, listener) in streams().into_iter().zip(&listeners) {
            assert_eq!(connect(&sieved, own), Ok(()), "requests are refused, and no connections");
            listener.accept().unwrap();
        }
        sieved.port.set_shares(Sieved::Connections, &[0; SHARES]);
        for own in streams() {
            assert_eq!(connect(&sieved, own), refused);
        }
        assert_eq!(sieved.port.counts(), SieveCounts { resets: 2, ..SieveCounts::default() });
        for (own, listener) in streams().into_iter().zip(&listeners) {
            sieved.port.spare(&[(ip(CLIENT[usize::from(own.is_ipv6())]), 32)]).unwrap();
            assert_eq!(connect(&sieved, own), Ok(()));
            listener.accept().unwrap();
        }
        // Where it says nothing of connections, somebody else may take them.
        sieved.port.spare(&[]).unwrap();
        let other = TcpListener::bind(at(SERVER, 0, PORT + 1)).unwrap();
        assert_eq!(connect(&sieved, other.local_addr().unwrap()), Ok(()));
    }
}

#[test]
fn what_no_other_host_can_have_sent_is_not_answered() {
    if !is_root() {
        return;
    }
    // As frames, the server is who looks at them; the kernel has its own rules.
    let mut sieved = Server::refusing(true);
    let text = request("INVITE");
    let sources =
        ["0.0.0.1", "127.0.0.1", "224.0.0.1", "255.255.255.255", SERVER[0], "::", "::1", "ff02::1", SERVER[1]];
    let mut frames: Vec<_> = sources.map(|source| from(source, text.as_bytes())).to_vec();
    frames.push(from("::ffff:198.51.100.2", text.as_bytes()));
    frames.push(datagram((CLIENT[0], 0), at(SERVER, 0, PORT), text.as_bytes()));
    let good = from(CLIENT[0], text.as_bytes());
    for (at, by) in [(6, 3), (14 + 3, 1), (14 + 20 + 5, 1)] {
        let mut bad = good.clone();
        bad[at] ^= by;
        frames.push(bad);
    }
    sieved.wire.send(&frames);
    let mut seen = 0;
    let until = Instant::now() + PATIENCE;
    while seen < frames.len() {
        assert!(Instant::now() < until, "{seen} of {}", frames.len());
        seen += sieved.wire.queues.iter_mut().map(|queue| queue.receive(|_, _, _, _| ())).sum::<usize>();
    }
    assert_eq!(sieved.port.counts(), SieveCounts::default());
    assert_eq!(sieved.sift(&[good]).1.refused, 1);
}

#[test]
fn the_sieve_goes_with_its_port_and_there_is_one_at_a_time() {
    if !is_root() {
        return;
    }
    let Server { wire, port } = Server::refusing(false);
    let again = UdpPort::open(&Interface::read("f0").unwrap(), (&listeners(), &streams()), false, Some(&SIEVE));
    assert!(matches!(&again, Err(OpenError::Busy { .. })), "{again:?}");
    let text = request("INVITE");
    wire.send(&[from(CLIENT[0], text.as_bytes())]);
    let until = Instant::now() + PATIENCE;
    while port.counts().refused == 0 {
        assert!(Instant::now() < until);
    }
    drop(port);
    wire.send(&[from(CLIENT[0], text.as_bytes())]);
    assert_eq!(wait_for(&wire.sockets[0]).0, text.as_bytes());
}
