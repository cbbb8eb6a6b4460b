//! What every back end must do, told once.

use std::{
    fs,
    net::{SocketAddrV4, TcpListener},
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::{
    socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt::SendTimeout},
    time::{TimeVal, TimeValLike},
};
use sluicegate_datapath::{Action, Backend, Device, OpenError, Rules, Wake, monotonic_now};
use sluicegate_netlink::Rtnetlink;
use sluicegate_wire::Reason;

use super::{
    is_root,
    site::{
        CLIENT, CLIENT6, Capture, GATE_INSIDE, GATE_OUTSIDE, GATE_OUTSIDE6, OWN_PORT, Router, SERVICE, SERVICE6,
        STRANGER, Site, State, options, received, send_marker, wait_for,
    },
};

pub fn open(backend: Backend, state: &State) -> Device {
    let device = Device::open(&options(backend, state.path())).expect("the device opens");
    eprintln!("{}", device.why());
    device
}

pub fn count(device: &mut Device, reason: Reason) -> u64 {
    device.kernel_counters().iter().filter(|(counted, _)| *counted == reason).map(|(_, count)| count).sum()
}

pub fn forwards_only_what_the_handler_sends(backend: Backend) {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut device = open(backend, &state);
    let mut router = Router::new();
    let mut at_service = Capture::new(&site.service, "s0");
    for (client, service) in [(CLIENT, SERVICE), (CLIENT6, SERVICE6)] {
        let client = Site::udp(&site.client, client, 4000);
        let socket = Site::udp(&site.service, service, 5004);
        let mut answered = None;
        router.drive(&mut device, "request and answer cross the gate", |_| {
            client.send_to(b"hello", (service, 5004)).unwrap();
            if let Some((bytes, from)) = received(&socket) {
                assert_eq!(bytes, b"hello");
                socket.send_to(b"answer", from).unwrap();
            }
            answered = received(&client);
            answered.is_some()
        });
        assert_eq!(answered.unwrap().0, b"answer");
    }
    assert!(router.forwarded >= 4);
    // Drain what the loop above has sent too much of, then only the stranger talks.
    router.drive(&mut device, "quiet", |_| true);
    send_marker(&site.gate, "g1");
    at_service.udp_until_marker();
    let stranger = Site::udp(&site.client, CLIENT, STRANGER);
    for _ in 0..20 {
        stranger.send_to(b"let me in", (SERVICE, 5004)).unwrap();
    }
    router.drive(&mut device, "the handler refuses the stranger", |router| router.refused == 20);
    send_marker(&site.gate, "g1");
    assert_eq!(at_service.udp_until_marker(), 0);
    device.close(false).unwrap();
}

pub fn kernel_receives_local_and_peers_only(backend: Backend) {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut device = open(backend, &state);
    let mut router = Router::new();
    for (client, gate) in [(CLIENT, GATE_OUTSIDE), (CLIENT6, GATE_OUTSIDE6)] {
        let listed = Site::udp(&site.gate, gate, 5060);
        let unlisted = Site::udp(&site.gate, gate, 5062);
        let client = Site::udp(&site.client, client, 4000);
        let before = router.forwarded;
        client.send_to(b"unlisted", (gate, 5062)).unwrap();
        client.send_to(b"listed", (gate, 5060)).unwrap();
        let mut got = None;
        router.drive(&mut device, "the host receives a listed port", |_| {
            got = received(&listed);
            got.is_some()
        });
        assert_eq!(got.unwrap().0, b"listed");
        assert!(received(&unlisted).is_none(), "an unlisted port reached the kernel");
        assert_eq!(router.forwarded, before, "the handler got the host's packet");
    }
    // A connection of the host's own passes; neither another port of the host nor another protocol does.
    let _feed = site.service.run(|| TcpListener::bind((SERVICE, 7443)).expect("a listener"));
    assert!(dials_from(OWN_PORT), "the host's own connection");
    assert!(dials_from(OWN_PORT + 1), "from any port: the host started it");
    let host = Site::udp(&site.gate, GATE_INSIDE, OWN_PORT);
    Site::udp(&site.service, SERVICE, 7443).send_to(b"no connection", (GATE_INSIDE, OWN_PORT)).unwrap();
    assert!(received(&host).is_none(), "a datagram from the peer's address and port");
    device.close(false).unwrap();
}

/// Whether the host of the calling thread gets a TCP connection from this port to the feed.
fn dials_from(port: u16) -> bool {
    let address = |host: &str, port| SockaddrIn::from(SocketAddrV4::new(host.parse().expect("an address"), port));
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).expect("a socket");
    setsockopt(&socket, SendTimeout, &TimeVal::milliseconds(500)).expect("a time limit");
    bind(socket.as_raw_fd(), &address(GATE_INSIDE, port)).expect("a free port");
    connect(socket.as_raw_fd(), &address(SERVICE, 7443)).is_ok()
}

pub fn stays_closed_after_a_crash(backend: Backend) {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut device = open(backend, &state);
    let mut router = Router::new();
    let client = Site::udp(&site.client, CLIENT, 4000);
    let service = Site::udp(&site.service, SERVICE, 5004);
    router.drive(&mut device, "the gate forwards", |_| {
        client.send_to(b"hello", (SERVICE, 5004)).unwrap();
        received(&service).is_some()
    });
    // The process dies: nothing is detached. The administrator's kernel even forwards.
    drop(device);
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    let (mut at_service, mut at_client) = (Capture::new(&site.service, "s0"), Capture::new(&site.client, "c0"));
    let listed = Site::udp(&site.gate, GATE_OUTSIDE, 5060);
    let listed_inside = Site::udp(&site.gate, GATE_INSIDE, 5060);
    for _ in 0..20 {
        client.send_to(b"hello", (SERVICE, 5004)).unwrap();
        service.send_to(b"hello", (CLIENT, 4000)).unwrap();
    }
    client.send_to(b"ssh still works", (GATE_OUTSIDE, 5060)).unwrap();
    service.send_to(b"ssh still works", (GATE_INSIDE, 5060)).unwrap();
    assert_eq!(wait_for(&listed).0, b"ssh still works");
    assert_eq!(wait_for(&listed_inside).0, b"ssh still works");
    send_marker(&site.gate, "g1");
    send_marker(&site.gate, "g0");
    assert_eq!((at_service.udp_until_marker(), at_client.udp_until_marker()), (0, 0));
    fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();

    // A restart takes over and serves again; a clean close leaves nothing behind.
    let mut device = open(backend, &state);
    router.drive(&mut device, "the restarted gate forwards", |_| {
        client.send_to(b"again", (SERVICE, 5004)).unwrap();
        received(&service).is_some_and(|(bytes, _)| bytes == b"again")
    });
    device.close(true).unwrap();
    let device = open(backend, &state);
    device.close(false).unwrap();
    let unlisted = Site::udp(&site.gate, GATE_OUTSIDE, 5062);
    client.send_to(b"open again", (GATE_OUTSIDE, 5062)).unwrap();
    assert_eq!(wait_for(&unlisted).0, b"open again");
}

pub fn local_is_rate_limited(backend: Backend) {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut limited = options(backend, state.path());
    limited.rules.local.iter_mut().for_each(|rule| rule.rate_pps = 50);
    let mut device = Device::open(&limited).expect("the device opens");
    device.heartbeat(monotonic_now());
    let listed = Site::udp(&site.gate, GATE_OUTSIDE, 5060);
    let client = Site::udp(&site.client, CLIENT, 4000);
    for _ in 0..1000 {
        client.send_to(b"flood", (GATE_OUTSIDE, 5060)).unwrap();
    }
    let mut arrived = 0;
    while received(&listed).is_some() {
        arrived += 1;
    }
    let dropped = count(&mut device, Reason::LocalRate);
    assert_eq!(arrived + dropped, 1000);
    assert!(arrived >= 1 && dropped > 500, "{arrived} arrived, {dropped} dropped");
    device.close(false).unwrap();
}

pub fn refusals_say_what_to_do(backend: Backend) {
    if !is_root() {
        return;
    }
    let (_site, state) = (Site::new(), State::new());
    let good = options(backend, state.path());
    let missing = sluicegate_datapath::Options { inside: "nosuch0".into(), ..good.clone() };
    assert!(matches!(Device::open(&missing), Err(OpenError::NoInterface(_))));
    let same = sluicegate_datapath::Options { inside: "g0".into(), ..good.clone() };
    assert!(matches!(Device::open(&same), Err(OpenError::SameInterface(_))));
    let loopback = sluicegate_datapath::Options { inside: "lo".into(), ..good.clone() };
    assert!(Device::open(&loopback).is_err());
    let local = vec![good.rules.local[0]; sluicegate_datapath::LOCAL_MAX + 1];
    let many = sluicegate_datapath::Options { rules: Rules { local, ..good.rules.clone() }, ..good.clone() };
    assert!(matches!(Device::open(&many), Err(OpenError::TooMany { table: "local", .. })));
    fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
    let error = Device::open(&good).unwrap_err();
    assert!(matches!(error, OpenError::ForwardingOn(_)), "{error}");
    assert!(sluicegate_datapath::forwarding::is_on("g0").unwrap());
    sluicegate_datapath::forwarding::switch_off("g0").unwrap();
    assert!(!sluicegate_datapath::forwarding::is_on("g0").unwrap());
    Rtnetlink::open().unwrap().create_veth("down0", "down1", None).unwrap();
    let error = Device::open(&sluicegate_datapath::Options { inside: "down0".into(), ..good }).unwrap_err();
    assert!(matches!(&error, OpenError::Down(interface) if interface == "down0"), "{error}");
    assert!(error.to_string().contains("ip link set down0 up"));
}

pub fn a_wait_ends_when_it_is_woken(backend: Backend) {
    if !is_root() {
        return;
    }
    let (_site, state) = (Site::new(), State::new());
    let (mut device, wake) = (open(backend, &state), Arc::new(Wake::new().unwrap()));
    device.woken_by(Arc::clone(&wake));
    let mut poll = |timeout| {
        let began = Instant::now();
        while device.poll(timeout, &mut |_, _| Action::Drop).unwrap() > 0 {}
        began.elapsed()
    };
    let long = Duration::from_secs(60);
    for _ in 0..3 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                wake.wake();
            });
            assert!(poll(long) < long / 2);
        });
        wake.wake();
        assert!(poll(long) < long / 2, "it was woken before it waited");
        // What hosts say of themselves, and the gate's own host has, ends some.
        let short = Duration::from_millis(50);
        assert!((0..100).any(|_| poll(short) >= short), "and is not woken for ever");
    }
    device.close(false).unwrap();
}

pub fn stale_heartbeat_drops() {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut device = open(Backend::Xdp, &state);
    let mut router = Router::new();
    let client = Site::udp(&site.client, CLIENT, 4000);
    let service = Site::udp(&site.service, SERVICE, 5004);
    router.drive(&mut device, "the gate forwards", |_| {
        client.send_to(b"hello", (SERVICE, 5004)).unwrap();
        received(&service).is_some()
    });
    while device.poll(Duration::from_millis(10), &mut |_, _| Action::Drop).unwrap() > 0 {}
    let before = (router.forwarded, count(&mut device, Reason::HeartbeatStale));
    // The process lives, but its clock says that it was last alive two seconds ago.
    device.heartbeat(monotonic_now() - Duration::from_secs(3));
    let listed = Site::udp(&site.gate, GATE_OUTSIDE, 5060);
    for _ in 0..10 {
        client.send_to(b"too late", (SERVICE, 5004)).unwrap();
    }
    client.send_to(b"still local", (GATE_OUTSIDE, 5060)).unwrap();
    assert_eq!(wait_for(&listed).0, b"still local");
    assert_eq!(device.poll(Duration::ZERO, &mut |_, _| unreachable!("a packet passed")).unwrap(), 0);
    assert_eq!((router.forwarded, count(&mut device, Reason::HeartbeatStale)), (before.0, before.1 + 10));
    router.drive(&mut device, "the gate is alive again", |_| {
        client.send_to(b"alive", (SERVICE, 5004)).unwrap();
        received(&service).is_some_and(|(bytes, _)| bytes == b"alive")
    });
    device.close(false).unwrap();
}

pub fn open_checksums_are_completed(backend: Backend) {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::with_offloads(true), State::new());
    let mut device = open(backend, &state);
    let mut router = Router::new();
    for (client, service) in [(CLIENT, SERVICE), (CLIENT6, SERVICE6)] {
        let client = Site::udp(&site.client, client, 4000);
        let socket = Site::udp(&site.service, service, 5004);
        router.drive(&mut device, "the service's kernel accepts the checksum", |_| {
            client.send_to(b"hello", (service, 5004)).unwrap();
            received(&socket).is_some()
        });
    }
    device.close(false).unwrap();
}
