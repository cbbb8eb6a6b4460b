//! The frontends of one site among partitions, restarts, clocks that jump, updates that are lost, and somebody who repeats whatever
//! he hears: what must hold whatever happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use sluicegate_feed::Selected;
use sluicegate_grant::GrantId;
use sluicegate_policy::{Policy, User};
use sluicegate_proxy::{AgentKeys, Flow, Input, Now};
use sluicegate_sip::message::Message;
use sluicegate_wire::{Instant, UnixTime};

use crate::{
    Rng,
    frontend::{Frontend, REALM, START, Setup, policy, user},
    telephone::Telephone,
};

const REPLICAS: u16 = 3;
const SHARDS: u8 = 2;
const PHONES: usize = 6;
/// Milliseconds: a run, between looks at everything, between faults, between repetitions, and until a caller tries elsewhere.
const END: u64 = 90_000;
const LOOK: u64 = 250;
const FAULT: u64 = 1_500;
const AGAIN: u64 = 500;
const PATIENCE: u64 = 4_000;

/// What can be wrong with a site, so that what is looked for is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// All frontends make nonces with one key.
    SharedNonces,
    /// Updates of the user table reach a frontend, which leaves everything as it was.
    IgnoredUpdates,
    /// A frontend that starts has the gate end what it does not know.
    ClosingStarts,
}

#[derive(Debug)]
enum Event {
    Call(usize),
    Arrive { replica: usize, shard: usize, from: SocketAddr, message: String, third: Option<usize> },
    Hear { phone: usize, replica: usize, message: Vec<u8> },
    Again { phone: usize, turn: u64 },
    HangUp { phone: usize, turn: u64 },
    Fault,
    Update { replica: usize, version: usize },
    Look,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    Asking,
    Open,
    Ending,
}

struct Replica {
    frontend: Frontend,
    started: u64,
    /// Seconds by which its wall clock is ahead.
    ahead: i64,
    version: usize,
    /// When it was started or its clock set last.
    disturbed: u64,
}

struct Phone {
    phone: Telephone,
    replica: usize,
    stage: Stage,
    /// Counts what it does, so that what was due for something else is not done.
    turn: u64,
    since: u64,
    last: (String, Option<usize>),
    /// The third message of its call.
    third: Option<usize>,
}

/// A third message: what became of it.
#[derive(Default)]
struct Third {
    accepted: u32,
    user: usize,
    replica: usize,
    at: u64,
    grants: Vec<GrantId>,
    is_confirmed: bool,
}

struct Site {
    flaw: Flaw,
    rng: Rng,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    users: Vec<User>,
    /// Versions of the user table: who is in it.
    versions: Vec<(BTreeSet<usize>, Arc<Policy>)>,
    replicas: Vec<Replica>,
    phones: Vec<Phone>,
    thirds: Vec<Third>,
    /// Which telephone reaches which frontend not.
    cut: BTreeSet<(usize, usize)>,
    /// What the gate has open, and who had it opened.
    gate: BTreeMap<GrantId, usize>,
    calls: u64,
    /// What happened, so that a run in which nothing did is noticed.
    restarts: u64,
    replays: u64,
    broken: Option<String>,
}

fn of_site(flaw: Flaw, seed: u64) -> Site {
    let users: Vec<User> = (0..PHONES).map(|nth| user(&format!("user{nth}"))).collect();
    let all = policy(users.clone());
    let replica = |replica| {
        let shares_nonces = flaw == Flaw::SharedNonces;
        let setup = Setup { replica, shards: SHARDS, shares_nonces, ..Setup::default() };
        let frontend = Frontend::new(setup, &all, AgentKeys::default());
        Replica { frontend, started: 0, ahead: 0, version: 0, disturbed: 0 }
    };
    let phone = |nth: usize| Phone {
        phone: Telephone::new(&users[nth], address(nth), "web", String::new()),
        replica: 0,
        stage: Stage::Idle,
        turn: 0,
        since: 0,
        last: (String::new(), None),
        third: None,
    };
    Site {
        flaw,
        rng: Rng::new(seed),
        now: 0,
        events: BTreeMap::new(),
        scheduled: 0,
        versions: vec![((0..PHONES).collect(), Arc::clone(&all))],
        replicas: (1..=REPLICAS).map(replica).collect(),
        phones: (0..PHONES).map(phone).collect(),
        thirds: Vec::new(),
        cut: BTreeSet::new(),
        gate: BTreeMap::new(),
        users,
        calls: 0,
        restarts: 0,
        replays: 0,
        broken: None,
    }
}

fn address(phone: usize) -> SocketAddr {
    SocketAddr::from(([198, 18, 0, phone as u8], 5060))
}

impl Site {
    fn run(&mut self) {
        for phone in 0..PHONES {
            let after = self.rng.below(2_000);
            self.at(after, Event::Call(phone));
        }
        self.at(FAULT, Event::Fault);
        self.at(LOOK, Event::Look);
        while let Some(((at, _), event)) = self.events.pop_first()
            && at < END
            && self.broken.is_none()
        {
            self.now = at;
            self.take(event);
        }
    }

    fn at(&mut self, after: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now + after, self.scheduled), event);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Call(phone) => self.call(phone),
            Event::Arrive { replica, shard, from, message, third } => {
                self.arrive(replica, shard, from, &message, third);
            }
            Event::Hear { phone, replica, message } => self.hear(phone, replica, &message),
            Event::Again { phone, turn } => self.again(phone, turn),
            Event::HangUp { phone, turn } if self.phones[phone].turn == turn => {
                self.phones[phone].stage = Stage::Ending;
                let bye = self.phones[phone].phone.request("BYE", "");
                self.say(phone, bye, None);
            }
            Event::HangUp { .. } => {}
            Event::Fault => self.fault(),
            Event::Update { replica, version } => self.update(replica, version),
            Event::Look => self.look(),
        }
    }

    fn clock(&self, replica: usize) -> Now {
        let Replica { started, ahead, .. } = self.replicas[replica];
        let instant = Instant::from_secs(1) + Duration::from_millis(self.now - started);
        Now { instant, unix: UnixTime(START.plus_secs(self.now / 1_000).0.saturating_add_signed(ahead)) }
    }

    fn call(&mut self, nth: usize) {
        self.calls += 1;
        let replica = self.rng.below(REPLICAS.into()) as usize;
        let mut phone = Telephone::new(&self.users[nth], address(nth), "web", format!("call{}", self.calls));
        let invite = phone.request("INVITE", "");
        let turn = self.phones[nth].turn + 1;
        self.phones[nth] = Phone {
            phone,
            replica,
            stage: Stage::Asking,
            turn,
            since: self.now,
            last: (String::new(), None),
            third: None,
        };
        self.say(nth, invite, None);
    }

    /// A telephone sends something, and sends it again until it is answered.
    fn say(&mut self, nth: usize, message: String, third: Option<usize>) {
        let phone = &mut self.phones[nth];
        phone.turn += 1;
        phone.since = self.now;
        phone.last = (message.clone(), third);
        let turn = phone.turn;
        self.send(nth, message, third);
        self.at(AGAIN, Event::Again { phone: nth, turn });
    }

    fn send(&mut self, nth: usize, message: String, third: Option<usize>) {
        let replica = self.phones[nth].replica;
        if self.cut.contains(&(nth, replica)) || self.rng.chance(20_000) {
            return;
        }
        let event = Event::Arrive { replica, shard: nth % usize::from(SHARDS), from: address(nth), message, third };
        let after = 1 + self.rng.below(50);
        self.at(after, event);
    }

    fn again(&mut self, nth: usize, turn: u64) {
        let Phone { stage, since, last, .. } = &self.phones[nth];
        if self.phones[nth].turn != turn || matches!(stage, Stage::Idle | Stage::Open) {
            return;
        }
        if self.now - since >= PATIENCE {
            return self.idle(nth);
        }
        let (message, third) = last.clone();
        self.send(nth, message, third);
        self.at(AGAIN, Event::Again { phone: nth, turn });
    }

    fn idle(&mut self, nth: usize) {
        self.phones[nth].stage = Stage::Idle;
        self.phones[nth].turn += 1;
        let after = 200 + self.rng.below(3_000);
        self.at(after, Event::Call(nth));
    }

    fn arrive(&mut self, replica: usize, shard: usize, from: SocketAddr, message: &str, third: Option<usize>) {
        let now = self.clock(replica);
        let frontend = &mut self.replicas[replica].frontend;
        let before = frontend.opened;
        let sent = frontend.receive(now, shard, Flow::datagrams(0, from), message.as_bytes());
        let opened = frontend.opened - before;
        let granted = std::mem::take(&mut frontend.granted);
        if opened > 0 {
            self.accepted(replica, third, granted);
        }
        // The ACK of the 200: from now on the call does not end by itself.
        let (method, phone) = (message.split(' ').next(), self.phones.iter().find(|phone| phone.phone.address == from));
        if let (Some("ACK"), Some(third)) = (method, phone.and_then(|phone| phone.third))
            && message.contains(&format!("To: <sip:web@{REALM}>;tag="))
            && phone.is_some_and(|phone| message.contains(&format!("Call-ID: {}\r", phone.phone.call_id)))
        {
            self.thirds[third].is_confirmed |= self.thirds[third].replica == replica;
        }
        self.ended(replica);
        for (flow, message) in sent {
            let phone = usize::from(
                flow.peer.to_string().split(['.', ':']).nth(3).map_or(0, |nth| nth.parse().unwrap_or(0_u8)),
            );
            let reaches = flow.peer == address(phone) && !self.cut.contains(&(phone, replica));
            if reaches && !self.rng.chance(20_000) {
                let after = 1 + self.rng.below(50);
                self.at(after, Event::Hear { phone, replica, message });
            }
        }
    }

    /// A frontend had something opened.
    fn accepted(&mut self, replica: usize, third: Option<usize>, grants: Vec<GrantId>) {
        let Some(third) = third else { return self.breaks("something was opened without credentials") };
        let caller = self.thirds[third].replica;
        self.gate.extend(grants.iter().map(|id| (*id, replica)));
        let known = &mut self.thirds[third];
        known.accepted += 1;
        (known.at, known.grants) = (self.now, grants);
        if known.accepted > 1 {
            return self.breaks("a third message was accepted twice");
        }
        if caller != replica {
            return self.breaks("a third message was accepted where it was not challenged");
        }
        let (users, _) = &self.versions[self.replicas[replica].version];
        if !users.contains(&self.thirds[third].user) {
            self.breaks("a user was let in by a frontend that knows that there is none such");
        }
    }

    /// A frontend had the gate end something.
    fn ended(&mut self, replica: usize) {
        for selector in std::mem::take(&mut self.replicas[replica].frontend.revoked) {
            let is_meant = |id: &GrantId| match &selector.what {
                Selected::Call(call) => id.call() == *call,
                Selected::Grant(grant) => id == grant,
                Selected::User(_) | Selected::Service(_) => true,
            };
            let meant: Vec<(GrantId, usize)> =
                self.gate.iter().filter(|(id, _)| is_meant(id)).map(|(id, owner)| (*id, *owner)).collect();
            for (id, owner) in meant {
                self.gate.remove(&id);
                if owner != replica {
                    self.breaks("a frontend ended a call of another");
                }
            }
        }
    }

    fn breaks(&mut self, what: &str) {
        self.broken.get_or_insert_with(|| format!("{what}, at {} ms", self.now));
    }

    fn hear(&mut self, nth: usize, replica: usize, answer: &[u8]) {
        let Ok(message) = Message::parse(answer) else { return };
        let phone = &mut self.phones[nth];
        let is_of_call = message.call_id().is_ok_and(|id| id == phone.phone.call_id.as_bytes());
        if !is_of_call || phone.replica != replica || !phone.phone.is_current(&message) {
            return;
        }
        match (phone.stage, message.status().unwrap_or_default()) {
            (Stage::Asking, 407) => {
                let ack = phone.phone.ack_of_refusal();
                // A frontend that does not know the user (any more) asks again, and not because the nonce was used.
                if phone.third.is_some() && !answer.windows(10).any(|text| text == b"stale=true") {
                    self.send(nth, ack, None);
                    return self.idle(nth);
                }
                let Some(credentials) = phone.phone.credentials(answer, "INVITE") else { return };
                let invite = phone.phone.request("INVITE", &credentials);
                let third = self.thirds.len();
                phone.third = Some(third);
                self.thirds.push(Third { user: nth, replica, ..Third::default() });
                self.send(nth, ack, None);
                self.replay(nth, &invite, third);
                self.say(nth, invite, Some(third));
            }
            (Stage::Asking, 200) => {
                phone.phone.begin_dialog(answer);
                phone.stage = Stage::Open;
                phone.turn += 1;
                let (turn, ack) = (phone.turn, phone.phone.request("ACK", ""));
                self.send(nth, ack, None);
                let lasts = 500 + self.rng.below(20_000);
                self.at(lasts, Event::HangUp { phone: nth, turn });
            }
            (Stage::Asking, 300..) => self.idle(nth),
            (Stage::Open, 200) => {
                let ack = phone.phone.request("ACK", "");
                self.send(nth, ack, None);
            }
            (Stage::Ending, 200..) => self.idle(nth),
            _ => {}
        }
    }

    /// Somebody who heard it sends it everywhere, at any time, as it was and as something new.
    fn replay(&mut self, nth: usize, invite: &str, third: usize) {
        for copy in 0..3 + self.rng.below(5) {
            self.replays += 1;
            let is_new = self.rng.chance(800_000);
            let branch = format!("branch=z9hG4bKcopy{copy}");
            let message = if is_new { invite.replacen("branch=z9hG4bK", &branch, 1) } else { invite.to_owned() };
            let replica = self.rng.below(REPLICAS.into()) as usize;
            let shard = self.rng.below(SHARDS.into()) as usize;
            let port = 5_060 + u16::from(self.rng.chance(200_000));
            let from = SocketAddr::new(address(nth).ip(), port);
            let after = if self.rng.chance(500_000) { self.rng.below(200) } else { self.rng.below(70_000) };
            self.at(after, Event::Arrive { replica, shard, from, message, third: Some(third) });
        }
    }

    fn fault(&mut self) {
        let after = self.rng.below(2 * FAULT);
        self.at(after, Event::Fault);
        let replica = self.rng.below(REPLICAS.into()) as usize;
        let phone = self.rng.below(PHONES as u64) as usize;
        match self.rng.below(10) {
            0..4 => {
                if !self.cut.remove(&(phone, replica)) {
                    self.cut.insert((phone, replica));
                }
            }
            4 => self.restart(replica),
            5 | 6 => {
                let days = 3 * 86_400 * 1_000;
                let by = [self.rng.below(120), self.rng.below(days / 1_000)][self.rng.below(2) as usize] as i64;
                let sign = if self.rng.chance(500_000) { 1 } else { -1 };
                self.replicas[replica].ahead += sign * by;
                self.replicas[replica].disturbed = self.now;
            }
            _ => self.change(phone),
        }
    }

    /// A user comes or goes. The update reaches each frontend later, and some not before the next.
    fn change(&mut self, user: usize) {
        let mut present = self.versions.last().map(|(present, _)| present.clone()).unwrap_or_default();
        let absent = (0..PHONES).find(|nth| !present.contains(nth));
        match absent.filter(|_| self.rng.chance(700_000)) {
            Some(absent) => present.insert(absent),
            None => present.remove(&user),
        };
        let users = present.iter().map(|nth| self.users[*nth].clone()).collect();
        self.versions.push((present, policy(users)));
        let version = self.versions.len() - 1;
        for replica in 0..usize::from(REPLICAS) {
            if !self.rng.chance(300_000) {
                let after = self.rng.below(3_000);
                self.at(after, Event::Update { replica, version });
            }
        }
    }

    fn update(&mut self, replica: usize, version: usize) {
        let now = self.clock(replica);
        let own = &mut self.replicas[replica];
        // The store counts its versions: an update that comes late is none.
        if version <= own.version {
            return;
        }
        own.version = version;
        if self.flaw != Flaw::IgnoredUpdates {
            own.frontend.policy = Arc::clone(&self.versions[version].1);
            let policy = Arc::clone(&own.frontend.policy);
            own.frontend.tell(now, &Input::Policy(policy));
        }
        self.ended(replica);
    }

    /// A new process: a new start, new keys of nonces, a clock that begins anew; gates tell it what it has open.
    fn restart(&mut self, replica: usize) {
        self.restarts += 1;
        let own = &mut self.replicas[replica];
        let known = own.frontend.ledger.snapshot("gate");
        own.frontend.start();
        (own.started, own.disturbed) = (self.now, self.now);
        for delta in known {
            let told = own.frontend.ledger.opening(&delta.clone().without_keys(), "gate", 0);
            debug_assert!(told.is_ok());
        }
        if self.flaw == Flaw::ClosingStarts {
            let others: Vec<GrantId> =
                self.gate.iter().filter(|(_, owner)| **owner != replica).map(|(id, _)| *id).collect();
            self.gate.retain(|id, _| !others.contains(id));
        }
    }

    fn look(&mut self) {
        self.at(LOOK, Event::Look);
        for replica in 0..usize::from(REPLICAS) {
            let now = self.clock(replica);
            let frontend = &mut self.replicas[replica].frontend;
            frontend.on_time(now);
            frontend.ledger.expire(now.unix);
            self.ended(replica);
        }
        for nth in 0..PHONES {
            let phone = &self.phones[nth];
            let Some(third) = phone.third.filter(|_| phone.stage == Stage::Open) else { continue };
            let third = &self.thirds[third];
            let own = &self.replicas[third.replica];
            // What a restart or a clock of its own did to it is no other's fault.
            if !third.is_confirmed || third.at <= own.disturbed {
                continue;
            }
            let lives = |id: &GrantId| self.gate.contains_key(id) && own.frontend.ledger.row("gate", *id).is_some();
            if !third.grants.iter().all(lives) {
                self.breaks("a call ended that nobody had ended");
            }
        }
    }
}

/// How many seeds: 2,000 in the long form.
fn seeds() -> u64 {
    if env::var_os("SLUICEGATE_LONG").is_some_and(|value| value == "1") { 2_000 } else { 50 }
}

fn first_broken(flaw: Flaw, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| {
        let mut site = of_site(flaw, seed);
        site.run();
        site.broken.map(|what| (seed, what))
    })
}

#[test]
fn whatever_fails_no_third_message_opens_twice_no_removed_user_gets_in_and_no_replica_ends_calls_of_another() {
    let (mut accepted, mut restarts, mut replays, mut confirmed) = (0, 0, 0, 0);
    for seed in 0..seeds() {
        let mut site = of_site(Flaw::None, seed);
        site.run();
        assert_eq!(site.broken, None, "seed {seed}");
        accepted += site.thirds.iter().filter(|third| third.accepted == 1).count();
        confirmed += site.thirds.iter().filter(|third| third.is_confirmed).count();
        restarts += site.restarts;
        replays += site.replays;
    }
    println!("{} seeds: {accepted} calls, {confirmed} confirmed, {replays} replays, {restarts} restarts", seeds());
    assert!(accepted as u64 > 10 * seeds() && confirmed as u64 > 5 * seeds() && restarts > seeds());
}

#[test]
fn frontends_that_share_a_nonce_key_are_found_out() {
    let (_, what) = first_broken(Flaw::SharedNonces, 50).expect("a seed that shows it");
    assert!(what.starts_with("a third message was accepted"), "{what}");
}

#[test]
fn a_frontend_that_ignores_updates_is_found_out() {
    let (_, what) = first_broken(Flaw::IgnoredUpdates, 50).expect("a seed that shows it");
    assert!(what.starts_with("a user was let in"), "{what}");
}

#[test]
fn a_frontend_that_ends_what_it_does_not_know_is_found_out() {
    let (_, what) = first_broken(Flaw::ClosingStarts, 50).expect("a seed that shows it");
    assert!(what.starts_with("a call ended that nobody had ended"), "{what}");
}
