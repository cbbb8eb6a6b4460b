//! What gates say of grants that are open with them, and of where services take SIP.

use std::net::SocketAddr;

use sluicegate_feed::ActiveGrant;
use sluicegate_grant::relay::RelayKeys;
use sluicegate_policy::ServiceMode;
use sluicegate_wire::Instant;

use super::Hub;
use sluicegate_proxy::{Input, Standing};

impl Hub {
    /// What is open at a gate. It has no say in grants that are not ours, nor in services that another gate protects.
    pub(super) fn on_active(&self, name: &str, grants: &[ActiveGrant]) {
        let own = self.issuer.public().id();
        for active in grants {
            let grant = &active.delta.grant;
            if grant.check().is_err() || grant.issuer != own || !self.holders.may_hold(name, &active.delta.service) {
                continue;
            }
            if let Err(full) = self.ledger.active(active, name) {
                tracing::warn!(gate = name, %full, "a gate's grants do not all fit into the directory");
                break;
            }
            self.stories.known(self.clock.unix(), active);
        }
    }

    /// A gate has said all that is open there.
    pub(super) fn has_said(&mut self, name: &str) {
        if self.gates.contains_key(name) {
            self.heard.insert(name.to_owned());
        }
        self.ledger.set_partial(self.is_partial(self.clock.now()));
    }

    /// Whether gates have yet to say what they have had open since before this start. One that stays away is not waited for.
    pub(super) fn is_partial(&self, now: Instant) -> bool {
        let has_silent = self.gates.keys().any(|name| !self.heard.contains(name));
        self.hears_until.is_none_or(|until| now < until && has_silent)
    }

    /// Where a service takes SIP: believed of the gate that protects the service alone, and only an address of that gate.
    /// A gate on this host stands beside the frontend's own way to the service, not in it.
    pub(super) fn on_standing(&mut self, name: &str, service: String, (address, salt): (SocketAddr, u64)) {
        let status = self.gates.get(name).map(|gate| &gate.status);
        let is_local = status.is_some_and(|status| status.is_local);
        let dialled_from = status.and_then(|status| status.peer).map(|peer| peer.ip());
        let known = self.services.get(&service);
        let is_held = self.gate_of(&service).as_deref() == Some(name);
        let is_own = known.is_some_and(|known| match known.mode {
            ServiceMode::Filter => address.ip() == known.address,
            ServiceMode::Nat => self.holders.is_address(name, dialled_from, address.ip()),
        });
        if !is_held || !(is_local || is_own) {
            tracing::warn!(
                gate = name, service, %address, is_held,
                "a gate names an address for a service's SIP that is not its own to name; see [[frontend.gate]]"
            );
            return;
        }
        let keys = RelayKeys::derive(&self.relay_keys(name, &service), salt);
        let standing = (!is_local).then_some(Standing { address, keys });
        self.tell_all(&Input::Standing { service, standing });
    }
}
