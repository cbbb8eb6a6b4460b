//! One end each of the RTP of many calls, and what reaches it of the other ends.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// What G.711 in packets of 20 ms makes.
const TICK: Duration = Duration::from_millis(20);
const PACKET_LEN: usize = 172;

/// What was heard of one stream since this was last asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heard {
    pub(crate) packets: u64,
    /// Sequence numbers that were left out.
    pub(crate) lost: u64,
    /// The longest time without a packet.
    pub(crate) silence: Duration,
    /// Where the last one came from.
    pub(crate) from: Option<SocketAddr>,
    at: Instant,
    next: Option<u16>,
}

/// Speaks as many streams as it was given, all at once, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Voices {
    heard: Arc<Mutex<Vec<Heard>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Voices {
    /// Each says 50 packets a second from its socket to its address.
    pub(crate) fn start(ends: Vec<(UdpSocket, SocketAddr)>) -> Self {
        let nothing =
            Heard { packets: 0, lost: 0, silence: Duration::ZERO, from: None, at: Instant::now(), next: None };
        let heard = Arc::new(Mutex::new(vec![nothing; ends.len()]));
        let stop = Arc::<AtomicBool>::default();
        let (noted, flag) = (Arc::clone(&heard), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            for (socket, _) in &ends {
                socket.set_nonblocking(true).expect("a socket");
            }
            let (mut number, mut next) = (0_u16, Instant::now());
            while !flag.load(Ordering::Relaxed) {
                for ((socket, to), heard) in ends.iter().zip(0..) {
                    // While nothing passes the kernel may report an unreachable peer; the stream goes on.
                    let _ = socket.send_to(&packet(number, heard), to);
                }
                number = number.wrapping_add(1);
                for ((socket, _), heard) in ends.iter().zip(noted.lock().expect("not poisoned").iter_mut()) {
                    heard.take(socket);
                }
                next += TICK;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        Self { heard, stop, thread: Some(thread) }
    }

    /// What each has heard since this was last asked. A silence that lasts counts.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        let now = Instant::now();
        let mut heard = self.heard.lock().expect("not poisoned");
        let told = heard.iter().map(|heard| {
            let silence = heard.silence.max(now.saturating_duration_since(heard.at));
            Heard { silence, ..*heard }
        });
        let told = told.collect();
        for heard in heard.iter_mut() {
            (heard.packets, heard.lost, heard.silence, heard.from) = (0, 0, Duration::ZERO, None);
        }
        told
    }
}

impl Drop for Voices {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Heard {
    fn take(&mut self, socket: &UdpSocket) {
        let mut bytes = [0; 2_048];
        loop {
            match socket.recv_from(&mut bytes) {
                Ok((len, from)) => self.note(&bytes[..len], from),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // What the kernel reports of a packet that was sent.
                Err(_) => {}
            }
        }
    }

    fn note(&mut self, bytes: &[u8], from: SocketAddr) {
        let Some(number) = bytes.get(2..4).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]])) else { return };
        let now = Instant::now();
        let ahead = self.next.map_or(0, |next| number.wrapping_sub(next));
        self.lost += u64::from(ahead) * u64::from(ahead < 1 << 15);
        self.next = Some(number.wrapping_add(1));
        self.packets += 1;
        self.silence = self.silence.max(now - self.at);
        (self.from, self.at) = (Some(from), now);
    }
}

/// RFC 3550 section 5.1, and silence.
fn packet(number: u16, ssrc: u32) -> [u8; PACKET_LEN] {
    let mut packet = [0xff; PACKET_LEN];
    packet[..2].copy_from_slice(&[0x80, 0]);
    packet[2..4].copy_from_slice(&number.to_be_bytes());
    packet[4..8].copy_from_slice(&(u32::from(number) * 160).to_be_bytes());
    packet[8..12].copy_from_slice(&ssrc.to_be_bytes());
    packet
}
