//! A user agent (RFC 3261) without I/O: it registers, calls and is called, and sends again what the network lost.
//!
//! The owner hands in datagrams with [`UserAgent::handle_input`] and the time with [`UserAgent::handle_timeout`]. After
//! every call, until each gives `None`: send what [`UserAgent::poll_output`] gives, and act on
//! [`UserAgent::poll_event`]. Then call again when something came, or at [`UserAgent::poll_timeout`].
//!
//! All requests go to one server, the outbound proxy, and requests are taken from there only.

mod answers;
mod credentials;
mod leg;
mod requests;

pub use credentials::{Challenged, Credentials, Password};
pub use leg::{Content, LegId, Parties};

use alloc::{
    collections::{BTreeMap, VecDeque},
    format,
    string::String,
    vec::Vec,
};
use core::{hash::Hasher as _, net::SocketAddr, time::Duration};

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use sluicegate_wire::Instant;

use self::leg::Leg;
use crate::{
    dialog::DialogError,
    message::{MAGIC_COOKIE, Message, Transport},
    transaction::{ClientTransactions, Due, ServerTransactions, Token},
    write::ViaLine,
};

/// A header field of the owner's: name and value.
pub type Field = (&'static str, Vec<u8>);

/// Challenges answered in a row: one for the realm, and some for nonces that were too old.
pub const CHALLENGES_MAX: u8 = 3;
/// Events that wait for the owner. Requests that find no room are told to come back.
pub const EVENTS_MAX: usize = 1_024;

/// How a user agent reaches its server.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Of all that is sent.
    pub transport: Transport,
    /// Our own address, as Via and Contact name it.
    pub local: SocketAddr,
    /// The server's.
    pub target: SocketAddr,
    /// Requests of ours that are remembered at once, each for up to half a minute after its answer.
    pub requests_max: usize,
    /// The same for requests of the other side.
    pub answers_max: usize,
    /// How long a request waits for its final response, if less than RFC 3261 has it.
    pub patience: Option<Duration>,
    /// Repeats requests other than INVITE each second (RFC 3261 section 17.1.2.1, T2): for the few whose registration many
    /// others wait for, once the way to the registrar is there again.
    pub has_short_t2: bool,
}

/// Why a request of ours got no answer that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing final came in time.
    Silent,
    /// A 2xx was not believed ([`Credentials::believe`]), so nobody acknowledged it.
    Distrusted,
    /// A 2xx makes no dialog.
    Dialog(DialogError),
}

/// What happened. From [`UserAgent::poll_event`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A request of ours got its final response. A 2xx to INVITE is acknowledged, and its dialog stands.
    Answered {
        /// Whose request.
        leg: LegId,
        /// The status code.
        code: u16,
        /// The whole response.
        response: Vec<u8>,
    },
    /// A request of ours failed.
    Failed {
        /// Whose request.
        leg: LegId,
        /// Why.
        failure: Failure,
    },
    /// An INVITE came: [`UserAgent::respond`].
    Invited {
        /// In this leg.
        leg: LegId,
        /// It is not within a call that stands.
        is_new: bool,
        /// The whole request.
        request: Vec<u8>,
    },
    /// A leg is over and forgotten: its BYE came and was answered, or ours was; or a new INVITE was cancelled.
    Ended {
        /// Which.
        leg: LegId,
    },
}

/// A whole message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub peer: SocketAddr,
    /// What.
    pub bytes: Vec<u8>,
}

/// A user agent whose legs prove themselves by `C`.
#[derive(Debug)]
pub struct UserAgent<C> {
    settings: Settings,
    tokens: Tokens,
    clients: ClientTransactions,
    servers: ServerTransactions,
    legs: BTreeMap<LegId, Leg<C>>,
    /// When patience ends, in the order of sending.
    patience_ends: VecDeque<(Instant, LegId, Token)>,
    output: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl<C: Credentials> UserAgent<C> {
    /// `key` is random and secret: tags, branches, Call-IDs and client nonces come from it.
    #[must_use]
    pub fn new(settings: Settings, key: [u8; 16]) -> Self {
        let is_reliable = settings.transport.is_reliable();
        let clients = ClientTransactions::new(settings.requests_max, key).over_reliable(is_reliable);
        Self {
            settings,
            tokens: Tokens { key, count: 0 },
            clients: if settings.has_short_t2 { clients.with_short_t2() } else { clients },
            servers: ServerTransactions::new(settings.answers_max, key).over_reliable(is_reliable),
            legs: BTreeMap::new(),
            patience_ends: VecDeque::new(),
            output: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Our own address.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.settings.local
    }

    /// The server's address.
    #[must_use]
    pub const fn target(&self) -> SocketAddr {
        self.settings.target
    }

    /// How `leg` proves itself; `None` if it does not, or is over.
    pub fn credentials(&mut self, leg: LegId) -> Option<&mut C> {
        self.legs.get_mut(&leg)?.credentials.as_mut()
    }

    /// The request of `leg` that waits for its final response.
    #[must_use]
    pub fn waiting(&self, leg: LegId) -> Option<&[u8]> {
        self.legs.get(&leg)?.under_way.as_ref().map(|under_way| &under_way.bytes[..])
    }

    /// Takes in a datagram, or one message of a stream.
    pub fn handle_input(&mut self, now: Instant, from: SocketAddr, bytes: &[u8]) {
        let Ok(message) = Message::parse(bytes) else { return };
        if message.status().is_some() {
            self.on_response(now, from, &message);
        } else if from == self.settings.target {
            self.on_request(now, &message);
        }
    }

    /// Sends again what is due, and gives up what has waited for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.clients.poll(now) {
            match due {
                Due::Transmit { peer, bytes } => self.output.push_back(Transmit { peer, bytes: bytes.to_vec() }),
                Due::Cancel(token) => self.rang_too_long(now, token),
                Due::TimedOut(token) => self.gave_up(token),
            }
        }
        while let Some(due) = self.servers.poll(now) {
            if let Due::Transmit { peer, bytes } = due {
                self.output.push_back(Transmit { peer, bytes: bytes.to_vec() });
            }
        }
        while let Some((_, leg, token)) = self.patience_ends.pop_front_if(|(at, ..)| *at <= now) {
            let waits = self.legs.get(&leg).and_then(|leg| leg.under_way.as_ref());
            if waits.is_some_and(|under_way| under_way.token == token) {
                self.clients.forget(token);
                self.gave_up(token);
            }
        }
    }

    /// The next message to send.
    pub fn poll_output(&mut self) -> Option<Transmit> {
        self.output.pop_front()
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`UserAgent::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let patience_ends = self.patience_ends.front().map(|(at, ..)| *at);
        [self.clients.poll_timeout(), self.servers.poll_timeout(), patience_ends].into_iter().flatten().min()
    }

    fn transmit(&mut self, bytes: Vec<u8>) {
        self.output.push_back(Transmit { peer: self.settings.target, bytes });
    }

    fn via<'a>(&self, branch: &'a str) -> ViaLine<'a> {
        let Settings { transport, local, .. } = self.settings;
        ViaLine { transport, sent_by: local, branch: branch.as_bytes(), rport: true }
    }

    fn contact(&self, user: &str) -> String {
        format!("<sip:{user}@{}>", self.settings.local)
    }
}

/// Random numbers from a key: SipHash of a counter.
#[derive(Debug)]
struct Tokens {
    key: [u8; 16],
    count: u64,
}

impl Tokens {
    fn number(&mut self) -> u128 {
        self.count += 1;
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u64(self.count);
        hasher.finish128().as_u128()
    }

    /// 128 bits in hexadecimal.
    fn text(&mut self) -> String {
        format!("{:032x}", self.number())
    }

    fn branch(&mut self) -> String {
        format!("{}{:032x}", MAGIC_COOKIE.escape_ascii(), self.number())
    }
}

#[cfg(test)]
mod tests;
