//! Fragments of UDP datagrams for the gate's own host: those that follow a first one which `local` lists. Only the first has
//! ports, so it is remembered for a moment, in a table that nobody can fill for others. The mirror of what `gate.c` does;
//! the nf_tables filter has a table of its own (`ingress/fragments.rs`).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use sluicegate_wire::{Instant, Port};

use super::{Class, Rules, UDP, own_host};

/// How long fragments may follow the first of their datagram. Senders send all in one go.
pub const FRAGMENT_WAIT: Duration = Duration::from_secs(1);
/// Datagrams in fragments per second from those senders that share a place.
pub const FRAGMENTED_RATE_PPS: u32 = 100;
/// Senders share so many places, by port and by an octet of their address.
pub(crate) const PLACES: usize = 64;
/// Datagrams of one place of which fragments may still come; another takes the place of an older one.
pub(crate) const PLACE_DATAGRAMS: usize = 8;
/// Datagrams for the host of which fragments may still come.
pub const FRAGMENTED_MAX: usize = PLACES * PLACE_DATAGRAMS;

const FRAGMENT: u8 = 44;
const UDP_HEADER: usize = 8;
/// Longest datagram in fragments, which the kernel has to keep until it is whole: no SIP message is longer.
pub(crate) const FRAGMENTED_BYTES_MAX: usize = 16_384;
/// Where both families have the octet that tells places apart: the last of an IPv4 address, and of an IPv6 address' first half.
pub(crate) const PLACE_AT: usize = 15;

/// A part of a packet, lengths in bytes.
struct Fragment<'p> {
    ends: (IpAddr, IpAddr),
    protocol: u8,
    id: u32,
    offset: usize,
    len: usize,
    more: bool,
    place: usize,
    payload: &'p [u8],
}

#[derive(Debug, Clone, Copy)]
struct Datagram {
    ends: (IpAddr, IpAddr),
    id: u32,
    /// Where the next fragment has to begin.
    next: usize,
    until: Instant,
}

/// Classifies frames, with a memory for fragments.
#[derive(Debug)]
pub(crate) struct Classifier {
    datagrams: Box<[Option<Datagram>]>,
    wait: Duration,
}

impl Classifier {
    pub(crate) fn new(wait: Duration) -> Self {
        Self { datagrams: vec![None; FRAGMENTED_MAX].into_boxed_slice(), wait }
    }

    /// As [`super::classify`], but fragments that follow a listed one are local too.
    pub(crate) fn classify(&mut self, now: Instant, rules: &Rules, port: Port, frame: &[u8]) -> Class {
        let Some(packet) = fragmented(frame) else { return super::classify(rules, port, frame) };
        let fragment = Fragment::parse(port, packet).filter(Fragment::is_sound);
        fragment.and_then(|fragment| self.fragment(now, rules, port, &fragment)).unwrap_or(Class::Gate)
    }

    fn fragment(&mut self, now: Instant, rules: &Rules, port: Port, fragment: &Fragment<'_>) -> Option<Class> {
        let at = fragment.place * PLACE_DATAGRAMS + fragment.id as usize % PLACE_DATAGRAMS;
        let slot = self.datagrams.get_mut(at)?;
        let (ends, id, next) = (fragment.ends, fragment.id, fragment.offset + fragment.len);
        if fragment.offset > 0 {
            let is_next = |datagram: &&mut Datagram| {
                datagram.until > now && (datagram.ends, datagram.id, datagram.next) == (ends, id, fragment.offset)
            };
            slot.as_mut().filter(is_next)?.next = next;
            if !fragment.more {
                *slot = None;
            }
            return Some(Class::Local);
        }
        if !fragment.more || fragment.payload.len() < UDP_HEADER {
            return None;
        }
        let class = own_host(rules, port, ends, fragment.protocol, fragment.payload)?;
        if class != Class::Local {
            return None;
        }
        *slot = Some(Datagram { ends, id, next, until: now + self.wait });
        Some(class)
    }

    /// Datagrams of which fragments may still come.
    pub(crate) fn expected(&self, now: Instant) -> usize {
        self.datagrams.iter().flatten().filter(|datagram| datagram.until > now).count()
    }
}

/// The IP packet, if it is a fragment.
fn fragmented(frame: &[u8]) -> Option<&[u8]> {
    let packet = frame.get(14..)?;
    let is_fragment = match frame[12..14] {
        [0x08, 0x00] => packet.get(6..8).is_some_and(|field| field[0] & 0x3f | field[1] != 0),
        [0x86, 0xdd] => packet.get(6) == Some(&FRAGMENT),
        _ => false,
    };
    is_fragment.then_some(packet)
}

impl<'p> Fragment<'p> {
    /// A fragment in a header without IPv4 options, or directly behind the IPv6 header.
    fn parse(port: Port, packet: &'p [u8]) -> Option<Self> {
        let number = |at: usize| packet.get(at..at + 2).map(|field| u16::from_be_bytes([field[0], field[1]]));
        let place =
            usize::from(port != Port::OUTSIDE) * PLACES / 2 + usize::from(*packet.get(PLACE_AT)?) % (PLACES / 2);
        let (ends, protocol, id, offset, len, more, at) = match packet[0] {
            0x45 => {
                let field = number(6)?;
                let address = |at: usize| packet.get(at..).and_then(<[u8]>::first_chunk::<4>);
                let ends = (Ipv4Addr::from(*address(12)?).into(), Ipv4Addr::from(*address(16)?).into());
                let len = usize::from(number(2)?).checked_sub(20)?;
                (ends, packet[9], number(4)?.into(), (field & 0x1fff) * 8, len, field & 0x2000 != 0, 20)
            }
            first if first >> 4 == 6 => {
                let field = number(42)?;
                let address = |at: usize| packet.get(at..).and_then(<[u8]>::first_chunk::<16>);
                let ends = (Ipv6Addr::from(*address(8)?).into(), Ipv6Addr::from(*address(24)?).into());
                let len = usize::from(number(4)?).checked_sub(8)?;
                let id = u32::from_be_bytes(*packet.get(44..)?.first_chunk()?);
                (ends, packet[40], id, field & 0xfff8, len, field & 1 != 0, 48)
            }
            _ => return None,
        };
        let (offset, payload) = (usize::from(offset), packet.get(at..)?);
        Some(Self { ends, protocol, id, offset, len, more, place, payload })
    }

    /// Of a UDP datagram that can be, with all of its header in the first.
    fn is_sound(&self) -> bool {
        let is_whole = !self.more || self.len.is_multiple_of(8);
        let is_within = self.offset + self.len <= FRAGMENTED_BYTES_MAX;
        self.protocol == UDP && self.len > 0 && is_whole && is_within && (self.offset > 0 || self.len >= UDP_HEADER)
    }
}
