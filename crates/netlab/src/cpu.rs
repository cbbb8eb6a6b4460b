//! Processor time of the whole machine.

use std::{
    fs, io, thread,
    time::{Duration, Instant},
};

use crate::{LabError, error::During};

/// If its host gave more of the machine to others, what is slow or lost tells of them.
pub(crate) const STOLEN_SHARE_MAX: f64 = 0.05;

/// Processor time of the machine until now, from `/proc/stat`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    at: Instant,
    cpus: usize,
    /// Time in which nothing ran, or the host ran something else, all processors together.
    idle_s: f64,
    /// Of that, time in which the host ran something else.
    stolen_s: f64,
}

impl Cpu {
    pub(crate) fn now() -> Result<Self, LabError> {
        let stat = fs::read_to_string("/proc/stat").during(|| "reading /proc/stat".to_owned())?;
        Self::parse(&stat, Instant::now())
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
            .during(|| "understanding /proc/stat".to_owned())
    }

    /// Share of the machine that is in use.
    pub(crate) fn share_busy(time: Duration) -> Result<f64, LabError> {
        let before = Self::now()?;
        thread::sleep(time);
        let after = Self::now()?;
        let all = after.at.duration_since(before.at).as_secs_f64() * after.cpus as f64;
        Ok(after.busy_since(&before) / all)
    }

    /// Idle time is exact where the kernel stops its tick when idle; busy time would be sampled by that tick, and
    /// packets come in step with it. So busy is what is not idle.
    pub(crate) fn busy_since(&self, earlier: &Self) -> f64 {
        let all = self.at.duration_since(earlier.at).as_secs_f64() * self.cpus as f64;
        (all - (self.idle_s - earlier.idle_s)).max(0.0)
    }

    /// Share of the machine that its host gave to others.
    pub(crate) fn stolen_share_since(&self, earlier: &Self) -> f64 {
        let all = self.at.duration_since(earlier.at).as_secs_f64() * self.cpus as f64;
        if all > 0.0 { (self.stolen_s - earlier.stolen_s) / all } else { 0.0 }
    }

    fn parse(stat: &str, at: Instant) -> Option<Self> {
        let mut lines = stat.lines().filter(|line| line.starts_with("cpu"));
        // user nice system idle iowait irq softirq steal, in hundredths of a second
        let all: Vec<f64> = lines.next()?.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
        let idle: f64 = [3, 4, 7].iter().filter_map(|index| all.get(*index)).sum();
        let stolen_s = all.get(7).copied().unwrap_or(0.0) / 100.0;
        (all.len() >= 4).then(|| Self { at, cpus: lines.count().max(1), idle_s: idle / 100.0, stolen_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_was_neither_idle_nor_taken_by_the_host() {
        let at = Instant::now();
        let before = "cpu  10 0 10 100 5 0 0 5 0 0\ncpu0 5 0 5 50 5 0 0 5\ncpu1 5 0 5 50 0 0 0 0\nintr 1\n";
        let after = "cpu  60 0 60 150 15 0 0 15 0 0\ncpu0 1\ncpu1 1\nintr 2\n";
        let before = Cpu::parse(before, at).unwrap();
        let after = Cpu::parse(after, at + Duration::from_secs(1)).unwrap();
        // Two processors for a second, of which 0.5 s idle, 0.1 s waiting for a disk, 0.1 s not ours.
        assert!((after.busy_since(&before) - 1.3).abs() < 1e-9);
        assert!((after.stolen_share_since(&before) - 0.05).abs() < 1e-9);
        assert!(Cpu::parse("intr 1\n", at).is_none());
    }
}
