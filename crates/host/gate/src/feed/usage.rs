//! How much grants have used, asked in parts so that packets never wait long.

use crate::{ledger::IssuerId, packets::Command, shared::Shared};
use sluicegate_feed::{FromGate, GrantUsage, USAGE_MAX};
use sluicegate_grant::GrantId;
use sluicegate_pinhole::Usage;
use std::collections::BTreeMap;

/// Grants in one question to the packet thread.
const ASK_MAX: usize = 128;

/// What these grants have used; those that ended are left out.
pub(crate) async fn of(shared: &Shared, ids: &[GrantId]) -> BTreeMap<GrantId, Usage> {
    let mut usage = BTreeMap::new();
    for part in ids.chunks(ASK_MAX) {
        let ids = part.to_vec();
        match shared.commander.call(|answer| Command::Usage { ids, answer }).await {
            Ok(part) => usage.extend(part),
            Err(error) => tracing::debug!(%error, "usage not known"),
        }
    }
    usage
}

/// Remembers what a frontend was told, and tells it what changed.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    told: BTreeMap<GrantId, GrantUsage>,
}

impl Reporter {
    /// What changed since the last call, in as many messages as it takes.
    pub(crate) async fn changes(&mut self, shared: &Shared, issuer: IssuerId) -> Vec<FromGate> {
        let ids = shared.books.read().of_issuer(issuer);
        self.changed(of(shared, &ids).await)
    }

    fn changed(&mut self, usage: BTreeMap<GrantId, Usage>) -> Vec<FromGate> {
        let reported = |(id, used): (GrantId, Usage)| {
            let flows = u16::try_from(used.flows).unwrap_or(u16::MAX);
            let Usage { bytes_used, error_bytes, .. } = used;
            (id, GrantUsage { id, bytes_used, error_bytes, flows })
        };
        let now: BTreeMap<GrantId, GrantUsage> = usage.into_iter().map(reported).collect();
        let changed: Vec<GrantUsage> =
            now.values().filter(|used| self.told.get(&used.id) != Some(used)).copied().collect();
        self.told = now;
        changed.chunks(USAGE_MAX).map(|grants| FromGate::Usage { grants: grants.to_vec() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(grants: &[(u8, u64)]) -> BTreeMap<GrantId, Usage> {
        let used =
            |(id, bytes_used)| (GrantId([id; 16]), Usage { bytes_used, error_bytes: 0, bytes_left: 0, flows: 1 });
        grants.iter().map(|grant| used(*grant)).collect()
    }

    fn told(messages: &[FromGate]) -> Vec<(u8, u64)> {
        let grants = messages.iter().flat_map(|message| match message {
            FromGate::Usage { grants } => grants.clone(),
            other => panic!("{other:?}"),
        });
        grants.map(|grant| (grant.id.0[0], grant.bytes_used)).collect()
    }

    #[test]
    fn only_what_changed_is_told_and_what_ended_is_forgotten() {
        let mut reporter = Reporter::default();
        assert_eq!(told(&reporter.changed(usage(&[(1, 10), (2, 20)]))), [(1, 10), (2, 20)]);
        assert_eq!(told(&reporter.changed(usage(&[(1, 10), (2, 21)]))), [(2, 21)]);
        assert_eq!(told(&reporter.changed(usage(&[(2, 21)]))), []);
        assert_eq!(told(&reporter.changed(usage(&[(1, 10)]))), [(1, 10)]);
    }
}
