//! Who has the interfaces: exactly one gate, and the newest back end.

mod support;

use sluicegate_datapath::{Backend, Device, OpenError, monotonic_now, neighbour::Table};
use sluicegate_netlink::{Route, Rtnetlink};
use sluicegate_wire::{Port, Reason};
use support::{
    is_root,
    scenario::open,
    site::{CLIENT, GATE_OUTSIDE, Router, SERVICE, Site, State, ip, options, received},
};

#[test]
fn either_back_end_takes_over_from_a_crashed_other() {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut router = Router::new();
    let client = Site::udp(&site.client, CLIENT, 4000);
    let service = Site::udp(&site.service, SERVICE, 5004);
    let listed = Site::udp(&site.gate, GATE_OUTSIDE, 5060);
    for backend in [Backend::Xdp, Backend::Packet, Backend::Xdp, Backend::Packet] {
        let mut device = open(backend, &state);
        let (mut forwarded, mut local) = (false, false);
        router.drive(&mut device, "the new back end forwards and lets local through", |_| {
            client.send_to(b"through", (SERVICE, 5004)).unwrap();
            client.send_to(b"local", (GATE_OUTSIDE, 5060)).unwrap();
            forwarded |= received(&service).is_some();
            local |= received(&listed).is_some();
            forwarded && local
        });
        while received(&service).is_some() || received(&listed).is_some() {}
        drop(device);
    }
    open(Backend::Xdp, &state).close(false).unwrap();
}

#[test]
fn a_second_gate_on_the_same_interfaces_is_refused_and_disturbs_nothing() {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let client = Site::udp(&site.client, CLIENT, 4000);
    let service = Site::udp(&site.service, SERVICE, 5004);
    for backend in [Backend::Xdp, Backend::Packet] {
        let mut router = Router::new();
        let mut device = open(backend, &state);
        for second in [Backend::Auto, Backend::Xdp, Backend::Packet] {
            let error = Device::open(&options(second, state.path())).unwrap_err();
            assert!(matches!(error, OpenError::Busy { .. }), "{error}");
        }
        router.drive(&mut device, "the first gate still forwards", |_| {
            client.send_to(b"through", (SERVICE, 5004)).unwrap();
            received(&service).is_some()
        });
        while received(&service).is_some() {}
        device.close(false).unwrap();
    }
}

#[test]
fn auto_takes_packet_on_a_veth_and_says_why() {
    if !is_root() {
        return;
    }
    let (_site, state) = (Site::new(), State::new());
    let mut device = open(Backend::Auto, &state);
    device.heartbeat(monotonic_now());
    assert_eq!(device.backend(), "packet");
    let why = device.why();
    assert!(why.starts_with("packet, because xdp fails here: ") && why.contains("VLAN tags"), "{why}");
    device.close(false).unwrap();
}

#[test]
fn the_neighbour_mirror_follows_routes_and_neighbours() {
    if !is_root() {
        return;
    }
    let _site = Site::new();
    let router = Router::new();
    let table: &Table = &router.table;
    assert_eq!(table.lookup(Port::OUTSIDE, ip("203.0.113.1")), Err(Reason::NoRoute));
    assert_eq!(table.lookup(Port::OUTSIDE, ip(SERVICE)), Err(Reason::NoRoute), "it is inside");
    let until = |what: &str, done: &mut dyn FnMut() -> bool| {
        let start = std::time::Instant::now();
        while !done() {
            assert!(start.elapsed().as_secs() < 10, "did not happen: {what}");
            std::thread::yield_now();
        }
    };
    let mut netlink = Rtnetlink::open().unwrap();
    until("the kernel resolves the client", &mut || table.lookup(Port::OUTSIDE, ip(CLIENT)) == Ok([2, 0, 0, 0, 0, 1]));
    netlink.add_neighbour("g0", ip("198.51.100.9"), [2, 0, 0, 0, 0, 9]).unwrap();
    netlink.add_route(&Route::default_by(ip("198.51.100.9"), "g0")).unwrap();
    until("the default route is known", &mut || {
        table.lookup(Port::OUTSIDE, ip("203.0.113.1")) == Ok([2, 0, 0, 0, 0, 9])
    });
    netlink.add_neighbour("g0", ip("198.51.100.9"), [2, 0, 0, 0, 0, 10]).unwrap();
    until("a changed address is known", &mut || {
        table.lookup(Port::OUTSIDE, ip("203.0.113.1")) == Ok([2, 0, 0, 0, 0, 10])
    });
    netlink.delete_link("g0").unwrap();
    until("everything of a lost link is forgotten", &mut || {
        table.lookup(Port::OUTSIDE, ip(CLIENT)) == Err(Reason::NoRoute)
    });
}
