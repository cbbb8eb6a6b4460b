//! What senders did with what they were granted, and what strangers asked for.

use core::time::Duration;

use sluicegate_bounded::{Cache, Entry, Gauge};
use sluicegate_wire::{Instant, capability::Limits};

const WAYS: usize = 8;
/// Beginning to use so many grants that were asked for anew, while the first of them lasts and with more than 5/4 of N
/// charged above the rate, is asking again as soon as the last was spent. Forged notices make a sender ask again once a
/// second: the level then tends to 15/8 of N less a second of the rate, which stays below unless the rate is below 5/8 of
/// N a second.
const BEGUN_MAX: u8 = 3;
const NANOS: u128 = 1_000_000_000;

/// A sender that proved that it receives at its address.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    sender: u128,
    /// Bytes above the flood's rate; of a grant that was asked for anew all of N, because what a full link took away
    /// does not show here.
    level: u64,
    at: Instant,
    /// Bytes of `level` that were charged before they came.
    prepaid: u64,
    /// The last grant: when, its bytes, and those that came since.
    granted_at: Instant,
    granted: u64,
    since: u64,
    begun: u8,
    begun_at: Instant,
    listed_until: Instant,
}

impl Entry for Account {
    fn is_vacant(&self) -> bool {
        self.at == Instant::ZERO
    }
}

impl Account {
    fn is_of(&self, sender: u128) -> bool {
        self.sender == sender && !self.is_vacant()
    }

    fn drained(&self, now: Instant, rate: u64) -> u64 {
        drained(self.level, self.at, now, rate)
    }

    /// Bytes came.
    pub(super) fn receives(&mut self, now: Instant, rate: u64, bytes: u64) {
        self.level = self.drained(now, rate);
        self.at = now.max(Instant::from_nanos(1));
        self.since = self.since.saturating_add(bytes);
        let prepaid = bytes.min(self.prepaid);
        self.prepaid -= prepaid;
        self.level = self.level.saturating_add(bytes - prepaid);
    }

    /// The first use of what was not renewed but asked for anew. Whether that is a flood.
    pub(super) fn begins(&mut self, now: Instant, rate: u64, granted: Limits, usual: Limits) -> bool {
        self.receives(now, rate, 0);
        if now.since(self.begun_at) >= super::life(usual) {
            (self.begun, self.begun_at) = (0, now);
        }
        self.begun = self.begun.saturating_add(1);
        self.level = self.level.saturating_add(granted.bytes());
        (self.prepaid, self.since, self.granted_at) = (granted.bytes(), 0, now);
        self.granted = granted.bytes();
        self.begun >= BEGUN_MAX && self.level > usual.bytes() + usual.bytes() / 4
    }

    /// A renewal is asked for; what it may get and stay within twice N: N at most, and no less than a quarter of that.
    /// Honest senders ask at half of T, or when between a quarter and half of N is gone; of one that does earlier although
    /// less than a quarter of N came, the rest of a half got lost on the way.
    pub(super) fn renews(&mut self, now: Instant, rate: u64, usual: Limits) -> Option<Limits> {
        self.receives(now, rate, 0);
        let half = self.granted / 2;
        let is_early = now.since(self.granted_at) < super::life(usual) / 2;
        let missing = if is_early && self.since < half / 2 { half - self.since } else { 0 };
        // What was charged in advance and did not come is given back, but not what is missing.
        self.level = self.level.saturating_sub(self.prepaid).saturating_add(missing);
        let left = (2 * usual.bytes()).saturating_sub(self.level);
        let granted = limits_of(left, usual).filter(|granted| granted.bytes() >= usual.bytes() / 4)?;
        (self.prepaid, self.since, self.granted_at, self.granted) = (0, 0, now, granted.bytes());
        Some(granted)
    }

    pub(super) fn list(&mut self, until: Instant) {
        self.listed_until = self.listed_until.max(until);
    }

    fn is_listed(&self, now: Instant) -> bool {
        self.listed_until > now
    }
}

/// A memory of proven senders. Who is not blacklisted makes room first, the one that was silent
/// longest; nobody who has proved nothing gets in.
#[derive(Debug)]
pub(super) struct Senders {
    accounts: Cache<Account, WAYS>,
}

impl Senders {
    pub(super) fn new(senders_max: usize) -> Self {
        Self { accounts: Cache::new("policy_senders", senders_max as u32) }
    }

    fn find(&self, hash: u64, sender: u128) -> Option<&Account> {
        self.accounts.find(hash, |account| account.is_of(sender))
    }

    pub(super) fn is_listed(&self, now: Instant, hash: u64, sender: u128) -> bool {
        self.find(hash, sender).is_some_and(|account| account.is_listed(now))
    }

    pub(super) fn level(&self, now: Instant, hash: u64, sender: u128, rate: u64) -> u64 {
        self.find(hash, sender).map_or(0, |account| account.drained(now, rate))
    }

    /// Whether it used a grant within `window`.
    pub(super) fn has_begun(&self, now: Instant, hash: u64, sender: u128, window: Duration) -> bool {
        let within = |account: &Account| account.begun > 0 && now.since(account.granted_at) < window;
        self.find(hash, sender).is_some_and(within)
    }

    /// The account of a sender that has just proved itself.
    pub(super) fn account(&mut self, now: Instant, hash: u64, sender: u128) -> &mut Account {
        let rank = |account: &Account| (account.listed_until.max(now), account.at);
        let account = self.accounts.place(hash, |account| account.is_of(sender), rank);
        if !account.is_of(sender) {
            *account = Account { sender, at: now.max(Instant::from_nanos(1)), ..Account::default() };
        }
        account
    }

    /// Senders whose account is not empty, and those on the blacklist.
    pub(super) fn gauges(&self, now: Instant, rate: u64) -> [Gauge; 2] {
        let listed = self.accounts.gauge_of(|account| account.is_listed(now));
        let live = self.accounts.gauge_of(|account| account.is_listed(now) || account.drained(now, rate) > 0);
        [live, Gauge { name: "policy_blacklist", ..listed }]
    }
}

/// One address on one path that asked without proof.
#[derive(Debug, Clone, Copy, Default)]
struct Ask {
    name: u64,
    /// Bytes granted above the rate.
    level: u64,
    at: Instant,
}

impl Entry for Ask {
    fn is_vacant(&self) -> bool {
        self.level == 0
    }
}

/// A memory of who asked for what; who asked longest ago makes room.
#[derive(Debug)]
pub(super) struct Asks {
    asks: Cache<Ask, WAYS>,
}

impl Asks {
    pub(super) fn new(asks_max: usize) -> Self {
        Self { asks: Cache::new("policy_asks", asks_max as u32) }
    }

    /// Those who have asked for more than the rate gave back since.
    pub(super) fn gauge(&self, now: Instant, rate: u64) -> Gauge {
        self.asks.gauge_of(|ask| drained(ask.level, ask.at, now, rate) > 0)
    }

    /// What this address on this path, by its hash, is granted next: N, and then half of what is left of a little less
    /// than twice N, which comes back at `rate`. `None` if that is too little for routers to hold a line for.
    pub(super) fn next(&mut self, now: Instant, name: u64, usual: Limits, rate: u64) -> Option<Limits> {
        let ask = self.asks.place(name, |ask| ask.name == name, |ask| ask.at);
        let level = if ask.name == name { drained(ask.level, ask.at, now, rate) } else { 0 };
        // An eighth less, for what comes back until the sender is found out.
        let left = (2 * usual.bytes() - usual.bytes() / 8).saturating_sub(level);
        let granted = if level == 0 { usual } else { limits_of(left / 2, usual)? };
        *ask = Ask { name, level: level + granted.bytes(), at: now };
        Some(granted)
    }
}

/// `bytes` within T, if routers hold a line for that, and N at most.
fn limits_of(bytes: u64, usual: Limits) -> Option<Limits> {
    let kilobytes = u16::try_from(bytes / Limits::KILOBYTE).unwrap_or(u16::MAX).min(usual.kilobytes());
    Limits::new(kilobytes, usual.seconds()).filter(|limits| !limits.is_slower_than(Limits::LEAST))
}

fn drained(level: u64, at: Instant, now: Instant, rate: u64) -> u64 {
    if rate == u64::MAX {
        // No rate is a flood, not even what comes at one instant.
        return 0;
    }
    let drained = u128::from(now.since(at).as_nanos() as u64) * u128::from(rate) / NANOS;
    level.saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
}
