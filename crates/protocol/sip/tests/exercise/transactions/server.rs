//! RFC 3261 sections 17.2.1 to 17.2.3, and RFC 6026 section 7.1.

use sluicegate_sip::transaction::{Due, Received, Role, ServerTransactions};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Proceeding,
    /// INVITE: a 2xx was sent.
    Accepted,
    Completed,
    /// INVITE: its ACK came.
    Confirmed,
}

#[derive(Debug)]
struct Known {
    token: Token,
    is_invite: bool,
    role: Role,
    /// By what a retransmission is known, and by what the ACK to a 2xx.
    keys: (String, String),
    /// Whether it is the newest with the second key: what only that names belongs to none before it.
    is_newest: bool,
    state: State,
    /// The last response; empty if there is none, or none that has to be sent again.
    response: Vec<u8>,
    /// Whether to end now would be a failure.
    is_owed: bool,
    clocks: Clocks,
}

struct Play {
    now: Instant,
    table: ServerTransactions,
    is_reliable: bool,
    known: Vec<Known>,
    responses: u32,
}

const METHODS: [&str; 4] = ["INVITE", "BYE", "ACK", "OPTIONS"];
const CODES: [u16; 8] = [100, 180, 200, 202, 302, 404, 486, 603];

/// One request, with all that it can be known by.
struct Asked {
    method: &'static str,
    text: Vec<u8>,
    keys: (String, String),
}

impl Asked {
    /// Few of each, so that they come again.
    fn new([_, which, how, _]: [u8; STEP_LEN]) -> Self {
        let method = METHODS[usize::from(which) % METHODS.len()];
        let (branch, call, number) = (which >> 2 & 3, how & 1, u32::from(how >> 1 & 1));
        // RFC 2543 had no branches that say something.
        let is_old = how & 0x80 != 0;
        let (branch, call) = (format!("{}{branch}", if is_old { "x" } else { "z9hG4bK" }), format!("call{call}"));
        let text = request(method, &branch, (&call, number));
        let of_method = if method == "ACK" { "INVITE" } else { method };
        let by_branch =
            if is_old { format!("{branch} {of_method} {call} {number}") } else { format!("{branch} {of_method}") };
        Self { method, text, keys: (by_branch, format!("{call} {number}")) }
    }
}

pub(super) fn play(kind: u8, steps: impl Iterator<Item = [u8; STEP_LEN]>) {
    let is_reliable = kind & 1 != 0;
    let table = ServerTransactions::new(TABLE_MAX, [9; 16]).over_reliable(is_reliable);
    let mut play = Play { now: Instant::from_secs(9), table, is_reliable, known: Vec::new(), responses: 0 };
    for step in steps {
        play.step(step);
        play.poll();
        agree(play.table.gauge(), play.table.poll_timeout(), play.known.iter().map(|known| known.clocks));
    }
    while let Some(at) = play.table.poll_timeout() {
        assert!(at > play.now && at <= play.now + QUIET, "a timer that never fires");
        play.now = at;
        play.poll();
    }
    assert!(play.known.is_empty() && play.table.gauge().used == 0);
}

impl Play {
    fn step(&mut self, step @ [action, which, how, more]: [u8; STEP_LEN]) {
        match action % 6 {
            0 | 1 => self.ask(&Asked::new(step), more),
            2 | 3 => self.respond(which, CODES[usize::from(how) % CODES.len()]),
            4 if more & 7 == 0 => self.cancel(&Asked::new(step)),
            4 if more & 7 == 1 => self.forget(which),
            4 if more & 7 == 2 => self.goes_on(which),
            4 => self.now = self.table.poll_timeout().unwrap_or(self.now).max(self.now),
            _ => self.now = self.now + wait(step),
        }
    }

    fn ask(&mut self, asked: &Asked, more: u8) {
        let message = parse(&asked.text);
        let fields = message.essentials().expect("a request of ours");
        let received = self.table.receive(self.now, &message, &fields);
        assert_eq!(received, self.expected(asked), "{}", String::from_utf8_lossy(&asked.text));
        if received != Received::New || asked.method == "ACK" || more & 4 != 0 {
            return;
        }
        let role = if more & 1 == 0 { Role::Proxy } else { Role::UserAgent };
        let opened = self.table.open(self.now, &message, &fields, PEERS[0], role);
        assert_eq!(opened.is_ok(), self.known.len() < TABLE_MAX);
        let Ok(token) = opened else { return };
        assert_eq!(self.table.response(token), None);
        let is_invite = asked.method == "INVITE";
        for older in self.known.iter_mut().filter(|older| is_invite && older.keys.1 == asked.keys.1) {
            older.is_newest = false;
        }
        self.known.push(Known {
            token,
            is_invite,
            is_newest: is_invite,
            role,
            keys: asked.keys.clone(),
            state: State::Proceeding,
            response: Vec::new(),
            is_owed: true,
            clocks: Clocks::new(self.now, ms(T2_MS), ms(UNANSWERED_MS)),
        });
    }

    /// What a request is to those that came before.
    fn expected(&mut self, asked: &Asked) -> Received {
        let by_branch = self.known.iter().position(|known| known.keys.0 == asked.keys.0);
        if asked.method != "ACK" {
            return by_branch.map_or(Received::New, |at| self.known[at].absorb());
        }
        let by_call = || self.known.iter().position(|known| known.is_newest && known.keys.1 == asked.keys.1);
        let (now, is_reliable) = (self.now, self.is_reliable);
        by_branch.or_else(by_call).map_or(Received::New, |at| self.known[at].acknowledge(now, is_reliable))
    }

    fn respond(&mut self, which: u8, code: u16) {
        let Some(place) = usize::from(which).checked_rem(self.known.len()) else { return };
        let (now, is_reliable, known) = (self.now, self.is_reliable, &mut self.known[place]);
        self.responses += 1;
        let response = format!("{code} number {}", self.responses).into_bytes();
        let is_sent = self.table.respond(now, known.token, code, &response);
        if known.state == State::Proceeding {
            assert!(is_sent);
            known.response = response;
            known.answered(now, code, is_reliable);
        } else {
            // Another 2xx of a service that forks (RFC 6026 section 7.1), and nothing else.
            let is_another = known.state == State::Accepted && known.role == Role::Proxy && code / 100 == 2;
            assert_eq!(is_sent, is_another);
        }
        let kept = Some((&known.response[..], PEERS[0])).filter(|(response, _)| !response.is_empty());
        assert_eq!(self.table.response(known.token), kept);
    }

    /// Whoever is to answer shows that it goes on.
    fn goes_on(&mut self, which: u8) {
        let Some(place) = usize::from(which).checked_rem(self.known.len()) else { return };
        let (now, known) = (self.now, &mut self.known[place]);
        self.table.wait(now, known.token);
        if known.state == State::Proceeding {
            known.clocks.end = now + ms(UNANSWERED_MS);
        }
    }

    fn forget(&mut self, which: u8) {
        if self.known.is_empty() {
            return;
        }
        let known = self.known.remove(usize::from(which) % self.known.len());
        self.table.forget(known.token);
        assert_eq!(self.table.response(known.token), None);
    }

    /// RFC 3261 section 9.2.
    fn cancel(&self, asked: &Asked) {
        let message = parse(&asked.text);
        let found = self.table.invite_of(&message.essentials().expect("a request of ours"));
        let branch = asked.keys.0.replacen(&format!(" {}", asked.method), " INVITE", 1);
        let known = self.known.iter().find(|known| known.keys.0 == branch);
        assert_eq!(found, known.map(|known| known.token));
    }

    fn poll(&mut self) {
        let mut did = Vec::new();
        while let Some(due) = self.table.poll(self.now) {
            did.push(match due {
                Due::Transmit { bytes, .. } => Did::Sent(bytes.to_vec()),
                Due::Cancel(token) => Did::Cancel(named(token)),
                Due::TimedOut(token) => Did::TimedOut(named(token)),
            });
        }
        let now = self.now;
        let mut expected = Vec::new();
        self.known.retain_mut(|known| known.poll(now, &mut expected));
        did.sort();
        expected.sort();
        assert_eq!(did, expected);
    }
}

impl Known {
    fn absorb(&self) -> Received {
        let is_again = match self.state {
            State::Proceeding => !self.response.is_empty(),
            State::Completed => true,
            State::Accepted | State::Confirmed => false,
        };
        if is_again { Received::Resend(self.token) } else { Received::Absorbed }
    }

    fn acknowledge(&mut self, now: Instant, is_reliable: bool) -> Received {
        let received = match (self.state, self.role) {
            (State::Completed, _) => {
                // Timer I is zero where nothing comes again.
                let after = if is_reliable { Duration::ZERO } else { ms(T4_MS) };
                (self.state, self.clocks.end) = (State::Confirmed, now + after);
                Received::Acknowledged(self.token)
            }
            // Goes on to whoever answered.
            (State::Accepted, Role::Proxy) => Received::New,
            (State::Accepted, Role::UserAgent) if self.is_owed => Received::Acknowledged(self.token),
            _ => return Received::Absorbed,
        };
        (self.is_owed, self.clocks.repeat) = (false, None);
        self.response.clear();
        received
    }

    fn answered(&mut self, now: Instant, code: u16, is_reliable: bool) {
        if code < 200 {
            self.clocks.end = now + ms(UNANSWERED_MS);
            return;
        }
        // Timers H and L, and J, which is zero where nothing comes again.
        let is_short = is_reliable && !self.is_invite;
        self.clocks.end = now + if is_short { Duration::ZERO } else { ms(T1_MS << 6) };
        let is_success = code < 300;
        self.state = if self.is_invite && is_success { State::Accepted } else { State::Completed };
        // Who answers himself repeats a 2xx, over any transport; a refusal is repeated where it may get lost.
        let is_repeated = if is_success { self.role == Role::UserAgent } else { !is_reliable };
        self.is_owed = self.is_invite && (!is_success || self.role == Role::UserAgent);
        if self.is_invite && is_repeated {
            self.clocks.repeat_from(now);
        }
    }

    /// What is due; whether it goes on.
    fn poll(&mut self, now: Instant, did: &mut Vec<Did>) -> bool {
        if self.clocks.repeats(now) {
            did.push(Did::Sent(self.response.clone()));
        }
        if self.clocks.end > now {
            return true;
        }
        if self.is_owed {
            did.push(Did::TimedOut(named(self.token)));
        }
        false
    }
}
