use core::{
    fmt::Debug,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use sluicegate_wire::capability::ClientId;

use crate::Hasher;

/// What a key names. Stored in the line, so that keys of different kinds never match each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A packet that enters from outside: (remote address, port) -> (gate or service address, port).
    Inbound = 1,
    /// A packet that enters from inside: (service address, port) -> (remote address, port).
    Outbound = 2,
    /// A packet with a capability, whatever its protocol and ports: (source, destination, client id).
    Capability = 3,
}

impl Kind {
    const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Inbound,
            2 => Self::Outbound,
            _ => Self::Capability,
        }
    }
}

/// One direction of one flow, as it looks on arrival at the gate.
///
/// For ICMP echo the source port is the identifier and the destination port the ICMP type, so that a flow of requests
/// never admits requests in the other direction.
pub trait Key: Copy + Eq + Debug {
    /// Address of this family.
    type Address: Copy + Eq + Debug + Into<IpAddr>;

    /// The key of a flow with ports.
    fn new(kind: Kind, protocol: u8, src: (Self::Address, u16), dst: (Self::Address, u16)) -> Self;
    /// The key of a TVA flow (TVA III-F: a sender and a destination) and of the client behind the sender's address.
    #[inline]
    fn of_capability(src: Self::Address, dst: Self::Address, client: ClientId) -> Self {
        Self::new(Kind::Capability, 0, (src, (client.0 >> 16) as u16), (dst, client.0 as u16))
    }
    /// Which direction.
    fn kind(&self) -> Kind;
    /// IP protocol number.
    fn protocol(&self) -> u8;
    /// Source address and port.
    fn src(&self) -> (Self::Address, u16);
    /// Destination address and port.
    fn dst(&self) -> (Self::Address, u16);
    /// The keyed hash that places it.
    fn hash(&self, hasher: &Hasher) -> u64;
}

/// `src 4 | dst 4 | src port 2 | dst port 2 | protocol 1 | kind 1 | zero 2`, addresses and ports in network order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key4(pub(crate) [u64; 2]);

/// `src 16 | dst 16 | src port 2 | dst port 2 | protocol 1 | kind 1 | zero 2`, addresses and ports in network order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key6(pub(crate) [u64; 5]);

/// The last eight bytes, which both families share.
#[inline]
const fn tail(kind: Kind, protocol: u8, src_port: u16, dst_port: u16) -> u64 {
    let (src, dst) = (src_port.to_be_bytes(), dst_port.to_be_bytes());
    u64::from_ne_bytes([src[0], src[1], dst[0], dst[1], protocol, kind as u8, 0, 0])
}

#[inline]
const fn tail_ports(word: u64) -> (u16, u16) {
    let bytes = word.to_ne_bytes();
    (u16::from_be_bytes([bytes[0], bytes[1]]), u16::from_be_bytes([bytes[2], bytes[3]]))
}

impl Key for Key4 {
    type Address = Ipv4Addr;

    #[inline]
    fn new(kind: Kind, protocol: u8, src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (src.0.octets(), dst.0.octets());
        Self([u64::from_ne_bytes([a, b, c, d, e, f, g, h]), tail(kind, protocol, src.1, dst.1)])
    }

    fn kind(&self) -> Kind {
        Kind::from_code(self.0[1].to_ne_bytes()[5])
    }

    #[inline]
    fn protocol(&self) -> u8 {
        self.0[1].to_ne_bytes()[4]
    }

    fn src(&self) -> (Ipv4Addr, u16) {
        let [a, b, c, d, ..] = self.0[0].to_ne_bytes();
        (Ipv4Addr::new(a, b, c, d), tail_ports(self.0[1]).0)
    }

    fn dst(&self) -> (Ipv4Addr, u16) {
        let [.., a, b, c, d] = self.0[0].to_ne_bytes();
        (Ipv4Addr::new(a, b, c, d), tail_ports(self.0[1]).1)
    }

    #[inline]
    fn hash(&self, hasher: &Hasher) -> u64 {
        hasher.hash_words(self.0)
    }
}

fn halves(address: Ipv6Addr) -> [u64; 2] {
    let bits = address.to_bits();
    [((bits >> 64) as u64).to_be(), (bits as u64).to_be()]
}

fn whole(halves: [u64; 2]) -> Ipv6Addr {
    Ipv6Addr::from_bits(u128::from(u64::from_be(halves[0])) << 64 | u128::from(u64::from_be(halves[1])))
}

impl Key for Key6 {
    type Address = Ipv6Addr;

    #[inline]
    fn new(kind: Kind, protocol: u8, src: (Ipv6Addr, u16), dst: (Ipv6Addr, u16)) -> Self {
        let ([a, b], [c, d]) = (halves(src.0), halves(dst.0));
        Self([a, b, c, d, tail(kind, protocol, src.1, dst.1)])
    }

    fn kind(&self) -> Kind {
        Kind::from_code(self.0[4].to_ne_bytes()[5])
    }

    #[inline]
    fn protocol(&self) -> u8 {
        self.0[4].to_ne_bytes()[4]
    }

    fn src(&self) -> (Ipv6Addr, u16) {
        (whole([self.0[0], self.0[1]]), tail_ports(self.0[4]).0)
    }

    fn dst(&self) -> (Ipv6Addr, u16) {
        (whole([self.0[2], self.0[3]]), tail_ports(self.0[4]).1)
    }

    #[inline]
    fn hash(&self, hasher: &Hasher) -> u64 {
        hasher.hash_words(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_back_what_it_was_made_of() {
        let (a, b) = ((Ipv4Addr::new(192, 0, 2, 1), 5060), (Ipv4Addr::new(198, 51, 100, 7), 80));
        let key = Key4::new(Kind::Inbound, 17, a, b);
        assert_eq!((key.kind(), key.protocol(), key.src(), key.dst()), (Kind::Inbound, 17, a, b));

        let a = ("2001:db8::1".parse().unwrap(), 1);
        let b = ("2001:db8:ff::2".parse().unwrap(), 65_535);
        let key = Key6::new(Kind::Outbound, 6, a, b);
        assert_eq!((key.kind(), key.protocol(), key.src(), key.dst()), (Kind::Outbound, 6, a, b));
    }

    #[test]
    fn the_memory_order_is_the_one_that_the_kernel_program_builds() {
        let key =
            Key4::new(Kind::Outbound, 6, (Ipv4Addr::new(1, 2, 3, 4), 0x0506), (Ipv4Addr::new(7, 8, 9, 10), 0x0b0c));
        let bytes = [key.0[0].to_ne_bytes(), key.0[1].to_ne_bytes()].concat();
        assert_eq!(bytes, [1, 2, 3, 4, 7, 8, 9, 10, 5, 6, 0x0b, 0x0c, 6, 2, 0, 0]);
    }

    #[test]
    fn the_key_of_a_capability_differs_by_every_bit_of_the_client_id() {
        let key = |client| Key4::of_capability(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, ClientId(client));
        assert_eq!(
            (key(0).kind(), key(0).src().0, key(0).dst().0),
            (Kind::Capability, Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST)
        );
        for bit in 0..32 {
            assert_ne!(key(0), key(1 << bit), "{bit}");
        }
    }

    #[test]
    fn another_hash_key_places_it_elsewhere() {
        let key = Key4::new(Kind::Inbound, 17, (Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::LOCALHOST, 2));
        assert_ne!(key.hash(&Hasher::new(&[1; 16])), key.hash(&Hasher::new(&[2; 16])));
    }
}
