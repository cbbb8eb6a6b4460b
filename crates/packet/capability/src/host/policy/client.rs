use core::net::IpAddr;

use siphasher::sip::SipHasher24;
use sluicegate_wire::{
    Instant,
    capability::{ClientId, Limits},
    ip::octets,
};
use zeroize::Zeroizing;

use super::{Decision, Flow, Policy, Request, Unexpected};

/// The client ids by which local hosts send.
pub enum ClientIds {
    /// One for all.
    Fixed(ClientId),
    /// One for each local address, computed from a key: an edge box for a LAN needs no table, and an outsider can
    /// guess none.
    PerHost(Zeroizing<[u8; 16]>),
}

impl ClientIds {
    /// The client id of this local address.
    #[must_use]
    pub fn of(&self, local: IpAddr) -> ClientId {
        match self {
            Self::Fixed(id) => *id,
            Self::PerHost(key) => {
                let hash = SipHasher24::new_with_key(key).hash(&octets(local));
                ClientId((hash as u32).max(1))
            }
        }
    }
}

/// The policy of a host that serves nobody (TVA III-C): it may contact any server, and nobody may contact it.
///
/// It grants requests that answer its own, under its own client id or none, and refuses all others.
pub struct ClientPolicy {
    ids: ClientIds,
    limits: Limits,
}

impl ClientPolicy {
    /// Sends as `ids`, and grants `limits` to those who answer.
    #[must_use]
    pub const fn new(ids: ClientIds, limits: Limits) -> Self {
        Self { ids, limits }
    }
}

impl Policy for ClientPolicy {
    fn client_id(&mut self, flow: &Flow) -> Option<ClientId> {
        Some(self.ids.of(flow.local))
    }

    fn decide(&mut self, _now: Instant, request: &Request) -> Decision {
        let known = request.client_id == ClientId::NONE || request.client_id == self.ids.of(request.local);
        match (request.answers_mine, known) {
            (true, true) => Decision::Grant(self.limits),
            // A stranger's address may be forged; a refusal would only help to reflect packets.
            _ => Decision::Silent,
        }
    }

    fn unexpected(&mut self, _now: Instant, event: &Unexpected) -> bool {
        event.client_id == ClientId::NONE || event.client_id == self.ids.of(event.local)
    }
}
