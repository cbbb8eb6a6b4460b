use super::{HEADER_LEN, Packet, Type};
use crate::{
    Reason,
    field::fill,
    ip::{self, Version},
};

/// Why the destination cannot be reached (RFC 792, RFC 1122 3.2.2.1, RFC 1812 5.2.7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// Code 0.
    Network,
    /// Code 1.
    Host,
    /// Code 2.
    Protocol,
    /// Code 3.
    Port,
    /// Code 4: the packet is larger than the next link carries and must not be fragmented.
    FragmentationNeeded {
        /// MTU of that link in bytes (RFC 1191 4); zero from old routers.
        next_hop_mtu: u16,
    },
    /// Code 5.
    SourceRouteFailed,
    /// Code 6.
    NetworkUnknown,
    /// Code 7.
    HostUnknown,
    /// Code 8.
    SourceIsolated,
    /// Code 9.
    NetworkProhibited,
    /// Code 10.
    HostProhibited,
    /// Code 11.
    NetworkForService,
    /// Code 12.
    HostForService,
    /// Code 13.
    CommunicationProhibited,
    /// Code 14.
    HostPrecedence,
    /// Code 15.
    PrecedenceCutoff,
}

impl Unreachable {
    const FRAGMENTATION_NEEDED: u8 = 4;
    const BY_CODE: [Self; 16] = [
        Self::Network,
        Self::Host,
        Self::Protocol,
        Self::Port,
        Self::FragmentationNeeded { next_hop_mtu: 0 },
        Self::SourceRouteFailed,
        Self::NetworkUnknown,
        Self::HostUnknown,
        Self::SourceIsolated,
        Self::NetworkProhibited,
        Self::HostProhibited,
        Self::NetworkForService,
        Self::HostForService,
        Self::CommunicationProhibited,
        Self::HostPrecedence,
        Self::PrecedenceCutoff,
    ];

    fn parse(code: u8, next_hop_mtu: u16) -> Option<Self> {
        if code == Self::FRAGMENTATION_NEEDED {
            return Some(Self::FragmentationNeeded { next_hop_mtu });
        }
        Self::BY_CODE.get(usize::from(code)).copied()
    }

    fn code_and_mtu(self) -> (u8, u16) {
        if let Self::FragmentationNeeded { next_hop_mtu } = self {
            return (Self::FRAGMENTATION_NEEDED, next_hop_mtu);
        }
        let code = Self::BY_CODE.iter().position(|known| *known == self);
        (code.map_or(0, |code| code as u8), 0)
    }
}

/// Whose time ended (RFC 792).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeExceeded {
    /// Code 0: the packet's hops.
    InTransit,
    /// Code 1: the wait for missing fragments.
    Reassembly,
}

/// What is wrong with the header (RFC 792, RFC 1122 3.2.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParameterProblem {
    /// Code 0: this byte of the quoted packet.
    Pointer(u8),
    /// Code 1: a required option is missing.
    MissingOption,
    /// Code 2: a length is wrong.
    BadLength,
}

/// The start of the packet that an error is about: an IPv4 header with a right checksum, and 8 bytes or more behind
/// it unless the packet had fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote<'a>(&'a [u8]);

impl<'a> Quote<'a> {
    /// The most that is quoted, so that the error has 576 bytes at most (RFC 1812 4.3.2.3).
    pub const LEN_MAX: usize = 576 - 20 - HEADER_LEN;

    /// Quotes `packet`, cut to its own total length and to [`Self::LEN_MAX`].
    ///
    /// # Errors
    /// Those of [`ip::Summary::parse_quoted`], and [`Reason::FrameTruncated`] if less than 8 bytes of the transport
    /// header are there.
    pub fn new(packet: &'a [u8]) -> Result<Self, Reason> {
        ip::quotable(packet, Version::V4, Self::LEN_MAX).map(Self)
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
    pub fn parse<T: AsRef<[u8]> + ?Sized>(packet: &Packet<&'a T>) -> Result<Self, Reason> {
        packet.check_len()?;
        if !packet.verify_checksum() {
            return Err(Reason::TransportHeaderInvalid);
        }
        let bytes: &'a [u8] = T::as_ref(packet.buffer);
        let payload = bytes.get(HEADER_LEN..).unwrap_or_default();
        let quote = || Quote::new(payload.get(..packet.quoted_len()).unwrap_or_default());
        let (ident, seq) = (packet.ident(), packet.seq());
        match (packet.kind(), packet.code()) {
            (Type::ECHO_REQUEST, 0) => Ok(Self::EchoRequest { ident, seq, data: payload }),
            (Type::ECHO_REPLY, 0) => Ok(Self::EchoReply { ident, seq, data: payload }),
            (Type::UNREACHABLE, code) => {
                let why = Unreachable::parse(code, packet.next_hop_mtu()).ok_or(Reason::IcmpType)?;
                Ok(Self::Unreachable { why, quote: quote()? })
            }
            (Type::TIME_EXCEEDED, 0) => Ok(Self::TimeExceeded { which: TimeExceeded::InTransit, quote: quote()? }),
            (Type::TIME_EXCEEDED, 1) => Ok(Self::TimeExceeded { which: TimeExceeded::Reassembly, quote: quote()? }),
            (Type::PARAMETER_PROBLEM, code) => {
                let what = match code {
                    0 => ParameterProblem::Pointer(packet.pointer()),
                    1 => ParameterProblem::MissingOption,
                    2 => ParameterProblem::BadLength,
                    _ => return Err(Reason::IcmpType),
                };
                Ok(Self::ParameterProblem { what, quote: quote()? })
            }
            _ => Err(Reason::IcmpType),
        }
    }

    fn payload(&self) -> &'a [u8] {
        match *self {
            Self::EchoRequest { data, .. } | Self::EchoReply { data, .. } => data,
            Self::Unreachable { quote, .. }
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
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        let echo = |ident: u16, seq: u16| {
            let ([i0, i1], [s0, s1]) = (ident.to_be_bytes(), seq.to_be_bytes());
            [i0, i1, s0, s1]
        };
        let (kind, code, rest) = match *self {
            Self::EchoRequest { ident, seq, .. } => (Type::ECHO_REQUEST, 0, echo(ident, seq)),
            Self::EchoReply { ident, seq, .. } => (Type::ECHO_REPLY, 0, echo(ident, seq)),
            Self::Unreachable { why, .. } => {
                let (code, mtu) = why.code_and_mtu();
                (Type::UNREACHABLE, code, echo(0, mtu))
            }
            Self::TimeExceeded { which, .. } => (Type::TIME_EXCEEDED, which as u8, [0; 4]),
            Self::ParameterProblem { what, .. } => match what {
                ParameterProblem::Pointer(at) => (Type::PARAMETER_PROBLEM, 0, [at, 0, 0, 0]),
                ParameterProblem::MissingOption => (Type::PARAMETER_PROBLEM, 1, [0; 4]),
                ParameterProblem::BadLength => (Type::PARAMETER_PROBLEM, 2, [0; 4]),
            },
        };
        packet.set_kind_and_code(kind, code);
        packet.set_rest(rest);
        fill(packet.payload_mut(), self.payload());
        packet.fill_checksum();
    }
}
