//! The feed: how a frontend tells gates what to open, and what they answer.
//!
//! One TLS connection for each pair of gate and frontend, dialled by the gate, both ends recognised by pinned
//! certificates ([`tls`]). The gate says [`FromGate::Hello`] (a new one [`FromGate::Join`] before it); the frontend
//! answers [`ToGate::Hello`], then a snapshot or the batches that the gate missed, then batches as they come. Batches and
//! snapshots are signed by the issuer and numbered for each start of the frontend.
//!
//! **A snapshot only adds.** A grant ends by expiry, by its budget or by an explicit revoke; absence removes nothing, so
//! that a restarted or second frontend closes no one's flows.
//!
//! Nothing here opens a socket or reads a clock: [`Decoder`], [`FeedSender`] and [`FeedReceiver`] are driven with bytes,
//! messages and times.

mod codec;
mod encoding;
mod message;
mod receiver;
mod revokes;
mod sender;
pub mod tls;
mod token;

pub use codec::{CodecError, Decoder, FRAME_LEN_MAX, Message, encode};
pub use message::{
    ACTIVE_GRANTS_MAX, ActiveGrant, Delta, FEED_VERSION, FeedService, FeedSip, FromGate, GrantDelta, GrantUsage,
    Resume, Selected, Selector, SignedDeltas, ToGate, USAGE_MAX,
};
pub use receiver::{Event, FeedError, FeedReceiver, SILENCE_MAX};
pub use revokes::Revokes;
pub use sender::{FeedSender, OPENING_WINDOW_MAX, PING_INTERVAL, REVOKE_KEPT_S, SendError, SenderOptions, WINDOW_MAX};
pub use token::{JoinSecret, JoinToken, JoinTokenError};

pub use sluicegate_grant::EndCause;

/// Seconds by which two clocks may differ before it is an alarm: grant times are Unix times.
pub const SKEW_S_MAX: u64 = 2;

/// How far `theirs` is ahead of `ours` in seconds (negative: behind), if that is more than it may be.
///
/// Whole seconds and the way here can make one second of difference out of none.
#[must_use]
pub fn skew_alarm(ours: sluicegate_wire::UnixTime, theirs: sluicegate_wire::UnixTime) -> Option<i64> {
    let ahead = i128::from(theirs.0) - i128::from(ours.0);
    let ahead = i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX });
    (ahead.unsigned_abs() > SKEW_S_MAX).then_some(ahead)
}

#[cfg(test)]
mod tests {
    use super::skew_alarm;
    use sluicegate_wire::UnixTime;

    #[test]
    fn two_seconds_are_no_alarm_and_three_are() {
        assert_eq!(skew_alarm(UnixTime(100), UnixTime(102)), None);
        assert_eq!(skew_alarm(UnixTime(100), UnixTime(103)), Some(3));
        assert_eq!(skew_alarm(UnixTime(103), UnixTime(100)), Some(-3));
        assert_eq!(skew_alarm(UnixTime(0), UnixTime(u64::MAX)), Some(i64::MAX));
        assert_eq!(skew_alarm(UnixTime(u64::MAX), UnixTime(0)), Some(i64::MIN));
    }
}
