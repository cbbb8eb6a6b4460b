use core::{net::Ipv4Addr, time::Duration};

use sluicegate_pinhole::PerUser;

/// How large the tables are and how long things live. Fixed at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The external IPv4 address of all `nat` services; unspecified if there are none.
    pub gate_address: Ipv4Addr,
    /// First and last external port (and ICMP identifier) that may be bound.
    pub external_ports: (u16, u16),
    /// MTU in bytes of the link behind each port, indexed by [`sluicegate_wire::Port`].
    pub mtu: [u16; 2],
    /// IPv4 flows at once; each takes two lines of 64 bytes.
    pub flows_max: u32,
    /// IPv6 flows at once; each takes two lines of 128 bytes.
    pub flows_v6_max: u32,
    /// Flows of one grant at once, where the grant does not say; never more than [`sluicegate_pinhole::FLOWS_PER_GRANT_MAX`].
    pub flows_per_grant: u16,
    /// What all grants of one user may hold together.
    pub per_user: PerUser,
    /// Flows that one service may have started itself (`outbound = "all"`) at once.
    pub flows_per_service: u32,
    /// Pinholes at once; ended ones are remembered in the same table until their place is needed.
    pub pinholes_max: u32,
    /// Ports of one pinhole at most.
    pub ports_per_pinhole: u16,
    /// Services at once.
    pub services_max: u16,
    /// ICMP errors translated or made about private services, a second.
    pub icmp_errors_per_s: u32,
    /// Idle times.
    pub timers: Timers,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gate_address: Ipv4Addr::UNSPECIFIED,
            external_ports: (20_000, 32_767),
            mtu: [1_500, 1_500],
            flows_max: 65_536,
            flows_v6_max: 8_192,
            flows_per_grant: 64,
            per_user: PerUser::default(),
            flows_per_service: 4_096,
            pinholes_max: 8_192,
            ports_per_pinhole: 256,
            services_max: 256,
            icmp_errors_per_s: 1_000,
            timers: Timers::default(),
        }
    }
}

/// How long an idle flow lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// UDP; RFC 4787 REQ-5 asks for two minutes at least and recommends five.
    pub udp: Duration,
    /// TCP with both handshakes done; RFC 5382 REQ-5 asks for 2 h 4 min at least.
    pub tcp_established: Duration,
    /// TCP while it opens or after it closed; RFC 5382 REQ-5 asks for 4 minutes at least.
    pub tcp_transitory: Duration,
    /// ICMP echo; RFC 5508 REQ-2 asks for 60 s at least.
    pub icmp: Duration,
    /// How long a port is not given to another pinhole, and an ended grant is remembered (RFC 6888 REQ-8).
    pub port_rest: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            udp: Duration::from_secs(300),
            tcp_established: Duration::from_secs(7_440),
            tcp_transitory: Duration::from_secs(240),
            icmp: Duration::from_secs(60),
            port_rest: Duration::from_secs(120),
        }
    }
}
