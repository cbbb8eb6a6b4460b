//! Small transfers with a deadline.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::haul::{self, Order};
use crate::sample::Percentiles;
use sluicegate_site::{
    LabError, Prefix,
    clock::{Pacer, unix_ns},
    nth,
    worker::Context,
};

/// Transfers at one time.
const PARALLEL_MAX: usize = 256;

/// Specification of the worker `transfer`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferSpec {
    /// The server.
    pub to: SocketAddr,
    /// Local address, or a prefix whose addresses are used in turn; missing: any.
    #[serde(default)]
    pub from: Option<Prefix>,
    /// Bytes to ask for, or to send.
    pub bytes: u32,
    /// The client sends the bytes instead of asking for them.
    #[serde(default)]
    pub upload: bool,
    /// Time from the first SYN to the last byte.
    pub deadline_ms: u32,
    /// Transfers started a minute.
    pub per_minute: u32,
    /// Transfers at one time; what is due then is left out. 0: 256.
    #[serde(default)]
    pub parallel_max: usize,
    /// How long to start transfers.
    pub seconds: u32,
}

/// One transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Transfer {
    /// When it started, nanoseconds since 1970.
    pub started_ns: u64,
    /// How long it took, or until it failed, milliseconds.
    pub ms: u64,
    /// How long the connection took to open, milliseconds; `None` if it did not.
    #[serde(default)]
    pub connect_ms: Option<u64>,
    /// Why it failed; `None` if it did not.
    pub error: Option<String>,
}

/// What became of transfers in a window of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferSummary {
    /// Transfers started.
    pub started: u64,
    /// Those that ended in time with every byte.
    pub complete: u64,
    /// Duration of the complete ones, milliseconds.
    pub ms: Percentiles,
}

impl TransferSummary {
    /// Of the transfers started from `from_ns` until before `to_ns`.
    #[must_use]
    pub fn of(transfers: &[Transfer], from_ns: u64, to_ns: u64) -> Self {
        let started: Vec<_> = transfers.iter().filter(|one| (from_ns..to_ns).contains(&one.started_ns)).collect();
        let mut ms: Vec<_> = started.iter().filter(|one| one.error.is_none()).map(|one| one.ms).collect();
        Self { started: started.len() as u64, complete: ms.len() as u64, ms: Percentiles::of(&mut ms) }
    }
}

/// Runs the worker `transfer`: prints `{"event":"transfer","started_ns","ms","error"}` for each.
pub(crate) fn transfer(spec: &TransferSpec, context: &Context) -> Result<(), LabError> {
    context.ready();
    let running = AtomicUsize::new(0);
    let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let parallel_max = if spec.parallel_max == 0 { PARALLEL_MAX } else { spec.parallel_max.min(PARALLEL_MAX) };
    let mut pacer = Pacer::new(u64::from(spec.per_minute), 1);
    let mut number = 1;
    let end = Duration::from_secs(spec.seconds.into());
    thread::scope(|scope| {
        // The pacer counts in minutes here: its clock is fed with a sixtieth of the time.
        let start = Instant::now();
        while start.elapsed() < end && !context.stopped() {
            let sixtieth_ns = u64::try_from(start.elapsed().as_nanos() / 60).unwrap_or(u64::MAX);
            if pacer.due(sixtieth_ns) == 0 || running.load(Ordering::Relaxed) >= parallel_max {
                thread::sleep(Duration::from_millis(2));
                continue;
            }
            running.fetch_add(1, Ordering::Relaxed);
            let from = spec.from.map(|prefix| nth(prefix, number));
            number += 1;
            let (running, counts) = (&running, &counts);
            scope.spawn(move || {
                let one = run_one(spec, from);
                counts[usize::from(one.error.is_some())].fetch_add(1, Ordering::Relaxed);
                context.say("transfer", &one);
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    let [complete, failed] = counts.map(AtomicUsize::into_inner);
    context.result(&json!({ "started": complete + failed, "complete": complete }));
    Ok(())
}

fn run_one(spec: &TransferSpec, from: Option<IpAddr>) -> Transfer {
    let started_ns = unix_ns();
    let start = Instant::now();
    let ms = || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    let deadline = start + Duration::from_millis(spec.deadline_ms.into());
    let stream = connect(spec, from, deadline);
    let connect_ms = stream.is_ok().then(ms);
    let error = stream.and_then(|stream| fetch(spec, &stream, deadline).inspect_err(|_| abort(&stream))).err();
    Transfer { started_ns, ms: ms(), connect_ms, error: error.map(|error| error.to_string()) }
}

/// Has the kernel forget a connection that was given up: it would go on to send what is left, for minutes.
fn abort(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

fn fetch(spec: &TransferSpec, stream: &TcpStream, deadline: Instant) -> io::Result<()> {
    let order = Order { upload: spec.upload, bytes: spec.bytes.into(), bytes_per_s: 0 };
    let haul = haul::carry(&mut Deadlined { stream, deadline }, &order)?;
    haul.error.map_or(Ok(()), |error| Err(io::Error::new(ErrorKind::UnexpectedEof, error)))
}

fn connect(spec: &TransferSpec, from: Option<IpAddr>, deadline: Instant) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(spec.to), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(from) = from {
        socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
    }
    socket.connect_timeout(&SockAddr::from(spec.to), left(deadline)?)?;
    Ok(socket.into())
}

/// Time until `deadline`.
fn left(deadline: Instant) -> io::Result<Duration> {
    deadline
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        .ok_or_else(|| io::Error::new(ErrorKind::TimedOut, "the deadline passed"))
}

/// A stream whose reads and writes together end at a deadline.
struct Deadlined<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Deadlined<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        self.stream.read(buffer).map_err(passed)
    }
}

impl Write for Deadlined<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.deadline)?))?;
        self.stream.write(bytes).map_err(passed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A call that waited until the deadline says that it would have to wait.
fn passed(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock {
        io::Error::new(ErrorKind::TimedOut, "the deadline passed")
    } else {
        error
    }
}
