//! What few packets of a flow need: kept beside the lines, which every packet reads.

use alloc::{boxed::Box, vec};

use sluicegate_flow::Kind;
use sluicegate_wire::Instant;

use crate::transport::tcp::Attempt;

/// What may pass once a second in each flow.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seldom {
    /// A SYN from outside into a connection that stands.
    SynIn = 0,
    /// The same from inside.
    SynOut = 1,
    /// An ICMP error about a flow whose packets carry MACs, or about an open TCP connection.
    Error = 2,
}

impl Seldom {
    pub(crate) const fn syn(from: Kind) -> Self {
        if matches!(from, Kind::Inbound) { Self::SynIn } else { Self::SynOut }
    }
}

#[derive(Debug, Clone, Copy)]
struct Aside {
    /// The SYN that passed last into a connection which stood or had stood.
    attempt: Option<Attempt>,
    /// The second, modulo 256, in which each [`Seldom`] passed last. One that comes 256 s later may so wait a second.
    passed: [u8; 3],
}

const BLANK: Aside = Aside { attempt: None, passed: [0; 3] };

/// One entry for each flow, by its index.
#[derive(Debug)]
pub(crate) struct Asides(Box<[Aside]>);

impl Asides {
    pub(crate) fn new(flows_max: u32) -> Self {
        Self(vec![BLANK; flows_max as usize].into_boxed_slice())
    }

    /// The flow is new.
    pub(crate) fn reset(&mut self, now: Instant, flow: u32) {
        if let Some(aside) = self.0.get_mut(flow as usize) {
            *aside = Aside { passed: [second(now).wrapping_sub(1); 3], ..BLANK };
        }
    }

    /// The flow has another name.
    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        if from.max(to) < self.0.len() as u32 {
            self.0[to as usize] = self.0[from as usize];
        }
    }

    pub(crate) fn attempt(&self, flow: u32) -> Option<Attempt> {
        self.0.get(flow as usize)?.attempt
    }

    pub(crate) fn set_attempt(&mut self, flow: u32, attempt: Option<Attempt>) {
        if let Some(aside) = self.0.get_mut(flow as usize) {
            aside.attempt = attempt;
        }
    }

    /// Whether one more may pass in this second; takes it then.
    pub(crate) fn admit(&mut self, now: Instant, flow: u32, what: Seldom) -> bool {
        let Some(aside) = self.0.get_mut(flow as usize) else { return false };
        let second = second(now);
        core::mem::replace(&mut aside.passed[what as usize], second) != second
    }
}

const fn second(now: Instant) -> u8 {
    (now.as_nanos() / 1_000_000_000) as u8
}
