//! Processes of a lab: their output as lines, ended with their owner.

use std::{
    fmt, io,
    io::{BufRead, BufReader, Read},
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use serde_json::Value;

use crate::LabError;

/// Longest line of a child that is kept, in bytes; the rest is thrown away.
const LINE_MAX: u64 = 1 << 20;
/// Lines of a child that wait for their reader; the child blocks when nobody reads.
const LINES_MAX: usize = 4_096;
/// How long a child may take to end after SIGTERM before it is killed.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);

/// A running child process. Dropping it ends it.
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Process {
    /// Starts `command` by `start`, with its standard input and output held by the lab.
    ///
    /// # Errors
    /// What `start` returned, or that the thread that reads its output cannot be made.
    pub fn start(
        name: &str,
        mut command: Command,
        start: impl FnOnce(Command) -> io::Result<Child>,
    ) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = start(command)?;
        let stdin = child.stdin.take();
        let (sender, lines) = mpsc::sync_channel(LINES_MAX);
        if let Some(stdout) = child.stdout.take() {
            thread::Builder::new().name(format!("output of {name}")).spawn(move || read_lines(stdout, &sender))?;
        }
        Ok(Self { name: name.to_owned(), child, stdin, lines })
    }

    /// The name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its standard output; `None` when it closed its output or `timeout` passed.
    pub fn line(&self, timeout: Duration) -> Option<String> {
        self.lines.recv_timeout(timeout).ok()
    }

    /// A line that has already arrived.
    pub fn line_now(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Waits for the JSON line whose `event` is `event`; other lines before it are dropped.
    ///
    /// # Errors
    /// [`LabError::Process`] if it does not come within `timeout`.
    pub fn event(&self, event: &str, timeout: Duration) -> Result<Value, LabError> {
        let end = Instant::now() + timeout;
        while let Some(line) = self.line(end.saturating_duration_since(Instant::now())) {
            match serde_json::from_str::<Value>(&line) {
                Ok(value) if value["event"] == event => return Ok(value),
                _ => {}
            }
        }
        Err(self.failed(&format!("did not say `{event}` within {timeout:?}")))
    }

    /// Closes its standard input: a lab worker then stops and prints its result.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the child has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(self.nix_pid(), signal)?)
    }

    /// Waits until it ends by itself: whether its exit status was 0.
    ///
    /// # Errors
    /// [`LabError::Process`] if it still runs after `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, LabError> {
        let end = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Ok(None) if Instant::now() < end => thread::sleep(POLL),
                Ok(None) => return Err(self.failed(&format!("still runs after {timeout:?}"))),
                Err(error) => return Err(self.failed(&error.to_string())),
            }
        }
    }

    /// Ends it: SIGTERM, and SIGKILL if it has not gone two seconds later.
    pub fn end(&mut self) {
        let _ = self.signal(Signal::SIGTERM);
        if self.wait(PATIENCE).is_err() {
            self.kill();
        }
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// An error about it.
    #[must_use]
    pub fn failed(&self, reason: &str) -> LabError {
        LabError::process(&self.name, reason)
    }

    fn nix_pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("name", &self.name).field("pid", &self.child.id()).finish_non_exhaustive()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

fn read_lines(stdout: impl Read, lines: &mpsc::SyncSender<String>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if lines.send(text).is_err() {
                    return;
                }
            }
        }
    }
}

/// Asks the kernel to kill this process when the thread that started it ends: a lab leaves nothing behind, not even
/// when it is killed itself.
///
/// # Errors
/// [`LabError::Process`] if that thread is gone already.
pub fn die_with_the_lab() -> Result<(), LabError> {
    set_pdeathsig(Signal::SIGKILL).map_err(|error| LabError::process("worker", error.to_string()))?;
    // The lab may have ended before the line above; then nobody holds the other end of standard input.
    let stdin = io::stdin();
    let mut ends = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut ends, PollTimeout::ZERO);
    match ends[0].revents() {
        Some(events) if events.contains(PollFlags::POLLHUP) => {
            Err(LabError::process("worker", "the lab that started it has ended"))
        }
        _ => Ok(()),
    }
}

/// Becomes `program`, which dies with the lab. Returns only if that fails.
#[must_use]
pub fn become_program(program: &str, arguments: &[String]) -> LabError {
    let reason = Command::new(program).args(arguments).exec().to_string();
    LabError::process(program, format!("cannot be run: {reason}"))
}
