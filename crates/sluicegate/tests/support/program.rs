//! Programs in the lab: those that run beside a test, and those that run to their end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sluicegate_site::{
    Process,
    worker::{self, ExecSpec},
};

use super::{BINARY, PATIENCE, find, lab::Lab, until};

/// Lines of a log that are shown when a test fails.
const LINES_SHOWN: usize = 60;

/// A program that runs in the background, with its output in a log file. It ends with its owner, and its log is shown
/// if the test fails.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    process: Process,
    log: PathBuf,
}

impl Program {
    /// Starts a program on a host.
    pub(crate) fn start(lab: &Lab, host: &str, name: &str, program: &str, arguments: &[&str]) -> Self {
        let path = if program.contains('/') { PathBuf::from(program) } else { find(program).expect("checked before") };
        let log = (0..)
            .map(|number| lab.path(&format!("{name}.{number}.log")))
            .find(|path| !path.exists())
            .expect("a free name");
        fs::write(&log, "").expect("the lab's directory is writable");
        // The shell gives the program its log; `exec` keeps the process, which dies with the lab.
        // Sites that agents met are remembered by lab, not by person.
        let home = lab.path("home");
        // Who runs them is told there, if somebody listens.
        let notify = lab.path("notify");
        let notify = if notify.exists() { format!("NOTIFY_SOCKET='{}' ", notify.display()) } else { String::new() };
        let script = format!("HOME='{}' {notify}exec \"$0\" \"$@\" >'{}' 2>&1", home.display(), log.display());
        let shell = ["-c", &script, path.to_str().expect("a path in UTF-8")];
        let spec = ExecSpec {
            program: "/bin/sh".to_owned(),
            arguments: shell.iter().chain(arguments).map(|text| (*text).to_owned()).collect(),
        };
        let command = worker::command(Path::new(BINARY), "exec", &spec);
        let process = lab.host(host).spawn(name, command).expect("the program starts");
        Self { name: name.to_owned(), process, log }
    }

    /// What it has written.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until it has written `text`.
    pub(crate) fn says(&self, text: &str) {
        until(&format!("{} says {text:?}", self.name), || self.log().contains(text).then_some(()));
    }

    /// Waits for its end: whether it was content.
    pub(crate) fn finished(&mut self, limit: Duration) -> bool {
        self.process.wait(limit).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Any signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal).expect("it runs");
    }

    /// SIGKILL, at once.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGTERM, and waits for its end: whether it was content.
    pub(crate) fn stop(&mut self) -> bool {
        self.process.signal(Signal::SIGTERM).expect("it runs");
        self.finished(PATIENCE)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- log of {}", self.name);
            for line in &lines[lines.len().saturating_sub(LINES_SHOWN)..] {
                eprintln!("{line}");
            }
        }
    }
}

/// What a command that ran to its end printed.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// Standard output of a command that must succeed.
    pub(crate) fn expect(self, what: &str) -> String {
        assert!(self.status.success(), "{what}: {}\n{}\n{}", self.status, self.out, self.err);
        self.out
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { status: output.status, out: text(&output.stdout), err: text(&output.stderr) }
    }
}

/// Runs a command to its end in the namespace of the calling thread.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Done {
    let shown = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{shown}: {error}"));
    let pid = Pid::from_raw(child.id().cast_signed());
    let (sender, output) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(child.wait_with_output());
    });
    match output.recv_timeout(limit) {
        Ok(output) => output.unwrap_or_else(|error| panic!("{shown}: {error}")).into(),
        Err(_) => {
            let _ = kill(pid, Signal::SIGKILL);
            let output = output.recv().expect("it ends when killed").map(Done::from);
            panic!("{shown} still ran after {limit:?}: {output:?}");
        }
    }
}

/// Runs a program to its end on a host of the lab.
pub(crate) fn run_on(lab: &Lab, host: &str, program: &str, arguments: &[&str], limit: Duration) -> Done {
    let program = find(program).unwrap_or_else(|| program.into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(lab.dir.path()).env("HOME", lab.path("home"));
    lab.host(host).run_in(|| run(&mut command, limit)).expect("the namespace can be entered")
}

/// The processes that a process has started and that run.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let lists = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}
