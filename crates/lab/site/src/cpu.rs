//! Processor time of the whole machine.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{During, LabError, clock::unix_ns};

/// If its host, or other programs here, took more of the machine, in all or in any one second, what is slow or lost tells of them.
const TAKEN_MAX: f64 = 0.05;
const TAKEN_IN_A_SECOND_MAX: f64 = 0.2;
/// If more of the machine was in use, a flood that came out too small tells of the machine.
const BUSY_MAX: f64 = 0.8;
const SECOND_NS: u64 = 1_000_000_000;

/// How often [`StolenWatch`] looks, and how much later than it happens the kernel may say what was stolen: two of its
/// hundredths of a second.
const WATCH_EVERY: Duration = Duration::from_millis(5);
const TOLD_WITHIN_NS: u64 = 20_000_000;
/// How often it looks what other programs use.
const LOOK_AT_OTHERS_EVERY: Duration = Duration::from_secs(1);
/// The kernel's own threads are the children of this process; what they do is done for the lab.
const KERNEL: i32 = 2;

/// Processor time of the machine until now, from `/proc/stat`.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    at: Instant,
    cpus: usize,
    /// Time in which nothing ran, or the host ran something else, all processors together.
    idle_s: f64,
    /// Of that, time in which the host ran something else.
    stolen_s: f64,
}

impl Cpu {
    /// Until this moment.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn now() -> Result<Self, LabError> {
        let stat = fs::read_to_string("/proc/stat").during(|| "reading /proc/stat".to_owned())?;
        Self::parse(&stat, Instant::now())
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
            .during(|| "understanding /proc/stat".to_owned())
    }

    /// Share of the machine that is in use, measured for so long.
    ///
    /// # Errors
    /// As [`Cpu::now`].
    pub fn share_busy(time: Duration) -> Result<f64, LabError> {
        let before = Self::now()?;
        thread::sleep(time);
        let after = Self::now()?;
        let all = after.at.duration_since(before.at).as_secs_f64() * after.cpus as f64;
        Ok(after.busy_since(&before) / all)
    }

    /// Idle time is exact where the kernel stops its tick when idle; busy time would be sampled by that tick, and
    /// packets come in step with it. So busy is what is not idle.
    #[must_use]
    pub fn busy_since(&self, earlier: &Self) -> f64 {
        let all = self.at.duration_since(earlier.at).as_secs_f64() * self.cpus as f64;
        (all - (self.idle_s - earlier.idle_s)).max(0.0)
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

/// Processor time of the programs on this machine that this one did not start.
#[derive(Debug, Default)]
struct Others {
    /// Until the last look, by process.
    ticks: HashMap<i32, u64>,
    /// Since the first look.
    used: u64,
}

/// One process as `/proc/PID/stat` tells of it.
struct Program {
    parent: i32,
    ticks: u64,
}

impl Program {
    /// The name may have spaces and parentheses. Behind it: state, parent, ..., user and system time as 12th and 13th.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self { parent: fields.get(1)?.parse().ok()?, ticks: number(11)? + number(12)? })
    }
}

impl Others {
    /// Looks again. A process that ended since the last look is forgotten, and what it used since then.
    fn look(&mut self, is_first: bool) {
        let Ok(entries) = fs::read_dir("/proc") else { return };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let program = |pid| Some((pid, Program::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?));
        let programs: HashMap<i32, Program> = pids.filter_map(program).collect();
        let own = HashSet::from([std::process::id().cast_signed(), KERNEL]);
        let others = programs.iter().filter(|(pid, _)| !descends(**pid, &own, &programs));
        let ticks: HashMap<i32, u64> = others.map(|(pid, program)| (*pid, program.ticks)).collect();
        if !is_first {
            let since = |(pid, ticks): (&i32, &u64)| ticks.saturating_sub(self.ticks.get(pid).copied().unwrap_or(0));
            self.used += ticks.iter().map(since).sum::<u64>();
        }
        self.ticks = ticks;
    }

    fn used_ns(&self) -> u64 {
        let ticks_per_s = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        self.used.saturating_mul(SECOND_NS / ticks_per_s.max(1).cast_unsigned())
    }
}

/// Whether `pid` is one of `ancestors` or descends from one.
fn descends(pid: i32, ancestors: &HashSet<i32>, programs: &HashMap<i32, Program>) -> bool {
    let mut line = std::iter::successors(Some(pid), |pid| programs.get(pid).map(|program| program.parent));
    // Processes come and go while they are listed: no line is longer than the list.
    line.by_ref().take(programs.len() + 1).any(|pid| ancestors.contains(&pid))
}

/// Shares of the machine that its host gave to others, or that other programs here used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// Of the whole time.
    pub share: f64,
    /// Of the worst second.
    pub in_a_second: f64,
    /// Share of the whole time in which the machine's processors were in use, by whomever.
    pub busy: f64,
}

impl Taken {
    /// Whether what was slow or lost meanwhile says nothing.
    #[must_use]
    pub fn is_much(&self) -> bool {
        self.share > TAKEN_MAX || self.in_a_second > TAKEN_IN_A_SECOND_MAX
    }

    /// Whether those who were to send much may have sent less because there was no machine left to do it.
    #[must_use]
    pub fn bounds_senders(&self) -> bool {
        self.is_much() || self.busy > BUSY_MAX
    }
}

/// What the host took of this machine's processors, and when; and what other programs used.
#[derive(Debug, Default)]
pub struct Stolen {
    cpus: usize,
    /// What other programs used in all, all processors together, in nanoseconds.
    others_ns: u64,
    /// The time that was watched, in nanoseconds since 1970.
    watched: Range<u64>,
    /// Nanoseconds since 1970, and what was stolen until then, all processors together, in nanoseconds. Values that did
    /// not change are left out.
    until: Vec<(u64, u64)>,
    /// The same of what was idle.
    idle_until: Vec<(u64, u64)>,
}

impl Stolen {
    /// What was stolen between two moments, in nanoseconds; at most the time between them. Both are taken a little apart,
    /// because the kernel counts in hundredths of a second.
    #[must_use]
    pub fn between(&self, from_ns: u64, to_ns: u64) -> u64 {
        let before = until(&self.until, from_ns.saturating_sub(TOLD_WITHIN_NS));
        let stolen = until(&self.until, to_ns + TOLD_WITHIN_NS).saturating_sub(before);
        stolen.min(to_ns.saturating_sub(from_ns))
    }

    /// Of all the time that was watched.
    #[must_use]
    pub fn taken(&self) -> Taken {
        self.taken_between(self.watched.start, self.watched.end)
    }

    /// Between two moments.
    #[must_use]
    pub fn taken_between(&self, from_ns: u64, to_ns: u64) -> Taken {
        let within = |(at, _): &&(u64, u64)| (from_ns..to_ns.saturating_sub(SECOND_NS)).contains(at);
        let seconds = [from_ns].into_iter().chain(self.until.iter().filter(within).map(|(at, _)| *at));
        let stolen = |from_ns, to_ns| self.share(&self.until, from_ns, to_ns);
        let in_a_second = seconds.map(|at| stolen(at, (at + SECOND_NS).min(to_ns))).fold(0.0, f64::max);
        // Without a look at it, nothing is known to have been in use.
        let idle = if self.idle_until.is_empty() { 1.0 } else { self.share(&self.idle_until, from_ns, to_ns) };
        Taken { share: stolen(from_ns, to_ns) + self.others_share(), in_a_second, busy: (1.0 - idle).max(0.0) }
    }

    fn others_share(&self) -> f64 {
        let watched_ns = self.watched.end.saturating_sub(self.watched.start).max(1);
        self.others_ns as f64 / (watched_ns as f64 * self.cpus.max(1) as f64)
    }

    fn share(&self, of: &[(u64, u64)], from_ns: u64, to_ns: u64) -> f64 {
        let time = until(of, to_ns).saturating_sub(until(of, from_ns)) as f64;
        time / (to_ns.saturating_sub(from_ns).max(1) as f64 * self.cpus.max(1) as f64)
    }

    /// What was stolen until a moment, both in nanoseconds; moments come in order.
    pub fn note(&mut self, at_ns: u64, stolen_ns: u64) {
        if self.until.is_empty() {
            self.watched.start = at_ns;
        }
        self.watched.end = at_ns;
        if self.until.last().is_none_or(|(_, last)| *last != stolen_ns) {
            self.until.push((at_ns, stolen_ns));
        }
    }

    fn note_idle(&mut self, at_ns: u64, idle_ns: u64) {
        if self.idle_until.last().is_none_or(|(_, last)| *last != idle_ns) {
            self.idle_until.push((at_ns, idle_ns));
        }
    }
}

/// What was noted last until this moment.
fn until(noted: &[(u64, u64)], at_ns: u64) -> u64 {
    let next = noted.partition_point(|(at, _)| *at <= at_ns);
    noted.get(next.saturating_sub(1)).map_or(0, |(_, value)| *value)
}

/// A thread that writes down what the host takes, and what other programs use.
#[derive(Debug)]
pub struct StolenWatch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Stolen>>,
}

impl StolenWatch {
    /// Begins to watch.
    #[must_use]
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut stolen = Stolen::default();
            let (mut others, mut looked) = (Others::default(), Instant::now());
            others.look(true);
            while !flag.load(Relaxed) {
                if let Ok(cpu) = Cpu::now() {
                    stolen.cpus = cpu.cpus;
                    let now = unix_ns();
                    stolen.note(now, (cpu.stolen_s * 1e9) as u64);
                    stolen.note_idle(now, ((cpu.idle_s - cpu.stolen_s) * 1e9) as u64);
                }
                if looked.elapsed() >= LOOK_AT_OTHERS_EVERY {
                    others.look(false);
                    looked = Instant::now();
                }
                thread::sleep(WATCH_EVERY);
            }
            others.look(false);
            stolen.others_ns = others.used_ns();
            stolen
        });
        Self { stop, thread: Some(thread) }
    }

    /// Everything since the start.
    #[must_use]
    pub fn end(mut self) -> Stolen {
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
        assert!((stolen.share(&stolen.until, 100 * MS, 600 * MS) - 0.05).abs() < 1e-9);
    }

    #[test]
    fn a_machine_in_use_bounds_senders_and_an_idle_one_does_not() {
        let mut stolen = Stolen { cpus: 2, ..Stolen::default() };
        for (at, idle) in [(0, 100), (1, 101), (2, 102), (3, 104), (10, 118)] {
            stolen.note(at * SECOND_NS, 0);
            stolen.note_idle(at * SECOND_NS, idle * SECOND_NS);
        }
        assert!(!stolen.taken().bounds_senders() && !Stolen::default().taken().bounds_senders());
        let half = stolen.taken_between(0, 2 * SECOND_NS);
        assert!((half.busy - 0.5).abs() < 1e-9 && !half.bounds_senders(), "{half:?}");
        let mut full = Stolen { cpus: 2, ..Stolen::default() };
        for at in 0..=10 {
            full.note(at * SECOND_NS, 0);
            full.note_idle(at * SECOND_NS, at * SECOND_NS / 4);
        }
        assert!(full.taken().bounds_senders() && !full.taken().is_much());
    }

    #[test]
    fn a_burst_of_a_second_is_seen_in_a_time_that_is_quiet_in_all() {
        let mut stolen = Stolen { cpus: 1, ..Stolen::default() };
        let second = |n: u64, taken_ms: u64| (n * SECOND_NS, taken_ms * 1_000_000);
        for (at, until) in [second(0, 0), second(7, 40), second(8, 340), second(20, 340)] {
            stolen.note(at, until);
        }
        let taken = stolen.taken();
        assert!((taken.share - 0.017).abs() < 1e-9 && (taken.in_a_second - 0.3).abs() < 1e-9, "{taken:?}");
        assert!(taken.is_much());
        assert!(!stolen.taken_between(8 * SECOND_NS, 20 * SECOND_NS).is_much());
        assert!(!Stolen::default().taken().is_much());
    }

    #[test]
    fn only_what_programs_use_that_this_one_did_not_start_counts_as_others() {
        let stat = "812 (a) b (c) S 7 812 812 0 -1 4194304 90 0 0 0 250 50 9 9 20 0 1 0 100\n";
        let program = Program::parse(stat).unwrap();
        assert_eq!((program.parent, program.ticks), (7, 300));
        let programs: HashMap<i32, Program> = [(1, 0), (7, 1), (8, 7), (9, 8), (2, 0), (30, 2), (5, 6), (6, 5)]
            .map(|(pid, parent)| (pid, Program { parent, ticks: 1 }))
            .into();
        let own = HashSet::from([8, KERNEL]);
        let others: Vec<_> =
            (1..40).filter(|pid| programs.contains_key(pid) && !descends(*pid, &own, &programs)).collect();
        assert_eq!(others, [1, 5, 6, 7], "its children and the kernel's threads are its own");
    }

    #[test]
    fn a_running_child_is_none_of_the_others_and_the_first_process_is() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let mut others = Others::default();
        others.look(true);
        let pids = (others.ticks.contains_key(&1), others.ticks.contains_key(&child.id().cast_signed()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((pids, others.used), ((true, false), 0));
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
        assert!((after.stolen_s - before.stolen_s - 0.1).abs() < 1e-9);
        assert!(Cpu::parse("intr 1\n", at).is_none());
    }
}
