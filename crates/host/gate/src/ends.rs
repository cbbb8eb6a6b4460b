//! Grants that end: out of the ledger, into the journal, and told to the frontend that issued them.

use crate::{
    ledger::{IssuerId, Record},
    packets::Ended,
    shared::Shared,
};
use sluicegate_feed::FromGate;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Ends taken together.
const PART: usize = 256;

/// Runs until the packet thread is gone.
pub(crate) async fn follow(shared: Arc<Shared>, mut events: mpsc::Receiver<Ended>) {
    let mut ended = Vec::with_capacity(PART);
    while events.recv_many(&mut ended, PART).await > 0 {
        let told = shared.books.write_with(|ledger| {
            let mut told: Vec<(IssuerId, FromGate)> = Vec::with_capacity(ended.len());
            let mut records = Vec::with_capacity(ended.len());
            for end in ended.drain(..) {
                let Some(entry) = ledger.ended(end.id, end.stamp) else { continue };
                records.push(Record::Ended { id: end.id.0, stamp: end.stamp });
                let ended = FromGate::Ended { id: end.id, cause: end.cause, bytes_used: end.bytes_used };
                told.push((entry.delta.grant.issuer, ended));
            }
            (told, records)
        });
        for (issuer, message) in told {
            tell(&shared, issuer, message);
        }
    }
}

/// A feed that is away or far behind hears of it from the next `Active` instead.
fn tell(shared: &Shared, issuer: IssuerId, message: FromGate) {
    for feed in shared.feeds.iter().filter(|feed| feed.issuer == issuer) {
        if let Err(error) = feed.outbox.try_send(message.clone()) {
            tracing::debug!(%error, "an end is not told");
        }
    }
}
