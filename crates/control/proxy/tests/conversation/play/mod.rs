//! A frontend in conversation with telephones, agents, strangers, services, their gate and an operator, who all say what they
//! like in any order. Bytes choose who says what; what must hold is in [`rules`] and at the ends of [`hub`].

mod hub;
mod rules;
mod texts;

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_feed::{Selected, Selector};
use sluicegate_policy::PerUser;
use sluicegate_proxy::{ConnectionId, Flow, Input, Listening, Now, Tables};
use sluicegate_sip::message::{HeaderName, Message, Method, Transport};
use sluicegate_wire::{Instant, UnixTime};

use self::{
    hub::Gate,
    rules::Rules,
    texts::{CODES, Known, MEDIA_INSIDE, METHODS, answer, beside, body, fields, one},
};
use crate::site::{AGENT, Caller, FRONTEND, PBX, PHONE, Site};

const STEPS_MAX: usize = 128;
/// Bytes of a step: an action, who does it, and two choices.
const STEP_LEN: usize = 4;
/// Messages that somebody keeps, to answer them.
const KEPT_MAX: usize = 6;
/// After the last word, until nothing is remembered. Clocks are set back by no more than half of it.
const QUIET: Duration = Duration::from_secs(10_000);
/// Wake-ups within one wait: more of them and a timer fires without end.
const WAKES_MAX: usize = 20_000;
const INNER: &str = "10.0.0.254:5060";
/// Where requests within a call go, as its clients see it.
const WITHIN: &str = "sip:pbx@203.0.113.1:5060";
const STRANGER: &str = "203.0.113.66:5060";

/// Somebody who speaks SIP: a telephone, an agent, a service, a stranger.
struct Party {
    /// Who it is, and the call that it made last.
    caller: Caller,
    /// Which of the frontend's addresses it talks to.
    listener: u8,
    /// The number of its connection, if it has some.
    connection: Option<u32>,
    /// Where its media are.
    media: &'static str,
    /// Its last INVITE or REGISTER, and the last that was said to that.
    request: String,
    said: String,
    /// Requests to it.
    asked: VecDeque<String>,
    /// Calls to it.
    calls: VecDeque<Known>,
}

pub(crate) struct Play {
    site: Site,
    gate: Gate,
    rules: Rules,
    parties: Vec<Party>,
    /// What was said last, and by whom.
    last: (Flow, String),
}

/// The first byte chooses what kind of frontend it is, each four that follow are a step.
pub(crate) fn play(bytes: &[u8]) {
    let Some((kind, steps)) = bytes.split_first() else { return };
    let mut play = Play::new(*kind);
    for step in steps.chunks_exact(STEP_LEN).take(STEPS_MAX).filter_map(|step| step.first_chunk().copied()) {
        play.step(step);
        play.check();
    }
    play.end();
}

/// A frontend of this kind: with one shard or two, with an address of its own for the inside or without, with tables that are
/// soon full, with telephones that come over TCP, and with a PBX at which they are registered.
fn site(kind: u8) -> Site {
    let (has_inside, has_connections) = (kind & 2 != 0, kind & 16 != 0);
    let tables = Tables {
        transactions_max: if kind & 4 == 0 { 16 } else { 3 },
        transactions_per_user_max: 64,
        exchanges_per_user_max: 8,
        replays_max: 64,
        replays_per_user_max: 64,
        bindings_max: 2,
        contacts_max: 4,
        contacts_per_user_max: 3,
        events_max: if kind & 8 == 0 { 32 } else { 8 },
        legs_max: 2,
    };
    let shards = 1 + (kind & 1);
    let mut site = Site::with(shards, tables);
    if has_inside {
        site.listening.insert(0, Listening::udp(address(INNER)));
    }
    if has_connections {
        site.listening.push(Listening::new(Transport::Tcp, address(FRONTEND)));
    }
    site.start(shards);
    if kind & 32 != 0 {
        site.registers_at(&["pbx"]);
    }
    site
}

/// Everybody; telephones over connections, if there are some.
fn parties(listening: &[Listening]) -> Vec<Party> {
    let at = |transport| listening.iter().rposition(|listening| listening.transport == transport);
    let place = |at: Option<usize>| at.and_then(|at| u8::try_from(at).ok());
    let outer = place(at(Transport::Udp)).unwrap_or_default();
    let tcp = place(at(Transport::Tcp));
    let connected = |party: Party, number| Party {
        listener: tcp.unwrap_or(party.listener),
        connection: tcp.map(|_| number),
        ..party
    };

    let party = |user: &str, from: &str, listener, media| Party {
        caller: Caller { call_id: format!("of-{user}-{from}"), ..Caller::new(user, from).calls("pbx") },
        listener,
        connection: None,
        media,
        request: String::new(),
        said: String::new(),
        asked: VecDeque::new(),
        calls: VecDeque::new(),
    };
    let agent = |party: Party| Party { caller: party.caller.agent(), ..party };
    let to = |party: Party, to: &str| Party { caller: Caller { to: to.into(), ..party.caller }, ..party };
    let mallory = party("alice", STRANGER, outer, "203.0.113.66");
    vec![
        connected(party("alice", PHONE, outer, "198.51.100.7"), 1),
        party("alice", "198.51.100.8:40001", outer, "192.168.0.8"),
        to(agent(party("alice", "198.51.100.9:40000", outer, "198.51.100.9")), "sip:files@example.net"),
        to(agent(party("dave", "198.51.100.9:40001", outer, "198.51.100.9")), "sip:web@example.net"),
        connected(party("bob", "198.51.100.10:5060", outer, "198.51.100.10"), 2),
        to(party("switch", PBX, 0, MEDIA_INSIDE), "sip:alice@example.net"),
        to(agent(party("registrar", AGENT, 0, MEDIA_INSIDE)), "sip:files@example.net"),
        Party { caller: Caller { password: "wrong".into(), ..mallory.caller }, ..mallory },
    ]
}

impl Play {
    fn new(kind: u8) -> Self {
        let site = site(kind);
        let parties = parties(&site.listening);
        let mut rules = Rules::default();
        rules.knows_stranger(address(STRANGER).ip());
        Self { site, gate: Gate::default(), rules, parties, last: (Flow::datagrams(0, address(PBX)), String::new()) }
    }

    fn step(&mut self, step @ [action, who, what, how]: [u8; STEP_LEN]) {
        let party = usize::from(who) % self.parties.len();
        let nth = usize::from(who) / self.parties.len();
        match action % 28 {
            0 | 1 => self.calls(party, what, how),
            2 => self.registers(party, what, how),
            3..=5 => self.answers_challenge(party, what, how),
            6 | 7 => self.acknowledges(party, what, how),
            8 => self.takes_back(party),
            9..=11 => self.says_as_caller(party, what, how),
            12..=14 => self.says_as_called(party, nth, what, how),
            15..=19 => self.answers(party, nth, what, how),
            20 | 21 => self.gate_acts(who & 7 != 0),
            22 => self.gate_catches_up(),
            23 => self.waits(step),
            24 => self.says_again(who, what, how),
            25 => self.moves(party, what),
            26 => self.others_act(what, how),
            _ => self.says_alone(party, what, how),
        }
    }

    fn now(&self) -> Now {
        Now { instant: self.site.instant, unix: self.site.unix }
    }

    /// Somebody says something, to the shard that the kernel chooses for its address.
    fn say(&mut self, flow: Flow, text: String) {
        self.rules.came(flow.peer, text.len());
        let (now, shard) = (self.now(), self.shard_of(flow.peer));
        self.site.shards[shard].on_datagram(now, flow, text.as_bytes());
        self.last = (flow, text);
        self.drain(shard);
    }

    fn shard_of(&self, peer: SocketAddr) -> usize {
        usize::from(peer.port()) % self.site.shards.len()
    }

    fn party_says(&mut self, party: usize, text: String) {
        self.say(self.flow(party), text);
    }

    fn flow(&self, party: usize) -> Flow {
        let Party { listener, connection, caller, .. } = &self.parties[party];
        let peer = address(&caller.from);
        let shard = u8::try_from(self.shard_of(peer)).expect("few shards");
        let connection = connection.and_then(|number| ConnectionId::new(shard, number));
        Flow { listener: *listener, peer, connection }
    }

    fn tell(&mut self, shard: usize, input: Input) {
        let now = self.now();
        self.site.shards[shard].on_input(now, input);
        self.drain(shard);
    }

    /// What a shard sends arrives, and what it asks for is done.
    fn drain(&mut self, shard: usize) {
        let out = self.site.shards[shard].transmits();
        let sent: Vec<_> = out.iter().map(|(flow, bytes)| (flow, bytes.to_vec())).collect();
        out.clear();
        for (flow, bytes) in sent {
            self.rules.sent(self.site.instant, flow.peer, &bytes);
            self.arrives(flow, &String::from_utf8_lossy(&bytes));
        }
        while let Some(event) = self.site.shards[shard].poll_event() {
            self.on_event(shard, event);
        }
    }

    fn arrives(&mut self, to: Flow, text: &str) {
        let Some(party) = (0..self.parties.len()).find(|party| self.flow(*party) == to) else {
            // At a port that a Via named, or that somebody had before, or over a connection that has ended.
            let ip = format!("{}:", to.peer.ip());
            let is_known = self.parties.iter().any(|party| party.caller.from.starts_with(&ip));
            assert!(is_known, "sent to nobody, who is at {to:?}: {text}");
            return;
        };
        let party = &mut self.parties[party];
        let Ok(message) = Message::parse(text.as_bytes()) else { return };
        let Some(code) = message.status() else {
            return keep(&mut party.asked, text.to_owned());
        };
        let of = message.cseq().map(|cseq| cseq.method);
        if matches!(of, Ok(Method::Invite | Method::Register)) {
            text.clone_into(&mut party.said);
        }
        if of == Ok(Method::Invite) && matches!(code, 101..=299) {
            party.caller.take_dialog(text);
        }
    }

    /// Begins a call, of this user or that; without credentials.
    fn calls(&mut self, party: usize, what: u8, how: u8) {
        const CALLED: [&str; 8] = ["", "", "", "pbx", "web", "files", "alice", "nobody"];
        let Party { caller, asked, .. } = &mut self.parties[party];
        // By the Path of the last telephone that was registered there, maybe.
        let registered = asked.iter().rev().find(|request| request.starts_with("REGISTER "));
        let path = registered.filter(|_| how & 4 == 0).map(|request| one(request, HeaderName::Path));
        (caller.to_tag, caller.route) = (None, path);
        caller.call_id.push('+');
        let called = CALLED[usize::from(how >> 5)];
        if !called.is_empty() {
            caller.to = format!("sip:{called}@example.net");
        }
        self.asks(party, "INVITE", what, how, None);
    }

    /// Registers itself, or the service that it is the registrar of.
    fn registers(&mut self, party: usize, what: u8, how: u8) {
        let caller = &mut self.parties[party].caller;
        (caller.to_tag, caller.route) = (None, None);
        self.asks(party, "REGISTER", what, how, None);
    }

    /// Answers the last challenge, if there was one.
    fn answers_challenge(&mut self, party: usize, what: u8, how: u8) {
        let said = self.parties[party].said.clone();
        let method = if one(&said, HeaderName::CSeq).ends_with("REGISTER") { "REGISTER" } else { "INVITE" };
        let Ok(message) = Message::parse(said.as_bytes()) else { return };
        if matches!(message.status(), Some(401 | 407)) {
            self.asks(party, method, what, how, Some(&said));
        }
    }

    /// An INVITE or REGISTER, with credentials that answer a challenge.
    fn asks(&mut self, party: usize, method: &str, what: u8, how: u8, challenge: Option<&str>) {
        let Party { caller, media, .. } = &mut self.parties[party];
        let is_within = caller.to_tag.is_some();
        let before = caller.to.clone();
        let (uri, more, text) = if method == "REGISTER" {
            if caller.user != "registrar" {
                caller.to = format!("sip:{}@example.net", caller.user);
            }
            let contact = texts::contact(&caller.user, &caller.from, how);
            ("sip:example.net".to_owned(), contact, String::new())
        } else {
            let uri = if is_within { WITHIN.to_owned() } else { caller.to.clone() };
            (uri, fields(how).to_owned(), body(what, media).description())
        };
        let request = match challenge {
            Some(challenge) => caller.answered(challenge, method, &uri, &more, &text),
            None => caller.request(method, &uri, &more, &text),
        };
        caller.to = before;
        request.clone_into(&mut self.parties[party].request);
        self.party_says(party, request);
    }

    /// The ACK to the last answer to its INVITE.
    fn acknowledges(&mut self, party: usize, what: u8, how: u8) {
        let Party { caller, media, request, said, .. } = &mut self.parties[party];
        let is_accepted = Message::parse(said.as_bytes()).is_ok_and(|said| said.status() == Some(200));
        let ack = if is_accepted {
            let number = one(said, HeaderName::CSeq).split(' ').next().and_then(|number| number.parse().ok());
            let before = std::mem::replace(&mut caller.cseq, number.unwrap_or(1));
            let text = if how & 3 == 0 { body(what, media).description() } else { String::new() };
            let ack = caller.request("ACK", WITHIN, "", &text);
            caller.cseq = before;
            ack
        } else {
            beside(request, "ACK", &one(said, HeaderName::To))
        };
        self.party_says(party, ack);
    }

    /// The CANCEL of what it asked last.
    fn takes_back(&mut self, party: usize) {
        let (flow, last) = &self.last;
        let is_last = *flow == self.flow(party) && last.starts_with("INVITE ");
        let cancel = beside(if is_last { last } else { &self.parties[party].request }, "CANCEL", "");
        self.party_says(party, cancel);
    }

    /// A request within the call that it made.
    fn says_as_caller(&mut self, party: usize, what: u8, how: u8) {
        let method = METHODS[usize::from(how) % METHODS.len()];
        if method == "INVITE" {
            return self.asks(party, method, what, how >> 4, None);
        }
        let Party { caller, media, .. } = &mut self.parties[party];
        let request = caller.request(method, WITHIN, fields(how >> 4), &body(what, media).description());
        self.party_says(party, request);
    }

    /// A request within a call that was made to it.
    fn says_as_called(&mut self, party: usize, nth: usize, what: u8, how: u8) {
        let Party { caller, media, calls, .. } = &mut self.parties[party];
        let count = calls.len().max(1);
        let Some(call) = calls.get_mut(nth % count) else { return };
        let method = METHODS[usize::from(how) % METHODS.len()];
        caller.branches += 1;
        let request = call.request((&caller.from, caller.branches), method, fields(how >> 4), &body(what, media));
        self.party_says(party, request);
    }

    /// Answers what it was asked.
    fn answers(&mut self, party: usize, nth: usize, what: u8, how: u8) {
        let Party { caller, media, asked, calls, .. } = &mut self.parties[party];
        let Some(request) = asked.get(nth % asked.len().max(1)) else { return };
        let code = CODES[usize::from(how) % CODES.len()];
        let tag = format!("{}{}", caller.user, if what & 0x80 == 0 { "-tag" } else { "-other" });
        let more = format!("Contact: <sip:{}@{}>\r\n{}", caller.user, caller.from, fields(how >> 4));
        let Some(text) = answer(request, (code, &tag), &more, &body(what, media)) else { return };
        if request.starts_with("INVITE ") && code > 100 {
            let known = Known::of(request, &tag);
            keep(calls, known);
        }
        self.party_says(party, text);
    }

    /// The last words again, with a byte changed, or from elsewhere. What is inside is then nobody's secret.
    fn says_again(&mut self, who: u8, what: u8, how: u8) {
        let (flow, text) = self.last.clone();
        let mut bytes = text.replace(MEDIA_INSIDE, "10.0.0.2").into_bytes();
        let at = usize::from(what) * bytes.len() / 256;
        match (who >> 3 & 3, bytes.get_mut(at)) {
            (1, Some(byte)) => *byte = how,
            (2, Some(_)) => drop(bytes.remove(at)),
            (3, Some(_)) => bytes.truncate(at),
            _ => {}
        }
        let flow = match who & 7 {
            0 => self.flow(self.parties.len() - 1),
            1 => self.flow(5),
            2 => self.flow(1),
            3 => self.flow(0),
            _ => flow,
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.rules.came_changed(&text);
        self.say(flow, text);
    }

    /// A party's address changes, and with it its connection; or it forgets its call.
    fn moves(&mut self, party: usize, what: u8) {
        let flow = self.flow(party);
        let Party { caller, connection, .. } = &mut self.parties[party];
        if what & 1 != 0 || flow.peer.ip().to_string().starts_with("10.") {
            (caller.to_tag, caller.route) = (None, None);
            return;
        }
        caller.from = format!("{}:{}", flow.peer.ip(), flow.peer.port() ^ 8);
        *connection = connection.map(|number| number + 16);
        if let Some(ended) = flow.connection {
            self.tell(ended.shard().into(), Input::Closed(ended));
        }
    }

    /// An operator, media, the clock, or a gate that says what nobody asked.
    fn others_act(&mut self, what: u8, how: u8) {
        match what % 8 {
            0 => self.media_flow(),
            1 => self.gate_babbles(how, how & 0x80 == 0),
            2 => self.operator_revokes(Selector::all(Selected::User("alice".into()))),
            3 => self.operator_revokes(Selector::all(Selected::Service("pbx".into()))),
            4 => {
                let grants_max = [0, 1, 2, 64][usize::from(how & 3)];
                self.site.limit(PerUser { grants_max, ..*self.site.policy.per_user() });
            }
            5 => self.site.unix = UnixTime(self.site.unix.0 + u64::from(how)),
            6 => self.site.unix = UnixTime(self.site.unix.0 - u64::from(how)),
            _ => {
                let first = self.site.ledger.rows().first().map(|row| row.id);
                first.into_iter().for_each(|id| self.operator_revokes(Selector::all(Selected::Grant(id))));
            }
        }
    }

    /// A request that belongs to no call.
    fn says_alone(&mut self, party: usize, what: u8, how: u8) {
        let caller = &mut self.parties[party].caller;
        let method = ["OPTIONS", "BYE", "MESSAGE", "SUBSCRIBE", "NONE"][usize::from(how) % 5];
        let uri = ["sip:example.net", "sip:pbx@example.net", "sip:elsewhere.example", "tel:+1"][usize::from(what & 3)];
        let text = caller.request(method, uri, fields(what >> 4), "");
        self.party_says(party, text);
    }

    fn waits(&mut self, [_, unit, high, low]: [u8; STEP_LEN]) {
        const UNITS_MS: [u64; 4] = [1, 10, 100, 1_000];
        let count = u64::from(u16::from_be_bytes([high, low])) / 256;
        self.pass(Duration::from_millis(count * UNITS_MS[usize::from(unit & 3)]));
    }

    /// Lets time pass, with every timer of every shard at its time.
    fn pass(&mut self, time: Duration) {
        let end = self.site.instant + time;
        for _ in 0..WAKES_MAX {
            let timeouts = self.site.shards.iter().map(|shard| shard.poll_timeout());
            let next = timeouts.enumerate().filter_map(|(shard, at)| Some((at?, shard))).min();
            let Some((at, shard)) = next.filter(|(at, _)| *at <= end) else {
                self.set_time(end);
                return;
            };
            self.set_time(at.max(self.site.instant));
            let now = self.now();
            self.site.shards[shard].on_time(now);
            let again = self.site.shards[shard].poll_timeout();
            assert!(again.is_none_or(|again| again > now.instant), "due again at once: {again:?} at {now:?}");
            self.drain(shard);
        }
        panic!("{WAKES_MAX} timers within {time:?}");
    }

    /// The hub looks what has expired.
    fn set_time(&mut self, instant: Instant) {
        let secs = |instant: Instant| instant.as_nanos() / 1_000_000_000;
        self.site.unix = UnixTime(self.site.unix.0 + secs(instant) - secs(self.site.instant));
        self.site.instant = instant;
        self.site.ledger.expire(self.site.unix);
    }

    fn gauges(&self) -> impl Iterator<Item = Gauge> {
        let shards = self.site.shards.iter().flat_map(|shard| shard.gauges(self.site.instant));
        shards.chain(self.site.ledger.gauges()).chain([self.site.locations.gauge()])
    }

    fn check(&self) {
        for gauge in self.gauges() {
            assert!(gauge.used <= gauge.max, "{}: {} of {}", gauge.name, gauge.used, gauge.max);
        }
        self.check_open();
    }

    /// Nobody says anything more: in the end nothing is remembered, but what may not come twice, and where services were.
    fn end(&mut self) {
        for quiet in [Duration::ZERO, Duration::from_secs(600), QUIET] {
            self.pass(quiet);
            self.gate_catches_up();
            self.check();
        }
        self.rules.check_answered();
        self.check_nothing_is_open();
        for gauge in self.gauges().filter(|gauge| !matches!(gauge.name, "replays" | "bindings" | "contacts")) {
            assert_eq!(gauge.used, 0, "{} are left", gauge.name);
        }
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Keeps the last few.
fn keep<T>(kept: &mut VecDeque<T>, one: T) {
    kept.push_front(one);
    kept.truncate(KEPT_MAX);
}
