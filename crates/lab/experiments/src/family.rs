//! A daemon and all processes that it started: what they use, and which processors they have.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};
use rustix::process::setpriority_process;

use sluicegate_site::{During, LabError, programs::family};

/// The number behind a name at the beginning of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

fn sum_kb(pid: u32, file: &str, name: &str) -> Result<u64, LabError> {
    // A process that has ended, or a thread of the kernel, has no memory.
    let of = |pid| value(&fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?, name);
    Ok(family(pid)?.into_iter().filter_map(of).sum())
}

/// What the process `pid` and its descendants have in memory now, kB; what they share counts once.
pub(crate) fn proportional_kb(pid: u32) -> Result<u64, LabError> {
    sum_kb(pid, "smaps_rollup", "Pss:")
}

/// Processor time that the process `pid` and its descendants have used.
pub(crate) fn cpu(pid: u32) -> Result<Duration, LabError> {
    let of = |pid: u32| clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).and_then(clock_gettime).ok();
    Ok(family(pid)?.into_iter().filter_map(of).map(Duration::from).sum())
}

/// Binds the process `pid` and its descendants to these processors, and gives them this priority: what they start later
/// has both too.
pub(crate) fn place(pid: u32, cpus: &[usize], priority: i32) -> Result<(), LabError> {
    let place = || -> io::Result<()> {
        let mut set = CpuSet::new();
        cpus.iter().try_for_each(|cpu| set.set(*cpu))?;
        for pid in family(pid).map_err(io::Error::other)? {
            let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
            for thread in threads {
                // One that has ended meanwhile needs no place.
                let _ = sched_setaffinity(Pid::from_raw(thread), &set);
                let _ = setpriority_process(rustix::process::Pid::from_raw(thread), priority);
            }
        }
        Ok(())
    };
    place().during(|| format!("placing process {pid}"))
}

/// Control groups of processor time, of the second version and of the first; how a group's quota is written in each.
const GROUPS: [(&str, &str); 2] = [("/sys/fs/cgroup", "cpu.max"), ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us")];
/// In microseconds: so short that a server hardly sees it.
const PERIOD_US: u32 = 5_000;

/// A daemon and its descendants get a part of a processor only, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Slowed {
    group: PathBuf,
}

impl Slowed {
    /// Slows the process `pid` and its descendants down to this part of a processor.
    pub(crate) fn to(pid: u32, share: f64) -> Result<Self, LabError> {
        let name = format!("sluicegate-lab-{pid}");
        let quota = (f64::from(PERIOD_US) * share) as u32;
        let slow = |(root, file): (&str, &str)| -> io::Result<Self> {
            let group = PathBuf::from(root).join(&name);
            fs::create_dir(&group)?;
            let slowed = Self { group };
            // Only in a folder of groups these files are there.
            let write = |file: &str, text: String| -> io::Result<()> {
                fs::OpenOptions::new().write(true).open(slowed.group.join(file))?.write_all(text.as_bytes())
            };
            if file == "cpu.max" {
                write(file, format!("{quota} {PERIOD_US}"))?;
            } else {
                write("cpu.cfs_period_us", PERIOD_US.to_string())?;
                write(file, quota.to_string())?;
            }
            for pid in family(pid).map_err(io::Error::other)? {
                write("cgroup.procs", pid.to_string())?;
            }
            Ok(slowed)
        };
        let [second, first] = GROUPS;
        slow(second).or_else(|_| slow(first)).during(|| format!("limiting processor time of process {pid}"))
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        // A group goes when the last of its processes has.
        for _ in 0..100 {
            if fs::remove_dir(&self.group).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A processor with nothing to do waits for work and is not halted, for as long as this lives: on a virtual machine its host
/// halts it, and whoever sends to it pays for waking it up, so that a server seems dearer while its peers wait for it.
#[derive(Debug)]
pub(crate) struct Awake {
    _latency: fs::File,
}

impl Awake {
    /// Nothing where the kernel does not let it.
    pub(crate) fn keep() -> Option<Self> {
        let mut latency = fs::File::options().write(true).open("/dev/cpu_dma_latency").ok()?;
        // Microseconds that waking up may take (`Documentation/power/pm_qos_interface.rst`).
        latency.write_all(&0_i32.to_ne_bytes()).ok()?;
        Some(Self { _latency: latency })
    }
}

/// Where the kernel weighs sessions against each other before it looks at priorities within one.
const SESSION: &str = "/proc/self/autogroup";

/// This session goes before others on the machine for as long as this lives.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// What the session's priority was.
    before: Option<String>,
}

impl Ahead {
    pub(crate) fn go(priority: i32) -> Self {
        // `/autogroup-98 nice 0`; without such groups there is nothing to do.
        let before = fs::read_to_string(SESSION).ok();
        let before = before.and_then(|text| Some(text.trim_end().rsplit_once(" nice ")?.1.to_owned()));
        let is_set = before.is_some() && fs::write(SESSION, priority.to_string()).is_ok();
        Self { before: before.filter(|_| is_set) }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = fs::write(SESSION, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_slowed_gets_its_part_of_a_processor() {
        let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let slowed = Slowed::to(busy.id(), 0.25);
        let before = cpu(busy.id()).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let used = cpu(busy.id()).unwrap().saturating_sub(before);
        busy.kill().unwrap();
        busy.wait().unwrap();
        let Ok(slowed) = slowed else {
            return println!("not played here: a process that is slowed, as no control group can be made");
        };
        let group = slowed.group.clone();
        drop(slowed);
        assert!(used < Duration::from_millis(400), "{used:?}");
        assert!(!group.exists(), "nothing is left of it");
    }

    #[test]
    fn what_a_process_uses_is_read() {
        let own = std::process::id();
        assert_eq!(value("Name:\ta\nPss:\t  1200 kB\n", "Pss:"), Some(1_200));
        assert!(proportional_kb(own).unwrap() > 100);
        assert!(!cpu(own).unwrap().is_zero());
    }
}
