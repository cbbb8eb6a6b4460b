//! Checks a gate's configuration against the ways that packets take from this host. Changes nothing.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use sluicegate_frontend::Listen;
use sluicegate_netlink::{Rtnetlink, Tunnel};
use sluicegate_policy::Service;

use super::check::Report;

/// An address of the Internet that nobody has (RFC 5737): only its route is asked for.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const UDP: u8 = libc::IPPROTO_UDP as u8;
/// Discard (RFC 863): what is sent there makes the kernel look for the neighbour.
const DISCARD: u16 = 9;
/// For how long neighbours may take to say where they are.
const ANSWER_WAIT: Duration = Duration::from_millis(1_500);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Neighbours asked for at once.
const ASKED_MAX: usize = 256;

/// Whether this host has the addresses that its frontend is to listen on.
pub(super) fn check_listen(report: &mut Report<'_>, listen: &[Listen]) {
    for listen in listen {
        let bound = UdpSocket::bind((listen.address.ip(), 0));
        if bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrNotAvailable) {
            let what = format!("this host has no address {}", listen.address.ip());
            report.error(&["frontend", "listen"], what, "`ip address` lists those that it has");
        }
    }
}

/// Whether outside is where the rest of the world is, and whether `services` are behind inside.
pub(super) fn check(report: &mut Report<'_>, gate: &sluicegate_gate::Config, services: &[(usize, &Service)]) {
    let Ok(mut netlink) = Rtnetlink::open() else { return };
    if gate.role == sluicegate_api::Role::Gate
        && netlink.way_to(ELSEWHERE).is_ok_and(|way| way.interface == gate.inside)
    {
        let what = format!("packets to the rest of the world leave by {:?}", gate.inside);
        report.warn(&["gate", "inside"], what, "outside is the side that clients come from; are the two swapped?");
    }
    for name in [&gate.outside, &gate.inside] {
        if let Ok(Some(tunnel)) = netlink.link(name).map(|link| link.tunnel) {
            check_tunnel(report, &mut netlink, gate, (name, tunnel));
        }
    }
    for (index, service) in services {
        let (index, address) = (index.to_string(), service.address);
        let path = ["service", &index, "address"];
        let to_inside = format!("ip route add {address} dev {}", gate.inside);
        match netlink.way_to(address) {
            Ok(way) if way.interface == gate.inside => {}
            Ok(way) if way.interface == "lo" => {
                let hint = "what runs on the gate's own host is reached by `local` in [gate], and is in no service";
                report.error(&path, format!("{}: {address} is this host itself", service.name), hint);
            }
            Ok(way) => {
                let what =
                    format!("{}: packets to {address} leave by {:?}, not by inside", service.name, way.interface);
                report.warn(&path, what, &to_inside);
            }
            Err(error) if error.is_unreachable() => {
                report.warn(&path, format!("{}: this host has no route to {address}", service.name), &to_inside);
            }
            Err(_) => {}
        }
    }
}

/// Whether the packets that carry a tunnel come through: those that arrive by the gate's own interfaces are for its host,
/// from whatever port, so they answer nothing that the host sent.
fn check_tunnel(
    report: &mut Report<'_>,
    netlink: &mut Rtnetlink,
    gate: &sluicegate_gate::Config,
    (name, tunnel): (&str, Tunnel),
) {
    let Ok(way) = netlink.way_to(tunnel.remote) else {
        let what = format!("{name:?} is a tunnel to {}, and this host has no route there", tunnel.remote);
        return report.warn(&["gate", "local"], what, "`ip route get` says how addresses are reached");
    };
    if way.interface != gate.outside && way.interface != gate.inside {
        return;
    }
    let is_let_in = gate.local.iter().any(|rule| {
        let has_port = tunnel.protocol != UDP || (rule.first..=rule.last).contains(&tunnel.port);
        let has_address = rule.address.is_none_or(|address| way.source.is_none_or(|source| source == address));
        rule.protocol == tunnel.protocol && has_port && has_address
    });
    if !is_let_in {
        let entry = if tunnel.protocol == UDP { format!("udp/{}", tunnel.port) } else { "gre".to_owned() };
        let what = format!("{name:?} is a tunnel to {} by {:?}, where the gate drops it", tunnel.remote, way.interface);
        report.error(&["gate", "local"], what, &format!("add \"{entry}\" to local"));
    }
}

/// Asks for the neighbours at these addresses behind `inside`. Warns of those that do not answer; `untried` gets those that
/// could not be asked.
pub(super) fn ask_neighbours(
    report: &mut Report<'_>,
    inside: &str,
    services: &[(usize, &Service)],
    untried: &mut Vec<String>,
) {
    let Ok(mut netlink) = Rtnetlink::open() else { return };
    let mut silent = BTreeSet::new();
    for (index, service) in services {
        let is_inside = netlink.way_to(service.address).is_ok_and(|way| way.interface == inside);
        if !is_inside {
            continue;
        }
        if service.address.is_ipv6() || silent.len() >= ASKED_MAX {
            untried.push(format!("{}: whether {} answers", service.name, service.address));
            continue;
        }
        let asked = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .and_then(|socket| socket.send_to(b"", (service.address, DISCARD)));
        match asked {
            Ok(_) => drop(silent.insert((service.address, *index))),
            Err(error) => untried.push(format!("{}: whether {} answers ({error})", service.name, service.address)),
        }
    }
    let until = Instant::now() + ANSWER_WAIT;
    while !silent.is_empty() && Instant::now() < until {
        let table = std::fs::read_to_string("/proc/net/arp").unwrap_or_default();
        silent.retain(|(address, _)| !has_answered(&table, *address, inside));
        thread::sleep(LOOK_AGAIN);
    }
    let table = std::fs::read_to_string("/proc/net/arp").unwrap_or_default();
    for (address, index) in silent {
        let Some((_, service)) = services.iter().find(|(at, _)| *at == index) else { continue };
        if is_neighbour(&table, address, inside) {
            let what = format!("{}: nobody on {inside:?} answers for {address}", service.name);
            let hint = "is the service's host up, its address right, and on this wire? ARP goes unanswered";
            report.warn(&["service", &index.to_string(), "address"], what, hint);
        } else {
            untried.push(format!("{}: whether {address}, behind a router, answers", service.name));
        }
    }
}

/// Whether the kernel's table of IPv4 neighbours has this one on this interface.
fn is_neighbour(table: &str, address: IpAddr, interface: &str) -> bool {
    flags(table, address, interface).is_some()
}

/// Whether it also knows its hardware address.
fn has_answered(table: &str, address: IpAddr, interface: &str) -> bool {
    flags(table, address, interface).is_some_and(|flags| flags & 2 != 0)
}

/// ATF flags of the neighbour: `address | hardware type | flags | hardware address | mask | interface`.
fn flags(table: &str, address: IpAddr, interface: &str) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_it = words.next()?.parse() == Ok(address);
        let flags = words.nth(1)?.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok())?;
        (is_it && words.nth(2)? == interface).then_some(flags)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "IP address       HW type     Flags       HW address            Mask     Device\n\
        10.4.0.2         0x1         0x2         02:00:00:00:00:01     *        inside\n\
        10.4.0.3         0x1         0x0         00:00:00:00:00:00     *        inside\n\
        10.4.0.4         0x1         0x2         02:00:00:00:00:02     *        outside\n";

    #[test]
    fn a_neighbour_has_answered_once_its_hardware_address_is_known_on_that_interface() {
        let answered = [2, 3, 4, 5].map(|last| has_answered(TABLE, IpAddr::from([10, 4, 0, last]), "inside"));
        assert_eq!(answered, [true, false, false, false]);
        let asked = [2, 3, 4, 5].map(|last| is_neighbour(TABLE, IpAddr::from([10, 4, 0, last]), "inside"));
        assert_eq!(asked, [true, true, false, false]);
    }
}
