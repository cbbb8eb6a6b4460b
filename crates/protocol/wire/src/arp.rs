//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use crate::{
    Reason,
    ethernet::{Address, EtherType},
    field::{self, array, packet_view, put, u16_at, u32_at},
};

/// Bytes of a message for Ethernet and IPv4 addresses.
pub const MESSAGE_LEN: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;
const ADDRESS_LENGTHS: u16 = 0x0604;

packet_view! {
    /// An ARP message for Ethernet and IPv4 addresses. Bytes behind its 28 are padding.
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether the message is there and of this form. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::FrameTruncated`] if the buffer is shorter than 28 bytes, [`Reason::EthertypeUnsupported`] if
    /// hardware or protocol are not Ethernet and IPv4.
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        field::at_least(self.bytes().len(), MESSAGE_LEN, Reason::FrameTruncated)?;
        let form = (self.hardware_type(), self.protocol_type(), u16_at(self.bytes(), 4));
        if form == (HARDWARE_ETHERNET, EtherType::IPV4, ADDRESS_LENGTHS) {
            Ok(())
        } else {
            Err(Reason::EthertypeUnsupported)
        }
    }

    /// The kind of hardware addresses; 1 after [`Self::check_len`].
    #[inline]
    pub fn hardware_type(&self) -> u16 {
        u16_at(self.bytes(), 0)
    }

    /// The kind of protocol addresses; IPv4 after [`Self::check_len`].
    #[inline]
    pub fn protocol_type(&self) -> EtherType {
        EtherType(u16_at(self.bytes(), 2))
    }

    /// The operation: 1 request, 2 reply.
    #[inline]
    pub fn operation(&self) -> u16 {
        u16_at(self.bytes(), 6)
    }

    /// The sender's hardware address.
    #[inline]
    pub fn sender_hardware(&self) -> Address {
        array(self.bytes(), 8)
    }

    /// The sender's protocol address; zero in a probe (RFC 5227).
    #[inline]
    pub fn sender_protocol(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32_at(self.bytes(), 14))
    }

    /// The target's hardware address; means nothing in a request.
    #[inline]
    pub fn target_hardware(&self) -> Address {
        array(self.bytes(), 18)
    }

    /// The target's protocol address.
    #[inline]
    pub fn target_protocol(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32_at(self.bytes(), 24))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes kinds and lengths of the addresses: Ethernet and IPv4.
    #[inline]
    pub fn set_form(&mut self) {
        put(self.buffer.as_mut(), 0, &HARDWARE_ETHERNET.to_be_bytes());
        put(self.buffer.as_mut(), 2, &EtherType::IPV4.0.to_be_bytes());
        put(self.buffer.as_mut(), 4, &ADDRESS_LENGTHS.to_be_bytes());
    }

    /// Writes the operation.
    #[inline]
    pub fn set_operation(&mut self, value: u16) {
        put(self.buffer.as_mut(), 6, &value.to_be_bytes());
    }

    /// Writes the sender's hardware address.
    #[inline]
    pub fn set_sender_hardware(&mut self, value: Address) {
        put(self.buffer.as_mut(), 8, &value);
    }

    /// Writes the sender's protocol address.
    #[inline]
    pub fn set_sender_protocol(&mut self, value: Ipv4Addr) {
        put(self.buffer.as_mut(), 14, &value.octets());
    }

    /// Writes the target's hardware address.
    #[inline]
    pub fn set_target_hardware(&mut self, value: Address) {
        put(self.buffer.as_mut(), 18, &value);
    }

    /// Writes the target's protocol address.
    #[inline]
    pub fn set_target_protocol(&mut self, value: Ipv4Addr) {
        put(self.buffer.as_mut(), 24, &value.octets());
    }
}

/// What a message does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Who has the target's protocol address?
    Request = 1,
    /// The sender has the sender's protocol address.
    Reply = 2,
}

/// A message for Ethernet and IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Request or reply.
    pub operation: Operation,
    /// The sender's hardware address.
    pub sender_hardware: Address,
    /// The sender's protocol address; unspecified in a probe.
    pub sender_protocol: Ipv4Addr,
    /// The target's hardware address; zero in a request.
    pub target_hardware: Address,
    /// The target's protocol address.
    pub target_protocol: Ipv4Addr,
}

impl Repr {
    /// Asks who has `target_protocol`.
    #[must_use]
    pub const fn request(sender_hardware: Address, sender_protocol: Ipv4Addr, target_protocol: Ipv4Addr) -> Self {
        let operation = Operation::Request;
        Self { operation, sender_hardware, sender_protocol, target_hardware: [0; 6], target_protocol }
    }

    /// Answers this request: `hardware` has the address that it asks for.
    #[must_use]
    pub const fn answer(&self, hardware: Address) -> Self {
        Self {
            operation: Operation::Reply,
            sender_hardware: hardware,
            sender_protocol: self.target_protocol,
            target_hardware: self.sender_hardware,
            target_protocol: self.sender_protocol,
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// Those of [`Packet::check_len`], and [`Reason::EthertypeUnsupported`] for another operation.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Self, Reason> {
        packet.check_len()?;
        let operation = match packet.operation() {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return Err(Reason::EthertypeUnsupported),
        };
        Ok(Self {
            operation,
            sender_hardware: packet.sender_hardware(),
            sender_protocol: packet.sender_protocol(),
            target_hardware: packet.target_hardware(),
            target_protocol: packet.target_protocol(),
        })
    }

    /// Bytes that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        MESSAGE_LEN
    }

    /// Writes the message.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_form();
        packet.set_operation(self.operation as u16);
        packet.set_sender_hardware(self.sender_hardware);
        packet.set_sender_protocol(self.sender_protocol);
        packet.set_target_hardware(self.target_hardware);
        packet.set_target_protocol(self.target_protocol);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[rustfmt::skip]
    const BYTES: [u8; 30] = [
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2, 0xee, 0xee,
    ];
    const REPR: Repr = Repr::request([2, 0, 0, 0, 0, 1], Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn deconstruct() {
        let packet = Packet::new_checked(&BYTES[..]).unwrap();
        assert_eq!((packet.hardware_type(), packet.protocol_type(), packet.operation()), (1, EtherType::IPV4, 1));
        assert_eq!((packet.sender_hardware(), packet.sender_protocol()), (REPR.sender_hardware, REPR.sender_protocol));
        assert_eq!((packet.target_hardware(), packet.target_protocol()), ([0; 6], REPR.target_protocol));
    }

    #[test]
    fn construct() {
        let mut packet = Packet::new_unchecked([0xee; 30]);
        packet.set_form();
        packet.set_operation(1);
        packet.set_sender_hardware(REPR.sender_hardware);
        packet.set_sender_protocol(REPR.sender_protocol);
        packet.set_target_hardware([0; 6]);
        packet.set_target_protocol(REPR.target_protocol);
        assert_eq!(packet.into_inner(), BYTES);
    }

    #[test]
    fn parse() {
        assert_eq!(Repr::parse(&Packet::new_unchecked(&BYTES[..])), Ok(REPR));
        for (at, value) in [(1, 6), (3, 1), (4, 8), (5, 16), (7, 0), (7, 3)] {
            let mut bytes = BYTES;
            bytes[at] = value;
            let parsed = Repr::parse(&Packet::new_unchecked(&bytes[..]));
            assert_eq!(parsed, Err(Reason::EthertypeUnsupported), "byte {at} = {value}");
        }
    }

    #[test]
    fn emit() {
        let mut bytes = BYTES;
        bytes[..REPR.buffer_len()].fill(0xa5);
        REPR.emit(&mut Packet::new_unchecked(&mut bytes[..]));
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn impossible_length() {
        for len in 0..MESSAGE_LEN {
            assert_eq!(Packet::new_checked(&BYTES[..len]), Err(Reason::FrameTruncated));
        }
    }

    #[test]
    fn an_answer_turns_the_request_round() {
        let answer = REPR.answer([2, 0, 0, 0, 0, 2]);
        assert_eq!((answer.operation, answer.sender_protocol), (Operation::Reply, REPR.target_protocol));
        assert_eq!((answer.target_hardware, answer.target_protocol), (REPR.sender_hardware, REPR.sender_protocol));
    }

    proptest! {
        #[test]
        fn emitted_messages_parse_to_the_same(reply: bool, hardware: (Address, Address), protocol: (u32, u32)) {
            let repr = Repr {
                operation: if reply { Operation::Reply } else { Operation::Request },
                sender_hardware: hardware.0, sender_protocol: Ipv4Addr::from_bits(protocol.0),
                target_hardware: hardware.1, target_protocol: Ipv4Addr::from_bits(protocol.1),
            };
            let mut bytes = [0; MESSAGE_LEN];
            repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
            prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes[..])), Ok(repr));
        }
    }
}
