//! Whatever happens to connections and frontends, a grant at the gate ends by an explicit revoke and by nothing else, and
//! whatever the frontend has open is open at a gate that is up to date.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proptest::{collection::vec, prelude::*};
use sluicegate_feed::{
    Decoder, Delta, Event, FeedReceiver, FeedSender, FromGate, GrantDelta, Selected, Selector, SenderOptions,
};
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId, IssuerKey};
use sluicegate_wire::{Instant, UnixTime};

#[derive(Debug, Clone)]
enum Step {
    /// The frontend issues a grant to this user.
    Install(u8),
    /// The frontend revokes the oldest grant, or all grants of a user.
    RevokeOldest,
    RevokeUser(u8),
    /// Time passes, and batches go out.
    Flush,
    /// So many waiting frames arrive.
    Deliver(usize),
    /// A waiting frame is lost, or comes twice: the connection must notice.
    Lose,
    Repeat,
    /// The connection breaks with everything on it; the gate dials anew.
    Reconnect,
    /// The frontend starts anew and knows no grant.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..3).prop_map(Step::Install),
        1 => Just(Step::RevokeOldest),
        1 => (0u8..3).prop_map(Step::RevokeUser),
        4 => Just(Step::Flush),
        4 => (1usize..4).prop_map(Step::Deliver),
        1 => Just(Step::Lose),
        1 => Just(Step::Repeat),
        2 => Just(Step::Reconnect),
        1 => Just(Step::Restart),
    ]
}

fn options() -> SenderOptions {
    // A short log, so that both ways of catching up are taken.
    SenderOptions { log_bytes_max: 1_000, ..SenderOptions::default() }
}

struct World {
    now: Instant,
    unix: UnixTime,
    boots: u64,
    grants: u32,
    sender: FeedSender,
    /// What this start of the frontend has open.
    open: BTreeMap<GrantId, (Grant, String)>,
    /// Every revoke that a frontend ever sent.
    revokes: Vec<Selector>,
    receiver: FeedReceiver,
    connected: bool,
    on_the_way: Vec<Arc<[u8]>>,
    /// What the gate has installed, and everything that it ever had.
    installed: BTreeMap<GrantId, (Grant, String)>,
    ever: BTreeMap<GrantId, (Grant, String)>,
}

impl World {
    fn new() -> Self {
        let key = IssuerKey::from_seed([1; 32]);
        let receiver = FeedReceiver::new(key.public(), "ams-1", None);
        let mut world = Self {
            now: Instant::from_secs(1),
            unix: UnixTime(1_800_000_000),
            boots: 1,
            grants: 0,
            sender: FeedSender::new(key, 1, "frontend-1", options()),
            open: BTreeMap::new(),
            revokes: Vec::new(),
            receiver,
            connected: false,
            on_the_way: Vec::new(),
            installed: BTreeMap::new(),
            ever: BTreeMap::new(),
        };
        world.reconnect();
        world
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Install(user) => self.install(*user),
            Step::RevokeOldest => {
                if let Some(id) = self.open.keys().next().copied() {
                    self.revoke(Selected::Grant(id));
                }
            }
            Step::RevokeUser(user) => self.revoke(Selected::User(format!("user{user}"))),
            Step::Flush => self.flush(),
            Step::Deliver(count) => {
                let count = (*count).min(self.on_the_way.len());
                let frames: Vec<_> = self.on_the_way.drain(..count).collect();
                frames.iter().for_each(|frame| self.deliver(frame));
            }
            Step::Lose => drop((!self.on_the_way.is_empty()).then(|| self.on_the_way.remove(0))),
            Step::Repeat => {
                if let Some(frame) = self.on_the_way.first().cloned() {
                    self.on_the_way.insert(0, frame);
                }
            }
            Step::Reconnect => self.reconnect(),
            Step::Restart => {
                self.boots += 1;
                self.sender = FeedSender::new(IssuerKey::from_seed([1; 32]), self.boots, "frontend-1", options());
                self.open.clear();
                self.reconnect();
            }
        }
        // Seconds tell a grant that was issued after a revoke from one before it.
        self.unix = self.unix.plus_secs(1);
    }

    fn install(&mut self, user: u8) {
        self.grants += 1;
        let grant = Grant {
            flags: 0,
            least_mode: DataMode::Pinhole,
            protocol: 17,
            id: GrantId::of_call([0; 12], self.grants),
            issuer: self.sender.issuer().id(),
            epoch: 0,
            not_before: self.unix,
            not_after: self.unix.plus_secs(86_400),
            bytes: 1,
            client_id: 0,
            flows: 0,
            rate_100kbps: 0,
            client_address: [198, 51, 100, 1].into(),
            client_ports: ANY_PORTS,
            gate_address: [0, 0, 0, 0].into(),
            gate_ports: (0, 0),
            holder: [0; 32],
            user_pseudonym: [0; 8],
        };
        let user = format!("user{user}");
        self.sender.push(self.now, self.unix, install_of(&grant, &user)).unwrap();
        self.open.insert(grant.id, (grant, user));
    }

    fn revoke(&mut self, what: Selected) {
        let selector = Selector { what, issued_before: Some(self.unix.plus_secs(1)) };
        self.open.retain(|_, (grant, user)| !selector.selects(grant, user, "web"));
        self.sender.push(self.now, self.unix, Delta::Revoke(selector.clone())).unwrap();
        self.revokes.push(selector);
    }

    fn flush(&mut self) {
        self.now = self.now + Duration::from_millis(10);
        while let Some(frame) = self.sender.poll_transmit(self.now, self.unix) {
            if self.connected {
                self.on_the_way.push(frame);
            }
        }
    }

    fn reconnect(&mut self) {
        self.on_the_way.clear();
        let FromGate::Hello { resume, .. } = self.receiver.connect(self.now, self.unix) else { unreachable!() };
        let state: Vec<_> = self.open.values().map(|(grant, user)| install_of(grant, user)).collect();
        self.on_the_way = self.sender.welcome(self.unix, resume, || state).unwrap();
        self.connected = true;
    }

    fn deliver(&mut self, frame: &[u8]) {
        if !self.connected {
            return;
        }
        let mut decoder = Decoder::new();
        decoder.push(frame);
        let message = decoder.poll().unwrap().unwrap();
        match self.receiver.handle(self.now, self.unix, message) {
            Ok(events) => events.into_iter().for_each(|event| self.apply(event)),
            Err(_) => {
                self.connected = false;
                self.on_the_way.clear();
            }
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Install(install) => {
                let GrantDelta { grant, user, .. } = *install;
                self.ever.insert(grant.id, (grant.clone(), user.clone()));
                self.installed.insert(grant.id, (grant, user));
            }
            Event::Revoke(selector) => self.installed.retain(|_, (grant, user)| !selector.selects(grant, user, "web")),
            Event::Refuse(id, text) => panic!("{id} refused: {text}"),
            Event::Service(_) | Event::ServiceGone(_) | Event::UpToDate(_) | Event::Reply(_) | Event::Skew(_) => {}
        }
    }

    /// What is missing at the gate was revoked.
    fn check(&self) -> Result<(), TestCaseError> {
        for (id, (grant, user)) in &self.ever {
            let revoked = self.revokes.iter().any(|selector| selector.selects(grant, user, "web"));
            prop_assert!(self.installed.contains_key(id) || revoked, "{id} ended without a revoke");
        }
        Ok(())
    }
}

fn install_of(grant: &Grant, user: &str) -> Delta {
    Delta::Install(Box::new(GrantDelta {
        grant: grant.clone(),
        user: user.into(),
        service: "web".into(),
        target: [10, 0, 0, 1].into(),
        target_ports: (80, 80),
        mode: Default::default(),
        keys: None,
    }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_grant_ends_by_an_explicit_revoke_and_by_nothing_else(steps in vec(step(), 1..60)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check()?;
        }
        // However it went, one more connection brings the gate up to date.
        world.step(&Step::Flush);
        world.step(&Step::Reconnect);
        world.step(&Step::Flush);
        world.step(&Step::Deliver(usize::MAX));
        world.check()?;
        for id in world.open.keys() {
            prop_assert!(world.installed.contains_key(id), "{id} is open and was not installed");
        }
        // What this start of the frontend revoked is gone, also if the gate was away when it happened.
        for (id, (grant, user)) in &world.installed {
            let restarts = steps.iter().filter(|step| matches!(step, Step::Restart)).count();
            let revoked = world.revokes.iter().any(|selector| selector.selects(grant, user, "web"));
            prop_assert!(restarts > 0 || !revoked, "{id} survived its revoke");
        }
    }
}
