use core::net::{Ipv4Addr, Ipv6Addr};
use std::{collections::HashSet, format, vec::Vec};

use super::*;

const SRC4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const DST4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const SRC6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const DST6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2));
const OTHER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 3));
const PATHS: [(IpAddr, IpAddr); 2] = [(SRC4, DST4), (SRC6, DST6)];
const ALGORITHMS: [Algorithm; 2] = [Algorithm::SipHash, Algorithm::Aes];
const CLIENT: ClientId = ClientId(0x0102_0304);

fn secrets(seconds: u64) -> Secrets {
    let mut secrets = Secrets::new(&Seed([7; 32]), 0);
    secrets.turn(seconds);
    secrets
}

fn limits(kilobytes: u16, seconds: u8) -> Limits {
    Limits::new(kilobytes, seconds).unwrap()
}

/// One capability to check, with all that it is bound to.
#[derive(Debug, Clone, Copy)]
struct Question {
    algorithm: Algorithm,
    src: IpAddr,
    dst: IpAddr,
    client: ClientId,
    limits: Limits,
    capability: Capability,
}

/// A question that `secrets` answers with yes.
fn valid(secrets: &Secrets, algorithm: Algorithm, src: IpAddr, dst: IpAddr) -> Question {
    let limits = limits(100, 10);
    let capability = seal(algorithm, secrets.mint(algorithm, src, dst, CLIENT), limits);
    Question { algorithm, src, dst, client: CLIENT, limits, capability }
}

fn ask(secrets: &Secrets, question: &Question) -> Result<Checked, Reason> {
    let Question { algorithm, src, dst, client, limits, capability } = question;
    secrets.check(*algorithm, *src, *dst, *client, *limits, capability)
}

#[test]
fn a_capability_holds_for_what_it_was_made_for_and_for_nothing_else() {
    let secrets = secrets(1_000);
    for algorithm in ALGORITHMS {
        for (src, dst) in PATHS {
            let question = valid(&secrets, algorithm, src, dst);
            assert_eq!(ask(&secrets, &question), Ok(Checked { expires: 1_010 }));

            let other = if src == SRC4 { IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)) } else { OTHER6 };
            let another_algorithm = if algorithm == Algorithm::Aes { Algorithm::SipHash } else { Algorithm::Aes };
            let forged = [
                Question { src: other, ..question },
                Question { dst: other, ..question },
                Question { src: dst, dst: src, ..question },
                Question { client: ClientId(0x0102_0305), ..question },
                Question { client: ClientId::NONE, ..question },
                Question { limits: limits(101, 10), ..question },
                Question { limits: limits(100, 11), ..question },
                Question { algorithm: another_algorithm, ..question },
                Question { capability: secrets.mint(algorithm, src, dst, CLIENT), ..question },
            ];
            for question in forged {
                assert_eq!(ask(&secrets, &question), Err(Reason::CapabilityForged), "{question:?}");
            }
        }
    }
}

#[test]
fn every_bit_of_a_capability_counts() {
    let secrets = secrets(1_000);
    for algorithm in ALGORITHMS {
        let question = valid(&secrets, algorithm, SRC4, DST4);
        for bit in 0..64 {
            let capability = Capability(question.capability.0 ^ 1 << bit);
            let answer = ask(&secrets, &Question { capability, ..question });
            assert_eq!(answer, Err(Reason::CapabilityForged), "bit {bit}");
        }
    }
}

#[test]
fn another_router_and_a_restarted_router_accept_nothing_of_this_one() {
    let question = valid(&secrets(1_000), Algorithm::SipHash, SRC4, DST4);
    let other = Secrets::new(&Seed([8; 32]), 1_000);
    assert_eq!(ask(&other, &question), Err(Reason::CapabilityForged));
}

/// What the paper promises for a capability minted at `minted` with this T, checked `age` seconds later.
fn promised(minted: u64, age: u64, seconds: u8) -> Result<Checked, Reason> {
    let periods_later = (minted + age) / PERIOD_SECS - minted / PERIOD_SECS;
    match (age <= u64::from(seconds), periods_later <= 1) {
        (true, _) => Ok(Checked { expires: minted + u64::from(seconds) }),
        // Its secret is still there, so the router can tell that it is old.
        (false, true) => Err(Reason::CapabilityExpired),
        (false, false) => Err(Reason::CapabilityForged),
    }
}

/// All mint times of one rollover and all ages up to the next, with these T.
fn tva_16_exhaustively(algorithm: Algorithm, all_seconds: impl Iterator<Item = u8> + Clone) {
    const ROLLOVER: u64 = 256;
    const START: u64 = 77 * ROLLOVER;
    const _: () = assert!(Limits::SECONDS_MAX <= 127, "times must compare unambiguously");
    for minted in START..START + ROLLOVER {
        let mut secrets = Secrets::new(&Seed([7; 32]), minted);
        let pre = secrets.mint(algorithm, SRC4, DST4, CLIENT);
        assert_eq!(u64::from(pre.timestamp()), minted % ROLLOVER);
        assert_eq!(u64::from(pre.timestamp() >> 7), minted / PERIOD_SECS % 2);
        let questions: Vec<_> = all_seconds
            .clone()
            .map(|seconds| limits(1, seconds))
            .map(|limits| (limits, seal(algorithm, pre, limits)))
            .map(|(limits, capability)| Question {
                algorithm,
                src: SRC4,
                dst: DST4,
                client: CLIENT,
                limits,
                capability,
            })
            .collect();
        for age in 0..ROLLOVER {
            secrets.turn(minted + age);
            for question in &questions {
                let promised = promised(minted, age, question.limits.seconds());
                assert_eq!(ask(&secrets, question), promised, "minted {minted}, age {age}, {:?}", question.limits);
            }
        }
    }
}

#[test]
fn tva_16_the_8_bit_clock_and_two_secrets_are_exact_with_siphash_for_every_t() {
    tva_16_exhaustively(Algorithm::SipHash, 1..=Limits::SECONDS_MAX);
}

#[test]
fn tva_16_the_8_bit_clock_and_two_secrets_are_exact_with_aes_for_the_least_and_largest_t() {
    tva_16_exhaustively(Algorithm::Aes, [1, 2, 31, 62, 63].into_iter());
}

#[test]
fn tva_16_nothing_older_than_one_rollover_validates() {
    const START: u64 = 77 * 256;
    for algorithm in ALGORITHMS {
        for minted in START..START + 256 {
            let mut secrets = Secrets::new(&Seed([7; 32]), minted);
            let limits = limits(1, Limits::SECONDS_MAX);
            let capability = seal(algorithm, secrets.mint(algorithm, SRC4, DST4, CLIENT), limits);
            for age in 256..1_100 {
                secrets.turn(minted + age);
                let answer = secrets.check(algorithm, SRC4, DST4, CLIENT, limits, &capability);
                assert_eq!(answer, Err(Reason::CapabilityForged), "minted {minted}, age {age}");
            }
        }
    }
}

#[test]
fn tva_16_the_high_bit_selects_the_only_secret_that_is_tried() {
    let secrets = secrets(1_000);
    for algorithm in ALGORITHMS {
        let question = valid(&secrets, algorithm, SRC4, DST4);
        // The same hash under the other secret's times: were both secrets tried, one of these would pass.
        let moved = |timestamp: u8| Capability::new(timestamp, question.capability.hash());
        for timestamp in (0..=255).filter(|timestamp| *timestamp != question.capability.timestamp()) {
            let answer = ask(&secrets, &Question { capability: moved(timestamp), ..question });
            assert_eq!(answer, Err(Reason::CapabilityForged), "time {timestamp}");
        }
    }
}

#[test]
fn secrets_do_not_depend_on_how_the_clock_came_to_a_time() {
    let mut walked = secrets(0);
    for seconds in [0, 1, 127, 128, 300, 1_000, 1_024, 10_000] {
        walked.turn(seconds);
        let jumped = secrets(seconds);
        for timestamp in [0, 127, 128, 255] {
            let minted = |secrets: &Secrets| secrets.pre_capability(Algorithm::SipHash, SRC4, DST4, CLIENT, timestamp);
            assert_eq!(minted(&walked), minted(&jumped), "time {seconds}");
        }
    }
}

#[test]
fn a_seed_gives_its_own_and_the_next_periods_secrets_but_none_before() {
    let (seed, seconds) = (Seed([7; 32]), 10 * PERIOD_SECS);
    let minted =
        |secrets: &Secrets, timestamp| secrets.pre_capability(Algorithm::SipHash, SRC4, DST4, CLIENT, timestamp);
    let (before, mut after) = (Secrets::new(&seed, seconds), Secrets::new(&seed.next(), seconds));
    assert_ne!(minted(&after, 128), minted(&before, 128), "the period before");
    after.turn(seconds);
    let again = Secrets::new(&seed.next(), seconds + PERIOD_SECS);
    let mut walked = Secrets::new(&seed, seconds);
    walked.turn(seconds + PERIOD_SECS);
    for timestamp in [0, 128] {
        assert_eq!(minted(&walked, timestamp), minted(&again, timestamp));
    }
}

#[test]
fn a_clock_that_is_set_back_changes_nothing() {
    let mut secrets = secrets(1_000);
    let question = valid(&secrets, Algorithm::SipHash, SRC4, DST4);
    secrets.turn(100);
    assert_eq!(secrets.seconds(), 1_000);
    assert_eq!(ask(&secrets, &question), Ok(Checked { expires: 1_010 }));
}

#[test]
fn no_two_periods_share_a_secret() {
    let mut seen = HashSet::new();
    let mut secrets = secrets(0);
    for period in 0..200 {
        secrets.turn(period * PERIOD_SECS);
        for algorithm in ALGORITHMS {
            assert!(seen.insert(secrets.mint(algorithm, SRC4, DST4, CLIENT).hash()));
        }
    }
}

#[test]
fn path_identifiers_are_never_zero_and_hard_to_guess() {
    let tagger = PathTagger::new([3; 16]);
    let tags: Vec<_> = (0..100_000).map(|ingress| tagger.tag(ingress)).collect();
    assert!(tags.iter().all(|tag| *tag != PathId::NONE));
    let distinct: HashSet<_> = tags.iter().collect();
    // 100,000 random draws of 65,535 miss about e^-1.53 of them.
    assert!((50_000..53_000).contains(&distinct.len()), "{}", distinct.len());
    assert_ne!(tagger.tag(1), PathTagger::new([4; 16]).tag(1));
    assert_eq!(tagger.tag(1), tagger.tag(1));
}

#[test]
fn no_debug_output_shows_a_secret() {
    assert_eq!(format!("{:?}", secrets(9)), "Secrets { seconds: 9, .. }");
    assert_eq!(format!("{:?}", PathTagger::new([3; 16])), "PathTagger(..)");
}
