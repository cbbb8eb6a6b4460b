use super::*;

/// A flow of its own, granted and cached.
fn begin(router: &mut Router, flow: u32, now: Instant, limits: Limits) -> (Pair, Result<Class, Reason>) {
    let src = IpAddr::V4((0x0a00_0000 + flow).into());
    let pair = Pair { src, ..Pair::new() };
    let granted = pair.acquire(now, &mut [router], limits);
    let verdict = judge(router, now, &mut pair.regular(Kind::Capabilities, NONCE, &granted, 500));
    (pair, verdict)
}

#[test]
fn a_full_table_demotes_newcomers_and_loses_no_honest_flow() {
    let mut router = router(1);
    let honest: Vec<Pair> = (0..100)
        .map(|flow| {
            let (pair, verdict) = begin(&mut router, flow, at(0), limits(10, 10));
            assert_eq!(verdict, REGULAR, "flow {flow}");
            pair
        })
        .collect();
    let memory = router.gauges().map(|gauge| gauge.max);
    let mut refused = 0;
    for flow in 1_000..6_000 {
        let (_, verdict) = begin(&mut router, flow, at(1), limits(10, 10));
        assert!(verdict == REGULAR || verdict == demoted(Reason::CapabilityTableFull));
        refused += u64::from(verdict != REGULAR);
    }
    assert!(
        refused >= 4_000 && refused == router.counters().demoted[Reason::CapabilityTableFull as usize],
        "{refused}"
    );
    let [lines, ..] = router.gauges();
    assert_eq!((lines.used, router.lines_reclaimed()), (lines.max, 0), "full, and nothing gave way");
    for pair in &honest {
        assert_eq!(judge(&mut router, at(100), &mut pair.nonce_only(NONCE, 500)), REGULAR, "{pair:?}");
    }
    // 500 ms later the ttl of lines with one packet is over.
    let (_, verdict) = begin(&mut router, 9_000, at(1_200), limits(10, 10));
    assert_eq!((verdict, router.lines_reclaimed()), (REGULAR, 1));
    assert_eq!(router.gauges().map(|gauge| gauge.max), memory, "and memory has not grown");
}

#[test]
fn packets_that_miss_leave_the_table_as_it_is() {
    let mut router = router(1);
    let (honest, verdict) = begin(&mut router, 1, at(0), limits(100, 10));
    assert_eq!(verdict, REGULAR);
    for flow in 0..20_000 {
        let src = IpAddr::V4((0x0b00_0000 + flow).into());
        let pair = Pair { src, ..Pair::new() };
        assert_eq!(judge(&mut router, at(1), &mut pair.nonce_only(NONCE, 10)), demoted(Reason::CapabilityUnknown));
    }
    assert_eq!(router.gauges()[0].used, 1);
    assert_eq!(judge(&mut router, at(2), &mut honest.nonce_only(NONCE, 10)), REGULAR);
}

#[test]
fn capabilities_below_the_least_rate_get_no_line() {
    let mut router = Router::new(RouterConfig { least: limits(4, 10), ..config(1) }, [1; 16]);
    assert_eq!(begin(&mut router, 1, at(0), limits(4, 10)).1, REGULAR);
    assert_eq!(begin(&mut router, 2, at(0), limits(2, 5)).1, REGULAR);
    assert_eq!(begin(&mut router, 3, at(0), limits(4, 11)).1, demoted(Reason::CapabilityTooSlow));
}

#[test]
fn lines_of_expired_capabilities_are_given_back_by_the_clock() {
    let mut router = router(1);
    for flow in 0..50 {
        assert_eq!(begin(&mut router, flow, at(0), limits(10, 10)).1, REGULAR);
    }
    for second in 1..=80 {
        router.handle_timeout(Instant::from_secs(second));
    }
    assert_eq!(router.gauges()[0].used, 0);
}

#[test]
fn revocations_beyond_the_maximum_are_kept_too_at_the_price_of_others() {
    let mut router = router(1);
    let max = router.gauges()[2].max;
    let src = |n: u32| IpAddr::V4((0x0a00_0000 + n).into());
    let pair = |n: u32| Pair { src: src(n), ..Pair::new() };
    let flows = 4 * max as u32;
    let granted: Vec<_> = (0..flows).map(|n| pair(n).acquire(at(0), &mut [&mut router], limits(10, 60))).collect();
    for n in 0..flows {
        router.revoke(at(100), src(n), pair(n).dst, ID);
    }
    for (n, granted) in (0..flows).zip(&granted) {
        let mut frame = pair(n).regular(Kind::Capabilities, NONCE, granted, 10);
        assert_eq!(judge(&mut router, at(30_000), &mut frame), demoted(Reason::CapabilityRevoked), "{n}");
    }
    assert!(router.gauges()[2].used <= max);
}
