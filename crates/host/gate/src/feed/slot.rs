//! One feed as the other tasks see it, and how it is doing, for `status`.

use crate::{config::FeedAddress, ledger::IssuerId};
use sluicegate_api::{FeedStage, FeedStatus};
use sluicegate_feed::FromGate;
use sluicegate_wire::Instant;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::mpsc;

/// Written by the feed's task, read by `status`.
#[derive(Debug)]
pub(crate) struct FeedSlot {
    pub(crate) address: FeedAddress,
    pub(crate) issuer: IssuerId,
    /// Messages that are not answers: grants that ended.
    pub(crate) outbox: mpsc::Sender<FromGate>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// But for the times, which are those of [`FeedSlot::status`].
    told: FeedStatus,
    since: Instant,
    heard: Option<Instant>,
}

impl FeedSlot {
    pub(crate) fn new(address: FeedAddress, issuer: IssuerId, outbox: mpsc::Sender<FromGate>, now: Instant) -> Self {
        let told = FeedStatus {
            address: address.address.to_string(),
            frontend: None,
            issuer: hex::encode(issuer),
            state: FeedStage::Waiting,
            state_s: 0,
            sequence: None,
            silent_ms: None,
            skew_s: None,
            opened: 0,
            refused: 0,
            refusals: BTreeMap::new(),
            connects: 0,
            last_error: None,
        };
        Self { address, issuer, outbox, inner: Mutex::new(Inner { told, since: now, heard: None }) }
    }

    pub(crate) fn stage(&self) -> FeedStage {
        self.lock().told.state
    }

    /// Moves to `stage`, with the reason if it is a step back.
    pub(crate) fn enter(&self, now: Instant, stage: FeedStage, error: Option<String>) {
        let mut inner = self.lock();
        if inner.told.state != stage {
            (inner.told.state, inner.since) = (stage, now);
            inner.told.connects += u64::from(stage == FeedStage::Connected);
        }
        match stage {
            FeedStage::Connected => inner.told.last_error = None,
            FeedStage::Waiting => inner.told.last_error = error.or_else(|| inner.told.last_error.take()),
            FeedStage::Connecting => {}
        }
    }

    /// Something arrived.
    pub(crate) fn heard(&self, now: Instant, frontend: Option<&str>) {
        let mut inner = self.lock();
        inner.heard = Some(now);
        if let Some(frontend) = frontend {
            inner.told.frontend = Some(frontend.to_owned());
        }
    }

    /// The clocks differ by this many seconds, or by no more than they may (`None`).
    pub(crate) fn skew(&self, skew_s: Option<i64>) {
        self.lock().told.skew_s = skew_s;
    }

    /// Everything up to this number was applied.
    pub(crate) fn applied(&self, sequence: u64) {
        self.lock().told.sequence = Some(sequence);
    }

    /// So many grants were opened.
    pub(crate) fn opened(&self, grants: u64) {
        self.lock().told.opened += grants;
    }

    /// A grant was refused, for one of a few reasons.
    pub(crate) fn refused(&self, reason: &'static str) {
        let told = &mut self.lock().told;
        told.refused += 1;
        match told.refusals.get_mut(reason) {
            Some(count) => *count += 1,
            None => _ = told.refusals.insert(reason.to_owned(), 1),
        }
    }

    pub(crate) fn status(&self, now: Instant) -> FeedStatus {
        let inner = self.lock();
        let millis = |since: Instant| u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
        let (state_s, silent_ms) = (now.since(inner.since).as_secs(), inner.heard.map(millis));
        FeedStatus { state_s, silent_ms, ..inner.told.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
