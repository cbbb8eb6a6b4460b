use core::time::Duration;
use std::{collections::VecDeque, sync::Arc};

use sluicegate_grant::{IssuerKey, IssuerPublic};
use sluicegate_wire::{Instant, UnixTime};

use super::{
    FRAME_LEN_MAX,
    codec::encode,
    message::{Delta, FEED_VERSION, Resume, Selector, SignedDeltas, ToGate},
    revokes::Revokes,
};

/// Longest time for which changes are collected before they are signed together.
pub const WINDOW_MAX: Duration = Duration::from_millis(10);
/// The same where a grant is to be opened among them: somebody waits for the answer.
pub const OPENING_WINDOW_MAX: Duration = Duration::from_millis(2);
/// Time between pings.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Room in a frame for what is around the deltas: sequence number, length and signature.
const AROUND_DELTAS: usize = 128;
const DELTAS_LEN_MAX: usize = FRAME_LEN_MAX - AROUND_DELTAS;
/// Seconds for which an operator's revoke is repeated in snapshots: as long as the longest grant lives.
pub const REVOKE_KEPT_S: u64 = 86_400;

/// The bounds of a [`FeedSender`], fixed at start.
#[derive(Debug, Clone, Copy)]
pub struct SenderOptions {
    /// Changes that may wait for their signature.
    pub pending_max: usize,
    /// Bytes of past batches that are kept for gates that reconnect.
    pub log_bytes_max: usize,
    /// Operators' revokes (of a user, a service, one grant) that are repeated to gates that were away. Full: the oldest is
    /// forgotten, and a gate that was away all the time lets what it meant live on until it expires.
    pub revokes_max: usize,
    /// Calls that ended and are repeated to gates that were away, beside those of operators.
    pub call_revokes_max: usize,
    /// Of these, those of one user. Full: that user's oldest is forgotten.
    pub call_revokes_per_user_max: usize,
}

impl Default for SenderOptions {
    fn default() -> Self {
        Self {
            pending_max: 4_096,
            log_bytes_max: 8 * 1024 * 1024,
            revokes_max: 4_096,
            call_revokes_max: 16_384,
            call_revokes_per_user_max: 256,
        }
    }
}

/// Why a change was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// As many changes wait as may.
    #[error("{0} changes wait for the feed already; try again in a moment")]
    Full(usize),
    /// The change does not fit into a message.
    #[error("a change of {0} bytes does not fit into a feed message; shorten names or lists")]
    TooLong(usize),
}

/// The frontend's end of the feed: numbers changes, signs them in batches, and brings gates up to date.
///
/// One for all gates that get the same, or one for each gate. Every frame from [`Self::poll_transmit`] goes to every gate that was welcomed, in
/// order; a gate that cannot keep up is disconnected and resumes. Poll it after [`Self::push`] and at
/// [`Self::poll_timeout`].
pub struct FeedSender {
    key: Arc<IssuerKey>,
    public: IssuerPublic,
    boot_id: u64,
    name: String,
    options: SenderOptions,
    /// Number of the last batch.
    seq: u64,
    /// Encoded changes that wait, and until when.
    pending: VecDeque<Vec<u8>>,
    batch_due: Option<Instant>,
    last_batch: Option<Instant>,
    next_ping: Instant,
    /// Frames of past batches, consecutive, the last being number `seq`.
    log: VecDeque<Arc<[u8]>>,
    log_bytes: usize,
    /// What operators ended.
    revokes: Revokes<Vec<u8>>,
    /// What users ended by hanging up. Apart: who calls and hangs up without end pushes out no operator's revoke.
    call_revokes: Revokes<Vec<u8>>,
}

impl FeedSender {
    /// The feed of the frontend `name`. `boot_id` is random, new for each start and each feed.
    #[must_use]
    pub fn new(key: impl Into<Arc<IssuerKey>>, boot_id: u64, name: &str, options: SenderOptions) -> Self {
        let key = key.into();
        let public = key.public();
        Self {
            key,
            public,
            boot_id,
            name: name.into(),
            options,
            seq: 0,
            pending: VecDeque::new(),
            batch_due: None,
            last_batch: None,
            next_ping: Instant::ZERO,
            log: VecDeque::new(),
            log_bytes: 0,
            revokes: Revokes::new(options.revokes_max, options.revokes_max),
            call_revokes: Revokes::new(options.call_revokes_max, options.call_revokes_per_user_max),
        }
    }

    /// Takes a change. A revoke that does not say so itself means what was issued up to now, so that repeating it to a
    /// gate that was away ends nothing newer.
    ///
    /// # Errors
    /// [`SendError::Full`] if too many wait; the request behind the change is then refused.
    pub fn push(&mut self, now: Instant, unix: UnixTime, mut delta: Delta) -> Result<(), SendError> {
        if let Delta::Revoke(selector) = &mut delta {
            selector.issued_before.get_or_insert(unix.plus_secs(1));
        }
        let encoded = self.queue(now, &delta)?;
        if matches!(delta, Delta::Revoke(_)) {
            self.revokes.keep(unix, "", unix.plus_secs(REVOKE_KEPT_S), encoded);
        }
        Ok(())
    }

    /// Takes a revoke from before this start, for gates that may not have heard of it then.
    ///
    /// # Errors
    /// [`SendError::TooLong`].
    pub fn keep_revoke(&mut self, unix: UnixTime, selector: Selector, until: UnixTime) -> Result<(), SendError> {
        self.revokes.keep(unix, "", until, encoded(&Delta::Revoke(selector))?);
        Ok(())
    }

    /// Takes the end of one call of `user`, whose grants all end by themselves at `not_after`: longer than until then
    /// nobody needs to be told of it.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_call_end(
        &mut self,
        now: Instant,
        unix: UnixTime,
        (user, not_after): (&str, UnixTime),
        mut selector: Selector,
    ) -> Result<(), SendError> {
        selector.issued_before.get_or_insert(unix.plus_secs(1));
        let encoded = self.queue(now, &Delta::Revoke(selector))?;
        self.call_revokes.keep(unix, user, not_after.min(unix.plus_secs(REVOKE_KEPT_S)), encoded);
        Ok(())
    }

    /// Queues a change for the next batch; its encoding.
    fn queue(&mut self, now: Instant, delta: &Delta) -> Result<Vec<u8>, SendError> {
        if self.pending.len() >= self.options.pending_max {
            return Err(SendError::Full(self.options.pending_max));
        }
        let encoded = encoded(delta)?;
        let window = if matches!(delta, Delta::Install(_)) { OPENING_WINDOW_MAX } else { WINDOW_MAX };
        let due = self.last_batch.map_or(now, |last| (last + window).clamp(now, now + window));
        self.batch_due = Some(self.batch_due.map_or(due, |before| before.min(due)));
        self.pending.push_back(encoded.clone());
        Ok(encoded)
    }

    /// When to call [`Self::poll_transmit`] next.
    ///
    /// A change after a quiet time goes out at once; while changes keep coming, they wait for each other, never longer
    /// than [`WINDOW_MAX`], and with what is to be opened [`OPENING_WINDOW_MAX`].
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        match self.batch_due {
            Some(due) => due.min(self.next_ping),
            None => self.next_ping,
        }
    }

    /// The next frame for every gate, if one is due: a batch or a ping.
    pub fn poll_transmit(&mut self, now: Instant, unix: UnixTime) -> Option<Arc<[u8]>> {
        if self.batch_due.is_some_and(|due| due <= now) {
            return self.batch(now);
        }
        if self.next_ping <= now {
            self.next_ping = now + PING_INTERVAL;
            return encode(&ToGate::Ping { unix }).ok().map(Arc::from);
        }
        None
    }

    /// The frames that bring a gate up to date which said hello with `resume`. Frames from [`Self::poll_transmit`] follow
    /// them without a gap.
    ///
    /// `state` is everything that is open now, as [`Delta::Service`] and [`Delta::Install`]; it is read only if batches
    /// cannot be resumed.
    ///
    /// # Errors
    /// [`SendError::TooLong`] if a part of the state does not fit into a message.
    pub fn welcome<I>(
        &mut self,
        unix: UnixTime,
        resume: Option<Resume>,
        state: impl FnOnce() -> I,
    ) -> Result<Vec<Arc<[u8]>>, SendError>
    where
        I: IntoIterator<Item = Delta>,
    {
        let missed = resume.and_then(|resume| self.missed(resume));
        let hello = ToGate::Hello {
            version: FEED_VERSION,
            issuer: self.public.to_bytes(),
            boot_id: self.boot_id,
            name: self.name.clone(),
            resumed: missed.is_some(),
        };
        let mut frames = vec![frame(&hello)?];
        match missed {
            Some(missed) => frames.extend(self.log.iter().skip(self.log.len() - missed).cloned()),
            None => self.snapshot(unix, state(), &mut frames)?,
        }
        Ok(frames)
    }

    /// The issuer's public key.
    #[must_use]
    pub const fn issuer(&self) -> &IssuerPublic {
        &self.public
    }

    /// The key, to sign portable copies of grants.
    #[must_use]
    pub fn key(&self) -> &IssuerKey {
        &self.key
    }

    /// Name, used, maximum of each table.
    #[must_use]
    pub fn gauges(&self) -> [(&'static str, u64, u64); 4] {
        let gauge = |name, used: usize, max: usize| (name, used as u64, max as u64);
        [
            gauge("feed_pending", self.pending.len(), self.options.pending_max),
            gauge("feed_log_bytes", self.log_bytes, self.options.log_bytes_max),
            gauge("feed_revokes", self.revokes.len(), self.options.revokes_max),
            gauge("feed_call_revokes", self.call_revokes.len(), self.options.call_revokes_max),
        ]
    }

    fn batch(&mut self, now: Instant) -> Option<Arc<[u8]>> {
        let mut deltas = Vec::new();
        while let Some(next) = self.pending.pop_front_if(|next| deltas.len() + next.len() <= DELTAS_LEN_MAX) {
            deltas.extend(next);
        }
        self.last_batch = Some(now);
        // What did not fit goes next.
        self.batch_due = (!self.pending.is_empty()).then_some(now);
        let signed = self.sign(false, self.seq + 1, false, deltas);
        let frame = frame(&ToGate::Batch(signed)).ok()?;
        self.seq += 1;
        self.log_bytes += frame.len();
        self.log.push_back(frame.clone());
        while self.log_bytes > self.options.log_bytes_max {
            self.log_bytes -= self.log.pop_front()?.len();
        }
        Some(frame)
    }

    /// How many batches of the log a gate has missed; `None` if the log cannot tell.
    fn missed(&self, resume: Resume) -> Option<usize> {
        if resume.issuer != self.public.id() || resume.boot_id != self.boot_id {
            return None;
        }
        let missed = usize::try_from(self.seq.checked_sub(resume.seq)?).ok()?;
        (missed <= self.log.len()).then_some(missed)
    }

    /// Appends the parts of a snapshot. Revokes come first: what is open now was issued in spite of them.
    fn snapshot(
        &mut self,
        unix: UnixTime,
        state: impl IntoIterator<Item = Delta>,
        frames: &mut Vec<Arc<[u8]>>,
    ) -> Result<(), SendError> {
        let revokes: Vec<_> = self.revokes.live(unix).chain(self.call_revokes.live(unix)).cloned().collect();
        let state = state.into_iter().map(|delta| encoded(&delta));
        let mut part = Vec::new();
        for next in revokes.into_iter().map(Ok).chain(state) {
            let next = next?;
            if part.len() + next.len() > DELTAS_LEN_MAX {
                let full = core::mem::take(&mut part);
                frames.push(frame(&ToGate::Snapshot(self.sign(true, self.seq, true, full)))?);
            }
            part.extend(next);
        }
        frames.push(frame(&ToGate::Snapshot(self.sign(true, self.seq, false, part)))?);
        Ok(())
    }

    fn sign(&self, snapshot: bool, seq: u64, more: bool, deltas: Vec<u8>) -> SignedDeltas {
        let signature = self.key.sign_batch(&SignedDeltas::signed(self.boot_id, snapshot, seq, more, &deltas));
        SignedDeltas { seq, more, deltas, signature }
    }
}

fn encoded(delta: &Delta) -> Result<Vec<u8>, SendError> {
    let encoded = postcard::to_allocvec(delta).unwrap_or_default();
    if encoded.is_empty() || encoded.len() > DELTAS_LEN_MAX {
        return Err(SendError::TooLong(encoded.len()));
    }
    Ok(encoded)
}

fn frame(message: &ToGate) -> Result<Arc<[u8]>, SendError> {
    encode(message).map(Arc::from).map_err(|_| SendError::TooLong(FRAME_LEN_MAX))
}
