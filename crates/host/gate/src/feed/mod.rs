//! The feeds: one task for each frontend, which dials, stays up to date, answers, and dials anew. Losing a feed changes
//! nothing at the gate: what is open stays open until it expires, is spent or revoked.

pub(crate) mod apply;
mod backoff;
pub(crate) mod connection;
mod reach;
mod slot;
pub(crate) mod usage;

pub(crate) use slot::FeedSlot;

use crate::{clock, shared::Shared};
use apply::Applier;
use backoff::wait_after;
use connection::{ConnectionError, Outgoing, OwnPort, dial};
use reach::Reach;
use sluicegate_api::FeedStage;
use sluicegate_feed::{Event, FeedError, FeedReceiver, FromGate, ToGate, tls::Identity};
use sluicegate_grant::IssuerPublic;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep},
};
use usage::Reporter;

/// Between two reports of usage.
const USAGE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks at the routes to the services.
const REACH_INTERVAL: Duration = Duration::from_secs(2);
/// Waiting messages sent with one flush.
const OUTBOX_PART: usize = 256;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Feed(#[from] FeedError),
}

/// The task of one feed.
pub(crate) struct Feed {
    pub(crate) shared: Arc<Shared>,
    /// Which of the feeds this is.
    pub(crate) index: usize,
    pub(crate) identity: Arc<Identity>,
    pub(crate) issuer: IssuerPublic,
    pub(crate) outbox: mpsc::Receiver<FromGate>,
    /// The port that its connections leave from; any where no kernel filter stands in between.
    pub(crate) own_port: Option<OwnPort>,
}

impl Feed {
    /// Runs for as long as the gate does.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(slot) = shared.feeds.get(self.index) else { return };
        let resume = shared.books.read().resume(self.issuer.id());
        let mut receiver = FeedReceiver::new(self.issuer.clone(), &shared.config.name, resume);
        let mut failures = 0_u32;
        loop {
            slot.enter(clock::monotonic(), FeedStage::Connecting, None);
            let Err(error) = self.session(slot, &mut receiver).await;
            if slot.stage() == FeedStage::Connected {
                failures = 0;
            }
            if let SessionError::Feed(FeedError::Gap { .. } | FeedError::Replay { .. }) = error {
                receiver.forget();
            }
            let wait = wait_after(failures, getrandom::u32().unwrap_or(u32::MAX / 2));
            failures = failures.saturating_add(1);
            tracing::warn!(feed = %slot.address.address, %error, ?wait, "feed lost; what is open stays open");
            slot.enter(clock::monotonic(), FeedStage::Waiting, Some(error.to_string()));
            sleep(wait).await;
        }
    }

    /// One connection, until it fails.
    async fn session(
        &mut self,
        slot: &FeedSlot,
        receiver: &mut FeedReceiver,
    ) -> Result<std::convert::Infallible, SessionError> {
        let (mut incoming, mut outgoing) = dial(&slot.address, &self.identity, self.own_port.as_ref()).await?;
        outgoing.send(&[receiver.connect(clock::monotonic(), clock::unix())]).await?;
        let mut reporter = Reporter::default();
        let mut reach = Reach::default();
        let mut usage = interval(USAGE_INTERVAL);
        usage.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut routes = interval(REACH_INTERVAL);
        routes.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut waiting = Vec::with_capacity(OUTBOX_PART);
        loop {
            tokio::select! {
                biased;
                message = incoming.receive() => {
                    let message = message?;
                    self.take(slot, (receiver, &mut reach), message, &mut outgoing).await?;
                }
                count = self.outbox.recv_many(&mut waiting, OUTBOX_PART), if is_up(slot) => {
                    debug_assert_eq!(count, waiting.len());
                    outgoing.send(&waiting).await?;
                    waiting.clear();
                }
                _ = usage.tick() => {
                    receiver.handle_timeout(clock::monotonic())?;
                    if is_up(slot) {
                        outgoing.send(&reporter.changes(&self.shared, self.issuer.id()).await).await?;
                    }
                }
                _ = routes.tick(), if is_up(slot) => {
                    outgoing.send(&reach.changes(&self.shared, self.issuer.id()).await).await?;
                }
            }
        }
    }

    async fn take(
        &self,
        slot: &FeedSlot,
        (receiver, reach): (&mut FeedReceiver, &mut Reach),
        message: ToGate,
        outgoing: &mut Outgoing,
    ) -> Result<(), SessionError> {
        let now = clock::monotonic();
        let name = if let ToGate::Hello { name, .. } = &message { Some(name.clone()) } else { None };
        if matches!(message, ToGate::Ping { .. }) {
            slot.skew(None);
        }
        let events = receiver.handle(now, clock::unix(), message)?;
        slot.heard(now, name.as_deref());
        let has_services = events.iter().any(|event| matches!(event, Event::Service(_)));
        let (answers, applied) = Applier::new(&self.shared, slot).apply(events).await;
        outgoing.send(&answers).await?;
        if has_services {
            outgoing.send(&reach.changes(&self.shared, self.issuer.id()).await).await?;
        }
        if let Some(resume) = applied {
            slot.applied(resume.seq);
            if !is_up(slot) {
                outgoing.send(&apply::active(&self.shared, self.issuer.id()).await).await?;
                slot.enter(clock::monotonic(), FeedStage::Connected, None);
                tracing::info!(feed = %slot.address.address, "feed is up to date");
            }
        }
        Ok(())
    }
}

fn is_up(slot: &FeedSlot) -> bool {
    slot.stage() == FeedStage::Connected
}
