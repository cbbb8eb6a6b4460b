//! Processor time of the whole machine.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{LabError, clock::unix_ns, error::During};

/// If its host gave more of the machine to others, what is slow or lost tells of them.
pub(crate) const STOLEN_SHARE_MAX: f64 = 0.05;

/// How often [`StolenWatch`] looks, and how much later than it happens the kernel may say what was stolen: two of its
/// hundredths of a second.
const WATCH_EVERY: Duration = Duration::from_millis(5);
const TOLD_WITHIN_NS: u64 = 20_000_000;

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

/// What the host took of this machine's processors, and when.
#[derive(Debug, Default)]
pub(crate) struct Stolen {
    cpus: usize,
    /// Nanoseconds since 1970, and what was stolen until then, all processors together, in nanoseconds. Values that did
    /// not change are left out.
    until: Vec<(u64, u64)>,
}

impl Stolen {
    /// What was stolen between two moments, in nanoseconds; at most the time between them. Both are taken a little apart,
    /// because the kernel counts in hundredths of a second.
    pub(crate) fn between(&self, from_ns: u64, to_ns: u64) -> u64 {
        let before = self.until(from_ns.saturating_sub(TOLD_WITHIN_NS));
        let stolen = self.until(to_ns + TOLD_WITHIN_NS).saturating_sub(before);
        stolen.min(to_ns.saturating_sub(from_ns))
    }

    /// Share of the machine that its host gave to others between two moments.
    pub(crate) fn share(&self, from_ns: u64, to_ns: u64) -> f64 {
        let stolen = self.until(to_ns).saturating_sub(self.until(from_ns)) as f64;
        stolen / (to_ns.saturating_sub(from_ns).max(1) as f64 * self.cpus.max(1) as f64)
    }

    fn until(&self, at_ns: u64) -> u64 {
        let next = self.until.partition_point(|(at, _)| *at <= at_ns);
        self.until.get(next.saturating_sub(1)).map_or(0, |(_, stolen)| *stolen)
    }

    pub(crate) fn note(&mut self, at_ns: u64, stolen_ns: u64) {
        if self.until.last().is_none_or(|(_, last)| *last != stolen_ns) {
            self.until.push((at_ns, stolen_ns));
        }
    }
}

/// A thread that writes down what the host takes.
#[derive(Debug)]
pub(crate) struct StolenWatch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Stolen>>,
}

impl StolenWatch {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut stolen = Stolen::default();
            while !flag.load(Relaxed) {
                if let Ok(cpu) = Cpu::now() {
                    stolen.cpus = cpu.cpus;
                    stolen.note(unix_ns(), (cpu.stolen_s * 1e9) as u64);
                }
                thread::sleep(WATCH_EVERY);
            }
            stolen
        });
        Self { stop, thread: Some(thread) }
    }

    /// Everything since the start.
    pub(crate) fn end(mut self) -> Stolen {
        self.stop.store(true, Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for StolenWatch {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stolen_counts_where_it_was_and_never_more_than_the_time_that_passed() {
        const MS: u64 = 1_000_000;
        let mut stolen = Stolen::default();
        for (at, until) in [(0, 7), (100, 7), (500, 47), (505, 57), (2_000, 57)] {
            stolen.note(at * MS, until * MS);
        }
        assert_eq!(stolen.until.len(), 3);
        assert_eq!(stolen.between(100 * MS, 400 * MS), 0);
        assert_eq!(stolen.between(450 * MS, 600 * MS), 50 * MS);
        assert_eq!(stolen.between(490 * MS, 510 * MS), 20 * MS, "no more than passed");
        assert_eq!(stolen.between(600 * MS, 1_600 * MS), 0);
        assert_eq!(Stolen::default().between(0, 5 * MS), 0);
        stolen.cpus = 2;
        assert!((stolen.share(100 * MS, 600 * MS) - 0.05).abs() < 1e-9);
    }

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
