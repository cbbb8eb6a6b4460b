use alloc::vec::Vec;
use core::net::IpAddr;

use super::{
    Media, SERVICE_FORMAT, Session, Transport, parse,
    rewrite::{push_connection, push_media_line, push_session},
};
use crate::write::push_args;

/// What becomes of one offered media line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaAnswer {
    /// Answered with port 0.
    Refused,
    /// Answered with this address and port.
    Accepted {
        /// The gate's address.
        address: IpAddr,
        /// The first of the gate's ports for it.
        port: u16,
    },
}

/// An answer to an offer (RFC 3264 section 6): the same media lines in the same order.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'m, 'a> {
    /// What is answered.
    pub offer: &'m Session<'a>,
    /// For `o=`; stays the same for the call.
    pub session_id: u64,
    /// For `o=`; one more with each change.
    pub version: u64,
    /// For `o=` and the session's `c=`.
    pub address: IpAddr,
    /// One for each media line of the offer; missing ones refuse.
    pub media: &'m [MediaAnswer],
}

impl Answer<'_, '_> {
    /// Writes the description to the end of `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        push_session(out, self.session_id, self.version, self.address);
        for (position, media) in self.offer.media().iter().enumerate() {
            let answer = self.media.get(position).copied().unwrap_or(MediaAnswer::Refused);
            match answer {
                // A line that the offer itself gives up stays given up (RFC 3264 section 6).
                MediaAnswer::Accepted { address, port } if media.port != 0 => {
                    push_media_line(out, media, port);
                    if address != self.address {
                        push_connection(out, address);
                    }
                    self.push_attributes(out, position, media);
                }
                _ => push_media_line(out, media, 0),
            }
        }
    }

    fn push_attributes(&self, out: &mut Vec<u8>, position: usize, media: &Media<'_>) {
        push_args(out, format_args!("a={}\r\n", media.direction.reversed().name()));
        if let Some(setup) = media.setup {
            push_args(out, format_args!("a=setup:{}\r\n", setup.reversed().name()));
        }
        if media.rtcp_mux {
            out.extend_from_slice(b"a=rtcp-mux\r\n");
        }
        if let Some((first, last)) = media.service_ports {
            push_service_ports(out, first, last);
        }
        // The formats are the offered ones, so is what explains them.
        let mut current = None;
        for line in parse::lines(self.offer.as_bytes()).map_while(Result::ok) {
            if line.letter == b'm' {
                current = Some(current.map_or(0, |last| last + 1));
            }
            let explains = line.letter == b'a' && matches!(parse::attribute(line.value).0, b"rtpmap" | b"fmtp");
            if explains && current == Some(position) {
                out.extend_from_slice(b"a=");
                out.extend_from_slice(line.value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

fn push_service_ports(out: &mut Vec<u8>, first: u16, last: u16) {
    if first == last {
        push_args(out, format_args!("a=service-ports:{first}\r\n"));
    } else {
        push_args(out, format_args!("a=service-ports:{first}-{last}\r\n"));
    }
}

/// A range of ports of a service that an agent wants to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServicePorts {
    /// TCP, an IP protocol, or else UDP.
    pub transport: Transport,
    /// First port; 0 where the transport has none.
    pub first: u16,
    /// Last port, not below the first.
    pub last: u16,
}

/// An agent's offer: one media line for each range of ports. It names no client address or port that would open
/// anything: that is where the request came from.
#[derive(Debug, Clone, Copy)]
pub struct ServiceOffer<'m> {
    /// For `o=`; stays the same for the call.
    pub session_id: u64,
    /// For `o=`; one more with each change.
    pub version: u64,
    /// The agent's own address as it knows it.
    pub address: IpAddr,
    /// What it wants to reach.
    pub ports: &'m [ServicePorts],
}

impl ServiceOffer<'_> {
    /// Writes the description to the end of `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        push_session(out, self.session_id, self.version, self.address);
        for range in self.ports {
            let is_tcp = range.transport == Transport::Tcp;
            // 9, discard, is the port of a side that connects (RFC 4145 section 4.1).
            match range.transport {
                Transport::Ip(number) => push_args(out, format_args!("m=application 9 IP/{number} ")),
                _ => push_args(out, format_args!("m=application 9 {} ", if is_tcp { "TCP" } else { "UDP" })),
            }
            out.extend_from_slice(SERVICE_FORMAT);
            out.extend_from_slice(b"\r\n");
            if is_tcp {
                out.extend_from_slice(b"a=setup:active\r\na=connection:new\r\n");
            }
            if range.first != 0 {
                push_service_ports(out, range.first, range.last);
            }
        }
    }
}
