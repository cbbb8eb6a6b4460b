//! What the control side knows about services and grants: their names, for `grant ls`, for selectors and for the
//! packet thread's service numbers. The packet thread alone decides what passes; this is never asked for a packet.

use crate::config::PINHOLES_MAX_MAX;
use serde::{Deserialize, Serialize};
use sluicegate_capability::{Grant, GrantId};
use sluicegate_store::feed::{FeedService, Selector, SelectorKind};
use sluicegate_wire::UnixTime;
use std::{collections::BTreeMap, net::IpAddr};

/// Services of one gate.
pub(crate) const SERVICES_MAX: usize = 1024;

/// A grant that is open here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The grant as issued (136 bytes).
    #[serde(with = "body")]
    pub(crate) grant: Grant,
    pub(crate) user: String,
    pub(crate) service: String,
    pub(crate) target: IpAddr,
    pub(crate) target_ports: (u16, u16),
    /// What the gate opened.
    pub(crate) address: IpAddr,
    pub(crate) ports: (u16, u16),
    /// Order among all installs and ends, as counted by the packet thread.
    pub(crate) stamp: u64,
}

/// A service and the number by which the packet thread knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NumberedService {
    pub(crate) number: u16,
    pub(crate) service: FeedService,
}

/// One change, as the journal keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// A service appeared or changed.
    Service(NumberedService),
    /// A grant was opened or renewed.
    Opened(Entry),
    /// A grant ended.
    Ended {
        id: GrantIdBytes,
        stamp: u64,
    },
}

/// A grant id in a record.
pub(crate) type GrantIdBytes = [u8; 16];

/// Why the ledger refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error("the gate knows {SERVICES_MAX} services already")]
    ServicesFull,
}

/// Services and open grants by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    services: BTreeMap<String, NumberedService>,
    grants: BTreeMap<GrantIdBytes, Entry>,
    next_number: u16,
}

impl Ledger {
    /// Takes a service in; `None` if it is known exactly so. A known name keeps its number.
    pub(crate) fn set_service(&mut self, service: FeedService) -> Result<Option<Record>, LedgerError> {
        let known = self.services.get(&service.name);
        if known.is_some_and(|known| known.service == service) {
            return Ok(None);
        }
        let number = match known {
            Some(known) => known.number,
            None if self.services.len() >= SERVICES_MAX => return Err(LedgerError::ServicesFull),
            None => self.next_number,
        };
        let numbered = NumberedService { number, service };
        let record = Record::Service(numbered);
        self.apply(record.clone());
        Ok(Some(record))
    }

    /// Notes that a grant was opened or renewed.
    pub(crate) fn opened(&mut self, entry: Entry) -> Record {
        let record = Record::Opened(entry);
        self.apply(record.clone());
        record
    }

    /// Notes that a grant ended, and returns what it was; `None` if it is not known or was opened again since.
    pub(crate) fn ended(&mut self, id: GrantId, stamp: u64) -> Option<(Entry, Record)> {
        let entry = self.grants.get(&id.0).filter(|entry| entry.stamp <= stamp)?.clone();
        let record = Record::Ended { id: id.0, stamp };
        self.apply(record.clone());
        Some((entry, record))
    }

    /// Applies a record, from the journal or just made.
    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Service(numbered) => {
                self.next_number = self.next_number.max(numbered.number.saturating_add(1));
                self.services.insert(numbered.service.name.clone(), numbered);
            }
            Record::Opened(entry) if self.grants.len() < PINHOLES_MAX_MAX => {
                self.grants.insert(entry.grant.id.0, entry);
            }
            Record::Opened(_) => {}
            Record::Ended { id, stamp } => {
                if self.grants.get(&id).is_some_and(|entry| entry.stamp <= stamp) {
                    self.grants.remove(&id);
                }
            }
        }
    }

    /// The service of that name.
    pub(crate) fn service(&self, name: &str) -> Option<&NumberedService> {
        self.services.get(name)
    }

    /// All services, by name.
    pub(crate) fn services(&self) -> impl Iterator<Item = &NumberedService> {
        self.services.values()
    }

    /// The grant with that id.
    pub(crate) fn grant(&self, id: GrantId) -> Option<&Entry> {
        self.grants.get(&id.0)
    }

    /// All open grants, by id; those of one call follow each other.
    pub(crate) fn grants(&self) -> impl Iterator<Item = &Entry> {
        self.grants.values()
    }

    /// Number of open grants.
    pub(crate) fn grants_len(&self) -> usize {
        self.grants.len()
    }

    /// Ids of the open grants that `selector` names.
    pub(crate) fn select(&self, selector: &Selector) -> Vec<GrantId> {
        self.grants().filter(|entry| is_selected(entry, selector)).map(|entry| entry.grant.id).collect()
    }

    /// Forgets the grants that `keep` does not name: those that ended while nobody listened.
    pub(crate) fn retain(&mut self, keep: impl Fn(GrantId) -> bool) {
        self.grants.retain(|id, _| keep(GrantId(*id)));
    }

    /// Largest stamp of any grant.
    pub(crate) fn stamp_max(&self) -> u64 {
        self.grants().map(|entry| entry.stamp).max().unwrap_or(0)
    }
}

fn is_selected(entry: &Entry, selector: &Selector) -> bool {
    let named = match &selector.kind {
        SelectorKind::Grant(id) => entry.grant.id == *id,
        SelectorKind::Call(call) => entry.grant.id.call() == *call,
        SelectorKind::User(user) => entry.user == *user,
        SelectorKind::Service(service) => entry.service == *service,
    };
    named && selector.issued_before.is_none_or(|before| issued_at(entry) < before)
}

/// A grant is issued at the start of its validity.
fn issued_at(entry: &Entry) -> UnixTime {
    entry.grant.not_before
}

mod body {
    //! A grant in its 136-byte form.

    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use sluicegate_capability::Grant;

    pub(super) fn serialize<S: Serializer>(grant: &Grant, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&grant.encode())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Grant, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Grant::decode(&bytes).map_err(D::Error::custom)
    }
}
