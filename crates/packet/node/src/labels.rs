//! Which lane of a scheduled link a packet rides, and in whose queue.

use alloc::{borrow::ToOwned, string::String};
use core::{net::IpAddr, str::FromStr};
use sluicegate_capability::router::Class;
use sluicegate_scheduler::Label;
use sluicegate_wire::ip::octets;

/// The weight of every queue of the regular lane.
const WEIGHT: u16 = 1;

/// Between whom the regular lane is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fairness {
    /// Between destination addresses (TVA III-I): the only key that nobody can forge to get more.
    #[default]
    Destination,
    /// Between source addresses; only where they cannot be forged.
    Source,
    /// Between prefixes of this length of the destination.
    Prefix(u8),
}

/// Text that names no way to share the regular lane.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no fairness; write \"destination\", \"source\" or \"prefix/24\"")]
pub struct FairnessError {
    /// The text given.
    pub text: String,
}

impl FromStr for Fairness {
    type Err = FairnessError;

    fn from_str(text: &str) -> Result<Self, FairnessError> {
        let wrong = || FairnessError { text: text.to_owned() };
        match text {
            "destination" => Ok(Self::Destination),
            "source" => Ok(Self::Source),
            _ => {
                let len = text.strip_prefix("prefix/").and_then(|len| len.parse().ok()).ok_or_else(wrong)?;
                if (1..=128).contains(&len) { Ok(Self::Prefix(len)) } else { Err(wrong()) }
            }
        }
    }
}

/// The operator's choice between whom the regular lane is shared.
#[derive(Debug, Clone, Copy)]
pub struct Labels {
    fairness: Fairness,
}

impl Labels {
    /// Labels for a link that is shared so.
    #[must_use]
    pub const fn new(fairness: Fairness) -> Self {
        Self { fairness }
    }

    /// The label of what a router made of an IP packet.
    pub(crate) fn label(&self, class: &Class, packet: &[u8]) -> Label {
        match class {
            Class::Request { path } => Label::request(*path),
            Class::Regular { .. } => self.regular(packet),
            Class::Legacy { .. } => Label::LEGACY,
        }
    }

    /// The label of a wanted packet.
    pub(crate) fn regular(&self, packet: &[u8]) -> Label {
        let Some((source, destination)) = ends(packet) else { return Label::regular(0, WEIGHT) };
        let queue = match self.fairness {
            Fairness::Destination => bits(destination),
            Fairness::Source => sender(source),
            Fairness::Prefix(len) => prefix(destination, len),
        };
        Label::regular(queue, WEIGHT).from(sender(source))
    }
}

/// What one host can choose among is one sender: an IPv4 address, or an IPv6 network of 64 bits.
fn sender(source: IpAddr) -> u128 {
    prefix(source, 64)
}

/// An address as a number; those of IPv4 as they are mapped into IPv6.
const fn bits(address: IpAddr) -> u128 {
    u128::from_be_bytes(octets(address))
}

fn prefix(address: IpAddr, len: u8) -> u128 {
    let full = if address.is_ipv4() { 32 } else { 128 };
    let host_bits = u32::from(full - len.min(full));
    (bits(address) >> host_bits) << host_bits
}

/// Source and destination of an IP packet.
pub(crate) fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let source = packet.get(12..)?.first_chunk::<4>()?;
            Some((IpAddr::from(*source), IpAddr::from(*packet.get(16..)?.first_chunk::<4>()?)))
        }
        6 => {
            let source = packet.get(8..)?.first_chunk::<16>()?;
            Some((IpAddr::from(*source), IpAddr::from(*packet.get(24..)?.first_chunk::<16>()?)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use sluicegate_wire::{IpProtocol, build};
    use std::vec::Vec;

    fn packet(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
        build::packet(Ipv4Addr::from(source), Ipv4Addr::from(destination), &(IpProtocol::UDP, &[][..]))
    }

    #[test]
    fn senders_to_one_destination_take_turns_and_a_host_of_ipv6_is_its_network() {
        let labels = Labels::new(Fairness::Destination);
        let sender_of = |source: &str| sender(source.parse().expect("an address"));
        let [one, other] =
            [[198, 51, 100, 7], [198, 51, 100, 8]].map(|source| labels.regular(&packet(source, [10, 0, 0, 1])));
        assert!(one.queue == other.queue && one.sender != other.sender);
        assert_eq!(sender_of("2001:db8:0:1::1"), sender_of("2001:db8:0:1:ffff::2"));
        assert_ne!(sender_of("2001:db8:0:1::1"), sender_of("2001:db8:0:2::1"));
    }

    fn shares(fairness: Fairness, one: &[u8], other: &[u8]) -> bool {
        let labels = Labels::new(fairness);
        labels.regular(one).queue == labels.regular(other).queue
    }

    #[test]
    fn the_key_decides_who_shares_a_queue() {
        let one = packet([198, 51, 100, 7], [10, 0, 0, 1]);
        let same_destination = packet([198, 51, 100, 8], [10, 0, 0, 1]);
        let same_source = packet([198, 51, 100, 7], [10, 0, 0, 2]);
        let elsewhere = packet([198, 51, 100, 7], [10, 0, 1, 1]);
        assert!(shares(Fairness::Destination, &one, &same_destination));
        assert!(!shares(Fairness::Destination, &one, &same_source));
        assert!(shares(Fairness::Source, &one, &same_source) && !shares(Fairness::Source, &one, &same_destination));
        assert!(shares(Fairness::Prefix(24), &one, &same_source) && !shares(Fairness::Prefix(24), &one, &elsewhere));
        assert!(!shares(Fairness::Prefix(128), &one, &same_source), "longer than the address: all of it");
    }

    #[test]
    fn a_packet_that_is_none_has_a_queue_like_any_other() {
        assert_eq!(Labels::new(Fairness::Destination).regular(&[]).queue, 0);
    }
}
