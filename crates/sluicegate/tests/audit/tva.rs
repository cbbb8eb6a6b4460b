//! Capabilities as the paper means them.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use sluicegate_api::Role;
use sluicegate_capability::host::{Budget, Decision, PATH_MAX, Policy, Received, Request, ServerConfig, ServerPolicy};
use sluicegate_gate::{Capabilities, Config, ConfigError};
use sluicegate_wire::{
    Instant, IpProtocol,
    capability::{ClientId, Limits, PathId},
};

fn request(host: u8, path: u16) -> Request {
    let mut ids = [PathId::NONE; PATH_MAX];
    ids[0] = PathId(path);
    Request {
        local: Ipv4Addr::new(192, 0, 2, 80).into(),
        remote: Ipv4Addr::new(198, 51, 100, host).into(),
        client_id: ClientId::NONE,
        upper: IpProtocol::UDP,
        ports: None,
        path: ids,
        renewal: false,
        answers_mine: false,
        proven: false,
        rtt: None,
        repeats: None,
        answering: false,
    }
}

/// What a server grants to one that asks as soon as it has spent what it got, at 1 Mbit/s, within a minute.
fn granted_within_a_minute(policy: &mut ServerPolicy, host: u8, arrives_percent: u64) -> u64 {
    let remote: IpAddr = request(host, 1).remote;
    let mut granted = 0;
    for step in 0..234 {
        let now = Instant::from_secs(1) + Duration::from_millis(256) * step;
        if let Decision::Grant(limits) = policy.decide(now, &request(host, 1)) {
            granted += limits.bytes();
            let bytes = limits.bytes() * arrives_percent / 100;
            policy.received(now, &Received { remote, bytes, asked_anew: Some(limits) });
        }
    }
    granted
}

#[test]
fn conformance_01_who_asks_again_when_it_is_spent_gets_twice_n_until_the_blacklist_ends() {
    for arrives_percent in [5, 100] {
        // What an edge is told: 32 kB in 10 s, flood_rate = "64kbit", blacklist_s = 60.
        let config = ServerConfig { flood_bytes_per_s: 8_000, ..ServerConfig::default() };
        let mut policy = ServerPolicy::new(config, [7; 16]);
        let granted = granted_within_a_minute(&mut policy, 1, arrives_percent);
        let bound = 2 * config.limits.bytes();
        assert!(granted <= bound, "{granted} of {bound} bytes, of which {arrives_percent} % arrived");
        let honest = policy.decide(Instant::from_secs(30), &request(2, 1));
        assert_eq!(honest, Decision::Grant(config.limits), "others are served");
        assert!(!policy.is_blacklisted(Instant::from_secs(70), request(1, 1).remote), "and it ends");
    }
}

#[test]
fn conformance_01_a_spoofing_crowd_puts_nobody_onto_the_blacklist() {
    let mut policy = ServerPolicy::new(ServerConfig::default(), [7; 16]);
    for n in 0..1_000 {
        let now = Instant::from_secs(1) + Duration::from_millis(n);
        policy.decide(now, &request(1, 2 + (n % 50) as u16));
        policy.decide(now, &Request { renewal: true, ..request(1, 2 + (n % 50) as u16) });
    }
    let now = Instant::from_secs(2);
    assert!(!policy.is_blacklisted(now, request(1, 1).remote));
    assert_eq!(policy.decide(now, &request(1, 1)), Decision::Grant(ServerConfig::default().limits), "all of N");
}

fn config(rate_bps: u64, lines_max: Option<u32>) -> Config {
    let mut config = Config::new("router", "eth0", "eth1", "/nowhere");
    config.role = Role::Router;
    config.capabilities = Capabilities::new(Role::Router);
    config.capabilities.link_rates_bps = [None, Some(rate_bps)];
    config.capabilities.lines_max = lines_max;
    config
}

#[test]
fn conformance_07_tables_hold_what_the_link_can_carry_and_less_is_refused() {
    let told = config(1_000_000_000, None);
    assert_eq!(told.capabilities.lines(), 312_500, "C / (N/T)min of 1 Gbit/s (TVA III-F)");
    assert_eq!(told.check(), Ok(()));
    let less = config(1_000_000_000, Some(312_499)).check().unwrap_err();
    let [ConfigError { field, what, .. }] = &less[..] else { panic!("{less:?}") };
    assert!(*field == "capability_lines_max" && what.contains("312499") && what.contains("312500"), "{what}");
    assert_eq!(config(1_000_000_000, Some(400_000)).check(), Ok(()), "more is the operator's memory");
}

#[test]
fn conformance_12_every_capability_of_a_grant_down_to_its_last_kilobyte_gets_a_line() {
    for bytes in (1_000..200_000).step_by(500) {
        for seconds in [1, 2, 9, 10, 11, 60, 63, 64, 3_600] {
            for rate in [0, 1, 10_000, 1_250_000] {
                let budget = Budget { bytes, seconds, rate, rtt_ms: 200 };
                let limits = budget.limits().expect("something is left");
                assert!(!limits.is_slower_than(Limits::LEAST), "{budget:?}: {limits:?}");
                assert!(limits.bytes() <= bytes && u64::from(limits.seconds()) <= seconds, "{budget:?}: {limits:?}");
            }
        }
    }
}
