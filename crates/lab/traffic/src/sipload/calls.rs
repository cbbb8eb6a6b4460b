//! Calls under way, from their first INVITE to the answer of their BYE (RFC 3261 sections 13, 15 and 17.1).

use sluicegate_sip::{
    digest::{Algorithm, Answer, Ha1, ha1, strongest},
    message::{HeaderName, Message},
};

use super::{
    counts::Counts,
    lines::{Line, Phone},
    timers::Timers,
    write::{Caller, Dialog, Ends, Mark, Writer, status_of},
};

/// RFC 3261 section 17.1.1.1, in microseconds.
const T1: u64 = 500_000;
const T2: u64 = 4_000_000;
/// Timers B and F.
const GIVE_UP: u64 = 64 * T1;
/// Longest that a call waits which was told to come later, in seconds.
const POSTPONED_MAX_S: u32 = 60;
/// INVITEs of a call, so that who is challenged again and again gives up.
const INVITES_MAX: u8 = 4;

/// How callers behave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Habits {
    /// From the 200 to the BYE, in microseconds; `None`: nobody hangs up.
    pub(super) hold: Option<u64>,
    /// Whether who is refused comes again after the time that the refusal names.
    pub(super) obeys_retry_after: bool,
    /// Whether they answer challenges.
    pub(super) has_password: bool,
    /// Whether nothing is sent twice, since what carries it loses nothing.
    pub(super) is_reliable: bool,
    pub(super) calls_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Free,
    Calling,
    /// A provisional answer came: the INVITE is not sent again.
    Proceeding,
    Talking,
    Ending,
}

/// A slot. What it keeps is the credentials of its INVITE, or its dialog.
#[derive(Debug, Default)]
struct Call {
    turn: u32,
    state: State,
    number: u8,
    line: u32,
    user: u32,
    began: u64,
    ends: Ends,
    kept: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum Due {
    /// A request is to be sent again; the delay until now.
    Again(Mark, u64),
    /// It has waited for its answer for too long.
    GiveUp(Mark),
    HangUp(Mark),
    /// A caller who was refused begins anew.
    Anew,
}

/// A user's name, password, and what of it was hashed.
struct User {
    name: String,
    password: String,
    hashed: [Option<Ha1>; 2],
}

/// What the loop around has to do for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    Nothing,
    /// It is over, and so is its line if nobody else has it.
    End(u32),
}

/// All calls of one worker.
pub(super) struct Calls {
    slots: Vec<Call>,
    free: Vec<u32>,
    timers: Timers<Due>,
    users: Vec<User>,
    next_user: u32,
    writer: Writer,
    habits: Habits,
    pub(super) counts: Counts,
    scratch: Vec<u8>,
}

impl Calls {
    pub(super) fn new(writer: Writer, users: &[(String, String)], habits: Habits, counts: Counts) -> Self {
        let user = |(name, password): &(String, String)| User {
            name: name.clone(),
            password: password.clone(),
            hashed: [const { None }; 2],
        };
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            timers: Timers::new(),
            users: users.iter().map(user).collect(),
            next_user: 0,
            writer,
            habits,
            counts,
            scratch: Vec::new(),
        }
    }

    /// Calls that are not over.
    pub(super) fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The slot that the next call will have; `None` if there are as many as may be.
    pub(super) fn next_slot(&mut self) -> Option<u32> {
        if self.free.is_empty() && self.slots.len() < self.habits.calls_max {
            self.free.push(u32::try_from(self.slots.len()).ok()?);
            self.slots.push(Call::default());
        }
        self.free.last().copied()
    }

    /// Begins the next call over this line. Over connections a line has one user.
    pub(super) fn begin(&mut self, now: u64, (place, phone): (u32, &mut Phone)) {
        let Some(slot) = self.next_slot() else { return };
        self.free.pop();
        let users = u32::try_from(self.users.len()).unwrap_or(u32::MAX).max(1);
        let user = if self.habits.is_reliable { place % users } else { self.next_user % users };
        self.next_user = self.next_user.wrapping_add(1);
        let call = &mut self.slots[slot as usize];
        (call.turn, call.state, call.number) = (call.turn.wrapping_add(1), State::Calling, 1);
        (call.line, call.user, call.began) = (place, user, now);
        call.kept.clear();
        let mark = Mark { slot, turn: call.turn, number: 1 };
        self.send(mark, phone);
        self.wait(now, mark);
    }

    fn wait(&mut self, now: u64, mark: Mark) {
        if !self.habits.is_reliable {
            self.timers.begin(now, T1, Due::Again(mark, T1));
        }
        self.timers.begin(now, GIVE_UP, Due::GiveUp(mark));
    }

    fn of(&self, mark: Mark) -> Option<&Call> {
        let call = self.slots.get(mark.slot as usize)?;
        (call.state != State::Free && call.turn == mark.turn && call.number == mark.number).then_some(call)
    }

    /// Sends the request that a call waits for.
    fn send(&mut self, mark: Mark, phone: &mut Phone) {
        let call = &self.slots[mark.slot as usize];
        let caller = Caller { user: name_of(&self.users, call.user), phone };
        self.scratch.clear();
        if call.state == State::Ending {
            let dialog = Dialog::kept(&call.kept, call.ends);
            self.writer.in_dialog(&mut self.scratch, ("BYE", mark), mark.number, caller, dialog);
        } else {
            self.writer.invite(&mut self.scratch, mark, caller, &call.kept);
        }
        phone.say(&self.scratch);
    }

    /// The next thing that is due.
    pub(super) fn due(&mut self, now: u64) -> Option<Next> {
        loop {
            let due = self.timers.due(now)?;
            let (Due::Again(mark, _) | Due::GiveUp(mark) | Due::HangUp(mark)) = due else { return Some(Next::Anew) };
            if let Some(call) = self.of(mark) {
                return Some(Next::Of(call.line, Later(due)));
            }
        }
    }

    /// Does what was due.
    pub(super) fn take_due(&mut self, now: u64, Later(due): Later, phone: &mut Phone) -> Wants {
        match due {
            Due::Anew => {}
            Due::Again(mark, delay) => {
                let state = self.slots[mark.slot as usize].state;
                if matches!(state, State::Calling | State::Ending) {
                    self.counts.at(now).retransmissions += 1;
                    self.send(mark, phone);
                    let next = if state == State::Ending { (delay * 2).min(T2) } else { delay * 2 };
                    self.timers.begin(now, next, Due::Again(mark, next));
                }
            }
            // What rings may ring on.
            Due::GiveUp(mark) if self.slots[mark.slot as usize].state == State::Proceeding => {}
            Due::GiveUp(mark) if self.slots[mark.slot as usize].state == State::Talking => {}
            Due::GiveUp(mark) => {
                self.counts.at(now).timeouts += 1;
                return self.end(mark.slot);
            }
            Due::HangUp(mark) => self.hang_up(now, mark.slot, phone),
        }
        Wants::Nothing
    }

    fn hang_up(&mut self, now: u64, slot: u32, phone: &mut Phone) {
        let call = &mut self.slots[slot as usize];
        (call.state, call.number) = (State::Ending, call.number.wrapping_add(1));
        let mark = Mark { slot, turn: call.turn, number: call.number };
        self.send(mark, phone);
        self.wait(now, mark);
    }

    fn end(&mut self, slot: u32) -> Wants {
        let call = &mut self.slots[slot as usize];
        call.state = State::Free;
        self.free.push(slot);
        Wants::End(call.line)
    }

    /// A connection is over, and every call on it.
    pub(super) fn break_off(&mut self, now: u64, place: u32) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].state != State::Free && self.slots[slot].line == place {
                self.counts.at(now).broken += 1;
                self.end(slot as u32);
            }
        }
    }

    /// Takes an answer that came over this line.
    pub(super) fn hear(&mut self, now: u64, answer: &[u8], phone: &mut Phone) -> Wants {
        let (Some(status), Some(mark)) = (status_of(answer), self.writer.mark_of(answer)) else {
            return Wants::Nothing;
        };
        let call = self.slots.get_mut(mark.slot as usize).filter(|call| call.turn == mark.turn);
        let state = call.as_ref().map_or(State::Free, |call| call.state);
        let is_current = call.as_ref().is_some_and(|call| call.number == mark.number);
        match (state, status) {
            (State::Calling, 100..200) if is_current => {
                self.slots[mark.slot as usize].state = State::Proceeding;
                Wants::Nothing
            }
            (_, 100..200) => Wants::Nothing,
            (State::Ending, _) if is_current => {
                let counts = self.counts.at(now);
                counts.completed += u64::from(status < 300);
                counts.timeouts += u64::from(status >= 300);
                self.end(mark.slot)
            }
            _ => self.hear_final(now, (status, mark), answer, (state, is_current), phone),
        }
    }

    /// The final answer of an INVITE, perhaps once more; or, once a call is over, of its BYE.
    fn hear_final(
        &mut self,
        now: u64,
        (status, mark): (u16, Mark),
        answer: &[u8],
        (state, is_current): (State, bool),
        phone: &mut Phone,
    ) -> Wants {
        let Ok(answer) = Message::parse(answer) else { return Wants::Nothing };
        if !answer.cseq().is_ok_and(|cseq| cseq.method.as_bytes() == b"INVITE") {
            return Wants::Nothing;
        }
        let is_new = is_current && matches!(state, State::Calling | State::Proceeding);
        self.acknowledge((status, mark), &answer, phone);
        match status {
            200..300 if is_new => self.establish(now, mark.slot, &answer, phone),
            401 | 407 if is_new && self.habits.has_password && mark.number < INVITES_MAX => {
                self.prove(now, (status, mark), &answer, phone)
            }
            300.. if is_new => self.refuse(now, (status, mark), &answer),
            _ => Wants::Nothing,
        }
    }

    fn acknowledge(&mut self, (status, mark): (u16, Mark), answer: &Message<'_>, phone: &mut Phone) {
        let user = self.slots.get(mark.slot as usize).map_or(0, |call| call.user);
        let caller = Caller { user: name_of(&self.users, user), phone };
        self.scratch.clear();
        if status >= 300 {
            let to = answer.header(HeaderName::To).unwrap_or_default();
            self.writer.ack_of_refusal(&mut self.scratch, mark, caller, to);
        } else {
            let mut kept = Vec::new();
            let Some(ends) = Dialog::keep(answer, &mut kept) else { return };
            // The ACK to a success is a transaction of its own.
            let own = Mark { number: mark.number | 0x80, ..mark };
            self.writer.in_dialog(&mut self.scratch, ("ACK", own), mark.number, caller, Dialog::kept(&kept, ends));
        }
        phone.say(&self.scratch);
    }

    fn establish(&mut self, now: u64, slot: u32, answer: &Message<'_>, phone: &mut Phone) -> Wants {
        let call = &mut self.slots[slot as usize];
        let Some(ends) = Dialog::keep(answer, &mut call.kept) else { return self.end(slot) };
        (call.ends, call.state) = (ends, State::Talking);
        let mark = Mark { slot, turn: call.turn, number: call.number };
        self.counts.establish(call.began, now);
        match self.habits.hold {
            Some(0) => self.hang_up(now, slot, phone),
            Some(hold) => self.timers.begin(now, hold, Due::HangUp(mark)),
            None => {}
        }
        Wants::Nothing
    }

    fn prove(&mut self, now: u64, (status, mark): (u16, Mark), answer: &Message<'_>, phone: &mut Phone) -> Wants {
        let (asks, answers) = if status == 401 {
            (HeaderName::WwwAuthenticate, "Authorization: ")
        } else {
            (HeaderName::ProxyAuthenticate, "Proxy-Authorization: ")
        };
        let call = &mut self.slots[mark.slot as usize];
        let challenge = strongest(answer.headers_raw(asks));
        let (Some(challenge), Some(user)) = (challenge, self.users.get_mut(call.user as usize)) else {
            return self.refuse(now, (status, mark), answer);
        };
        let place = usize::from(challenge.algorithm == Algorithm::Sha256);
        let realm = self.writer.realm();
        let ha1 = user.hashed[place].get_or_insert_with(|| ha1(challenge.algorithm, &user.name, realm, &user.password));
        let uri = self.writer.uri();
        call.kept.clear();
        call.kept.extend_from_slice(answers.as_bytes());
        let (username, method, cnonce) = (user.name.as_str(), &b"INVITE"[..], "c0ffee");
        Answer { challenge: &challenge, username, ha1, method, uri: uri.as_bytes(), cnonce, nc: 1 }
            .write(&mut call.kept);
        call.kept.extend_from_slice(b"\r\n");
        (call.number, call.state) = (call.number + 1, State::Calling);
        self.counts.at(now).challenged += 1;
        let mark = Mark { number: mark.number + 1, ..mark };
        self.send(mark, phone);
        self.wait(now, mark);
        Wants::Nothing
    }

    fn refuse(&mut self, now: u64, (status, mark): (u16, Mark), answer: &Message<'_>) -> Wants {
        let counts = self.counts.at(now);
        *counts.refused.entry(status).or_insert(0) += 1;
        if self.habits.obeys_retry_after
            && let Some(seconds) = retry_after(answer)
        {
            counts.postponed += 1;
            self.timers.begin(now, u64::from(seconds) * 1_000_000, Due::Anew);
        }
        self.end(mark.slot)
    }

    /// Hangs up every call that is established; those that are not are forgotten.
    pub(super) fn hang_up_all(&mut self, now: u64, lines: &mut [Option<Line>]) {
        for slot in 0..self.slots.len() {
            let (state, place) = (self.slots[slot].state, self.slots[slot].line);
            if let (State::Talking, Some(Some(line))) = (state, lines.get_mut(place as usize)) {
                self.hang_up(now, slot as u32, &mut line.phone);
            }
        }
    }
}

/// Something that is due.
pub(super) enum Next {
    /// A caller who was refused comes again.
    Anew,
    /// For a call on this line.
    Of(u32, Later),
}

/// What that is.
pub(super) struct Later(Due);

fn name_of(users: &[User], user: u32) -> &str {
    users.get(user as usize).map_or("nobody", |user| user.name.as_str())
}

/// Seconds of a Retry-After, without what may stand behind them.
fn retry_after(answer: &Message<'_>) -> Option<u32> {
    let value = answer.header(HeaderName::RetryAfter)?;
    let digits = value.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(value.len());
    let seconds: u32 = std::str::from_utf8(value.get(..digits)?).ok()?.parse().ok()?;
    Some(seconds.min(POSTPONED_MAX_S))
}
