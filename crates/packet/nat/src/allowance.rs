//! What a grant still allows, for whoever mints capabilities from it.

use core::net::IpAddr;

use sluicegate_grant::GrantId;
use sluicegate_wire::Instant;

use crate::{Translator, mac::has_seal, pinhole::Holder};

/// The rest of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Address that its client sends from; `None` before it has proved one.
    pub client: Option<IpAddr>,
    /// Whether only a request under the session key may make a capability of it.
    pub wants_seal: bool,
    /// Address that its client sends to.
    pub address: IpAddr,
    /// IP bytes that its client may still send.
    pub bytes_left: u64,
    /// Bytes a second that it may send; 0: no limit.
    pub rate_bytes_per_s: u64,
    /// When it ends.
    pub ends_at: Instant,
}

impl Translator {
    /// Whether somebody at this outside address may have a pinhole here. `false` is certain: it is a stranger.
    #[must_use]
    pub fn knows(&self, source: IpAddr) -> bool {
        self.rules.sources.may_contain(source)
    }

    /// What a live grant still allows at `now`; `None` if it is not open, over or spent.
    #[must_use]
    pub fn allowance(&self, now: Instant, id: GrantId) -> Option<Allowance> {
        let slot = self.rules.pinholes.by_id(id)?;
        let pinhole = self.rules.pinholes.at(slot).filter(|pinhole| pinhole.is_live() && !pinhole.spent)?;
        let Holder::Granted(grant) = &pinhole.holder else { return None };
        if now < pinhole.not_before || now >= pinhole.not_after {
            return None;
        }
        Some(Allowance {
            client: pinhole.client,
            wants_seal: has_seal(grant),
            address: pinhole.gate.address,
            bytes_left: self.usage(id)?.bytes_left,
            rate_bytes_per_s: u64::from(grant.rate_100kbps) * 12_500,
            ends_at: pinhole.not_after,
        })
    }
}
