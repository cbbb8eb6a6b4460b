//! The 8-bit clock of capabilities and the two secrets behind it.

use std::net::IpAddr;

use sluicegate_capability::secrets::{PERIOD_SECS, Secrets, Seed, seal};
use sluicegate_wire::{
    Reason,
    capability::{Algorithm, Capability, ClientId, Limits},
};

use super::{Claim, Level, Outcome, Paper, Setting};
use crate::Rng;

/// Seconds after which the 8-bit clock shows the same again.
const ROLLOVER_SECS: u64 = 256;
/// How long after its making a capability is tried: three rollovers.
const AGE_MAX_SECS: u64 = 3 * ROLLOVER_SECS;
const CLIENT: ClientId = ClientId(7);
/// The paper's limit on T: below half of the rollover, so that two times compare unambiguously.
const SECONDS_MAX: u8 = 127;

pub(super) const TVA_16: Claim = Claim {
    id: "TVA-16",
    paper: Paper::Tva,
    source: "III-D, IV-A",
    expected: "valid exactly from its making to T seconds later, T <= 127; nothing older than one rollover",
    tolerance: "exact, over 256 times x 768 ages x T x both algorithms",
    level: Level::Exact,
    run: every_time_and_age,
};

fn every_time_and_age(setting: &Setting) -> Outcome {
    let kilobytes = 32;
    let every = (1..=Limits::SECONDS_MAX).filter_map(|seconds| Limits::new(kilobytes, seconds));
    let limits: Vec<Limits> = match setting.short {
        true => every.filter(|limits| [1, 10, 62, 63].contains(&limits.seconds())).collect(),
        false => every.collect(),
    };
    let algorithms: &[Algorithm] =
        if setting.short { &[Algorithm::SipHash] } else { &[Algorithm::SipHash, Algorithm::Aes] };
    let mut sweep = Sweep { seed: Rng::new(setting.seed).seed(), ..Sweep::default() };
    for algorithm in algorithms {
        for made in 0..ROLLOVER_SECS {
            sweep.follow(*algorithm, made, &limits);
        }
    }
    Outcome::new(
        sweep.wrong == 0 && sweep.valid > 0 && Limits::SECONDS_MAX <= SECONDS_MAX,
        format!(
            "{} checks: {} valid, {} wrong; T is at most {} s",
            sweep.checks,
            sweep.valid,
            sweep.wrong,
            Limits::SECONDS_MAX
        ),
    )
}

#[derive(Default)]
struct Sweep {
    seed: [u8; 32],
    checks: u64,
    valid: u64,
    wrong: u64,
}

impl Sweep {
    /// Follows capabilities made at this second until they must long be invalid.
    fn follow(&mut self, algorithm: Algorithm, made: u64, limits: &[Limits]) {
        let (src, dst) = (IpAddr::from([198, 51, 100, 1]), IpAddr::from([203, 0, 113, 1]));
        let mut secrets = Secrets::new(&Seed(self.seed), made);
        let pre = secrets.mint(algorithm, src, dst, CLIENT);
        self.wrong += u64::from(u64::from(pre.timestamp()) != made % ROLLOVER_SECS);
        let capabilities: Vec<Capability> = limits.iter().map(|limits| seal(algorithm, pre, *limits)).collect();
        for now in made..made + AGE_MAX_SECS {
            secrets.turn(now);
            for (limits, capability) in limits.iter().zip(&capabilities) {
                let found = secrets.check(algorithm, src, dst, CLIENT, *limits, capability);
                let found = found.map(|checked| checked.expires);
                self.checks += 1;
                self.valid += u64::from(found.is_ok());
                self.wrong += u64::from(found != due(made, now, *limits));
            }
        }
        // The other secret is never tried: with its high bit changed, a fresh capability is none.
        secrets.turn(made + AGE_MAX_SECS);
        let fresh = seal(algorithm, secrets.mint(algorithm, src, dst, CLIENT), limits[0]);
        let other = Capability(fresh.0 ^ 1 << 63);
        self.wrong += u64::from(secrets.check(algorithm, src, dst, CLIENT, limits[0], &fresh).is_err());
        self.wrong += u64::from(secrets.check(algorithm, src, dst, CLIENT, limits[0], &other).is_ok());
    }
}

/// What a router has to say to a capability made at `made`: its last second, or why not.
fn due(made: u64, now: u64, limits: Limits) -> Result<u64, Reason> {
    let expires = made + u64::from(limits.seconds());
    if now <= expires {
        Ok(expires)
    } else if now / PERIOD_SECS - made / PERIOD_SECS <= 1 {
        Err(Reason::CapabilityExpired)
    } else {
        // Its secret is gone.
        Err(Reason::CapabilityForged)
    }
}
