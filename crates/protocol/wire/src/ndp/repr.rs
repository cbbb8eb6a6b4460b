use core::net::Ipv6Addr;

use super::{Envelope, Flags, HOP_LIMIT, NdpOption, Packet, PrefixInformation, fixed_len, solicited_node};
use crate::{Reason, ethernet::Address, field::put, icmpv6::Type};

/// Bytes of a link-layer address option, and of an MTU option.
const SHORT_OPTION_LEN: usize = 8;
const PREFIX_OPTION_LEN: usize = 32;

/// The address that a neighbour message is about: never multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target(Ipv6Addr);

impl Target {
    /// This address; `None` if it is multicast.
    #[must_use]
    pub const fn new(address: Ipv6Addr) -> Option<Self> {
        if address.is_multicast() { None } else { Some(Self(address)) }
    }

    /// The address.
    #[must_use]
    pub const fn address(&self) -> Ipv6Addr {
        self.0
    }
}

/// What a router says of itself and its link (RFC 4861 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// The hop limit that hosts should use; 0: the router does not say.
    pub hop_limit: u8,
    /// Addresses are available by DHCPv6.
    pub managed: bool,
    /// Other configuration is available by DHCPv6.
    pub other_configuration: bool,
    /// How long this is a default router, in seconds; 0: it is none.
    pub lifetime_s: u16,
    /// How long a neighbour counts as reachable, in milliseconds; 0: the router does not say.
    pub reachable_ms: u32,
    /// Time between solicitations, in milliseconds; 0: the router does not say.
    pub retransmit_ms: u32,
    /// The router's hardware address.
    pub link_layer: Option<Address>,
    /// The link's MTU, in bytes.
    pub mtu: Option<u32>,
    /// The last prefix in the message; [`Packet::options`] has them all.
    pub prefix: Option<PrefixInformation>,
}

/// A valid message with the options that Sluicegate reads or writes; others are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repr {
    /// Which routers are there?
    RouterSolicitation {
        /// The sender's hardware address.
        link_layer: Option<Address>,
    },
    /// A router is here.
    RouterAdvertisement(RouterAdvertisement),
    /// Who has this address?
    NeighborSolicitation {
        /// The address.
        target: Target,
        /// The sender's hardware address.
        link_layer: Option<Address>,
    },
    /// The sender has this address.
    NeighborAdvertisement {
        /// The address.
        target: Target,
        /// What the sender says of the answer.
        flags: Flags,
        /// The target's hardware address.
        link_layer: Option<Address>,
    },
}

impl Repr {
    /// Reads a message and applies every validity check of RFC 4861 6.1 and 7.1.
    ///
    /// # Errors
    /// [`Reason::IcmpType`] for redirects and what is no neighbour discovery; [`Reason::TransportHeaderInvalid`] if a
    /// check fails.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>, envelope: &Envelope) -> Result<Self, Reason> {
        packet.check_len()?;
        if envelope.hop_limit != HOP_LIMIT || packet.code() != 0 || !packet.verify_checksum(envelope) {
            return Err(Reason::TransportHeaderInvalid);
        }
        let mut found = Found::default();
        for option in packet.options() {
            found.note(option?);
        }
        let repr = found.message(packet)?;
        if repr.fits(envelope) { Ok(repr) } else { Err(Reason::TransportHeaderInvalid) }
    }

    /// Whether addresses and message belong together.
    fn fits(&self, envelope: &Envelope) -> bool {
        let anonymous = envelope.src.is_unspecified();
        match *self {
            Self::RouterSolicitation { link_layer } => !(anonymous && link_layer.is_some()),
            Self::RouterAdvertisement(_) => envelope.src.is_unicast_link_local(),
            Self::NeighborSolicitation { target, link_layer } => {
                !anonymous || link_layer.is_none() && envelope.dst == solicited_node(target.0)
            }
            Self::NeighborAdvertisement { flags, .. } => !(flags.solicited && envelope.dst.is_multicast()),
        }
    }

    fn kind(&self) -> Type {
        match self {
            Self::RouterSolicitation { .. } => Type::ROUTER_SOLICITATION,
            Self::RouterAdvertisement(_) => Type::ROUTER_ADVERTISEMENT,
            Self::NeighborSolicitation { .. } => Type::NEIGHBOR_SOLICITATION,
            Self::NeighborAdvertisement { .. } => Type::NEIGHBOR_ADVERTISEMENT,
        }
    }

    fn link_layer(&self) -> Option<Address> {
        match *self {
            Self::RouterSolicitation { link_layer }
            | Self::RouterAdvertisement(RouterAdvertisement { link_layer, .. })
            | Self::NeighborSolicitation { link_layer, .. }
            | Self::NeighborAdvertisement { link_layer, .. } => link_layer,
        }
    }

    fn router(&self) -> Option<&RouterAdvertisement> {
        if let Self::RouterAdvertisement(router) = self { Some(router) } else { None }
    }

    /// Bytes that [`Self::emit`] writes.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        let (mtu, prefix) = self.router().map_or((None, None), |router| (router.mtu, router.prefix));
        fixed_len(self.kind()).unwrap_or(0)
            + SHORT_OPTION_LEN * usize::from(self.link_layer().is_some())
            + SHORT_OPTION_LEN * usize::from(mtu.is_some())
            + PREFIX_OPTION_LEN * usize::from(prefix.is_some())
    }

    /// Writes the message with its checksum. The buffer is [`Self::buffer_len`] bytes long; the packet that carries
    /// it has [`HOP_LIMIT`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>, envelope: &Envelope) {
        packet.set_kind(self.kind());
        match *self {
            Self::RouterSolicitation { .. } => {}
            Self::RouterAdvertisement(ref router) => packet.set_router(router),
            Self::NeighborSolicitation { target, .. } => packet.set_target(target.0),
            Self::NeighborAdvertisement { target, flags, .. } => {
                packet.set_target(target.0);
                packet.set_flags(flags);
            }
        }
        let mut at = 0;
        let mut add = |option: &[u8]| {
            put(packet.options_mut(), at, option);
            at += option.len();
        };
        if let Some([a, b, c, d, e, f]) = self.link_layer() {
            let kind = if matches!(self, Self::NeighborAdvertisement { .. }) { 2 } else { 1 };
            add(&[kind, 1, a, b, c, d, e, f]);
        }
        if let Some(mtu) = self.router().and_then(|router| router.mtu) {
            add(&[5, 1, 0, 0]);
            add(&mtu.to_be_bytes());
        }
        if let Some(prefix) = self.router().and_then(|router| router.prefix) {
            add(&prefix.to_bytes());
        }
        packet.fill_checksum(envelope);
    }
}

/// The options of a message, the last of each kind.
#[derive(Default)]
struct Found {
    source: Option<Address>,
    target: Option<Address>,
    mtu: Option<u32>,
    prefix: Option<PrefixInformation>,
}

impl Found {
    fn note(&mut self, option: NdpOption<'_>) {
        match option {
            NdpOption::SourceLinkLayer(address) => self.source = Some(address),
            NdpOption::TargetLinkLayer(address) => self.target = Some(address),
            NdpOption::Prefix(prefix) => self.prefix = Some(prefix),
            NdpOption::Mtu(mtu) => self.mtu = Some(mtu),
            NdpOption::Other { .. } => {}
        }
    }

    fn message<T: AsRef<[u8]>>(self, packet: &Packet<T>) -> Result<Repr, Reason> {
        if let Some(router) = packet.router() {
            let (link_layer, mtu, prefix) = (self.source, self.mtu, self.prefix);
            return Ok(Repr::RouterAdvertisement(RouterAdvertisement { link_layer, mtu, prefix, ..router }));
        }
        let target = || packet.target().and_then(Target::new).ok_or(Reason::TransportHeaderInvalid);
        match packet.kind() {
            Type::ROUTER_SOLICITATION => Ok(Repr::RouterSolicitation { link_layer: self.source }),
            Type::NEIGHBOR_SOLICITATION => {
                Ok(Repr::NeighborSolicitation { target: target()?, link_layer: self.source })
            }
            Type::NEIGHBOR_ADVERTISEMENT => {
                let flags = packet.flags().unwrap_or_default();
                Ok(Repr::NeighborAdvertisement { target: target()?, flags, link_layer: self.target })
            }
            _ => Err(Reason::IcmpType),
        }
    }
}
