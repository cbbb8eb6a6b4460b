use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A running hash over everything that happens in a world: when, where, and every byte.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    hash: DefaultHasher,
    events: u64,
}

/// What happened.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) enum Happened {
    Sent,
    Lost,
    Refused,
    Arrived,
    Timeout,
    Scripted,
}

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        let mut hash = DefaultHasher::new();
        seed.hash(&mut hash);
        Self { hash, events: 0 }
    }

    pub(crate) fn note(&mut self, what: Happened, at_ns: u64, place: u64, bytes: &[u8]) {
        self.events += 1;
        (what, at_ns, place, bytes).hash(&mut self.hash);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub(crate) const fn events(&self) -> u64 {
        self.events
    }
}
