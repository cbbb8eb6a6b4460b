//! What users would otherwise run: the kernel's own forwarding, and nftables masquerade.

use std::{
    fs, io,
    path::Path,
    process::{Command, Stdio},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use super::lab::BenchLab;
use sluicegate_site::{During, LabError, Namespace};

/// Plain kernel forwarding.
pub(super) fn kernel_forward() -> Result<BenchLab, LabError> {
    let lab = BenchLab::build("kernel_forward", true)?;
    steer(&lab)?;
    Ok(lab)
}

/// Kernel forwarding with masquerade and a stateful forward chain; with a flowtable where the kernel has them.
pub(super) fn nft_masquerade(directory: &Path) -> Result<BenchLab, LabError> {
    let mut lab = BenchLab::build("nft_masquerade", true)?;
    steer(&lab)?;
    let gate = lab.lab.host("gate")?;
    let without = if load(gate, directory, &ruleset(true))?.is_ok() { "" } else { " without flowtable" };
    if !without.is_empty()
        && let Err(reason) = load(gate, directory, &ruleset(false))?
    {
        return Err(LabError::process("nft", reason));
    }
    lab.name += without;
    Ok(lab)
}

fn ruleset(flowtable: bool) -> String {
    let (table, offload) = if flowtable {
        ("flowtable fast { hook ingress priority 0; devices = { outside, inside }; }", "ip protocol udp flow add @fast")
    } else {
        ("", "")
    };
    format!(
        "table ip bench {{\n{table}\n\
         chain forward {{\ntype filter hook forward priority filter; policy drop;\n{offload}\n\
         ct state established,related accept\niifname \"outside\" oifname \"inside\" accept\n}}\n\
         chain postrouting {{\ntype nat hook postrouting priority srcnat;\noifname \"inside\" masquerade\n}}\n}}\n"
    )
}

/// Loads a ruleset; what `nft` says if it refuses.
fn load(gate: &Namespace, directory: &Path, ruleset: &str) -> Result<Result<(), String>, LabError> {
    let file = directory.join("bench.nft");
    fs::write(&file, ruleset).during(|| format!("writing {}", file.display()))?;
    let run = || Command::new("nft").arg("-f").arg(&file).stdin(Stdio::null()).output();
    match gate.run_in(run).and_then(|output| output) {
        Ok(output) if output.status.success() => Ok(Ok(())),
        Ok(output) => Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(LabError::process("nft", "there is no such program; install it (Debian package nftables)"))
        }
        Err(error) => Err(LabError::process("nft", error.to_string())),
    }
}

/// Lets the last processor forward, where the gate's packet thread runs too: the generator has the first one to itself.
/// Without this the kernel would forward in the generator's own time.
fn steer(lab: &BenchLab) -> Result<(), LabError> {
    // The file takes 32 processors at a time.
    let last = std::thread::available_parallelism().map_or(1, usize::from).min(32) - 1;
    let mask = format!("{:x}", 1u32 << last);
    let write = || -> io::Result<()> {
        // A view of /sys that shows this namespace's interfaces, for this thread alone.
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
        fs::write("/sys/class/net/outside/queues/rx-0/rps_cpus", mask)
    };
    lab.lab.host("gate")?.run_in(write).and_then(|done| done).during(|| "steering packets to a processor".to_owned())
}
