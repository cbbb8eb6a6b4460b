//! Transactions: what a proved client was answered, for its retransmissions, and what we asked ourselves. Bounded by their
//! tables, and by user.

use std::{collections::HashMap, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_sip::{
    message::{Message, Via},
    transaction::{ClientTransactions, Due, Received, Reply, Role, ServerTransactions, Token},
    write::Response,
};
use sluicegate_wire::Instant;

use super::{
    admission::Admitted,
    answer::{Fields, answer_flow},
    context::Context,
    ladder::Asked,
    settings::{Settings, TRANSACTION_LIFE},
    watch,
};
use crate::{
    metrics::{Count, Outcome},
    transmits::{Flow, PackedFlow},
};

/// Names a transaction: tokens are unique within one listener's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) listener: u8,
    pub(super) token: Token,
}

/// A transaction whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimedOut {
    /// Our answer was not acknowledged, or there was none.
    Server(Id),
    /// Our request was not answered.
    Client(Id),
    /// Our INVITE rang for too long, and is to be cancelled.
    Ringing(Id),
}

/// Both tables of one listener.
#[derive(Debug)]
struct Listener {
    server: ServerTransactions<PackedFlow>,
    client: ClientTransactions<PackedFlow>,
}

/// The transactions of a shard. A step that is not given these remembers no request.
#[derive(Debug)]
pub(super) struct Transactions {
    listeners: Vec<Listener>,
    users: Users,
}

impl Transactions {
    pub(super) fn new(settings: &Settings, key: [u8; 16]) -> Self {
        let tables = &settings.tables;
        let listeners = settings.listening.iter().map(|listening| {
            let is_reliable = listening.transport.is_reliable();
            Listener {
                server: ServerTransactions::new(tables.transactions_max, key).over_reliable(is_reliable),
                client: ClientTransactions::new(tables.transactions_max, key).over_reliable(is_reliable),
            }
        });
        Self { listeners: listeners.collect(), users: Users::new(tables.transactions_per_user_max, TRANSACTION_LIFE) }
    }

    fn at(&mut self, listener: u8) -> Option<&mut Listener> {
        self.listeners.get_mut(usize::from(listener))
    }

    /// Counts one more transaction of this user; `false` if there are as many as there may be.
    pub(super) fn charge(&mut self, now: Instant, user: &str) -> bool {
        self.users.charge(now, user)
    }

    /// What a request is to those that came before.
    pub(super) fn receive(&mut self, cx: &Context, asked: Asked<'_>) -> Received {
        let Some(tables) = self.at(asked.flow.listener) else { return Received::Absorbed };
        tables.server.receive(cx.now.instant, asked.message, asked.essentials)
    }

    /// The transaction of the INVITE that a CANCEL, or the ACK of a refusal, is for.
    pub(super) fn invite_of(&mut self, asked: Asked<'_>) -> Option<Id> {
        let listener = asked.flow.listener;
        let token = self.at(listener)?.server.invite_of(asked.essentials)?;
        Some(Id { listener, token })
    }

    /// Whether there is no INVITE of this branch and sender, as far as that can be told by the topmost Via alone.
    pub(super) fn has_no_invite(&self, listener: u8, via: &Via<'_>) -> bool {
        let tables = self.listeners.get(usize::from(listener));
        tables.is_some_and(|tables| tables.server.invite_at(via) == Some(None))
    }

    /// Opens a transaction for a request. `None`, after a 503 without one, if the table is full.
    pub(super) fn open(&mut self, cx: &mut Context, asked: Asked<'_>, role: Role) -> Option<Id> {
        let listener = asked.flow.listener;
        let to = answer_flow(asked.flow, asked.message);
        match self.at(listener)?.server.open(cx.now.instant, asked.message, asked.essentials, to.into(), role) {
            Ok(token) => Some(Id { listener, token }),
            Err(_) => {
                cx.metrics.one(Count::TableFull);
                cx.unavailable_once(asked);
                None
            }
        }
    }

    /// Sends the answer in `scratch` in its transaction; `false` if that has ended or has its final answer already.
    pub(super) fn respond(&mut self, cx: &mut Context, id: Id, code: u16) -> bool {
        let Some(tables) = self.at(id.listener) else { return false };
        if !tables.server.respond(cx.now.instant, id.token, code, &cx.scratch) {
            return false;
        }
        if let Some(to) = self.client(id) {
            cx.out.push(to, &cx.scratch);
        }
        true
    }

    /// A request will not be answered.
    pub(super) fn forget(&mut self, id: Id) {
        if let Some(tables) = self.at(id.listener) {
            tables.server.forget(id.token);
        }
    }

    /// Sends the last answer in a transaction again.
    pub(super) fn respond_again(&self, cx: &mut Context, id: Id) {
        if let Some((bytes, to)) = self.response(id).zip(self.client(id)) {
            cx.out.push(to, bytes);
        }
    }

    /// Whoever is to answer a request goes on with it.
    pub(super) fn wait(&mut self, now: Instant, id: Id) {
        if let Some(tables) = self.at(id.listener) {
            tables.server.wait(now, id.token);
        }
    }

    /// 100, so that the client stops repeating its request.
    pub(super) fn send_trying(&mut self, cx: &mut Context, id: Id, asked: Asked<'_>) {
        Response::to(asked.message, 100).source(asked.flow.peer).begin(&mut cx.scratch).finish();
        self.respond(cx, id, 100);
    }

    /// Finally refuses an authenticated request, and remembers that for its retransmissions.
    pub(super) fn refuse(
        &mut self,
        cx: &mut Context,
        asked: Asked<'_>,
        (outcome, code): (Outcome, u16),
        more: Fields<'_>,
    ) {
        cx.metrics.request(asked.kind, outcome);
        let Some(id) = self.open(cx, asked, Role::UserAgent) else { return };
        cx.write_answer(asked.flow, asked.message, code, more);
        self.respond(cx, id, code);
    }

    /// Finally refuses what `user` has proved to have sent, and leaves a note why.
    pub(super) fn deny(
        &mut self,
        cx: &mut Context,
        asked: Asked<'_>,
        user: &str,
        outcome: Outcome,
        why: impl Into<String>,
    ) {
        cx.decided(asked, user, (outcome, 403), [why]);
        self.refuse(cx, asked, (outcome, 403), &[]);
    }

    /// Finally refuses what policy has let in, and leaves a note why.
    pub(super) fn refuse_admitted(
        &mut self,
        cx: &mut Context,
        asked: Asked<'_>,
        admitted: &Admitted,
        verdict: (Outcome, u16),
        why: &str,
    ) {
        watch::refused(cx, asked, admitted, verdict, why);
        self.refuse(cx, asked, verdict, &[]);
    }

    /// Sends a request of ours and repeats it until it is answered. `None` if the table is full.
    pub(super) fn start(&mut self, cx: &mut Context, to: Flow, request: &[u8]) -> Option<Id> {
        let message = Message::parse(request).ok()?;
        let token = self.at(to.listener)?.client.start(cx.now.instant, &message, to.into()).ok()?;
        cx.out.push(to, request);
        Some(Id { listener: to.listener, token })
    }

    /// Our INVITE is no longer wanted: whether a CANCEL is to be sent now.
    pub(super) fn cancel(&mut self, now: Instant, sent: Id) -> bool {
        self.at(sent.listener).is_some_and(|tables| tables.client.cancel(now, sent.token))
    }

    /// A request of ours, and where it went: until it has been answered and was released.
    pub(super) fn request(&self, sent: Id) -> Option<(&[u8], Flow)> {
        let (bytes, to) = self.listeners.get(usize::from(sent.listener))?.client.request(sent.token)?;
        Some((bytes, to.into()))
    }

    /// A request of ours went elsewhere, and is not sent there again. What comes of it all the same has to be ended.
    pub(super) fn stop_repeating(&mut self, sent: Id) {
        if let Some(tables) = self.at(sent.listener) {
            tables.client.stop_repeating(sent.token);
        }
    }

    /// Nothing more is wanted of a request of ours, once it has its final answer.
    pub(super) fn release(&mut self, sent: Id) {
        if let Some(tables) = self.at(sent.listener) {
            tables.client.release(sent.token);
        }
    }

    /// What a client was answered last, while that may have to be sent again.
    pub(super) fn response(&self, id: Id) -> Option<&[u8]> {
        Some(self.listeners.get(usize::from(id.listener))?.server.response(id.token)?.0)
    }

    /// Where the answers to a client go.
    pub(super) fn client(&self, id: Id) -> Option<Flow> {
        self.listeners.get(usize::from(id.listener))?.server.peer(id.token).map(Flow::from)
    }

    /// Takes a response to a request of ours, and acknowledges it where that is not left to whoever gets it. The request,
    /// if somebody is to get it.
    pub(super) fn take_response(&mut self, cx: &mut Context, flow: Flow, response: &Message<'_>) -> Option<Id> {
        let listener = flow.listener;
        let client = &mut self.at(listener)?.client;
        let reply = client.receive(cx.now.instant, response, |asked| flow.may_answer(asked.into()));
        if let Reply::Ack(token) | Reply::DeliverAndAck(token) = reply
            && !cx.is_undelivered
            && let Some((ack, to)) = client.request(token)
        {
            cx.out.push(to.into(), ack);
        }
        match reply {
            Reply::Deliver(token) | Reply::DeliverAndAck(token) => return Some(Id { listener, token }),
            Reply::Unmatched => cx.metrics.one(Count::ResponsesUnmatched),
            Reply::Absorbed | Reply::Ack(_) => {}
        }
        None
    }

    /// Repeats what is due. The next transaction that is over; called until there is none.
    pub(super) fn poll(&mut self, cx: &mut Context) -> Option<TimedOut> {
        for (tables, listener) in self.listeners.iter_mut().zip(0..) {
            let mut repeat = |to: PackedFlow, bytes: &[u8]| {
                cx.metrics.one(Count::Retransmitted);
                cx.out.push(to.into(), bytes);
            };
            while let Some(due) = tables.server.poll(cx.now.instant) {
                match due {
                    Due::Transmit { peer, bytes } => repeat(peer, bytes),
                    Due::TimedOut(token) | Due::Cancel(token) => {
                        return Some(TimedOut::Server(Id { listener, token }));
                    }
                }
            }
            while let Some(due) = tables.client.poll(cx.now.instant) {
                match due {
                    Due::Transmit { peer, bytes } => repeat(peer, bytes),
                    Due::TimedOut(token) => return Some(TimedOut::Client(Id { listener, token })),
                    Due::Cancel(token) => return Some(TimedOut::Ringing(Id { listener, token })),
                }
            }
        }
        None
    }

    /// When a timer is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.listeners.iter().flat_map(|l| [l.server.poll_timeout(), l.client.poll_timeout()]).flatten().min()
    }

    /// Slots of server transactions, and of client transactions, of all listeners.
    pub(super) fn gauges(&self) -> [Gauge; 2] {
        let sum = |name, of: fn(&Listener) -> Gauge| {
            let add = |sum: Gauge, next: Gauge| Gauge { used: sum.used + next.used, max: sum.max + next.max, ..sum };
            self.listeners.iter().map(of).fold(Gauge { name, used: 0, max: 0 }, add)
        };
        [sum("server_transactions", |l| l.server.gauge()), sum("client_transactions", |l| l.client.gauge())]
    }
}

/// Places of a table taken by each user within the last one to two lives of an entry: an upper bound of how many the user
/// holds, without having to be told when each ends.
#[derive(Debug)]
pub(super) struct Users {
    current: HashMap<String, usize>,
    previous: HashMap<String, usize>,
    since: Instant,
    max: usize,
    life: Duration,
}

impl Users {
    pub(super) fn new(max: usize, life: Duration) -> Self {
        Self { current: HashMap::new(), previous: HashMap::new(), since: Instant::ZERO, max, life }
    }

    pub(super) fn charge(&mut self, now: Instant, user: &str) -> bool {
        let age: Duration = now.since(self.since);
        if age >= self.life {
            self.previous = std::mem::take(&mut self.current);
            if age >= self.life * 2 {
                self.previous.clear();
            }
            self.since = now;
        }
        let before = self.previous.get(user).copied().unwrap_or(0);
        let count = self.current.entry(user.to_owned()).or_default();
        if before + *count >= self.max {
            return false;
        }
        *count += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_transactions_and_gets_them_back_after_their_life() {
        let mut users = Users::new(3, TRANSACTION_LIFE);
        let now = Instant::from_secs(100);
        assert!((0..3).all(|_| users.charge(now, "alice")));
        assert!(!users.charge(now, "alice"));
        assert!(users.charge(now, "bob"));
        assert!(!users.charge(now + TRANSACTION_LIFE, "alice"));
        assert!(users.charge(now + TRANSACTION_LIFE * 3, "alice"));
    }
}
