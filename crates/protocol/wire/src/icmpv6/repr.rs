use core::net::IpAddr;

use super::{HEADER_LEN, Packet, Type};
use crate::{
    Reason,
    field::fill,
    ip::{self, Version},
};

/// Why the destination cannot be reached (RFC 4443 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// Code 0.
    NoRoute = 0,
    /// Code 1.
    Prohibited = 1,
    /// Code 2: beyond the scope of the source address.
    BeyondScope = 2,
    /// Code 3.
    Address = 3,
    /// Code 4.
    Port = 4,
    /// Code 5: the source address failed ingress or egress policy.
    SourcePolicy = 5,
    /// Code 6.
    RejectRoute = 6,
}

impl Unreachable {
    const BY_CODE: [Self; 7] = [
        Self::NoRoute,
        Self::Prohibited,
        Self::BeyondScope,
        Self::Address,
        Self::Port,
        Self::SourcePolicy,
        Self::RejectRoute,
    ];
}

/// Whose time ended (RFC 4443 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeExceeded {
    /// Code 0: the packet's hops.
    InTransit = 0,
    /// Code 1: the wait for missing fragments.
    Reassembly = 1,
}

/// What is wrong with the packet (RFC 4443 3.4, RFC 7112).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParameterProblem {
    /// Code 0.
    ErroneousField = 0,
    /// Code 1.
    UnknownNextHeader = 1,
    /// Code 2.
    UnknownOption = 2,
    /// Code 3: the first fragment has not all headers.
    IncompleteHeaderChain = 3,
}

impl ParameterProblem {
    const BY_CODE: [Self; 4] =
        [Self::ErroneousField, Self::UnknownNextHeader, Self::UnknownOption, Self::IncompleteHeaderChain];
}

/// The start of the packet that an error is about: the IPv6 header with all its extension headers, and 8 bytes or
/// more behind them unless the packet had fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote<'a>(&'a [u8]);

impl<'a> Quote<'a> {
    /// The most that is quoted, so that the error fits the smallest MTU of 1,280 bytes (RFC 4443 2.4(c)).
    pub const LEN_MAX: usize = 1280 - 40 - HEADER_LEN;

    /// Quotes `packet`, cut to its own total length and to [`Self::LEN_MAX`].
    ///
    /// # Errors
    /// Those of [`ip::Summary::parse_quoted`], and [`Reason::FrameTruncated`] if less than 8 bytes of the transport
    /// header are there.
    pub fn new(packet: &'a [u8]) -> Result<Self, Reason> {
        ip::quotable(packet, Version::V6, Self::LEN_MAX).map(Self)
    }

    /// The quoted bytes; read them with [`ip::Summary::parse_quoted`].
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// A message of the types that a gate forwards or sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repr<'a> {
    /// Echo request.
    EchoRequest {
        /// Identifier, shared by request and reply.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// Data to be echoed.
        data: &'a [u8],
    },
    /// Echo reply.
    EchoReply {
        /// Identifier of the request.
        ident: u16,
        /// Sequence number of the request.
        seq: u16,
        /// The request's data.
        data: &'a [u8],
    },
    /// Destination unreachable.
    Unreachable {
        /// Why.
        why: Unreachable,
        /// The packet that did not arrive.
        quote: Quote<'a>,
    },
    /// Packet too big.
    PacketTooBig {
        /// MTU of the next link, in bytes.
        mtu: u32,
        /// The packet that did not arrive.
        quote: Quote<'a>,
    },
    /// Time exceeded.
    TimeExceeded {
        /// Which time.
        which: TimeExceeded,
        /// The packet that did not arrive.
        quote: Quote<'a>,
    },
    /// Parameter problem.
    ParameterProblem {
        /// Which.
        what: ParameterProblem,
        /// The byte of the quoted packet that it is about.
        pointer: u32,
        /// The packet that did not arrive.
        quote: Quote<'a>,
    },
}

impl<'a> Repr<'a> {
    /// Reads a message and checks its checksum and what it quotes.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`] if length or checksum are wrong, [`Reason::IcmpType`] for a type or code
    /// that is not listed here, and for errors those of [`Quote::new`].
    pub fn parse<T: AsRef<[u8]> + ?Sized>(packet: &Packet<&'a T>, src: IpAddr, dst: IpAddr) -> Result<Self, Reason> {
        packet.check_len()?;
        if !packet.verify_checksum(src, dst) {
            return Err(Reason::TransportHeaderInvalid);
        }
        let bytes: &'a [u8] = T::as_ref(packet.buffer);
        let payload = bytes.get(HEADER_LEN..).unwrap_or_default();
        let quote = || Quote::new(payload.get(..packet.quoted_len()).unwrap_or_default());
        let (ident, seq, code) = (packet.ident(), packet.seq(), usize::from(packet.code()));
        match (packet.kind(), code) {
            (Type::ECHO_REQUEST, 0) => Ok(Self::EchoRequest { ident, seq, data: payload }),
            (Type::ECHO_REPLY, 0) => Ok(Self::EchoReply { ident, seq, data: payload }),
            (Type::UNREACHABLE, _) => {
                let why = *Unreachable::BY_CODE.get(code).ok_or(Reason::IcmpType)?;
                Ok(Self::Unreachable { why, quote: quote()? })
            }
            // RFC 4443 3.2: the code is ignored by the receiver.
            (Type::PACKET_TOO_BIG, _) => Ok(Self::PacketTooBig { mtu: packet.mtu(), quote: quote()? }),
            (Type::TIME_EXCEEDED, 0) => Ok(Self::TimeExceeded { which: TimeExceeded::InTransit, quote: quote()? }),
            (Type::TIME_EXCEEDED, 1) => Ok(Self::TimeExceeded { which: TimeExceeded::Reassembly, quote: quote()? }),
            (Type::PARAMETER_PROBLEM, _) => {
                let what = *ParameterProblem::BY_CODE.get(code).ok_or(Reason::IcmpType)?;
                Ok(Self::ParameterProblem { what, pointer: packet.pointer(), quote: quote()? })
            }
            _ => Err(Reason::IcmpType),
        }
    }

    fn payload(&self) -> &'a [u8] {
        match *self {
            Self::EchoRequest { data, .. } | Self::EchoReply { data, .. } => data,
            Self::Unreachable { quote, .. }
            | Self::PacketTooBig { quote, .. }
            | Self::TimeExceeded { quote, .. }
            | Self::ParameterProblem { quote, .. } => quote.bytes(),
        }
    }

    /// Bytes that [`Self::emit`] writes.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        HEADER_LEN + self.payload().len()
    }

    /// Writes the message with its checksum. The buffer is [`Self::buffer_len`] bytes long.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>, src: IpAddr, dst: IpAddr) {
        let echo = |ident: u16, seq: u16| {
            let ([i0, i1], [s0, s1]) = (ident.to_be_bytes(), seq.to_be_bytes());
            [i0, i1, s0, s1]
        };
        let (kind, code, rest) = match *self {
            Self::EchoRequest { ident, seq, .. } => (Type::ECHO_REQUEST, 0, echo(ident, seq)),
            Self::EchoReply { ident, seq, .. } => (Type::ECHO_REPLY, 0, echo(ident, seq)),
            Self::Unreachable { why, .. } => (Type::UNREACHABLE, why as u8, [0; 4]),
            Self::PacketTooBig { mtu, .. } => (Type::PACKET_TOO_BIG, 0, mtu.to_be_bytes()),
            Self::TimeExceeded { which, .. } => (Type::TIME_EXCEEDED, which as u8, [0; 4]),
            Self::ParameterProblem { what, pointer, .. } => {
                (Type::PARAMETER_PROBLEM, what as u8, pointer.to_be_bytes())
            }
        };
        packet.set_kind_and_code(kind, code);
        packet.set_rest(rest);
        fill(packet.payload_mut(), self.payload());
        packet.fill_checksum(src, dst);
    }
}
