//! A child process of this binary, and the line between it and its parent.
//!
//! The child's standard input is a stream socket to the parent. Each end writes lines of JSON; secrets go this way too,
//! never through arguments or the environment. When one of the two ends, the other reads the end of the stream: then the
//! child stops, and the parent stops what needs it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt as _,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::oneshot;

/// Longest line between the two, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 16;
/// A child that was told to stop has this long before it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// Between two looks whether it has stopped.
const LOOK: Duration = Duration::from_millis(10);

/// A child, seen by its parent. Dropping it ends the child.
#[derive(Debug)]
pub(crate) struct Child {
    verb: &'static str,
    process: std::process::Child,
    line: BufReader<UnixStream>,
}

impl Child {
    /// Starts `sluicegate VERB FILE` with the log options of this process, and tells it `hello`.
    pub(crate) fn start(verb: &'static str, file: &Path, log: &[String], hello: &impl Serialize) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair().context("no socket for a child process")?;
        let process = Command::new("/proc/self/exe")
            .arg(verb)
            .arg(file)
            .args(log)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // What the terminal signals is for this process, which tells the child.
            .process_group(0)
            .spawn()
            .with_context(|| format!("the process `{verb}` cannot be started"))?;
        let mut child = Self { verb, process, line: BufReader::new(ours) };
        write_line(child.line.get_mut(), hello)?;
        Ok(child)
    }

    /// What the child says first, once it is ready.
    pub(crate) fn ready<T: DeserializeOwned>(&mut self) -> Result<T> {
        read_line(&mut self.line)?.with_context(|| format!("the process `{}` did not start; see above", self.verb))
    }

    /// Resolves when the child has ended by itself.
    pub(crate) fn ended(&self) -> Result<impl Future<Output = ()> + use<>> {
        let mut line = self.line.get_ref().try_clone().context("no second handle on a child's line")?;
        let (tell, ended) = oneshot::channel::<()>();
        // Detached: it ends with the child.
        thread::Builder::new().name("child".to_owned()).spawn(move || {
            let mut byte = [0];
            while line.read(&mut byte).is_ok_and(|len| len > 0) {}
            drop(tell);
        })?;
        Ok(async {
            let _ = ended.await;
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.line.get_ref().shutdown(std::net::Shutdown::Write);
        let end = Instant::now() + GRACE;
        while let Ok(None) = self.process.try_wait() {
            if Instant::now() >= end {
                let _ = self.process.kill();
                let _ = self.process.wait();
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

/// The parent, seen by its child.
#[derive(Debug)]
pub(crate) struct Parent {
    line: BufReader<UnixStream>,
}

impl Parent {
    /// Takes the line that the parent left as standard input, and what it says first.
    pub(crate) fn line<T: DeserializeOwned>() -> Result<(Self, T)> {
        let stdin = rustix::io::dup(std::io::stdin()).context("no standard input")?;
        let mut line = BufReader::new(UnixStream::from(stdin));
        let hello =
            read_line(&mut line)?.context("this verb is for `sluicegate up` to use; it says what to do first")?;
        Ok((Self { line }, hello))
    }

    /// Has the kernel end this process if its parent ends without a word. To be called after the last change of user,
    /// which undoes it.
    pub(super) fn die_with(&self) -> Result<()> {
        Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
    }

    /// Says that this process is ready.
    pub(crate) fn ready(&mut self, said: &impl Serialize) -> Result<()> {
        write_line(self.line.get_mut(), said)
    }

    /// Resolves when the parent wants this process to end, or has ended itself.
    pub(crate) async fn ended(self) {
        let line = self.line.into_inner();
        let stream = line.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(line));
        if let Ok(stream) = stream {
            let mut byte = [0];
            loop {
                if stream.readable().await.is_err() {
                    return;
                }
                match stream.try_read(&mut byte) {
                    Ok(0) => return,
                    Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                    _ => {}
                }
            }
        }
    }
}

fn write_line(stream: &mut UnixStream, said: &impl Serialize) -> Result<()> {
    let mut line = zeroize::Zeroizing::new(serde_json::to_vec(said)?);
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

/// The next line; `None` at the end of the stream.
fn read_line<T: DeserializeOwned>(stream: &mut BufReader<UnixStream>) -> Result<Option<T>> {
    let mut line = zeroize::Zeroizing::new(String::new());
    stream.take(LINE_BYTES_MAX).read_line(&mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if !line.ends_with('\n') {
        bail!("a line between parent and child was cut");
    }
    Ok(Some(serde_json::from_str(&line)?))
}
