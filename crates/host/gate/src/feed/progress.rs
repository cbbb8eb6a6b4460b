//! How a feed is doing, for `status`.

use crate::{config::FeedAddress, ledger::IssuerId};
use sluicegate_api::{FeedStage, FeedStatus};
use sluicegate_wire::Instant;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Written by the feed's task, read by `status`.
#[derive(Debug)]
pub(crate) struct Progress {
    address: FeedAddress,
    issuer: IssuerId,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    stage: FeedStage,
    since: Instant,
    frontend: Option<String>,
    sequence: Option<u64>,
    heard: Option<Instant>,
    skew_s: Option<i64>,
    opened: u64,
    refused: u64,
    connects: u64,
    last_error: Option<String>,
}

impl Progress {
    pub(crate) fn new(address: FeedAddress, issuer: IssuerId, now: Instant) -> Self {
        let inner = Inner {
            stage: FeedStage::Waiting,
            since: now,
            frontend: None,
            sequence: None,
            heard: None,
            skew_s: None,
            opened: 0,
            refused: 0,
            connects: 0,
            last_error: None,
        };
        Self { address, issuer, inner: Mutex::new(inner) }
    }

    pub(crate) const fn issuer(&self) -> IssuerId {
        self.issuer
    }

    pub(crate) const fn address(&self) -> &FeedAddress {
        &self.address
    }

    pub(crate) fn stage(&self) -> FeedStage {
        self.lock().stage
    }

    /// Moves to `stage`, with the reason if it is a step back.
    pub(crate) fn enter(&self, now: Instant, stage: FeedStage, error: Option<String>) {
        let mut inner = self.lock();
        if inner.stage != stage {
            (inner.stage, inner.since) = (stage, now);
            inner.connects += u64::from(stage == FeedStage::Connected);
        }
        match stage {
            FeedStage::Connected => inner.last_error = None,
            FeedStage::Waiting => inner.last_error = error.or_else(|| inner.last_error.take()),
            FeedStage::Connecting => {}
        }
    }

    /// Something arrived.
    pub(crate) fn heard(&self, now: Instant, frontend: Option<&str>) {
        let mut inner = self.lock();
        inner.heard = Some(now);
        if let Some(frontend) = frontend {
            inner.frontend = Some(frontend.to_owned());
        }
    }

    /// The clocks differ by this many seconds, or by no more than they may (`None`).
    pub(crate) fn skew(&self, skew_s: Option<i64>) {
        self.lock().skew_s = skew_s;
    }

    /// Everything up to this number was applied.
    pub(crate) fn applied(&self, sequence: u64) {
        self.lock().sequence = Some(sequence);
    }

    /// Grants were answered.
    pub(crate) fn answered(&self, opened: u64, refused: u64) {
        let mut inner = self.lock();
        inner.opened += opened;
        inner.refused += refused;
    }

    pub(crate) fn status(&self, now: Instant) -> FeedStatus {
        let inner = self.lock();
        let millis = |since: Instant| u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
        FeedStatus {
            address: self.address.address.to_string(),
            frontend: inner.frontend.clone(),
            issuer: self.issuer.iter().map(|byte| format!("{byte:02x}")).collect(),
            state: inner.stage,
            state_s: now.since(inner.since).as_secs(),
            sequence: inner.sequence,
            silent_ms: inner.heard.map(millis),
            skew_s: inner.skew_s,
            opened: inner.opened,
            refused: inner.refused,
            connects: inner.connects,
            last_error: inner.last_error.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
