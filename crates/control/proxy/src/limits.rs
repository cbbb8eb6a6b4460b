//! Who was refused lately for sending too much, for operators to see; and whom an operator lets send more.
//!
//! Of senders as many are known as there is room for: who is refused more often displaces who is refused less (Metwally,
//! Agrawal, El Abbadi, Space-Saving).

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ipnet::IpNet;
use sluicegate_api::{LimitKind, LimitStatus};
use sluicegate_bounded::Gauge;
use sluicegate_wire::{Instant, ip::sender_of};

/// Senders that are listed for each limit.
const HELD_MAX: usize = 64;
/// How long it is known who was refused.
const HELD_FOR: Duration = Duration::from_secs(60);
/// The longest that a limit can be lifted.
pub const LIFTED_S_MAX: u64 = 30 * 86_400;

/// As many limits are lifted as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limits of {max} sources are lifted already; restore one first: `sluicegate limit restore SOURCE`", max = Limits::LIFTED_MAX)]
pub struct LimitsFull;

/// All of them, of all shards.
#[derive(Debug, Default)]
pub struct Limits {
    /// Whether any is lifted: all that it costs where none is.
    is_lifting: AtomicBool,
    lists: Mutex<Lists>,
}

/// Room for all that they may hold, since who has proved nothing has nothing allocated.
#[derive(Debug)]
struct Lists {
    load: Vec<Held>,
    passwords: Vec<Held>,
    lifted: Vec<Lifted>,
}

impl Default for Lists {
    fn default() -> Self {
        let [load, passwords] = [(); 2].map(|()| Vec::with_capacity(HELD_MAX));
        Self { load, passwords, lifted: Vec::new() }
    }
}

/// Who was refused.
#[derive(Debug)]
struct Held {
    source: IpAddr,
    user: Option<String>,
    /// The last address and port.
    peer: SocketAddr,
    refused: u64,
    at: Instant,
}

impl Held {
    fn is_recent(&self, now: Instant) -> bool {
        now.since(self.at) < HELD_FOR
    }
}

#[derive(Debug)]
struct Lifted {
    source: IpNet,
    until: Instant,
    reason: String,
}

impl Limits {
    /// Most sources for which limits are lifted.
    pub const LIFTED_MAX: usize = 64;

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request was refused, or a datagram not heard, since more comes than can be served.
    pub(crate) fn refused_for_load(&self, now: Instant, peer: SocketAddr) {
        note(&mut self.lock().load, now, peer, None);
    }

    /// Credentials of a user were not looked at, since too many wrong ones had come.
    pub(crate) fn refused_password(&self, now: Instant, peer: SocketAddr, user: &str) {
        note(&mut self.lock().passwords, now, peer, Some(user));
    }

    /// Whether an operator lets this address send more than others.
    pub(crate) fn is_lifted(&self, now: Instant, address: IpAddr) -> bool {
        self.is_lifting.load(Ordering::Relaxed)
            && self
                .lock()
                .lifted
                .iter()
                .any(|lifted| now < lifted.until && lifted.source.contains(&address.to_canonical()))
    }

    /// Of whom nobody is refused for load.
    pub(crate) fn lifted(&self, now: Instant) -> Vec<IpNet> {
        let limits = self.lock();
        limits.lifted.iter().filter(|lifted| now < lifted.until).map(|lifted| lifted.source).collect()
    }

    /// From now on, for so long, nobody there is refused for load. No time ends it; whether there is anything that is lifted now.
    ///
    /// # Errors
    /// [`LimitsFull`].
    pub fn lift(&self, now: Instant, source: IpNet, lasts: Duration, reason: &str) -> Result<bool, LimitsFull> {
        let lists = &mut *self.lock();
        let source = source.trunc();
        let was_lifted = lists.lifted.iter().any(|lifted| lifted.source == source && now < lifted.until);
        lists.lifted.retain(|lifted| lifted.source != source && now < lifted.until);
        if !lasts.is_zero() {
            if lists.lifted.len() >= Self::LIFTED_MAX {
                return Err(LimitsFull);
            }
            lists.lifted.push(Lifted { source, until: now + lasts, reason: reason.to_owned() });
        }
        self.is_lifting.store(!lists.lifted.is_empty(), Ordering::Relaxed);
        Ok(was_lifted || !lasts.is_zero())
    }

    /// Forgets who was refused for wrong passwords of this user; from where that was.
    pub fn forgive(&self, user: &str) -> Vec<SocketAddr> {
        let is_meant = |held: &mut Held| held.user.as_deref() == Some(user);
        self.lock().passwords.extract_if(.., is_meant).map(|held| held.peer).collect()
    }

    /// Who is held to limits, or not, the most refused first. `unix`: the wall clock, in seconds.
    #[must_use]
    pub fn status(&self, now: Instant, unix: u64) -> Vec<LimitStatus> {
        let lists = self.lock();
        let held = |kind, held: &[Held]| -> Vec<LimitStatus> {
            let recent = held.iter().filter(|held| held.is_recent(now));
            let mut all: Vec<_> = recent
                .map(|held| LimitStatus {
                    kind,
                    source: network(held.source),
                    user: held.user.clone(),
                    refused: held.refused,
                    refused_at: Some(unix.saturating_sub(now.since(held.at).as_secs())),
                    until: None,
                    reason: None,
                })
                .collect();
            all.sort_by_key(|status| std::cmp::Reverse(status.refused));
            all
        };
        let lifted = lists.lifted.iter().filter(|lifted| now < lifted.until).map(|lifted| LimitStatus {
            kind: LimitKind::Lifted,
            source: lifted.source,
            user: None,
            refused: 0,
            refused_at: None,
            until: Some(unix + lifted.until.since(now).as_secs()),
            reason: Some(lifted.reason.clone()),
        });
        let lifted: Vec<_> = lifted.collect();
        [held(LimitKind::Load, &lists.load), held(LimitKind::Passwords, &lists.passwords), lifted].concat()
    }

    /// The fill of each list, of what is in force.
    #[must_use]
    pub fn gauges(&self, now: Instant) -> [Gauge; 2] {
        let lists = self.lock();
        let held = lists.load.iter().chain(&lists.passwords).filter(|held| held.is_recent(now)).count();
        let lifted = lists.lifted.iter().filter(|lifted| now < lifted.until).count();
        [Gauge::of("limits_held", held, 2 * HELD_MAX), Gauge::of("limits_lifted", lifted, Self::LIFTED_MAX)]
    }
}

fn note(list: &mut Vec<Held>, now: Instant, peer: SocketAddr, user: Option<&str>) {
    let source = sender_of(peer.ip());
    if let Some(held) = list.iter_mut().find(|held| held.source == source && held.user.as_deref() == user) {
        (held.refused, held.at, held.peer) = (held.refused + 1, now, peer);
        return;
    }
    if list.len() < HELD_MAX {
        return list.push(Held { source, user: user.map(str::to_owned), peer, refused: 1, at: now });
    }
    // What is over gives way before what goes on.
    let Some(held) = list.iter_mut().min_by_key(|held| (now.since(held.at) < HELD_FOR, held.refused)) else { return };
    let before = if now.since(held.at) < HELD_FOR { held.refused } else { 0 };
    (held.source, held.peer, held.refused, held.at) = (source, peer, before + 1, now);
    if let (Some(name), Some(user)) = (&mut held.user, user) {
        name.clear();
        name.push_str(user);
    }
}

/// What a sender is listed as.
fn network(source: IpAddr) -> IpNet {
    match source {
        IpAddr::V4(_) => IpNet::from(source),
        IpAddr::V6(v6) => IpNet::V6(ipnet::Ipv6Net::new_assert(v6, 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(100);

    fn peer(nth: usize) -> SocketAddr {
        format!("198.51.{}.{}:5060", nth / 256, nth % 256).parse().unwrap()
    }

    #[test]
    fn who_is_refused_most_stays_listed_however_many_others_are() {
        let limits = Limits::default();
        for nth in 0..10_000 {
            limits.refused_for_load(NOW, peer(1 + nth % 1_000));
            limits.refused_for_load(NOW, "203.0.113.7:5060".parse().unwrap());
            limits.refused_password(NOW, peer(nth % 1_000), "alice");
        }
        let status = limits.status(NOW, 1_000);
        assert_eq!(status.len(), 2 * HELD_MAX);
        let first = &status[0];
        assert_eq!((first.kind, first.source.to_string().as_str()), (LimitKind::Load, "203.0.113.7/32"));
        assert!(first.refused >= 10_000 && first.refused_at == Some(1_000), "{first:?}");
        assert_eq!(limits.gauges(NOW)[0], Gauge::of("limits_held", 2 * HELD_MAX, 2 * HELD_MAX));
        assert_eq!(limits.gauges(NOW + HELD_FOR)[0].used, 0);
        assert!(limits.status(NOW + HELD_FOR, 1_060).is_empty(), "it is over when it is over");
    }

    #[test]
    fn a_lifted_limit_ends_by_its_time_or_when_it_is_restored() {
        let limits = Limits::default();
        let (office, hour) = ("198.51.100.7/24".parse().unwrap(), Duration::from_secs(3_600));
        let lifts = |limits: &Limits, at| limits.is_lifted(at, "198.51.100.200".parse().unwrap());
        assert!(!lifts(&limits, NOW));
        assert_eq!(limits.lift(NOW, office, hour, "two thousand telephones"), Ok(true));
        assert!(
            lifts(&limits, NOW) && lifts(&limits, NOW + hour - Duration::from_secs(1)) && !lifts(&limits, NOW + hour)
        );
        assert!(!limits.is_lifted(NOW, "198.51.101.1".parse().unwrap()));
        let status = limits.status(NOW, 1_000).pop().unwrap();
        assert_eq!((status.until, status.reason.as_deref()), (Some(4_600), Some("two thousand telephones")));
        assert_eq!(limits.lift(NOW, "198.51.100.0/24".parse().unwrap(), Duration::ZERO, ""), Ok(true));
        assert!(!lifts(&limits, NOW));
        assert_eq!(limits.lift(NOW, office, Duration::ZERO, ""), Ok(false), "nothing was lifted");
    }

    #[test]
    fn as_many_are_lifted_as_may_be_and_what_has_ended_makes_room() {
        let limits = Limits::default();
        let lift = |nth: usize, at| limits.lift(at, IpNet::from(peer(nth).ip()), Duration::from_secs(10), "");
        assert!((0..Limits::LIFTED_MAX).all(|nth| lift(nth, NOW) == Ok(true)));
        assert_eq!(lift(100, NOW), Err(LimitsFull));
        assert_eq!(limits.gauges(NOW)[1], Gauge::of("limits_lifted", Limits::LIFTED_MAX, Limits::LIFTED_MAX));
        assert_eq!(lift(0, NOW), Ok(true), "one that is known is changed");
        assert_eq!(lift(100, NOW + Duration::from_secs(10)), Ok(true));
    }
}
