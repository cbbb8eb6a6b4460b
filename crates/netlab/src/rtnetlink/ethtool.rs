use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;

use super::{
    Netlink,
    message::{Message, attributes},
};

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const FEATURES_WANTED: u16 = 3;
const HEADER_DEV_INDEX: u16 = 1;
const BITSET_BITS: u16 = 3;
const BITSET_BITS_BIT: u16 = 1;
const BITSET_BIT_NAME: u16 = 2;

/// What must be off in a lab: checksums left to the receiver would be "corrupt" for a program that reads the frame on
/// the wire, and merged segments would count as one packet in a packet-limited queue.
const OFFLOADS: [&str; 6] =
    ["tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "rx-gro", "tx-udp-segmentation"];

/// Switches all offloads of the interface off (the part of `ethtool -K` that a lab needs), in the namespace of the
/// calling thread.
///
/// # Errors
/// What the kernel says; a kernel without ethtool netlink answers `NotFound`.
pub(crate) fn switch_offloads_off(interface: u32) -> io::Result<()> {
    let mut netlink = Netlink::with_protocol(NETLINK_GENERIC)?;
    let family = ethtool_family(&mut netlink)?;
    let mut message = Message::new(family, 0, &[ETHTOOL_MSG_FEATURES_SET, 1, 0, 0]);
    message
        .nest(FEATURES_HEADER, |header| {
            header.attribute(HEADER_DEV_INDEX, &interface.to_ne_bytes());
        })
        .nest(FEATURES_WANTED, |wanted| {
            wanted.nest(BITSET_BITS, |bits| {
                for name in OFFLOADS {
                    // A bit that is named and carries no value is switched off.
                    bits.nest(BITSET_BITS_BIT, |bit| {
                        bit.string(BITSET_BIT_NAME, name);
                    });
                }
            });
        });
    netlink.request(message, &format!("switching the offloads of interface {interface} off"))
}

fn ethtool_family(netlink: &mut Netlink) -> io::Result<u16> {
    let mut message = Message::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0]);
    message.string(CTRL_ATTR_FAMILY_NAME, "ethtool");
    let mut family = None;
    netlink.exchange(message, super::ACK, &mut |_, body| {
        let id = attributes(body.get(4..).unwrap_or_default()).find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID);
        family = id.and_then(|(_, value)| Some(u16::from_ne_bytes(value.try_into().ok()?)));
    })?;
    family.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the kernel has no ethtool netlink"))
}
