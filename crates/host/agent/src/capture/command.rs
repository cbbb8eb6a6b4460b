//! One command in the captured namespace, tied to the life of the agent.

use std::{
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, kill},
    },
    unistd::{Pid, getpid, getppid},
};

/// The hidden verb that becomes the command.
pub const CHILD_VERB: &str = "agent-child";
/// Exit status where the command cannot be started, as shells have it.
const CANNOT_RUN: i32 = 127;
/// What shells add to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;
/// How long a command may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts the command from the calling thread: in its network namespace, and killed when the thread ends.
pub(super) fn start(words: &[String]) -> io::Result<Child> {
    Command::new("/proc/self/exe").arg(CHILD_VERB).arg(getpid().to_string()).arg("--").args(words).spawn()
}

/// Becomes the command, after asking the kernel to end it with the agent, whose process id is `agent`. Returns only if
/// that fails: with the exit status.
#[must_use]
pub fn become_child(agent: i32, words: &[String]) -> i32 {
    let Some((program, arguments)) = words.split_first() else { return CANNOT_RUN };
    if set_pdeathsig(Signal::SIGKILL).is_err() || getppid() != Pid::from_raw(agent) {
        // The agent has ended already.
        return CANNOT_RUN;
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("sluicegate: cannot run {program}: {error}");
    CANNOT_RUN
}

/// Waits for the command's end; once `shutdown` resolves, tells it to end. Returns its exit status as a shell would.
pub(super) async fn finish(mut child: Child, shutdown: impl Future<Output = ()>) -> io::Result<i32> {
    let pid = Pid::from_raw(child.id().cast_signed());
    let mut ended = tokio::task::spawn_blocking(move || child.wait());
    let status = tokio::select! {
        status = &mut ended => status,
        () = shutdown => {
            let _ = kill(pid, Signal::SIGTERM);
            match tokio::time::timeout(PATIENCE, &mut ended).await {
                Ok(status) => status,
                Err(_) => {
                    let _ = kill(pid, Signal::SIGKILL);
                    ended.await
                }
            }
        }
    };
    status.map_err(io::Error::other)?.map(code)
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| BY_SIGNAL + signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_status_is_that_of_a_shell() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(15)), 143);
    }
}
