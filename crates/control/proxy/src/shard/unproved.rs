//! How much the neighbours of one address are sent that have proved nothing. Who forges a victim's address could otherwise
//! have us send there all that we can answer.

use std::net::IpAddr;

use siphasher::sip::SipHasher24;
use sluicegate_wire::Instant;

/// Buckets of each kind. Those who share one share its rate; who shares is decided by a secret key.
const BUCKETS: usize = 1 << 14;
/// Answers a second to any one address whatever its neighbours are: a telephone needs two or three for a call.
const ADDRESS_PER_S: u32 = 5;
/// A bucket holds what it gets in so many seconds.
const BURST_SECS: u32 = 2;
/// Bytes for which the configured number of answers counts one.
const ANSWER_BYTES: u64 = 512;
/// As many bytes as so many answers have.
#[must_use]
pub fn answer_bytes(answers: u32) -> u64 {
    u64::from(answers) * ANSWER_BYTES
}

/// How many times as much all those addresses of a prefix get together at which somebody signed in.
const PROVED_SHARES: u64 = 4;
/// How long it is known of an address that somebody there signed in.
const PROVED_MS: u32 = 3_600_000;

/// Counts down: an answer passes while something is left, and may leave a debt.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: i64,
    /// Milliseconds on the shard's clock, modulo 2^32: what is wrong once in 50 days is a bucket that is full too early.
    at_ms: u32,
}

impl Bucket {
    /// What is left of a bucket that gets so much a second.
    fn left(&mut self, now_ms: u32, per_s: u64) -> i64 {
        // More than fills it says nothing.
        let passed = u64::from(now_ms.wrapping_sub(self.at_ms).min(BURST_SECS * 4_000));
        let gained = i64::try_from(passed * per_s / 1_000).unwrap_or(i64::MAX);
        if gained > 0 {
            self.left = self.left.saturating_add(gained).min(capacity(per_s));
            self.at_ms = now_ms;
        }
        self.left
    }

    const fn take(&mut self, amount: u64) {
        self.left = self.left.saturating_sub_unsigned(amount);
    }
}

fn capacity(per_s: u64) -> i64 {
    i64::try_from(per_s.saturating_mul(u64::from(BURST_SECS))).unwrap_or(i64::MAX)
}

/// What is known of an address.
#[derive(Debug, Clone, Copy)]
struct Own {
    /// In answers.
    few: Bucket,
    /// In bytes; of one at which somebody signed in.
    many: Bucket,
    /// When somebody there signed in last, on the same clock.
    proved_ms: Option<u32>,
}

impl Own {
    fn is_proved(&self, now_ms: u32) -> bool {
        self.proved_ms.is_some_and(|at_ms| now_ms.wrapping_sub(at_ms) < PROVED_MS)
    }
}

/// Whom an answer is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Charged {
    /// The address, unless this answer is one of the few that each has.
    own: Option<usize>,
    prefix: usize,
    is_proved: bool,
}

/// Buckets of bytes: one for each /24 or /64, and another for those addresses in it at which somebody signed in. All that
/// is sent to the neighbours of one address comes out of these, however many of them there are. The lower half of each is
/// kept for addresses that ask seldom, so that a neighbour of many that ask without end is still heard; and one address at
/// which somebody signed in gets no more than a whole prefix. A fixed amount of memory, and none a stranger.
pub(super) struct Unproved {
    key: [u8; 16],
    bytes_per_s: u64,
    addresses: Box<[Own]>,
    strangers: Box<[Bucket]>,
    proved: Box<[Bucket]>,
}

impl std::fmt::Debug for Unproved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unproved").field("bytes_per_s", &self.bytes_per_s).finish_non_exhaustive()
    }
}

impl Unproved {
    /// Each prefix is sent as much by this shard as `per_s` answers a second.
    pub(super) fn new(key: [u8; 16], per_s: u32) -> Self {
        let bucket = Bucket { left: i64::MAX, at_ms: 0 };
        let own = Own { few: bucket, many: bucket, proved_ms: None };
        let [strangers, proved] = [(); 2].map(|()| vec![bucket; BUCKETS].into_boxed_slice());
        let bytes_per_s = answer_bytes(per_s);
        Self { key, bytes_per_s, addresses: vec![own; BUCKETS].into_boxed_slice(), strangers, proved }
    }

    /// Somebody at `address` signed in.
    pub(super) fn proved(&mut self, now: Instant, address: IpAddr) {
        let IpAddr::V4(v4) = address.to_canonical() else { return };
        let (at, now_ms) = (self.at(v4.to_bits().into()), ms(now));
        if let Some(own) = self.addresses.get_mut(at) {
            if !own.is_proved(now_ms) {
                own.many = Bucket { left: capacity(self.bytes_per_s), at_ms: now_ms };
            }
            own.proved_ms = Some(now_ms);
        }
    }

    /// Where the bucket of an address or prefix is.
    fn at(&self, name: u64) -> usize {
        SipHasher24::new_with_key(&self.key).hash(&name.to_be_bytes()) as usize % BUCKETS
    }

    /// Whether one more answer may go to somebody at `address`, and whom to charge for it.
    pub(super) fn admit(&mut self, now: Instant, address: IpAddr) -> Option<Charged> {
        let (now_ms, bytes_per_s) = (ms(now), self.bytes_per_s);
        // Of an IPv6 /64 all addresses are one host's to take.
        let (own_at, prefix) = match address.to_canonical() {
            IpAddr::V4(v4) => (Some(self.at(v4.to_bits().into())), u64::from(v4.to_bits() >> 8) | 1 << 32),
            IpAddr::V6(v6) => (None, (v6.to_bits() >> 64) as u64),
        };
        let prefix = self.at(prefix);
        let own = own_at.and_then(|at| self.addresses.get_mut(at));
        let (mut is_one_of_few, mut is_proved, mut has_more) = (true, false, false);
        if let Some(own) = own {
            is_one_of_few = own.few.left(now_ms, ADDRESS_PER_S.into()) > 0;
            is_proved = own.is_proved(now_ms);
            has_more = !is_proved || own.many.left(now_ms, bytes_per_s) > 0;
            own.few.take(u64::from(is_one_of_few));
        }
        let (buckets, per_s) = match is_proved {
            true => (&mut self.proved, bytes_per_s.saturating_mul(PROVED_SHARES)),
            false => (&mut self.strangers, bytes_per_s),
        };
        let left = buckets.get_mut(prefix)?.left(now_ms, per_s);
        let passes = (is_one_of_few && left > 0) || (has_more && left > capacity(per_s) / 2);
        passes.then_some(Charged { own: own_at.filter(|_| is_proved && !is_one_of_few), prefix, is_proved })
    }

    /// An answer of so many bytes was sent.
    pub(super) fn charge(&mut self, Charged { own, prefix, is_proved }: Charged, bytes: usize) {
        let buckets = if is_proved { &mut self.proved } else { &mut self.strangers };
        let own = own.and_then(|at| self.addresses.get_mut(at)).map(|own| &mut own.many);
        own.into_iter().chain(buckets.get_mut(prefix)).for_each(|bucket| bucket.take(bytes as u64));
    }
}

const fn ms(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of one answer.
    const LEN: usize = 256;

    fn admitted(unproved: &mut Unproved, now: Instant, address: &str, asked: usize) -> usize {
        let address = address.parse().unwrap();
        let mut is_admitted = || unproved.admit(now, address).map(|charged| unproved.charge(charged, LEN)).is_some();
        (0..asked).filter(|_| is_admitted()).count()
    }

    #[test]
    fn a_prefix_is_sent_so_much_and_a_neighbour_of_who_asks_without_end_is_heard() {
        let mut unproved = Unproved::new([7; 16], 100);
        let now = Instant::from_secs(1_000);
        assert_eq!(admitted(&mut unproved, now, "198.51.100.66", 10_000), 200, "half of two seconds' worth");
        assert_eq!(admitted(&mut unproved, now, "198.51.100.7", 3), 3);
        let later = Instant::from_secs(1_001);
        assert_eq!(admitted(&mut unproved, later, "198.51.100.66", 10_000), 200 - 3);
        assert_eq!(admitted(&mut unproved, later, "203.0.113.1", 3), 3);
        assert_eq!(admitted(&mut unproved, later, "2001:db8::1", 10_000), 400);
        assert_eq!(admitted(&mut unproved, later, "2001:db8::2", 10), 0, "the same /64");
    }

    /// All that all of a prefix gets in `secs`, asking without end.
    fn of_all(unproved: &mut Unproved, now: Instant, secs: u64) -> usize {
        let after = |ms| now + std::time::Duration::from_millis(ms);
        let mut ask = |ms: u64, host| admitted(unproved, after(ms), &format!("198.51.100.{host}"), 5);
        (0..secs * 100)
            .flat_map(|turn| (0..=255).map(move |host| (turn * 10, host)))
            .map(|(ms, host)| ask(ms, host))
            .sum()
    }

    #[test]
    fn all_addresses_of_a_prefix_together_get_no_more_than_it_whoever_signed_in_there() {
        let (now, most) = (Instant::from_secs(1_000), (100 * 512 / LEN) * (10 + 2));
        let sent = of_all(&mut Unproved::new([7; 16], 100), now, 10);
        assert!((most * 9 / 10..=most + 1).contains(&sent), "{sent} of {most}");
        let mut unproved = Unproved::new([7; 16], 100);
        (0..=255).for_each(|host| unproved.proved(now, format!("198.51.100.{host}").parse().unwrap()));
        let sent = of_all(&mut unproved, now, 10);
        assert!((most * 4 * 9 / 10..=most * 4 + 1).contains(&sent), "{sent} of four times {most}");
    }

    #[test]
    fn an_answer_is_worth_its_bytes() {
        let mut unproved = Unproved::new([7; 16], 100);
        let (now, address) = (Instant::from_secs(1_000), "2001:db8::1".parse().unwrap());
        let mut sent = 0;
        while let Some(charged) = unproved.admit(now, address) {
            unproved.charge(charged, 1_000);
            sent += 1_000;
        }
        assert_eq!(sent, 103_000, "the last one leaves a debt");
        assert_eq!(unproved.admit(now + std::time::Duration::from_millis(10), address), None, "to be paid first");
        assert!(unproved.admit(now + std::time::Duration::from_millis(20), address).is_some());
    }

    #[test]
    fn who_signed_in_spends_its_own_answers_and_none_of_its_neighbours() {
        let mut unproved = Unproved::new([7; 16], 100);
        let now = Instant::from_secs(1_000);
        for (greedy, most) in [("198.51.100.66", 10 + 400), ("198.51.100.67", 800 - 410), ("198.51.100.68", 10)] {
            unproved.proved(now, greedy.parse().unwrap());
            assert_eq!(admitted(&mut unproved, now, greedy, 10_000), most, "half is kept for who asks seldom");
        }
        assert_eq!(admitted(&mut unproved, now, "198.51.100.7", 300), 200, "what a stranger there gets anyway");
        let hours_later = Instant::from_secs(1_000 + 2 * 3_600);
        assert_eq!(admitted(&mut unproved, hours_later, "198.51.100.66", 10_000), 200, "nobody knows it any more");
    }
}
