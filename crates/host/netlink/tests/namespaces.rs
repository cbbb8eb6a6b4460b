//! What is asked of a kernel happens in it, and what it says is understood: in network namespaces that end with each test.

use std::{fs::File, io::Write, net::IpAddr, os::fd::AsFd, thread};

use nix::sched::{CloneFlags, unshare};
use sluicegate_netlink::{Change, Monitor, Neighbour, NextHop, Route, RouteEntry, Rtnetlink, nft};

/// Runs `test` in a new network namespace with `a` and `b`, the ends of a cable, unless this process may not make one.
fn in_namespace(test: impl FnOnce(Rtnetlink) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        // Past the test harness, which would keep it to itself.
        let _ = std::io::stderr().write_all(b"skipped: needs root\n");
        return;
    }
    let inside = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        let mut netlink = Rtnetlink::open().expect("netlink");
        netlink.create_veth("a", "b", None).expect("a cable");
        for name in ["lo", "a", "b"] {
            netlink.set_up(name).expect("up");
        }
        test(netlink);
    });
    inside.join().expect("the test");
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn routes(netlink: &mut Rtnetlink) -> Vec<RouteEntry> {
    netlink.routes(|all: &mut Vec<RouteEntry>, route| all.push(route)).expect("routes")
}

#[test]
fn a_missing_interface_and_a_second_address_are_told_apart() {
    in_namespace(|mut netlink| {
        let error = netlink.create_veth("a", "c", None).unwrap_err();
        assert!(error.is_exists(), "{error}");
        netlink.add_address("a", ip("192.0.2.1"), 24).unwrap();
        assert!(netlink.add_address("a", ip("192.0.2.1"), 24).unwrap_err().is_exists());
        netlink.delete_address("a", ip("192.0.2.1"), 24).unwrap();
        assert!(netlink.delete_address("a", ip("192.0.2.1"), 24).is_err());
        netlink.delete_link("b").unwrap();
        for name in ["a", "", "a-name-of-more-than-fifteen-letters", "lo\0"] {
            let error = netlink.link(name).unwrap_err();
            assert!(error.is_missing(), "{name}: {error}");
        }
        assert!(netlink.delete_link("a").unwrap_err().is_missing());
    });
}

#[test]
fn a_link_is_described_as_it_was_configured_in_whatever_namespace_it_is() {
    in_namespace(|mut netlink| {
        netlink.set_mtu("a", 1400).unwrap();
        netlink.set_mac("b", [2, 0, 0, 0, 0, 9]).unwrap();
        netlink.create_bridge("bridge").unwrap();
        netlink.join_bridge("b", "bridge").unwrap();
        let there = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            (File::open("/proc/thread-self/ns/net").unwrap(), Rtnetlink::open().unwrap())
        });
        let (namespace, mut other) = there.join().unwrap();
        netlink.create_veth("here", "there", Some(namespace.as_fd())).unwrap();
        let (a, b) = (netlink.link("a").unwrap(), netlink.link("b").unwrap());
        assert_eq!((a.kind.as_str(), a.mtu, a.up), ("veth", 1400, true));
        assert_eq!((b.mac, netlink.link("here").unwrap().up), (Some([2, 0, 0, 0, 0, 9]), false));
        assert!(netlink.link("there").unwrap_err().is_missing());
        // The connection stays in the namespace in which it was opened.
        assert_eq!(other.link("there").unwrap().name, "there");
        let names: Vec<String> = netlink.links().unwrap().into_iter().map(|link| link.name).collect();
        assert!(
            ["lo", "a", "b", "bridge", "here"].iter().all(|name| names.iter().any(|found| found == name)),
            "{names:?}"
        );
    });
}

#[test]
fn routes_lead_where_they_say_and_go_when_they_are_told_to() {
    in_namespace(|mut netlink| {
        let a = netlink.link("a").unwrap().index;
        netlink.add_address("a", ip("192.0.2.1"), 24).unwrap();
        netlink.add_address("a", ip("2001:db8::1"), 64).unwrap();
        assert_eq!(
            netlink.addresses(a).unwrap().iter().filter(|(address, _)| *address == ip("2001:db8::1")).count(),
            1
        );
        netlink.add_route(&Route::default_by(ip("192.0.2.254"), "a")).unwrap();
        netlink.add_route(&Route::default_by(ip("2001:db8::fe"), "a")).unwrap();
        for (far, gateway) in [("198.51.100.1", "192.0.2.254"), ("2001:db8:9::1", "2001:db8::fe")] {
            let way = netlink.way_to(ip(far)).unwrap();
            assert_eq!((way.interface.as_str(), way.source.is_some()), ("a", true));
            let found = routes(&mut netlink);
            assert!(found.iter().any(|route| route.gateway == Some(ip(gateway)) && route.prefix_len == 0), "{found:?}");
        }
        let captured = (ip("198.51.100.0"), 24);
        let hops = [
            NextHop::Gateway(ip("192.0.2.7"), None),
            NextHop::Interface("b"),
            NextHop::Blackhole,
            NextHop::Local("lo"),
        ];
        for hop in hops {
            let route = Route::new(captured, hop);
            netlink.add_route(&route).unwrap_or_else(|error| panic!("{error}"));
            let way = netlink.way_to(ip("198.51.100.1"));
            match hop {
                NextHop::Gateway(..) => assert_eq!(way.unwrap().interface, "a"),
                NextHop::Interface(_) => assert_eq!(way.unwrap().interface, "b"),
                NextHop::Local(_) => assert_eq!(way.unwrap().interface, "lo"),
                NextHop::Blackhole => assert!(way.is_err()),
            }
            netlink.delete_route(&route).unwrap_or_else(|error| panic!("{error}"));
            assert!(netlink.delete_route(&route).unwrap_err().is_missing());
        }
        let error =
            netlink.add_route(&Route::new(captured, NextHop::Gateway(ip("203.0.113.1"), Some("a")))).unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert!(error.to_string().contains("add the route to 198.51.100.0/24 by 203.0.113.1 through a"), "{error}");
    });
}

#[test]
fn a_table_of_ones_own_is_asked_first_while_its_rule_stands() {
    in_namespace(|mut netlink| {
        netlink.add_address("a", ip("192.0.2.1"), 24).unwrap();
        let route = Route { table: 7253, metric: 9, ..Route::new((ip("192.0.2.0"), 24), NextHop::Interface("b")) };
        netlink.add_route(&route).unwrap();
        netlink.add_route(&Route { source: Some(ip("192.0.2.1")), metric: 0, ..route }).unwrap();
        let interface = |netlink: &mut Rtnetlink| netlink.way_to(ip("192.0.2.9")).unwrap().interface;
        assert_eq!(interface(&mut netlink), "a");
        netlink.add_rule(7253, 7253, false).unwrap();
        assert!(netlink.add_rule(7253, 7253, false).unwrap_err().is_exists());
        assert_eq!(interface(&mut netlink), "b");
        // Both, whatever their metrics.
        for _ in 0..2 {
            netlink.delete_route(&Route { metric: 0, ..route }).unwrap();
        }
        assert_eq!(interface(&mut netlink), "a");
        netlink.delete_rule(7253, 7253, false).unwrap();
        assert!(netlink.delete_rule(7253, 7253, false).unwrap_err().is_missing());
    });
}

#[test]
fn changes_of_neighbours_routes_and_links_are_heard_of() {
    in_namespace(|mut netlink| {
        let (mut monitor, mut links) = (Monitor::open().unwrap(), Monitor::of_links().unwrap());
        let any = |links: &mut Monitor| {
            let mut any = false;
            links.changes(&mut |change| any |= change == Change::Routes).unwrap();
            any
        };
        netlink.add_neighbour("a", ip("192.0.2.9"), [2; 6]).unwrap();
        let index = netlink.link("a").unwrap().index;
        let known = Neighbour { index, address: ip("192.0.2.9"), mac: Some([2; 6]), stale: false };
        let read = |netlink: &mut Rtnetlink| netlink.neighbours(|all: &mut Vec<Neighbour>, one| all.push(one)).unwrap();
        assert!(read(&mut netlink).contains(&known));
        let mut heard = Vec::new();
        monitor.changes(&mut |change| heard.push(change)).unwrap();
        assert!(heard.contains(&Change::Neighbour(known)), "{heard:?}");
        // The cable may still be coming up.
        while any(&mut links) {}
        netlink.resolve(index, ip("192.0.2.10")).unwrap();
        netlink.delete_link("a").unwrap();
        heard.clear();
        monitor.changes(&mut |change| heard.push(change)).unwrap();
        assert!(heard.contains(&Change::Neighbour(Neighbour { mac: None, ..known })), "{heard:?}");
        assert!(heard.contains(&Change::Routes));
        assert!(any(&mut links), "a link is gone");
    });
}

#[test]
fn a_limit_counts_what_it_lets_through() {
    in_namespace(|mut netlink| {
        assert_eq!(netlink.queue_counters("a").unwrap().packets, 0);
        netlink.limit_rate("a", 1_000_000, 3_200, 10).unwrap();
        netlink.limit_rate("a", 80_000_000_000, 1 << 20, 100).expect("another in its place");
        netlink.add_address("a", ip("192.0.2.1"), 24).unwrap();
        let socket = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
        netlink.add_neighbour("a", ip("192.0.2.2"), [2; 6]).unwrap();
        socket.send_to(b"counted", "192.0.2.2:9").unwrap();
        let counters = netlink.queue_counters("a").unwrap();
        assert!(counters.packets > 0 && counters.bytes > 40, "{counters:?}");
        assert!(netlink.queue_counters("nosuch0").unwrap_err().is_missing());
    });
}

#[test]
fn a_batch_happens_as_a_whole_or_not_at_all_and_owned_tables_end_with_their_connection() {
    in_namespace(|_| {
        let family = libc::NFPROTO_INET;
        let rules = |table: &str| nft::Nftables::open().unwrap().counts(family, table).unwrap().len();
        let mut batch = nft::Batch::new(family, "whole");
        batch.replace_table().chain("one").rule("one", |rule| rule.count().accept());
        let mut half = batch.clone();
        half.rule("nosuch", |rule| rule.drop());
        let mut nftables = nft::Nftables::open().unwrap();
        let error = nftables.commit("make half a table", &half).unwrap_err();
        assert!(error.is_missing() && error.to_string().contains("refused to make half a table"), "{error}");
        assert_eq!(rules("whole"), 0);
        nftables.commit("make a table", &batch).unwrap();
        nftables.commit("make it again", &batch).unwrap();
        let mut owned = nft::Batch::new(family, "owned");
        owned.create_owned_table().chain("one").rule("one", |rule| rule.drop());
        nftables.commit("make an owned table", &owned).unwrap();
        assert_eq!((rules("whole"), rules("owned")), (1, 1));
        drop(nftables);
        assert_eq!((rules("whole"), rules("owned")), (1, 0));
        nft::forbid_forwarding("a", "nosuch0").unwrap();
        assert_eq!(rules("sluicegate_forward_a_nosuch0"), 4, "it belongs to nobody");
        nft::allow_forwarding("a", "nosuch0").unwrap();
        nft::allow_forwarding("a", "nosuch0").expect("none is no error");
        assert_eq!(rules("sluicegate_forward_a_nosuch0"), 0);
    });
}
