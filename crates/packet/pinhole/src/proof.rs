//! A client proves where its packets come from: a datagram with nothing but a trailer under the session key, to the gate's
//! address and port of the grant. The gate answers with what it saw, under the key of the way back.

use core::{net::IpAddr, time::Duration};

use sluicegate_grant::{
    GrantId,
    mac::{Ends, Purpose, TRAILER_LEN, client_id_of},
    tunnel,
};
use sluicegate_wire::{Frame, Instant, IpProtocol, Reason, build, ip::octets, ipv6, udp};

use crate::{mac::Evidence, pinholes::Pinholes, protocol::Tuple};

/// Payload of an acknowledgement: number of the proof 8 | address 16 | port 2 | bytes left of the grant's budget 8 |
/// challenge 8, or 0 where nothing depends on it.
pub(crate) const ACK_LEN: usize = 42;
/// Flows of one grant follow no more often: each time all are looked at, and a client may be at two places in turn for ever.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// It may be repeated in the same period or the next.
const CHALLENGE_PERIOD_NANOS: u64 = 10_000_000_000;
/// What a proof repeats of an acknowledgement that came to where it is from.
const CHALLENGE_LEN: usize = 8;

/// An address that was proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proved {
    /// Whose pinhole.
    pub slot: u32,
    /// Where it sends from, and where to.
    ends: Tuple,
    number: u64,
    period: u64,
    /// Whether it repeated the challenge of an acknowledgement, so that its sender hears there.
    pub hears: bool,
}

impl Proved {
    /// The address that was proved.
    #[must_use]
    pub const fn client(&self) -> IpAddr {
        self.ends.src.0
    }
}

/// Whether a packet may be a proof: UDP with a trailer that says so, and at most a challenge in front.
#[inline]
#[must_use]
pub fn is_proof(evidence: &Evidence<'_>) -> bool {
    let ip = evidence.ip;
    let text_len = ip.total_len.wrapping_sub(ip.transport_offset + udp::HEADER_LEN + TRAILER_LEN);
    (text_len == 0 || text_len == CHALLENGE_LEN)
        && evidence.datagram().and_then(|datagram| datagram.get(text_len + 4)) == Some(&(Purpose::Proof as u8))
}

impl Pinholes {
    /// Checks a proof. `None`: no grant that is open here has such a client, so it is a packet like any other.
    ///
    /// A number counts once, and only if it is above all that came: a copy of a proof moves nothing, wherever it is sent
    /// from. The last address that was proved is the one that counts. One that also repeats the challenge of an
    /// acknowledgement has shown that its sender hears there, and may have the flows of its grant go on from there.
    ///
    /// # Errors
    /// As [`Self::prove`]. What does not verify is answered by nothing.
    #[cold]
    pub fn prove_address(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        evidence: &Evidence<'_>,
    ) -> Option<Result<Proved, Reason>> {
        let slot = self.claimed(now, tuple, evidence)?;
        let client = tuple.src;
        let datagram = evidence.datagram()?;
        let ends = Ends { client, gate_port: tuple.dst.1 };
        let checked = evidence.ip.check_addresses().and_then(|()| self.check_source(client.0));
        Some(checked.and_then(|()| self.open_proof(slot, &ends, datagram)).map(|number| {
            self.move_client(slot, client.0);
            let period = now.as_nanos() / CHALLENGE_PERIOD_NANOS;
            let repeated = datagram.first_chunk().filter(|_| datagram.len() > TRAILER_LEN);
            let is_ours = |heard: u64| {
                [period, period.saturating_sub(1)].into_iter().any(|at| heard == self.challenge(slot, client.0, at))
            };
            let hears = repeated.is_some_and(|text| is_ours(u64::from_be_bytes(*text)));
            Proved { slot, ends: *tuple, number, period, hears }
        }))
    }

    /// Checks a request for a capability that ends in a trailer: `sealed` is what follows its capability header, trailer
    /// included. It proves the client's address as well. `None`: no grant that is open here at `to` has a client with
    /// this id and anything to prove.
    ///
    /// # Errors
    /// As [`Self::prove`] for packet MACs. A request counts once, like a datagram.
    pub fn open_request(
        &mut self,
        now: Instant,
        client_id: u32,
        (from, to): (IpAddr, IpAddr),
        upper: IpProtocol,
        sealed: &[u8],
    ) -> Option<Result<(), Reason>> {
        if client_id_of(sealed) != Some(client_id) {
            return None;
        }
        let is_it = |slot: &u32| {
            let seal = self.macs.seals.at(*slot).is_some_and(|seal| seal.client_id() == client_id);
            let pinhole = self.table.at(*slot);
            seal && pinhole.is_some_and(|pinhole| pinhole.is_open(now) && pinhole.gate.address == to)
        };
        let slot = self.table.of_client_id(client_id).find(is_it)?;
        Some(self.open_request_of(slot, (from, to), upper, sealed))
    }

    fn open_request_of(
        &mut self,
        slot: u32,
        (from, to): (IpAddr, IpAddr),
        upper: IpProtocol,
        sealed: &[u8],
    ) -> Result<(), Reason> {
        self.check_source(from)?;
        let moves = self.table.at(slot).is_none_or(|pinhole| pinhole.client != Some(from));
        let seal = self.macs.seals.at_mut(slot).ok_or(Reason::ModeTooWeak)?;
        seal.open(&Ends::of_request(to, upper), sealed, |purpose| purpose == Purpose::Request, moves)?;
        self.move_client(slot, from);
        Ok(())
    }

    /// Whether somebody holds the session key of a grant that is open: `sealed` is what the TLS connection exports, and a
    /// trailer. It moves nothing: what comes through the tunnel proves its address like any other.
    pub fn open_tunnel(&mut self, now: Instant, id: GrantId, sealed: &[u8]) -> Result<(), Reason> {
        let (slot, pinhole) = self.live(id).ok_or(Reason::NoPinhole)?;
        if !pinhole.is_open(now) {
            return Err(pinhole.closed_reason(now));
        }
        let seal = self.macs.seals.at_mut(slot).ok_or(Reason::ModeTooWeak)?;
        seal.open(&tunnel::ENDS, sealed, |purpose| purpose == Purpose::Tunnel, false).map(drop)
    }

    /// Whether the flows of a grant may go on now from where its client is: not if they did so just now, then the next proof
    /// asks again.
    pub fn may_follow(&mut self, now: Instant, slot: u32) -> bool {
        let Some(pinhole) = self.table.at_mut(slot) else { return false };
        if pinhole.followed_at.is_some_and(|at| now.since(at) < FOLLOW_INTERVAL) {
            return false;
        }
        (pinhole.follows, pinhole.followed_at) = (false, Some(now));
        true
    }

    /// The number of a proof whose tag is right.
    fn open_proof(&mut self, slot: u32, ends: &Ends, trailer: &[u8]) -> Result<u64, Reason> {
        let seal = self.macs.seals.at_mut(slot).ok_or(Reason::ModeTooWeak)?;
        Ok(seal.open(ends, trailer, |purpose| purpose == Purpose::Proof, true)?.seq)
    }

    /// Replaces the proof in `frame` by what it was seen as.
    pub fn acknowledge(&mut self, proved: &Proved, frame: &mut Frame<'_>) -> Option<()> {
        let Proved { slot, number, period, ends: Tuple { src: client, dst: gate, .. }, .. } = *proved;
        let pinhole = self.table.at(slot)?;
        let left = pinhole.budget.left();
        let challenge = if pinhole.follows { self.challenge(slot, client.0, period) } else { 0 };
        let mut text = [0; ACK_LEN + TRAILER_LEN];
        text[..8].copy_from_slice(&number.to_be_bytes());
        text[8..24].copy_from_slice(&octets(client.0));
        text[24..26].copy_from_slice(&client.1.to_be_bytes());
        text[26..34].copy_from_slice(&left.to_be_bytes());
        text[34..ACK_LEN].copy_from_slice(&challenge.to_be_bytes());
        let ends = Ends { client, gate_port: gate.1 };
        let trailer = self.macs.seals.at_mut(slot)?.seal(Purpose::Proof, &ends, &text[..ACK_LEN])?;
        text[ACK_LEN..].copy_from_slice(&trailer);
        let datagram = udp::Repr { src_port: gate.1, dst_port: client.1, payload: &text };
        let mut buffer = [0; ipv6::HEADER_LEN + udp::HEADER_LEN + ACK_LEN + TRAILER_LEN];
        let len = build::write(&mut buffer, gate.0, client.0, &datagram)?;
        frame.replace(buffer.get(..len)?)
    }
}
