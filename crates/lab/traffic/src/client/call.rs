//! Calls: datagrams at a constant rate, and what arrives of them.
//!
//! Both ends print what the kernel stamped; [`Calls`] joins the two, so that loss and delay can be asked for any window
//! of time, such as a phase of the demo.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::timestamps::{DATAGRAM_MAX, receive, sent_stamp, stamp_received, stamp_sent};
use crate::{
    sample::Percentiles,
    sockets::{connected, wait_any},
};
use sluicegate_site::{
    During, LabError,
    clock::{Pacer, unix_ns},
    worker::Context,
};

const MAGIC: [u8; 8] = *b"sg-call1";
/// Magic, flow, sequence number, time of sending.
const HEADER_LEN: usize = 24;
/// Flows of one caller and sockets of one sink.
const FLOWS_MAX: usize = 256;
/// Datagrams that [`Calls`] keeps.
const RECORDS_MAX: usize = 1 << 21;
/// How often both ends print what they have.
const PRINT_EVERY: Duration = Duration::from_millis(500);

/// Specification of the worker `call`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallSpec {
    /// Where each flow goes. Flows are numbered from `first_flow`.
    pub to: Vec<SocketAddr>,
    /// Number of the first flow; must differ between callers of one lab.
    pub first_flow: u32,
    /// Local ports, one for each flow; missing or 0: any.
    #[serde(default)]
    pub from_ports: Vec<u16>,
    /// Datagrams a second of each flow.
    pub per_s: u32,
    /// Bytes of a datagram's payload.
    pub bytes: usize,
    /// How long to send.
    pub seconds: u32,
}

/// Specification of the worker `sink`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkSpec {
    /// Addresses to receive on.
    pub listen: Vec<SocketAddr>,
    /// How long to receive.
    pub seconds: u32,
}

/// One datagram of a call as one end saw it: (flow, sequence number, nanoseconds since 1970).
pub type Record = (u32, u32, u64);

/// Runs the worker `call`: prints `{"event":"sent","packets":[[flow, seq, ns], …]}` twice a second.
pub(crate) fn call(spec: &CallSpec, context: &Context) -> Result<(), LabError> {
    if spec.to.is_empty() || spec.to.len() > FLOWS_MAX || !(HEADER_LEN..=1_400).contains(&spec.bytes) {
        return Err(context.refuse(&format!("1 to {FLOWS_MAX} flows of {HEADER_LEN} to 1400 bytes are possible")));
    }
    let mut caller = Caller::open(spec).during(|| "opening the call's sockets".to_owned())?;
    context.ready();
    // One event is a datagram of every flow; a caller that was held up does not send a burst afterwards.
    let pacer = Pacer::new(spec.per_s.into(), 2);
    let mut printed = Instant::now();
    // Exactly so many, unless the machine is too slow to send them in time and a second more.
    let mut left = u64::from(spec.per_s) * u64::from(spec.seconds);
    let mut paced = context.paced(pacer, Duration::from_secs(u64::from(spec.seconds) + 1));
    while left > 0
        && let Some(due) = paced.next()
    {
        (0..due.min(left)).for_each(|_| caller.send_all());
        left -= due.min(left);
        if printed.elapsed() >= PRINT_EVERY {
            printed = Instant::now();
            caller.print(context, true);
        }
    }
    caller.print(context, false);
    context.result(&json!({ "sent": u64::from(caller.sequence) * spec.to.len() as u64, "refused": caller.refused, "stamped": caller.stamped }));
    Ok(())
}

struct Caller {
    sockets: Vec<UdpSocket>,
    first_flow: u32,
    payload: Vec<u8>,
    sequence: u32,
    /// Sent and not yet printed, by the process's own clock.
    sent: Vec<Record>,
    /// The kernel's stamps of those.
    stamps: HashMap<(u32, u32), u64>,
    /// Datagrams that the kernel did not take.
    refused: u64,
    /// Datagrams whose time of sending is the kernel's.
    stamped: u64,
}

impl Caller {
    fn open(spec: &CallSpec) -> io::Result<Self> {
        let ports = spec.from_ports.iter().copied().chain(std::iter::repeat(0));
        let open = |(to, port): (&SocketAddr, u16)| {
            let socket = connected(*to, port)?;
            stamp_sent(&socket)?;
            Ok(socket)
        };
        let mut payload = vec![0; spec.bytes];
        payload[..8].copy_from_slice(&MAGIC);
        Ok(Self {
            sockets: spec.to.iter().zip(ports).map(open).collect::<io::Result<_>>()?,
            first_flow: spec.first_flow,
            payload,
            sequence: 0,
            sent: Vec::new(),
            stamps: HashMap::new(),
            refused: 0,
            stamped: 0,
        })
    }

    fn send_all(&mut self) {
        for (flow, socket) in (self.first_flow..).zip(&self.sockets) {
            let now = unix_ns();
            write_header(&mut self.payload, (flow, self.sequence, now));
            // Refused here is lost on the way, as for any real-time sender.
            self.refused += u64::from(socket.send(&self.payload).is_err());
            self.sent.push((flow, self.sequence, now));
        }
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Prints what was sent with the kernel's stamps; keeps the newest second back if more is to come.
    fn print(&mut self, context: &Context, more: bool) {
        let mut buffer = [0; DATAGRAM_MAX];
        for socket in &self.sockets {
            while let Ok(Some(own)) = sent_stamp(socket, &mut buffer) {
                // The kernel returns the whole frame; the payload is its end.
                let payload = own.len.checked_sub(self.payload.len()).and_then(|start| buffer.get(start..own.len));
                if let (Some((flow, sequence, _)), Some(at)) = (payload.and_then(read_header), own.at_ns) {
                    self.stamps.insert((flow, sequence), at);
                    self.stamped += 1;
                }
            }
            while let Ok(Some(_)) = receive(socket, &mut buffer) {}
        }
        let keep_from = if more { unix_ns().saturating_sub(1_000_000_000) } else { u64::MAX };
        let ready = self.sent.partition_point(|record| record.2 < keep_from);
        let packets: Vec<Record> = self
            .sent
            .drain(..ready)
            .map(|(flow, sequence, own)| (flow, sequence, self.stamps.remove(&(flow, sequence)).unwrap_or(own)))
            .collect();
        context.print(&json!({ "event": "sent", "packets": packets }));
    }
}

/// Runs the worker `sink`: prints `{"event":"received","packets":[[flow, seq, ns], …],"others":n}` twice a second.
pub(crate) fn sink(spec: &SinkSpec, context: &Context) -> Result<(), LabError> {
    if spec.listen.is_empty() || spec.listen.len() > FLOWS_MAX {
        return Err(context.refuse(&format!("1 to {FLOWS_MAX} addresses are possible")));
    }
    let open = |address: &SocketAddr| {
        let socket = UdpSocket::bind(address)?;
        stamp_received(&socket)?;
        Ok(socket)
    };
    let sockets: Vec<_> =
        spec.listen.iter().map(open).collect::<io::Result<_>>().during(|| format!("opening {:?}", spec.listen))?;
    context.ready();
    let end = Instant::now() + Duration::from_secs(spec.seconds.into());
    let mut tally = Tally::default();
    let mut printed = Instant::now();
    while Instant::now() < end && !context.stopped() {
        wait_any(&sockets, Duration::from_millis(100)).during(|| "waiting for datagrams".to_owned())?;
        sockets.iter().for_each(|socket| tally.drain(socket));
        if printed.elapsed() >= PRINT_EVERY {
            printed = Instant::now();
            tally.print(context);
        }
    }
    tally.print(context);
    context.result(
        &json!({ "received": tally.received_all, "others": tally.others_all, "other_bytes": tally.other_bytes_all }),
    );
    Ok(())
}

#[derive(Default)]
struct Tally {
    received: Vec<Record>,
    others: u64,
    received_all: u64,
    others_all: u64,
    other_bytes_all: u64,
}

impl Tally {
    fn drain(&mut self, socket: &UdpSocket) {
        let mut buffer = [0; DATAGRAM_MAX];
        while let Ok(Some(datagram)) = receive(socket, &mut buffer) {
            let payload = buffer.get(..datagram.len).unwrap_or_default();
            let Some((flow, sequence, _)) = read_header(payload) else {
                self.others += 1;
                self.others_all += 1;
                self.other_bytes_all += datagram.len as u64;
                continue;
            };
            self.received.push((flow, sequence, datagram.at_ns.unwrap_or_else(unix_ns)));
            self.received_all += 1;
        }
    }

    fn print(&mut self, context: &Context) {
        context.print(&json!({ "event": "received", "packets": self.received, "others": self.others }));
        self.received.clear();
        self.others = 0;
    }
}

fn write_header(payload: &mut [u8], (flow, sequence, at): Record) {
    payload[8..12].copy_from_slice(&flow.to_be_bytes());
    payload[12..16].copy_from_slice(&sequence.to_be_bytes());
    payload[16..24].copy_from_slice(&at.to_be_bytes());
}

fn read_header(payload: &[u8]) -> Option<Record> {
    let rest = payload.strip_prefix(&MAGIC)?;
    let (flow, rest) = rest.split_first_chunk::<4>()?;
    let (sequence, rest) = rest.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*flow), u32::from_be_bytes(*sequence), u64::from_be_bytes(*rest.first_chunk()?)))
}

/// What became of calls in a window of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CallSummary {
    /// Datagrams sent in the window.
    pub sent: u64,
    /// Those of them that arrived, whenever.
    pub received: u64,
    /// Those that arrived more than once.
    pub duplicates: u64,
    /// Lost share, 0 to 1; 0 if nothing was sent.
    pub loss: f64,
    /// One-way delay, microseconds.
    pub delay_us: Percentiles,
}

/// Joins what callers sent with what sinks received.
#[derive(Debug, Default)]
pub struct Calls {
    sent: HashMap<(u32, u32), u64>,
    received: HashMap<(u32, u32), (u64, u64)>,
}

impl Calls {
    /// Takes in one line of a `call` or `sink` worker; others are ignored.
    pub fn take(&mut self, line: &str) {
        #[derive(Deserialize)]
        struct Line {
            event: String,
            packets: Vec<Record>,
        }
        let Ok(line) = serde_json::from_str::<Line>(line) else { return };
        for (flow, sequence, at) in line.packets {
            if self.sent.len() + self.received.len() >= RECORDS_MAX {
                return;
            }
            match line.event.as_str() {
                "sent" => drop(self.sent.insert((flow, sequence), at)),
                "received" => self.received.entry((flow, sequence)).or_insert((at, 0)).1 += 1,
                _ => return,
            }
        }
    }

    /// When each datagram was sent and arrived that was sent from `from_ns` until before `to_ns` by flows that `wanted`
    /// accepts, and that arrived at all; nanoseconds since 1970.
    pub fn flights(&self, from_ns: u64, to_ns: u64, wanted: impl Fn(u32) -> bool) -> impl Iterator<Item = (u64, u64)> {
        let sent = self.sent.iter().filter(move |(key, at)| wanted(key.0) && (from_ns..to_ns).contains(*at));
        sent.filter_map(|(key, at)| Some((*at, self.received.get(key)?.0)))
    }

    /// Loss and delay of what was sent from `from_ns` until before `to_ns` by flows that `wanted` accepts.
    #[must_use]
    pub fn summary(&self, from_ns: u64, to_ns: u64, wanted: impl Fn(u32) -> bool) -> CallSummary {
        let mut summary = CallSummary::default();
        let mut delays = Vec::new();
        for (key, sent_at) in self.sent.iter().filter(|(key, at)| wanted(key.0) && (from_ns..to_ns).contains(*at)) {
            summary.sent += 1;
            if let Some((arrived_at, copies)) = self.received.get(key) {
                summary.received += 1;
                summary.duplicates += u64::from(*copies > 1);
                delays.push(arrived_at.saturating_sub(*sent_at) / 1_000);
            }
        }
        if summary.sent > 0 {
            summary.loss = 1.0 - summary.received as f64 / summary.sent as f64;
        }
        summary.delay_us = Percentiles::of(&mut delays);
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_delay_are_those_of_the_window_and_flows_asked_for() {
        let mut calls = Calls::default();
        calls.take(r#"{"event":"sent","packets":[[1,0,1000000],[1,1,2000000],[1,2,9000000],[2,0,1000000]]}"#);
        calls.take(r#"{"event":"received","packets":[[1,0,1500000],[1,2,9900000],[1,0,1600000]],"others":3}"#);
        let summary = calls.summary(0, 5_000_000, |flow| flow == 1);
        assert_eq!((summary.sent, summary.received, summary.duplicates), (2, 1, 1));
        assert!((summary.loss - 0.5).abs() < f64::EPSILON);
        assert_eq!(summary.delay_us.p99, 500);
        assert!((calls.summary(0, 5_000_000, |flow| flow == 2).loss - 1.0).abs() < f64::EPSILON);
        assert_eq!(calls.summary(5, 5, |_| true), CallSummary::default());
    }

    #[test]
    fn a_header_is_read_as_written_and_garbage_is_none() {
        let mut payload = vec![0; HEADER_LEN];
        payload[..8].copy_from_slice(&MAGIC);
        write_header(&mut payload, (7, 8, 9));
        assert_eq!(read_header(&payload), Some((7, 8, 9)));
        assert_eq!(read_header(&payload[..HEADER_LEN - 1]), None);
        assert_eq!(read_header(b"sg-other"), None);
    }
}
