use core::net::Ipv4Addr;

use sluicegate_wire::{IpProtocol, capability::ClientId};

use super::*;
use crate::host::PATH_MAX;

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
        rtt: None,
        repeats: None,
        answering: false,
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
                honest += u32::from(is_granted(policy.decide(now, &request(n + second as u32 * 10_000, 7))));
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

const SECOND: Duration = Duration::from_secs(1);

fn uses(policy: &mut ServerPolicy, now: Instant, remote: u32, bytes: u64, asked_anew: Option<Limits>) {
    policy.received(now, &Received { remote: request(remote, 1).remote, bytes, asked_anew });
}

/// One that asks again the moment that it has spent what it got, of which so much arrives; returns what it was granted.
fn reasks(policy: &mut ServerPolicy, from: Instant, seconds: u64, arrives_percent: u64) -> u64 {
    let (mut now, mut granted) = (from, 0);
    while now < from + SECOND * u32::try_from(seconds).unwrap() {
        if let Decision::Grant(limits) = policy.decide(now, &request(1, 1)) {
            granted += limits.bytes();
            uses(policy, now, 1, 0, Some(limits));
            uses(policy, now, 1, limits.bytes() * arrives_percent / 100, None);
        }
        // 32 kB at 1 Mbit/s.
        now = now + Duration::from_millis(256);
    }
    granted
}

#[test]
fn who_asks_again_when_it_is_spent_gets_less_than_twice_n_until_its_time_is_over() {
    for arrives_percent in [0, 10, 50, 100] {
        let config = ServerConfig { flood_bytes_per_s: 8_000, ..ServerConfig::default() };
        let mut policy = policy(config);
        let granted = reasks(&mut policy, Instant::from_secs(1), 60, arrives_percent);
        assert!((32_000..=64_000).contains(&granted), "{granted} bytes with {arrives_percent} % arriving");
        let later = Instant::from_secs(60);
        assert!(policy.is_blacklisted(later, request(1, 1).remote), "{arrives_percent} %");
        assert!(is_granted(policy.decide(later, &request(2, 1))), "others are served");
        assert!(is_granted(policy.decide(later + SECOND * 60, &request(1, 1))), "and later it is again");
    }
}

#[test]
fn who_asks_again_a_second_later_does_so_too_slowly_to_hide() {
    // What gets through a request lane that others flood.
    let mut policy = policy(ServerConfig { flood_bytes_per_s: 8_000, ..ServerConfig::default() });
    let mut granted = 0;
    for millis in (1_000..9_000).step_by(1_050) {
        let now = Instant::from_millis(millis);
        if let Decision::Grant(limits) = policy.decide(now, &request(1, 1)) {
            granted += limits.bytes();
            uses(&mut policy, now, 1, limits.bytes(), Some(limits));
        }
    }
    assert!((32_000..=64_000).contains(&granted), "{granted}");
    assert!(policy.is_blacklisted(Instant::from_secs(30), request(1, 1).remote));
}

#[test]
fn a_sender_that_forged_notices_make_ask_again_once_a_second_is_not_blacklisted() {
    let edge = ServerConfig { limits: Limits::new(100, 10).unwrap(), ..ServerConfig::default() };
    for config in [edge, ServerConfig::default()] {
        let mut policy = policy(config);
        for second in 1..=60 {
            let now = Instant::from_secs(second);
            if let Decision::Grant(limits) = policy.decide(now, &request(1, 1)) {
                uses(&mut policy, now, 1, 5_000, Some(limits));
            }
            assert!(!policy.is_blacklisted(now, request(1, 1).remote), "{:?}, second {second}", config.limits);
        }
    }
}

#[test]
fn who_renews_faster_than_the_rate_is_blacklisted_and_who_stays_below_never() {
    for (bytes_per_s, arrives_percent, lasts) in
        [(125_000, 100, false), (125_000, 20, false), (60_000, 100, true), (5_000, 100, true)]
    {
        let config = ServerConfig { limits: Limits::new(100, 10).unwrap(), ..ServerConfig::default() };
        let mut policy = policy(config);
        let Decision::Grant(first) = policy.decide(Instant::from_secs(1), &request(1, 1)) else { panic!() };
        uses(&mut policy, Instant::from_secs(1), 1, 0, Some(first));
        let (mut spent, mut held) = (0, first);
        for step in 0..600 {
            let now = Instant::from_secs(1) + Duration::from_millis(100) * step;
            let bytes = bytes_per_s / 10;
            spent += bytes;
            uses(&mut policy, now, 1, bytes * arrives_percent / 100, None);
            if spent >= held.bytes() / 2 || step % 44 == 43 {
                spent = 0;
                let decision = policy.decide(now, &Request { renewal: true, proven: true, ..request(1, 1) });
                if let Decision::Grant(limits) = decision {
                    held = limits;
                }
            }
        }
        let listed = policy.is_blacklisted(Instant::from_secs(60), request(1, 1).remote);
        assert_eq!(!listed, lasts, "{bytes_per_s} B/s, of which {arrives_percent} % arrive");
    }
}

#[test]
fn who_asks_for_a_renewal_until_the_answer_comes_is_charged_for_one() {
    let mut policy = policy(ServerConfig { flood_bytes_per_s: 8_000, ..ServerConfig::default() });
    let Decision::Grant(limits) = policy.decide(Instant::from_secs(1), &request(1, 1)) else { panic!() };
    uses(&mut policy, Instant::from_secs(1), 1, 0, Some(limits));
    // 20 kB every four seconds, as many small transfers are; each renewal is asked for five times.
    for transfer in 0..20 {
        let mut now = Instant::from_secs(1 + 4 * transfer);
        uses(&mut policy, now, 1, 16_000, None);
        for again in 0..5 {
            let answering = again > 0;
            let decision = policy.decide(now, &Request { renewal: true, proven: true, answering, ..request(1, 1) });
            let expected = if answering { Decision::Again } else { Decision::Grant(limits) };
            assert_eq!(decision, expected, "transfer {transfer}");
            now = now + Duration::from_millis(50);
            uses(&mut policy, now, 1, 800, None);
        }
        assert!(!policy.is_blacklisted(now, request(1, 1).remote));
    }
}

#[test]
fn who_has_used_more_than_n_at_once_gets_less_and_is_listed_only_before_twice_n() {
    let config = ServerConfig { flood_bytes_per_s: 8_000, ..ServerConfig::default() };
    let n = config.limits.bytes();
    let mut policy = policy(config);
    let now = Instant::from_secs(1);
    let Decision::Grant(first) = policy.decide(now, &request(1, 1)) else { panic!() };
    uses(&mut policy, now, 1, first.bytes(), Some(first));
    let mut used = first.bytes();
    let renewal = Request { renewal: true, proven: true, ..request(1, 1) };
    while let Decision::Grant(limits) = policy.decide(now, &renewal) {
        assert!(used + limits.bytes() <= 2 * n, "{used} and {}", limits.bytes());
        // Two transfers in a row are no flood.
        used += limits.bytes() / 2;
        uses(&mut policy, now, 1, limits.bytes() / 2, None);
    }
    assert!(used >= 2 * n - n / 4 && policy.is_blacklisted(now, request(1, 1).remote), "{used}");
}

#[test]
fn a_sender_that_never_renews_gets_one_grant_in_the_time_of_the_blacklist() {
    let mut policy = policy(ServerConfig { renew: Renew::Never, ..ServerConfig::default() });
    let now = Instant::from_secs(1);
    let Decision::Grant(limits) = policy.decide(now, &request(1, 1)) else { panic!() };
    uses(&mut policy, now, 1, 1_000, Some(limits));
    let renewal = Request { renewal: true, proven: true, ..request(1, 1) };
    assert_eq!(policy.decide(now + SECOND, &renewal), Decision::Refuse);
    let granted = reasks(&mut policy, now + SECOND, 59, 100);
    assert!(limits.bytes() + granted <= 64_000, "{granted}");
    assert!(is_granted(policy.decide(now + SECOND * 200, &request(1, 1))));
}

#[test]
fn many_client_ids_of_an_address_are_one_sender() {
    let mut policy = policy(ServerConfig::default());
    let granted = |policy: &mut ServerPolicy, remote: IpAddr| -> u64 {
        let asks = (0..100).map(|id| Request { client_id: ClientId(id), remote, ..request(1, 1) });
        asks.map(|ask| match policy.decide(Instant::from_secs(1), &ask) {
            Decision::Grant(limits) => limits.bytes(),
            _ => 0,
        })
        .sum()
    };
    let one = granted(&mut policy, request(1, 1).remote);
    assert!((32_000..64_000).contains(&one), "{one}");
    let network: u128 = 0x2001_0db8_0000_0001 << 64;
    let all: u64 = (0..100).map(|host| granted(&mut policy, IpAddr::V6((network + host).into()))).sum();
    assert_eq!(all, one, "all addresses of an IPv6 network of 64 bits are one host's to choose among");
}

#[test]
fn a_spoofing_crowd_takes_nothing_from_the_host_in_whose_name_it_asks() {
    let mut policy = policy(ServerConfig { senders_max: 64, requests_per_s: 1_000_000, ..ServerConfig::default() });
    let now = Instant::from_secs(1);
    // In the host's name by a hundred other paths, and in everybody's.
    for n in 0..10_000_u32 {
        policy.decide(now, &request(7, 1_000 + (n % 100) as u16));
        policy.decide(now, &request(1_000 + n, 1_000 + (n % 100) as u16));
    }
    assert_eq!(policy.decide(now, &request(7, 7)), Decision::Grant(policy.config.limits), "all of N");
    let event = Unexpected {
        local: Ipv4Addr::LOCALHOST.into(),
        remote: request(7, 7).remote,
        client_id: ClientId::NONE,
        proven: false,
        what: Misdeed::UnknownNonce,
    };
    for _ in 0..1_000 {
        policy.unexpected(now, &event);
    }
    let limits = policy.config.limits;
    uses(&mut policy, now, 7, 16_000, Some(limits));
    for _ in 0..1_000 {
        policy.decide(now, &request(7, 666));
        policy.decide(now, &Request { renewal: true, ..request(7, 666) });
    }
    assert!(!policy.is_blacklisted(now, request(7, 7).remote));
    assert!(is_granted(policy.decide(now, &Request { renewal: true, proven: true, ..request(7, 7) })));
    assert_eq!(policy.gauges(now)[0].used, 1, "and who has proved nothing has no account");
}

#[test]
fn a_full_table_of_senders_forgets_who_is_not_blacklisted_first() {
    let mut policy = policy(ServerConfig { senders_max: 8, ..ServerConfig::default() });
    let now = Instant::from_secs(1);
    for n in 0..4 {
        let overrun = Unexpected {
            local: Ipv4Addr::LOCALHOST.into(),
            remote: request(n, 1).remote,
            client_id: ClientId::NONE,
            proven: true,
            what: Misdeed::Overrun,
        };
        policy.unexpected(now, &overrun);
    }
    for n in 100..1_000 {
        uses(&mut policy, now + Duration::from_millis(n.into()), n, 1_000, None);
    }
    let now = now + SECOND;
    assert!((0..4).all(|n| policy.is_blacklisted(now, request(n, 1).remote)));
    let [senders, listed, _] = policy.gauges(now);
    assert_eq!((senders.used, senders.max, listed.used), (8, 8, 4));
}
