//! Which grants a client id belongs to, so that a request for a capability costs one look-up.

use sluicegate_grant::{Grant, GrantId};
use std::collections::HashMap;

/// Grants of one client id that are looked at: a call opens a port range each, and all have the same id.
const GRANTS_PER_CLIENT_MAX: usize = 32;

/// The clients of open grants. Changed by the control side's commands only, never by a packet. Where a client sends from
/// is for the translator to say: an agent proves that, and may move.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    grants: HashMap<u32, Vec<GrantId>>,
    owners: HashMap<GrantId, u32>,
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
    use crate::samples;

    #[test]
    fn a_client_is_known_while_one_of_its_grants_is_open() {
        let grant = |number| Grant { client_id: 5, ..samples::grant(number) };
        let mut clients = Clients::default();
        clients.add(&grant(1));
        clients.add(&grant(2));
        clients.add(&grant(2));
        clients.add(&samples::grant(3));
        assert_eq!(clients.grants(5), [grant(1).id, grant(2).id]);
        assert_eq!(clients.grants(0), [], "without an id nobody is known");
        assert_eq!(clients.remove(grant(1).id), Some(5));
        assert_eq!(clients.remove(grant(1).id), None);
        clients.remove(grant(2).id);
        assert!(clients.grants.is_empty() && clients.owners.is_empty());
    }
}
