//! Which grants a client id belongs to, so that a request for a capability costs one look-up.

use alloc::{collections::BTreeMap, vec::Vec};
use sluicegate_grant::{Grant, GrantId};

/// Grants of one client id that are looked at: a call opens a port range each, and all have the same id.
const GRANTS_PER_CLIENT_MAX: usize = 32;

/// The clients of open grants. Changed by the control side's commands only, never by a packet. Where a client sends from
/// is for the translator to say: an agent proves that, and may move.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    grants: BTreeMap<u32, Vec<GrantId>>,
    owners: BTreeMap<GrantId, u32>,
}

impl Clients {
    /// A grant was opened or renewed.
    pub(crate) fn add(&mut self, grant: &Grant) {
        self.remove(grant.id);
        // Id 0 is nobody's: whoever has no grant sends it.
        if grant.client_id == 0 {
            return;
        }
        let grants = self.grants.entry(grant.client_id).or_default();
        if grants.len() < GRANTS_PER_CLIENT_MAX {
            grants.push(grant.id);
            self.owners.insert(grant.id, grant.client_id);
        }
    }

    /// A grant ended. Gives whose it was.
    pub(crate) fn remove(&mut self, id: GrantId) -> Option<u32> {
        let owner = self.owners.remove(&id)?;
        if let Some(grants) = self.grants.get_mut(&owner) {
            grants.retain(|grant| *grant != id);
            if grants.is_empty() {
                self.grants.remove(&owner);
            }
        }
        Some(owner)
    }

    /// The grants of this client.
    pub(crate) fn grants(&self, client_id: u32) -> &[GrantId] {
        self.grants.get(&client_id).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr};
    use sluicegate_grant::{ANY_PORTS, DataMode, Protocol};
    use sluicegate_wire::UnixTime;

    fn grant_of(number: u8, client_id: u32) -> Grant {
        let anywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Grant {
            flags: 0,
            least_mode: DataMode::Pinhole,
            protocol: Protocol::UDP,
            id: GrantId::of_call([number; 12], 0),
            issuer: [9; 8],
            epoch: 0,
            not_before: UnixTime(0),
            not_after: UnixTime(60),
            bytes: 1,
            client_id,
            flows: 1,
            rate_100kbps: 0,
            client_address: anywhere,
            client_ports: ANY_PORTS,
            gate_address: anywhere,
            gate_ports: (0, 0),
            holder: [0; 32],
            user_pseudonym: [0; 8],
        }
    }

    #[test]
    fn a_client_is_known_while_one_of_its_grants_is_open() {
        let grant = |number| grant_of(number, 5);
        let mut clients = Clients::default();
        clients.add(&grant(1));
        clients.add(&grant(2));
        clients.add(&grant(2));
        clients.add(&grant_of(3, 0));
        assert_eq!(clients.grants(5), [grant(1).id, grant(2).id]);
        assert_eq!(clients.grants(0), [], "without an id nobody is known");
        assert_eq!(clients.remove(grant(1).id), Some(5));
        assert_eq!(clients.remove(grant(1).id), None);
        clients.remove(grant(2).id);
        assert!(clients.grants.is_empty() && clients.owners.is_empty());
    }
}
