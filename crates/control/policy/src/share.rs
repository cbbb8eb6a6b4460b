//! What the grants of one user may hold together, so that nobody's calls use up what all share.

use serde::{Deserialize, Deserializer};
use sluicegate_grant::Grant;

use crate::{Bytes, DenyReason, RATE_UNLIMITED, Rate};

/// What one grant counts for at most, so that the sums of all grants are exact: 64 TiB, and more than a grant can say.
const BYTES_COUNTED_MAX: u64 = 1 << 46;
const RATE_BPS_COUNTED_MAX: u64 = 6_553_600_000;

/// What grants hold, or would hold, together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// Grants.
    pub grants: u64,
    /// External ports of gates.
    pub ports: u64,
    /// Flows that they may have open.
    pub flows: u64,
    /// IP bytes that they are worth.
    pub bytes: u64,
    /// Their rates together, in bit/s.
    pub rate_bps: u64,
}

impl Share {
    /// What one grant holds, with so many external ports.
    #[must_use]
    pub fn of_grant(grant: &Grant, ports: u64) -> Self {
        let rate_bps = match grant.rate_100kbps {
            0 => RATE_UNLIMITED,
            units => u64::from(units) * 100_000,
        };
        Self::of_limits(1, ports, (grant.flows.into(), grant.bytes, rate_bps))
    }

    /// What so many grants hold of which each has these flows, bytes and rate, with so many external ports together.
    pub(crate) fn of_limits(grants: u64, ports: u64, (flows, bytes, rate_bps): (u64, u64, u64)) -> Self {
        Self {
            grants,
            ports,
            flows: grants * flows,
            bytes: grants * bytes.min(BYTES_COUNTED_MAX),
            rate_bps: grants * rate_bps.min(RATE_BPS_COUNTED_MAX),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        self.each_with(more, u64::saturating_add)
    }

    /// What remains without `less`, which is a part of it.
    #[must_use]
    pub fn minus(self, less: Self) -> Self {
        self.each_with(less, u64::saturating_sub)
    }

    fn each_with(self, other: Self, f: fn(u64, u64) -> u64) -> Self {
        Self {
            grants: f(self.grants, other.grants),
            ports: f(self.ports, other.ports),
            flows: f(self.flows, other.flows),
            bytes: f(self.bytes, other.bytes),
            rate_bps: f(self.rate_bps, other.rate_bps),
        }
    }
}

/// The most that the grants of one user may hold together at one frontend. In configuration: `per_user` of `[frontend]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PerUser {
    /// Grants.
    pub grants_max: u32,
    /// External ports of gates.
    pub ports_max: u32,
    /// Flows that they may have open.
    pub flows_max: u32,
    /// IP bytes that they are worth; `u64::MAX` for no limit but that of each grant.
    #[serde(deserialize_with = "number::<Bytes, _>")]
    pub bytes_max: u64,
    /// Their rates together, in bit/s; [`RATE_UNLIMITED`] for no limit but that of each grant.
    #[serde(rename = "rate", deserialize_with = "number::<Rate, _>")]
    pub rate_bps: u64,
}

/// The number in what people write with a unit.
fn number<'de, Q: Deserialize<'de> + Into<u64>, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Q::deserialize(deserializer).map(Into::into)
}

impl Default for PerUser {
    /// 64 grants, 64 flows for each of them, and the external ports that a gate's own default leaves one user. Rates and
    /// bytes are left to each grant: the gate shares the fastest grant's rate between a user's grants.
    fn default() -> Self {
        Self { grants_max: 64, ports_max: 798, flows_max: 4_096, bytes_max: u64::MAX, rate_bps: RATE_UNLIMITED }
    }
}

impl PerUser {
    /// So many times as much.
    pub(crate) const fn times(&self, count: u32) -> Self {
        Self {
            grants_max: self.grants_max.saturating_mul(count),
            ports_max: self.ports_max.saturating_mul(count),
            flows_max: self.flows_max.saturating_mul(count),
            bytes_max: self.bytes_max.saturating_mul(count as u64),
            rate_bps: self.rate_bps.saturating_mul(count as u64),
        }
    }

    /// Whether a user whose grants hold `held` may have those of `more` as well.
    ///
    /// # Errors
    /// [`DenyReason::OverShare`] with the first of which it would be too much.
    pub fn admit(&self, held: &Share, more: &Share) -> Result<(), DenyReason> {
        let bytes_max = if self.bytes_max == u64::MAX { None } else { Some(self.bytes_max) };
        let rate_max = if self.rate_bps == RATE_UNLIMITED { None } else { Some(self.rate_bps) };
        let all = [
            ("grants", held.grants, more.grants, Some(self.grants_max.into())),
            ("external ports", held.ports, more.ports, Some(self.ports_max.into())),
            ("flows", held.flows, more.flows, Some(self.flows_max.into())),
            ("bytes", held.bytes, more.bytes, bytes_max),
            ("bit/s", held.rate_bps, more.rate_bps, rate_max),
        ];
        let over = all.into_iter().find(|(_, held, more, max)| max.is_some_and(|max| held.saturating_add(*more) > max));
        match over {
            Some((what, held, more, max)) => {
                Err(DenyReason::OverShare { what, held, more, max: max.unwrap_or(u64::MAX) })
            }
            None => Ok(()),
        }
    }

    /// What each of `wants` more grants may hold of flows, bytes and rate: even parts of what is left.
    pub(crate) fn each(&self, held: &Share, wants: u64) -> Share {
        let part = |held: u64, max: u64| max.saturating_sub(held) / wants.max(1);
        Share {
            grants: 1,
            ports: 0,
            flows: part(held.flows, self.flows_max.into()),
            bytes: if self.bytes_max == u64::MAX { u64::MAX } else { part(held.bytes, self.bytes_max) },
            rate_bps: if self.rate_bps == RATE_UNLIMITED {
                RATE_UNLIMITED
            } else {
                // A grant says its rate in units of 100 kbit/s, and a part that is rounded up is no part.
                part(held.rate_bps, self.rate_bps) / 100_000 * 100_000
            },
        }
    }
}
