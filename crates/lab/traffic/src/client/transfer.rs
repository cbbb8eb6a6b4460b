//! Small HTTP transfers with a deadline, and the server for them.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::sample::Percentiles;
use sluicegate_site::{
    During, LabError, Prefix,
    clock::{Pacer, unix_ns},
    worker::Context,
};

/// Connections of the server, and transfers of the client, at one time.
const PARALLEL_MAX: usize = 256;
const REQUEST_MAX: u64 = 8_192;
const HEADER_MAX: u64 = 8_192;
const BODY_MAX: u64 = 1 << 24;

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

/// Specification of the worker `serve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeSpec {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// How long to serve.
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

/// The transfer in a line of the worker `transfer`, if it is one.
#[must_use]
pub fn parse_line(line: &str) -> Option<Transfer> {
    let value: Value = serde_json::from_str(line).ok()?;
    (value["event"] == "transfer").then(|| serde_json::from_value(value).ok())?
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
            let from = spec.from.map(|prefix| prefix.nth(number));
            number += 1;
            let (running, counts) = (&running, &counts);
            scope.spawn(move || {
                let one = run_one(spec, from);
                counts[usize::from(one.error.is_some())].fetch_add(1, Ordering::Relaxed);
                let mut line = json!(one);
                line["event"] = json!("transfer");
                context.print(&line);
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
    let error = stream.and_then(|mut stream| fetch(spec, &mut stream, deadline).inspect_err(|_| abort(&stream))).err();
    Transfer { started_ns, ms: ms(), connect_ms, error: error.map(|error| error.to_string()) }
}

/// Has the kernel forget a connection that was given up: it would go on to send what is left, for minutes.
fn abort(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

fn fetch(spec: &TransferSpec, stream: &mut TcpStream, deadline: Instant) -> io::Result<()> {
    let (method, asked, sent) = if spec.upload { ("POST", 0, spec.bytes) } else { ("GET", spec.bytes, 0) };
    let request =
        format!("{method} /{asked} HTTP/1.0\r\nHost: {}\r\nContent-Length: {sent}\r\n\r\n", spec.to).into_bytes();
    let body = io::repeat(b'x').take(sent.into());
    write_until(stream, &mut request.chain(body), deadline)?;
    let mut reader = BufReader::new(Deadlined { stream, deadline });
    let mut header = Vec::new();
    loop {
        let before = header.len();
        (&mut reader).take(HEADER_MAX).read_until(b'\n', &mut header)?;
        match &header[before..] {
            b"\r\n" => break,
            [] => return Err(ErrorKind::UnexpectedEof.into()),
            _ if header.len() as u64 > HEADER_MAX => return Err(ErrorKind::InvalidData.into()),
            _ => {}
        }
    }
    if !header.starts_with(b"HTTP/1.0 200 ") && !header.starts_with(b"HTTP/1.1 200 ") {
        return Err(io::Error::new(ErrorKind::InvalidData, "the server did not answer 200"));
    }
    let body = io::copy(&mut reader, &mut io::sink())?;
    if body == u64::from(asked) {
        Ok(())
    } else {
        Err(io::Error::new(ErrorKind::UnexpectedEof, format!("{body} bytes came")))
    }
}

/// Writes all of `from`; fails when the deadline passes.
fn write_until(stream: &mut TcpStream, from: &mut impl Read, deadline: Instant) -> io::Result<()> {
    let mut piece = [0; 4_096];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            len => {
                stream.set_write_timeout(Some(left(deadline)?))?;
                stream.write_all(&piece[..len])?;
            }
        }
    }
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

/// A stream whose reads together end at a deadline.
struct Deadlined<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Deadlined<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        let mut stream = self.stream;
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(io::Error::new(ErrorKind::TimedOut, "the deadline passed"))
            }
            other => other,
        }
    }
}

/// Runs the worker `serve`: answers `GET /N` with N bytes (at most 16 MiB), and `POST` once its body has come.
pub(crate) fn serve(spec: &ServeSpec, context: &Context) -> Result<(), LabError> {
    let listeners: Vec<_> = spec
        .listen
        .iter()
        .map(|address| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })
        .collect::<io::Result<_>>()
        .during(|| format!("listening on {:?}", spec.listen))?;
    context.ready();
    let running = Arc::new(AtomicUsize::new(0));
    let mut served = 0u64;
    let end = Instant::now() + Duration::from_secs(spec.seconds.into());
    while Instant::now() < end && !context.stopped() {
        let mut idle = true;
        for listener in &listeners {
            let Ok((stream, _)) = listener.accept() else { continue };
            idle = false;
            if running.load(Ordering::Relaxed) >= PARALLEL_MAX {
                continue;
            }
            served += 1;
            running.fetch_add(1, Ordering::Relaxed);
            let running = Arc::clone(&running);
            thread::spawn(move || {
                let _ = answer(&stream);
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        if idle {
            thread::sleep(Duration::from_millis(1));
        }
    }
    context.result(&json!({ "connections": served }));
    Ok(())
}

fn answer(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream);
    let mut head = (&mut reader).take(REQUEST_MAX);
    let mut first = String::new();
    head.read_line(&mut first)?;
    let mut line = String::new();
    let mut body = 0;
    while head.read_line(&mut line)? > 0 && line != "\r\n" {
        if let Some(len) = line.strip_prefix("Content-Length: ") {
            body = len.trim().parse::<u64>().unwrap_or(0).min(BODY_MAX);
        }
        line.clear();
    }
    io::copy(&mut reader.take(body), &mut io::sink())?;
    let wanted = first.split(' ').nth(1).and_then(|path| path.trim_start_matches('/').parse::<u32>().ok());
    let bytes = u64::from(wanted.unwrap_or(0)).min(BODY_MAX);
    let status = if wanted.is_some() { "200 OK" } else { "404 Not Found" };
    let mut out = stream;
    write!(out, "HTTP/1.0 {status}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n")?;
    io::copy(&mut io::repeat(b'x').take(bytes), &mut out)?;
    Ok(())
}
