//! Session descriptions (RFC 8866): what a call wants opened, and what it was given.
//!
//! Only what opens or moves a pinhole is read: origin, connection, media lines and a few attributes. All other lines
//! pass through a rewrite as they are.

mod answer;
mod parse;
mod rewrite;

pub use answer::{Answer, MediaAnswer, ServiceOffer, ServicePorts};
pub use rewrite::{MediaEdit, Rewrite};

use core::net::IpAddr;

use crate::message::scan::decimal_u16;

/// The most media lines in one description.
pub const MEDIA_MAX: usize = 16;
/// The `proto` format name of media that stand for ports of a service instead of audio or video.
pub const SERVICE_FORMAT: &[u8] = b"sluicegate";

/// Why a description is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SdpError {
    /// Longer than [`BODY_LEN_MAX`](crate::message::BODY_LEN_MAX).
    #[error("the session description is too long")]
    Length,
    /// A line that is not `letter=value`, or does not begin with `v=0`.
    #[error("the session description has a malformed line")]
    Line,
    /// No `o=` line, or one without its six parts.
    #[error("the origin line is missing or malformed")]
    Origin,
    /// A `c=` line without network type, address type and address.
    #[error("a connection line is malformed")]
    Connection,
    /// An `m=` line without media, port, protocol and formats.
    #[error("a media line is malformed")]
    Media,
    /// More than [`MEDIA_MAX`] media lines.
    #[error("the session description has more than {MEDIA_MAX} media lines")]
    MediaCount,
    /// `a=service-ports` or `a=rtcp` without usable port numbers.
    #[error("an attribute is malformed")]
    Attribute,
}

/// Which way media flow, seen from the side that wrote the description (RFC 3264 section 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Both ways.
    #[default]
    SendRecv,
    /// From the writer only.
    SendOnly,
    /// To the writer only.
    RecvOnly,
    /// Neither: on hold.
    Inactive,
}

impl Direction {
    /// The attribute's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SendRecv => "sendrecv",
            Self::SendOnly => "sendonly",
            Self::RecvOnly => "recvonly",
            Self::Inactive => "inactive",
        }
    }

    /// The direction that answers this one (RFC 3264 section 6.1).
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Self::SendOnly => Self::RecvOnly,
            Self::RecvOnly => Self::SendOnly,
            other => other,
        }
    }
}

/// Who opens a TCP connection (RFC 4145).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// The writer connects.
    Active,
    /// The writer waits.
    Passive,
    /// The writer can do both.
    ActPass,
    /// Not now.
    HoldConn,
}

impl Setup {
    /// The attribute's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Passive => "passive",
            Self::ActPass => "actpass",
            Self::HoldConn => "holdconn",
        }
    }

    /// The answer to this offer, which lets the offering side connect if it can (RFC 4145 section 4.1).
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Self::Active | Self::ActPass => Self::Passive,
            Self::Passive => Self::Active,
            Self::HoldConn => Self::HoldConn,
        }
    }
}

/// The transport that a media line names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// UDP and all that runs over it: RTP, T.38, DTLS.
    Udp,
    /// TCP and what runs over it.
    Tcp,
    /// An IP protocol by its number, as `IP/50`: an agent's name for what session descriptions have none for.
    Ip(u8),
    /// Anything else: cannot be opened.
    Other,
}

/// The `o=` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The user's name, often `-`.
    pub username: &'a [u8],
    /// Identifies the session together with user name and address.
    pub session_id: &'a [u8],
    /// Grows with each change.
    pub version: &'a [u8],
    /// `None` if it is a host name.
    pub address: Option<IpAddr>,
}

/// One `m=` line with its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Media<'a> {
    /// `audio`, `video`, `application` ...
    pub kind: &'a [u8],
    /// 0: refused or ended.
    pub port: u16,
    /// Pairs of ports, from 1.
    pub port_count: u16,
    /// The protocol as written, such as `RTP/AVP`.
    pub protocol: &'a [u8],
    /// The formats as written, blanks between them.
    pub formats: &'a [u8],
    /// Where the writer receives: the media's own `c=` or that of the session. `None` if absent or a host name.
    pub address: Option<IpAddr>,
    /// Which way the media flow.
    pub direction: Direction,
    /// Port of `a=rtcp`.
    pub rtcp_port: Option<u16>,
    /// Address of `a=rtcp`.
    pub rtcp_address: Option<IpAddr>,
    /// RTP and RTCP share one port (RFC 5761).
    pub rtcp_mux: bool,
    /// Who connects.
    pub setup: Option<Setup>,
    /// `a=service-ports`: first and last port of the service that the client wants to reach.
    pub service_ports: Option<(u16, u16)>,
    has_own_connection: bool,
}

impl Media<'_> {
    /// What carries it.
    #[must_use]
    pub fn transport(&self) -> Transport {
        let mut parts = self.protocol.split(|byte| *byte == b'/');
        let (first, second) = (parts.next().unwrap_or_default(), parts.next());
        match first {
            b"IP" => second
                .and_then(decimal_u16)
                .and_then(|number| u8::try_from(number).ok())
                .map_or(Transport::Other, Transport::Ip),
            _ if first.eq_ignore_ascii_case(b"TCP") => Transport::Tcp,
            _ if [&b"UDP"[..], b"RTP", b"UDPTL", b"DTLS"].iter().any(|udp| first.eq_ignore_ascii_case(udp)) => {
                Transport::Udp
            }
            _ => Transport::Other,
        }
    }

    /// Whether RTCP runs beside it on a port of its own, and which.
    #[must_use]
    pub fn rtcp(&self) -> Option<u16> {
        let is_rtp = memchr::memmem::find(self.protocol, b"RTP/").is_some();
        match self.rtcp_port {
            _ if !is_rtp || self.port == 0 || self.rtcp_mux => None,
            Some(port) => Some(port).filter(|port| *port != self.port),
            None => self.port.checked_add(1),
        }
    }
}

/// What one media line wants opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// An agent names ports of the service.
    Service {
        /// Position of the media line.
        media: usize,
        /// What carries it.
        transport: Transport,
        /// First port of the service; 0 where the transport has none.
        first: u16,
        /// Last port of the service; 0 likewise.
        last: u16,
    },
    /// A stream that the writer of the description receives.
    Stream {
        /// Position of the media line.
        media: usize,
        /// UDP or TCP.
        transport: Transport,
        /// Where it receives; `None` if the description names no address or a host name.
        address: Option<IpAddr>,
        /// First port.
        first: u16,
        /// Last port, RTCP on the next port included.
        last: u16,
        /// RTCP elsewhere.
        rtcp: Option<u16>,
    },
}

/// A session description, borrowed from the body that holds it.
#[derive(Debug, Clone, Copy)]
pub struct Session<'a> {
    text: &'a [u8],
    /// Who wrote it, and which version of it this is.
    pub origin: Origin<'a>,
    /// Address of the session's own `c=` line. `None` if absent or a host name.
    pub address: Option<IpAddr>,
    media: [Media<'a>; MEDIA_MAX],
    used: usize,
}

impl<'a> Session<'a> {
    /// The media lines in their order.
    #[must_use]
    pub fn media(&self) -> &[Media<'a>] {
        self.media.get(..self.used).unwrap_or_default()
    }

    /// The description as it came.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.text
    }

    /// What the media lines want opened. Media that are refused (port 0) or of a transport that no gate opens are left
    /// out; media on hold are there, because hold ends without a new permission.
    pub fn wanted(&self) -> impl Iterator<Item = Wanted> {
        self.media().iter().enumerate().filter_map(|(position, media)| wanted_by(position, media))
    }
}

fn wanted_by(position: usize, media: &Media<'_>) -> Option<Wanted> {
    let transport = media.transport();
    if media.port == 0 || transport == Transport::Other {
        return None;
    }
    if let (Transport::Ip(_), None) = (transport, media.service_ports) {
        return Some(Wanted::Service { media: position, transport, first: 0, last: 0 });
    }
    if let Some((first, last)) = media.service_ports {
        return Some(Wanted::Service { media: position, transport, first, last });
    }
    let rtcp = media.rtcp();
    let next_to_rtp = rtcp.is_some() && media.rtcp_port.is_none();
    // Each of several RTP streams takes two ports, its RTCP the odd one (RFC 8866 section 5.14).
    let ports = if next_to_rtp { media.port_count.checked_mul(2)? } else { media.port_count };
    let last = media.port.checked_add(ports.checked_sub(1)?)?;
    let rtcp = rtcp.filter(|port| !(media.port..=last).contains(port));
    Some(Wanted::Stream { media: position, transport, address: media.address, first: media.port, last, rtcp })
}

#[cfg(test)]
mod tests;
