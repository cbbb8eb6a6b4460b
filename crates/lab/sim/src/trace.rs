/// A running hash over everything that happens in a world: when, where, and every byte.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
}

/// What happened.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum Happened {
    Sent = 1,
    Lost,
    Refused,
    Arrived,
    Timeout,
    Scripted,
}

impl Trace {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { hash: seed ^ 0x736c_7569_6365_6761, events: 0 }
    }

    pub(crate) fn note(&mut self, what: Happened, at_ns: u64, place: u64, bytes: &[u8]) {
        self.events += 1;
        self.mix(at_ns);
        self.mix(place << 8 | what as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(bytes.len() as u64);
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) const fn events(&self) -> u64 {
        self.events
    }

    const fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}
