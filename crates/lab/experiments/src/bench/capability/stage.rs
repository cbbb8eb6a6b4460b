//! Packets of one kind, a router in the state that they need, and the time that it takes.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use strum::IntoStaticStr;

use sluicegate_capability::router::{Arrival, Class, Router, RouterConfig};
use sluicegate_capability::secrets::{Seed, seal};
use sluicegate_scheduler::{Config, Label, LinkScheduler, Offered, QUEUES_MAX};
use sluicegate_wire::{
    Frame, FrameBuf, HEADROOM, Instant, IpProtocol, Port, Reason, build,
    capability::{
        Algorithm, CapabilityList, ClientId, FlowNonce, Kind, Limits, PathId, Repr, Slot, SlotList,
        shim::{self, Carriage},
    },
    ip, ipv4,
};

/// What the router is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Only the nonce, of a flow with a line.
    RegularCached,
    /// A request with one slot.
    Request,
    /// A renewal of a flow with a line.
    RenewalCached,
    /// A valid capability of a flow without a line, which takes the place of one whose ttl has passed.
    RegularUncached,
    /// The same as a renewal.
    RenewalUncached,
    /// A request that four routers have tagged, and its offer to a link whose 200,000 request queues are all in use,
    /// with a packet in each place. Longer than 64 bytes: five slots do not fit.
    RequestUnderAttack,
}

/// How flows follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Order {
    /// All that is touched stays in the cache: one flow, or as few as the work allows.
    Hot,
    /// 2^20 flows at random.
    #[strum(serialize = "random_1m")]
    Random,
}

const BATCH: usize = 128;
const FLOWS: u32 = 1 << 20;
/// IP bytes of a 64-byte Ethernet frame.
const SHORTEST: usize = 46;
const BUFFER: usize = HEADROOM + 128;
/// More than a small table has places, so that no flow finds its line again.
const HOT_FLOWS: u32 = 16_384;
const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
const ARRIVAL: Arrival = Arrival { port: Port::OUTSIDE, neighbour: 0x0200_0000_0001, verified_source: false };
const NONCE: FlowNonce = FlowNonce(0x1234_5678_9abc);
const LIMITS: Limits = Limits::new(1_023, 10).expect("a possible N and T");
/// The whole time for which lines stay valid while a row of cached packets is measured.
const LIMITS_CACHED: Limits = Limits::new(1_023, 63).expect("a possible N and T");
/// Packets that one N pays for, with room to spare.
const PACKETS_PER_N: u64 = 20_000;
/// Longer than the ttl of one packet of 46 bytes.
const TTL_OVER: Duration = Duration::from_micros(500);
/// Every T is over by then, and the router has looked at every line since: at no more than some hundred in a second.
const LINES_END_SECS: u64 = 2 * 64 + 4 * FLOWS as u64 / 900;
const ALGORITHM: Algorithm = Algorithm::SipHash;

/// Where an IPv4 packet has the last byte of its flow nonce.
const NONCE_LAST_AT: usize = ipv4::HEADER_LEN + 7;

pub(super) struct Stage {
    work: Work,
    order: Order,
    router: Router,
    link: Option<LinkScheduler<u32>>,
    template: Vec<u8>,
    request: FrameBuf,
    buffers: Vec<[u8; BUFFER]>,
    now: Instant,
    flow: u32,
    sent: u64,
}

impl Stage {
    /// A router that has seen what makes the work what it is.
    pub(super) fn new(work: Work, order: Order) -> Self {
        let lines_max = if order == Order::Random { FLOWS } else { 1_024 };
        let config = RouterConfig {
            lines_max,
            lines6_max: 1,
            revocations_max: 1_024,
            boundary: [true, false],
            least: Limits::new(4, 10).expect("a possible N and T"),
            seed: Seed([1; 32]),
            tag_key: [2; 16],
            first_seconds: 1_000,
            started_at: Instant::ZERO,
        };
        let mut stage = Self {
            work,
            order,
            router: Router::new(config, [3; 16]),
            link: None,
            template: Vec::new(),
            request: packet(&Repr::request(ALGORITHM, ClientId::NONE, 1, IpProtocol::UDP)),
            buffers: vec![[0; BUFFER]; BATCH],
            now: Instant::ZERO,
            flow: 0,
            sent: 0,
        };
        stage.template = stage.packet().bytes().to_vec();
        stage.set_up();
        stage
    }

    /// A packet of this kind, of no particular flow.
    fn packet(&self) -> FrameBuf {
        let client_id = ClientId::NONE;
        match self.work {
            Work::RegularCached => packet(&Repr::nonce_only(ALGORITHM, client_id, NONCE, IpProtocol::UDP)),
            Work::Request => self.request.clone(),
            Work::RenewalCached | Work::RenewalUncached => packet(&regular(Kind::Renewal)),
            Work::RegularUncached => packet(&regular(Kind::Capabilities)),
            Work::RequestUnderAttack => {
                let entries: SlotList = (1..5).map(|tag| Slot { path_id: PathId(tag), ..Slot::default() }).collect();
                let (upper, ret) = (IpProtocol::UDP, None);
                let algorithm = ALGORITHM;
                packet(&Repr::Request { algorithm, client_id, slots: 5, entries, demoted: false, upper, ret })
            }
        }
    }

    fn set_up(&mut self) {
        match (self.work, self.order) {
            (Work::RegularCached | Work::RenewalCached, Order::Hot) => self.cache(0),
            (Work::RegularCached | Work::RenewalCached, Order::Random) => (0..FLOWS).for_each(|flow| self.cache(flow)),
            (Work::RegularUncached | Work::RenewalUncached, order) => {
                // Every place of the table holds a line whose ttl has passed: what a router comes to in an hour.
                let packets = if order == Order::Random { 4 * u64::from(FLOWS) } else { u64::from(HOT_FLOWS) };
                let _ = self.run(packets);
            }
            (Work::RequestUnderAttack, _) => self.link = Some(self.attacked_link()),
            (Work::Request, _) => {}
        }
    }

    /// A busy link of which every request queue and every place for a request is taken.
    fn attacked_link(&mut self) -> LinkScheduler<u32> {
        let packets_max = [256, 2 * QUEUES_MAX, 256, 256];
        let config = Config { request_queues_max: QUEUES_MAX, packets_max, ..Config::for_rate(1_000_000) };
        let mut link = LinkScheduler::new(&config, &[4; 16]);
        for n in 0..8 * u64::from(QUEUES_MAX) {
            let label = Label::request(std::array::from_fn(|level| tag(n, level as u32)));
            black_box(matches!(link.offer(self.now, &label, SHORTEST, n as u32), Offered::Queued));
        }
        link
    }

    /// Gives a flow a line, without the clock.
    fn cache(&mut self, flow: u32) {
        let mut buffer = [0; BUFFER];
        let template = packet(&regular(Kind::Capabilities));
        let len = self.grant(flow, template.bytes(), LIMITS_CACHED, &mut buffer);
        buffer[HEADROOM + NONCE_LAST_AT] = self.template[NONCE_LAST_AT];
        let class = on_packet(&mut self.router, self.now, &mut buffer, len);
        assert!(is_regular(&class), "the flow has a line: {class:?}");
    }

    /// Writes `template` with a fresh capability of the flow.
    fn grant(&mut self, flow: u32, template: &[u8], limits: Limits, buffer: &mut [u8; BUFFER]) -> usize {
        let mut request = [0; BUFFER];
        let len = write(&mut request, self.request.bytes(), flow);
        let _ = on_packet(&mut self.router, self.now, &mut request, len);
        let pre = {
            let bytes = &request[HEADROOM..HEADROOM + len];
            sluicegate_wire::capability::Packet::new_unchecked(&bytes[ipv4::HEADER_LEN..]).capability(0)
        };
        let sealed = seal(ALGORITHM, pre.unwrap_or_default(), limits);
        let len = write(buffer, template, flow);
        let header = &mut buffer[HEADROOM + ipv4::HEADER_LEN..];
        header[14..16].copy_from_slice(&limits.bits().to_be_bytes());
        sluicegate_wire::capability::Packet::new_unchecked(header).set_capability(0, sealed);
        len
    }

    /// Lets every line end, as minutes without packets do. Its memory stays.
    pub(super) fn empty(&mut self) {
        let in_use = |stage: &Self| stage.router.gauges()[0].used;
        for _ in 0..LINES_END_SECS {
            if in_use(self) == 0 {
                return;
            }
            self.now = self.now + Duration::from_secs(1);
            self.router.handle_timeout(self.now);
        }
        assert_eq!(in_use(self), 0, "no line outlives its capability for long");
    }

    /// Nanoseconds a packet: the median over batches, so that what interrupts the thread does not count.
    ///
    /// # Errors
    /// How many packets were not classed as they should be.
    pub(super) fn run(&mut self, packets: u64) -> Result<f64, String> {
        let mut costs = Vec::new();
        let mut wrong = 0;
        for _ in 0..packets.div_ceil(BATCH as u64) {
            let len = self.prepare();
            let start = std::time::Instant::now();
            let right = self.batch(len);
            costs.push(start.elapsed().as_nanos() as f64);
            wrong += BATCH - right;
        }
        costs.sort_by(f64::total_cmp);
        if wrong > 0 {
            return Err(format!("{wrong} packets did not pass as they should"));
        }
        Ok(costs[costs.len() / 2] / BATCH as f64)
    }

    /// Writes the packets of the next batch. Returns their length.
    fn prepare(&mut self) -> usize {
        let mut buffers = std::mem::take(&mut self.buffers);
        let mut len = 0;
        if self.order == Order::Hot && self.sent % PACKETS_PER_N < BATCH as u64 && self.is_cached() {
            // N is nearly used up: a new capability, which comes with a new nonce.
            self.now = self.now + Duration::from_secs(1);
            self.template[NONCE_LAST_AT] = self.template[NONCE_LAST_AT].wrapping_add(1);
            self.cache(0);
        }
        for buffer in &mut buffers {
            let flow = self.next_flow();
            len = match self.work {
                Work::RegularUncached | Work::RenewalUncached => {
                    let template = std::mem::take(&mut self.template);
                    let len = self.grant(flow, &template, LIMITS, buffer);
                    self.template = template;
                    len
                }
                _ => write(buffer, &self.template, flow),
            };
            if self.work == Work::RequestUnderAttack && self.order == Order::Random {
                let header = &mut buffer[HEADROOM + ipv4::HEADER_LEN..];
                let mut header = sluicegate_wire::capability::Packet::new_unchecked(header);
                (0..4).for_each(|slot| header.set_path_id(slot, tag(u64::from(flow), slot as u32)));
            }
        }
        if self.is_uncached() {
            self.now = self.now + TTL_OVER;
            // The clock's own work is not the packet's.
            self.router.handle_timeout(self.now);
        }
        self.sent += BATCH as u64;
        self.buffers = buffers;
        len
    }

    const fn is_cached(&self) -> bool {
        matches!(self.work, Work::RegularCached | Work::RenewalCached)
    }

    const fn is_uncached(&self) -> bool {
        matches!(self.work, Work::RegularUncached | Work::RenewalUncached)
    }

    const fn next_flow(&mut self) -> u32 {
        match self.order {
            // A linear congruential generator of full period: every flow once, in random order.
            Order::Random => self.flow = self.flow.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % FLOWS,
            Order::Hot if self.is_uncached() => self.flow = (self.flow + 1) % HOT_FLOWS,
            Order::Hot => {}
        }
        if self.is_uncached() {
            // When all have been seen, others come, until the lines of the first are long gone.
            return self.flow + (self.sent / FLOWS as u64 % 16) as u32 * FLOWS;
        }
        self.flow
    }

    /// What is measured.
    #[inline(never)]
    fn batch(&mut self, len: usize) -> usize {
        let mut right = 0;
        for buffer in &mut self.buffers {
            let class = on_packet(&mut self.router, self.now, buffer, len);
            right += usize::from(match (self.work, &mut self.link) {
                (Work::Request, _) => matches!(class, Ok(Class::Request { .. })),
                (Work::RequestUnderAttack, Some(link)) => {
                    let Ok(Class::Request { path }) = class else { continue };
                    let _ = black_box(link.offer(self.now, &Label::request(path), len, 0));
                    true
                }
                _ => is_regular(&class),
            });
        }
        right
    }
}

#[inline]
fn on_packet(router: &mut Router, now: Instant, buffer: &mut [u8; BUFFER], len: usize) -> Result<Class, Reason> {
    let Some(mut frame) = Frame::new(buffer, HEADROOM, len) else { return Err(Reason::FrameTruncated) };
    router.on_packet(now, &ARRIVAL, &mut frame)
}

const fn is_regular(class: &Result<Class, Reason>) -> bool {
    matches!(class, Ok(Class::Regular { .. }))
}

/// The path identifier that an attacker made up for a level.
const fn tag(n: u64, level: u32) -> PathId {
    let mixed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(16 * level);
    PathId((mixed >> 40) as u16 | 1)
}

fn regular(kind: Kind) -> Repr {
    let list: CapabilityList = [sluicegate_wire::capability::Capability::new(1, 1)].into_iter().collect();
    Repr::nonce_only(ALGORITHM, ClientId::NONE, NONCE, IpProtocol::UDP).with_list(kind, LIMITS, list)
}

/// The shortest IPv4 packet with this header that fills a 64-byte Ethernet frame.
fn packet(repr: &Repr) -> FrameBuf {
    let payload = vec![0x55; SHORTEST.saturating_sub(ipv4::HEADER_LEN + repr.buffer_len())];
    let bytes = build::packet(Ipv4Addr::new(10, 0, 0, 0), SERVER, &(IpProtocol::UDP, &payload[..]));
    let mut frame = FrameBuf::from_bytes(&bytes);
    frame.with(|frame| shim::insert(frame, repr, Carriage::Native)).expect("a packet takes a header");
    frame
}

/// Writes a packet of a flow into a buffer. Returns its length.
fn write(buffer: &mut [u8; BUFFER], template: &[u8], flow: u32) -> usize {
    let bytes = &mut buffer[HEADROOM..HEADROOM + template.len()];
    bytes.copy_from_slice(template);
    if let Ok(mut summary) = ip::Summary::parse(bytes) {
        summary.set_src(bytes, IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + flow)));
    }
    template.len()
}
