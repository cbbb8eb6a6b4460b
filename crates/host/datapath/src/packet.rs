//! The `packet` back end: AF_PACKET rings, and an nf_tables ingress filter that keeps the kernel from answering too.
//!
//! Packet sockets see a frame before the ingress hook does, so the filter's drops do not starve the rings. The filter is
//! installed before the sockets are opened and belongs to no process: whatever happens to the gate, the kernel receives
//! only what `local` and `peers` list. Works without root in a user namespace that owns its network namespace.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use sluicegate_wire::{Frame, Port, Reason};

use crate::{
    Class, Interface, OpenError, Rules, classify,
    device::{Action, BATCH},
    ingress::IngressFilter,
    offload,
    raw::{self, Batch, Ring, Slot, Transmitted, complete_checksum},
    sys,
};

/// Slots of each receive ring: about 20 ms of small packets at 200,000 per second.
const RING_SLOTS: usize = 4096;
/// The largest MTU whose frames fit a slot.
const MTU_MAX: u32 = 65_000;

#[derive(Debug)]
pub(crate) struct Packet {
    ports: [PortSocket; 2],
    filter: IngressFilter,
    rules: Rules,
    counters: Counters,
}

#[derive(Debug)]
struct PortSocket {
    fd: OwnedFd,
    ring: Ring,
    batch: Batch,
}

#[derive(Debug, Default)]
struct Counters {
    transmit_full: u64,
    too_big: u64,
    receive_full: u64,
    ethertype: u64,
}

impl Packet {
    pub(crate) fn open(interfaces: &[Interface; 2], rules: Rules) -> Result<Self, OpenError> {
        let [outside, inside] = interfaces;
        for interface in interfaces {
            if interface.mtu > MTU_MAX {
                let (interface, mtu) = (interface.name.clone(), interface.mtu);
                return Err(OpenError::MtuTooLarge { interface, mtu, max: MTU_MAX, backend: "packet" });
            }
        }
        let filter = install_filter(interfaces, &rules)?;
        let ports = [PortSocket::open(outside)?, PortSocket::open(inside)?];
        Ok(Self { ports, filter, rules, counters: Counters::default() })
    }

    pub(crate) fn poll(
        &mut self,
        timeout: Duration,
        handler: &mut dyn FnMut(Port, &mut Frame<'_>) -> Action,
    ) -> io::Result<usize> {
        let count = self.receive_both(handler)?;
        if count > 0 || timeout.is_zero() {
            return Ok(count);
        }
        if sys::wait_readable(&[self.ports[0].fd.as_fd(), self.ports[1].fd.as_fd()], timeout)? {
            return self.receive_both(handler);
        }
        Ok(0)
    }

    fn receive_both(&mut self, handler: &mut dyn FnMut(Port, &mut Frame<'_>) -> Action) -> io::Result<usize> {
        Ok(self.receive(Port::OUTSIDE, handler)? + self.receive(Port::INSIDE, handler)?)
    }

    /// One batch of one port: judge all, send all, then return all slots, since what is sent still lies in them.
    fn receive(&mut self, port: Port, handler: &mut dyn FnMut(Port, &mut Frame<'_>) -> Action) -> io::Result<usize> {
        let [outside, inside] = &mut self.ports;
        let PortSocket { ring, batch: outside_batch, .. } = outside;
        let PortSocket { ring: inside_ring, batch: inside_batch, .. } = inside;
        let ring = if port == Port::OUTSIDE { ring } else { inside_ring };
        outside_batch.clear();
        inside_batch.clear();
        let (mut taken, mut judged) = (0, 0);
        while taken < BATCH {
            let Some(slot) = ring.take() else { break };
            taken += 1;
            if !self.counters.admit(&slot) {
                continue;
            }
            let buffer = ring.buffer(&slot);
            let Some(mut frame) = Frame::new(buffer, slot.start, slot.len) else { continue };
            if classify(&self.rules, port, frame.bytes()) != Class::Gate {
                continue;
            }
            if slot.checksum_partial {
                complete_checksum(frame.bytes_mut());
            }
            judged += 1;
            match handler(port, &mut frame) {
                Action::Send(Port::OUTSIDE) => outside_batch.push(frame.bytes()),
                Action::Send(Port::INSIDE) => inside_batch.push(frame.bytes()),
                Action::Send(_) | Action::Drop => {}
            }
        }
        let sent = [outside, inside].map(|port| port.batch.flush(&port.fd));
        self.ports[usize::from(port.0 & 1)].ring.release(taken);
        for outcome in sent {
            self.counters.transmitted(outcome)?;
        }
        Ok(judged)
    }

    pub(crate) fn translates_pings(&mut self, words: impl Iterator<Item = u64>) {
        self.rules.pings.clear();
        self.rules.pings.extend(words);
    }

    pub(crate) fn send(&mut self, port: Port, frame: &[u8]) -> Result<(), Reason> {
        let Some(socket) = self.ports.get_mut(usize::from(port.0)) else { return Err(Reason::NoRoute) };
        socket.batch.clear();
        socket.batch.push(frame);
        let sent = socket.batch.flush(&socket.fd);
        match sent {
            Ok(Transmitted { sent: 1, .. }) => Ok(()),
            Ok(Transmitted { refused: 1, .. }) => {
                self.counters.too_big += 1;
                Err(Reason::PacketTooBig)
            }
            _ => {
                self.counters.transmit_full += 1;
                Err(Reason::TransmitFull)
            }
        }
    }

    pub(crate) fn counters(&mut self) -> Vec<(Reason, u64)> {
        for port in &self.ports {
            if let Ok(statistics) =
                sys::option::<libc::tpacket_stats>(&port.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS)
            {
                self.counters.receive_full += u64::from(statistics.tp_drops);
            }
        }
        let filter = self.filter.counters().unwrap_or_default();
        vec![
            (Reason::EthertypeUnsupported, self.counters.ethertype),
            (Reason::PacketTooBig, self.counters.too_big),
            (Reason::TransmitFull, self.counters.transmit_full),
            (Reason::LocalRate, filter.local_rate),
            (Reason::NoPinhole, filter.strangers),
            (Reason::ReceiveFull, self.counters.receive_full),
        ]
    }

    pub(crate) fn close(self, keep_closed: bool) -> Result<(), OpenError> {
        if keep_closed {
            return Ok(());
        }
        self.filter.remove().map_err(OpenError::Netlink)
    }
}

/// Puts the filter in front of the host's kernel, in place of a former gate's.
pub(crate) fn install_filter(interfaces: &[Interface; 2], rules: &Rules) -> Result<IngressFilter, OpenError> {
    let [outside, inside] = interfaces;
    IngressFilter::install(&table_name(outside, inside), &[&outside.name, &inside.name], rules)
        .map_err(|error| OpenError::netlink("install the ingress filter", error))
}

/// The filter's table: one per pair of interfaces, so that two gates on one host do not disturb each other.
fn table_name(outside: &Interface, inside: &Interface) -> String {
    format!("sluicegate_{}_{}", outside.name, inside.name)
}

impl PortSocket {
    fn open(interface: &Interface) -> Result<Self, OpenError> {
        let action = || format!("open a packet socket on {}", interface.name);
        offload::disable_receive(&interface.name).map_err(|source| OpenError::system(action(), source))?;
        let options = raw::Options {
            receive_slots: RING_SLOTS,
            frame_bytes_max: interface.mtu as usize + 18,
            ..raw::Options::default()
        };
        let socket =
            raw::Socket::open(&interface.name, &options).map_err(|source| OpenError::system(action(), source))?;
        let (fd, ring, batch) = socket.into_parts();
        sys::mark(&fd).map_err(|source| OpenError::system(action(), source))?;
        let ring = ring.ok_or_else(|| OpenError::system(action(), io::ErrorKind::InvalidInput.into()))?;
        Ok(Self { fd, ring, batch })
    }
}

impl Counters {
    /// Whether the slot holds a whole, untagged frame for this host.
    fn admit(&mut self, slot: &Slot) -> bool {
        if slot.vlan {
            self.ethertype += 1;
            return false;
        }
        if slot.wire_len > slot.len {
            self.too_big += 1;
            return false;
        }
        !matches!(slot.packet_type, libc::PACKET_OUTGOING | libc::PACKET_OTHERHOST)
    }

    /// An interface that is down for the moment loses packets like a full one; other errors end the device.
    fn transmitted(&mut self, outcome: io::Result<Transmitted>) -> io::Result<()> {
        match outcome {
            Ok(outcome) => {
                self.transmit_full += outcome.full as u64;
                self.too_big += outcome.refused as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NetworkDown => {
                self.transmit_full += 1;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
