//! What every node does to a packet that it sends on: makes it one hop older, cuts it where the next link is too narrow,
//! and answers its sender where it cannot go on.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use sluicegate_bounded::Gauge;
use sluicegate_flow::TokenBucket;
use sluicegate_wire::{
    Frame, Instant, Port, Reason, Verdict, icmp,
    ip::{Summary, Version},
};

use crate::{
    fragments::{Fragments, Released},
    icmp_error,
    readings::REASONS,
};

/// What forwarding must know of the node and its links. Fixed at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarding {
    /// The node's own IPv4 address; unspecified if it has none. Its ICMP errors come from there, and nothing is forwarded to it.
    pub address: Ipv4Addr,
    /// The node's IPv6 address, as the source of its ICMPv6 errors; without one they come from the packet's destination.
    pub address_v6: Option<Ipv6Addr>,
    /// MTU in bytes of the link behind each port, indexed by [`Port`].
    pub mtu: [u16; 2],
    /// Packets in virtual reassembly at once; as many again whose first fragment has not come.
    pub fragmented_packets_max: u16,
    /// Fragments held until their first fragment comes, or until they are sent.
    pub fragments_held_max: u16,
    /// How long fragments wait for each other.
    pub fragments_wait: Duration,
    /// ICMP errors that answer packets which need no permission, a second.
    pub icmp_errors_per_s: u32,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::UNSPECIFIED,
            address_v6: None,
            mtu: [1_500, 1_500],
            fragmented_packets_max: 256,
            fragments_held_max: 256,
            fragments_wait: Duration::from_secs(5),
            icmp_errors_per_s: 1_000,
        }
    }
}

/// Forwards packets of all roles, and counts what it drops.
#[derive(Debug)]
pub struct Forwarder {
    pub(crate) config: Forwarding,
    pub(crate) fragments: Fragments,
    errors: TokenBucket,
    pub(crate) dropped: [u64; REASONS],
}

impl Forwarder {
    /// Allocates its tables; `hash_key` places everything in them and must be secret and random.
    #[must_use]
    pub fn new(config: Forwarding, hash_key: &[u8; 16]) -> Self {
        let per_s = config.icmp_errors_per_s;
        Self {
            fragments: Fragments::new(&config, hash_key),
            errors: TokenBucket::new(Instant::ZERO, per_s.into(), u64::from(per_s).div_ceil(10)),
            dropped: [0; REASONS],
            config,
        }
    }

    /// Forwards a packet out of the other port as a router does: one hop older, cut or answered if the next link is too
    /// narrow for it, answered if its time to live is over (RFC 1812 5.3.1, RFC 4443 3.3). Nothing else is asked. `ip`
    /// describes the packet, and what it has become.
    pub(crate) fn pass(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>, ip: &mut Summary) -> Verdict {
        match self.pass_on(port.opposite(), frame, ip) {
            Ok(()) => Verdict::Forward(port.opposite()),
            Err(Reason::TtlExpired) => self.refuse_expired(now, frame, ip),
            Err(Reason::PacketTooBig) => self.refuse_too_big(now, self.mtu(port.opposite()), frame, ip),
            Err(reason) => self.drop(reason),
        }
    }

    fn pass_on(&mut self, to: Port, frame: &mut Frame<'_>, ip: &mut Summary) -> Result<(), Reason> {
        frame.truncate(ip.total_len);
        ip.check_addresses()?;
        if ip.dst == IpAddr::V4(self.config.address) && !self.config.address.is_unspecified() {
            return Err(Reason::NotForService);
        }
        if ip.ttl <= 1 {
            return Err(Reason::TtlExpired);
        }
        if ip.total_len > usize::from(self.mtu(to)) && (ip.dont_fragment || ip.has_options) {
            return Err(Reason::PacketTooBig);
        }
        self.send_on(to, frame, ip)
    }

    /// Makes a packet one hop older. One that is too long for the next link is cut into fragments, of which the first stays
    /// in `frame`.
    ///
    /// # Errors
    /// [`Reason::TtlExpired`]; [`Reason::PacketTooBig`] if it cannot be cut.
    #[inline]
    pub(crate) fn send_on(&mut self, to: Port, frame: &mut Frame<'_>, ip: &mut Summary) -> Result<(), Reason> {
        ip.decrement_ttl(frame.bytes_mut())?;
        let mtu = usize::from(self.mtu(to));
        if ip.total_len <= mtu {
            return Ok(());
        }
        self.fragments.split(ip, frame, (to, mtu), &mut self.dropped)
    }

    /// Answers a packet, which is dropped, with the largest packet that can pass: `mtu` in bytes, for a caller that adds
    /// headers to what it forwards.
    pub(crate) fn refuse_too_big(&mut self, now: Instant, mtu: u16, frame: &mut Frame<'_>, ip: &Summary) -> Verdict {
        if self.errors.take(now, 1) { self.answer_too_big(mtu, frame, ip) } else { self.drop(Reason::PacketTooBig) }
    }

    /// As [`Self::refuse_too_big`], where somebody else has allowed the answer.
    #[cold]
    pub(crate) fn answer_too_big(&mut self, mtu: u16, frame: &mut Frame<'_>, ip: &Summary) -> Verdict {
        let dropped = self.drop(Reason::PacketTooBig);
        icmp_error::too_big(&self.config, mtu, frame, ip).map_or(dropped, |()| Verdict::Reply)
    }

    #[cold]
    fn refuse_expired(&mut self, now: Instant, frame: &mut Frame<'_>, ip: &Summary) -> Verdict {
        let dropped = self.drop(Reason::TtlExpired);
        if !may_be_answered(ip, frame.bytes()) || !self.errors.take(now, 1) {
            return dropped;
        }
        icmp_error::time_exceeded(&self.config, frame, ip).map_or(dropped, |()| Verdict::Reply)
    }

    /// Counts a drop.
    pub(crate) const fn drop(&mut self, reason: Reason) -> Verdict {
        self.dropped[reason as usize] += 1;
        Verdict::Drop(reason)
    }

    /// What was dropped, by [`Reason`] code. Includes what was answered with an ICMP error.
    #[must_use]
    pub const fn dropped(&self) -> &[u64; REASONS] {
        &self.dropped
    }

    /// MTU in bytes of the link behind a port.
    #[inline]
    pub(crate) fn mtu(&self, port: Port) -> u16 {
        self.config.mtu[usize::from(port.0 & 1)]
    }

    /// The next part of a packet that was cut here: written into `frame` (at its start, which keeps its headroom), and the
    /// port where it leaves. Call until `None`.
    pub(crate) fn poll_output(&mut self, frame: &mut Frame<'_>) -> Option<Port> {
        loop {
            match self.fragments.release(frame)? {
                Ok(Released::Piece(to)) => return Some(to),
                // Nothing waits for a first fragment where nobody judges one.
                Ok(Released::Fragment(_)) => {}
                Err(reason) => {
                    self.drop(reason);
                }
            }
        }
    }

    /// When [`Self::handle_timeout`] must be called next.
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.fragments.next_due()
    }

    /// Gives up packets whose fragments did not come in time.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.fragments.expire(now, &mut self.dropped);
    }

    /// Fill of its tables.
    pub(crate) fn gauges(&self) -> [Gauge; 3] {
        self.fragments.gauges()
    }
}

/// RFC 1812 4.3.2.7: errors answer neither errors nor later fragments.
fn may_be_answered(ip: &Summary, packet: &[u8]) -> bool {
    let is_error = icmp::version(ip.protocol).is_some_and(|version| match *ip.transport(packet) {
        [number, ..] => {
            let kind = icmp::Kind::of(version, number, 0);
            // Of ICMP nothing is answered but echoes.
            kind.is_error() || (version == Version::V4 && !kind.is_echo())
        }
        [] => true,
    });
    ip.has_transport_header() && !is_error
}
