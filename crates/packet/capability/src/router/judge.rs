//! Whether a regular packet is what its receiver allowed.

use sluicegate_flow::{Key as _, Line};
use sluicegate_wire::{
    Reason,
    capability::{Algorithm, Capability, ClientId, FlowNonce, Limits, Packet},
};

use crate::{
    lines::{Allowance, Count, Lines, Moment, Revocations},
    secrets::Secrets,
};

/// What a regular packet presents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Presented {
    pub(super) algorithm: Algorithm,
    pub(super) client: ClientId,
    pub(super) pointer: u8,
    nonce: FlowNonce,
    limits: Option<Limits>,
    /// The one that this router is to check.
    capability: Option<Capability>,
    /// IP bytes.
    len: u32,
}

impl Presented {
    #[inline]
    pub(super) fn of<T: AsRef<[u8]>>(header: &Packet<T>, len: u32) -> Self {
        let pointer = header.pointer();
        Self {
            algorithm: header.algorithm(),
            client: header.client_id(),
            pointer,
            nonce: header.nonce(),
            limits: header.limits(),
            capability: header.capability(pointer.into()),
            len,
        }
    }
}

/// All that a check needs besides lines.
#[derive(Debug)]
pub(super) struct Judge {
    pub(super) secrets: Secrets,
    pub(super) revocations: Revocations,
    pub(super) least: Limits,
}

impl Judge {
    /// TVA IV-C: first the line and its nonce, then, if the packet carries one, the capability.
    #[inline]
    pub(super) fn judge<L: Line<Body = Count>>(
        &self,
        lines: &mut Lines<L>,
        at: Moment,
        key: &L::Key,
        presented: &Presented,
    ) -> Result<(), Reason> {
        let hash = lines.hash(key);
        let found = lines.find(hash, key);
        let cached = match found {
            Some(index) => lines.charge(at, index, presented.nonce, presented.len),
            None => Err(Reason::CapabilityUnknown),
        };
        match (cached, presented.limits) {
            (Err(_), Some(limits)) => self.admit(lines, at, (hash, key, found), presented, limits),
            (cached, _) => cached,
        }
    }

    fn admit<L: Line<Body = Count>>(
        &self,
        lines: &mut Lines<L>,
        at: Moment,
        (hash, key, found): (u64, &L::Key, Option<u32>),
        presented: &Presented,
        limits: Limits,
    ) -> Result<(), Reason> {
        let Presented { algorithm, client, .. } = *presented;
        let (src, dst) = (key.src().0.into(), key.dst().0.into());
        let capability = presented.capability.ok_or(Reason::CapabilityList)?;
        let checked = self.secrets.check(algorithm, src, dst, client, limits, &capability)?;
        let allowance = Allowance { limits, expires: checked.expires };
        if self.revocations.is_revoked(hash, allowance.minted(), at.seconds) {
            return Err(Reason::CapabilityRevoked);
        }
        if limits.is_slower_than(self.least) {
            return Err(Reason::CapabilityTooSlow);
        }
        lines.admit(at, (hash, key, found), presented.nonce, &allowance, presented.len)
    }
}

/// Charges a packet whose nonce a line knows.
pub(super) fn charge<L: Line<Body = Count>>(
    lines: &mut Lines<L>,
    at: Moment,
    key: &L::Key,
    presented: &Presented,
) -> Result<(), Reason> {
    let index = lines.find(lines.hash(key), key).ok_or(Reason::CapabilityUnknown)?;
    lines.charge(at, index, presented.nonce, presented.len)
}
