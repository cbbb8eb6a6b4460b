//! Measures what each client sends to the service, by a capture on the service's own interface.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{ethernet::HEADER_LEN, ip::Summary};
use tokio::sync::mpsc::Sender;

/// Length of one measurement.
const WINDOW: Duration = Duration::from_millis(50);
/// Clients measured at once; whoever comes later in a window is measured in the next.
const CLIENTS_MAX: usize = 4096;

/// How much one client may send.
#[derive(Debug, Clone)]
pub struct Limit {
    /// Interface on which client traffic arrives.
    pub interface: String,
    /// Highest rate, in bits per second of IP packets.
    pub rate_bps: u64,
    /// For how long a client may exceed it.
    pub excess: Duration,
}

/// Ends the measurement when dropped.
pub(super) struct Meter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts measuring what goes to `service`; sends the address of each client that exceeds `limit`.
pub(super) fn start(limit: &Limit, service: IpAddr, abusers: Sender<IpAddr>) -> io::Result<Meter> {
    let mut socket = Socket::open(&limit.interface, &Options { frame_bytes_max: 128, ..Options::default() })?;
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, mut excesses) = (Arc::clone(&stop), Excesses::new(limit));
    let thread = thread::Builder::new().name("meter".to_owned()).spawn(move || {
        let mut window_ends = Instant::now() + WINDOW;
        while !stopped.load(Ordering::Relaxed) {
            let _ = socket.wait(window_ends.saturating_duration_since(Instant::now()));
            socket.receive(usize::MAX, &mut |frame| {
                let packet = frame.bytes.get(HEADER_LEN..).unwrap_or_default();
                // Cut to the slots of the ring, as in an error that quotes it.
                if let Ok(ip) = Summary::parse_quoted(packet)
                    && ip.dst == service
                {
                    excesses.count(ip.src, frame.wire_len.saturating_sub(HEADER_LEN) as u64);
                }
            });
            if Instant::now() >= window_ends {
                window_ends = Instant::now() + WINDOW;
                for client in excesses.end_window() {
                    // A full channel means that the same news is under way already.
                    let _ = abusers.try_send(client);
                }
            }
        }
    })?;
    Ok(Meter { stop, thread: Some(thread) })
}

/// Bytes of each client in this window, and for how many windows in a row it has exceeded the limit.
struct Excesses {
    window_bytes_max: u64,
    windows_max: u32,
    clients: HashMap<IpAddr, (u64, u32)>,
}

impl Excesses {
    fn new(limit: &Limit) -> Self {
        let window_bytes_max = limit.rate_bps.saturating_mul(WINDOW.as_millis() as u64) / 8_000;
        let windows_max = (limit.excess.as_millis() / WINDOW.as_millis()).clamp(1, 1_000) as u32;
        Self { window_bytes_max, windows_max, clients: HashMap::new() }
    }

    fn count(&mut self, client: IpAddr, bytes: u64) {
        if let Some((sum, _)) = self.clients.get_mut(&client) {
            *sum += bytes;
        } else if self.clients.len() < CLIENTS_MAX {
            self.clients.insert(client, (bytes, 0));
        }
    }

    /// The clients that have exceeded the limit for long enough.
    fn end_window(&mut self) -> Vec<IpAddr> {
        let (bytes_max, windows_max) = (self.window_bytes_max, self.windows_max);
        let mut abusive = Vec::new();
        self.clients.retain(|client, (bytes, windows)| {
            *windows = if *bytes > bytes_max { *windows + 1 } else { 0 };
            *bytes = 0;
            if *windows >= windows_max {
                abusive.push(*client);
            }
            (1..windows_max).contains(windows)
        });
        abusive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excesses() -> Excesses {
        // 1 Mbit/s: 6,250 bytes in 50 ms; four windows.
        Excesses::new(&Limit { interface: String::new(), rate_bps: 1_000_000, excess: Duration::from_millis(200) })
    }

    #[test]
    fn only_a_lasting_excess_counts() {
        let (mut excesses, client) = (excesses(), "192.0.2.1".parse().unwrap());
        for (window, bytes) in [7_000, 7_000, 7_000, 6_000, 7_000, 7_000, 7_000].into_iter().enumerate() {
            excesses.count(client, bytes);
            assert!(excesses.end_window().is_empty(), "window {window}");
        }
        excesses.count(client, 7_000);
        assert_eq!(excesses.end_window(), [client]);
    }

    #[test]
    fn a_full_table_measures_no_one_new_until_the_next_window() {
        let mut excesses = excesses();
        for number in 0..CLIENTS_MAX as u32 + 10 {
            excesses.count(IpAddr::V4(number.into()), 1);
        }
        assert_eq!(excesses.clients.len(), CLIENTS_MAX);
        excesses.end_window();
        assert!(excesses.clients.is_empty());
    }
}
