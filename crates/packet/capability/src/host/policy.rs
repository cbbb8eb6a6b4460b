//! Whom a host allows to send to it.

use core::{net::IpAddr, time::Duration};

use sluicegate_wire::{
    Instant, IpProtocol,
    capability::{ClientId, Limits, PathId},
    ip::Ports,
};

mod client;
mod granted;
mod server;

pub use client::{ClientIds, ClientPolicy};
pub use granted::{Budget, LIMITS_KILOBYTES_MIN};
pub use server::{Renew, ServerConfig, ServerPolicy};

/// How many path identifiers a policy sees.
pub const PATH_MAX: usize = 5;

/// A flow as its local host sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The local host.
    pub local: IpAddr,
    /// The remote host.
    pub remote: IpAddr,
    /// The transport.
    pub protocol: IpProtocol,
    /// `src` is the local port, `dst` the remote one; `None` where the transport has none.
    pub ports: Option<Ports>,
}

/// A request for a capability, as a policy judges it.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The destination: a local host.
    pub local: IpAddr,
    /// Who asks. Anybody can forge it, unless [`Self::proven`].
    pub remote: IpAddr,
    /// The client id that the capability is to be bound to.
    pub client_id: ClientId,
    /// What the request rode on; 59 if on nothing.
    pub upper: IpProtocol,
    /// Its ports, where `src` is the remote one.
    pub ports: Option<Ports>,
    /// The path that it came by, most recent first; [`PathId::NONE`] behind the last.
    pub path: [PathId; PATH_MAX],
    /// Whether it renews a capability that the routers found good.
    pub renewal: bool,
    /// Whether a local host has sent to this peer of its own accord within the last minute.
    pub answers_mine: bool,
    /// Whether the peer has proved that it receives at its address; a renewal: with this very packet.
    pub proven: bool,
    /// The measured time from an answer to its first use; the peer can make it longer, and only shorter by being near.
    pub rtt: Option<Duration>,
    /// The newest grant, if the peer has never used it and this request would get the very same capabilities for it:
    /// routers minted the same pre-capabilities again.
    pub repeats: Option<Limits>,
    /// Whether the newest grant was given just now, and the peer may not have heard of it.
    pub answering: bool,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The peer may send so much.
    Grant(Limits),
    /// The peer is told again what it was granted last, which it has not heard: only while that is [`Request::answering`].
    Again,
    /// The peer is told to stop asking.
    Refuse,
    /// The peer is told nothing: it will ask again.
    Silent,
}

/// A regular packet of a sender that received what this host granted: it proves that, or routers that minted for it let
/// it pass.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// The sender.
    pub remote: IpAddr,
    /// Bytes that routers found allowed.
    pub bytes: u64,
    /// The first packet with a capability that was not renewed but asked for anew: what that allows.
    pub asked_anew: Option<Limits>,
}

/// Something that a sender with good intentions does not do, or a router that lost its memory makes it do.
#[derive(Debug, Clone, Copy)]
pub struct Unexpected {
    /// The destination.
    pub local: IpAddr,
    /// The sender. Anybody can forge it, unless [`Self::proven`].
    pub remote: IpAddr,
    /// The client id.
    pub client_id: ClientId,
    /// Whether the packet proves that its sender receives at its address.
    pub proven: bool,
    /// What happened.
    pub what: Misdeed,
}

/// What an unexpected packet was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misdeed {
    /// A regular packet with a nonce and a list that this host knows nothing of.
    UnknownNonce,
    /// The same, and routers had demoted it.
    UnknownDemoted,
    /// The sender exceeded twice its N.
    Overrun,
}

/// Whom a host allows to send to it, and by which name its own hosts send.
pub trait Policy {
    /// The client id of a flow as sender; `None`: that of the peer which the flow answers, or none.
    fn client_id(&mut self, flow: &Flow) -> Option<ClientId> {
        let _ = flow;
        None
    }

    /// Decides on a request or renewal. Never grants to a client id that it does not know.
    fn decide(&mut self, now: Instant, request: &Request) -> Decision;

    /// Hears of each regular packet of a proven sender.
    fn received(&mut self, now: Instant, received: &Received) {
        let _ = (now, received);
    }

    /// Hears of an unexpected packet. Returns whether a demotion notice may answer it; only asked where the sender
    /// has proved nothing, and bounded for all such senders together.
    fn unexpected(&mut self, now: Instant, event: &Unexpected) -> bool {
        let _ = (now, event);
        false
    }
}

/// How long a sender uses a capability: an eighth less than T, because routers count whole seconds of clocks of their
/// own, and no longer than they begin a line for it, which they do not in its last second.
pub(super) fn life(limits: Limits) -> Duration {
    let whole = Duration::from_secs(u64::from(limits.seconds()));
    (whole - whole / 8).min((whole - Duration::from_secs(1)).max(whole / 2))
}
