use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sluicegate_grant::DataMode;

use crate::{Bytes, Rate};

/// The rate that stands for no limit.
pub const RATE_UNLIMITED: u64 = Rate::UNLIMITED.0;

/// How much a grant may be worth, and what its packets must prove. In configuration: `grant = { bytes_max = "375MB",
/// lifetime_s = 300, rate = "10Mbit", flows_max = 64, least_mode = "pinhole" }`.
///
/// What a service leaves out is as in [`Self::DEFAULT`], and its bytes are what its rate can carry in its lifetime; what a
/// rule leaves out it does not limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// IP bytes from client to service.
    pub bytes_max: u64,
    /// Seconds until the grant must have been renewed.
    pub lifetime_s: u32,
    /// Rate from client to service in bit/s; [`RATE_UNLIMITED`] for none.
    pub rate_bps: u64,
    /// Flows open at once.
    pub flows_max: u16,
    /// The least that packets must prove: who can prove less gets no grant.
    pub least_mode: DataMode,
}

impl Limits {
    /// The limits of a service that names none: 300 s, 10 Mbit/s and the bytes of both, 64 flows, whatever the packets
    /// prove.
    pub const DEFAULT: Self = Self {
        bytes_max: carried(10_000_000, 300),
        lifetime_s: 300,
        rate_bps: 10_000_000,
        flows_max: 64,
        least_mode: DataMode::Pinhole,
    };
    /// Limits that limit nothing.
    pub const UNLIMITED: Self = Self {
        bytes_max: u64::MAX,
        lifetime_s: u32::MAX,
        rate_bps: RATE_UNLIMITED,
        flows_max: u16::MAX,
        least_mode: DataMode::Pinhole,
    };

    /// The strictest of both, each limit on its own.
    #[must_use]
    pub fn strictest(self, other: Self) -> Self {
        Self {
            bytes_max: self.bytes_max.min(other.bytes_max),
            lifetime_s: self.lifetime_s.min(other.lifetime_s),
            rate_bps: self.rate_bps.min(other.rate_bps),
            flows_max: self.flows_max.min(other.flows_max),
            least_mode: self.least_mode.max(other.least_mode),
        }
    }

    /// The rate as a grant carries it: units of 100 kbit/s, rounded up; 0 for no limit or one too large for the field.
    #[must_use]
    pub fn rate_100kbps(&self) -> u16 {
        u16::try_from(self.rate_bps.div_ceil(100_000)).unwrap_or(0)
    }
}

/// Bytes that a rate carries in this time.
const fn carried(rate_bps: u64, seconds: u32) -> u64 {
    (rate_bps / 8).saturating_mul(seconds as u64)
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How limits are written: each may be left out.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    bytes_max: Option<Bytes>,
    lifetime_s: Option<u32>,
    rate: Option<Rate>,
    flows_max: Option<u16>,
    least_mode: Option<DataMode>,
}

impl Written {
    fn or(self, otherwise: Limits) -> Limits {
        Limits {
            bytes_max: self.bytes_max.map_or(otherwise.bytes_max, |bytes| bytes.0),
            lifetime_s: self.lifetime_s.unwrap_or(otherwise.lifetime_s),
            rate_bps: self.rate.map_or(otherwise.rate_bps, |rate| rate.0),
            flows_max: self.flows_max.unwrap_or(otherwise.flows_max),
            least_mode: self.least_mode.unwrap_or(otherwise.least_mode),
        }
    }
}

/// The limits of a service: what is left out is as in [`Limits::DEFAULT`].
pub(crate) mod of_service {
    use super::{Bytes, Deserialize, Deserializer, Limits, Rate, Serialize, Serializer, Written};

    pub(crate) fn serialize<S: Serializer>(limits: &Limits, serializer: S) -> Result<S::Ok, S::Error> {
        Written {
            bytes_max: Some(Bytes(limits.bytes_max)),
            lifetime_s: Some(limits.lifetime_s),
            rate: Some(Rate(limits.rate_bps)),
            flows_max: Some(limits.flows_max),
            least_mode: Some(limits.least_mode),
        }
        .serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
        let written = Written::deserialize(deserializer)?;
        let is_worth_its_time = written.bytes_max.is_none();
        let mut limits = written.or(Limits::DEFAULT);
        if is_worth_its_time {
            limits.bytes_max = super::carried(limits.rate_bps, limits.lifetime_s);
        }
        Ok(limits)
    }
}

/// The limits of a rule: what is left out is not limited.
pub(crate) mod of_rule {
    use super::{Bytes, Deserialize, Deserializer, Limits, Rate, Serialize, Serializer, Written};

    pub(crate) fn serialize<S: Serializer>(limits: &Option<Limits>, serializer: S) -> Result<S::Ok, S::Error> {
        let none = Limits::UNLIMITED;
        limits
            .map(|limits| Written {
                bytes_max: (limits.bytes_max != none.bytes_max).then_some(Bytes(limits.bytes_max)),
                lifetime_s: (limits.lifetime_s != none.lifetime_s).then_some(limits.lifetime_s),
                rate: (limits.rate_bps != none.rate_bps).then_some(Rate(limits.rate_bps)),
                flows_max: (limits.flows_max != none.flows_max).then_some(limits.flows_max),
                least_mode: (limits.least_mode != none.least_mode).then_some(limits.least_mode),
            })
            .serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Limits>, D::Error> {
        Ok(Option::<Written>::deserialize(deserializer)?.map(|written| written.or(Limits::UNLIMITED)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_of_two_takes_each_limit_on_its_own() {
        let one = Limits { bytes_max: 5, lifetime_s: 60, rate_bps: 9, flows_max: 1, least_mode: DataMode::Mac };
        let other = Limits {
            bytes_max: 6,
            lifetime_s: 50,
            rate_bps: RATE_UNLIMITED,
            flows_max: 2,
            least_mode: DataMode::Capability,
        };
        let both = Limits { lifetime_s: 50, least_mode: DataMode::Capability, ..one };
        assert_eq!((one.strictest(other), other.strictest(one)), (both, both));
        assert_eq!(one.strictest(Limits::UNLIMITED), one);
    }

    #[test]
    fn the_rate_of_a_grant_is_rounded_up_and_0_when_there_is_none() {
        let rate = |rate_bps| Limits { rate_bps, ..Limits::DEFAULT }.rate_100kbps();
        assert_eq!(rate(1), 1);
        assert_eq!(rate(1_000_000), 10);
        assert_eq!(rate(1_000_001), 11);
        assert_eq!(rate(6_553_500_000), u16::MAX);
        assert_eq!(rate(6_553_500_001), 0);
        assert_eq!(rate(RATE_UNLIMITED), 0);
    }
}
