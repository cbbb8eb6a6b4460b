use sluicegate_capability::host::{ClientIds, ClientPolicy, Config, Host, Inbound, Policy, ServerConfig, ServerPolicy};
use sluicegate_wire::{
    FrameBuf, Instant,
    capability::{ClientId, Limits},
};

use crate::Rng;

/// The longest packet that a shim sends of itself, in bytes.
const OWN_BYTES_MAX: usize = 1_600;

/// The product's capability shim between a host and its link, with the policy by which the host lets others send.
pub struct Shim {
    host: Host,
    policy: Box<dyn Policy>,
}

impl Shim {
    /// A shim with room for this many peers.
    #[must_use]
    pub fn new(peers_max: u32, policy: impl Policy + 'static, seed: u64) -> Self {
        let config = Config { peers_max, remotes_max: peers_max, ..Config::default() };
        Self { host: Host::new(config, Rng::new(seed).seed()), policy: Box::new(policy) }
    }

    /// The shim of a client, whose own requests allow answers with these limits.
    #[must_use]
    pub fn of_client(limits: Limits, seed: u64) -> Self {
        Self::new(16, ClientPolicy::new(ClientIds::Fixed(ClientId::NONE), limits), seed)
    }

    /// The shim of a public server with room for this many peers, which grants these limits to everybody, however fast they
    /// send.
    #[must_use]
    pub fn of_server(peers_max: u32, limits: Limits, seed: u64) -> Self {
        let config = ServerConfig { limits, flood_bytes_per_s: u64::MAX, ..ServerConfig::default() };
        Self::new(peers_max, ServerPolicy::new(config, Rng::of(seed, 1).key()), seed)
    }

    /// A packet of the host on its way out; whether it may go.
    pub(super) fn outbound(&mut self, now: Instant, packet: &mut FrameBuf) -> bool {
        packet.with(|frame| self.host.outbound(now, self.policy.as_mut(), frame)).is_ok()
    }

    /// A packet from the link; whether something of it is for the host.
    pub(super) fn inbound(&mut self, now: Instant, packet: &mut FrameBuf) -> bool {
        let judged = packet.with(|frame| self.host.inbound(now, self.policy.as_mut(), frame));
        judged.is_ok_and(|inbound| inbound != Inbound::Consumed)
    }

    /// The next packet of the shim itself.
    pub(super) fn poll_output(&mut self, now: Instant) -> Option<FrameBuf> {
        let mut packet = FrameBuf::from_bytes(&[0; OWN_BYTES_MAX]);
        let is_written = packet.with(|frame| {
            frame.truncate(0);
            self.host.poll_output(now, frame)
        });
        is_written.then_some(packet)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.host.poll_timeout()
    }
}
