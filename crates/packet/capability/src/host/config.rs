//! What a host is told at its start, and the constants of its rules.

use core::time::Duration;

use sluicegate_wire::capability::{Algorithm, CAPABILITIES_MAX, shim::Carriage};

/// What a [`super::Host`] is told at its start.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How the routers on the paths of this host hash.
    pub algorithm: Algorithm,
    /// How packets carry the header to a destination of which nothing is known yet: natively, or in UDP from a port of
    /// this host.
    pub carriage: Carriage,
    /// The largest IP packet, with all headers, that may leave on the side where capabilities are spoken.
    pub mtu: u16,
    /// Slots in a request, the sender's own included: 2 to 8, one more than the capability routers of the longest path.
    pub slots: u8,
    /// For how many capabilities TCP's largest segment leaves room. Longer lists still work: they travel in packets
    /// of their own.
    pub clamp_capabilities: u8,
    /// Whether packets to somebody who has sent no capability header stay plain: for a gate, whose clients need not
    /// know any.
    pub answers_only: bool,
    /// How many peers the host remembers.
    pub peers_max: u32,
    /// Of how many remote addresses the host remembers whether they speak capabilities.
    pub remotes_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::SipHash,
            carriage: Carriage::Native,
            mtu: 1_500,
            slots: CAPABILITIES_MAX as u8,
            clamp_capabilities: 4,
            answers_only: false,
            peers_max: 16_384,
            remotes_max: 16_384,
        }
    }
}

/// The shortest MTU that is believed, whatever an ICMP error says: IPv4's and IPv6's least.
pub(super) const MTU_MIN: (u16, u16) = (576, 1_280);

/// Requests that may leave at once to one peer.
pub const REQUEST_BURST: u32 = 4;
/// Between requests to one peer, on average; doubled after four rounds without answer, and again after eight.
pub const REQUEST_INTERVAL: Duration = Duration::from_millis(250);
/// Requests closer together than this count as one try.
pub const ROUND: Duration = Duration::from_millis(500);
/// After this many tries without answer every other one goes plain, to find out whether the far end speaks
/// capabilities at all.
pub const ROUNDS_BEFORE_TRIAL: u8 = 2;
/// How long an outstanding request may be refused.
pub const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Outstanding requests of one peer that an answer may still name.
pub(super) const ASKED_MAX: usize = 4;
/// How long a first refusal is respected; doubled with each, at most [`REFUSED_WAIT_DOUBLINGS`] times.
pub const REFUSED_WAIT: Duration = Duration::from_secs(1);
/// See [`REFUSED_WAIT`].
pub const REFUSED_WAIT_DOUBLINGS: u8 = 5;
/// Packets that carry the list until routers are presumed to have cached it, if no return traffic shows it earlier.
pub const LIST_PACKETS_MAX: u8 = 8;
/// What TCP sends from its first ten packets on until the answer to a renewal on one of them can have come: fourteen
/// packets of 1,500 bytes and some. With less than this left, but not before a quarter of N is gone, a sender renews.
pub const BURST_BYTES: u64 = 22_000;
/// How long a sender makes do with a grant that is smaller than usual, before it asks for a usual one.
pub const LITTLE_FOR: Duration = Duration::from_secs(1);
/// The round trip that is assumed before the first answer was measured.
pub const RTT_ASSUMED: Duration = Duration::from_millis(200);
/// Sending so long without hearing anything makes a sender ask again; doubled up to 16 times.
pub const SILENCE_MIN: Duration = Duration::from_millis(400);
/// So many packets without an answer are silence: the last one of a conversation has none.
pub(super) const UNANSWERED_MIN: u8 = 3;
/// How long a remote address that does not speak capabilities is remembered.
pub const LEGACY_FOR: Duration = Duration::from_secs(60);
/// How long a remote address that answered a request is remembered.
pub const CAPABLE_FOR: Duration = Duration::from_secs(600);
/// How long an answer waits for a packet that carries it.
pub const ANSWER_DELAY: Duration = Duration::from_millis(20);
/// For how long a renewal that is asked for again gets the same answer again, while the first is not used; two round
/// trips if those are longer. What a sender asked while its packets wait in a queue arrives one by one.
pub(super) const ANSWER_AGAIN: Duration = Duration::from_secs(1);
/// How often an answer is repeated on packets to a sender that does not use it yet.
pub const ANSWER_COPIES: u8 = 3;
/// Between two demotion notices to one peer, at least.
pub const NOTICE_INTERVAL: Duration = Duration::from_millis(20);
/// Between two demotion notices to senders that have proved nothing, all together.
pub const STRANGER_NOTICE_INTERVAL: Duration = Duration::from_millis(10);
/// Between two demotion notices that are believed although nothing proves who sent them, at least. Each makes a sender
/// ask again: a server that blacklists who asks again must take less than this for haste.
pub const DOUBTED_NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// The most T of a grant, in seconds: the rest of what a header can say tells grants of one second apart.
pub const GRANT_SECONDS_MAX: u8 = 60;
/// A reply within this time of the peer's packet does not make the peer one that the local host contacted.
pub(super) const REPLY_WITHIN: Duration = Duration::from_secs(10);
/// For how long what a peer sends counts as the answer to what a local host sent.
pub const CONTACT_FOR: Duration = Duration::from_secs(60);
