//! The system calls that a confined process may make. Anything else fails with "operation not permitted", so that a
//! parser that was taken over can open no file and no socket, start no program, and look at no other process.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

/// Calls that are allowed whatever their arguments are.
const CALLS: &[c_long] = &[
    // Files and sockets that are open already.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Waiting.
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_pipe2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads and signals of this process.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The older calls that some architectures have besides.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[libc::SYS_poll, libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// What a confined process may do with the network besides using the sockets that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// Nothing.
    AsOpened,
    /// Connect to others over TCP.
    Dial,
}

/// Installs the filter for all threads of this process.
pub(super) fn install(network: Network) -> Result<()> {
    for program in [without_clone3()?, program(network)?] {
        apply_filter_all_threads(&program).context("the system call filter cannot be installed")?;
    }
    Ok(())
}

/// A filter cannot see the flags of `clone3`, so the call does not exist: the C library uses `clone` then. It would take
/// any other refusal for its answer, and start no thread.
fn without_clone3() -> Result<BpfProgram> {
    let rules = [(libc::SYS_clone3, Vec::new())].into();
    let absent = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, absent, architecture()?)?.try_into()?)
}

fn architecture() -> Result<TargetArch> {
    std::env::consts::ARCH.try_into().context("no system call filter for this architecture")
}

fn program(network: Network) -> Result<BpfProgram> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        CALLS.iter().chain(OLDER).map(|call| (*call, Vec::new())).collect();
    let masked = |argument, mask: libc::c_int, value: libc::c_int| {
        let operation = SeccompCmpOp::MaskedEq(mask.cast_unsigned().into());
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value.cast_unsigned().into())
    };
    let whole = |argument, value| masked(argument, -1, value);
    // A thread of this process, not a process.
    let thread = SeccompRule::new(vec![masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?])?;
    rules.insert(libc::SYS_clone, vec![thread]);
    rules.insert(libc::SYS_clone3, Vec::new());
    // What an open file is, not what lies at a path.
    for (call, flags) in [(libc::SYS_newfstatat, 3), (libc::SYS_statx, 2)] {
        rules.insert(call, vec![SeccompRule::new(vec![masked(flags, libc::AT_EMPTY_PATH, libc::AT_EMPTY_PATH)?])?]);
    }
    let name = SeccompRule::new(vec![whole(0, libc::PR_SET_NAME)?])?;
    rules.insert(libc::SYS_prctl, vec![name]);
    // Whether a socket blocks. Not the terminal: what is typed there can be forged.
    let nonblocking = SeccompRule::new(vec![whole(1, libc::FIONBIO as libc::c_int)?])?;
    rules.insert(libc::SYS_ioctl, vec![nonblocking]);
    // A datagram to the service manager: ready, stopping.
    let kind = masked(1, 0xf, libc::SOCK_DGRAM)?;
    let mut sockets = vec![SeccompRule::new(vec![whole(0, libc::AF_UNIX)?, kind])?];
    if network == Network::Dial {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let kind = masked(1, 0xf, libc::SOCK_STREAM)?;
            sockets.push(SeccompRule::new(vec![whole(0, family)?, kind, whole(2, libc::IPPROTO_TCP)?])?);
        }
        // From one of the addresses that it listens at.
        rules.extend([libc::SYS_bind, libc::SYS_connect].map(|call| (call, Vec::new())));
    }
    rules.insert(libc::SYS_socket, sockets);
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture()?)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_fits_the_kernel() {
        for program in [program(Network::AsOpened), program(Network::Dial), without_clone3()] {
            let program = program.expect("it compiles");
            assert!(program.len() < 4096, "{}", program.len());
        }
    }
}
