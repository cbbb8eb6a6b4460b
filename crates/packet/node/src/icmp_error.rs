//! ICMP errors of the node's own.

use core::net::IpAddr;

use sluicegate_wire::{
    Frame, build,
    icmp::{Quote, Repr},
    ip::Summary,
};

use crate::forward::Forwarding;

/// The smallest IPv6 MTU, which no error exceeds (RFC 4443 2.4c); errors for IPv4 are shorter still.
const REPLY_LEN_MAX: usize = 1_280;

/// Turns `frame`, which is too long for a link of `mtu` bytes, into the answer that says so (RFC 1191 4, RFC 4443 3.2).
/// `None`: no answer can be made of it.
pub(crate) fn too_big(config: &Forwarding, mtu: u16, frame: &mut Frame<'_>, ip: &Summary) -> Option<()> {
    answer(config, (frame, ip), |quote| Repr::PacketTooBig { mtu, quote })
}

/// Turns `frame`, whose time to live is over, into the answer that says so (RFC 792, RFC 4443 3.3).
pub(crate) fn time_exceeded(config: &Forwarding, frame: &mut Frame<'_>, ip: &Summary) -> Option<()> {
    answer(config, (frame, ip), |quote| Repr::TimeExceeded { quote })
}

/// Replaces a packet by an error about it, from the node's own address where it has one.
fn answer(
    config: &Forwarding,
    (frame, ip): (&mut Frame<'_>, &Summary),
    message: impl for<'q> FnOnce(Quote<'q>) -> Repr<'q>,
) -> Option<()> {
    let own: IpAddr = match ip.dst {
        IpAddr::V4(dst) if config.address.is_unspecified() => dst.into(),
        IpAddr::V4(_) => config.address.into(),
        IpAddr::V6(dst) => config.address_v6.unwrap_or(dst).into(),
    };
    let mut buffer = [0; REPLY_LEN_MAX];
    let len = build::write(&mut buffer, own, ip.src, &message(Quote::new(frame.bytes()).ok()?))?;
    frame.replace(buffer.get(..len)?)
}
