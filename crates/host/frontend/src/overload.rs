//! `[frontend.overload]`: how the frontend meets more requests than it can serve.

use std::time::Duration;

use serde::Deserialize;
use sluicegate_overload::{Durations, Engineered, EngineeredError, Load, Refusing, Thresholds};
use sluicegate_proxy::Overload;

/// As a file has it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum OverloadControl {
    /// Whatever comes is served as it comes.
    #[default]
    Off,
    /// What can be done is measured, and the rest refused, of who sends most first.
    Adaptive(Adapted),
    /// R-SOCA as its paper has it.
    Paper(EngineeredFor),
    /// The baseline of that paper: 503 while CPU or memory are used up.
    #[serde(rename = "503")]
    Unavailable(EngineeredFor),
}

/// What `adaptive` holds each SIP thread to.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adapted {
    /// Share of its time that a thread is to have something to do at most; at 1 only what waits has less let in.
    pub busy: f64,
    /// How long requests may wait before less is let in.
    pub sojourn_ms_min: u64,
    /// Where every datagram waits for longer, those who send most are not heard.
    pub sojourn_ms_max: u64,
    /// Where what is too much is refused.
    pub refuse: RefuseAt,
}

/// Where what is too much is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefuseAt {
    /// In the SIP threads.
    #[default]
    Process,
    /// By the kernel, as packets come by an interface; what gets through, in the SIP thread, of which there is one.
    Interface,
}

impl Default for Adapted {
    fn default() -> Self {
        Self { busy: 1.0, sojourn_ms_min: 5, sojourn_ms_max: 100, refuse: RefuseAt::Process }
    }
}

/// The load that `paper` and `503` are engineered for, of all SIP threads together.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineeredFor {
    /// Calls a second (E_I).
    pub calls_per_s: f64,
    /// REGISTERs a second (E_R).
    #[serde(default)]
    pub registers_per_s: f64,
    /// Other requests outside dialogs a second (E_O).
    #[serde(default)]
    pub others_per_s: f64,
    /// Requests within dialogs a second (E_D).
    #[serde(default)]
    pub in_dialog_per_s: f64,
    /// Share of a thread's time that this load takes (C_min).
    #[serde(default = "cpu_min")]
    pub cpu_min: f64,
    /// From which everything is refused (C_max).
    #[serde(default = "cpu_max")]
    pub cpu_max: f64,
    /// How long calls ring (T_I).
    #[serde(default = "invite_s")]
    pub invite_s: u32,
    /// How long REGISTERs that are passed on take (T_R).
    #[serde(default = "other_s")]
    pub register_s: u32,
    /// How long other requests take (T_O).
    #[serde(default = "other_s")]
    pub other_s: u32,
    /// How many times the engineered load may come in a burst (B_en).
    #[serde(default = "burst")]
    pub burst: f64,
    /// How many times as long transactions may last (B).
    #[serde(default = "stretch")]
    pub stretch: f64,
    /// Bytes that a transaction counts for (S).
    #[serde(default = "transaction_bytes")]
    pub transaction_bytes: f64,
}

const fn cpu_min() -> f64 {
    Engineered::PAPER.cpu.min
}

const fn cpu_max() -> f64 {
    Engineered::PAPER.cpu.max
}

const fn invite_s() -> u32 {
    10
}

const fn other_s() -> u32 {
    1
}

const fn burst() -> f64 {
    Engineered::PAPER.burst
}

const fn stretch() -> f64 {
    Engineered::PAPER.stretch
}

const fn transaction_bytes() -> f64 {
    6_144.0
}

impl EngineeredFor {
    fn of_shard(&self, shards: usize) -> Result<Engineered, EngineeredError> {
        let of_shard = |per_s: f64| per_s / shards.max(1) as f64;
        let secs = |secs: u32| Duration::from_secs(secs.into());
        Engineered {
            load: Load {
                invites: of_shard(self.calls_per_s),
                in_dialog: of_shard(self.in_dialog_per_s),
                registers: of_shard(self.registers_per_s),
                others: of_shard(self.others_per_s),
            },
            durations: Durations {
                invite: secs(self.invite_s),
                register: secs(self.register_s),
                other: secs(self.other_s),
            },
            cpu: Thresholds { min: self.cpu_min, max: self.cpu_max },
            transaction_bytes: self.transaction_bytes,
            burst: self.burst,
            stretch: self.stretch,
            ..Engineered::PAPER
        }
        .checked()
    }
}

impl OverloadControl {
    /// Whether what is too much is refused as it comes by an interface.
    #[must_use]
    pub const fn refuses_at_interfaces(&self) -> bool {
        matches!(self, Self::Adaptive(Adapted { refuse: RefuseAt::Interface, .. }))
    }

    /// What one of so many SIP threads does.
    ///
    /// # Errors
    /// What is wrong with the load that it is engineered for.
    pub fn of_shard(&self, shards: usize) -> Result<Overload, EngineeredError> {
        Ok(match self {
            Self::Off => Overload::Off,
            Self::Adaptive(Adapted { busy, sojourn_ms_min, sojourn_ms_max, .. }) => Overload::Adaptive {
                busy: *busy,
                sojourn: (Duration::from_millis(*sojourn_ms_min), Duration::from_millis(*sojourn_ms_max)),
            },
            Self::Paper(load) => Overload::Rsoca(load.of_shard(shards)?, Refusing::Proportionally),
            Self::Unavailable(load) => Overload::Rsoca(load.of_shard(shards)?, Refusing::Unavailable),
        })
    }

    /// Why it cannot be used, beginning with the field.
    pub(crate) fn fault(&self) -> Option<String> {
        match self {
            Self::Adaptive(Adapted { busy, .. }) if !(*busy > 0.0 && *busy <= 1.0) => {
                Some(format!("overload busy = {busy} is no share of time: give a number above 0 and at most 1"))
            }
            Self::Adaptive(Adapted { sojourn_ms_min, sojourn_ms_max, .. }) if sojourn_ms_min >= sojourn_ms_max => Some(
                format!("overload sojourn_ms_min = {sojourn_ms_min} has to be below sojourn_ms_max = {sojourn_ms_max}"),
            ),
            _ => self.of_shard(1).err().map(|error| format!("overload cannot be engineered so: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<OverloadControl, String> {
        toml::from_str::<OverloadControl>(text).map_err(|error| error.to_string())
    }

    #[test]
    fn each_mode_is_read_and_an_engineered_load_is_shared_by_the_threads() {
        assert_eq!(read("mode = \"off\"").unwrap().of_shard(2), Ok(Overload::Off));
        assert_eq!(read("mode = \"adaptive\"").unwrap(), OverloadControl::Adaptive(Adapted::default()));
        let paper = read("mode = \"paper\"\ncalls_per_s = 3000\nburst = 1.5").unwrap();
        let Ok(Overload::Rsoca(engineered, Refusing::Proportionally)) = paper.of_shard(3) else { panic!("{paper:?}") };
        assert_eq!((engineered.load.invites, engineered.burst), (1_000.0, 1.5));
        let baseline = read("mode = \"503\"\ncalls_per_s = 1000").unwrap();
        assert!(matches!(baseline.of_shard(1), Ok(Overload::Rsoca(_, Refusing::Unavailable))));
        let refuse =
            |at| read(&format!("mode = \"adaptive\"\nrefuse = \"{at}\"")).map(|read| read.refuses_at_interfaces());
        assert_eq!((refuse("process"), refuse("interface")), (Ok(false), Ok(true)));
        assert!(refuse("nowhere").unwrap_err().contains("`process` or `interface`"));
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        assert!(read("mode = \"adaptive\"\nbusyness = 1").unwrap_err().contains("busyness"));
        assert!(read("mode = \"paper\"").unwrap_err().contains("calls_per_s"));
        assert!(read("mode = \"papers\"").unwrap_err().contains("papers"));
        let fault = |text| read(text).unwrap().fault().unwrap_or_default();
        assert!(fault("mode = \"adaptive\"\nbusy = 0.0").contains("busy"));
        assert!(fault("mode = \"adaptive\"\nsojourn_ms_min = 100").contains("sojourn_ms_min"));
        assert!(fault("mode = \"paper\"\ncalls_per_s = 0").contains("engineered"));
        assert_eq!(fault("mode = \"503\"\ncalls_per_s = 1000"), "");
    }
}
