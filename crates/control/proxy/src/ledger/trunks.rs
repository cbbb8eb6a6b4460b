//! When calls begin and end, and what peers are held to, by all shards together.

use std::{hash::Hasher as _, net::IpAddr, sync::PoisonError, time::Duration};

use siphasher::sip::SipHasher24;
use sluicegate_bounded::Gauge;
use sluicegate_wire::{Instant, UnixTime};

use super::Ledger;
use crate::{
    calls::{CallId, Leaves},
    guesses::Allowance,
};

/// Peers and directions whose rate is counted.
pub(super) const RATES_MAX: usize = 1_024;

/// Who begins a call of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    ByPeer,
    ByService,
}

impl Ledger {
    /// Takes one call out of what this peer may begin, or what may be begun to it: so many a second, and twice that at once.
    /// `false`: that is more than it may.
    pub(crate) fn begin(&self, now: Instant, party: &str, begun: Begun, per_s: u32) -> bool {
        let mut tag = SipHasher24::new();
        tag.write(party.as_bytes());
        tag.write_u8(begun as u8);
        let allowance = Allowance { burst: per_s.saturating_mul(2), interval: Duration::from_secs(1) / per_s.max(1) };
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).take(now, tag.finish(), &allowance)
    }

    /// A new relayed call lives until then, if its user has fewer than `of_one_max`. `false` if there is no room.
    pub(crate) fn begin_call(&self, call: CallId, of: (&str, &str), until: UnixTime, of_one_max: usize) -> bool {
        let mut rows = self.lock();
        rows.calls.of_user(of.0) < of_one_max && rows.calls.begin(call, of, until, self.grants_max)
    }

    /// A gate is to be asked to open something for this call. `false`: a BYE has ended it, so nothing is.
    pub(crate) fn opens(&self, now: Instant, call: CallId) -> bool {
        let mut rows = self.lock();
        rows.calls.opens(call);
        !rows.calls.was_hung_up(now, call)
    }

    /// The call is over at once, for every shard: what it leaves, if it lived. `bye`: by a BYE with this number, which may come
    /// again.
    pub(crate) fn end_call(&self, now: Instant, call: CallId, bye: Option<u32>) -> Option<Leaves> {
        let mut rows = self.lock();
        let leaves = rows.calls.end(call)?;
        if let Some(cseq) = bye {
            rows.calls.ended_by(now, call, cseq);
        }
        Some(leaves)
    }

    /// Peers that began calls lately, or to which some began.
    #[must_use]
    pub fn peers_gauge(&self, now: Instant) -> Gauge {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).gauge(now)
    }

    /// Where the media of a call's peer come from, as it says; `None` if its client is no peer.
    pub(crate) fn media_of(&self, call: CallId) -> Option<IpAddr> {
        self.lock().calls.media_of(call)
    }

    /// The media of a call's peer come from there now.
    pub(crate) fn set_media(&self, call: CallId, media: IpAddr) {
        self.lock().calls.set_media(call, media);
    }
}
