//! The experiment with every transport: each is opened by a sign-in, answered, closed again, and closed to strangers, at a
//! service whose address is translated and at one whose is not.

mod play;
mod site;

use clap::{Args, ValueEnum};

use sluicegate_wire::IpProtocol;

pub use play::run;

/// The name of the run.
pub const NAME: &str = "transports";

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// Nobody signs in.
    Unopened,
    /// The gate only counts what it would drop.
    Observing,
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The gate's packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub datapath: String,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub mutant: Mutant,
}

/// What carries an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    /// In reports.
    name: &'static str,
    /// What `--open` names.
    opens: &'static str,
    protocol: IpProtocol,
    /// 0 where there is none.
    port: u16,
    carries: Carries,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carries {
    /// Packets that are sent back.
    Mirrored,
    /// A tunnel of the program of that name, with packets in it that are sent back.
    WireGuard,
}

const CASES: [Case; 8] = [
    case("udplite", "udplite/5004", IpProtocol::UDPLITE, 5_004),
    case("dccp", "dccp/5001", IpProtocol::DCCP, 5_001),
    case("gre", "gre", IpProtocol::GRE, 0),
    case("esp", "esp", IpProtocol::ESP, 0),
    case("esp_in_udp", "udp/4500", IpProtocol::UDP, 4_500),
    Case { carries: Carries::WireGuard, ..case("wireguard", "udp/51820", IpProtocol::UDP, 51_820) },
    // OSPF, which has no row of its own.
    case("ip_89", "ip/89", IpProtocol(89), 0),
    // Only where addresses stay what they are.
    case("ah", "ah", IpProtocol::AUTHENTICATION, 0),
];

const fn case(name: &'static str, opens: &'static str, protocol: IpProtocol, port: u16) -> Case {
    Case { name, opens, protocol, port, carries: Carries::Mirrored }
}
