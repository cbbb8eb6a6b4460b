//! The floods.

use sluicegate_traffic::attack::SipKind;

use super::{recorded::CALLS, site::Exchange};

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
    /// Messages of the attackers that the exchange may get, a second; `None` where that is their due.
    pub(super) reaches: Option<f64>,
    /// Whether it is played in the short form.
    pub(super) is_brief: bool,
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
/// What each of an attacker's calls may say, with what it may say at once; and its BYE as often as timers repeat it.
const IN_DIALOG_PER_S: f64 = CALLS as f64 * 20.0 * 1.5;
const REPEATED_PER_S: f64 = CALLS as f64 * 11.0 / 4.0;

impl Case {
    const fn new(name: &'static str, about: &'static str, by: Attackers) -> Self {
        Self { name, about, by, least: MOST, may_succeed: false, reaches: Some(0.0), is_brief: false }
    }

    /// Somebody with an account, who calls this exchange.
    const fn of_account(name: &'static str, about: &'static str, kind: SipKind, exchange: Exchange) -> Self {
        let case = Self::new(name, about, Attackers::Account(kind, exchange));
        Self { reaches: None, may_succeed: true, ..case }
    }

    const fn unharmed(self) -> Self {
        Self { least: ALL_BUT_ONE_IN_A_THOUSAND, ..self }
    }

    const fn reaching(self, per_s: f64) -> Self {
        Self { reaches: Some(per_s), may_succeed: true, ..self }
    }

    const fn answered(self) -> Self {
        Self { may_succeed: true, ..self }
    }

    const fn in_short(self) -> Self {
        Self { is_brief: true, ..self }
    }
}

use Attackers::{Caller, Nobody, Spoofers, Strangers};

/// In the order in which they are played.
pub(super) const CASES: [Case; 18] = [
    Case::new("calm", "nobody attacks", Nobody).in_short(),
    Case::new("bye", "BYEs for calls that there are not", Strangers(&[SipKind::Bye])).unharmed().in_short(),
    Case::new(
        "bye_old_cookie",
        "BYEs with all that proved calls that are over",
        Caller(&[SipKind::Again, SipKind::Replay], Calls::Over),
    )
    .unharmed()
    .reaching(REPEATED_PER_S)
    .in_short(),
    Case::new("in_dialog", "requests in open calls of one user", Caller(&[SipKind::InDialog], Calls::Open))
        .reaching(IN_DIALOG_PER_S),
    Case::new("ack", "ACKs to nothing", Strangers(&[SipKind::Ack])),
    Case::new("cancel", "CANCELs for requests that there are not", Strangers(&[SipKind::Cancel])),
    Case::new("response", "answers to nothing, and to what others asked", Strangers(&[SipKind::Response])).in_short(),
    Case::new("invite", "INVITEs without credentials", Strangers(&[SipKind::Invite])),
    Case::new("register", "REGISTERs without credentials", Strangers(&[SipKind::Register])),
    Case::new("options", "OPTIONS", Strangers(&[SipKind::Options])).answered(),
    Case::new("keep_alive", "line breaks", Strangers(&[SipKind::KeepAlive])),
    Case::new("garbage", "what is SIP for a while", Strangers(&[SipKind::Garbage])),
    Case::new(
        "guessing",
        "wrong passwords of the users who call",
        Strangers(&[SipKind::BadDigest, SipKind::BadRegister]),
    )
    .in_short(),
    Case::of_account("register_user", "one user registers without end", SipKind::AccountRegister, Exchange::Office),
    Case::of_account("unacknowledged", "one user acknowledges no call", SipKind::Account, Exchange::Office),
    Case::of_account("ringing", "one user calls where it rings for ever", SipKind::Account, Exchange::Ringing),
    Case::of_account("unanswered", "one user calls where nobody answers", SipKind::Account, Exchange::Silent)
        .in_short(),
    Case::new("spoofed", "requests with the addresses of one network", Spoofers).in_short(),
];
