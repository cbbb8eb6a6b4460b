//! The messages of a SIP flood.

use std::{collections::BTreeMap, fmt::Write, net::SocketAddr};

use fastrand::Rng;
use sluicegate_sip::digest::{Algorithm, Answer, Challenge, Ha1, ha1};

use super::{Attacker, SipFloodSpec, SipKind as Kind};

/// Lengths of what a front end makes and its clients send back: made-up ones of another length would be told apart without
/// a look at their MAC.
const TO_TAG_LEN: usize = 39;
const COOKIE_LEN: usize = 27;
const CLIENT_LEN: usize = 43;
const BRANCH_LEN: usize = 24;
const STATELESS_BRANCH_LEN: usize = 48;
/// What may be said in a call besides ending it.
const IN_DIALOG: [&str; 4] = ["INFO", "ACK", "OPTIONS", "MESSAGE"];
const SDP: &str = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n";

/// Writes the flood's messages.
pub(super) struct Writer<'a> {
    spec: &'a SipFloodSpec,
    account: Option<(&'a str, Ha1)>,
    random: Rng,
    serial: u64,
    pub(super) sent: BTreeMap<Kind, u64>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(spec: &'a SipFloodSpec) -> Self {
        let account = spec.account.as_ref().map(|(user, password)| {
            let ha1 = ha1(Algorithm::Sha256, user, &spec.realm, password);
            (user.as_str(), ha1)
        });
        Self { spec, account, random: Rng::with_seed(spec.seed), serial: 0, sent: BTreeMap::new() }
    }

    pub(super) fn write(&mut self, message: &mut String, attacker: &mut Attacker) {
        message.clear();
        self.serial += 1;
        let Some(kind) = self.draw() else { return };
        *self.sent.entry(kind).or_insert(0) += 1;
        match kind {
            Kind::Invite => self.invite(message, attacker.local, None),
            Kind::BadDigest | Kind::BadRegister => {
                let nonce = attacker.nonces.pop().unwrap_or_else(|| format!("{:032x}", self.random.u64(..)));
                let method = if kind == Kind::BadDigest { "INVITE" } else { "REGISTER" };
                self.guess(message, (method, attacker.local), &nonce);
            }
            Kind::Account | Kind::AccountRegister => {
                let method = if kind == Kind::Account { "INVITE" } else { "REGISTER" };
                self.of_account(message, (method, attacker.local), attacker.nonces.pop());
            }
            Kind::Register => self.register(message, attacker.local, None),
            Kind::Replay => message.push_str(self.recorded(attacker)),
            Kind::Garbage => self.garbage(message, attacker.local),
            Kind::Bye | Kind::Ack => {
                let method = if kind == Kind::Bye { "BYE" } else { "ACK" };
                self.made_up(message, method, attacker.local);
            }
            Kind::Cancel | Kind::Options => {
                let (method, user) = (if kind == Kind::Cancel { "CANCEL" } else { "OPTIONS" }, self.user());
                self.begin(message, (method, attacker.local), &user, "");
                message.push_str("Content-Length: 0\r\n\r\n");
            }
            Kind::Response => self.response(message, attacker.front_end),
            Kind::Again | Kind::InDialog => {
                let recorded = self.recorded(attacker);
                self.again(message, recorded, kind == Kind::InDialog);
            }
            Kind::KeepAlive => message.push_str("\r\n\r\n"),
        }
    }

    fn draw(&mut self) -> Option<Kind> {
        let sum: u32 = self.spec.mix.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.random.u32(..sum.max(1));
        let chosen = self.spec.mix.iter().find(|(_, weight)| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        });
        chosen.map(|(kind, _)| *kind)
    }

    fn user(&mut self) -> String {
        self.random.choice(&self.spec.users).map_or_else(|| "nobody".to_owned(), Clone::clone)
    }

    /// Text as a front end encodes its own.
    fn opaque(&mut self, len: usize) -> String {
        (0..len).map(|_| self.random.alphanumeric()).collect()
    }

    /// The start line and what every request has; the tag on To is empty or begins with `;tag=`.
    fn begin(&mut self, out: &mut String, (method, local): (&str, SocketAddr), user: &str, to_tag: &str) {
        let (realm, service, transport) = (&self.spec.realm, &self.spec.service, self.spec.way.over.transport().name());
        let (tag, more) = (self.random.u64(..), self.random.u64(..));
        let (uri, to) = match method {
            "REGISTER" => (format!("sip:{realm}"), format!("sip:{user}@{realm}")),
            _ => (format!("sip:{service}@{realm}"), format!("sip:{service}@{realm}")),
        };
        // Writing to a `String` cannot fail.
        let _ = write!(
            out,
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{transport} {local};branch=z9hG4bK{tag:x};rport\r\nMax-Forwards: 70\r\n\
             From: <sip:{user}@{realm}>;tag={tag:x}\r\nTo: <{to}>{to_tag}\r\nCall-ID: {:x}.{more:x}\r\nCSeq: 1 {method}\r\n",
            self.serial,
        );
    }

    fn invite(&mut self, out: &mut String, local: SocketAddr, credentials: Option<&str>) {
        let user = self.user();
        self.invite_of(out, local, &user, credentials);
    }

    fn invite_of(&mut self, out: &mut String, local: SocketAddr, user: &str, credentials: Option<&str>) {
        self.begin(out, ("INVITE", local), user, "");
        let _ = write!(out, "Contact: <sip:{user}@{local}>\r\n");
        if let Some(credentials) = credentials {
            let _ = write!(out, "Proxy-Authorization: {credentials}\r\n");
        }
        let _ = write!(out, "Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{SDP}", SDP.len());
    }

    fn register(&mut self, out: &mut String, local: SocketAddr, credentials: Option<&str>) {
        let user = self.user();
        self.register_of(out, local, &user, credentials);
    }

    fn register_of(&mut self, out: &mut String, local: SocketAddr, user: &str, credentials: Option<&str>) {
        self.begin(out, ("REGISTER", local), user, "");
        let _ = write!(out, "Contact: <sip:{user}@{local}>\r\nExpires: 60\r\n");
        if let Some(credentials) = credentials {
            let _ = write!(out, "Authorization: {credentials}\r\n");
        }
        out.push_str("Content-Length: 0\r\n\r\n");
    }

    /// The Request-URI that credentials are made for.
    fn uri(&self, method: &str) -> String {
        let (realm, service) = (&self.spec.realm, &self.spec.service);
        if method == "REGISTER" { format!("sip:{realm}") } else { format!("sip:{service}@{realm}") }
    }

    /// A wrong digest for one of the users.
    fn guess(&mut self, out: &mut String, (method, local): (&str, SocketAddr), nonce: &str) {
        let user = self.user();
        let (a, b, c, d) = (self.random.u64(..), self.random.u64(..), self.random.u64(..), self.random.u64(..));
        let credentials = format!(
            "Digest username=\"{user}\", realm=\"{}\", nonce=\"{nonce}\", uri=\"{}\", \
             response=\"{a:016x}{b:016x}{c:016x}{d:016x}\", algorithm=SHA-256, qop=auth, nc=00000001, cnonce=\"{a:x}\"",
            self.spec.realm,
            self.uri(method),
        );
        self.request_of(out, (method, local), &user, Some(&credentials));
    }

    /// A right digest, or a request that gets the nonce for one.
    fn of_account(&mut self, out: &mut String, (method, local): (&str, SocketAddr), nonce: Option<String>) {
        let Some((user, ha1)) = self.account.clone() else { return };
        let credentials = nonce.map(|nonce| {
            let (uri, cnonce) = (self.uri(method), format!("{:x}", self.random.u64(..)));
            let (realm, algorithm) = (self.spec.realm.as_bytes(), Algorithm::Sha256);
            let challenge = Challenge { realm, nonce: nonce.as_bytes(), opaque: None, algorithm, stale: false };
            let (method, uri) = (method.as_bytes(), uri.as_bytes());
            let mut value = Vec::new();
            Answer { challenge: &challenge, username: user, ha1: &ha1, method, uri, cnonce: &cnonce, nc: 1 }
                .write(&mut value);
            String::from_utf8_lossy(&value).into_owned()
        });
        self.request_of(out, (method, local), user, credentials.as_deref());
    }

    fn request_of(&mut self, out: &mut String, (method, local): (&str, SocketAddr), user: &str, value: Option<&str>) {
        match method {
            "REGISTER" => self.register_of(out, local, user, value),
            _ => self.invite_of(out, local, user, value),
        }
    }

    /// A request in a dialog that there is not: with a tag as of a front end, or with a Route as of one.
    fn made_up(&mut self, out: &mut String, method: &str, local: SocketAddr) {
        let (user, is_routed) = (self.user(), self.random.bool());
        let tag = self.opaque(if is_routed { 8 } else { TO_TAG_LEN });
        self.begin(out, (method, local), &user, &format!(";tag={tag}"));
        if is_routed {
            let (cookie, client) = (self.opaque(COOKIE_LEN), self.opaque(CLIENT_LEN));
            let _ =
                write!(out, "Route: <sip:{};lr;sg={cookie};sv={};cl={client}>\r\n", self.spec.to[0], self.spec.service);
        }
        out.push_str("Content-Length: 0\r\n\r\n");
    }

    /// An answer to a request that there was not, or to one that is over.
    fn response(&mut self, out: &mut String, front_end: SocketAddr) {
        let len = if self.random.bool() { BRANCH_LEN } else { STATELESS_BRANCH_LEN };
        let made_up = self.opaque(len);
        let seen = if self.random.bool() { self.random.choice(&self.spec.branches) } else { None };
        let branch = seen.map_or(made_up.as_str(), String::as_str);
        let (realm, user) = (&self.spec.realm, self.random.choice(&self.spec.users).map_or("nobody", String::as_str));
        let (tag, transport) = (self.random.u64(..), self.spec.way.over.transport().name());
        let _ = write!(
            out,
            "SIP/2.0 200 OK\r\nVia: SIP/2.0/{transport} {front_end};branch=z9hG4bK{branch}\r\n\
             From: <sip:{user}@{realm}>;tag={tag:x}\r\nTo: <sip:{user}@{realm}>;tag={tag:x}\r\nCall-ID: {tag:x}\r\n\
             CSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n",
        );
    }

    fn recorded(&mut self, attacker: &Attacker) -> &'a str {
        let own = attacker.own.and_then(|own| self.spec.recorded.get(own));
        own.or_else(|| self.random.choice(&self.spec.recorded)).map_or("", String::as_str)
    }

    /// A recorded request as a new one: another branch and a higher number; or something else that may be said in its call.
    fn again(&mut self, out: &mut String, recorded: &str, is_other: bool) {
        let (method, rest) = recorded.split_once(' ').unwrap_or_default();
        let method = if is_other { self.random.choice(IN_DIALOG).unwrap_or(method) } else { method };
        let number = 100 + self.serial % (1 << 30);
        let _ = write!(out, "{method} ");
        let (mut has_via, mut lines) = (false, rest.split_inclusive("\r\n"));
        out.push_str(lines.next().unwrap_or_default());
        for line in lines {
            let branch = line.split_once(";branch=").filter(|_| !std::mem::replace(&mut has_via, true));
            if let Some((before, after)) = branch {
                let rest = after.find([';', '\r']).and_then(|end| after.get(end..)).unwrap_or_default();
                let _ = write!(out, "{before};branch=z9hG4bK{:x}{rest}", self.random.u64(..));
            } else if line.starts_with("CSeq:") {
                let _ = write!(out, "CSeq: {number} {method}\r\n");
            } else {
                out.push_str(line);
            }
        }
    }

    /// A request cut at a random place, with a random part behind it.
    fn garbage(&mut self, out: &mut String, local: SocketAddr) {
        self.invite(out, local, None);
        out.truncate(self.random.usize(..out.len()));
        (0..self.random.u8(..64)).for_each(|_| out.push(self.random.char(..'\u{80}')));
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use sluicegate_sip::message::{Message, Method};

    use super::{super::attacker::Wire, *};

    const RECORDED: &str = "BYE sip:exchange@203.0.113.9 SIP/2.0\r\n\
        Via: SIP/2.0/UDP 198.18.2.2:40000;branch=z9hG4bKold;rport\r\nMax-Forwards: 70\r\n\
        From: <sip:mallory@lab.example>;tag=1\r\nTo: <sip:office@lab.example>;tag=2\r\nCall-ID: c\r\nCSeq: 3 BYE\r\n\
        Route: <sip:203.0.113.2:5060;lr;sg=a;sv=office;cl=b>\r\nContent-Length: 0\r\n\r\n";

    fn written(kind: Kind, nonces: &[&str]) -> String {
        let spec = SipFloodSpec {
            to: vec!["127.0.0.1:5060".parse().unwrap()],
            users: vec!["alice".to_owned()],
            realm: "lab.example".to_owned(),
            service: "office".to_owned(),
            recorded: vec![RECORDED.to_owned()],
            account: Some(("mallory".to_owned(), "secret".to_owned())),
            mix: vec![(kind, 1)],
            ..SipFloodSpec::default()
        };
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut attacker = Attacker::new(Wire::Datagrams(socket), spec.to[0], (None, None)).unwrap();
        attacker.nonces = nonces.iter().map(|nonce| (*nonce).to_owned()).collect();
        let mut message = String::new();
        Writer::new(&spec).write(&mut message, &mut attacker);
        message
    }

    #[test]
    fn requests_of_every_kind_are_sip() {
        let kinds: [(Kind, &[u8]); 9] = [
            (Kind::Invite, b"INVITE"),
            (Kind::BadDigest, b"INVITE"),
            (Kind::Account, b"INVITE"),
            (Kind::AccountRegister, b"REGISTER"),
            (Kind::Register, b"REGISTER"),
            (Kind::Bye, b"BYE"),
            (Kind::Ack, b"ACK"),
            (Kind::Cancel, b"CANCEL"),
            (Kind::Options, b"OPTIONS"),
        ];
        for (kind, method) in kinds {
            let text = written(kind, &["nonce"]);
            let message = Message::parse(text.as_bytes()).unwrap();
            assert_eq!(message.method().map(|method| method.as_bytes().to_vec()), Some(method.to_vec()));
            assert!(message.essentials().is_ok(), "{text}");
        }
        let answer = written(Kind::Response, &[]);
        assert_eq!(Message::parse(answer.as_bytes()).unwrap().status(), Some(200));
    }

    #[test]
    fn an_account_answers_a_challenge_once_it_has_one() {
        assert!(!written(Kind::Account, &[]).contains("Proxy-Authorization"));
        assert!(written(Kind::Account, &["fresh"]).contains("nonce=\"fresh\""));
    }

    #[test]
    fn a_recorded_request_comes_as_a_new_one_with_its_proofs_or_as_another_in_its_call() {
        let again = written(Kind::Again, &[]);
        let message = Message::parse(again.as_bytes()).unwrap();
        assert_eq!(message.method(), Some(Method::Bye));
        assert!(
            again.contains(";sg=a;sv=office;cl=b>") && !again.contains("z9hG4bKold") && again.contains(";rport\r\n")
        );
        assert!(message.cseq().unwrap().number > 3);
        let other = written(Kind::InDialog, &[]);
        let method = Message::parse(other.as_bytes()).unwrap().method().unwrap().as_bytes().to_vec();
        assert!(IN_DIALOG.iter().any(|one| one.as_bytes() == method), "{other}");
    }
}
