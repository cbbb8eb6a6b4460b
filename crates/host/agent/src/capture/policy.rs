//! Whom this host lets send to it, and by which client ids it sends: those of its grants.

use sluicegate_capability::host::{
    ClientIds, ClientPolicy, Decision, Flow, Policy, Received, Request, ServerPolicy, Unexpected,
};
use sluicegate_wire::{
    Instant,
    capability::{ClientId, Limits},
};

use super::{Role, redirects::Redirects};

/// What an answering server may send before it must renew: the most that a capability can say, over a minute.
const CLIENT_GRANT: (u16, u8) = (1_023, 60);

/// The policy of a client, or of a server.
pub(super) enum Rules {
    Client(ClientPolicy),
    Server(ServerPolicy),
}

impl Rules {
    /// The rules of this role; `key` is secret.
    pub(super) fn new(role: Role, key: [u8; 16]) -> Self {
        match role {
            Role::Client => {
                let limits = Limits::new(CLIENT_GRANT.0, CLIENT_GRANT.1)
                    .unwrap_or_else(|| unreachable!("a capability can say this"));
                Self::Client(ClientPolicy::new(ClientIds::Fixed(ClientId::NONE), limits))
            }
            Role::Server(config) => Self::Server(ServerPolicy::new(config, key)),
        }
    }

    /// With the client ids of the grants held now.
    pub(super) const fn with<'r>(&'r mut self, redirects: &'r Redirects) -> HostPolicy<'r> {
        HostPolicy { rules: self, redirects }
    }

    fn inner(&mut self) -> &mut dyn Policy {
        match self {
            Self::Client(policy) => policy,
            Self::Server(policy) => policy,
        }
    }
}

/// Rules and grants together, for one packet.
pub(super) struct HostPolicy<'r> {
    rules: &'r mut Rules,
    redirects: &'r Redirects,
}

impl Policy for HostPolicy<'_> {
    fn client_id(&mut self, flow: &Flow) -> Option<ClientId> {
        let granted =
            flow.ports.and_then(|ports| self.redirects.client_id(flow.protocol, (flow.remote, ports.dst).into()));
        granted.or_else(|| self.rules.inner().client_id(flow))
    }

    fn decide(&mut self, now: Instant, request: &Request) -> Decision {
        let mut request = *request;
        if self.redirects.has_client_id(request.client_id) {
            // A gate that answers under the id of our grant answers us.
            request.client_id = ClientId::NONE;
        }
        self.rules.inner().decide(now, &request)
    }

    fn received(&mut self, now: Instant, received: &Received) {
        self.rules.inner().received(now, received);
    }

    fn unexpected(&mut self, now: Instant, event: &Unexpected) -> bool {
        self.redirects.has_client_id(event.client_id) || self.rules.inner().unexpected(now, event)
    }
}
