use std::vec::Vec;

use super::*;
use crate::Crowd;

const AIMS: Aims = Aims {
    interval: Duration::from_millis(100),
    busy: 0.95,
    sojourn: (Duration::from_millis(5), Duration::from_millis(100)),
    memory: Thresholds { min: 1e6, max: 2e6 },
};

/// A server that serves `served` a second and refuses forty times as fast, for ten seconds: of each source (requests a
/// second) what it is let in of, in the last five.
fn play(rates: &[u64], served: f64) -> Vec<f64> {
    play_signed_in(rates, served, &[], false).0
}

/// The same, where so many users signed in from each source before, perhaps behind a sieve; and how many got through that.
fn play_signed_in(rates: &[u64], served: f64, users: &[u64], is_sieved: bool) -> (Vec<f64>, u64) {
    let mut through = 0;
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    for (place, users) in users.iter().enumerate() {
        (0..*users).for_each(|user| server.sign_in(hash(1 << 32 | user), hash(place as u64)));
    }
    let mut passed = std::vec![0_u64; rates.len()];
    let mut random = 1_u64;
    // Seconds of work that wait; more than a tenth of a second's is lost, as in a socket's buffer.
    let mut waits = 0.0_f64;
    for tick in 1..=100_u64 {
        let mut work = 0.0;
        for (place, rate) in rates.iter().enumerate() {
            for _ in 0..rate / 10 {
                draw_next(&mut random);
                let source = hash(place as u64);
                let shares = server.sieves()[0].filter(|_| is_sieved);
                let share = shares.and_then(|shares| crate::sources::cells(source).map(|cell| shares[cell]).max());
                if share.is_some_and(|share| share != u32::MAX && hash(random) >> 32 >= share.into()) {
                    continue;
                }
                through += u64::from(tick > 50);
                let came = if is_sieved { Came::Sieved } else { Came::Past };
                if server.arrive(random, source, came) == Verdict::Pass {
                    work += 1.0 / served;
                    passed[place] += u64::from(tick > 50);
                } else {
                    work += 1.0 / served / 40.0;
                }
            }
        }
        let busy = (waits + work).min(0.1);
        waits = (waits + work - busy).min(0.1);
        let used = Used {
            cpu: busy / 0.1,
            begun: 1.0,
            memory: 0,
            sojourn: Duration::from_secs_f64(waits),
            lost: 0.0,
            crowd: Crowd::NONE,
        };
        server.measure(Instant::from_millis(tick * 100), used);
    }
    (passed.into_iter().map(|passed| passed as f64 / 5.0).collect(), through / 5)
}

fn draw_next(random: &mut u64) {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
}

fn hash(of: u64) -> u64 {
    of.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn it_serves_nearly_all_that_it_can_whatever_arrives() {
    for times in [1.2, 2.0, 5.0] {
        let rate = (times * 2_000.0 / 20.0) as u64 / 10 * 10;
        let sum: f64 = play(&[rate; 20], 2_000.0).iter().sum();
        let refusals = (times - sum / 2_000.0) / 40.0;
        let used = sum / 2_000.0 + refusals;
        assert!((0.9..=1.0).contains(&used), "{times}: {sum}, {used}");
    }
}

#[test]
fn who_sends_little_is_let_in_while_a_flood_is_refused() {
    let mut rates = std::vec![20; 20];
    rates.push(20_000);
    let served = play(&rates, 2_000.0);
    assert!(served[..20].iter().all(|served| *served >= 19.0), "{served:?}");
    assert!(served[20] > 500.0 && served[20] < 1_600.0, "{served:?}");
}

#[test]
fn what_a_sieve_refuses_is_counted_by_what_comes_through_it() {
    let mut rates = std::vec![20; 20];
    rates.push(20_000);
    let (served, through) = play_signed_in(&rates, 2_000.0, &[], true);
    assert!(served[..20].iter().all(|served| *served >= 19.0), "{served:?}");
    assert!(served[20] > 1_200.0 && served[20] < 1_600.0, "{served:?}");
    assert!(through < 3_000, "{through} a second of 20400");
}

/// Connections of these numbers of an interval, one each, come for ten seconds to a server that can take a hundred in one, after
/// those that wait. With a sieve most are refused in front of it. What was taken of each in the last five seconds, most that
/// waited then, and what the server refused itself in that time.
fn play_connections(rates: &[u64], is_sieved: bool) -> (Vec<u32>, usize, u32) {
    const HELD: usize = 1_024;
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    let mut taken = std::vec![0; rates.len()];
    let mut waiting = std::collections::VecDeque::new();
    let (mut random, mut longest, mut refused) = (1_u64, 0, 0);
    for tick in 1..=100 {
        let start = Instant::from_millis(tick * 100 - 100);
        let mut work = 0.0;
        // In ten parts, of which each brings and takes a tenth.
        for part in 1..=10 {
            let now = start + Duration::from_millis(part * 10);
            for (place, _) in rates.iter().enumerate().flat_map(|of| std::iter::repeat_n(of, (*of.1 / 10) as usize)) {
                draw_next(&mut random);
                let shares = server.sieves()[1].filter(|_| is_sieved);
                let share =
                    shares.and_then(|shares| crate::sources::cells(hash(place as u64)).map(|at| shares[at]).max());
                let is_through = share.is_none_or(|share| share == u32::MAX || hash(random) >> 32 < share.into());
                if is_through && waiting.len() < HELD {
                    waiting.push_back((place, now));
                }
            }
            while work < part as f64 * 0.1 && server.connections_left() > 0 {
                let Some((place, came)) = waiting.pop_front() else { break };
                draw_next(&mut random);
                let is_taken = server.connects(random, hash(place as u64), is_sieved.then_some(came));
                work += if is_taken { 0.01 } else { 0.002 };
                if tick > 50 {
                    taken[place] += u32::from(is_taken);
                    refused += u32::from(!is_taken);
                }
            }
        }
        longest = if tick > 50 { longest.max(waiting.len()) } else { 0 };
        let crowd = Crowd {
            waiting: waiting.len() as u32,
            is_full: waiting.len() >= HELD,
            strangers: 0.0,
            busy: work.min(1.0),
        };
        let used = Used { cpu: work.min(1.0), begun: 1.0, memory: 0, sojourn: Duration::ZERO, lost: 0.0, crowd };
        server.measure(Instant::from_millis(tick * 100), used);
    }
    (taken, longest, refused)
}

#[test]
fn as_many_connections_are_taken_as_find_their_turn_and_who_opens_few_is_refused_last() {
    for is_sieved in [false, true] {
        for flood in [100, 200, 500] {
            let mut rates = std::vec![10; 5];
            rates.push(flood);
            let (taken, longest, refused) = play_connections(&rates, is_sieved);
            let (few, all) = (taken[..5].iter().sum::<u32>(), taken.iter().sum::<u32>());
            let spent = f64::from(all) + 0.2 * f64::from(refused);
            assert!(spent >= 4_500.0, "{is_sieved} {flood}: {all}, {refused} refused, {longest} waited");
            if !is_sieved && flood == 500 {
                // To refuse all takes as long as to serve what can be served.
                assert!(all >= 2_000, "{all} of what 5000 could be");
                continue;
            }
            assert!(longest <= 150, "{is_sieved} {flood}: {longest} waited");
            assert!(!is_sieved || all >= 4_700, "{flood}: {all} of what 5000 could be, {refused} refused");
            assert!(few >= 2_200, "{is_sieved} {flood}: {few} of 2500 of those who open few");
        }
    }
}

#[test]
fn strangers_who_only_stand_have_nobody_refused_while_there_is_time_for_all() {
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    for tick in 1..=20 {
        for source in 0..20 {
            assert!(server.connects(u64::MAX, hash(source), None));
        }
        let crowd = Crowd { strangers: 1.0, busy: 0.2, ..Crowd::NONE };
        let used = Used { cpu: 0.2, begun: 1.0, memory: 0, sojourn: Duration::ZERO, lost: 0.0, crowd };
        server.measure(Instant::from_millis(tick * 100), used);
    }
}

#[test]
fn a_burst_of_connections_that_a_server_gets_through_is_refused_nothing() {
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    let mut waiting = 1_000;
    for tick in 1..=20 {
        let mut taken = 0;
        while waiting > 0 && server.connections_left() > 0 {
            assert!(server.connects(u64::MAX, hash(waiting), None));
            (taken, waiting) = (taken + 1, waiting - 1);
        }
        let busy = f64::from(taken) / 500.0;
        let crowd = Crowd { waiting: waiting as u32, is_full: false, strangers: 0.0, busy };
        let used = Used { cpu: busy, begun: 1.0, memory: 0, sojourn: Duration::ZERO, lost: 0.0, crowd };
        server.measure(Instant::from_millis(tick * 100), used);
    }
    assert_eq!(waiting, 0);
}

#[test]
fn a_hundred_telephones_behind_one_address_are_served_like_a_hundred_sources() {
    // A crowd at 250 addresses, and one office.
    let mut rates = std::vec![50; 250];
    rates.push(200);
    let mut users = std::vec![1; 250];
    users.push(100);
    let (alike, known) = (play(&rates, 2_000.0)[250], play_signed_in(&rates, 2_000.0, &users, false).0[250]);
    assert!(alike < 20.0, "{alike}");
    assert!(known >= 198.0, "{known}");
}

#[test]
fn where_refusing_all_takes_too_long_those_who_send_most_are_not_heard() {
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    server.sign_in(hash(1 << 32), hash(99));
    let (mut random, mut waits, mut heard, mut slow) = (1_u64, 0.0_f64, 0, 0);
    let mut draw = || {
        draw_next(&mut random);
        random
    };
    for tick in 1..=100_u64 {
        // To hear one takes 25 us, not to hear it 2 us: fifty senders have it do two and a half times what it can.
        let mut work = 0.0;
        for source in (0..50).cycle().take(10_000) {
            work += if server.hears(&mut draw, hash(source)) { 25e-6 } else { 2e-6 };
        }
        let honest = server.hears(&mut draw, hash(99));
        heard += u32::from(honest && tick > 20);
        waits = (waits + work - 0.1).clamp(0.0, 0.4);
        slow += u32::from(waits > 0.1 && tick > 20);
        let used = Used {
            cpu: 1.0,
            begun: 1.0,
            memory: 0,
            sojourn: Duration::from_secs_f64(waits),
            lost: 0.0,
            crowd: Crowd::NONE,
        };
        server.measure(Instant::from_millis(tick * 100), used);
    }
    assert!(
        heard >= 79 && slow <= 20,
        "one that sends ten a second was heard {heard} times of 80; {slow} intervals too slow"
    );
    for tick in 101..=140 {
        let used = Used { cpu: 0.1, begun: 1.0, memory: 0, sojourn: Duration::ZERO, lost: 0.0, crowd: Crowd::NONE };
        server.measure(Instant::from_millis(tick * 100), used);
    }
    assert!((0..1_000).all(|_| server.hears(&mut draw, hash(1))), "it is over when it is over");
}

#[test]
fn a_call_id_that_passes_passes_no_more_often_than_others() {
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    let mut passed = 0;
    for tick in 1..=100 {
        let mut work = 0;
        for _ in 0..2_000 {
            if server.arrive(0, 7, Came::Past) == Verdict::Pass {
                work += 1;
            }
        }
        for source in 100..150 {
            work += u32::from(server.arrive(1 << 62, source, Came::Past) == Verdict::Pass);
        }
        // A hundred in an interval are what it can do.
        let used = Used {
            cpu: (f64::from(work) / 100.0).min(1.0),
            begun: 1.0,
            memory: 0,
            sojourn: Duration::ZERO,
            lost: 0.0,
            crowd: Crowd::NONE,
        };
        server.measure(Instant::from_millis(tick * 100), used);
        if tick > 50 {
            passed += (100..150).filter(|source| server.arrive(1 << 62, *source, Came::Past) == Verdict::Pass).count();
        }
    }
    assert_eq!(passed, 50 * 50, "who sends once is let in, whatever another does");
}

#[test]
fn what_is_lost_for_lack_of_room_is_too_much_however_short_it_waits() {
    let level_after = |lost: f64, begun: f64, waits: u64| {
        let mut server = Adaptive::new(AIMS, Instant::ZERO);
        for interval in 1..=3_u32 {
            for draw in 0..1_000 {
                let _ = server.arrive(draw << 54, 7, Came::Past);
            }
            // A little less each time, as if that were all.
            let sojourn = Duration::from_millis(waits.saturating_sub(interval.into()));
            let used = Used { cpu: 0.8, begun, memory: 0, sojourn, lost, crowd: Crowd::NONE };
            server.measure(Instant::from_millis(u64::from(interval) * 100), used);
        }
        server.level()
    };
    let [none, some, much] = [0.0, 0.2, 0.9].map(|lost| level_after(lost, 1.0, 40).unwrap());
    assert!(some < 0.7 * none && much < 0.5 * some, "{none} {some} {much}");
    assert_eq!(level_after(0.9, 0.1, 40), None, "where refusing saves nothing nobody is refused");
    assert_eq!(level_after(0.9, 1.0, 0), None, "nor for bursts, while the thread is not behind");
}

#[test]
fn a_server_that_is_not_busy_refuses_nobody() {
    assert_eq!(play(&[500, 10], 2_000.0), [500.0, 10.0]);
}

#[test]
fn where_refusing_saves_nothing_nobody_is_refused() {
    for (begun, is_refused) in [(0.1, false), (0.5, true)] {
        let mut server = Adaptive::new(AIMS, Instant::ZERO);
        for interval in 1..=20 {
            for draw in 0..100 {
                let _ = server.arrive(draw << 57, 7, Came::Past);
            }
            let used =
                Used { cpu: 1.0, begun, memory: 0, sojourn: Duration::from_millis(60), lost: 0.0, crowd: Crowd::NONE };
            server.measure(Instant::from_millis(interval * 100), used);
        }
        assert_eq!(server.is_overloaded(), is_refused, "{begun}");
    }
}

#[test]
fn it_is_over_soon_when_it_is_over() {
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    let mut at = 0;
    let mut measure = |server: &mut Adaptive, cpu, millis| {
        at += 100;
        server.measure(
            Instant::from_millis(at),
            Used { cpu, begun: 1.0, memory: 0, sojourn: Duration::from_millis(millis), lost: 0.0, crowd: Crowd::NONE },
        );
    };
    for _ in 0..50 {
        for draw in 0..1_000 {
            let _ = server.arrive(draw << 54, 7, Came::Past);
        }
        measure(&mut server, 1.0, 200);
    }
    assert!(server.is_overloaded());
    let mut intervals = 0;
    while server.is_overloaded() {
        let _ = server.arrive(0, 7, Came::Past);
        measure(&mut server, 0.1, 0);
        intervals += 1;
    }
    assert!(intervals <= 20, "{intervals}");
}

#[test]
fn requests_that_wait_are_fewer_although_the_thread_seems_idle() {
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    for interval in 1..=20 {
        for draw in 0..100 {
            let _ = server.arrive(draw << 57, 7, Came::Past);
        }
        let used =
            Used { cpu: 0.2, begun: 1.0, memory: 0, sojourn: Duration::from_millis(60), lost: 0.0, crowd: Crowd::NONE };
        server.measure(Instant::from_millis(interval * 100), used);
    }
    assert!(matches!(server.arrive(u64::MAX / 100, 7, Came::Past), Verdict::Reject { .. }));
}

#[test]
fn what_others_are_too_slow_for_is_not_let_in_although_the_thread_is_idle() {
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    let (mut passed, mut waits) = (0, 0.0_f64);
    for interval in 1..=200_u64 {
        let mut asked = 0;
        for draw in 0..100_u64 {
            let draw = (interval * 100 + draw).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            asked += u32::from(server.arrive(draw, 7, Came::Past) == Verdict::Pass);
        }
        passed += if interval > 100 { asked } else { 0 };
        // They do forty in an interval.
        waits = (waits + (f64::from(asked) - 40.0) / 400.0).max(0.0);
        server.wait_for_others(Duration::from_secs_f64(waits));
        let used = Used { cpu: 0.2, begun: 0.1, memory: 0, sojourn: Duration::ZERO, lost: 0.0, crowd: Crowd::NONE };
        server.measure(Instant::from_millis(interval * 100), used);
    }
    assert!((3_200..=4_200).contains(&passed) && waits < 0.2, "{passed} of 4000, {waits}");
}

#[test]
fn memory_alone_refuses_by_chance_and_then_all() {
    let mut server = Adaptive::new(AIMS, Instant::ZERO);
    let used = |memory| Used { cpu: 0.1, begun: 1.0, memory, sojourn: Duration::ZERO, lost: 0.0, crowd: Crowd::NONE };
    server.measure(Instant::from_millis(100), used(1_500_000));
    let half = u64::MAX / 2;
    assert_eq!(server.arrive(half - (1 << 40), 1, Came::Past), Verdict::Pass);
    assert!(matches!(server.arrive(half + (1 << 40), 1, Came::Past), Verdict::Reject { status: 500, .. }));
    server.measure(Instant::from_millis(200), used(2_000_000));
    assert!(matches!(server.arrive(0, 1, Came::Past), Verdict::Reject { retry_after_s: 5..=10, .. }));
    // What comes again is judged as before.
    server.measure(Instant::from_millis(300), used(1_500_000));
    assert_eq!(server.arrive(half - (1 << 40), 1, Came::Past), Verdict::Pass);
}
