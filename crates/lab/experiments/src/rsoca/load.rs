//! Who calls whom through what, as workers of the lab.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    scenes::{Calls, Scene},
    site::{ATTACKERS, Callee, Certificates, FORWARDERS, MEDIA_PORT, REALM, forwarder, forwards_at, target},
};
use sluicegate_site::{Lab, LabError, Process, binary::Binary, worker::said};
use sluicegate_traffic::{
    attack::{SipFloodSpec, SipKind},
    forward::{ForwardSpec, ForwardedSecond},
    sipload::{CallRate, CalleesSpec, CallersSpec, LoadSum, Replying},
    stream::Over,
};

/// Longer than any scenario; workers end when they are told to.
const FOREVER_S: u32 = 3_600;
/// How long a call lasts that was answered.
const TALK_MS: u32 = 2_000;
/// Calls that may be open at one time: more than ever are.
const OPEN_MAX: u32 = 1 << 18;
/// Sockets of those who call.
const LINES: u16 = 64;
/// Callers; each calls again and again.
const CALLERS: usize = 64;
/// Sockets of the attackers.
const SOCKETS: u16 = 64;

/// The lab and the program that its workers are.
pub(super) struct Workers<'l> {
    pub(super) binary: &'l Binary,
    pub(super) lab: &'l Lab,
    pub(super) seed: u64,
}

impl Workers<'_> {
    /// Forwarding proxies in front of the target.
    pub(super) fn forwarders(&self, certificates: &Certificates) -> Result<Vec<Process>, LabError> {
        let start = |number: usize| {
            let way = certificates.way(number);
            let spec = ForwardSpec { listen: forwards_at(number), to: target(Over::Tls), way, seconds: FOREVER_S };
            self.binary.worker(self.lab, &forwarder(number), "forward", &spec)
        };
        (0..FORWARDERS).map(start).collect()
    }

    /// Those who are called.
    pub(super) fn callees(&self) -> Result<Vec<Process>, LabError> {
        let start = |callee: Callee| {
            let manner = if callee == Callee::Silent { Replying::Silent } else { Replying::Answers };
            let (listen, media) = (callee.sip(), (callee.address(), MEDIA_PORT).into());
            self.binary.worker(
                self.lab,
                "callees",
                "callees",
                &CalleesSpec { listen, media, manner, seconds: FOREVER_S },
            )
        };
        Callee::ALL.into_iter().map(start).collect()
    }

    /// So many calls a second, of signalling alone; the last ones have so long to end.
    pub(super) fn calls(
        &self,
        callee: Callee,
        rates: Vec<CallRate>,
        ends_s: u32,
        turn: u64,
    ) -> Result<Process, LabError> {
        let spec = CallersSpec {
            to: (0..FORWARDERS).map(forwards_at).collect(),
            lines: LINES,
            realm: REALM.to_owned(),
            service: callee.name().to_owned(),
            users: (0..CALLERS).map(|number| (format!("caller{number}"), "nobody asks".to_owned())).collect(),
            rates,
            hold_ms: Some(TALK_MS),
            calls_max: OPEN_MAX,
            drain_ms: ends_s * 1_000,
            tick_ms: 1_000,
            windows_ms: vec![(0, u64::from(FOREVER_S) * 1_000)],
            seed: self.seed << 16 | turn,
            ..CallersSpec::default()
        };
        self.binary.worker(self.lab, "senders", "callers", &spec)
    }

    /// BYEs of somebody who has no call, so many a second.
    pub(super) fn byes(&self, per_s: f64) -> Result<Process, LabError> {
        let spec = SipFloodSpec {
            to: vec![target(Over::Udp)],
            sources: ATTACKERS,
            sockets: SOCKETS,
            per_s: per_s.round() as u64,
            seconds: FOREVER_S,
            requests_max: u64::MAX,
            realm: REALM.to_owned(),
            service: Callee::Replying.name().to_owned(),
            users: vec!["caller0".to_owned()],
            mix: vec![(SipKind::Bye, 1)],
            seed: self.seed,
            ..SipFloodSpec::default()
        };
        self.binary.worker(self.lab, "attackers", "sip_flood", &spec)
    }
}

/// How many calls begin a second, where a target is engineered for `load`.
pub(super) fn rates(scene: &Scene, load: f64, seconds: u32) -> Vec<CallRate> {
    let rate = |times: f64, ms: u32| CallRate { per_s: (times * load).round() as u32, ms };
    match scene.calls {
        Calls::Steady(times) => vec![rate(times, seconds * 1_000)],
        Calls::Ramp(most) => {
            let middle = f64::from(seconds - 1) / 2.0;
            let times = |second: u32| 1.0 + (f64::from(most) - 1.0) * (1.0 - (f64::from(second) / middle - 1.0).abs());
            (0..seconds).map(|second| rate(times(second), 1_000)).collect()
        }
    }
}

/// What became of calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tally {
    /// Those that were to begin, that were answered, and that were ended by a BYE that was.
    pub(super) offered: u64,
    pub(super) answered: u64,
    pub(super) ended: u64,
    /// INVITEs and BYEs without any final answer.
    pub(super) timeouts: u64,
    pub(super) retransmissions: u64,
    /// Those that were refused, by status.
    pub(super) refused: BTreeMap<u16, u64>,
}

#[derive(Debug, Deserialize)]
struct Told {
    windows: Vec<LoadSum>,
}

impl Tally {
    /// What callers said last; `None` if they have not yet.
    pub(super) fn of(callers: &Process) -> Option<Self> {
        std::iter::from_fn(|| callers.line_now()).find_map(|line| Self::read(&line))
    }

    pub(super) fn read(line: &str) -> Option<Self> {
        let Told { windows } = said(line, "result")?;
        let mut tally = Self::default();
        for sum in windows {
            tally.offered += sum.offered;
            tally.answered += sum.established_of_offered;
            tally.ended += sum.completed;
            tally.timeouts += sum.timeouts;
            tally.retransmissions += sum.retransmissions;
            for (status, count) in sum.refused {
                *tally.refused.entry(status).or_insert(0) += count;
            }
        }
        Some(tally)
    }
}

/// What a forwarding proxy has said since.
pub(super) fn forwarded(forwarder: &Process) -> Vec<ForwardedSecond> {
    std::iter::from_fn(|| forwarder.line_now()).filter_map(|line| said(&line, "second")).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::scenes::{HEAVY, RAMP},
        *,
    };

    #[test]
    fn what_callers_say_last_is_read_with_the_statuses_of_refusals() {
        let sum = LoadSum { offered: 9, refused: BTreeMap::from([(500, 2), (503, 1)]), ..LoadSum::default() };
        let line = serde_json::json!({ "event": "result", "windows": [sum], "open": 0 }).to_string();
        let tally = Tally::read(&line).unwrap();
        assert_eq!((tally.offered, tally.refused.get(&500)), (9, Some(&2)));
        assert_eq!(Tally::read(r#"{"event":"rate","place":0}"#), None);
    }

    #[test]
    fn a_ramp_goes_from_the_engineered_load_to_five_times_as_much_and_back() {
        let ramp: Vec<u32> = rates(&RAMP, 100.0, 91).iter().map(|rate| rate.per_s).collect();
        assert_eq!((ramp[0], ramp[45], ramp[90]), (100, 500, 100));
        assert!(ramp[..46].is_sorted() && ramp[45..].is_sorted_by(|one, next| one >= next));
        assert_eq!(rates(&HEAVY, 100.0, 40), [CallRate { per_s: 1_000, ms: 40_000 }]);
    }
}
