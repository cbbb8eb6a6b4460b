//! A site on a virtual clock: shards that share one policy and one directory of grants, a gate that answers when told to,
//! and clients that write real SIP.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

mod policy;
mod relayed;

pub(crate) use policy::secret_of;
pub(crate) use relayed::{ANSWER, bye_of_service, of_service, phone, relayed, reply, set_up};

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_feed::{GrantDelta, Selected};
use sluicegate_grant::{DataMode, GrantId, IssuerKey, epoch::Epoch, mac::SessionSecret};
use sluicegate_policy::{Policy, SipPeer};
use sluicegate_proxy::{
    AgentKeys, DigestName, Emergency, Event, Flow, GateAnswer, Guesses, Input, Ledger, Limits, Listening, Locations,
    Now, Outages, Overload, Phones, Settings, Shard, ShardMetrics, Tables, Traces,
};
use sluicegate_signin::{
    Certificate, EpochHa1, HEADER, Hello, Initiator, Proposal, ReplicaKey, SignInError, SiteKey, joined,
};
use sluicegate_sip::{
    digest::{Algorithm, Answer, Authorization, Challenge, Ha1, ha1},
    message::{HeaderName, Message},
};
use sluicegate_wire::{Instant, UnixTime};
use zeroize::Zeroizing;

pub(crate) const START: UnixTime = UnixTime(1_800_000_000);
pub(crate) const REALM: &str = "example.net";
pub(crate) const PASSWORD: &str = "correct horse";
pub(crate) const FRONTEND: &str = "203.0.113.1:5060";
pub(crate) const GATE: &str = "203.0.113.9";
pub(crate) const PHONE: &str = "198.51.100.7:40000";
pub(crate) const AGENT: &str = "10.0.0.3:5070";
pub(crate) const PBX: &str = "10.0.0.2:5060";
pub(crate) const ANNEX: &str = "10.0.0.5:5060";

pub(crate) struct Site {
    pub(crate) shards: Vec<Shard>,
    pub(crate) metrics: Vec<Arc<ShardMetrics>>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) instant: Instant,
    pub(crate) unix: UnixTime,
    pub(crate) events: Vec<Event>,
    pub(crate) gates: Gates,
    /// The last datagram sent, byte by byte.
    pub(crate) last: Vec<u8>,
    pub(crate) agents: Arc<AgentKeys>,
    pub(crate) advertise: Vec<SocketAddr>,
    pub(crate) listening: Vec<Listening>,
    /// At which of these what is sent arrives.
    pub(crate) listener: u8,
    /// The frontend's own key.
    pub(crate) replica_key: Arc<ReplicaKey>,
    guesses: Arc<Guesses>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) outages: Arc<Outages>,
    pub(crate) locations: Arc<Locations>,
    pub(crate) traces: Arc<Traces>,
    pub(crate) unproved_answers_per_s: u32,
    pub(crate) overload: Overload,
    pub(crate) emergency: Arc<Emergency>,
    /// For which share of the time threads are busy.
    busy: f64,
    /// Which part of that they have a processor.
    pub(crate) runs: f64,
    /// Peers of the policy.
    peers: Vec<SipPeer>,
    tables: Tables,
    starts: u8,
    realm: &'static str,
}

/// Gates that note what they are asked for, and answer when told to.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    asked: Vec<GrantDelta>,
    /// The service of the last opening.
    pub(crate) service: String,
    revokes: usize,
    closed: Vec<GrantId>,
}

/// What one call of the machine sent: where to, and what.
pub(crate) type Sent = Vec<(SocketAddr, String)>;

impl Site {
    pub(crate) fn new() -> Self {
        Self::with(1, Tables { transactions_max: 64, replays_max: 64, ..Tables::default() })
    }

    /// One that refuses what it cannot serve.
    pub(crate) fn adaptive(transactions_max: usize) -> Self {
        let mut site = Self::with(1, Tables { transactions_max, replays_max: 64, ..Tables::default() });
        let sojourn = (Duration::from_millis(5), Duration::from_millis(100));
        site.overload = Overload::Adaptive { busy: 0.95, sojourn };
        site.start(1);
        site
    }

    pub(crate) fn with(shards: u8, tables: Tables) -> Self {
        let mut site = Self {
            shards: Vec::new(),
            metrics: Vec::new(),
            ledger: Arc::new(Ledger::new(1_000)),
            policy: Arc::new(policy::policy()),
            instant: Instant::from_secs(1_000),
            unix: START,
            events: Vec::new(),
            gates: Gates::default(),
            last: Vec::new(),
            agents: Arc::new(agent_keys(&[Epoch::at(START)])),
            advertise: Vec::new(),
            listening: vec![Listening::udp(FRONTEND.parse().unwrap())],
            listener: 0,
            replica_key: Arc::new(replica()),
            guesses: Arc::new(Guesses::new([3; 16])),
            limits: Arc::default(),
            outages: Arc::default(),
            locations: Arc::new(Locations::new(tables.contacts_max, tables.contacts_per_user_max)),
            traces: Arc::default(),
            unproved_answers_per_s: 100_000,
            overload: Overload::default(),
            emergency: Arc::default(),
            busy: 0.0,
            runs: 1.0,
            peers: Vec::new(),
            tables,
            starts: 0,
            realm: REALM,
        };
        site.start(shards);
        site
    }

    /// A site of another domain, which has no users.
    pub(crate) fn of_realm(realm: &'static str) -> Self {
        let mut site = Self { realm, ..Self::new() };
        site.start(1);
        site
    }

    /// Starts all shards anew, as after a crash: only the keys on disk are the same.
    pub(crate) fn start(&mut self, shards: u8) {
        self.starts += 1;
        self.metrics = (0..shards).map(|_| Arc::default()).collect();
        self.shards = (0..shards)
            .map(|shard| {
                let metrics = Arc::clone(&self.metrics[usize::from(shard)]);
                Shard::new(self.settings(shard), Arc::clone(&self.policy), Arc::clone(&self.ledger), metrics)
                    .expect("a load to be engineered for")
            })
            .collect();
    }

    fn settings(&self, shard: u8) -> Settings {
        Settings {
            realm: self.realm.into(),
            algorithms: vec![DigestName::Sha256, DigestName::Md5],
            listening: self.listening.clone(),
            replica: 1,
            boot: self.starts.into(),
            shard,
            registration_secs_max: 120,
            connection_idle_s: 600,
            phones: Phones::default(),
            locations: Arc::clone(&self.locations),
            dialog_requests_per_s: 20,
            unproved_answers_per_s: self.unproved_answers_per_s,
            overload: self.overload,
            emergency: Arc::clone(&self.emergency),
            sieved: Arc::default(),
            tables: self.tables,
            dialog_key: Arc::new(Zeroizing::new([7; 32])),
            start_key: Arc::new(Zeroizing::new([self.starts * 16 + shard; 32])),
            advertise: self.advertise.clone(),
            replica_key: Arc::clone(&self.replica_key),
            agents: Arc::clone(&self.agents),
            guesses: Arc::clone(&self.guesses),
            limits: Arc::clone(&self.limits),
            outages: Arc::clone(&self.outages),
            traces: Arc::clone(&self.traces),
            issuer: Arc::new(IssuerKey::from_seed([9; 32])),
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now { instant: self.instant, unix: self.unix }
    }

    /// One datagram to shard 0, and what came of it.
    pub(crate) fn send(&mut self, from: &str, datagram: impl AsRef<[u8]>) -> Sent {
        self.send_to(0, from, datagram)
    }

    pub(crate) fn send_to(&mut self, shard: usize, from: &str, datagram: impl AsRef<[u8]>) -> Sent {
        let flow = Flow::datagrams(self.listener, from.parse().unwrap());
        let now = self.now();
        self.shards[shard].on_datagram(now, flow, datagram.as_ref());
        self.drain(shard)
    }

    /// One message over any flow to shard 0; the statuses of its answers.
    pub(crate) fn send_over(&mut self, flow: Flow, message: impl AsRef<[u8]>) -> Vec<u16> {
        let now = self.now();
        self.shards[0].on_datagram(now, flow, message.as_ref());
        self.drain(0).iter().map(|(_, answer)| status(answer)).collect()
    }

    /// One datagram to shard 0, and what came of it, byte by byte.
    pub(crate) fn send_raw(&mut self, from: &str, datagram: impl AsRef<[u8]>) -> Vec<(SocketAddr, Vec<u8>)> {
        let flow = Flow::datagrams(0, from.parse().unwrap());
        let now = self.now();
        self.shards[0].on_datagram(now, flow, datagram.as_ref());
        let sent = self.shards[0].transmits().iter().map(|(flow, bytes)| (flow.peer, bytes.to_vec())).collect();
        self.drain(0);
        sent
    }

    /// Lets time pass, with every timer at its time.
    pub(crate) fn pass(&mut self, time: Duration) -> Sent {
        let end = self.instant + time;
        let mut sent = Sent::new();
        for shard in 0..self.shards.len() {
            while let Some(due) = self.shards[shard].poll_timeout().filter(|due| *due <= end) {
                self.set_time(due.max(self.instant));
                let now = self.now();
                self.shards[shard].on_time(now);
                if self.shards[shard].measure_due() <= now.instant {
                    self.shards[shard].measure(now, self.runs * self.busy, self.busy);
                }
                sent.extend(self.drain(shard));
            }
        }
        self.set_time(end);
        sent
    }

    /// Its thread was busy for this share of the time since the last measurement.
    pub(crate) fn measure(&mut self, cpu: f64) -> Sent {
        let now = self.now();
        self.busy = cpu;
        self.shards[0].measure(now, self.runs * cpu, cpu);
        self.drain(0)
    }

    fn set_time(&mut self, instant: Instant) {
        let unix_ms = self.unix.0 * 1000 + self.instant.as_nanos() / 1_000_000 % 1000;
        let passed_ms = u64::try_from(instant.since(self.instant).as_millis()).unwrap();
        self.unix = UnixTime((unix_ms + passed_ms) / 1000);
        self.instant = instant;
    }

    pub(crate) fn tell(&mut self, shard: usize, input: Input) -> Sent {
        let now = self.now();
        self.shards[shard].on_input(now, input);
        self.drain(shard)
    }

    fn drain(&mut self, shard: usize) -> Sent {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let out = self.shards[shard].transmits();
        let sent = out.iter().map(|(flow, bytes)| (flow.peer, text(bytes))).collect();
        if let Some((_, bytes)) = out.iter().last() {
            self.last = bytes.to_vec();
        }
        out.clear();
        while let Some(event) = self.shards[shard].poll_event() {
            match event {
                Event::Open { service, deltas } => {
                    self.gates.service = service;
                    self.gates.asked.extend(deltas);
                }
                Event::Revoke(selector) => {
                    self.gates.revokes += 1;
                    if let Selected::Grant(id) = selector.what {
                        // What the hub does besides.
                        self.ledger.revoke(self.unix, &selector, Some("alice"));
                        self.gates.closed.push(id);
                    }
                }
                other => self.events.push(other),
            }
        }
        sent
    }

    /// What gates were asked to open since the last call.
    pub(crate) fn asked(&mut self) -> Vec<GrantDelta> {
        std::mem::take(&mut self.gates.asked)
    }

    /// Which grants gates are asked for now.
    pub(crate) fn asked_ids(&self) -> Vec<GrantId> {
        self.gates.asked.iter().map(|delta| delta.grant.id).collect()
    }

    /// What gates were asked for last.
    pub(crate) fn last_asked(&self) -> &GrantDelta {
        self.gates.asked.last().unwrap()
    }

    /// Which single grants were to be closed since the last call.
    pub(crate) fn closed(&mut self) -> Vec<GrantId> {
        std::mem::take(&mut self.gates.closed)
    }

    /// How many revokes were asked for since the last call.
    pub(crate) fn revokes(&mut self) -> usize {
        std::mem::take(&mut self.gates.revokes)
    }

    /// The gate opens everything that it was asked for, on ports from 20000.
    pub(crate) fn gate_opens(&mut self) -> Sent {
        self.gate_opens_from(20_000)
    }

    /// The gate opens everything that it was asked for, on ports from this one.
    pub(crate) fn gate_opens_from(&mut self, port: u16) -> Sent {
        let mut sent = Sent::new();
        for (delta, nth) in self.asked().iter().zip(0_u16..) {
            let id = delta.grant.id;
            let first = port + nth * 100;
            let ports = (first, first + delta.target_ports.1 - delta.target_ports.0);
            let address = GATE.parse().unwrap();
            // What the hub does besides.
            self.ledger.opening(delta, "gate-1", 0).unwrap();
            self.ledger.opened("gate-1", id, address, ports);
            sent.extend(self.tell(0, Input::Gate(GateAnswer { id, opened: Ok((address, ports)) })));
        }
        sent
    }

    pub(crate) fn bind_agent(&mut self) {
        let mut client = Caller::new("registrar", AGENT).agent();
        client.to = "sip:files@example.net".into();
        let answer = client.sign_in(self, "REGISTER", "sip:example.net", "Contact: <sip:files@10.0.0.3:5070>\r\n", "");
        assert_eq!(status(&answer), 200, "{answer}");
    }
}

/// The frontend's own key.
pub(crate) fn replica() -> ReplicaKey {
    ReplicaKey::from_seed(&[8; 32])
}

/// What a key holder would give the frontend for these epochs.
pub(crate) fn agent_keys(epochs: &[Epoch]) -> AgentKeys {
    agent_keys_of(&replica(), epochs)
}

/// The same for any frontend.
pub(crate) fn agent_keys_of(replica: &ReplicaKey, epochs: &[Epoch]) -> AgentKeys {
    let certificate = SiteKey::from_seed(&[1; 32]).certify(REALM, *replica.public(), START.plus_secs(1_000_000));
    let users = |epoch: Epoch| {
        let ha1 = |user: &str| (user.to_owned(), secret_of(user, PASSWORD).ha1(user, REALM, epoch, replica.public()));
        ["alice", "bob", "carol", "dave", "registrar"].into_iter().map(ha1).collect()
    };
    AgentKeys::new(certificate.to_text(), epochs.iter().map(|epoch| (*epoch, users(*epoch))).collect())
}

/// A client with one dialog.
pub(crate) struct Caller {
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) to_tag: Option<String>,
    pub(crate) route: Option<String>,
    pub(crate) call_id: String,
    pub(crate) cseq: u32,
    pub(crate) is_agent: bool,
    /// Whether the agent sends with capabilities.
    pub(crate) is_capable: bool,
    pub(crate) algorithm: Algorithm,
    pub(crate) branches: u32,
    /// What a thief has instead of the password.
    pub(crate) stolen: Option<EpochHa1>,
    /// Where the agent thinks that the frontend is.
    pub(crate) dialled: SocketAddr,
    /// The handshake of the last signed request.
    pub(crate) initiator: Option<Initiator>,
}

impl Caller {
    pub(crate) fn new(user: &str, from: &str) -> Self {
        Self {
            user: user.into(),
            password: PASSWORD.into(),
            from: from.into(),
            to: "sip:web@example.net".into(),
            to_tag: None,
            route: None,
            call_id: format!("call-of-{user}"),
            cseq: 0,
            is_agent: false,
            is_capable: false,
            algorithm: Algorithm::Sha256,
            branches: 0,
            stolen: None,
            dialled: FRONTEND.parse().unwrap(),
            initiator: None,
        }
    }

    pub(crate) fn agent(mut self) -> Self {
        self.is_agent = true;
        self
    }

    /// An agent that sends with capabilities.
    pub(crate) fn capable(self) -> Self {
        Self { is_capable: true, ..self.agent() }
    }

    pub(crate) fn calls(mut self, service: &str) -> Self {
        self.to = format!("sip:{service}@{REALM}");
        self
    }

    pub(crate) fn request(&mut self, method: &str, uri: &str, headers: &str, body: &str) -> String {
        self.branches += 1;
        if !matches!(method, "ACK" | "CANCEL") {
            self.cseq += 1;
        }
        let tag = self.to_tag.as_ref().map_or(String::new(), |tag| format!(";tag={tag}"));
        let route = self.route.as_ref().map_or(String::new(), |route| format!("Route: {route}\r\n"));
        let supported = match (self.is_agent, self.is_capable) {
            (true, true) => "Supported: sluicegate, sluicegate-capability\r\n",
            (true, false) => "Supported: sluicegate\r\n",
            (false, _) => "",
        };
        // REGISTER brings its own Contact.
        let contact = if method == "REGISTER" { String::new() } else { self.contact() };
        let kind = if body.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bK{user}{branch}-{call_id};rport\r\nMax-Forwards: 70\r\n\
            {route}From: <sip:{user}@{REALM}>;tag={user}-tag\r\nTo: <{to}>{tag}\r\nCall-ID: {call_id}\r\n\
            CSeq: {cseq} {method}\r\n{contact}{supported}{headers}{kind}\
            Content-Length: {len}\r\n\r\n{body}",
            from = self.from,
            user = self.user,
            branch = self.branches,
            to = self.to,
            call_id = self.call_id,
            cseq = self.cseq,
            len = body.len(),
        )
    }

    fn contact(&self) -> String {
        format!("Contact: <sip:{}@{}>\r\n", self.user, self.from)
    }

    /// The credentials that answer a 401 or 407, as a header line.
    pub(crate) fn authorization(&self, challenge: &str, method: &str, uri: &str) -> String {
        let message = Message::parse(challenge.as_bytes()).unwrap();
        let (name, field) = match message.status() {
            Some(401) => (HeaderName::WwwAuthenticate, "Authorization"),
            Some(407) => (HeaderName::ProxyAuthenticate, "Proxy-Authorization"),
            other => panic!("no challenge but {other:?}"),
        };
        let challenge = message
            .headers_raw(name)
            .map(|value| Challenge::parse(value).unwrap())
            .find(|challenge| challenge.algorithm == self.algorithm)
            .unwrap();
        let secret = self.secret(&challenge);
        let mut value = Vec::new();
        Answer {
            challenge: &challenge,
            username: &self.user,
            ha1: &secret,
            method: method.as_bytes(),
            uri: uri.as_bytes(),
            cnonce: "c0ffee",
            nc: 1,
        }
        .write(&mut value);
        format!("{field}: {}\r\n", String::from_utf8(value).unwrap())
    }

    pub(crate) fn secret(&self, challenge: &Challenge<'_>) -> Ha1 {
        let realm = challenge.realm_text().unwrap();
        match realm.split_once(";e=") {
            None => ha1(challenge.algorithm, &self.user, &realm, &self.password),
            Some((plain, epoch)) => {
                let ha1 = self.agents_ha1(plain, epoch, replica().public());
                Ha1::from_sha256(*ha1.expose())
            }
        }
    }

    fn agents_ha1(&self, realm: &str, epoch: &str, replica: &[u8; 32]) -> EpochHa1 {
        let secret = || secret_of(&self.user, &self.password);
        self.stolen.clone().unwrap_or_else(|| secret().ha1(&self.user, realm, epoch.parse().unwrap(), replica))
    }

    /// Adds an agent's handshake to a request with credentials.
    fn with_handshake(&mut self, signed: String, challenge: &str) -> String {
        let message = Message::parse(signed.as_bytes()).unwrap();
        let value = [HeaderName::Authorization, HeaderName::ProxyAuthorization];
        let value = value.into_iter().flat_map(|name| message.headers_raw(name)).next().unwrap();
        let sent = Authorization::parse(value).unwrap();
        let realm = sent.realm_text().unwrap();
        let Some((plain, epoch)) = realm.split_once(";e=") else { return signed };
        let answer = Message::parse(challenge.as_bytes()).unwrap();
        let certificate = Certificate::from_text(answer.header(HEADER).unwrap()).unwrap();
        certificate.verify(plain, START).unwrap();
        let ha1 = self.agents_ha1(plain, epoch, &certificate.replica);
        let proposal = Proposal {
            method: message.method().unwrap().as_bytes(),
            uri: message.request_uri().unwrap(),
            nonces: (sent.nonce, sent.cnonce),
            supported: &joined(&message, HeaderName::Supported),
            contact: &joined(&message, HeaderName::Contact),
            body: message.body(),
            dialled: self.dialled,
        };
        let (initiator, first) = Initiator::begin([6; 32], &certificate.replica, &ha1, &proposal).unwrap();
        self.initiator = Some(initiator);
        let hello = Hello { message: first, dialled: self.dialled }.to_text();
        signed.replacen("Content-Length:", &format!("{}: {hello}\r\nContent-Length:", HEADER.as_str()), 1)
    }

    /// What the agent knows after the answer that let it in, if it believes that.
    pub(crate) fn believes(&mut self, answer: &[u8]) -> Result<SessionSecret, SignInError> {
        self.initiator.take().unwrap().finish(&Message::parse(answer).unwrap())
    }

    /// A request, its challenge, and the same with credentials.
    pub(crate) fn sign_in(&mut self, site: &mut Site, method: &str, uri: &str, headers: &str, body: &str) -> String {
        let signed = self.signed(site, method, uri, headers, body);
        let from = self.from.clone();
        site.send(&from, signed).pop().map_or(String::new(), |(_, answer)| answer)
    }

    pub(crate) fn signed(&mut self, site: &mut Site, method: &str, uri: &str, headers: &str, body: &str) -> String {
        let from = self.from.clone();
        let plain = self.request(method, uri, headers, body);
        let (_, challenge) = site.send(&from, plain).pop().unwrap();
        self.answered(&challenge, method, uri, headers, body)
    }

    /// A request with credentials that answer this challenge.
    pub(crate) fn answered(&mut self, challenge: &str, method: &str, uri: &str, headers: &str, body: &str) -> String {
        let credentials = self.authorization(challenge, method, uri);
        let signed = self.request(method, uri, &format!("{headers}{credentials}"), body);
        self.with_handshake(signed, challenge)
    }

    /// Calls its service; the 100.
    pub(crate) fn invite(&mut self, site: &mut Site, body: &str) -> String {
        let uri = self.to.clone();
        self.sign_in(site, "INVITE", &uri, "", body)
    }

    /// Calls a declared service, has the gate open it, acknowledges; the 200.
    pub(crate) fn set_up(&mut self, site: &mut Site, body: &str) -> String {
        let trying = self.invite(site, body);
        assert_eq!(status(&trying), 100, "{trying}");
        let (_, ok) = site.gate_opens().pop().unwrap();
        assert_eq!(status(&ok), 200, "{ok}");
        self.take_dialog(&ok);
        let uri = self.to.clone();
        let ack = self.request("ACK", &uri, "", "");
        let from = self.from.clone();
        assert!(site.send(&from, ack).is_empty());
        ok
    }

    pub(crate) fn take_dialog(&mut self, answer: &str) {
        let message = Message::parse(answer.as_bytes()).unwrap();
        self.to_tag = message.to().unwrap().tag.map(|tag| String::from_utf8(tag.to_vec()).unwrap());
        let routes = message.headers_raw(HeaderName::RecordRoute);
        let mut routes: Vec<String> = routes.map(|route| String::from_utf8(route.to_vec()).unwrap()).collect();
        routes.reverse();
        self.route = (!routes.is_empty()).then(|| routes.join(", "));
    }
}

pub(crate) fn status(message: &str) -> u16 {
    Message::parse(message.as_bytes()).ok().and_then(|message| message.status()).unwrap_or(0)
}

pub(crate) fn header<'m>(message: &'m str, name: &str) -> Option<&'m str> {
    message.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim_start)
}

/// A telephone's offer: one audio stream.
pub(crate) const AUDIO: &str = "v=0\r\no=a 1 1 IN IP4 192.168.0.9\r\ns=-\r\nc=IN IP4 192.168.0.9\r\nt=0 0\r\n\
    m=audio 4100 RTP/AVP 0\r\n";
/// An agent's offer: ports of the service.
pub(crate) const PORTS: &str = "v=0\r\no=- 1 1 IN IP4 192.168.0.9\r\ns=-\r\nc=IN IP4 192.168.0.9\r\nt=0 0\r\n\
    m=application 9 TCP sluicegate\r\na=setup:active\r\na=service-ports:80\r\n";
