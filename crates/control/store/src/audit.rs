//! The audit log: who signed in or failed, which grants opened and ended, which calls there were, and what operators changed. One JSON object a
//! line, in files that never grow beyond their bounds, and in the node's own log.
//!
//! What strangers cause goes to a file of its own at a bounded rate, so that nobody who fails to sign in pushes out a line
//! about somebody who did. A line that cannot be written stops nothing: it raises an alarm.

mod files;

use std::{
    borrow::Cow,
    net::IpAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, SystemTime},
};

use serde::Serialize;
use sluicegate_wire::{Instant, Pace};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use files::Rotating;

/// Lines that wait for the disk. Those about failures may take half of the places.
const WAITING_MAX: u64 = 1_024;
/// How long the end of a process waits for its last lines.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

/// Where the log is and how large it may become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Its directory, made with mode 0700 if missing.
    pub directory: PathBuf,
    /// Largest size of a file in bytes.
    pub bytes_max: u64,
    /// Older files kept of each kind, at most [`Options::KEEP_MAX`].
    pub keep: u8,
    /// Whether calls are logged too: by a frontend alone.
    pub calls: bool,
}

impl Options {
    /// Most older files of each kind: each is a file descriptor of the process.
    pub const KEEP_MAX: u8 = 32;

    /// The log in this directory, with the default of every other field.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), bytes_max: 8_000_000, keep: 7, calls: false }
    }
}

/// The audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log {}: {source}; check that its directory belongs to the user that runs this, or set [audit] directory", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: std::io::Error,
}

/// Something worth a line. No secret is in any of them, and each name is one that the policy takes for a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Somebody proved to be a user, and may use the service.
    SignedIn(Attempt),
    /// Somebody proved to be a user, and may not use the service.
    SignInDenied(Attempt),
    /// Somebody did not prove to be the user that was named.
    SignInFailed(Attempt),
    /// A gate opened a grant.
    GrantOpened(Grant),
    /// A gate prolonged a grant.
    GrantRenewed(Grant),
    /// A grant ended.
    GrantEnded {
        /// What ended.
        #[serde(flatten)]
        grant: Grant,
        /// `expired`, `spent`, `revoked` or `goodbye`.
        cause: &'static str,
        /// What it used.
        bytes_used: u64,
    },
    /// A call is over, or came to nothing.
    CallEnded(Box<Call>),
    /// A gate used its join token.
    GateJoined {
        /// Where it dialled from.
        address: IpAddr,
        /// Its name.
        gate: String,
    },
    /// An operator changed something.
    Changed {
        /// User id of the process that asked for it.
        uid: u32,
        /// The verb, as it is typed.
        change: &'static str,
        /// What was changed.
        of: String,
    },
}

/// An attempt to sign in, as the log describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The address, proved by a nonce that was sent there.
    pub address: IpAddr,
    /// The UDP port.
    pub port: u16,
    /// The name that was claimed; proved, unless the sign-in failed.
    pub user: String,
    /// For what.
    pub service: String,
    /// Why it was refused, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A grant as the log describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// Its id.
    pub grant: String,
    /// The client's address.
    pub address: IpAddr,
    /// Whose it is.
    pub user: String,
    /// What it opens.
    pub service: String,
    /// The IP protocol and the service's ports.
    pub protocol: u8,
    /// First and last port of the service.
    pub ports: (u16, u16),
    /// The gate that holds it.
    pub gate: String,
    /// Its budget.
    pub bytes_max: u64,
}

/// A call as the log describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Call {
    /// What the ids of its grants begin with; empty if it was refused before it had any.
    pub call: String,
    /// Its Call-ID, as far as it is known.
    pub call_id: String,
    /// The user.
    pub user: String,
    /// The service.
    pub service: String,
    /// Who of the two called.
    pub caller: Cow<'static, str>,
    /// Where the user was.
    pub address: IpAddr,
    /// The port there; 0 if it is not known.
    pub port: u16,
    /// When it began, in Unix seconds.
    pub began_unix: u64,
    /// How long it took until it was answered; `null` if it was not, or before a restart.
    pub setup_ms: Option<u64>,
    /// How long it lasted from then on.
    pub duration_s: Option<u64>,
    /// What its grants let through towards the service, as far as gates have said.
    pub bytes_to_service: u64,
    /// Why it ended.
    pub ended: Cow<'static, str>,
    /// By whom.
    pub by: Cow<'static, str>,
    /// The status that was answered, if it came to nothing.
    pub status: Option<u16>,
}

/// Kinds of lines that are limited together.
#[derive(Debug, Clone, Copy)]
enum Class {
    Failed,
    SignIn,
    Grant,
    Call,
    Change,
}

impl Event {
    const fn class(&self) -> Class {
        match self {
            Self::SignInFailed(_) => Class::Failed,
            Self::SignedIn(_) | Self::SignInDenied(_) => Class::SignIn,
            Self::GrantOpened(_) | Self::GrantRenewed(_) | Self::GrantEnded { .. } => Class::Grant,
            Self::CallEnded(_) => Class::Call,
            Self::GateJoined { .. } | Self::Changed { .. } => Class::Change,
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    event: &'a Event,
    /// Lines of this kind since the last one that were left out.
    #[serde(skip_serializing_if = "is_none")]
    left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_none(count: &u64) -> bool {
    *count == 0
}

/// The files, open, before anything is written: the moment for a process to give up its rights.
#[derive(Debug)]
pub struct Files {
    audit: Rotating,
    failed: Rotating,
    calls: Option<Rotating>,
}

impl Files {
    /// Opens all files of the log, which may be used by several processes of a node at once.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn open(options: &Options) -> Result<Self, AuditError> {
        let open = |name| Rotating::open(options, name).map_err(|(path, source)| AuditError { path, source });
        let calls = options.calls.then(|| open("calls.log")).transpose()?;
        Ok(Self { audit: open("audit.log")?, failed: open("failed.log")?, calls })
    }

    /// Starts the thread that writes them.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(self) -> std::io::Result<Audit> {
        let (lines, waiting) = sync_channel(WAITING_MAX as usize);
        let inner = Arc::new(Inner {
            lines,
            started: std::time::Instant::now(),
            // Strangers cause the first; the others cost a password, a grant or the operator's socket.
            paces: [20, 200, 500, 500, 1_000].map(Pace::per_second),
            shown: Pace::per_second(2),
            waiting: AtomicU64::new(0),
            error: Mutex::new(None),
        });
        let writer = Arc::clone(&inner);
        thread::Builder::new().name("audit".to_owned()).spawn(move || self.write(&writer, &waiting))?;
        Ok(Audit { inner })
    }

    fn write(mut self, inner: &Inner, waiting: &Receiver<Said>) {
        // Ends with the process: this thread holds the other end of the queue too.
        while let Ok(said) = waiting.recv() {
            match said {
                Said::Line(class, line) => {
                    inner.waiting.fetch_sub(1, Ordering::Relaxed);
                    let file = match class {
                        Class::Failed => Some(&mut self.failed),
                        Class::Call => self.calls.as_mut(),
                        _ => Some(&mut self.audit),
                    };
                    let appended = file.map_or(Ok(()), |file| file.append(&line));
                    inner.note(appended.err().map(|error| error.to_string()));
                }
                Said::Flush(done) => drop(done),
            }
        }
    }
}

enum Said {
    Line(Class, Vec<u8>),
    /// Dropped once everything before it is written.
    Flush(SyncSender<()>),
}

struct Inner {
    lines: SyncSender<Said>,
    started: std::time::Instant,
    /// By [`Class`].
    paces: [Pace; 5],
    /// Failures in the node's own log.
    shown: Pace,
    waiting: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Inner {
    fn note(&self, error: Option<String>) {
        let mut known = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = error.as_ref().filter(|_| known.is_none()) {
            tracing::error!(error, "the audit log is not written; its lines are in this log alone until it is again");
        }
        *known = error;
    }
}

/// The log of a running process. Cheap to clone; never waits for the disk.
#[derive(Clone)]
pub struct Audit {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("error", &self.error()).finish_non_exhaustive()
    }
}

impl Audit {
    /// Writes a line, unless too many of its kind came in this second: those are counted, and the next line says so.
    /// `left_out`: how many the caller left out already.
    pub fn write(&self, event: &Event, left_out: u64) {
        let (inner, class) = (&self.inner, event.class());
        let elapsed = u64::try_from(inner.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (now, pace) = (Instant::from_nanos(elapsed), &inner.paces[class as usize]);
        let Some(more) = pace.admit(now) else { return pace.left_out(left_out) };
        let left_out = left_out + more;
        let time = OffsetDateTime::from(SystemTime::now()).format(&Rfc3339).unwrap_or_default();
        let Ok(mut line) = serde_json::to_vec(&Line { time, event, left_out }) else { return };
        if !matches!(class, Class::Failed) || inner.shown.admit(now).is_some() {
            tracing::info!(audit = %String::from_utf8_lossy(&line), "audit");
        }
        line.push(b'\n');
        let places = if matches!(class, Class::Failed) { WAITING_MAX / 2 } else { WAITING_MAX };
        if inner.waiting.fetch_add(1, Ordering::Relaxed) >= places {
            inner.waiting.fetch_sub(1, Ordering::Relaxed);
            return pace.left_out(left_out + 1);
        }
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            inner.lines.try_send(Said::Line(class, line))
        {
            inner.waiting.fetch_sub(1, Ordering::Relaxed);
            pace.left_out(left_out + 1);
        }
    }

    /// Why lines are not written now, for an alarm.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.inner.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits, but not for long, until what was said is written: for a process that ends.
    pub fn flush(&self) {
        let (done, written) = sync_channel(0);
        if self.inner.lines.try_send(Said::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn sign_in(user: &str, why: Option<&str>) -> Attempt {
        let (address, why) = (IpAddr::from([192, 0, 2, 1]), why.map(str::to_owned));
        Attempt { address, port: 5060, user: user.to_owned(), service: "web".to_owned(), why }
    }

    fn failed(user: &str) -> Event {
        Event::SignInFailed(sign_in(user, Some("wrong password")))
    }

    fn change(of: &str) -> Event {
        Event::Changed { uid: 0, change: "user add", of: of.to_owned() }
    }

    fn lines(path: &Path) -> Vec<String> {
        fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_flood_of_failures_is_counted_and_hides_no_change() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Files::open(&Options::new(directory.path())).unwrap().start().unwrap();
        for _ in 0..5_000 {
            audit.write(&failed("alice"), 0);
        }
        audit.write(&change("bob"), 0);
        audit.flush();
        let failures = lines(&directory.path().join("failed.log"));
        assert!((1..=60).contains(&failures.len()), "{}", failures.len());
        let changes = lines(&directory.path().join("audit.log"));
        assert_eq!(changes.len(), 1);
        assert!(changes[0].ends_with(r#""event":"changed","uid":0,"change":"user add","of":"bob"}"#), "{changes:?}");
        thread::sleep(Duration::from_millis(1_050));
        audit.write(&failed("alice"), 3);
        audit.flush();
        let last = lines(&directory.path().join("failed.log")).pop().unwrap();
        assert!(last.contains(r#""left_out":49"#) && last.starts_with(r#"{"time":"2"#), "{last}");
    }

    #[test]
    fn a_line_about_a_sign_in_says_why_only_if_it_was_refused() {
        let who = r#""address":"192.0.2.1","port":5060,"user":"alice","service":"web""#;
        for (event, line) in [
            (Event::SignedIn(sign_in("alice", None)), format!(r#"{{"event":"signed_in",{who}}}"#)),
            (
                Event::SignInDenied(sign_in("alice", Some("no"))),
                format!(r#"{{"event":"sign_in_denied",{who},"why":"no"}}"#),
            ),
            (failed("alice"), format!(r#"{{"event":"sign_in_failed",{who},"why":"wrong password"}}"#)),
        ] {
            assert_eq!(serde_json::to_string(&event).unwrap(), line);
        }
    }

    #[test]
    fn nothing_that_a_name_holds_breaks_a_line() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Files::open(&Options::new(directory.path())).unwrap().start().unwrap();
        audit.write(&failed("a\"}\n{\"event\":\"signed_in\",\"x\":\"\u{1b}[2J"), 0);
        audit.flush();
        let lines = lines(&directory.path().join("failed.log"));
        assert!(lines.len() == 1 && !lines[0].contains('\u{1b}'), "{lines:?}");
    }
}
