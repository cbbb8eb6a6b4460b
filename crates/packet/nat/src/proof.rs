//! A client proves where its packets come from: a datagram with nothing but a trailer under the session key, to the gate's
//! address and port of the grant. The gate answers with what it saw, under the key of the way back.

use core::{net::IpAddr, time::Duration};

use sluicegate_grant::mac::{Ends, Purpose, TRAILER_LEN, client_id_of};
use sluicegate_wire::{Frame, Instant, IpProtocol, Reason, build, ip::octets, ipv6, udp};

use crate::{
    Translator,
    inbound::{check_source, move_client},
    lifecycle::move_flows,
    mac::{claimed, payload},
    transport::Packet,
};

/// Payload of an acknowledgement: number of the proof 8 | address 16 | port 2 | bytes left of the grant's budget 8 |
/// challenge 8, or 0 where nothing depends on it.
pub(crate) const ACK_LEN: usize = 42;
/// Flows of one grant follow no more often: each time all are looked at, and a client may be at two places in turn for ever.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// It may be repeated in the same period or the next.
const CHALLENGE_PERIOD_NANOS: u64 = 10_000_000_000;
/// What a proof repeats of an acknowledgement that came to where it is from.
const CHALLENGE_LEN: usize = 8;

/// Whether a packet may be a proof: UDP with a trailer that says so, and at most a challenge in front.
#[inline]
pub(crate) fn is_proof(packet: &Packet, bytes: &[u8]) -> bool {
    let empty = packet.ip.transport_offset + udp::HEADER_LEN + TRAILER_LEN;
    let text_len = packet.ip.total_len.wrapping_sub(empty);
    packet.is_udp()
        && packet.ip.fragment.is_none()
        && (text_len == 0 || text_len == CHALLENGE_LEN)
        && payload(packet.ip.transport(bytes)).get(text_len + 4) == Some(&(Purpose::Proof as u8))
}

impl Translator {
    /// Checks a proof and puts the acknowledgement into `frame`. `None`: no grant that is open here has such a client, so
    /// it is a packet like any other. What does not verify is dropped and answered by nothing.
    ///
    /// A number counts once, and only if it is above all that came: a copy of a proof moves nothing, wherever it is sent
    /// from. The last address that was proved is the one that counts. One that also repeats the challenge of an
    /// acknowledgement has shown that its sender hears there, and has the flows of its grant go on from there.
    #[cold]
    pub(crate) fn prove_address(
        &mut self,
        now: Instant,
        packet: &Packet,
        frame: &mut Frame<'_>,
    ) -> Option<Result<(), Reason>> {
        let slot = claimed(&self.rules, now, packet, frame.bytes())?;
        let (client, gate) = (packet.tuple.src, packet.tuple.dst);
        let heard = payload(packet.ip.transport(frame.bytes())).first_chunk().map(|text| u64::from_be_bytes(*text));
        let heard = heard.filter(|_| payload(packet.ip.transport(frame.bytes())).len() > TRAILER_LEN);
        let ends = Ends { client, gate_port: gate.1 };
        let proved = packet
            .ip
            .check_addresses()
            .and_then(|()| check_source(&self.rules, client.0))
            .and_then(|()| self.open_proof(slot, &ends, payload(packet.ip.transport(frame.bytes()))));
        let acknowledged = proved.and_then(|number| {
            move_client(&mut self.rules, slot, client.0);
            let period = now.as_nanos() / CHALLENGE_PERIOD_NANOS;
            let challenge = |period| self.rules.challenge(slot, client.0, period);
            if heard
                .is_some_and(|heard| [period, period.saturating_sub(1)].into_iter().any(|at| heard == challenge(at)))
            {
                self.flows_follow(now, slot, client.0);
            }
            self.acknowledge(slot, (number, period), (gate, client), frame).ok_or(Reason::ModeTooWeak)
        });
        Some(acknowledged)
    }

    /// Checks a request for a capability that ends in a trailer: `sealed` is what follows its capability header, trailer
    /// included. It proves the client's address as well. `None`: no grant that is open here at `to` has a client with
    /// this id and anything to prove.
    ///
    /// # Errors
    /// As [`Self::on_packet_with`] for packet MACs. A request counts once, like a datagram.
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
            let seal = self.rules.seals.at(*slot).is_some_and(|seal| seal.client_id() == client_id);
            let pinhole = self.rules.pinholes.at(*slot);
            seal && pinhole.is_some_and(|pinhole| pinhole.is_open(now) && pinhole.gate.address == to)
        };
        let slot = self.rules.pinholes.of_client_id(client_id).find(is_it)?;
        Some(self.open_request_of(slot, (from, to), upper, sealed))
    }

    fn open_request_of(
        &mut self,
        slot: u32,
        (from, to): (IpAddr, IpAddr),
        upper: IpProtocol,
        sealed: &[u8],
    ) -> Result<(), Reason> {
        check_source(&self.rules, from)?;
        let moves = self.rules.pinholes.at(slot).is_none_or(|pinhole| pinhole.client != Some(from));
        let seal = self.rules.seals.at_mut(slot).ok_or(Reason::ModeTooWeak)?;
        seal.open(&Ends::of_request(to, upper), sealed, |purpose| purpose == Purpose::Request, moves)?;
        move_client(&mut self.rules, slot, from);
        Ok(())
    }

    /// Has the flows of a grant go on from where its client is, if they did not do so just now: then the next proof asks again.
    fn flows_follow(&mut self, now: Instant, slot: u32, client: IpAddr) {
        let Some(pinhole) = self.rules.pinholes.at_mut(slot) else { return };
        if pinhole.followed_at.is_some_and(|at| now.since(at) < FOLLOW_INTERVAL) {
            return;
        }
        (pinhole.follows, pinhole.followed_at) = (false, Some(now));
        if client.is_ipv4() {
            move_flows(&mut self.v4, &mut self.rules, now, slot, client);
        } else {
            move_flows(&mut self.v6, &mut self.rules, now, slot, client);
        }
    }

    /// The number of a proof whose tag is right.
    fn open_proof(&mut self, slot: u32, ends: &Ends, trailer: &[u8]) -> Result<u64, Reason> {
        let seal = self.rules.seals.at_mut(slot).ok_or(Reason::ModeTooWeak)?;
        Ok(seal.open(ends, trailer, |purpose| purpose == Purpose::Proof, true)?.seq)
    }

    /// Replaces the proof in `frame` by what it was seen as.
    fn acknowledge(
        &mut self,
        slot: u32,
        (number, period): (u64, u64),
        (gate, client): ((IpAddr, u16), (IpAddr, u16)),
        frame: &mut Frame<'_>,
    ) -> Option<()> {
        let pinhole = self.rules.pinholes.at(slot)?;
        let left = pinhole.budget.left();
        let challenge = if pinhole.follows { self.rules.challenge(slot, client.0, period) } else { 0 };
        let mut text = [0; ACK_LEN + TRAILER_LEN];
        text[..8].copy_from_slice(&number.to_be_bytes());
        text[8..24].copy_from_slice(&octets(client.0));
        text[24..26].copy_from_slice(&client.1.to_be_bytes());
        text[26..34].copy_from_slice(&left.to_be_bytes());
        text[34..ACK_LEN].copy_from_slice(&challenge.to_be_bytes());
        let ends = Ends { client, gate_port: gate.1 };
        let trailer = self.rules.seals.at_mut(slot)?.seal(Purpose::Proof, &ends, &text[..ACK_LEN])?;
        text[ACK_LEN..].copy_from_slice(&trailer);
        let datagram = udp::Repr { src_port: gate.1, dst_port: client.1, payload: &text };
        let mut buffer = [0; ipv6::HEADER_LEN + udp::HEADER_LEN + ACK_LEN + TRAILER_LEN];
        let len = build::write(&mut buffer, gate.0, client.0, &datagram)?;
        frame.replace(buffer.get(..len)?)
    }
}
