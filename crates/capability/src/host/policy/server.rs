use alloc::{boxed::Box, vec};
use core::{hash::Hasher as _, net::IpAddr, time::Duration};

use siphasher::sip::SipHasher24;
use sluicegate_wire::{
    Instant,
    capability::{ClientId, Limits, PathId},
};
use zeroize::Zeroizing;

use super::{Decision, Flow, Misdeed, Policy, Request, Unexpected};

const WAYS: usize = 4;

/// What a [`ServerPolicy`] allows.
#[derive(Debug, Clone, Copy)]
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
    /// A sender that spends its capabilities faster than this, in bytes a second, is blacklisted; 0: no limit.
    pub flood_bytes_per_s: u64,
    /// Unexpected packets of a proven sender until it is blacklisted.
    pub misdeeds_max: u8,
    /// How long a blacklisted sender gets nothing.
    pub blacklist_for: Duration,
    /// Senders on the blacklist; the one that ends first makes room.
    pub blacklist_max: usize,
    /// Whether a sender that used one grant gets another. If not, asking again puts it onto the blacklist.
    pub renews: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            // The paper's first grant, 32 kB in 10 s (TVA V-E).
            limits: Limits::new(32, 10).unwrap_or_else(|| unreachable!("32 kB and 10 s are possible")),
            requests_per_s: 1_000,
            path_depth: 2,
            paths_max: 4_096,
            flood_bytes_per_s: 0,
            misdeeds_max: 3,
            blacklist_for: Duration::from_secs(60),
            blacklist_max: 4_096,
            renews: true,
        }
    }
}

/// The policy of a public server (TVA III-C): grants everybody a default, serves paths fairly when requests are many,
/// and blacklists senders that misbehave, whose capabilities then soon end.
///
/// Only a sender that has proved that it receives at its address can get onto the blacklist: nobody can put another
/// there by forging its address.
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
    blacklist: Box<[Option<Listed>]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Share {
    path: u64,
    second: u64,
    served: u32,
    used: bool,
}

#[derive(Debug, Clone, Copy)]
struct Listed {
    remote: IpAddr,
    client_id: ClientId,
    misdeeds: u8,
    until: Instant,
}

impl ServerPolicy {
    /// A policy whose tables are hashed under a secret key.
    #[must_use]
    pub fn new(config: ServerConfig, key: [u8; 16]) -> Self {
        let rounded = |max: usize| max.max(WAYS).next_multiple_of(WAYS);
        Self {
            key: Zeroizing::new(key),
            second: 0,
            demand: 0,
            demand_before: 0,
            paths: 0,
            paths_before: 0,
            shares: vec![Share::default(); rounded(config.paths_max)].into_boxed_slice(),
            others: Share::default(),
            blacklist: vec![None; rounded(config.blacklist_max)].into_boxed_slice(),
            config,
        }
    }

    /// Whether this sender gets nothing at present.
    #[must_use]
    pub fn is_blacklisted(&self, now: Instant, remote: IpAddr, client_id: ClientId) -> bool {
        let set = self.blacklist_set(remote, client_id);
        let listed = |held: &Listed| (held.remote, held.client_id) == (remote, client_id) && held.until > now;
        self.blacklist[set..set + WAYS].iter().flatten().any(|held| listed(held) && held.misdeeds == u8::MAX)
    }

    /// Puts a sender onto the blacklist.
    pub fn blacklist(&mut self, now: Instant, remote: IpAddr, client_id: ClientId) {
        self.note(now, remote, client_id, true);
    }

    /// Senders on the blacklist or on their way there, and how many may be.
    #[must_use]
    pub fn blacklisted(&self, now: Instant) -> (usize, usize) {
        (self.blacklist.iter().flatten().filter(|held| held.until > now).count(), self.blacklist.len())
    }

    /// Counts a misdeed; enough of them, or a grave one, list the sender.
    fn note(&mut self, now: Instant, remote: IpAddr, client_id: ClientId, grave: bool) {
        let set = self.blacklist_set(remote, client_id);
        let ways = &mut self.blacklist[set..set + WAYS];
        let same = |held: &Listed| (held.remote, held.client_id) == (remote, client_id) && held.until > now;
        let held = ways.iter().position(|way| way.as_ref().is_some_and(same));
        let way = held.unwrap_or_else(|| {
            let end = |way: &usize| ways[*way].map_or(Instant::ZERO, |held| held.until);
            (0..WAYS).min_by_key(end).unwrap_or(0)
        });
        let before = held.and(ways[way]).map_or(0, |held| held.misdeeds);
        let misdeeds = before.saturating_add(1);
        let misdeeds = if grave || misdeeds >= self.config.misdeeds_max { u8::MAX } else { misdeeds };
        ways[way] = Some(Listed { remote, client_id, misdeeds, until: now + self.config.blacklist_for });
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

    fn blacklist_set(&self, remote: IpAddr, client_id: ClientId) -> usize {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&crate::host::table::address_bytes(remote));
        bytes[16..].copy_from_slice(&client_id.0.to_be_bytes());
        self.hash(&bytes) as usize % (self.blacklist.len() / WAYS) * WAYS
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(bytes);
        hasher.finish()
    }
}

impl Policy for ServerPolicy {
    fn client_id(&mut self, _flow: &Flow) -> Option<ClientId> {
        None
    }

    fn decide(&mut self, now: Instant, request: &Request) -> Decision {
        if self.is_blacklisted(now, request.remote, request.client_id) {
            return if request.proven { Decision::Refuse } else { Decision::Silent };
        }
        let again = request.renewal || request.usage.is_some() && request.proven;
        if again && !self.config.renews {
            if request.proven {
                self.blacklist(now, request.remote, request.client_id);
            }
            return Decision::Refuse;
        }
        if !request.renewal {
            let path = self.path(request);
            let served = request.answers_mine || self.serves(now, path);
            return if served { Decision::Grant(self.config.limits) } else { Decision::Silent };
        }
        let floods = request.usage.is_some_and(|usage| {
            let millis = usage.over.as_millis().max(250) as u64;
            self.config.flood_bytes_per_s > 0 && usage.bytes * 1_000 / millis > self.config.flood_bytes_per_s
        });
        if floods && request.proven {
            self.blacklist(now, request.remote, request.client_id);
        }
        if floods { Decision::Refuse } else { Decision::Grant(self.config.limits) }
    }

    fn unexpected(&mut self, now: Instant, event: &Unexpected) -> bool {
        if event.proven {
            self.note(now, event.remote, event.client_id, event.what == Misdeed::Overrun);
        }
        !self.is_blacklisted(now, event.remote, event.client_id)
    }
}

#[cfg(test)]
mod tests;
