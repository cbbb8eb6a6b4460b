//! Calls by way of a frontend whose thread has less time than they take, on a virtual clock: who gets through.
//!
//! The frontend is the product's: its shard judges, challenges, opens, relays and refuses. What its thread spends on a datagram
//! follows from what came of it ([`Costs`]). Callers repeat themselves over UDP as RFC 3261 has it; over
//! TCP each call has a connection of its own.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use sluicegate_policy::User;
use sluicegate_proxy::{AgentKeys, ConnectionId, Flow, Input, Now, Overload, Tables};
use sluicegate_sip::message::Message;
use sluicegate_wire::{Instant, UnixTime};

use crate::{
    Rng,
    frontend::{Frontend, SERVER, START, Sent, Setup, policy, user},
    telephone::{Telephone, answer_of_server},
};

/// Half a round trip.
const WAY: u64 = 5_000_000;
/// How long a caller repeats itself at most (timers B and F), from 500 ms on, BYEs at most every 4 s (T1, T2).
const GIVES_UP: u64 = 32_000_000_000;
const AGAIN: u64 = 500_000_000;
const BYE_AGAIN_MAX: u64 = 4_000_000_000;
/// Addresses that callers and strangers have.
const CALLERS: u64 = 2_000;
const STRANGERS: u64 = 250;
/// How often the thread looks at its timers when nothing comes.
const TURN: u64 = 20_000_000;

/// What the frontend's thread spends, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// An INVITE that is passed on, and any other message that is.
    pub(crate) invite: u64,
    pub(crate) passed: u64,
    /// Any other that is answered.
    pub(crate) answered: u64,
    /// Any other that is not.
    pub(crate) taken: u64,
    /// A connection, from its SYN to its end.
    pub(crate) connection: u64,
    /// One that is refused.
    pub(crate) turned_away: u64,
}

/// How connections are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connections {
    /// As many as there may be.
    pub(crate) max: usize,
    /// Of these, those over which nobody has signed in: with one more the oldest gives way. `None`: nobody gives way.
    pub(crate) unproved_max: Option<usize>,
    /// How long a caller keeps its own after its call, in nanoseconds.
    pub(crate) kept: u64,
}

/// What arrives where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) overload: Overload,
    pub(crate) costs: Costs,
    /// `None`: over UDP.
    pub(crate) connections: Option<Connections>,
    pub(crate) calls_per_s: u64,
    /// Requests without credentials, over UDP.
    pub(crate) bad_per_s: u64,
    /// Messages a second that the link to the frontend carries, and as many as wait for it.
    pub(crate) link: (u64, u64),
    /// Datagrams that the socket holds.
    pub(crate) buffer: usize,
    /// Seconds before it is counted, in which it is, and after the last call.
    pub(crate) seconds: (u64, u64, u64),
}

/// What came of it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// Calls begun and ended by a BYE, of the time that counts.
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    /// All calls of the run by what became of them: refused with 500 or 503, without a connection, given up.
    pub(crate) refused: u64,
    pub(crate) unconnected: u64,
    pub(crate) given_up: u64,
    /// Most connections at once.
    pub(crate) connections: usize,
    /// Datagrams that found no room.
    pub(crate) lost: u64,
    /// Requests that callers sent again.
    pub(crate) again: u64,
    /// Messages, by what they cost.
    pub(crate) invites: u64,
    pub(crate) passed: u64,
    pub(crate) answered: u64,
    pub(crate) taken: u64,
    seconds: u64,
}

impl Tally {
    /// Calls that were set up and ended, a second.
    pub(crate) fn goodput(&self) -> f64 {
        self.ended as f64 / self.seconds.max(1) as f64
    }
}

#[derive(Debug)]
enum Event {
    Call,
    Bad,
    Arrive(Flow, Vec<u8>),
    Free(Sent),
    Deliver(Flow, Vec<u8>),
    Again { call: usize, sent: u32, wait: u64 },
    Close(ConnectionId),
    Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Inviting,
    Ending,
    Over,
}

#[derive(Debug)]
struct Caller {
    phone: Telephone,
    flow: Flow,
    stage: Stage,
    began: u64,
    /// What it repeats, and how many requests it has made.
    last: String,
    sent: u32,
    /// The ACK of its 200.
    ack: String,
}

struct World {
    scenario: Scenario,
    users: Vec<User>,
    frontend: Frontend,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    callers: Vec<Caller>,
    by_address: HashMap<SocketAddr, usize>,
    queue: VecDeque<(u64, Flow, Vec<u8>)>,
    is_busy: bool,
    /// Spent, but not yet waited for: by the kernel on connections, and by timers.
    owed: u64,
    busy: u64,
    measured: u64,
    link_free: u64,
    /// Connections, oldest first, and whether somebody has signed in over them.
    connections: BTreeMap<u32, bool>,
    connected: u32,
    bad: u64,
    rng: Rng,
    tally: Tally,
}

/// Plays it.
pub(crate) fn play(seed: u64, scenario: Scenario) -> Tally {
    let users: Vec<User> = (0..256).map(|nth| user(&format!("user{nth}"))).collect();
    let setup = Setup { overload: scenario.overload, tables: Tables::default(), ..Setup::default() };
    let frontend = Frontend::new(setup, &policy(users.clone()), AgentKeys::default());
    let mut world = World {
        scenario,
        users,
        frontend,
        now: 0,
        events: BTreeMap::new(),
        scheduled: 0,
        callers: Vec::new(),
        by_address: HashMap::new(),
        queue: VecDeque::new(),
        is_busy: false,
        owed: 0,
        busy: 0,
        measured: 0,
        link_free: 0,
        connections: BTreeMap::new(),
        connected: 0,
        bad: 0,
        rng: Rng::new(seed),
        tally: Tally { seconds: scenario.seconds.1, ..Tally::default() },
    };
    world.run();
    world.tally
}

const SECOND: u64 = 1_000_000_000;

impl World {
    fn run(&mut self) {
        let (before, counted, after) = self.scenario.seconds;
        let end = (before + counted + after) * SECOND;
        self.at(0, Event::Turn);
        self.at(1, Event::Call);
        if self.scenario.bad_per_s > 0 {
            self.at(2, Event::Bad);
        }
        while let Some(((at, _), event)) = self.events.pop_first().filter(|((at, _), _)| *at < end) {
            self.now = at;
            self.take(event);
        }
    }

    fn at(&mut self, after: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now + after, self.scheduled), event);
    }

    fn clock(&self) -> Now {
        let nanos = Duration::from_nanos(self.now);
        Now { instant: Instant::from_secs(1_000) + nanos, unix: UnixTime(START.0 + nanos.as_secs()) }
    }

    const fn counts(&self) -> bool {
        self.now >= self.scenario.seconds.0 * SECOND
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Call if self.now >= (self.scenario.seconds.0 + self.scenario.seconds.1) * SECOND => {}
            Event::Call => {
                self.at(SECOND / self.scenario.calls_per_s, Event::Call);
                self.call();
            }
            Event::Bad => {
                // In lockstep with the link they would take every place in it.
                let after = self.rng.below(2 * SECOND / self.scenario.bad_per_s);
                self.at(after, Event::Bad);
                self.bad();
            }
            Event::Arrive(flow, message) => self.arrive(flow, message),
            Event::Free(sent) => {
                self.is_busy = false;
                for (flow, message) in sent {
                    self.at(WAY, Event::Deliver(flow, message));
                }
                self.turn();
                self.serve();
            }
            Event::Deliver(flow, message) if flow.peer == SERVER => {
                if let Some(answer) = answer_of_server(&message) {
                    self.at(2 * WAY, Event::Arrive(flow, answer));
                }
            }
            Event::Deliver(flow, message) => {
                if let Some(call) = self.by_address.get(&flow.peer).copied() {
                    self.hear(call, &message);
                }
            }
            Event::Again { call, sent, wait } => self.repeat(call, sent, wait),
            Event::Close(connection) => self.close(connection),
            Event::Turn => {
                self.at(TURN, Event::Turn);
                if !self.is_busy {
                    self.turn();
                    self.serve();
                }
            }
        }
    }

    /// Somebody calls.
    fn call(&mut self) {
        self.tally.begun += u64::from(self.counts());
        let nth = self.callers.len() as u64;
        let (place, port) = (nth % CALLERS, 1_024 + (nth / CALLERS) as u16);
        let address = SocketAddr::from(([100, 64, (place / 250) as u8, (place % 250) as u8], port));
        let Some(connection) = self.connect() else { return };
        let user = &self.users[(nth % self.users.len() as u64) as usize];
        let mut phone = Telephone::new(user, address, "pbx", format!("c{nth}"));
        phone.is_connected = connection.is_some();
        let flow = Flow { listener: u8::from(connection.is_some()), peer: address, connection };
        let caller = Caller {
            phone,
            flow,
            stage: Stage::Inviting,
            began: self.now,
            last: String::new(),
            sent: 0,
            ack: String::new(),
        };
        self.by_address.insert(address, self.callers.len());
        self.callers.push(caller);
        self.ask(self.callers.len() - 1, "INVITE", "");
    }

    /// Over UDP there is no connection; `None` if there is to be one and cannot.
    fn connect(&mut self) -> Option<Option<ConnectionId>> {
        let Some(Connections { max, unproved_max, .. }) = self.scenario.connections else { return Some(None) };
        let unproved = || self.connections.iter().filter(|(_, is_proved)| !**is_proved);
        let is_full = self.connections.len() >= max;
        let oldest = unproved().next().map(|(number, _)| *number);
        if let Some(unproved_max) = unproved_max
            && (is_full || unproved().count() >= unproved_max)
            && let Some(connection) = oldest.and_then(|oldest| ConnectionId::new(0, oldest))
        {
            self.close(connection);
        }
        if self.connections.len() >= max {
            self.owed += self.scenario.costs.turned_away;
            self.tally.unconnected += 1;
            return None;
        }
        self.connected += 1;
        self.owed += self.scenario.costs.connection;
        self.connections.insert(self.connected, false);
        self.tally.connections = self.tally.connections.max(self.connections.len());
        Some(ConnectionId::new(0, self.connected))
    }

    fn close(&mut self, connection: ConnectionId) {
        if self.connections.remove(&connection.0.get()).is_some() {
            self.frontend.tell(self.clock(), &Input::Closed(connection));
        }
    }

    /// A stranger sends an INVITE and nothing more.
    fn bad(&mut self) {
        self.bad += 1;
        let nth = self.bad;
        let address = SocketAddr::from(([203, 0, 114, (nth % STRANGERS) as u8], 5060));
        let mut phone = Telephone::new(&self.users[0], address, "pbx", format!("bad{nth}"));
        let request = phone.request("INVITE", "");
        self.send(Flow::datagrams(0, address), request);
    }

    /// A caller makes a request, and repeats it.
    fn ask(&mut self, call: usize, method: &str, lines: &str) {
        let caller = &mut self.callers[call];
        caller.sent += 1;
        caller.last = caller.phone.request(method, lines);
        let (flow, message, sent) = (caller.flow, caller.last.clone(), caller.sent);
        self.send(flow, message);
        self.at(if flow.connection.is_some() { GIVES_UP } else { AGAIN }, Event::Again { call, sent, wait: AGAIN });
    }

    fn repeat(&mut self, call: usize, sent: u32, wait: u64) {
        let caller = &self.callers[call];
        if caller.stage == Stage::Over || caller.sent != sent {
            return;
        }
        if self.now - caller.began >= GIVES_UP {
            self.tally.given_up += 1;
            return self.hang_up(call);
        }
        let (flow, message, stage) = (caller.flow, caller.last.clone(), caller.stage);
        if flow.connection.is_none() && !message.is_empty() {
            self.tally.again += 1;
            self.send(flow, message);
        }
        let wait = if stage == Stage::Ending { (2 * wait).min(BYE_AGAIN_MAX) } else { 2 * wait };
        self.at(wait, Event::Again { call, sent, wait });
    }

    /// Over the link to the frontend.
    fn send(&mut self, flow: Flow, message: String) {
        let (per_s, waiting) = self.scenario.link;
        let each = SECOND / per_s;
        self.link_free = self.link_free.max(self.now) + each;
        // Over TCP what is lost comes again by itself.
        if self.link_free - self.now > each * waiting && flow.connection.is_none() {
            self.link_free -= each;
            self.tally.lost += 1;
            return;
        }
        self.at(self.link_free - self.now + WAY, Event::Arrive(flow, message.into_bytes()));
    }

    fn arrive(&mut self, flow: Flow, message: Vec<u8>) {
        let is_over = flow.connection.is_some_and(|connection| !self.connections.contains_key(&connection.0.get()));
        let is_datagram = flow.connection.is_none();
        if is_over || (is_datagram && self.queue.len() >= self.scenario.buffer) {
            self.tally.lost += 1;
            return;
        }
        self.queue.push_back((self.now, flow, message));
        self.serve();
    }

    /// The thread takes the next message, if it is free.
    fn serve(&mut self) {
        if self.is_busy {
            return;
        }
        let Some((arrived, flow, message)) = self.queue.pop_front() else { return };
        let now = self.clock();
        let waited = flow.connection.is_none().then(|| Duration::from_nanos(self.now - arrived));
        self.frontend.shards[0].wait(waited);
        let sent = self.frontend.receive(now, 0, flow, &message);
        let (costs, tally) = (self.scenario.costs, &mut self.tally);
        let is_passed = sent.iter().any(|(to, _)| to.peer != flow.peer);
        let (cost, counted) = match sent.is_empty() {
            true => (costs.taken, &mut tally.taken),
            false if is_passed && message.starts_with(b"INVITE") => (costs.invite, &mut tally.invites),
            false if is_passed => (costs.passed, &mut tally.passed),
            false => (costs.answered, &mut tally.answered),
        };
        *counted += 1;
        self.frontend.shards[0].spend(Duration::from_nanos(cost));
        for connection in std::mem::take(&mut self.frontend.proved) {
            self.connections.entry(connection.0.get()).and_modify(|is_proved| *is_proved = true);
        }
        self.spend(cost, sent);
    }

    fn spend(&mut self, cost: u64, sent: Sent) {
        let cost = cost + std::mem::take(&mut self.owed);
        self.busy += cost;
        self.is_busy = true;
        self.at(cost, Event::Free(sent));
    }

    /// What is due in the shard.
    fn turn(&mut self) {
        let now = self.clock();
        let sent = self.frontend.on_time(now);
        self.owed += self.scenario.costs.answered * sent.len() as u64;
        for (flow, message) in sent {
            self.at(WAY, Event::Deliver(flow, message));
        }
        if self.frontend.shards[0].measure_due() <= now.instant {
            let share = self.busy as f64 / (self.now - self.measured).max(1) as f64;
            (self.busy, self.measured) = (0, self.now);
            self.frontend.shards[0].measure(now, share.min(1.0), share.min(1.0));
        }
    }

    /// A caller hears an answer.
    fn hear(&mut self, call: usize, answer: &[u8]) {
        let Ok(message) = Message::parse(answer) else { return };
        let (Some(status), Ok(cseq)) = (message.status(), message.cseq()) else { return };
        let is_bye = cseq.method.as_bytes() == b"BYE";
        let caller = &mut self.callers[call];
        match (caller.stage, status) {
            (Stage::Inviting, 100..200) => {
                // It waits, and says nothing again (RFC 3261 section 17.1.1.2).
                caller.last.clear();
            }
            (Stage::Inviting, 401 | 407) => {
                let ack = caller.phone.ack_of_refusal();
                let credentials = caller.phone.credentials(answer, "INVITE").unwrap_or_default();
                let (flow, is_asked) = (caller.flow, caller.phone.is_current(&message));
                self.send(flow, ack);
                if is_asked {
                    self.ask(call, "INVITE", &credentials);
                }
            }
            (Stage::Inviting, 200..300) => {
                caller.phone.begin_dialog(answer);
                caller.ack = caller.phone.request("ACK", "");
                caller.stage = Stage::Ending;
                let (flow, ack) = (caller.flow, caller.ack.clone());
                self.send(flow, ack);
                self.ask(call, "BYE", "");
            }
            (Stage::Inviting, 300..) => {
                let (flow, ack) = (caller.flow, caller.phone.ack_of_refusal());
                self.tally.refused += 1;
                self.send(flow, ack);
                self.hang_up(call);
            }
            (Stage::Ending, _) if !is_bye => {
                let (flow, ack) = (caller.flow, caller.ack.clone());
                self.send(flow, ack);
            }
            (Stage::Ending, 200..) => {
                self.tally.ended += u64::from(self.counts() && status < 300);
                self.hang_up(call);
            }
            _ => {}
        }
    }

    fn hang_up(&mut self, call: usize) {
        self.callers[call].stage = Stage::Over;
        if let (Some(connection), Some(limits)) = (self.callers[call].flow.connection, self.scenario.connections) {
            self.at(limits.kept, Event::Close(connection));
        }
    }
}
