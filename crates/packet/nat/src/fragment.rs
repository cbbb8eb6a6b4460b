//! Fragments by virtual reassembly: the first fragment is judged like a packet, and its decision holds for the others.
//! Nothing is put together, nothing overlaps, and memory is bounded (RFC 4787 REQ-14, RFC 8900).

mod table;

use sluicegate_wire::{
    Frame, Instant, Port, Reason,
    ip::{Fragment, Summary},
};

pub(crate) use self::table::Fragments;
use self::table::{PacketId, State};
use crate::{
    Translator,
    config::ServiceMode,
    flows::{CHARGED, Family, Flows},
    lifecycle::charge,
    mac::{Evidence, Permission},
    rewrite::Rewrite,
    rules::Rules,
    translator::Fate,
    transport::Packet,
};

impl Translator {
    /// Judges a fragment.
    #[inline(never)]
    pub(crate) fn judge_fragment(
        &mut self,
        now: Instant,
        from: Port,
        frame: &mut Frame<'_>,
        ip: &mut Summary,
        permission: Permission,
    ) -> Result<Fate, Reason> {
        let Some(fragment) = ip.fragment else { return Err(Reason::FragmentInvalid) };
        let protocol = if ip.src.is_ipv4() { ip.protocol.0 } else { 0 };
        let id = PacketId { src: ip.src, dst: ip.dst, protocol, id: fragment.id, from };
        if ip.has_transport_header() {
            return self.judge_first(now, frame, ip, &fragment, (id, permission));
        }
        if self.fragments.find(&id).is_none() {
            // Without ports only the addresses can tell a stranger, and a stranger takes no memory.
            if let Err(reason) = self.check_ends(from, ip) {
                let host = self.rules.hosts.find(ip.dst).filter(|host| host.mode == ServiceMode::Filter);
                if from == Port::INSIDE || host.is_none() {
                    return Err(reason);
                }
                self.rules.waive(reason)?;
                ip.decrement_ttl(frame.bytes_mut())?;
                return Ok(Fate::Forward(Port::INSIDE));
            }
        }
        let counters = &mut self.rules.counters;
        let at = self.fragments.find_or_add(now, id, counters)?;
        match self.fragments.state(at).unwrap_or(State::Waiting) {
            State::Refused(reason) => Err(reason),
            State::Waiting => {
                self.fragments.note(at, &fragment, ip.transport_len())?;
                self.fragments.hold(at, frame.bytes(), counters)?;
                Ok(Fate::Held)
            }
            State::Admitted(passage) => {
                self.fragments.note(at, &fragment, ip.transport_len())?;
                if self.fragments.is_complete(at) {
                    self.fragments.remove(at);
                }
                self.follow(now, &passage, ip, frame).map(Fate::Forward)
            }
        }
    }

    fn judge_first(
        &mut self,
        now: Instant,
        frame: &mut Frame<'_>,
        ip: &mut Summary,
        fragment: &Fragment,
        (id, permission): (PacketId, Permission),
    ) -> Result<Fate, Reason> {
        // RFC 1858: a first fragment without the whole transport header is an attack.
        let mut packet = Packet::parse(self.rules.transports, *ip, frame.bytes()).map_err(|reason| match reason {
            Reason::TransportHeaderInvalid => Reason::FragmentInvalid,
            other => other,
        })?;
        if self.check_ends(id.from, ip).is_err() {
            let evidence = Evidence { permission, bytes: frame.bytes() };
            let passage = self.decide(now, id.from, &packet, &evidence)?;
            let sent = self.send(&passage, &mut packet, frame)?;
            *ip = packet.ip;
            return Ok(sent);
        }
        let at = self.fragments.find_or_add(now, id, &mut self.rules.counters)?;
        match self.fragments.state(at) {
            Some(State::Refused(reason)) => return Err(reason),
            Some(State::Admitted(_)) => return Err(Reason::FragmentInvalid),
            _ => {}
        }
        let noted = self.fragments.note(at, fragment, ip.transport_len());
        let evidence = Evidence { permission, bytes: frame.bytes() };
        match noted.and_then(|()| self.decide(now, id.from, &packet, &evidence)) {
            Ok(passage) => {
                self.fragments.admit(at, passage, &mut self.rules.counters);
                let sent = self.send(&passage, &mut packet, frame)?;
                *ip = packet.ip;
                Ok(sent)
            }
            Err(reason) => {
                self.fragments.refuse(at, reason, &mut self.rules.counters);
                Err(reason)
            }
        }
    }

    /// Whether a fragment's addresses can belong to a flow at all.
    fn check_ends(&self, from: Port, ip: &Summary) -> Result<(), Reason> {
        let rules = &self.rules;
        if from == Port::INSIDE {
            return rules.hosts.find(ip.src).map(|_| ()).ok_or(Reason::AddressInvalid);
        }
        if !rules.is_gate(ip.dst) && rules.hosts.find(ip.dst).is_none() {
            return Err(Reason::NotForService);
        }
        if rules.sources.may_contain(ip.src) { Ok(()) } else { Err(Reason::NoPinhole) }
    }

    /// Lets a later fragment follow the first: paid by the same line, rewritten alike.
    fn follow(
        &mut self,
        now: Instant,
        passage: &Rewrite,
        ip: &mut Summary,
        frame: &mut Frame<'_>,
    ) -> Result<Port, Reason> {
        let len = ip.total_len as u32;
        if ip.src.is_ipv4() {
            pay(&mut self.v4, &mut self.rules, now, passage, len)?;
        } else {
            pay(&mut self.v6, &mut self.rules, now, passage, len)?;
        }
        passage.apply_addresses(ip, frame.bytes_mut());
        ip.decrement_ttl(frame.bytes_mut())?;
        if !self.rules.fits(ip.total_len, passage.to) {
            let mtu = usize::from(self.rules.config.mtu[usize::from(passage.to.0 & 1)]);
            self.fragments.split(ip, frame, (passage.to, mtu), &mut self.rules.counters)?;
        }
        Ok(passage.to)
    }

    /// The next packet that waited, ready to leave.
    pub(crate) fn next_held(&mut self, now: Instant, frame: &mut Frame<'_>) -> Option<Result<Port, Reason>> {
        let (what, copied) = self.fragments.take(frame)?;
        if copied.is_none() {
            return Some(Err(Reason::TransmitFull));
        }
        Some(match what {
            Ok(to) => Ok(to),
            Err(passage) => Summary::parse(frame.bytes()).and_then(|mut ip| self.follow(now, &passage, &mut ip, frame)),
        })
    }
}

fn pay<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    passage: &Rewrite,
    len: u32,
) -> Result<(), Reason> {
    let Some(line) = passage.line else { return Ok(()) };
    if flows.line(line.index).generation() != line.generation {
        return Err(Reason::NoPinhole);
    }
    let (_, _, flags) = flows.line(line.index).rewrite();
    if passage.to != Port::INSIDE || flags & CHARGED == 0 {
        return Ok(());
    }
    charge(flows, rules, now, line.index, len).or_else(|reason| rules.waive(reason))
}
