use core::net::Ipv4Addr;

use sluicegate_wire::IpProtocol;

use super::*;
use crate::host::{PATH_MAX, Usage};

fn policy(config: ServerConfig) -> ServerPolicy {
    ServerPolicy::new(config, [9; 16])
}

fn request(remote: u32, path: u16) -> Request {
    let mut ids = [PathId::NONE; PATH_MAX];
    ids[0] = PathId(path);
    Request {
        local: Ipv4Addr::LOCALHOST.into(),
        remote: Ipv4Addr::from_bits(remote).into(),
        client_id: ClientId::NONE,
        upper: IpProtocol::TCP,
        ports: None,
        path: ids,
        renewal: false,
        answers_mine: false,
        proven: false,
        usage: None,
        replaces: None,
    }
}

fn is_granted(decision: Decision) -> bool {
    matches!(decision, Decision::Grant(_))
}

#[test]
fn an_idle_server_grants_everybody_its_default() {
    let mut policy = policy(ServerConfig { requests_per_s: 100, ..ServerConfig::default() });
    assert!((0..100).all(|n| is_granted(policy.decide(Instant::ZERO, &request(n, 1)))));
}

#[test]
fn a_flooding_path_leaves_the_other_paths_their_share() {
    let mut policy = policy(ServerConfig { requests_per_s: 100, ..ServerConfig::default() });
    let (mut honest, mut flood) = (0, 0);
    for second in 1..=10 {
        let now = Instant::from_secs(second);
        for n in 0..10_000 {
            flood += u32::from(is_granted(policy.decide(now, &request(n, 666))));
            if n % 1_000 == 999 {
                honest += u32::from(is_granted(policy.decide(now, &request(n, 7))));
            }
        }
    }
    assert_eq!(honest, 100, "every request of the honest path is served");
    assert!(flood <= 10 * 50 + 150, "the flooding path had {flood} of its 500");
}

#[test]
fn more_paths_than_the_table_holds_share_one_share_and_no_memory() {
    let mut policy = policy(ServerConfig { requests_per_s: 10, paths_max: 4, ..ServerConfig::default() });
    let now = Instant::from_secs(5);
    for n in 0..5_000 {
        policy.decide(now, &request(n, n as u16));
    }
    assert_eq!(policy.shares.len(), 4);
    assert_eq!(policy.decide(now, &request(1, 4_999)), Decision::Silent);
}

#[test]
fn a_proven_flooder_gets_no_renewal_and_nothing_else_until_its_time_is_over() {
    let config = ServerConfig { flood_bytes_per_s: 50_000, ..ServerConfig::default() };
    let mut policy = policy(config);
    let now = Instant::from_secs(1);
    let usage = Some(Usage { bytes: 16_000, over: Duration::from_millis(130), limits: config.limits });
    let renewal = Request { renewal: true, proven: true, usage, ..request(1, 1) };
    assert_eq!(policy.decide(now, &renewal), Decision::Refuse);
    assert_eq!(policy.decide(now, &request(1, 1)), Decision::Silent);
    assert!(is_granted(policy.decide(now, &request(2, 1))), "others are served");
    assert!(is_granted(policy.decide(now + config.blacklist_for, &request(1, 1))));
    let slow = Some(Usage { bytes: 16_000, over: Duration::from_secs(4), limits: config.limits });
    assert!(is_granted(
        policy.decide(now, &Request { usage: slow, ..Request { remote: request(3, 1).remote, ..renewal } })
    ));
}

#[test]
fn forged_packets_put_nobody_onto_the_blacklist() {
    let mut policy = policy(ServerConfig::default());
    let remote = request(1, 1).remote;
    let event = |proven| Unexpected {
        local: Ipv4Addr::LOCALHOST.into(),
        remote,
        client_id: ClientId::NONE,
        proven,
        what: Misdeed::UnknownNonce,
    };
    for _ in 0..1_000 {
        policy.unexpected(Instant::ZERO, &event(false));
    }
    assert!(!policy.is_blacklisted(Instant::ZERO, remote, ClientId::NONE));
    for _ in 0..3 {
        policy.unexpected(Instant::ZERO, &event(true));
    }
    assert!(policy.is_blacklisted(Instant::ZERO, remote, ClientId::NONE));
}

#[test]
fn a_full_blacklist_forgets_who_would_be_free_first() {
    let mut policy = policy(ServerConfig { blacklist_max: 4, ..ServerConfig::default() });
    for n in 0..5 {
        policy.blacklist(Instant::from_secs(u64::from(n)), request(n, 1).remote, ClientId::NONE);
    }
    let now = Instant::from_secs(5);
    assert!(!policy.is_blacklisted(now, request(0, 1).remote, ClientId::NONE));
    assert!((1..5).all(|n| policy.is_blacklisted(now, request(n, 1).remote, ClientId::NONE)));
    assert_eq!(policy.blacklisted(now), (4, 4));
}
