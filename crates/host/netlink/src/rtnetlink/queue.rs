//! A bottleneck: a token bucket filter in front of a queue limited in *packets*. In a byte-limited one small packets slip in
//! beside the big ones of a flood, and the link looks better than it is.

use netlink_packet_core::{DefaultNla, Emitable, parse_u32, parse_u64};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle, TcHeader, TcMessage, TcOption},
};

use super::{REPLACE, Rtnetlink};
use crate::{
    Error,
    message::{self, Message},
    socket::Answer,
};

const BUCKET: TcHandle = TcHandle { major: 1, minor: 0 };
const BUCKET_CLASS: TcHandle = TcHandle { major: 1, minor: 1 };
const QUEUE: TcHandle = TcHandle { major: 16, minor: 0 };

// Attributes of linux/rtnetlink.h, linux/pkt_sched.h and linux/gen_stats.h.
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
/// `tc_ratespec.linklayer`: sizes are Ethernet frames, the kernel needs no rate table.
const LINKLAYER_ETHERNET: u8 = 1;

/// What a bottleneck did since it was made.
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

impl Rtnetlink {
    /// Limits what leaves by `name` to `rate_bps` (bits per second, Ethernet headers included), with bursts of
    /// `burst_bytes` and a queue of `packets` behind it. Replaces an earlier limit.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface, and on a kernel without `sch_tbf`.
    pub fn limit_rate(&mut self, name: &str, rate_bps: u64, burst_bytes: u32, packets: u32) -> Result<(), Error> {
        let index = self.index(name)?;
        let rate = (rate_bps / 8).max(1);
        let option = |kind, value: &[u8]| TcOption::Other(DefaultNla::new(kind, value.into()));
        let options = vec![
            option(TCA_TBF_PARMS, &bucket(rate)),
            option(TCA_TBF_RATE64, &rate.to_ne_bytes()),
            option(TCA_TBF_BURST, &burst_bytes.to_ne_bytes()),
        ];
        let attributes = vec![TcAttribute::Kind("tbf".into()), TcAttribute::Options(options)];
        let message = queue_message(index, BUCKET, TcHandle::ROOT, attributes);
        let request = format!("limit the rate of {name}");
        self.change(&request, RouteNetlinkMessage::NewQueueDiscipline(message), REPLACE)?;
        // The options of this kind are a number, not attributes.
        let limit = TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, packets.to_ne_bytes().into()));
        let message = queue_message(index, QUEUE, BUCKET_CLASS, vec![TcAttribute::Kind("pfifo".into()), limit]);
        let request = format!("limit the queue of {name} to {packets} packets");
        self.change(&request, RouteNetlinkMessage::NewQueueDiscipline(message), REPLACE)
    }

    /// The counters of the limit that [`Self::limit_rate`] set; zeros if it set none.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn queue_counters(&mut self, name: &str) -> Result<QueueCounters, Error> {
        let index = self.index(name)?;
        let message = queue_message(index, TcHandle::UNSPEC, TcHandle::UNSPEC, Vec::new());
        let message = Message::route(&RouteNetlinkMessage::GetQueueDiscipline(message), 0);
        let request = format!("read the queue of {name}");
        self.socket.dump(&request, &message, |counters, answer: Answer<'_>| {
            if let Some(found) = parse(answer.payload, index) {
                *counters = found;
            }
        })
    }
}

fn queue_message(index: u32, handle: TcHandle, parent: TcHandle, attributes: Vec<TcAttribute>) -> TcMessage {
    let header = TcHeader { index: index.cast_signed(), handle, parent, ..TcHeader::default() };
    TcMessage::from_parts(header, attributes)
}

/// `struct tc_tbf_qopt`: rate, peak rate, limit, buffer, mtu. Limit 0 leaves the inner queue to be put in; the burst is an
/// attribute.
fn bucket(rate: u64) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[1] = LINKLAYER_ETHERNET;
    bytes[8..12].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    bytes
}

/// The counters of the bucket of this interface.
pub(super) fn parse(payload: &[u8], index: u32) -> Option<QueueCounters> {
    let header = TcHeader::parse(payload).ok()?;
    if (header.index.cast_unsigned(), header.handle) != (index, BUCKET) {
        return None;
    }
    let statistics = message::value(payload.get(header.buffer_len()..)?, TCA_STATS2)?;
    let (basic, queue) = (message::value(statistics, TCA_STATS_BASIC)?, message::value(statistics, TCA_STATS_QUEUE)?);
    let number = |of: &[u8], at: usize| parse_u32(of.get(at..at + 4)?).ok().map(u64::from);
    Some(QueueCounters {
        bytes: parse_u64(basic.get(..8)?).ok()?,
        packets: number(basic, 8)?,
        waiting: number(queue, 0)?,
        dropped: number(queue, 8)?,
    })
}
