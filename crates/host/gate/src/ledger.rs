//! What the control side knows about services and grants: their names, for `grant ls`, for selectors and for the
//! packet thread's service numbers. The packet thread alone decides what passes; this is never asked for a packet.

use crate::config::PINHOLES_MAX_MAX;
use serde::{Deserialize, Serialize};
use sluicegate_feed::{FeedService, GrantDelta, Resume, Selected, Selector};
use sluicegate_grant::{GrantId, ISSUER_ID_LEN};
use std::{collections::BTreeMap, net::IpAddr};

/// Services of one gate.
pub(crate) const SERVICES_MAX: usize = 1024;
/// Issuers whose place in the feed is remembered.
const ISSUERS_MAX: usize = 64;

/// Identifier of an issuer key.
pub(crate) type IssuerId = [u8; ISSUER_ID_LEN];

/// Stands for the gate's own file among those who announce services.
pub(crate) const OWN_ISSUER: IssuerId = [0; ISSUER_ID_LEN];

/// A grant that is open here: one that can be (see [`sluicegate_grant::Grant::check`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// As it came, without its session key.
    pub(crate) delta: GrantDelta,
    /// What the gate opened for it.
    pub(crate) address: IpAddr,
    pub(crate) ports: (u16, u16),
    /// Order among all installs and ends, as counted by the packet thread.
    pub(crate) stamp: u64,
}

/// A service and the number by which the packet thread knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) number: u16,
    pub(crate) service: FeedService,
    /// Feeds that announce it. The first owns the name: the others announce the same, or are refused.
    pub(crate) issuers: Vec<IssuerId>,
}

impl Listed {
    /// Whether this announcement describes the same service. Where SIP comes from differs from frontend to frontend.
    fn is_same(&self, other: &FeedService) -> bool {
        let port = |service: &FeedService| service.sip.as_ref().map(|sip| sip.port);
        let own = &self.service;
        (own.mode, own.address, own.default, own.outbound, &own.ports, port(own))
            == (other.mode, other.address, other.default, other.outbound, &other.ports, port(other))
    }
}

/// One change, as the journal keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// A service appeared or changed.
    Service(Listed),
    /// No feed announces this service any more.
    ServiceForgotten(String),
    /// A grant was opened or renewed.
    Opened(Box<Entry>),
    /// A grant ended.
    Ended { id: [u8; 16], stamp: u64 },
    /// Everything up to here was applied.
    Applied(Resume),
}

/// Why the ledger refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error("the gate knows {SERVICES_MAX} services already; remove some")]
    ServicesFull,
    #[error(
        "another frontend, or the gate's own file, describes the service {0:?} differently and was first; use another \
         name, or change it there first and then restart this frontend"
    )]
    Owned(String),
}

/// Services and open grants by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    services: BTreeMap<String, Listed>,
    grants: BTreeMap<[u8; 16], Entry>,
    resumes: BTreeMap<IssuerId, Resume>,
    next_number: u16,
}

impl Ledger {
    /// What the service would be listed as if this feed's announcement is accepted. A known name keeps its number.
    pub(crate) fn announced(&self, issuer: IssuerId, service: FeedService) -> Result<Listed, LedgerError> {
        if let Some(known) = self.services.get(&service.name) {
            let owns = known.issuers.first().is_none_or(|owner| *owner == issuer);
            let is_own_file = known.issuers.first() == Some(&OWN_ISSUER);
            let agrees = known.is_same(&service)
                || (is_own_file
                    && (known.service.address, known.service.default) == (service.address, service.default));
            if !owns && !agrees {
                return Err(LedgerError::Owned(service.name));
            }
            let mut issuers = known.issuers.clone();
            if !issuers.contains(&issuer) {
                issuers.push(issuer);
            }
            let service = if owns { service } else { known.service.clone() };
            return Ok(Listed { number: known.number, service, issuers });
        }
        if self.services.len() >= SERVICES_MAX {
            return Err(LedgerError::ServicesFull);
        }
        // Not the number of a service that is gone, as far as possible: its grants may still be open.
        let mut number = self.next_number;
        while self.services.values().any(|listed| listed.number == number) {
            number = number.wrapping_add(1);
        }
        Ok(Listed { number, service, issuers: vec![issuer] })
    }

    /// What the gate's own file describes is listed as it says, whoever was first.
    pub(crate) fn own(&mut self, service: FeedService) -> Result<(), LedgerError> {
        if let Some(known) = self.services.get_mut(&service.name) {
            known.issuers.retain(|issuer| *issuer != OWN_ISSUER);
            known.issuers.insert(0, OWN_ISSUER);
        }
        let listed = self.announced(OWN_ISSUER, service)?;
        self.apply(Record::Service(listed));
        Ok(())
    }

    /// Names of frontends that this gate does not follow any more own nothing.
    pub(crate) fn only_issuers(&mut self, known: &[IssuerId]) {
        for listed in self.services.values_mut() {
            listed.issuers.retain(|issuer| known.contains(issuer));
        }
    }

    /// What changes when this feed withdraws the service; `None` if it does not announce it.
    pub(crate) fn withdrawn(&self, issuer: IssuerId, name: &str) -> Option<Record> {
        let mut listed = self.services.get(name).filter(|listed| listed.issuers.contains(&issuer))?.clone();
        listed.issuers.retain(|other| *other != issuer);
        Some(if listed.issuers.is_empty() {
            Record::ServiceForgotten(name.to_owned())
        } else {
            Record::Service(listed)
        })
    }

    /// Applies a record: one just made, or one from the journal.
    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Service(listed) => {
                self.next_number = listed.number.wrapping_add(1);
                self.services.insert(listed.service.name.clone(), listed);
            }
            Record::ServiceForgotten(name) => {
                self.services.remove(&name);
            }
            Record::Opened(entry) => self.open(*entry),
            Record::Ended { id, stamp } => {
                if self.grants.get(&id).is_some_and(|entry| entry.stamp <= stamp) {
                    self.grants.remove(&id);
                }
            }
            Record::Applied(resume) => {
                if self.resumes.len() < ISSUERS_MAX || self.resumes.contains_key(&resume.issuer) {
                    self.resumes.insert(resume.issuer, resume);
                }
            }
        }
    }

    fn open(&mut self, mut entry: Entry) {
        let grant = &entry.delta.grant;
        if grant.check().is_err() {
            return;
        }
        let id = grant.id.0;
        match self.grants.get(&id) {
            // An older message that came again changes nothing but its place in the order.
            Some(known) if known.delta.grant.not_after > grant.not_after => {
                entry.delta = known.delta.clone();
            }
            None if self.grants.len() >= PINHOLES_MAX_MAX as usize => return,
            _ => {}
        }
        self.grants.insert(id, entry);
    }

    /// The grant that ended at `stamp`; `None` if it is not known, or was opened again since.
    pub(crate) fn ended(&self, id: GrantId, stamp: u64) -> Option<&Entry> {
        self.grants.get(&id.0).filter(|entry| entry.stamp <= stamp)
    }

    /// The service of that name.
    pub(crate) fn service(&self, name: &str) -> Option<&Listed> {
        self.services.get(name)
    }

    /// All services, by name.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Listed> {
        self.services.values()
    }

    /// A copy of the services alone.
    pub(crate) fn without_grants(&self) -> Self {
        Self { services: self.services.clone(), next_number: self.next_number, ..Self::default() }
    }

    /// The grant with that id.
    pub(crate) fn grant(&self, id: GrantId) -> Option<&Entry> {
        self.grants.get(&id.0)
    }

    /// All open grants, by id; those of one call follow each other.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (GrantId, &Entry)> {
        self.grants.iter().map(|(id, entry)| (GrantId(*id), entry))
    }

    /// Number of open grants.
    pub(crate) fn grants_len(&self) -> usize {
        self.grants.len()
    }

    /// Ids of the open grants that `selector` names, of one issuer or of all.
    pub(crate) fn select(&self, selector: &Selector, issuer: Option<IssuerId>) -> Vec<GrantId> {
        let selected = |GrantDelta { grant, user, service, .. }: &GrantDelta| {
            issuer.is_none_or(|issuer| grant.issuer == issuer) && selector.selects(grant, user, service)
        };
        let (first, last) = match &selector.what {
            Selected::Grant(GrantId(id)) => (*id, *id),
            Selected::Call(call) => (GrantId::of_call(*call, 0).0, GrantId::of_call(*call, u32::MAX).0),
            Selected::User(_) | Selected::Service(_) => ([0; 16], [u8::MAX; 16]),
        };
        let among = self.grants.range(first..=last);
        among.filter(|(_, entry)| selected(&entry.delta)).map(|(id, _)| GrantId(*id)).collect()
    }

    /// Ids of the open grants of one issuer.
    pub(crate) fn of_issuer(&self, issuer: IssuerId) -> Vec<GrantId> {
        self.grants().filter(|(_, entry)| entry.delta.grant.issuer == issuer).map(|(id, _)| id).collect()
    }

    /// Forgets the grants that `keep` does not name: those that ended while nobody listened.
    pub(crate) fn retain(&mut self, keep: impl Fn(GrantId) -> bool) {
        self.grants.retain(|id, _| keep(GrantId(*id)));
    }

    /// Largest stamp of any grant.
    pub(crate) fn stamp_max(&self) -> u64 {
        self.grants.values().map(|entry| entry.stamp).max().unwrap_or(0)
    }

    /// Forgets where every feed left off.
    pub(crate) fn forget_resumes(&mut self) {
        self.resumes.clear();
    }

    /// Where the feed of `issuer` left off.
    pub(crate) fn resume(&self, issuer: IssuerId) -> Option<Resume> {
        self.resumes.get(&issuer).copied()
    }
}

#[cfg(test)]
mod tests;
