//! The capability router of TVA IV-C: what is done to each IP packet's capability header, and which class it is of.
//!
//! | packet | class | what is changed in it |
//! |---|---|---|
//! | request with a free slot | request | pre-capability, and at a trust boundary the path identifier, in the next slot |
//! | regular whose nonce a line knows, with bytes and time left | regular | pointer moves on |
//! | regular whose capability passes the check | regular, and cached | pointer moves on |
//! | renewal that passes as regular | regular | its capability becomes a fresh pre-capability, pointer moves on |
//! | any of these that fails | legacy | the demotion bit |
//! | demoted by another router | legacy | nothing |
//! | announced, but no valid header | legacy | nothing |
//! | source route, IP options, extension headers, fragment | legacy | nothing |
//! | ICMP error that quotes a header | legacy | the quoted header is taken out |
//! | everything else | legacy | nothing |
//!
//! Nothing is dropped here: what fails a check is demoted (TVA III-H). A router keeps no state that cannot be lost. One
//! that restarts has lost its lines, and demotes what carries only a nonce until its sender has shown the list again; if
//! whoever makes it gives it another seed as well, until senders have asked again.

mod header;
mod judge;
#[cfg(test)]
mod tests;

use core::{iter, net::IpAddr, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_flow::{Key, Key4, Key6, Line4, Line6};
use sluicegate_wire::{
    Frame, Instant, IpProtocol, Packet, Port, Reason,
    capability::{ClientId, Kind, Limits, PathId, shim},
};

use self::{
    header::{Ends, Header, InFrame, Native},
    judge::{Judge, Presented},
};
use crate::{
    lines::{Count, Lines, Moment, Revocations},
    secrets::{PathTagger, Secrets, Seed},
};

/// Path identifiers that the link scheduler tells apart.
pub const PATH_MAX: usize = 5;

/// In this many seconds the sweep has seen the whole table, unless that is too large for [`SWEEP_LINES_MAX`].
const SWEEP_SECS: u32 = 64;
/// Places that one sweep of a table looks at, so that packets never wait long for it. A line that outlives its capability
/// only takes a place, and gives it up to whoever needs it.
const SWEEP_LINES_MAX: u32 = 900;

/// How a router is built. What is a maximum here is memory for good.
#[derive(Clone)]
pub struct RouterConfig {
    /// Room for capability lines of IPv4 flows: [`crate::lines::lines_needed`] of the links that packets come by.
    pub lines_max: u32,
    /// Room for those of IPv6 flows.
    pub lines6_max: u32,
    /// Room for revocations within 64 s.
    pub revocations_max: u32,
    /// Whether each port is a trust boundary: then requests that come by it get a path identifier.
    pub boundary: [bool; 2],
    /// (N/T)min: no capability with a smaller quotient gets a line, because `lines_max` was computed with this.
    pub least: Limits,
    /// Of the period before the one that the router's clock shows at its start.
    pub seed: Seed,
    /// The secret key of the path identifiers. It may stay the same over restarts.
    pub tag_key: [u8; 16],
    /// What the router's clock shows at [`Self::started_at`], in seconds: random, so that it tells nobody the time. Less
    /// than 2^31.
    pub first_seconds: u64,
    /// When a second of the router's clock began.
    pub started_at: Instant,
}

/// Shows no key.
impl core::fmt::Debug for RouterConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RouterConfig")
            .field("lines_max", &self.lines_max)
            .field("lines6_max", &self.lines6_max)
            .field("revocations_max", &self.revocations_max)
            .field("boundary", &self.boundary)
            .field("least", &self.least)
            .finish_non_exhaustive()
    }
}

/// Where a packet came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The port that it came by.
    pub port: Port,
    /// The link address of the neighbour that sent it, in the low 48 bits; 0 on a link without.
    pub neighbour: u64,
    /// Whether that neighbour lets no forged source address pass. The router does not rely on it; it goes with the packet
    /// for a link scheduler that is fair to sources.
    pub verified_source: bool,
}

/// How the link scheduler has to treat a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Rides the request lane.
    Request {
        /// The path identifiers, the most recent first; [`PathId::NONE`] behind the last.
        path: [PathId; PATH_MAX],
    },
    /// Rides the regular lane.
    Regular {
        /// Whether a capability proved that the receiver wants it. A router says `true`; a gate may class what a grant
        /// opened otherwise.
        capability: bool,
    },
    /// Gets what is left.
    Legacy {
        /// Why it is not regular, if it has a capability header.
        demoted: Option<Reason>,
    },
}

/// What happened to packets since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Packets that passed as what they claim to be, by [`Kind`]: stamped requests, and regular packets.
    pub passed: [u64; 4],
    /// Packets without a capability header, or with one that is not looked at: fragments, IP options.
    pub plain: u64,
    /// Packets that were demoted, by [`Reason`] code.
    pub demoted: [u64; Reason::ALL.len()],
    /// ICMP errors that a quoted capability header was taken out of.
    pub quotes_stripped: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { passed: [0; 4], plain: 0, demoted: [0; Reason::ALL.len()], quotes_stripped: 0 }
    }
}

const PLAIN: Class = Class::Legacy { demoted: None };

/// A capability router: all its state, no I/O.
#[derive(Debug)]
pub struct Router {
    judge: Judge,
    lines: Lines<Line4<Count>>,
    lines6: Lines<Line6<Count>>,
    tagger: PathTagger,
    /// The ingress that was tagged last, and its tag: packets come in trains.
    last_tag: (u64, PathId),
    boundary: [bool; 2],
    first_seconds: u64,
    started_at: Instant,
    seconds: u64,
    next_second: Instant,
    counters: Counters,
}

impl Router {
    /// A router that has seen nothing. Allocates all it will ever use. `hash_key` places lines: secret and random.
    #[must_use]
    pub fn new(config: RouterConfig, hash_key: [u8; 16]) -> Self {
        let first_seconds = config.first_seconds;
        let secrets = Secrets::new(&config.seed, first_seconds);
        Self {
            judge: Judge { secrets, revocations: Revocations::new(config.revocations_max), least: config.least },
            lines: Lines::new(config.lines_max, &hash_key),
            lines6: Lines::new(config.lines6_max, &hash_key),
            tagger: PathTagger::new(config.tag_key),
            last_tag: (u64::MAX, PathId::NONE),
            boundary: config.boundary,
            first_seconds,
            started_at: config.started_at,
            seconds: first_seconds,
            next_second: Instant::ZERO,
            counters: Counters::default(),
        }
    }

    /// Parses and judges the IP packet in `frame`, see [`Self::judge`].
    ///
    /// # Errors
    /// Those of [`Packet::parse`]: it is no valid IP packet.
    #[inline]
    pub fn on_packet(&mut self, now: Instant, arrival: &Arrival, frame: &mut Frame<'_>) -> Result<Class, Reason> {
        let mut packet = Packet::UNREAD;
        packet.read(frame.bytes())?;
        self.judge(now, arrival, frame, &mut packet)
    }

    /// Judges the IP packet in `frame`, which `packet` describes, and changes its capability header accordingly.
    ///
    /// # Errors
    /// [`Reason::IpHeaderInvalid`] if `packet` describes another.
    #[inline]
    pub fn judge(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        frame: &mut Frame<'_>,
        packet: &mut Packet,
    ) -> Result<Class, Reason> {
        self.handle_timeout(now);
        let ip = &packet.ip;
        if ip.source_route || ip.has_options || ip.fragment.is_some() {
            self.counters.plain += 1;
            return Ok(PLAIN);
        }
        match packet.header {
            Ok(Some(found)) => {
                let (ends, len) = (Ends::of(ip)?, ip.total_len as u32);
                match Native::of(frame.bytes_mut(), ip, &found) {
                    Some(header) => self.treat(now, &ends, len, arrival, header),
                    None => self.treat(now, &ends, len, arrival, InFrame { frame, found }),
                }
            }
            Ok(None) => self.plain(frame, packet),
            Err(reason) => self.legacy(reason),
        }
    }

    /// A packet without a capability header.
    fn plain(&mut self, frame: &mut Frame<'_>, packet: &mut Packet) -> Result<Class, Reason> {
        let is_icmp = matches!(packet.ip.protocol, IpProtocol::ICMP | IpProtocol::ICMPV6);
        if is_icmp && shim::strip_quote(frame, &packet.ip) {
            self.counters.quotes_stripped += 1;
            packet.parse_rest(frame.bytes())?;
        }
        self.counters.plain += 1;
        Ok(PLAIN)
    }

    const fn legacy(&mut self, reason: Reason) -> Result<Class, Reason> {
        self.counters.demoted[reason as usize] += 1;
        Ok(Class::Legacy { demoted: Some(reason) })
    }

    fn demote(&mut self, reason: Reason, header: impl Header) -> Result<Class, Reason> {
        header.edit(|header| header.set_demoted(true));
        self.legacy(reason)
    }

    /// TVA IV-C. The header is valid; it is written to at most once. Always `Ok`: the result is made where the caller
    /// wants it, because taking it apart and together again costs as much as the look-up.
    #[inline]
    fn treat(
        &mut self,
        now: Instant,
        ends: &Ends,
        len: u32,
        arrival: &Arrival,
        header: impl Header,
    ) -> Result<Class, Reason> {
        let view = header.view();
        let kind = view.kind();
        if view.is_demoted() {
            return self.legacy(Reason::AlreadyDemoted);
        }
        if kind == Kind::Request {
            return self.stamp(ends, arrival, header);
        }
        let presented = Presented::of(&view, len);
        if let Err(reason) = self.check(now, ends, &presented) {
            return self.demote(reason, header);
        }
        self.counters.passed[kind as usize] += 1;
        if kind == Kind::Renewal {
            let (src, dst) = ends.addresses();
            let fresh = self.judge.secrets.mint(presented.algorithm, src, dst, presented.client);
            header.edit(|header| {
                header.set_capability(presented.pointer.into(), fresh);
                header.set_pointer(presented.pointer.saturating_add(1));
            });
        } else if kind == Kind::Capabilities {
            header.edit(|header| header.set_pointer(presented.pointer.saturating_add(1)));
        }
        Ok(Class::Regular { capability: true })
    }

    #[inline]
    fn check(&mut self, now: Instant, ends: &Ends, presented: &Presented) -> Result<(), Reason> {
        let at = Moment { now, seconds: self.seconds };
        match *ends {
            Ends::V4(src, dst) => {
                let key = Key4::of_capability(src, dst, presented.client);
                self.judge.judge(&mut self.lines, at, &key, presented)
            }
            Ends::V6(src, dst) => {
                let key = Key6::of_capability(src, dst, presented.client);
                self.judge.judge(&mut self.lines6, at, &key, presented)
            }
        }
    }

    #[inline]
    fn stamp(&mut self, ends: &Ends, arrival: &Arrival, header: impl Header) -> Result<Class, Reason> {
        let view = header.view();
        let slot = view.pointer();
        if slot >= view.count() {
            return self.demote(Reason::CapabilityList, header);
        }
        let (src, dst) = ends.addresses();
        let pre = self.judge.secrets.mint(view.algorithm(), src, dst, view.client_id());
        let path_id = self.path_id(arrival);
        let mut path = [PathId::NONE; PATH_MAX];
        let before = (0..slot).rev().filter_map(|slot| view.path_id(slot.into()));
        let tags = iter::once(path_id).chain(before).filter(|id| *id != PathId::NONE);
        for (place, tag) in path.iter_mut().zip(tags) {
            *place = tag;
        }
        header.edit(|header| {
            header.set_capability(slot.into(), pre);
            header.set_path_id(slot.into(), path_id);
            header.set_pointer(slot + 1);
        });
        self.counters.passed[Kind::Request as usize] += 1;
        Ok(Class::Request { path })
    }

    #[inline]
    fn path_id(&mut self, arrival: &Arrival) -> PathId {
        if !self.boundary.get(usize::from(arrival.port.0)).is_some_and(|at_boundary| *at_boundary) {
            return PathId::NONE;
        }
        let ingress = u64::from(arrival.port.0) << 48 | arrival.neighbour;
        if self.last_tag.0 != ingress {
            self.last_tag = (ingress, self.tagger.tag(ingress));
        }
        self.last_tag.1
    }

    /// Whether a packet that was demoted, here or elsewhere, belongs to a line of this router: the flow's nonce is
    /// right, and T and N are not over. Charges it then. For a gate in front of a default-off service, which forwards
    /// such a packet and drops all other demoted ones.
    ///
    /// # Errors
    /// [`Reason::CapabilityUnknown`] without header, line or the right nonce; [`Reason::CapabilityExpired`] and
    /// [`Reason::CapabilitySpent`]; that of the header.
    pub fn vouches(&mut self, now: Instant, frame: &Frame<'_>, packet: &Packet) -> Result<(), Reason> {
        self.handle_timeout(now);
        let found = packet.header?.ok_or(Reason::CapabilityUnknown)?;
        let header = found.packet(frame.bytes());
        let presented = Presented::of(&header, packet.ip.total_len as u32);
        let at = Moment { now, seconds: self.seconds };
        match Ends::of(&packet.ip)? {
            _ if header.kind() == Kind::Request => Err(Reason::CapabilityUnknown),
            Ends::V4(src, dst) => {
                judge::charge(&mut self.lines, at, &Key4::of_capability(src, dst, presented.client), &presented)
            }
            Ends::V6(src, dst) => {
                judge::charge(&mut self.lines6, at, &Key6::of_capability(src, dst, presented.client), &presented)
            }
        }
    }

    /// Ends all capabilities of a flow that were minted until now; what is minted from the next second on is valid.
    pub fn revoke(&mut self, now: Instant, src: IpAddr, dst: IpAddr, client: ClientId) {
        self.handle_timeout(now);
        let hash = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let key = Key4::of_capability(src, dst, client);
                let hash = self.lines.hash(&key);
                self.lines.revoke(hash, &key);
                hash
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let key = Key6::of_capability(src, dst, client);
                let hash = self.lines6.hash(&key);
                self.lines6.revoke(hash, &key);
                hash
            }
            _ => return,
        };
        self.judge.revocations.revoke(hash, self.seconds);
    }

    /// When [`Self::handle_timeout`] has something to do: the next second.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next_second)
    }

    /// Moves the router's clock, and with it its secrets, and gives back lines that are over.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        if now >= self.next_second {
            self.begin_second(now);
        }
    }

    #[cold]
    fn begin_second(&mut self, now: Instant) {
        let elapsed = now.since(self.started_at).as_secs();
        self.seconds = self.first_seconds + elapsed;
        self.next_second = self.started_at + Duration::from_secs(elapsed + 1);
        self.judge.secrets.turn(self.seconds);
        let at = Moment { now, seconds: self.seconds };
        let part = |lines_max: u32| lines_max.div_ceil(SWEEP_SECS).min(SWEEP_LINES_MAX);
        self.lines.sweep(at, part(self.lines.lines_max()));
        self.lines6.sweep(at, part(self.lines6.lines_max()));
    }

    /// The router's clock, in seconds.
    #[must_use]
    pub const fn seconds(&self) -> u64 {
        self.seconds
    }

    /// What happened to packets since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How full each table is. Lines in use include those that would give way; reading the revocations costs a pass over
    /// the filter.
    #[must_use]
    pub fn gauges(&self) -> [Gauge; 3] {
        let gauge = |name, used: usize, max: usize| Gauge { name, used: used as u64, max: max as u64 };
        let (lines, lines6, revocations) = (&self.lines, &self.lines6, &self.judge.revocations);
        [
            gauge("capability_lines", lines.len() as usize, lines.lines_max() as usize),
            gauge("capability_lines6", lines6.len() as usize, lines6.lines_max() as usize),
            gauge("revocations", revocations.len(self.seconds), revocations.revocations_max()),
        ]
    }

    /// Lines that gave way to other flows after their ttl, of both tables.
    #[must_use]
    pub const fn lines_reclaimed(&self) -> u64 {
        self.lines.reclaimed() + self.lines6.reclaimed()
    }
}
