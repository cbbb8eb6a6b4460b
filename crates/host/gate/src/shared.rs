//! What the tasks of the control side have in common.

use crate::{
    config::Config,
    error::ControlError,
    feed::FeedSlot,
    ledger::{IssuerId, Ledger, Listed, Record},
    packets::{Command, Commander},
    published::Published,
    state::{Books, Saved},
};
use sluicegate_api::Enforcement;
use sluicegate_feed::FeedSip;
use sluicegate_grant::{GrantId, mac::SessionKeys, relay::RelayKeys};
use sluicegate_pinhole as pinhole;
use sluicegate_policy::{Outbound, ServiceDefault, ServiceMode};
use sluicegate_wire::Instant;
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Answers for a feed that may wait while it is busy or away. What does not fit is told by the next `Active` instead.
pub(crate) const WAITING_MAX: usize = 4096;

/// The control side's state.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) commander: Commander,
    pub(crate) books: Books,
    pub(crate) published: Arc<Published>,
    pub(crate) saved: Mutex<Saved>,
    pub(crate) feeds: Vec<FeedSlot>,
    pub(crate) backend: (&'static str, String),
    pub(crate) started: Instant,
    pub(crate) observing: AtomicBool,
    /// The standing pinhole of each service.
    pub(crate) standing: Mutex<BTreeMap<String, Standing>>,
    /// Held while the list of services changes, so that ledger and packet thread agree.
    pub(crate) services: tokio::sync::Mutex<()>,
}

impl Shared {
    pub(crate) fn mode(&self) -> Enforcement {
        if self.observing.load(Relaxed) { Enforcement::Observe } else { Enforcement::Enforce }
    }

    /// Ends grants; the packet thread reports each on the events channel.
    pub(crate) async fn revoke(&self, ids: Vec<GrantId>) -> Result<usize, ControlError> {
        if ids.is_empty() {
            return Ok(0);
        }
        self.commander.call(|answer| Command::Revoke { ids, answer }).await
    }

    /// Changes the list of services as `change` says of what there is, or says why not. Then the ledger and the packet thread
    /// have it, or neither does. Feeds that change it at the same time do so one after the other, so that none undoes what
    /// another did.
    pub(crate) async fn change_services<T>(
        &self,
        change: impl FnOnce(&Ledger) -> Result<(T, Option<Record>), String>,
    ) -> Result<T, String> {
        let _changing = self.services.lock().await;
        let (outcome, record, services) = {
            let ledger = self.books.read();
            let (outcome, record) = change(&ledger)?;
            let Some(record) = record else { return Ok(outcome) };
            let mut changed = ledger.without_grants();
            changed.apply(record.clone());
            (outcome, record, changed.services().map(service_spec).collect())
        };
        let answer = self.commander.call(|answer| Command::Services { services, answer }).await;
        answer.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        if let Record::ServiceForgotten(name) = &record {
            self.set_standing(name, None);
        }
        self.books.write(&[record]);
        Ok(outcome)
    }

    /// Notes the frontends behind one feed and how they prove what they relay to a service, and gives those of all feeds
    /// with the salt of this one. Keys that are known keep their salt, so that a repeated announcement interrupts nothing.
    pub(crate) fn standing_frontends(
        &self,
        service: &str,
        issuer: IssuerId,
        (peers, sip): (Vec<IpAddr>, &FeedSip),
    ) -> Result<(Vec<IpAddr>, Vec<pinhole::Relay>, u64), String> {
        let mut fresh = [0; 8];
        getrandom::fill(&mut fresh).map_err(|error| format!("the system gave no random bytes: {error}"))?;
        let mut standing = self.lock_standing();
        let named = &mut standing.entry(service.to_owned()).or_default().frontends;
        let known = named.get(&issuer).filter(|known| known.keys == sip.keys);
        let salt = known.map_or(u64::from_be_bytes(fresh), |known| known.salt);
        named.insert(issuer, Named { peers, keys: sip.keys.clone(), shards: sip.shards, salt });
        let mut all: Vec<IpAddr> = named.values().flat_map(|named| named.peers.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(pinhole::PEERS_MAX);
        let relay = |named: &Named| {
            let keys = RelayKeys::derive(named.keys.as_ref()?, named.salt);
            Some(pinhole::Relay { peers: named.peers.clone(), keys, shards: named.shards })
        };
        let relays = named.values().filter_map(relay).take(pinhole::PEERS_MAX).collect();
        Ok((all, relays, salt))
    }

    /// Notes where the frontends reach a service's SIP port, or that they do not any more.
    pub(crate) fn set_standing(&self, service: &str, at: Option<SocketAddr>) {
        let mut standing = self.lock_standing();
        match at {
            Some(at) => standing.entry(service.to_owned()).or_default().at = Some(at),
            None => drop(standing.remove(service)),
        }
    }

    /// Where the frontends reach a service's SIP port.
    pub(crate) fn standing(&self, service: &str) -> Option<SocketAddr> {
        self.lock_standing().get(service)?.at
    }

    fn lock_standing(&self) -> MutexGuard<'_, BTreeMap<String, Standing>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The standing pinhole of a service.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// Where the frontends reach it.
    at: Option<SocketAddr>,
    /// The frontends, by their feed.
    frontends: BTreeMap<IssuerId, Named>,
}

/// A frontend that relays SIP. Its keys are in memory only.
#[derive(Debug)]
struct Named {
    peers: Vec<IpAddr>,
    keys: Option<SessionKeys>,
    shards: u8,
    salt: u64,
}

/// A service as the packet thread knows it.
pub(crate) fn service_spec(listed: &Listed) -> pinhole::Service {
    pinhole::Service {
        id: listed.number,
        mode: match listed.service.mode {
            ServiceMode::Nat => pinhole::ServiceMode::Nat,
            ServiceMode::Filter => pinhole::ServiceMode::Filter,
        },
        address: listed.service.address,
        outbound_all: listed.service.outbound == Outbound::All,
        open: listed.service.default == ServiceDefault::Open,
    }
}
