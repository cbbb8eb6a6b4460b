//! What a shard is told once, at its start.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_grant::IssuerKey;
use sluicegate_signin::ReplicaKey;
use sluicegate_sip::{message::Transport, write::ViaLine};
use zeroize::Zeroizing;

use super::{emergency::Emergency, shedding::Overload};
use crate::{
    agents::AgentKeys,
    guesses::Guesses,
    limits::Limits,
    locations::Locations,
    outages::Outages,
    traces::Traces,
    transmits::{Flow, Listening, is_private},
};

/// Window in which a user's transactions are counted: as long as a transaction lives (64 * T1).
pub(crate) const TRANSACTION_LIFE: Duration = Duration::from_secs(32);
/// How long a gate may take to open a pinhole.
pub(crate) const OPENING_MAX: Duration = Duration::from_millis(500);
/// What a client is told to wait when nothing could be opened, in seconds.
pub(crate) const RETRY_AFTER_SECS: u32 = 5;
/// Longest answer to an unproved request, in multiples of that request: a spoofed source gains no more than this.
pub(crate) const AMPLIFICATION_MAX: usize = 3;

/// How long telephones may be registered, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Phones {
    /// Of a telephone that does not say.
    pub registration_s_default: u32,
    /// At least; who asks for less is told so (RFC 3261 section 10.3).
    pub registration_s_min: u32,
    /// At most; who asks for more gets this.
    pub registration_s_max: u32,
}

impl Default for Phones {
    fn default() -> Self {
        Self { registration_s_default: 3_600, registration_s_min: 60, registration_s_max: 7_200 }
    }
}

/// Fixed sizes of a shard's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tables {
    /// Transactions of authenticated requests, kept for their retransmissions.
    pub transactions_max: usize,
    /// Transactions that one user may fill.
    pub transactions_per_user_max: usize,
    /// Requests of one user that wait for the final answer of a service. Each is kept whole meanwhile.
    pub exchanges_per_user_max: usize,
    /// Nonces used within their life.
    pub replays_max: usize,
    /// Of these, nonces that one user may use.
    pub replays_per_user_max: usize,
    /// Services registered by agents.
    pub bindings_max: usize,
    /// Contacts registered by users, of all shards together.
    pub contacts_max: usize,
    /// Of these, contacts of one user.
    pub contacts_per_user_max: usize,
    /// Events waiting for the feed.
    pub events_max: usize,
    /// Relayed calls whose service is told when they end.
    pub legs_max: usize,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            transactions_max: 65_536,
            transactions_per_user_max: 4_096,
            exchanges_per_user_max: 512,
            replays_max: 1 << 17,
            replays_per_user_max: 8_192,
            bindings_max: 1_024,
            contacts_max: 131_072,
            contacts_per_user_max: 10,
            events_max: 4_096,
            legs_max: 16_384,
        }
    }
}

/// What a shard is told once. Everything random is drawn by the caller.
#[derive(Clone)]
pub struct Settings {
    /// The realm, also the domain of all SIP addresses here.
    pub realm: String,
    /// Digest algorithms offered to telephones, preferred first.
    pub algorithms: Vec<DigestName>,
    /// Where it listens, in the order of [`crate::Flow::listener`].
    pub listening: Vec<Listening>,
    /// Differs between the frontends of a site.
    pub replica: u16,
    /// Differs between the starts of this frontend.
    pub boot: u32,
    /// Which of the frontend's shards this is.
    pub shard: u8,
    /// Longest registration of an agent, in seconds.
    pub registration_secs_max: u32,
    /// A connection over which nothing comes for so many seconds is closed.
    pub connection_idle_s: u32,
    /// Registrations of telephones.
    pub phones: Phones,
    /// Where users can be called, of all shards.
    pub locations: Arc<Locations>,
    /// Requests a second that may be said within one relayed call, and twice that at once.
    pub dialog_requests_per_s: u32,
    /// As many bytes a second as so many answers of 512 go to the senders of one /24 (IPv6: /64) that have proved nothing.
    pub unproved_answers_per_s: u32,
    /// How it meets more requests than it can serve.
    pub overload: Overload,
    /// Which calls it lets in all the same.
    pub emergency: Arc<Emergency>,
    /// Listeners in front of which what it would refuse is refused already.
    pub sieved: Arc<[u8]>,
    /// Sizes of its tables.
    pub tables: Tables,
    /// Key of dialog tags, cookies, branches and pseudonyms. Lasts over restarts.
    pub dialog_key: Arc<Zeroizing<[u8; 32]>>,
    /// Key of nonces and call ids. New at every start, and different in every shard.
    pub start_key: Arc<Zeroizing<[u8; 32]>>,
    /// Further addresses that agents dial, which a NAT in front of this frontend makes into those of `listening`.
    pub advertise: Vec<SocketAddr>,
    /// This frontend's own key, which the site certified.
    pub replica_key: Arc<ReplicaKey>,
    /// What agents' digests are checked against now.
    pub agents: Arc<AgentKeys>,
    /// Wrong digests of all shards.
    pub guesses: Arc<Guesses>,
    /// Who is refused for sending too much, of all shards.
    pub limits: Arc<Limits>,
    /// Which SIP servers do not answer, of all shards.
    pub outages: Arc<Outages>,
    /// Messages that operators want to see.
    pub traces: Arc<Traces>,
    /// Signs portable copies of grants.
    pub issuer: Arc<IssuerKey>,
}

impl Settings {
    /// Transport and local address of a flow; the first ones for numbers that there are not.
    pub(crate) fn listening(&self, listener: u8) -> Listening {
        let listening = self.listening.get(usize::from(listener)).or(self.listening.first());
        let nowhere = || Listening::udp(SocketAddr::from(([127, 0, 0, 1], 5060)));
        listening.copied().unwrap_or_else(nowhere)
    }

    /// The listening address number `listener`.
    pub(crate) fn address(&self, listener: u8) -> SocketAddr {
        self.listening(listener).address
    }

    /// Our own addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.listening.iter().map(|listening| listening.address)
    }

    /// Our own addresses, and those that a NAT makes into each.
    pub(crate) fn places(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses().chain(self.listening.iter().filter_map(|listening| listening.advertise))
    }

    /// Whatever agents may dial to reach us.
    pub(crate) fn dialled(&self) -> impl Iterator<Item = SocketAddr> {
        self.places().chain(self.advertise.iter().copied())
    }

    /// As what a peer knows the listener of this flow: behind a NAT by the address outside, unless the peer is behind the same.
    fn known(&self, flow: Flow) -> (Transport, SocketAddr) {
        let Listening { transport, address, advertise } = self.listening(flow.listener);
        let outside = advertise.filter(|_| !is_private(flow.peer.ip()));
        (transport, outside.unwrap_or(address))
    }

    /// Our Via in what goes out there: answers are to come to the port that the peer saw.
    pub(crate) fn via<'b>(&self, to: Flow, branch: &'b [u8]) -> ViaLine<'b> {
        let (transport, sent_by) = self.known(to);
        ViaLine { transport, sent_by, branch, rport: true }
    }

    /// How this peer reaches us, as a URI says it: address, port and parameter.
    pub(crate) fn place(&self, peer: Flow) -> String {
        let (transport, address) = self.known(peer);
        place(address, transport)
    }

    /// The way to a peer: by the first listener of its address family that speaks this. `None` without one.
    pub(crate) fn way(&self, transport: Transport, peer: SocketAddr) -> Option<Flow> {
        let is_meant = |own: &Listening| own.transport == transport && own.address.is_ipv4() == peer.is_ipv4();
        let listener = self.listening.iter().position(is_meant)?;
        Some(Flow::datagrams(u8::try_from(listener).ok()?, peer))
    }
}

/// An address and how it is spoken to, as a URI says it (RFC 3261 section 19.1.1): UDP is what nobody has to say.
pub(crate) fn place(address: SocketAddr, transport: Transport) -> String {
    match transport {
        Transport::Udp => address.to_string(),
        Transport::Tcp | Transport::Tls => format!("{address};transport={}", transport.param()),
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("realm", &self.realm)
            .field("listening", &self.listening)
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

/// A digest algorithm as named in configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DigestName {
    /// SHA-256 (RFC 7616, RFC 8760).
    #[serde(rename = "SHA-256")]
    Sha256,
    /// MD5, for old telephones.
    #[serde(rename = "MD5")]
    Md5,
}
