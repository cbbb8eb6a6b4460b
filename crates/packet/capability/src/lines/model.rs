//! TVA-12 checked against a model that forgets nothing: how many bytes each capability really carried.
//!
//! An adversary with valid capabilities does what could break the bound: it paces packets so that lines just outlive
//! their ttl, fills the table so that they give way, bursts N bytes in the last moment, goes back and forth between
//! several capabilities of a flow and changes nonces. Deterministic: the same
//! seed gives the same run.

use alloc::{vec, vec::Vec};
use core::{net::Ipv4Addr, time::Duration};

use sluicegate_wire::{
    Instant,
    capability::{ClientId, FlowNonce, Limits},
};

use super::{Allowance, Count, Lines, Moment};
use sluicegate_flow::{Key as _, Key4, Line4};

/// Capabilities of a flow that the adversary holds at once.
const HELD: usize = 4;
const NONCES: u64 = 3;
const SMALLEST: u32 = 20;
const ONE: Limits = Limits::new(1, 1).unwrap();
const START_SECS: u64 = 1_000;

/// Whom the adversary plays against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Room for this many lines.
    pub lines_max: u32,
    /// Flows with capabilities.
    pub flows: u32,
}

impl Site {
    /// The sites of TVA-12: without memory pressure, and with so little memory that lines give way all the time.
    pub const ALL: [Self; 3] = [
        Self { lines_max: 4_000, flows: 500 },
        Self { lines_max: 8, flows: 64 },
        Self { lines_max: 500, flows: 3_000 },
    ];

    /// Whether lines give way: then a capability may carry 2N bytes, else N.
    #[must_use]
    pub const fn has_memory_pressure(&self) -> bool {
        self.flows > self.lines_max
    }
}

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Outcome {
    /// Packets sent.
    pub packets: u64,
    /// Packets that passed as regular.
    pub regular: u64,
    /// Capabilities whose life was watched.
    pub capabilities: u64,
    /// Lines that gave way.
    pub reclaimed: u64,
    /// Packets that took a capability above its bound.
    pub violations: u64,
    /// The most bytes that a capability carried, in units of its N.
    pub most: f64,
}

/// Plays `packets` packets at `site`.
#[must_use]
pub fn tva_12(site: Site, packets: u64, seed: u64) -> Outcome {
    let mut run = Run::new(site, seed);
    while run.outcome.packets < packets {
        run.attack();
    }
    run.outcome.reclaimed = run.lines.reclaimed();
    run.outcome
}

/// A capability and what it carried.
#[derive(Debug, Clone, Copy)]
struct Held {
    allowance: Allowance,
    sent: u64,
}

struct Run {
    site: Site,
    lines: Lines<Line4<Count>>,
    held: Vec<[Held; HELD]>,
    now: Instant,
    random: u64,
    outcome: Outcome,
}

impl Run {
    fn new(site: Site, seed: u64) -> Self {
        let none = Allowance { limits: ONE, expires: 0 };
        Self {
            site,
            lines: Lines::new(site.lines_max, &[0; 16]),
            held: vec![[Held { allowance: none, sent: 0 }; HELD]; site.flows as usize],
            now: Instant::ZERO,
            random: seed,
            outcome: Outcome::default(),
        }
    }

    /// A stretch of one kind of behaviour around one flow.
    fn attack(&mut self) {
        let flow = self.below(u64::from(self.site.flows)) as usize;
        let which = self.below(HELD as u64) as usize;
        let packets = 1 + self.below(100);
        match self.below(5) {
            0 => self.burst(flow, which, packets),
            1 => self.pace(flow, which, packets),
            2 => self.alternate(flow, packets),
            3 => self.fill(packets),
            _ => {
                self.now = self.now + Duration::from_micros(self.below(1_500_000));
                self.lines.sweep(self.moment(), 8);
            }
        }
    }

    fn burst(&mut self, flow: usize, which: usize, packets: u64) {
        for _ in 0..packets {
            self.send(flow, which);
        }
    }

    /// Every packet waits until the ttl of the one before is over, and others take the line in between; the last
    /// moment in which a line may begin gets all that is left.
    fn pace(&mut self, flow: usize, which: usize, packets: u64) {
        // From the first moment of a fresh capability.
        let expires = self.held[flow][which].allowance.expires;
        self.now = self.now.max(Instant::from_secs((expires + 1).saturating_sub(START_SECS)));
        for _ in 0..4 * packets {
            let len = self.send(flow, which);
            let held = self.held[flow][which].allowance;
            let ttl = u64::from(len) * u64::from(held.limits.seconds()) * 1_000_000_000 / held.limits.bytes();
            // The last moment before the last second of validity, or in it.
            let end = Instant::from_secs((held.expires + packets % 2).saturating_sub(START_SECS));
            let last = end - Duration::from_nanos(1);
            self.now = self.now + Duration::from_nanos(ttl + self.below(3));
            if self.now >= last {
                self.now = self.now.max(last);
                break;
            }
            if self.site.has_memory_pressure() {
                self.fill(2);
                // What others could have done to the line, they did.
                self.lines.give_way(self.now, &key(flow));
            }
            if last.since(self.now) < Duration::from_nanos(2 * ttl) {
                self.now = last;
                break;
            }
        }
        self.burst(flow, which, packets);
    }

    /// Uses up one capability, lets a small packet of another take the line, and tries the first again once that line
    /// may give way.
    fn alternate(&mut self, flow: usize, packets: u64) {
        let first = self.below(HELD as u64) as usize;
        for n in 0..packets {
            if n % 8 < 6 {
                self.send(flow, first);
                continue;
            }
            self.send_bytes(flow, n as usize % HELD, SMALLEST);
            self.now = self.now + Duration::from_micros(self.below(50_000));
            if self.site.has_memory_pressure() {
                self.lines.give_way(self.now, &key(flow));
            }
        }
    }

    /// Packets of any flow, which need lines.
    fn fill(&mut self, packets: u64) {
        for _ in 0..packets {
            let flow = self.below(u64::from(self.site.flows)) as usize;
            let which = self.below(HELD as u64) as usize;
            self.send_bytes(flow, which, SMALLEST);
        }
    }

    /// A packet of any length. Returns that.
    fn send(&mut self, flow: usize, which: usize) -> u32 {
        let len = SMALLEST + self.below(1_481) as u32;
        self.send_bytes(flow, which, len);
        len
    }

    /// One packet, with the capability or with its nonce only.
    fn send_bytes(&mut self, flow: usize, which: usize, len: u32) {
        let at = self.moment();
        if self.held[flow][which].allowance.expires < at.seconds {
            self.mint(flow, which, at);
        }
        let allowance = self.held[flow][which].allowance;
        let random = self.next();
        // The nonce says which capability the sender means, so that the model knows what a nonce alone stands for.
        let nonce =
            FlowNonce(allowance.expires << 24 | u64::from(allowance.limits.bits()) << 8 | ((random >> 20) % NONCES));
        let presented = (random >> 40 & 3 != 0).then_some(allowance);
        self.outcome.packets += 1;
        if self.passes(at, flow, nonce, presented, len) {
            self.outcome.regular += 1;
            self.account(flow, which, len);
        }
    }

    fn passes(&mut self, at: Moment, flow: usize, nonce: FlowNonce, presented: Option<Allowance>, len: u32) -> bool {
        pass(&mut self.lines, at, &key(flow), nonce, presented.as_ref(), len)
    }

    fn account(&mut self, flow: usize, which: usize, len: u32) {
        let held = &mut self.held[flow][which];
        held.sent += u64::from(len);
        let granted = held.allowance.limits.bytes();
        let bound = if self.site.has_memory_pressure() { 2 * granted } else { granted };
        self.outcome.violations += u64::from(held.sent > bound);
        self.outcome.most = self.outcome.most.max(held.sent as f64 / granted as f64);
    }

    /// A new capability in the place of an expired one, if it differs from the flow's others.
    fn mint(&mut self, flow: usize, which: usize, at: Moment) {
        let random = self.next();
        // Small ones, which can be used up and live to their end, and now and then any.
        let (kilobytes, seconds) = if random & 7 == 0 { (1_023, 63) } else { (8, 4) };
        let (kilobytes, seconds) = (1 + (random >> 8) % kilobytes, 1 + (random >> 32) % seconds);
        let limits = Limits::new(kilobytes as u16, seconds as u8).unwrap_or(ONE);
        let allowance = Allowance { limits, expires: at.seconds + u64::from(limits.seconds()) };
        if self.held[flow].iter().all(|held| held.allowance != allowance) {
            self.held[flow][which] = Held { allowance, sent: 0 };
            self.outcome.capabilities += 1;
        }
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now, seconds: START_SECS + self.now.as_nanos() / 1_000_000_000 }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

fn key(flow: usize) -> Key4 {
    Key4::of_capability(Ipv4Addr::from_bits(flow as u32), Ipv4Addr::BROADCAST, ClientId(flow as u32 % 3))
}

/// What a router does with a packet whose capability, if it has one, is known to be valid (TVA IV-C).
fn pass(
    lines: &mut Lines<Line4<Count>>,
    at: Moment,
    key: &Key4,
    nonce: FlowNonce,
    presented: Option<&Allowance>,
    len: u32,
) -> bool {
    let hash = lines.hash(key);
    let found = lines.find(hash, key);
    found.is_some_and(|index| lines.charge(at, index, nonce, len).is_ok())
        || presented.is_some_and(|presented| lines.admit(at, (hash, key, found), nonce, presented, len).is_ok())
}
