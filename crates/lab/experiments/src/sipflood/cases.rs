//! The floods.

use sluicegate_site::Prefix;
use sluicegate_traffic::{
    attack::{Manner, SipKind},
    stream::Over,
};

use super::{
    recorded::CALLS,
    site::{BOTNET, Exchange, INSIDER},
};

/// A flood of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// In a sentence.
    pub(super) about: &'static str,
    pub(super) by: Attackers,
    /// Share of honest calls that have to be set up, and ended by a BYE that is answered.
    pub(super) least: f64,
    /// Whether some answer of success is an attacker's due.
    pub(super) may_succeed: bool,
    /// Messages of the attackers that the exchange may get; `None` where that is their due.
    pub(super) reaches: Option<Reach>,
    /// What it is played over.
    pub(super) over: &'static [Over],
    /// What the short form plays it over.
    pub(super) brief: &'static [Over],
}

/// What may get through while a flood lasts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    pub(super) at_once: f64,
    pub(super) per_s: f64,
}

/// Who sends what.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attackers {
    /// Nobody.
    Nobody,
    /// Strangers with addresses of their own, with as much of each kind.
    Strangers(&'static [SipKind]),
    /// Somebody with an account, who calls this exchange.
    Account(SipKind, Exchange),
    /// Somebody with an account, and what proved its calls: of calls that are over, or of some that are not.
    Caller(&'static [SipKind], Calls),
    /// Whoever makes itself out to be others.
    Spoofers,
    /// Strangers with connections.
    Crowd(Crowd),
}

/// Strangers who open connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crowd {
    pub(super) manner: Manner,
    /// Where they are.
    pub(super) sources: Prefix,
    /// How many they want to have at one time.
    pub(super) connections: u16,
    /// What has to come of it to the front end, a second: connections, or messages of those who send some.
    pub(super) least_per_s: f64,
}

/// Calls of an attacker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    Over,
    Open,
}

/// Of all calls; and of those that a flood of BYEs must not touch.
const MOST: f64 = 0.99;
const ALL_BUT_ONE_IN_A_THOUSAND: f64 = 0.999;
/// INVITE, ACK and BYE of a call, each of them perhaps once more.
const MADE: f64 = 6.0;
/// What an attacker's calls may say beside what made them, 20 requests a second and two seconds' worth at once; and their BYEs
/// as often as timers repeat them.
const IN_DIALOG: Reach = Reach { at_once: CALLS as f64 * (MADE + 40.0), per_s: CALLS as f64 * 20.0 };
const REPEATED: Reach = Reach { at_once: CALLS as f64 * (MADE + 11.0), per_s: 0.0 };
const NOTHING: Reach = Reach { at_once: 0.0, per_s: 0.0 };

/// More connections than strangers may have together; what has to be opened of them each second, and of those that are cut
/// or end by themselves; requests of those who read no answers.
const CROWD: u16 = 3_000;
const OPENED_PER_S: f64 = 500.0;
const CUT_PER_S: f64 = 200.0;
const SHAKEN_PER_S: f64 = 50.0;
const ANSWERED_PER_S: f64 = 1_000.0;

impl Case {
    const fn new(name: &'static str, about: &'static str, by: Attackers) -> Self {
        Self { name, about, by, least: MOST, may_succeed: false, reaches: Some(NOTHING), over: &Over::ALL, brief: &[] }
    }

    /// Strangers at many addresses who want so many connections.
    const fn of_crowd(name: &'static str, about: &'static str, manner: Manner, connections: u16, least: f64) -> Self {
        let crowd = Crowd { manner, sources: BOTNET, connections, least_per_s: least };
        Self::new(name, about, Attackers::Crowd(crowd)).over(&STREAMS)
    }

    /// Somebody with an account, who calls this exchange.
    const fn of_account(name: &'static str, about: &'static str, kind: SipKind, exchange: Exchange) -> Self {
        let case = Self::new(name, about, Attackers::Account(kind, exchange));
        Self { reaches: None, may_succeed: true, ..case }
    }

    const fn unharmed(self) -> Self {
        Self { least: ALL_BUT_ONE_IN_A_THOUSAND, ..self }
    }

    const fn reaching(self, most: Reach) -> Self {
        Self { reaches: Some(most), may_succeed: true, ..self }
    }

    const fn answered(self) -> Self {
        Self { may_succeed: true, ..self }
    }

    const fn over(self, over: &'static [Over]) -> Self {
        Self { over, ..self }
    }

    const fn in_short(self, brief: &'static [Over]) -> Self {
        Self { brief, ..self }
    }

    /// The account that attacks over this, if it takes one.
    pub(super) fn account(&self, over: Over) -> Option<String> {
        let has_one = matches!(self.by, Attackers::Account(..) | Caller(..));
        has_one.then(|| format!("{MALLORY}-{}-{}", self.name, over.name()))
    }

    /// Whether what it leaves takes minutes to end.
    pub(super) const fn lasts(&self) -> bool {
        matches!(self.by, Attackers::Account(..))
    }

    /// Whether a single call of a thousand that fails is one too many.
    pub(super) const fn is_strict(&self) -> bool {
        self.least > MOST
    }
}

/// What the names of attackers' accounts begin with.
pub(super) const MALLORY: &str = "mallory";
const STREAMS: [Over; 2] = [Tcp, Tls];

use Attackers::{Caller, Nobody, Spoofers, Strangers};
use Over::{Tcp, Tls, Udp};

pub(super) const CASES: [Case; 27] = [
    Case::new("calm", "nobody attacks", Nobody),
    Case::new("bye", "BYEs for calls that there are not", Strangers(&[SipKind::Bye]))
        .unharmed()
        .in_short(&[Udp, Tcp, Tls]),
    Case::new(
        "bye_old_cookie",
        "BYEs with all that proved calls that are over",
        Caller(&[SipKind::Again, SipKind::Replay], Calls::Over),
    )
    .unharmed()
    .reaching(REPEATED)
    .in_short(&[Udp]),
    Case::new("in_dialog", "requests in open calls of one user", Caller(&[SipKind::InDialog], Calls::Open))
        .reaching(IN_DIALOG),
    Case::new("ack", "ACKs to nothing", Strangers(&[SipKind::Ack])),
    Case::new("cancel", "CANCELs for requests that there are not", Strangers(&[SipKind::Cancel])),
    Case::new("response", "answers to nothing, and to what others asked", Strangers(&[SipKind::Response])),
    Case::new("invite", "INVITEs without credentials", Strangers(&[SipKind::Invite])),
    Case::new("register", "REGISTERs without credentials", Strangers(&[SipKind::Register])),
    Case::new("options", "OPTIONS", Strangers(&[SipKind::Options])).answered(),
    Case::new("keep_alive", "line breaks", Strangers(&[SipKind::KeepAlive])),
    Case::new("garbage", "what is SIP for a while", Strangers(&[SipKind::Garbage])).over(&[Udp]),
    Case::new(
        "guessing",
        "wrong passwords of the users who call",
        Strangers(&[SipKind::BadDigest, SipKind::BadRegister]),
    )
    .in_short(&[Udp, Tcp]),
    Case::of_account("register_user", "one user registers without end", SipKind::AccountRegister, Exchange::Office),
    Case::of_account("unacknowledged", "one user acknowledges no call", SipKind::Account, Exchange::Office),
    Case::of_account("ringing", "one user calls where it rings for ever", SipKind::Account, Exchange::Ringing),
    Case::of_account("unanswered", "one user calls where nobody answers", SipKind::Account, Exchange::Silent)
        .in_short(&[Udp]),
    Case::new("spoofed", "requests with the addresses of one network", Spoofers).over(&[Udp]).in_short(&[Udp]),
    Case::of_crowd("silent", "connections that say nothing", Manner::Silent, CROWD, OPENED_PER_S).in_short(&[Tcp]),
    Case::of_crowd("slow", "requests of a byte now and then", Manner::Slow, CROWD, OPENED_PER_S),
    Case::of_crowd("half", "long requests that stop before their end", Manner::Half, CROWD, OPENED_PER_S)
        .in_short(&[Tcp]),
    Case::of_crowd("no_sip", "connections full of what is no SIP", Manner::Garbage, 200, CUT_PER_S),
    Case::of_crowd("endless", "bodies of four gigabytes", Manner::Endless, 200, CUT_PER_S).in_short(&[Tcp]),
    Case::of_crowd("deaf", "requests whose answers nobody reads", Manner::Deaf, 200, ANSWERED_PER_S),
    Case::new(
        "one_source",
        "as many connections as one address can open",
        Attackers::Crowd(Crowd {
            manner: Manner::Silent,
            sources: INSIDER,
            connections: CROWD,
            least_per_s: OPENED_PER_S,
        }),
    )
    .over(&STREAMS)
    .in_short(&[Tls]),
    Case::of_crowd("begun", "TLS handshakes that never end", Manner::Begun, CROWD, OPENED_PER_S)
        .over(&[Tls])
        .in_short(&[Tls]),
    Case::of_crowd("handshakes", "whole TLS handshakes, and nothing behind them", Manner::Handshakes, 64, SHAKEN_PER_S)
        .over(&[Tls])
        .in_short(&[Tls]),
];
