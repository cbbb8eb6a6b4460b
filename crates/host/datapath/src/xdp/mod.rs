//! The `xdp` back end: an XDP program hands the gate's packets to AF_XDP sockets, whose frames are shared by both
//! interfaces: forwarding moves a frame from one's receive ring to the other's transmit ring without a copy here.

#[cfg(test)]
mod differential;
mod layout;
mod program;
mod ring;
mod socket;
mod udp;
mod umem;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Duration,
};

use sluicegate_wire::{Instant, Port, Reason};

use crate::{
    Interface, OpenError, Rules,
    device::{Action, BATCH, Handler, PacketIo},
    ingress::IngressFilter,
    offload,
    packet::install_filter,
    raw::complete_if_partial,
    sys,
};
use layout::QUEUES_MAX;
use program::Program;
pub use program::xdp_works;
pub(crate) use program::{prepare, remove_pinned};
use socket::{Place, RING, Socket};
pub use udp::{LISTENERS_MAX, SHARES, SPARED_MAX, Sieve, SieveCounts, Sieved, UdpCounts, UdpPort, UdpQueue};
use umem::{HEADROOM, Umem};

/// Frames per socket: one ring's worth to receive into, one's worth on its way out.
const FRAMES_PER_SOCKET: usize = 2 * RING as usize;
/// Largest MTU for frames of 2048 and of 4096 bytes.
const MTU_SMALL: u32 = 1700;
const MTU_MAX: u32 = 3500;
/// The program is told no more often than this.
const HEARTBEAT_STEP: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Xdp {
    program: Program,
    /// Knows what the host sent, which the program cannot see.
    filter: IngressFilter,
    /// By port, then queue.
    ports: [Vec<Socket>; 2],
    umem: Umem,
    mtu: [usize; 2],
    /// By port: whether senders on this machine leave checksums open, which XDP does not tell.
    partial: [bool; 2],
    transmit_full: u64,
    too_big: u64,
    told: Option<Instant>,
}

impl Xdp {
    /// Opens sockets on every queue first, then attaches: whoever runs there already is not disturbed by a refusal.
    pub(crate) fn open(interfaces: &[Interface; 2], rules: &Rules, state_dir: &Path) -> Result<Self, OpenError> {
        let mtu = interfaces.iter().map(|interface| interface.mtu).max().unwrap_or_default();
        if let Some(large) = interfaces.iter().find(|interface| interface.mtu > MTU_MAX) {
            let (interface, mtu) = (large.name.clone(), large.mtu);
            return Err(OpenError::MtuTooLarge { interface, mtu, max: MTU_MAX, backend: "xdp" });
        }
        let frame_bytes = if mtu <= MTU_SMALL { 2048 } else { 4096 };
        for interface in interfaces {
            let failed = |source| OpenError::system(format!("switch off GRO on {}", interface.name), source);
            offload::disable_receive(&interface.name).map_err(failed)?;
            if offload::takes_tags_off(&interface.name).map_err(failed)? {
                return Err(OpenError::TagsHidden(interface.name.clone()));
            }
        }
        let queues = [queues(&interfaces[0], QUEUES_MAX)?, queues(&interfaces[1], QUEUES_MAX)?];
        let frames = (queues[0] + queues[1]) as usize * FRAMES_PER_SOCKET;
        let (umem, ports) = match sockets(interfaces, queues, frames, frame_bytes, false) {
            // One card can and the other cannot write into the frames directly: then neither does.
            Err(_) => sockets(interfaces, queues, frames, frame_bytes, true)?,
            Ok(opened) => opened,
        };
        let mut program = Program::load(interfaces, rules, state_dir)?;
        for (port, sockets) in (0u32..).zip(&ports) {
            for (queue, socket) in (0u32..).zip(sockets) {
                program.connect(port, queue, socket)?;
            }
        }
        program.attach(interfaces)?;
        // The program lets nothing through to it before the first heartbeat; if it cannot be installed, nothing ever.
        let filter = install_filter(interfaces, rules)?;
        let mtu = [interfaces[0].mtu as usize, interfaces[1].mtu as usize];
        let partial = [0, 1].map(|port: usize| interfaces[port].kind == "veth");
        let mut xdp = Self { program, filter, ports, umem, mtu, partial, transmit_full: 0, too_big: 0, told: None };
        xdp.recycle();
        Ok(xdp)
    }

    /// How the program and the sockets work on each interface.
    pub(crate) fn describe(&self) -> String {
        let copying = self.ports.iter().map(|sockets| {
            let zero_copy = sockets.first().is_some_and(Socket::is_zero_copy);
            if zero_copy { "zero copy" } else { "copy" }
        });
        let sides: Vec<_> = ["outside", "inside"]
            .iter()
            .zip(self.program.modes)
            .zip(copying)
            .zip(&self.ports)
            .map(|(((side, mode), copying), sockets)| {
                format!("{side}: {mode} hook, {copying} mode, {} queue(s)", sockets.len())
            })
            .collect();
        sides.join("; ")
    }

    fn receive_all(&mut self, handler: &mut Handler<'_>) -> usize {
        let mut count = 0;
        for port in [Port::OUTSIDE, Port::INSIDE] {
            for queue in 0..self.ports[usize::from(port.0)].len() {
                count += self.receive(port, queue, handler);
            }
            self.kick();
        }
        self.recycle();
        count
    }

    /// One batch of one queue.
    fn receive(&mut self, port: Port, queue: usize, handler: &mut Handler<'_>) -> usize {
        let mut count = 0;
        while count < BATCH {
            let Some(descriptor) = self.ports[usize::from(port.0)][queue].receive.pop() else { break };
            count += 1;
            let (address, len) = (descriptor.addr, descriptor.len as usize);
            let base = self.umem.base(address);
            let (action, start, len) = match self.umem.frame(address, len) {
                Some(mut frame) => {
                    if self.partial[usize::from(port.0)] {
                        complete_if_partial(frame.bytes_mut());
                    }
                    let action = handler(port, &mut frame);
                    (action, frame.start(), frame.len())
                }
                None => (Action::Drop, 0, 0),
            };
            let sent = match action {
                Action::Send(to) => self.transmit(to, queue, base + start as u64, len).is_ok(),
                Action::Drop => false,
            };
            if !sent {
                self.umem.give(base);
            }
        }
        if count > 0 {
            self.ports[usize::from(port.0)][queue].receive.release();
        }
        count
    }

    /// Queues a frame; on failure it still belongs to the caller.
    fn transmit(&mut self, port: Port, queue: usize, address: u64, len: usize) -> Result<(), Reason> {
        let Some(sockets) = self.ports.get_mut(usize::from(port.0)) else { return Err(Reason::NoRoute) };
        if len > self.mtu[usize::from(port.0)] + ETHERNET_BYTES {
            self.too_big += 1;
            return Err(Reason::PacketTooBig);
        }
        let last = sockets.len() - 1;
        if sockets[queue.min(last)].queue(address, len) {
            return Ok(());
        }
        self.transmit_full += 1;
        Err(Reason::TransmitFull)
    }

    fn kick(&mut self) {
        for socket in self.ports.iter_mut().flatten() {
            socket.kick();
        }
    }

    fn recycle(&mut self) {
        for socket in self.ports.iter_mut().flatten() {
            socket.recycle(&mut self.umem);
        }
    }
}

impl PacketIo for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn poll(
        &mut self,
        timeout: Duration,
        wake: Option<BorrowedFd<'_>>,
        handler: &mut Handler<'_>,
    ) -> io::Result<usize> {
        let count = self.receive_all(handler);
        if count > 0 || timeout.is_zero() {
            return Ok(count);
        }
        let mut fds = [self.ports[0][0].as_fd(); 2 * QUEUES_MAX as usize + 1];
        let mut len = 0;
        for (slot, fd) in fds.iter_mut().zip(self.ports.iter().flatten().map(Socket::as_fd).chain(wake)) {
            *slot = fd;
            len += 1;
        }
        // Frames that the kernel has not taken yet are tried again soon.
        let pending = self.ports.iter().flatten().any(Socket::is_pending);
        let timeout = if pending { timeout.min(Duration::from_millis(1)) } else { timeout };
        if sys::wait_readable(&fds[..len], timeout)? { Ok(self.receive_all(handler)) } else { Ok(0) }
    }

    fn send(&mut self, port: Port, bytes: &[u8]) -> Result<(), Reason> {
        let Some(base) = self.umem.take() else {
            self.transmit_full += 1;
            return Err(Reason::TransmitFull);
        };
        let start = base + HEADROOM as u64;
        let written = self.umem.frame(start, bytes.len()).map(|mut frame| frame.bytes_mut().copy_from_slice(bytes));
        let outcome = match written {
            Some(()) => self.transmit(port, 0, start, bytes.len()),
            None => {
                self.too_big += 1;
                Err(Reason::PacketTooBig)
            }
        };
        if outcome.is_err() {
            self.umem.give(base);
        }
        outcome
    }

    fn counters(&mut self) -> Vec<(Reason, u64)> {
        let full = self.ports.iter().flatten().map(Socket::dropped).sum();
        let mut counters = self.program.counters();
        counters.extend(self.filter.counters().into_iter().flatten());
        counters.extend([
            (Reason::ReceiveFull, full),
            (Reason::TransmitFull, self.transmit_full),
            (Reason::PacketTooBig, self.too_big),
        ]);
        counters
    }

    fn fragmented(&self) -> usize {
        self.program.fragmented(sys::monotonic_now().as_nanos())
    }

    fn open_up(self: Box<Self>) -> Result<(), OpenError> {
        self.program.detach()?;
        self.filter.remove().map_err(OpenError::Netlink)
    }

    fn heartbeat(&mut self, now: Instant) {
        let fresh = self.told.is_some_and(|told| now >= told && now.since(told) < HEARTBEAT_STEP);
        if !fresh {
            self.told = Some(now);
            self.program.heartbeat(now.as_nanos());
        }
    }

    fn translates_pings(&mut self, words: &mut dyn Iterator<Item = u64>) {
        self.program.translates_pings(words);
    }
}

/// Length of an Ethernet header without tag.
const ETHERNET_BYTES: usize = 14;

fn queues(interface: &Interface, max: u32) -> Result<u32, OpenError> {
    let count = offload::receive_queues(&interface.name)
        .map_err(|source| OpenError::system(format!("count the queues of {}", interface.name), source))?;
    if count > max {
        let (given, max) = (count as usize, max as usize);
        return Err(OpenError::TooMany { table: "queues (see `ethtool -L`)", given, max });
    }
    Ok(count)
}

fn open_socket(umem: &Umem, interface: &Interface, place: Place<'_>) -> Result<Socket, OpenError> {
    Socket::open(umem, place).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Busy {
            interface: interface.name.clone(),
            holder: format!("another AF_XDP program (queue {})", place.queue),
        },
        _ => OpenError::system(format!("open an AF_XDP socket on {}", interface.name), source),
    })
}

type Opened = (Umem, [Vec<Socket>; 2]);

/// One socket per queue of each interface, all over the same frames.
fn sockets(
    interfaces: &[Interface; 2],
    queues: [u32; 2],
    frames: usize,
    frame_bytes: usize,
    copy: bool,
) -> Result<Opened, OpenError> {
    let umem = Umem::new(frames, frame_bytes).map_err(|source| OpenError::system("allocate frames", source))?;
    let mut ports = [Vec::new(), Vec::new()];
    for number in 0..ports.len() {
        let interface = &interfaces[number];
        for queue in 0..queues[number] {
            let place = Place { ifindex: interface.index, queue, sharing: ports[0].first(), copy };
            let socket = open_socket(&umem, interface, place)?;
            ports[number].push(socket);
        }
    }
    Ok((umem, ports))
}
