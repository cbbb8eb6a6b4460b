//! What a daemon and the processes that it started take: resident memory, and the time of their threads.

use std::{collections::HashMap, fs, path::PathBuf};

use crate::{During, LabError};

/// One process as `/proc/PID/status` tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Program {
    parent: u32,
    resident_kb: u64,
}

impl Program {
    fn parse(status: &str) -> Option<Self> {
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        // Threads of the kernel have no memory.
        let resident_kb = value("VmRSS:").and_then(|kb| kb.parse().ok()).unwrap_or(0);
        Some(Self { parent: value("PPid:")?.parse().ok()?, resident_kb })
    }
}

/// What the process `pid` and its descendants have in memory now, kB.
///
/// # Errors
/// If processes cannot be listed.
pub fn resident_kb(pid: u32) -> Result<u64, LabError> {
    let programs = programs()?;
    let kb = |pid: &u32| programs.get(pid).map_or(0, |program| program.resident_kb);
    Ok(below(pid, &programs).iter().map(kb).sum())
}

/// The process `pid` and its descendants, as they are now.
///
/// # Errors
/// If processes cannot be listed.
pub fn family(pid: u32) -> Result<Vec<u32>, LabError> {
    Ok(below(pid, &programs()?))
}

/// Files of those threads of the process `pid` and its descendants whose names begin so, which say how long each has run:
/// for [`ran_ns`].
///
/// # Errors
/// If processes cannot be listed.
pub fn threads(pid: u32, name: &str) -> Result<Vec<PathBuf>, LabError> {
    let tasks = family(pid)?.into_iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok());
    let is_called = |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name));
    let tasks = tasks.flatten().flatten().map(|task| task.path()).filter(is_called);
    Ok(tasks.map(|task| task.join("schedstat")).collect())
}

/// How long these threads have run, in nanoseconds all together. One that has ended counts for nothing.
#[must_use]
pub fn ran_ns(threads: &[PathBuf]) -> u64 {
    let ran = |file: &PathBuf| fs::read_to_string(file).ok()?.split_whitespace().next()?.parse::<u64>().ok();
    threads.iter().filter_map(ran).sum()
}

fn programs() -> Result<HashMap<u32, Program>, LabError> {
    let entries = fs::read_dir("/proc").during(|| "listing processes".to_owned())?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let program = |pid| Some((pid, Program::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?));
    Ok(pids.filter_map(program).collect())
}

/// A process and all below it.
fn below(pid: u32, programs: &HashMap<u32, Program>) -> Vec<u32> {
    let (mut family, mut next) = (vec![pid], 0);
    while let Some(parent) = family.get(next).copied() {
        family.extend(programs.iter().filter(|(_, program)| program.parent == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    #[test]
    fn memory_is_that_of_a_process_and_of_all_below_it() {
        let status = "Name:\ta\nPPid:\t7\nVmRSS:\t  1200 kB\nThreads:\t3\n";
        assert_eq!(Program::parse(status), Some(Program { parent: 7, resident_kb: 1_200 }));
        let program = |parent| Program { parent, resident_kb: 1 };
        let programs = [(1, program(0)), (7, program(1)), (8, program(7)), (9, program(8)), (5, program(1))];
        let mut found = below(7, &programs.into());
        found.sort_unstable();
        assert_eq!(found, [7, 8, 9]);
        assert!(resident_kb(std::process::id()).unwrap() > 1_000);
    }

    #[test]
    fn threads_are_found_by_name_and_the_time_of_one_grows_while_it_runs() {
        let busy = thread::Builder::new().name("busy-thread".to_owned()).spawn(|| {
            let mut sum = 0_u64;
            for round in 0..400_000_000_u64 {
                sum = std::hint::black_box(sum.wrapping_add(round));
                if round % 1_000_000 == 0 && ran_ns(&threads(std::process::id(), "busy-").unwrap()) > 1_000_000 {
                    return true;
                }
            }
            false
        });
        assert!(busy.unwrap().join().unwrap());
        thread::sleep(Duration::from_millis(1));
        assert_eq!(threads(std::process::id(), "nobody-").unwrap(), [] as [PathBuf; 0]);
    }
}
