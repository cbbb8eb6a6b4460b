//! TCP transfers checked byte by byte, the server for them, and one long transfer with the times in which nothing came.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, LazyLock},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;

use sluicegate_site::{During, LabError, clock::unix_ns, worker::Context};

/// Bytes of the pattern: a prime number, so that what is lost or repeated shows.
const PATTERN_LEN: usize = 65_521;
const PIECE_LEN: usize = 65_536;
/// Shorter pauses are not noted.
const PAUSE_MIN: Duration = Duration::from_millis(300);
const PAUSES_MAX: usize = 4_096;
/// How often a paced sender sends.
const PACE: Duration = Duration::from_millis(20);
/// Who is silent for so long has gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const CONNECT_MAX: Duration = Duration::from_secs(10);
const ORDER_LEN_MAX: usize = 1_024;
const HAUL_LEN_MAX: u64 = 4 << 20;
/// Connections of the server at one time; more are closed.
const PARALLEL_MAX: usize = 256;

/// Specification of the worker `haul`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HaulSpec {
    /// The server as `host:port`; a name only through a proxy.
    pub to: String,
    /// A SOCKS5 proxy to go through.
    #[serde(default)]
    pub socks: Option<SocketAddr>,
    /// What is to be transferred.
    pub order: Order,
}

/// What a client asks of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The client sends instead of receiving.
    pub upload: bool,
    /// How much.
    pub bytes: u64,
    /// The sender's pace; 0: as fast as it can.
    pub bytes_per_s: u64,
}

/// Specification of the worker `serve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeSpec {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// A client that is silent for so long has gone.
    pub silence_s: u32,
    /// How long to serve.
    pub seconds: u32,
}

/// A time in which nothing came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it began, nanoseconds since 1970.
    pub began_ns: u64,
    /// How long it was, milliseconds.
    pub ms: u64,
}

/// What became of a transfer, as its receiver saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Haul {
    /// Bytes that came, all of them right.
    pub bytes: u64,
    /// From the first to the last, milliseconds.
    pub ms: u64,
    /// The longer pauses.
    pub pauses: Vec<Pause>,
    /// Why it ended early; `None` if it did not.
    pub error: Option<String>,
}

/// Runs the worker `haul`: its result is a [`Haul`].
pub(crate) fn haul(spec: &HaulSpec, context: &Context) -> Result<(), LabError> {
    context.ready();
    let haul = transfer(spec).unwrap_or_else(|error| Haul { error: Some(error.to_string()), ..Haul::default() });
    context.result(&json!(haul));
    Ok(())
}

/// Runs the worker `serve`: does what each client orders.
pub(crate) fn serve(spec: &ServeSpec, context: &Context) -> Result<(), LabError> {
    let listen = |address: &SocketAddr| {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listeners = spec.listen.iter().map(listen).collect::<io::Result<Vec<_>>>();
    let listeners = listeners.during(|| format!("listening on {:?}", spec.listen))?;
    context.ready();
    let silence = Duration::from_secs(spec.silence_s.into());
    // One count for this thread, and one for each connection that is served.
    let (running, mut served) = (Arc::new(()), 0u64);
    let end = Instant::now() + Duration::from_secs(spec.seconds.into());
    while Instant::now() < end && !context.stopped() {
        let accepted: Vec<_> = listeners.iter().filter_map(|listener| listener.accept().ok()).collect();
        if accepted.is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        for (stream, _) in accepted {
            if Arc::strong_count(&running) > PARALLEL_MAX {
                continue;
            }
            served += 1;
            let running = Arc::clone(&running);
            thread::spawn(move || {
                let _ = answer(&stream, silence);
                drop(running);
            });
        }
    }
    context.result(&json!({ "connections": served }));
    Ok(())
}

fn transfer(spec: &HaulSpec) -> io::Result<Haul> {
    let stream = match spec.socks {
        Some(proxy) => through(proxy, &spec.to)?,
        None => {
            let to = spec.to.parse().map_err(|error| io::Error::new(ErrorKind::InvalidInput, format!("{error}")))?;
            TcpStream::connect_timeout(&to, CONNECT_MAX)?
        }
    };
    give_up_after(&stream, SILENCE_MAX)?;
    carry(&mut &stream, &spec.order)
}

/// Gives the server this order over a new connection, and sends or receives what it says. What went wrong at the receiver
/// is in the [`Haul`].
pub(super) fn carry(stream: &mut (impl Read + Write), order: &Order) -> io::Result<Haul> {
    // At once: pieces of a line would each wait for the answer to the one before.
    stream.write_all(format!("{}\n", json!(order)).as_bytes())?;
    if !order.upload {
        return Ok(receive(stream, order.bytes));
    }
    send(stream, order)?;
    let mut said = String::new();
    BufReader::new(stream).take(HAUL_LEN_MAX).read_line(&mut said)?;
    serde_json::from_str(&said).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// A connection through a SOCKS5 proxy without authentication (RFC 1928).
fn through(proxy: SocketAddr, to: &str) -> io::Result<TcpStream> {
    let wrong = || io::Error::new(ErrorKind::InvalidInput, "no host:port");
    let (host, port) = to.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let len = u8::try_from(host.len()).map_err(|_| wrong())?;
    let mut stream = TcpStream::connect_timeout(&proxy, CONNECT_MAX)?;
    give_up_after(&stream, SILENCE_MAX)?;
    stream.write_all(&[5, 1, 0])?;
    stream.read_exact(&mut [0; 2])?;
    stream.write_all(&[&[5, 1, 0, 3, len], host.as_bytes(), &port.to_be_bytes()].concat())?;
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let address_len = if head[3] == 4 { 16 } else { 4 };
    stream.read_exact(&mut [0; 18][..address_len + 2])?;
    if head[1] == 0 { Ok(stream) } else { Err(io::Error::other(format!("the proxy refuses: {}", head[1]))) }
}

fn give_up_after(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(silence))?;
    stream.set_write_timeout(Some(silence))
}

fn answer(mut stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    give_up_after(stream, silence)?;
    // One byte at a time: what follows the line is data.
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < ORDER_LEN_MAX && byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let order: Order = serde_json::from_slice(&line)?;
    if order.upload {
        let haul = receive(&mut stream, order.bytes);
        return stream.write_all(format!("{}\n", json!(haul)).as_bytes());
    }
    send(&mut stream, &order)
}

/// What is sent, twice and a piece more, so that a piece may begin anywhere in the first.
static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..PATTERN_LEN * 2 + PIECE_LEN).map(|at| ((at % PATTERN_LEN * 31) >> 3) as u8).collect());

fn send(stream: &mut impl Write, order: &Order) -> io::Result<()> {
    let (began, mut sent) = (Instant::now(), 0);
    while sent < order.bytes {
        let mut due = order.bytes - sent;
        if order.bytes_per_s > 0 {
            let elapsed_ns = began.elapsed().as_nanos() as u64;
            due = due.min((elapsed_ns / 1_000 * order.bytes_per_s / 1_000_000 + 1).saturating_sub(sent));
            if due == 0 {
                thread::sleep(PACE);
                continue;
            }
        }
        let (at, len) = (sent as usize % PATTERN_LEN, due.min(PIECE_LEN as u64) as usize);
        stream.write_all(&PATTERN[at..at + len])?;
        sent += len as u64;
    }
    Ok(())
}

/// Receives so much and says how it came; what is wrong ends it.
fn receive(stream: &mut impl Read, bytes: u64) -> Haul {
    let (began, mut buffer) = (Instant::now(), vec![0; PIECE_LEN]);
    let (mut haul, mut last) = (Haul::default(), Instant::now());
    while haul.bytes < bytes && haul.error.is_none() {
        let most = (bytes - haul.bytes).min(PIECE_LEN as u64) as usize;
        let result = stream.read(&mut buffer[..most]);
        let paused = last.elapsed();
        if paused >= PAUSE_MIN && haul.pauses.len() < PAUSES_MAX {
            let ms = paused.as_millis() as u64;
            haul.pauses.push(Pause { began_ns: unix_ns().saturating_sub(paused.as_nanos() as u64), ms });
        }
        last = Instant::now();
        match result {
            Ok(0) => haul.error = Some("the other side ended it".to_owned()),
            Ok(len) => {
                let at = haul.bytes as usize % PATTERN_LEN;
                if buffer[..len] == PATTERN[at..at + len] {
                    haul.bytes += len as u64;
                } else {
                    haul.error = Some(format!("wrong bytes behind the first {}", haul.bytes));
                }
            }
            Err(error) => haul.error = Some(error.to_string()),
        }
    }
    haul.ms = began.elapsed().as_millis() as u64;
    haul
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn serve_once() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || answer(&listener.accept().unwrap().0, SILENCE_MAX));
        address
    }

    #[test]
    fn every_byte_arrives_both_ways_and_is_looked_at() {
        for upload in [false, true] {
            let order = Order { upload, bytes: 3_000_001, bytes_per_s: 0 };
            let haul = transfer(&HaulSpec { to: serve_once().to_string(), socks: None, order }).unwrap();
            assert_eq!((haul.bytes, haul.error), (3_000_001, None));
        }
    }

    #[test]
    fn what_is_lost_on_the_way_shows() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&PATTERN[..1_000]).unwrap();
            stream.write_all(&PATTERN[1_001..2_000]).unwrap();
        });
        let haul = receive(&mut TcpStream::connect(address).unwrap(), 2_000);
        assert!(haul.error.is_some_and(|error| error.contains("wrong bytes")), "{}", haul.bytes);
    }
}
