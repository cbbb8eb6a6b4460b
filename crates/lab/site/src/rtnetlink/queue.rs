use std::io;

use super::{
    Netlink,
    message::{CREATE, Message, REPLACE, attributes, u32_at, u64_at},
    with_context,
};

const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_BURST: u16 = 6;
const HANDLE_ROOT: u32 = 0xffff_ffff;
const HANDLE_BUCKET: u32 = 0x0001_0000;
const HANDLE_QUEUE: u32 = 0x0010_0000;
/// `tc_ratespec.linklayer`: sizes are Ethernet frames, the kernel needs no rate table.
const LINKLAYER_ETHERNET: u8 = 1;
/// The bucket must hold the largest frame and enough for a timer tick of a virtual machine.
const BURST_BYTES_MIN: u32 = 3_200;

/// What a bottleneck's queue did since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct QueueCounters {
    /// Bytes sent.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
    /// Packets waiting now.
    pub waiting: u64,
}

impl Netlink {
    /// Makes the interface send at most `rate_bps`, with a tail-drop queue of `packets` packets.
    ///
    /// The queue is limited in packets, not bytes: in a byte-limited one, small packets slip in beside big flood
    /// packets and the link looks better than it is.
    ///
    /// # Errors
    /// What the kernel says; a kernel without `sch_tbf` answers `NotFound`.
    pub fn add_bottleneck(&mut self, interface: u32, rate_bps: u64, packets: u32) -> io::Result<()> {
        let rate_bytes = u32::try_from(rate_bps / 8).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let burst = (rate_bytes / 500).max(BURST_BYTES_MIN);
        let mut bucket = qdisc(interface, HANDLE_BUCKET, HANDLE_ROOT, "tbf");
        bucket.nest(TCA_OPTIONS, |options| {
            options
                .attribute(TCA_TBF_PARMS, &bucket_parameters(rate_bytes))
                .attribute(TCA_TBF_BURST, &burst.to_ne_bytes());
        });
        self.request(bucket, "adding a token bucket (sch_tbf)")?;
        let mut queue = qdisc(interface, HANDLE_QUEUE, HANDLE_BUCKET | 1, "pfifo");
        queue.attribute(TCA_OPTIONS, &packets.to_ne_bytes());
        self.request(queue, "adding a packet-limited queue (pfifo)")
    }

    /// The counters of the bottleneck on this interface; zeros if it has none.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bottleneck_counters(&mut self, interface: u32) -> io::Result<QueueCounters> {
        let mut counters = QueueCounters::default();
        self.dump(Message::new(RTM_GETQDISC, 0, &tcmsg(interface, 0, 0)), &mut |kind, body| {
            let of_interface = u32_at(body, 4) == Some(interface) && u32_at(body, 8) == Some(HANDLE_BUCKET);
            if kind == RTM_NEWQDISC && of_interface {
                counters = parse_counters(body.get(20..).unwrap_or_default());
            }
        })
        .map_err(|error| with_context(&error, "reading queue counters"))?;
        Ok(counters)
    }
}

fn tcmsg(interface: u32, handle: u32, parent: u32) -> [u8; 20] {
    let mut fixed = [0; 20];
    fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
    fixed[8..12].copy_from_slice(&handle.to_ne_bytes());
    fixed[12..16].copy_from_slice(&parent.to_ne_bytes());
    fixed
}

fn qdisc(interface: u32, handle: u32, parent: u32, kind: &str) -> Message {
    let mut message = Message::new(RTM_NEWQDISC, CREATE | REPLACE, &tcmsg(interface, handle, parent));
    message.string(TCA_KIND, kind);
    message
}

/// `struct tc_tbf_qopt`: rate, peak rate, limit, buffer, mtu. Limit 0 leaves the inner queue to be grafted.
fn bucket_parameters(rate_bytes: u32) -> [u8; 36] {
    let mut parameters = [0; 36];
    parameters[1] = LINKLAYER_ETHERNET;
    parameters[8..12].copy_from_slice(&rate_bytes.to_ne_bytes());
    parameters
}

fn parse_counters(body: &[u8]) -> QueueCounters {
    let mut counters = QueueCounters::default();
    let stats = attributes(body).find(|(kind, _)| *kind == TCA_STATS2).map_or(&[][..], |(_, value)| value);
    for (kind, value) in attributes(stats) {
        match kind {
            TCA_STATS_BASIC => {
                counters.bytes = u64_at(value, 0).unwrap_or(0);
                counters.packets = u64::from(u32_at(value, 8).unwrap_or(0));
            }
            TCA_STATS_QUEUE => {
                counters.waiting = u64::from(u32_at(value, 0).unwrap_or(0));
                counters.dropped = u64::from(u32_at(value, 8).unwrap_or(0));
            }
            _ => {}
        }
    }
    counters
}
