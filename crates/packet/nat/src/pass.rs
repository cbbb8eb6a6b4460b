//! Packets that need no permission: those of open services, and all those of a router.

use core::net::IpAddr;

use sluicegate_wire::{Frame, Instant, IpProtocol, Port, Reason, Verdict, icmpv4, icmpv6, ip::Summary};

use crate::{Translator, reply};

impl Translator {
    /// Forwards a packet out of the other port as a router does: one hop older, cut or answered if the next link is too
    /// narrow for it, answered if its time to live is over (RFC 1812 5.3.1, RFC 4443 3.3). Nothing else is asked.
    pub fn pass(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>) -> Verdict {
        match Summary::parse(frame.bytes()) {
            Ok(mut ip) => self.pass_parsed(now, port, frame, &mut ip),
            Err(reason) => {
                self.rules.counters.count_drop(reason);
                Verdict::Drop(reason)
            }
        }
    }

    /// As [`Self::pass`], for a packet that was parsed: `ip` describes it, and what it has become.
    pub fn pass_parsed(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>, ip: &mut Summary) -> Verdict {
        self.now = now;
        self.rules.paid = None;
        self.sweep(now);
        match self.pass_on(port, frame, ip) {
            Ok(to) => {
                self.rules.counters.count_forward(to, frame.len());
                Verdict::Forward(to)
            }
            Err(Reason::TtlExpired) => self.refuse_expired(now, frame, ip),
            Err(Reason::PacketTooBig) => {
                let mtu = self.rules.config.mtu[usize::from(port.opposite().0 & 1)];
                self.refuse_too_big(now, mtu, frame, ip)
            }
            Err(reason) => self.refuse(now, port, frame, ip, reason),
        }
    }

    /// Answers a packet, which is dropped, with the largest packet that can pass: `mtu` in bytes, for a caller that adds
    /// headers to what it forwards.
    pub fn refuse_too_big(&mut self, now: Instant, mtu: u16, frame: &mut Frame<'_>, ip: &Summary) -> Verdict {
        self.rules.counters.count_drop(Reason::PacketTooBig);
        if self.rules.admit_icmp_public(now) && reply::too_big(&self.rules.config, mtu, frame, ip).is_some() {
            self.rules.counters.count_reply();
            return Verdict::Reply;
        }
        Verdict::Drop(Reason::PacketTooBig)
    }

    /// Whether the host at this inside address is that of an open service.
    #[inline]
    #[must_use]
    pub fn is_open(&self, address: IpAddr) -> bool {
        self.rules.hosts.is_open(address)
    }

    fn pass_on(&mut self, port: Port, frame: &mut Frame<'_>, ip: &mut Summary) -> Result<Port, Reason> {
        frame.truncate(ip.total_len);
        ip.check_addresses()?;
        if self.rules.is_gate(ip.dst) {
            return Err(Reason::NotForService);
        }
        let to = port.opposite();
        if ip.ttl <= 1 {
            return Err(Reason::TtlExpired);
        }
        if !self.rules.fits(ip.total_len, to) {
            if ip.dont_fragment || ip.has_options {
                return Err(Reason::PacketTooBig);
            }
            ip.decrement_ttl(frame.bytes_mut())?;
            let mtu = usize::from(self.rules.config.mtu[usize::from(to.0 & 1)]);
            self.fragments.split(ip, frame, (to, mtu), &mut self.rules.counters)?;
            return Ok(to);
        }
        ip.decrement_ttl(frame.bytes_mut())?;
        Ok(to)
    }

    #[cold]
    fn refuse_expired(&mut self, now: Instant, frame: &mut Frame<'_>, ip: &Summary) -> Verdict {
        self.rules.counters.count_drop(Reason::TtlExpired);
        if may_be_answered(ip, frame.bytes())
            && self.rules.admit_icmp_public(now)
            && reply::time_exceeded(&self.rules.config, frame, ip).is_some()
        {
            self.rules.counters.count_reply();
            return Verdict::Reply;
        }
        Verdict::Drop(Reason::TtlExpired)
    }
}

/// RFC 1812 4.3.2.7: errors answer neither errors nor later fragments.
fn may_be_answered(ip: &Summary, packet: &[u8]) -> bool {
    let kind = ip.transport(packet).first().copied();
    let is_error = match ip.protocol {
        IpProtocol::ICMP => kind
            .is_none_or(|kind| ![icmpv4::Type::ECHO_REQUEST, icmpv4::Type::ECHO_REPLY].contains(&icmpv4::Type(kind))),
        IpProtocol::ICMPV6 => kind.is_none_or(|kind| kind < icmpv6::Type::ECHO_REQUEST.0),
        _ => false,
    };
    ip.has_transport_header() && !is_error
}
