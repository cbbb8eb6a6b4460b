//! Why a packet was dropped. Defined once: code, label and explanation come from this list, and so do the counters,
//! the `trace` answers and the documentation.

use core::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $label:literal, $text:literal;)*) => {
        /// Why a packet was dropped. Every dropped packet has exactly one reason, and every reason one counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $text] $name = $code,)*
        }

        impl Reason {
            /// All reasons, in the order of their codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable name in counters, logs and documentation (`snake_case`).
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }

            /// One sentence for a person: what happened and, where it helps, what to do.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    FrameTruncated = 0, "frame_truncated", "The frame ends before the headers it announces.";
    EthertypeUnsupported = 1, "ethertype_unsupported", "The frame carries neither IPv4 nor IPv6.";
    IpHeaderInvalid = 2, "ip_header_invalid", "The IP header contradicts itself: version, length or checksum.";
    IpOptions = 3, "ip_options", "The packet carries IPv4 options or IPv6 extension headers that the gate does not forward.";
    SourceRoute = 4, "source_route", "The packet carries a source route.";
    TtlExpired = 5, "ttl_expired", "The packet's time to live ended at the gate.";
    AddressInvalid = 6, "address_invalid", "The source or destination is not a unicast address that may cross the gate.";
    FragmentInvalid = 7, "fragment_invalid", "The fragment overlaps another, is too small, or ends past the largest packet.";
    FragmentTableFull = 8, "fragment_table_full", "The fragment gave way to newer ones: the bounded table of packets in reassembly is full, or its source had its share.";
    FragmentTimeout = 9, "fragment_timeout", "The first fragment of the packet did not arrive in time.";
    TransportHeaderInvalid = 10, "transport_header_invalid", "The TCP, UDP or ICMP header is cut short or contradicts itself.";
    ProtocolUnsupported = 11, "protocol_unsupported", "The IP protocol is none that the gate forwards.";
    NotForService = 12, "not_for_service", "The destination is no address of a protected service or of the gate.";
    NoPinhole = 13, "no_pinhole", "No grant opened this protocol, port and client address: a stranger's packet.";
    GrantExpired = 14, "grant_expired", "The grant that opened this has reached its end of validity; the client must renew it.";
    GrantRevoked = 15, "grant_revoked", "The grant that opened this has ended: its user said goodbye, or it was revoked.";
    BudgetSpent = 16, "budget_spent", "The grant's bytes are used up; the client must renew it.";
    RateExceeded = 17, "rate_exceeded", "The client sent faster than its grant, or than all grants of its user together, allow.";
    FlowLimit = 18, "flow_limit", "The grant, or its user over all grants, has as many flows as it may have.";
    FlowTableFull = 19, "flow_table_full", "The gate's fixed flow table has no free line for this flow.";
    TcpState = 20, "tcp_state", "A TCP segment that cannot start or continue this flow, such as data without a handshake.";
    TcpWindow = 21, "tcp_window", "A TCP segment whose sequence or acknowledgement number lies outside the flow's window.";
    IcmpNoFlow = 22, "icmp_no_flow", "An ICMP error that quotes no packet of a live flow.";
    IcmpType = 23, "icmp_type", "An ICMP type that the gate does not forward; about a flow under packet MACs or an open TCP connection, any error but \"too big\".";
    OutboundDisabled = 24, "outbound_disabled", "The service may not start flows of its own (`outbound = \"none\"`).";
    NoExternalPort = 25, "no_external_port", "The gate has no free external port left for a binding.";
    NoRoute = 26, "no_route", "The gate has no route to the destination on the port that the packet must leave by.";
    NoNeighbour = 27, "no_neighbour", "The next hop has not answered ARP or neighbour discovery yet.";
    PacketTooBig = 28, "packet_too_big", "The packet is larger than the next link carries and must not be fragmented.";
    TransmitFull = 29, "transmit_full", "The transmit ring of the outgoing port was full.";
    LocalNotAllowed = 30, "local_not_allowed", "A packet for the gate's own host that `local` does not list.";
    LocalRate = 31, "local_rate", "A packet for the gate's own host above the rate that `local` allows.";
    HeartbeatStale = 32, "heartbeat_stale", "The gate process is gone or stuck; the kernel program fails closed.";
    ReceiveFull = 33, "receive_full", "The receive ring was full: more packets arrived than the gate could judge.";
    IcmpRate = 34, "icmp_rate", "More ICMP messages than the gate translates in a second.";
    CapabilityHeader = 35, "capability_header", "The capability header is cut short, of an unknown version, or contradicts itself.";
    CapabilityForged = 36, "capability_forged", "The capability is none that this router minted for this source, destination, client id, N and T.";
    CapabilityExpired = 37, "capability_expired", "The capability's T seconds are over; the sender must renew it.";
    CapabilitySpent = 38, "capability_spent", "The capability's N bytes are used up; the sender must renew it.";
    CapabilityUnknown = 39, "capability_unknown", "A packet with only a flow nonce for which no capability is cached, or with another nonce.";
    CapabilityRevoked = 40, "capability_revoked", "The capability was revoked before its time.";
    CapabilityTableFull = 41, "capability_table_full", "The fixed table of capability lines has no line that may be reclaimed yet.";
    CapabilityList = 42, "capability_list", "The request's list of blank capabilities has no room left for this router, or the packet carries none for it.";
    AlreadyDemoted = 43, "already_demoted", "Another router demoted the packet, and no line of this node vouches for it.";
    RequestRefused = 44, "request_refused", "The destination, or the gate in its place, refused the request for a capability.";
    ControlQueue = 45, "control_queue", "The link's queue of control packets was full.";
    RequestQueue = 46, "request_queue", "The fair queue of this request's path identifier was full.";
    RegularQueue = 47, "regular_queue", "The fair queue of regular packets to this destination was full.";
    LegacyQueue = 48, "legacy_queue", "The link was busy with wanted packets: the queue of legacy packets was full.";
    ModeTooWeak = 49, "mode_too_weak", "The grant demands a stronger proof than this packet carries: a packet MAC or a capability.";
    MacMissing = 50, "mac_missing", "The grant demands a packet MAC, and the datagram is a fragment, too short to carry one, or names another client id.";
    MacForged = 51, "mac_forged", "The packet MAC does not fit the datagram: it was forged or changed on the way.";
    MacReplayed = 52, "mac_replayed", "A datagram with this sequence number has been seen, or it is older than the window of 64.";
    CapabilityTooSlow = 53, "capability_too_slow", "N/T of the capability is below 4 kB in 10 s: routers hold no line for so slow a one.";
    TunnelSource = 54, "tunnel_source", "The source is an address of the tunnels, and the packet did not come through the tunnel that has it.";
    TunnelFull = 55, "tunnel_full", "The agent at the other end of the tunnel does not read as fast as the service sends.";
    TunnelGone = 56, "tunnel_gone", "The packet is for an agent whose tunnel has ended.";
    ChecksumWrong = 57, "checksum_wrong", "The datagram's checksum is wrong: it was changed on the way.";
}

impl Reason {
    /// The reason with this code, as counted by the kernel program.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.explanation())
    }
}

impl core::error::Error for Reason {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_dense_and_labels_unique() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert_eq!(Reason::from_code(*reason as u8), Some(*reason));
            assert_eq!(Reason::ALL.iter().filter(|other| other.label() == reason.label()).count(), 1);
        }
        assert_eq!(Reason::from_code(Reason::ALL.len() as u8), None);
    }
}
