//! Resident memory of a daemon and of the processes that it started.

use std::{collections::HashMap, fs};

use sluicegate_site::{During, LabError};

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
pub(crate) fn resident_kb(pid: u32) -> Result<u64, LabError> {
    let entries = fs::read_dir("/proc").during(|| "listing processes".to_owned())?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let program = |pid| Some((pid, Program::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?));
    Ok(sum(pid, &pids.filter_map(program).collect()))
}

fn sum(pid: u32, programs: &HashMap<u32, Program>) -> u64 {
    let (mut kb, mut family) = (0, vec![pid]);
    while let Some(next) = family.pop() {
        kb += programs.get(&next).map_or(0, |program| program.resident_kb);
        family.extend(programs.iter().filter(|(_, program)| program.parent == next).map(|(pid, _)| *pid));
    }
    kb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_a_process_and_of_all_below_it() {
        let status = "Name:\ta\nPPid:\t7\nVmRSS:\t  1200 kB\nThreads:\t3\n";
        assert_eq!(Program::parse(status), Some(Program { parent: 7, resident_kb: 1_200 }));
        let program = |parent, resident_kb| Program { parent, resident_kb };
        let programs =
            [(1, program(0, 9)), (7, program(1, 100)), (8, program(7, 20)), (9, program(8, 3)), (5, program(1, 50))];
        assert_eq!(sum(7, &programs.into()), 123);
        assert!(resident_kb(std::process::id()).unwrap() > 1_000);
    }
}
