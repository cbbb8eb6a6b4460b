//! What the target takes and does, second by second, and what its forwarding proxies saw.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::site::TRANSACTION_BYTES;
use sluicegate_site::{LabError, Node, clock::unix_ns, programs};
use sluicegate_traffic::forward::ForwardedSecond;

/// What SIP threads are called.
const THREADS: &str = "sip-";
const SECOND_NS: u64 = 1_000_000_000;

/// One second of a scenario.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Second {
    /// Since the scenario began.
    pub(super) at_s: f64,
    /// How long it was.
    pub(super) span_s: f64,
    /// Share of it in which the target's SIP threads ran.
    pub(super) cpu: f64,
    /// INVITEs that began calls and were let in, and that were refused, as the target counts them.
    pub(super) accepted: u64,
    pub(super) refused: u64,
    /// BYEs that came, and of these those that were dropped unseen.
    pub(super) byes: u64,
    pub(super) byes_dropped: u64,
    /// INVITEs that senders gave to the forwarding proxies, and those that these held back.
    pub(super) offered: u64,
    pub(super) held: u64,
    /// INVITEs that are being set up, times what the target counts for each.
    pub(super) memory_bytes: f64,
    /// Resident memory of the target's processes.
    pub(super) resident_kb: u64,
}

/// Counters of the target and of its threads at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    ran_ns: u64,
    accepted: u64,
    refused: u64,
    byes: u64,
    byes_dropped: u64,
}

/// Looks at a target.
#[derive(Debug)]
pub(super) struct Sampler<'n> {
    target: &'n Node,
    threads: Vec<PathBuf>,
    began: Instant,
    began_ns: u64,
    looked: Instant,
    before: Counted,
    pub(super) seconds: Vec<Second>,
}

impl<'n> Sampler<'n> {
    /// Begins to look.
    pub(super) fn start(target: &'n Node) -> Result<Self, LabError> {
        let threads = programs::threads(target.process.pid(), THREADS)?;
        let now = Instant::now();
        let mut sampler = Self {
            target,
            threads,
            began: now,
            began_ns: unix_ns(),
            looked: now,
            before: Counted::default(),
            seconds: Vec::new(),
        };
        sampler.before = sampler.count(&target.answers()?);
        Ok(sampler)
    }

    fn count(&self, status: &Value) -> Counted {
        let requests = &status["frontend"]["requests"];
        let of = |what: &str| requests[what].as_u64().unwrap_or_default();
        let byes = requests.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("bye "));
        Counted {
            ran_ns: programs::ran_ns(&self.threads),
            accepted: of("invite admitted"),
            refused: of("invite overload"),
            byes: byes.filter_map(|(_, count)| count.as_u64()).sum(),
            byes_dropped: of("bye overload"),
        }
    }

    /// Looks if a second is over. What cannot be told now is told with the next one.
    pub(super) fn look(&mut self) -> Result<(), LabError> {
        let due = Duration::from_secs(self.seconds.len() as u64 + 1);
        if self.began.elapsed() < due {
            return Ok(());
        }
        let Some(status) = self.target.status() else { return Ok(()) };
        let (now, counted) = (Instant::now(), self.count(&status));
        let span_s = now.duration_since(self.looked).as_secs_f64();
        let exchanges = status["frontend"]["tables"].as_array().into_iter().flatten();
        let exchanges = exchanges.filter(|table| table["table"] == "exchanges");
        let used: u64 = exchanges.filter_map(|table| table["used"].as_u64()).sum();
        let ran_s = counted.ran_ns.saturating_sub(self.before.ran_ns) as f64 / SECOND_NS as f64;
        self.seconds.push(Second {
            at_s: now.duration_since(self.began).as_secs_f64(),
            span_s,
            cpu: ran_s / span_s / self.threads.len().max(1) as f64,
            accepted: counted.accepted.saturating_sub(self.before.accepted),
            refused: counted.refused.saturating_sub(self.before.refused),
            byes: counted.byes.saturating_sub(self.before.byes),
            byes_dropped: counted.byes_dropped.saturating_sub(self.before.byes_dropped),
            memory_bytes: used as f64 * TRANSACTION_BYTES,
            resident_kb: programs::resident_kb(self.target.process.pid())?,
            ..Second::default()
        });
        (self.looked, self.before) = (now, counted);
        Ok(())
    }

    /// Adds what a forwarding proxy saw in the second that ended then.
    pub(super) fn add(&mut self, forwarded: &ForwardedSecond) {
        let at = forwarded.at_ns.saturating_sub(self.began_ns).saturating_sub(SECOND_NS / 2) / SECOND_NS;
        if let Some(second) = usize::try_from(at).ok().and_then(|at| self.seconds.get_mut(at)) {
            second.offered += forwarded.invites;
            second.held += forwarded.held;
        }
    }
}
