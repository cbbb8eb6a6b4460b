//! Honest traffic that shows by itself when it stops arriving.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Interval of datagrams: 100 a second.
const TICK: Duration = Duration::from_millis(10);
/// Interval of TCP records.
const RECORD_TICK: Duration = Duration::from_millis(50);
const RECORD_LEN: usize = 32;
/// How long a talk that ends waits for records that have not come back.
const LAST_RECORDS_WAIT: Duration = Duration::from_secs(2);
/// Connections of one echo service.
const CONNECTIONS_MAX: usize = 64;

/// When something arrived, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<Vec<Instant>>>);

impl Arrivals {
    fn add(&self) {
        self.0.lock().expect("not poisoned").push(Instant::now());
    }

    /// How many came since.
    pub(crate) fn since(&self, from: Instant) -> usize {
        self.0.lock().expect("not poisoned").iter().filter(|at| **at >= from).count()
    }

    /// The longest silence between `from` and now.
    pub(crate) fn longest_silence(&self, from: Instant) -> Duration {
        let now = Instant::now();
        let times = self.0.lock().expect("not poisoned");
        let after = times.iter().copied().filter(|at| *at >= from).chain([now]);
        let mut before = from;
        let gaps = after.map(|at| at.duration_since(std::mem::replace(&mut before, at)));
        gaps.max().unwrap_or_default()
    }
}

/// Ends its thread when dropped.
#[derive(Debug)]
struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        Self { stop, thread: Some(thread::spawn(move || work(&flag))) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One end of a UDP stream: sends 100 datagrams a second, and notes when datagrams arrive.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) arrivals: Arrivals,
    _worker: Worker,
}

impl Stream {
    /// Starts sending to `peer`; without one, to whoever was heard last.
    pub(crate) fn start(socket: UdpSocket, peer: Option<SocketAddr>) -> Self {
        let arrivals = Arrivals::default();
        let heard = arrivals.clone();
        let worker = Worker::start(move |stop| {
            socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
            let (mut peer, mut next, mut bytes) = (peer, Instant::now(), [0; 2048]);
            while !stop.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut bytes) {
                    heard.add();
                    peer = Some(from);
                }
                if Instant::now() >= next {
                    next += TICK;
                    if let Some(peer) = peer {
                        // While nothing passes the kernel may report an unreachable peer; the stream goes on.
                        let _ = socket.send_to(&[0x5a; 160], peer);
                    }
                }
            }
        });
        Self { arrivals, _worker: worker }
    }
}

/// A TCP service that sends back what it gets.
#[derive(Debug)]
pub(crate) struct Echo {
    _worker: Worker,
}

impl Echo {
    pub(crate) fn start(listener: TcpListener) -> Self {
        Self {
            _worker: Worker::start(move |stop| {
                listener.set_nonblocking(true).expect("a listener");
                let mut open: Vec<TcpStream> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    if let Ok((stream, _)) = listener.accept() {
                        stream.set_nonblocking(true).expect("a stream");
                        open.truncate(CONNECTIONS_MAX - 1);
                        open.push(stream);
                    }
                    open.retain_mut(echo_once);
                    thread::sleep(Duration::from_millis(2));
                }
            }),
        }
    }
}

/// Sends back what has come; whether the connection lives.
fn echo_once(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    match stream.read(&mut bytes) {
        Ok(0) => false,
        Ok(len) => stream.write_all(&bytes[..len]).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// The client of an [`Echo`]: sends a numbered record every 50 ms for as long as it lives, and notes when each comes back,
/// in order and whole.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) arrivals: Arrivals,
    broken: Arc<Mutex<Option<String>>>,
    _worker: Worker,
}

impl Talk {
    pub(crate) fn start(stream: TcpStream) -> Self {
        let (arrivals, broken) = (Arrivals::default(), Arc::new(Mutex::new(None)));
        let (heard, why) = (arrivals.clone(), Arc::clone(&broken));
        let worker = Worker::start(move |stop| {
            if let Err(error) = talk(stream, &heard, stop) {
                *why.lock().expect("not poisoned") = Some(error);
            }
        });
        Self { arrivals, broken, _worker: worker }
    }

    /// Why the connection broke, if it did.
    pub(crate) fn broken(&self) -> Option<String> {
        self.broken.lock().expect("not poisoned").clone()
    }
}

fn talk(mut stream: TcpStream, heard: &Arrivals, stop: &AtomicBool) -> Result<(), String> {
    stream.set_read_timeout(Some(Duration::from_millis(5))).map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let record = |number: u64| format!("{number:0width$}\n", width = RECORD_LEN - 1).into_bytes();
    let (mut sent, mut received, mut next) = (0_u64, 0_u64, Instant::now());
    let mut waiting: Vec<u8> = Vec::new();
    let mut stopped = None;
    loop {
        if stop.load(Ordering::Relaxed) {
            // What is still on its way is this talk's, and not the next one's on the same connection.
            let since = *stopped.get_or_insert_with(Instant::now);
            if received == sent || since.elapsed() >= LAST_RECORDS_WAIT {
                return Ok(());
            }
        } else if Instant::now() >= next {
            next += RECORD_TICK;
            stream.write_all(&record(sent)).map_err(|error| format!("sending record {sent}: {error}"))?;
            sent += 1;
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => return Err(format!("the service closed the connection after record {received}")),
            Ok(len) => waiting.extend_from_slice(&bytes[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(format!("waiting for record {received}: {error}")),
        }
        while waiting.len() >= RECORD_LEN {
            let rest = waiting.split_off(RECORD_LEN);
            if waiting != record(received) {
                return Err(format!("record {received} came back changed"));
            }
            waiting = rest;
            received += 1;
            heard.add();
        }
    }
}
