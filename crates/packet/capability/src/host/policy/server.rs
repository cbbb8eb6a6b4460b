use alloc::{boxed::Box, vec};
use core::{net::IpAddr, time::Duration};

use siphasher::sip::SipHasher24;
use sluicegate_bounded::Gauge;
use sluicegate_wire::{
    Instant,
    capability::{Limits, PathId},
};
use zeroize::Zeroizing;

use super::{Decision, Misdeed, Policy, Received, Request, Unexpected, life};

mod senders;

use self::senders::{Asks, Senders};

const WAYS: usize = 4;

/// Whether a sender that used a grant gets another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Renew {
    /// Not before [`ServerConfig::blacklist_for`] is over: one grant for each sender in that time.
    Never,
    /// As long as it stays within [`ServerConfig::flood_bytes_per_s`]; who does not is blacklisted.
    #[default]
    WithinRate,
}

/// What a [`ServerPolicy`] allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerConfig {
    /// N and T of every grant.
    pub limits: Limits,
    /// Requests without a capability that are answered in a second; when more come, every path gets an equal share.
    pub requests_per_s: u32,
    /// How many of the most recent path identifiers name a path: more tell more senders apart, and more of them may
    /// be forged.
    pub path_depth: usize,
    /// Paths that are told apart at a time; all others share one share.
    pub paths_max: usize,
    /// Whether a sender that used a grant gets another.
    pub renew: Renew,
    /// A sender that spends its capabilities faster than this, in bytes a second, floods; twice N at once is no flood.
    pub flood_bytes_per_s: u64,
    /// How long a blacklisted sender gets nothing.
    pub blacklist_for: Duration,
    /// Senders of which is remembered what they used, and as many that have only asked.
    pub senders_max: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            // The paper's first grant, 32 kB in 10 s (TVA V-E).
            limits: Limits::new(32, 10).unwrap_or_else(|| unreachable!("32 kB and 10 s are possible")),
            requests_per_s: 1_000,
            path_depth: 2,
            paths_max: 4_096,
            renew: Renew::WithinRate,
            // 512 kbit/s: half of what one attacker of the paper sends. A client that only acknowledges stays below it
            // up to some 10 Mbit/s of download.
            flood_bytes_per_s: 64_000,
            blacklist_for: Duration::from_secs(60),
            senders_max: 16_384,
        }
    }
}

/// The policy of a public server (TVA III-C): grants everybody a default, serves paths fairly when requests are many,
/// stops renewing for senders that flood, and blacklists them for a while.
///
/// A sender is an address (IPv6: a /64): client ids are its own choice. What it did is counted from packets that prove
/// that it received what this host granted, so nobody can put another onto the blacklist by forging its address; what
/// was only asked for is counted for each address and path, so that forged requests cost only those their grant who
/// came the same way.
pub struct ServerPolicy {
    config: ServerConfig,
    key: Zeroizing<[u8; 16]>,
    second: u64,
    demand: u32,
    demand_before: u32,
    paths: u32,
    paths_before: u32,
    shares: Box<[Share]>,
    others: Share,
    senders: Senders,
    asks: Asks,
}

#[derive(Debug, Clone, Copy, Default)]
struct Share {
    path: u64,
    second: u64,
    served: u32,
    used: bool,
}

impl ServerPolicy {
    /// A policy whose tables are hashed under a secret key.
    #[must_use]
    pub fn new(config: ServerConfig, key: [u8; 16]) -> Self {
        Self {
            key: Zeroizing::new(key),
            second: 0,
            demand: 0,
            demand_before: 0,
            paths: 0,
            paths_before: 0,
            shares: vec![Share::default(); config.paths_max.max(WAYS).next_multiple_of(WAYS)].into_boxed_slice(),
            others: Share::default(),
            senders: Senders::new(config.senders_max),
            asks: Asks::new(config.senders_max),
            config,
        }
    }

    /// Whether this sender gets nothing at present.
    #[must_use]
    pub fn is_blacklisted(&self, now: Instant, remote: IpAddr) -> bool {
        let sender = sender(remote);
        self.senders.is_listed(now, self.hash(&sender.to_be_bytes()), sender)
    }

    /// How full each table is. Costs as much as the tables have places.
    #[must_use]
    pub fn gauges(&self, now: Instant) -> [Gauge; 3] {
        let rate = self.config.flood_bytes_per_s;
        let [senders, listed] = self.senders.gauges(now, rate);
        [senders, listed, self.asks.gauge(now, rate)]
    }

    /// A sender that proves in the packet itself who it is asks for more.
    fn renewal(&mut self, now: Instant, remote: IpAddr) -> Decision {
        if self.config.renew == Renew::Never {
            return Decision::Refuse;
        }
        let (sender, limits) = (sender(remote), self.config.limits);
        let hash = self.hash(&sender.to_be_bytes());
        let account = self.senders.account(now, hash, sender);
        match account.renews(now, self.config.flood_bytes_per_s, limits) {
            Some(granted) => Decision::Grant(granted),
            None => {
                account.list(now + self.config.blacklist_for);
                Decision::Refuse
            }
        }
    }

    /// Somebody asks who may have forged the address: one address on one path gets N, then half of it, and so on, less
    /// than twice N in all until some of that is over.
    fn first(&mut self, now: Instant, remote: IpAddr, path: u64) -> Decision {
        let (sender, limits, mut rate) = (sender(remote), self.config.limits, self.config.flood_bytes_per_s);
        let hash = self.hash(&sender.to_be_bytes());
        let level = self.senders.level(now, hash, sender, rate);
        if self.config.renew == Renew::Never {
            if self.senders.has_begun(now, hash, sender, self.config.blacklist_for) {
                return Decision::Refuse;
            }
            rate = limits.bytes() / self.config.blacklist_for.as_secs().max(1);
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&hash.to_be_bytes());
        bytes[8..].copy_from_slice(&path.to_be_bytes());
        let name = self.hash(&bytes);
        match self.asks.next(now, name, limits, rate) {
            Some(granted) if level + granted.bytes() <= 2 * limits.bytes() => Decision::Grant(granted),
            _ => Decision::Silent,
        }
    }

    /// Whether this path still has a share of this second's answers.
    fn serves(&mut self, now: Instant, path: u64) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        if second != self.second {
            let next = second == self.second + 1;
            self.demand_before = if next { self.demand } else { 0 };
            self.paths_before = if next { self.paths } else { 0 };
            (self.second, self.demand, self.paths) = (second, 0, 0);
        }
        self.demand = self.demand.saturating_add(1);
        let capacity = self.config.requests_per_s.max(1);
        let is_loaded = self.demand > capacity || self.demand_before > capacity;
        let set = self.hash(&path.to_be_bytes()) as usize % (self.shares.len() / WAYS) * WAYS;
        let ways = &mut self.shares[set..set + WAYS];
        let held = ways.iter().position(|share| share.used && share.path == path);
        let way = held.or_else(|| ways.iter().position(|share| !share.used || share.second + 1 < second));
        let share = match way {
            Some(way) => &mut ways[way],
            None => &mut self.others,
        };
        if share.second != second || held.is_none() && way.is_some() {
            self.paths += 1;
            *share = Share { path, second, served: 0, used: true };
        }
        let fair = (capacity / self.paths.max(self.paths_before).max(1)).max(1);
        let served = !is_loaded || share.served < fair;
        share.served += u32::from(served);
        served
    }

    fn path(&self, request: &Request) -> u64 {
        let depth = self.config.path_depth.min(4);
        request.path.iter().take(depth).fold(0, |path, PathId(id)| path << 16 | u64::from(*id))
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.key).hash(bytes)
    }
}

impl Policy for ServerPolicy {
    fn decide(&mut self, now: Instant, request: &Request) -> Decision {
        if request.answers_mine {
            return Decision::Grant(self.config.limits);
        }
        if self.is_blacklisted(now, request.remote) {
            return if request.proven { Decision::Refuse } else { Decision::Silent };
        }
        if request.renewal && request.proven {
            // Asked for again before the answer came, it is one renewal.
            return if request.answering { Decision::Again } else { self.renewal(now, request.remote) };
        }
        let path = self.path(request);
        if let Some(same) = request.repeats {
            return if self.serves(now, path) { Decision::Grant(same) } else { Decision::Silent };
        }
        if self.serves(now, path) { self.first(now, request.remote, path) } else { Decision::Silent }
    }

    fn received(&mut self, now: Instant, received: &Received) {
        let (sender, limits) = (sender(received.remote), self.config.limits);
        let hash = self.hash(&sender.to_be_bytes());
        let account = self.senders.account(now, hash, sender);
        let rate = self.config.flood_bytes_per_s;
        if let Some(granted) = received.asked_anew
            && account.begins(now, rate, granted, limits)
        {
            account.list(now + self.config.blacklist_for);
        }
        account.receives(now, rate, received.bytes);
    }

    fn unexpected(&mut self, now: Instant, event: &Unexpected) -> bool {
        if event.proven && event.what == Misdeed::Overrun {
            let sender = sender(event.remote);
            let hash = self.hash(&sender.to_be_bytes());
            self.senders.account(now, hash, sender).list(now + self.config.blacklist_for);
        }
        !self.is_blacklisted(now, event.remote)
    }
}

/// What one host can choose among is one sender: an IPv4 address, or an IPv6 network of 64 bits.
fn sender(remote: IpAddr) -> u128 {
    match remote {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits() >> 64 << 64,
    }
}

#[cfg(test)]
mod tests;
