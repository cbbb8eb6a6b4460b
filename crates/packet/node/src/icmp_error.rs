//! ICMP errors of the node's own.

use core::net::IpAddr;

use sluicegate_wire::{
    Frame, build,
    icmpv4::{self, Unreachable},
    icmpv6,
    ip::Summary,
};

use crate::forward::Forwarding;

/// The smallest IPv6 MTU, which no error exceeds (RFC 4443 2.4c); errors for IPv4 are shorter still.
const REPLY_LEN_MAX: usize = 1_280;

/// Turns `frame`, which is too long for a link of `mtu` bytes, into the answer that says so (RFC 1191 4, RFC 4443 3.2).
/// `None`: no answer can be made of it.
pub(crate) fn too_big(config: &Forwarding, mtu: u16, frame: &mut Frame<'_>, ip: &Summary) -> Option<()> {
    answer(
        config,
        (frame, ip),
        |quote| icmpv4::Repr::Unreachable { why: Unreachable::FragmentationNeeded { next_hop_mtu: mtu }, quote },
        |quote| icmpv6::Repr::PacketTooBig { mtu: mtu.into(), quote },
    )
}

/// Turns `frame`, whose time to live is over, into the answer that says so (RFC 792, RFC 4443 3.3).
pub(crate) fn time_exceeded(config: &Forwarding, frame: &mut Frame<'_>, ip: &Summary) -> Option<()> {
    answer(
        config,
        (frame, ip),
        |quote| icmpv4::Repr::TimeExceeded { which: icmpv4::TimeExceeded::InTransit, quote },
        |quote| icmpv6::Repr::TimeExceeded { which: icmpv6::TimeExceeded::InTransit, quote },
    )
}

/// Replaces a packet by an error about it, from the node's own address where it has one.
fn answer(
    config: &Forwarding,
    (frame, ip): (&mut Frame<'_>, &Summary),
    v4: impl for<'q> FnOnce(icmpv4::Quote<'q>) -> icmpv4::Repr<'q>,
    v6: impl for<'q> FnOnce(icmpv6::Quote<'q>) -> icmpv6::Repr<'q>,
) -> Option<()> {
    let mut buffer = [0; REPLY_LEN_MAX];
    let len = match (ip.src, ip.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let own = if config.address.is_unspecified() { dst } else { config.address };
            build::write(&mut buffer, own, src, &v4(icmpv4::Quote::new(frame.bytes()).ok()?))?
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let own = config.address_v6.unwrap_or(dst);
            build::write(&mut buffer, own, src, &v6(icmpv6::Quote::new(frame.bytes()).ok()?))?
        }
        _ => return None,
    };
    frame.replace(buffer.get(..len)?)
}
