//! Which SIP servers do not answer now, so that requests begin with their backups.
//!
//! One request without an answer says nothing about a server: it may be of a kind that the server drops. So it counts for its
//! own user alone, and for everybody only with that of a second user; and for nobody, if the server answered anybody
//! meanwhile. Answers count whose branch is ours and which came from where the request went, and ICMP errors, which anybody
//! can forge, do not count.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use sluicegate_bounded::Gauge;
use sluicegate_wire::Instant;

/// Servers that are remembered.
const OUTAGES_MAX: usize = 256;
/// Users by whom a server is out for everybody.
const WITNESSES: usize = 2;
/// For how long a server is asked last. Then one request tries it.
pub(crate) const OUT: Duration = Duration::from_secs(30);
/// The longest that a server can say itself, by `Retry-After`.
const OUT_MAX: Duration = Duration::from_secs(120);
/// How long all others wait for the request that tries it.
const TRIAL: Duration = Duration::from_secs(5);

/// What all shards know of servers that do not answer, and of services that no gate reaches.
#[derive(Debug, Default)]
pub struct Outages {
    servers: Mutex<HashMap<String, Known>>,
    cut_off: RwLock<BTreeSet<String>>,
}

#[derive(Debug)]
struct Known {
    /// When it answered last.
    answered: Instant,
    until: Instant,
    /// Who went without an answer since.
    witnesses: Vec<String>,
}

impl Known {
    /// Whether it is out for this user, or for everybody.
    fn is_out(&self, user: Option<&str>) -> bool {
        self.witnesses.len() >= WITNESSES || user.is_some_and(|user| self.witnesses.iter().any(|known| known == user))
    }
}

impl Outages {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on no gate reaches these services, and one reaches each other: calls to these are refused at once, so that
    /// callers go on to another frontend.
    pub fn cut_off(&self, services: BTreeSet<String>) {
        *self.cut_off.write().unwrap_or_else(PoisonError::into_inner) = services;
    }

    pub(crate) fn is_cut_off(&self, service: &str) -> bool {
        self.cut_off.read().unwrap_or_else(PoisonError::into_inner).contains(service)
    }

    /// Whether requests of this user should try others first. Who is told `false` of a server that was out tries it for all.
    pub(crate) fn is_out(&self, now: Instant, service: &str, user: &str) -> bool {
        let mut table = self.lock();
        let Some(known) = table.get_mut(service).filter(|known| known.is_out(Some(user))) else { return false };
        if now < known.until {
            return true;
        }
        known.until = now + TRIAL;
        false
    }

    /// A server answered somebody.
    pub(crate) fn answered(&self, now: Instant, service: &str) {
        if let Some(known) = known(&mut self.lock(), now, service) {
            known.answered = now;
            known.witnesses.clear();
        }
    }

    /// A request of this user had no answer, which was sent at `since`; or the server itself says to stay away, so long.
    pub(crate) fn failed(&self, now: Instant, service: &str, (user, since): (&str, Instant), secs: Option<u32>) {
        let mut table = self.lock();
        let Some(known) = known(&mut table, now, service).filter(|known| known.answered <= since) else { return };
        if known.witnesses.len() < WITNESSES && !known.witnesses.iter().any(|known| known == user) {
            known.witnesses.push(user.to_owned());
        }
        let lasts = secs.map_or(OUT, |secs| Duration::from_secs(secs.into()).min(OUT_MAX));
        known.until = known.until.max(now + lasts);
    }

    /// The servers that are out for everybody now.
    #[must_use]
    pub fn out(&self, now: Instant) -> Vec<String> {
        let table = self.lock();
        let out = table.iter().filter(|(_, known)| now < known.until && known.is_out(None));
        let mut names: Vec<_> = out.map(|(service, _)| service.clone()).collect();
        names.sort();
        names
    }

    /// How many servers are remembered.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge::of("outages", self.lock().len(), OUTAGES_MAX)
    }
}

/// What is known of a server. Those that have long answered make room; `None`: as many are out as are remembered.
fn known<'t>(table: &'t mut HashMap<String, Known>, now: Instant, service: &str) -> Option<&'t mut Known> {
    if table.len() >= OUTAGES_MAX && !table.contains_key(service) {
        table.retain(|_, known| !known.witnesses.is_empty() && now.since(known.until) < OUT_MAX);
    }
    if table.len() >= OUTAGES_MAX && !table.contains_key(service) {
        return None;
    }
    let begin = || Known { answered: Instant::ZERO, until: Instant::ZERO, witnesses: Vec::new() };
    Some(table.entry(service.to_owned()).or_insert_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(100);

    #[test]
    fn as_many_servers_are_remembered_as_may_be_and_those_that_answer_make_room() {
        let outages = Outages::default();
        let names: Vec<_> = (0..=OUTAGES_MAX).map(|nth| format!("pbx-{nth}")).collect();
        for (name, user) in names.iter().flat_map(|name| [(name, "alice"), (name, "bob")]) {
            outages.failed(NOW, name, (user, NOW), None);
        }
        assert_eq!(outages.gauge(), Gauge::of("outages", OUTAGES_MAX, OUTAGES_MAX));
        assert_eq!(outages.out(NOW).len(), OUTAGES_MAX);
        assert!(!outages.is_out(NOW, &names[OUTAGES_MAX], "alice"), "it is tried as ever");
        outages.answered(NOW, &names[0]);
        outages.failed(NOW, &names[OUTAGES_MAX], ("alice", NOW), None);
        assert!(outages.is_out(NOW, &names[OUTAGES_MAX], "alice"));
        assert_eq!(outages.gauge().used, OUTAGES_MAX as u64);
    }

    #[test]
    fn a_server_says_itself_for_how_long_it_is_out_within_bounds() {
        let outages = Outages::default();
        outages.failed(NOW, "pbx", ("alice", NOW), Some(u32::MAX));
        assert!(outages.is_out(NOW + OUT_MAX.mul_f64(0.9), "pbx", "alice"));
        assert!(!outages.is_out(NOW + OUT_MAX, "pbx", "alice"));
    }
}
