//! RFC 3261 sections 17.1.1 and 17.1.2, RFC 6026 section 7.2, and timer C of section 16.8.

use sluicegate_sip::{
    message::Method,
    transaction::{ClientTransactions, Due, Reply},
    write::{Response, cancel_for},
};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Calling,
    Proceeding,
    /// Cancelled, or given up, with the final response owed.
    Cancelled,
    /// INVITE: a 2xx came.
    Accepted,
    Completed,
    /// INVITE: its user was told that there is none, and hears of a 2xx all the same.
    GivenUp,
}

#[derive(Debug)]
struct Known {
    token: Token,
    is_invite: bool,
    peer: SocketAddr,
    request: Vec<u8>,
    /// What is sent now: the request, or its ACK. `None` once its user has released it.
    sends: Option<Vec<u8>>,
    state: State,
    clocks: Clocks,
}

struct Play {
    now: Instant,
    table: ClientTransactions,
    t2: Duration,
    is_reliable: bool,
    known: Vec<Known>,
    /// All requests that were ever sent.
    sent: Vec<Vec<u8>>,
}

const CODES: [u16; 8] = [100, 180, 183, 200, 202, 302, 486, 603];

pub(super) fn play(kind: u8, steps: impl Iterator<Item = [u8; STEP_LEN]>) {
    let table = ClientTransactions::new(TABLE_MAX, [9; 16]).over_reliable(kind & 1 != 0);
    let (table, t2) = if kind & 2 == 0 { (table, T2_MS) } else { (table.with_short_t2(), 2 * T1_MS) };
    let is_reliable = kind & 1 != 0;
    let mut play =
        Play { now: Instant::from_secs(9), table, t2: ms(t2), is_reliable, known: Vec::new(), sent: Vec::new() };
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
        match action % 8 {
            0 => self.start(which & 1 == 0, usize::from(which >> 1 & 1)),
            1 => self.start_cancel(which),
            2..=4 => self.respond(which, CODES[usize::from(how) % CODES.len()], more),
            5 if more & 1 == 0 => self.cancel(which),
            5 => self.release(which),
            6 if more & 7 == 0 => self.forget(which),
            6 => self.now = self.table.poll_timeout().unwrap_or(self.now).max(self.now),
            _ => self.now = self.now + wait(step),
        }
    }

    fn start(&mut self, is_invite: bool, peer: usize) {
        let (method, number) = (if is_invite { "INVITE" } else { "BYE" }, self.sent.len());
        self.begin(request(method, &format!("z9hG4bK{number}"), ("c", 7)), PEERS[peer]);
    }

    /// Shares its branch with the INVITE.
    fn start_cancel(&mut self, which: u8) {
        let Some(request) = at(&self.sent, which) else { return };
        let mut cancel = Vec::new();
        if cancel_for(&parse(request), &mut cancel).is_ok() && !self.sent.contains(&cancel) {
            self.begin(cancel, PEERS[0]);
        }
    }

    fn begin(&mut self, request: Vec<u8>, peer: SocketAddr) {
        let is_invite = parse(&request).method() == Some(Method::Invite);
        let started = self.table.start(self.now, &parse(&request), peer);
        assert_eq!(started.is_ok(), self.known.len() < TABLE_MAX, "{started:?}");
        let Ok(token) = started else { return };
        let longest = if is_invite { ms(T1_MS << 5) } else { self.t2 };
        let mut clocks = Clocks::new(self.now, longest, ms(T1_MS << 6));
        if !self.is_reliable {
            clocks.repeat_from(self.now);
        }
        self.sent.push(request.clone());
        let (sends, state) = (Some(request.clone()), State::Calling);
        self.known.push(Known { token, is_invite, peer, request, sends, state, clocks });
    }

    /// A response to some request, old or new, from where it went or from elsewhere.
    fn respond(&mut self, which: u8, code: u16, more: u8) {
        let Some(request) = at(&self.sent, which).cloned() else { return };
        let mut text = Vec::new();
        let tag: &[u8] = if more & 1 == 0 { b"one" } else { b"other" };
        Response::to(&parse(&request), code).to_tag(tag).begin(&mut text).finish();
        let from = PEERS[usize::from(more >> 1 & 1)];
        let reply = self.table.receive(self.now, &parse(&text), |peer| peer == from);
        let (now, of) = (self.now, (self.t2, self.is_reliable));
        let known = self.known.iter_mut().find(|known| known.request == request && known.peer == from);
        let expected = known.map_or(Reply::Unmatched, |known| known.receive(now, code, of));
        assert_eq!(reply, expected, "{code} to {}", String::from_utf8_lossy(&request));
        if let Reply::DeliverAndAck(token) | Reply::Ack(token) = reply {
            let (ack, to) = self.table.request(token).expect("an ACK");
            assert_eq!(to, from);
            check_ack(&request, ack);
            let known = self.known.iter_mut().find(|known| known.token == token).expect("its transaction");
            known.sends = Some(ack.to_vec());
        }
    }

    fn cancel(&mut self, which: u8) {
        let Some(known) = at_mut(&mut self.known, which) else { return };
        let is_due = known.is_invite && known.state == State::Proceeding;
        assert_eq!(self.table.cancel(self.now, known.token), is_due);
        if is_due {
            (known.state, known.clocks.end) = (State::Cancelled, self.now + ms(T1_MS << 6));
        }
    }

    /// Its user needs the request no more. What is over, and cannot come again, is then nothing any more.
    fn release(&mut self, which: u8) {
        let is_reliable = self.is_reliable;
        let Some(known) = at_mut(&mut self.known, which) else { return };
        let (token, is_over) = (known.token, known.state == State::Completed && !known.is_invite);
        self.table.release(token);
        if is_over || known.state == State::Accepted {
            known.sends = None;
        }
        assert_eq!(self.table.request(token), known.sends.as_deref().map(|sends| (sends, known.peer)));
        if is_over && is_reliable {
            self.known.retain(|known| known.token != token);
        }
    }

    fn forget(&mut self, which: u8) {
        if self.known.is_empty() {
            return;
        }
        let known = self.known.remove(usize::from(which) % self.known.len());
        self.table.forget(known.token);
        assert_eq!(self.table.request(known.token), None);
        assert!(!self.table.cancel(self.now, known.token));
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
    /// What a response from the right place is.
    fn receive(&mut self, now: Instant, code: u16, (t2, is_reliable): (Duration, bool)) -> Reply {
        let token = self.token;
        // Timer D is zero where nothing comes again.
        let refused_ms = if is_reliable { 0 } else { T1_MS << 6 };
        match (self.state, code / 100) {
            (State::Calling | State::Proceeding, 1) => {
                self.clocks.every = t2;
                if self.is_invite {
                    self.clocks.repeat = None;
                    if self.state == State::Calling || code != 100 {
                        self.clocks.end = now + ms(TIMER_C_MS);
                    }
                }
                self.state = State::Proceeding;
                Reply::Deliver(token)
            }
            (State::Calling | State::Proceeding, _) if !self.is_invite => {
                self.end(now, State::Completed, T4_MS);
                Reply::Deliver(token)
            }
            (State::Calling | State::Proceeding | State::Cancelled, 2) => {
                self.end(now, State::Accepted, T1_MS << 6);
                Reply::Deliver(token)
            }
            (State::Accepted | State::GivenUp, 2) => Reply::Deliver(token),
            (State::Calling | State::Proceeding | State::Cancelled, 3..) => {
                self.end(now, State::Completed, refused_ms);
                Reply::DeliverAndAck(token)
            }
            // Nobody hears of it any more, but it is to stop.
            (State::GivenUp, 3..) => {
                self.end(now, State::Completed, refused_ms);
                Reply::Ack(token)
            }
            (State::Completed, 3..) if self.is_invite => Reply::Ack(token),
            _ => Reply::Absorbed,
        }
    }

    fn end(&mut self, now: Instant, state: State, after_ms: u64) {
        (self.state, self.clocks.repeat, self.clocks.end) = (state, None, now + ms(after_ms));
    }

    /// What is due; whether it goes on.
    fn poll(&mut self, now: Instant, did: &mut Vec<Did>) -> bool {
        if self.clocks.repeats(now) {
            did.push(Did::Sent(self.sends.clone().unwrap_or_default()));
        }
        if self.clocks.end > now {
            return true;
        }
        match self.state {
            State::Proceeding if self.is_invite => {
                did.push(Did::Cancel(named(self.token)));
                self.end(now, State::Cancelled, T1_MS << 6);
                true
            }
            State::Calling | State::Cancelled if self.is_invite => {
                did.push(Did::TimedOut(named(self.token)));
                self.end(now, State::GivenUp, T1_MS << 6);
                true
            }
            State::Calling | State::Proceeding | State::Cancelled => {
                did.push(Did::TimedOut(named(self.token)));
                false
            }
            State::Accepted | State::Completed | State::GivenUp => false,
        }
    }
}

/// RFC 3261 section 17.1.1.3.
fn check_ack(invite: &[u8], ack: &[u8]) {
    let (invite, ack) = (parse(invite), parse(ack));
    let (asked, fields) = (invite.essentials().expect("an INVITE"), ack.essentials().expect("an ACK"));
    assert_eq!((ack.method(), ack.request_uri()), (Some(Method::Ack), invite.request_uri()));
    assert_eq!((fields.via.branch, fields.call_id, fields.from), (asked.via.branch, asked.call_id, asked.from));
    assert_eq!((fields.cseq.number, fields.cseq.method), (asked.cseq.number, Method::Ack));
    assert!(fields.to.tag.is_some());
}

fn at<T>(all: &[T], which: u8) -> Option<&T> {
    all.get(usize::from(which).checked_rem(all.len())?)
}

fn at_mut<T>(all: &mut [T], which: u8) -> Option<&mut T> {
    let place = usize::from(which).checked_rem(all.len())?;
    all.get_mut(place)
}
