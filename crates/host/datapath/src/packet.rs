//! The `packet` back end: AF_PACKET rings, and an nf_tables ingress filter that keeps the kernel from answering too.
//!
//! Packet sockets see a frame before the ingress hook does, so the filter's drops do not starve the rings. The filter is
//! installed before the sockets are opened and belongs to no process: whatever happens to the gate, the kernel receives
//! only what `local` and `peers` list. Works without root in a user namespace that owns its network namespace.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use sluicegate_wire::{Frame, Port, Reason};

use crate::{
    Class, FRAGMENT_WAIT, Interface, OpenError, Rules,
    classify::Classifier,
    device::{Action, BATCH, Handler, PacketIo},
    ingress::IngressFilter,
    offload,
    raw::{self, Slot, Transmitted, complete_checksum},
    sys,
};

/// Slots of each receive ring: about 20 ms of small packets at 200,000 per second.
const RING_SLOTS: usize = 4096;
/// The largest MTU whose frames fit a slot.
const MTU_MAX: u32 = 65_000;

#[derive(Debug)]
pub(crate) struct Packet {
    ports: [raw::Socket; 2],
    filter: IngressFilter,
    rules: Rules,
    classifier: Classifier,
    counters: Counters,
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
        let ports = [open(outside)?, open(inside)?];
        let classifier = Classifier::new(FRAGMENT_WAIT);
        Ok(Self { ports, filter, rules, classifier, counters: Counters::default() })
    }

    fn receive_both(&mut self, handler: &mut Handler<'_>) -> io::Result<usize> {
        Ok(self.receive(Port::OUTSIDE, handler)? + self.receive(Port::INSIDE, handler)?)
    }

    /// One batch of one port: judge all, send all, then return all slots, since what is sent still lies in them.
    fn receive(&mut self, port: Port, handler: &mut Handler<'_>) -> io::Result<usize> {
        let [outside, inside] = &mut self.ports;
        let ring = if port == Port::OUTSIDE { &mut outside.ring } else { &mut inside.ring };
        let Some(ring) = ring else { return Ok(0) };
        outside.batch.clear();
        inside.batch.clear();
        let (mut taken, mut judged) = (0, 0);
        let now = sys::monotonic_now();
        while taken < BATCH {
            let Some(slot) = ring.take() else { break };
            taken += 1;
            if !self.counters.admit(&slot) {
                continue;
            }
            let buffer = ring.buffer(&slot);
            let Some(mut frame) = Frame::new(buffer, slot.start, slot.len) else { continue };
            if self.classifier.classify(now, &self.rules, port, frame.bytes()) != Class::Gate {
                continue;
            }
            if slot.checksum_partial {
                complete_checksum(frame.bytes_mut());
            }
            judged += 1;
            match handler(port, &mut frame) {
                Action::Send(Port::OUTSIDE) => outside.batch.push(frame.bytes()),
                Action::Send(Port::INSIDE) => inside.batch.push(frame.bytes()),
                Action::Send(_) | Action::Drop => {}
            }
        }
        let sent = [outside.batch.flush(&outside.socket), inside.batch.flush(&inside.socket)];
        ring.release(taken);
        for outcome in sent {
            self.counters.transmitted(outcome)?;
        }
        Ok(judged)
    }
}

impl PacketIo for Packet {
    fn name(&self) -> &'static str {
        "packet"
    }

    fn poll(
        &mut self,
        timeout: Duration,
        wake: Option<BorrowedFd<'_>>,
        handler: &mut Handler<'_>,
    ) -> io::Result<usize> {
        let count = self.receive_both(handler)?;
        if count > 0 || timeout.is_zero() {
            return Ok(count);
        }
        let [outside, inside] = self.ports.each_ref().map(|port| port.socket.as_fd());
        if sys::wait_readable(&[outside, inside, wake.unwrap_or(inside)], timeout)? {
            return self.receive_both(handler);
        }
        Ok(0)
    }

    fn send(&mut self, port: Port, frame: &[u8]) -> Result<(), Reason> {
        let Some(socket) = self.ports.get_mut(usize::from(port.0)) else { return Err(Reason::NoRoute) };
        socket.batch.clear();
        socket.batch.push(frame);
        let sent = socket.batch.flush(&socket.socket);
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

    fn counters(&mut self) -> Vec<(Reason, u64)> {
        for port in &self.ports {
            self.counters.receive_full += port.statistics().map_or(0, |statistics| statistics.dropped);
        }
        let own = [
            (Reason::EthertypeUnsupported, self.counters.ethertype),
            (Reason::PacketTooBig, self.counters.too_big),
            (Reason::TransmitFull, self.counters.transmit_full),
            (Reason::ReceiveFull, self.counters.receive_full),
        ];
        own.into_iter().chain(self.filter.counters().into_iter().flatten()).collect()
    }

    fn fragmented(&self) -> usize {
        self.classifier.expected(sys::monotonic_now())
    }

    fn open_up(self: Box<Self>) -> Result<(), OpenError> {
        self.filter.remove().map_err(OpenError::Netlink)
    }

    fn translates_pings(&mut self, words: &mut dyn Iterator<Item = u64>) {
        self.rules.pings.clear();
        self.rules.pings.extend(words);
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

fn open(interface: &Interface) -> Result<raw::Socket, OpenError> {
    let failed = |source| OpenError::system(format!("open a packet socket on {}", interface.name), source);
    offload::disable_receive(&interface.name).map_err(failed)?;
    let frame_bytes_max = interface.mtu as usize + 18;
    let options = raw::Options { receive_slots: RING_SLOTS, frame_bytes_max, ..raw::Options::default() };
    let socket = raw::Socket::open(&interface.name, &options).map_err(failed)?;
    socket.socket.set_mark(sys::MARK).map_err(failed)?;
    Ok(socket)
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
