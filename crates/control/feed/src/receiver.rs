use core::time::Duration;

use sluicegate_grant::{GrantId, IssuerPublic, VerifyError};
use sluicegate_wire::{Instant, UnixTime};

use super::{
    message::{Delta, FEED_VERSION, FeedService, FromGate, GrantDelta, Resume, Selector, SignedDeltas, ToGate},
    skew_alarm,
};

/// Time without a message after which a gate takes the connection for dead and dials anew.
pub const SILENCE_MAX: Duration = Duration::from_secs(15);

/// What a message means for the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Set up or change this service.
    Service(FeedService),
    /// This service is gone; its grants are not.
    ServiceGone(String),
    /// Install or renew this grant: it can be, and is issued by this feed's issuer. Answer `Opened` or `Refused`.
    Install(Box<GrantDelta>),
    /// A grant that cannot be what it says. Answer `Refused` with this text.
    Refuse(GrantId, String),
    /// End the selected grants of this issuer.
    Revoke(Selector),
    /// The gate is up to date: answer `Active`, and keep what was installed together with this on disk.
    UpToDate(Resume),
    /// Answer with this.
    Reply(FromGate),
    /// The frontend's clock is ahead by so many seconds (negative: behind): an alarm.
    Skew(i64),
}

/// Why a connection cannot go on. The gate closes it and dials anew; everything granted stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FeedError {
    /// The frontend does not let the gate in.
    #[error("the frontend refused this gate: {0}")]
    Refused(String),
    /// Another version of the feed.
    #[error("the frontend speaks version {0} of the feed, this gate version {FEED_VERSION}; upgrade the older one")]
    Version(u16),
    /// Another issuer than the one that the gate has joined.
    #[error("the frontend signs with another key than the one this gate has joined; join it anew with a token")]
    Issuer,
    /// A batch is missing.
    #[error("batch {expected} of the feed is missing, {found} came")]
    Gap {
        /// The number that was due.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// A batch or snapshot came again.
    #[error("batch {found} of the feed came again after {last}")]
    Replay {
        /// The last number.
        last: u64,
        /// The number that came.
        found: u64,
    },
    /// A signature is wrong.
    #[error("a batch of the feed was not accepted: {0}")]
    Signature(#[from] VerifyError),
    /// Rightly signed, but no deltas of this version.
    #[error("a batch of the feed cannot be read; the frontend is of another version")]
    Malformed,
    /// A message at the wrong time.
    #[error("the frontend sent {0} at the wrong time")]
    Unexpected(&'static str),
    /// Nothing was heard for [`SILENCE_MAX`].
    #[error("nothing was heard from the frontend for {} s", SILENCE_MAX.as_secs())]
    Silent,
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No connection.
    Closed,
    /// The gate has said hello.
    Greeting,
    /// A snapshot is due; with the number of its first part, if that has come.
    Snapshot(Option<u64>),
    /// Batches come.
    Following,
}

/// The gate's end of the feed from one frontend: checks order and signatures, and says what to do.
///
/// It keeps no grants, so a lost connection ends none. Call [`Self::connect`] for each connection; after an error, close
/// the connection and dial anew: the place to resume from is kept.
pub struct FeedReceiver {
    issuer: IssuerPublic,
    gate: String,
    phase: Phase,
    /// The start of the frontend that this connection belongs to.
    boot_id: u64,
    /// Where it left off; only what was applied in full counts.
    resume: Option<Resume>,
    last_heard: Instant,
}

impl FeedReceiver {
    /// For the gate `gate` and the frontend with this key. `resume` is what the last [`Event::UpToDate`] said if what was
    /// installed until then is still there, and nothing otherwise.
    #[must_use]
    pub fn new(issuer: IssuerPublic, gate: &str, resume: Option<Resume>) -> Self {
        let resume = resume.filter(|resume| resume.issuer == issuer.id());
        Self { issuer, gate: gate.into(), phase: Phase::Closed, boot_id: 0, resume, last_heard: Instant::ZERO }
    }

    /// Starts a connection; the message is the first to send, or the second after [`FromGate::Join`].
    #[must_use]
    pub fn connect(&mut self, now: Instant, unix: UnixTime) -> FromGate {
        self.phase = Phase::Greeting;
        self.last_heard = now;
        FromGate::Hello { version: FEED_VERSION, gate: self.gate.clone(), resume: self.resume, unix }
    }

    /// Where it left off.
    #[must_use]
    pub const fn resume(&self) -> Option<Resume> {
        self.resume
    }

    /// Forgets where it left off: the next connection begins with a snapshot.
    pub const fn forget(&mut self) {
        self.resume = None;
    }

    /// The public key of the frontend.
    #[must_use]
    pub const fn issuer(&self) -> &IssuerPublic {
        &self.issuer
    }

    /// Takes a message and says what it means, in the order in which to do it.
    ///
    /// # Errors
    /// If the connection cannot go on. Nothing of the message is to be done then.
    pub fn handle(&mut self, now: Instant, unix: UnixTime, message: ToGate) -> Result<Vec<Event>, FeedError> {
        self.last_heard = now;
        let events = self.judge(unix, message);
        if events.is_err() {
            self.phase = Phase::Closed;
        }
        events
    }

    /// When to call [`Self::handle_timeout`], while there is a connection.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.phase != Phase::Closed).then(|| self.last_heard + SILENCE_MAX)
    }

    /// Checks whether the connection is dead.
    ///
    /// # Errors
    /// [`FeedError::Silent`] if it is.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), FeedError> {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.phase = Phase::Closed;
            return Err(FeedError::Silent);
        }
        Ok(())
    }

    fn judge(&mut self, unix: UnixTime, message: ToGate) -> Result<Vec<Event>, FeedError> {
        match (self.phase, message) {
            (Phase::Closed, _) => Err(FeedError::Unexpected("a message after the end")),
            (Phase::Greeting, ToGate::Refused { reason }) => Err(FeedError::Refused(reason)),
            (Phase::Greeting, ToGate::Hello { version, issuer, boot_id, resumed, .. }) => {
                self.greeted(version, &issuer, boot_id, resumed)
            }
            (Phase::Greeting, _) => Err(FeedError::Unexpected("something before its hello")),
            (_, ToGate::Ping { unix: theirs }) => {
                let skew = skew_alarm(unix, theirs).map(Event::Skew);
                Ok([Event::Reply(FromGate::Pong { unix })].into_iter().chain(skew).collect())
            }
            (Phase::Snapshot(begun), ToGate::Snapshot(part)) => self.snapshot_part(begun, &part),
            (Phase::Following, ToGate::Batch(batch)) => self.batch(&batch),
            (_, ToGate::Snapshot(_)) => Err(FeedError::Unexpected("a snapshot")),
            (_, ToGate::Batch(_)) => Err(FeedError::Unexpected("a batch")),
            (_, ToGate::Hello { .. }) => Err(FeedError::Unexpected("a second hello")),
            (_, ToGate::Refused { reason }) => Err(FeedError::Refused(reason)),
        }
    }

    fn greeted(
        &mut self,
        version: u16,
        issuer: &[u8; 32],
        boot_id: u64,
        resumed: bool,
    ) -> Result<Vec<Event>, FeedError> {
        if version != FEED_VERSION {
            return Err(FeedError::Version(version));
        }
        if *issuer != self.issuer.to_bytes() {
            return Err(FeedError::Issuer);
        }
        self.boot_id = boot_id;
        if !resumed {
            self.phase = Phase::Snapshot(None);
            return Ok(Vec::new());
        }
        match self.resume {
            Some(resume) if resume.boot_id == boot_id => {
                self.phase = Phase::Following;
                Ok(vec![Event::UpToDate(resume)])
            }
            _ => Err(FeedError::Unexpected("batches to resume that this gate did not ask for")),
        }
    }

    fn snapshot_part(&mut self, begun: Option<u64>, part: &SignedDeltas) -> Result<Vec<Event>, FeedError> {
        let last = self.resume.filter(|resume| resume.boot_id == self.boot_id).map_or(0, |resume| resume.seq);
        if part.seq < last {
            return Err(FeedError::Replay { last, found: part.seq });
        }
        if begun.is_some_and(|seq| seq != part.seq) {
            return Err(FeedError::Unexpected("parts of two snapshots"));
        }
        let mut events = self.verified(true, part)?;
        if part.more {
            self.phase = Phase::Snapshot(Some(part.seq));
        } else {
            self.phase = Phase::Following;
            events.push(Event::UpToDate(self.applied(part.seq)));
        }
        Ok(events)
    }

    fn batch(&mut self, batch: &SignedDeltas) -> Result<Vec<Event>, FeedError> {
        let last = self.resume.map_or(0, |resume| resume.seq);
        if batch.seq <= last {
            return Err(FeedError::Replay { last, found: batch.seq });
        }
        if batch.seq != last + 1 {
            return Err(FeedError::Gap { expected: last + 1, found: batch.seq });
        }
        let mut events = self.verified(false, batch)?;
        events.push(Event::UpToDate(self.applied(batch.seq)));
        Ok(events)
    }

    fn applied(&mut self, seq: u64) -> Resume {
        *self.resume.insert(Resume { issuer: self.issuer.id(), boot_id: self.boot_id, seq })
    }

    /// What the deltas mean, once their one signature was found right.
    fn verified(&self, snapshot: bool, part: &SignedDeltas) -> Result<Vec<Event>, FeedError> {
        let signed = SignedDeltas::signed(self.boot_id, snapshot, part.seq, part.more, &part.deltas);
        self.issuer.verify_batch(&signed, &part.signature)?;
        let mut events = Vec::new();
        let mut rest = part.deltas.as_slice();
        while !rest.is_empty() {
            let (delta, after) = postcard::take_from_bytes(rest).map_err(|_| FeedError::Malformed)?;
            rest = after;
            events.push(self.event(delta));
        }
        Ok(events)
    }

    fn event(&self, delta: Delta) -> Event {
        match delta {
            Delta::Service(service) => Event::Service(service),
            Delta::ServiceGone(name) => Event::ServiceGone(name),
            Delta::Revoke(selector) => Event::Revoke(selector),
            Delta::Install(delta) => self.install(delta),
        }
    }

    fn install(&self, delta: Box<GrantDelta>) -> Event {
        let id = delta.grant.id;
        match delta.grant.check() {
            Ok(()) if delta.grant.issuer != self.issuer.id() => {
                Event::Refuse(id, "the grant names another issuer than this feed's".into())
            }
            Ok(()) => Event::Install(delta),
            Err(error) => Event::Refuse(id, error.to_string()),
        }
    }
}
