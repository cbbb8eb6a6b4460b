//! One AF_XDP socket: the receive and transmit rings of one queue of one interface, with its own `fill` and
//! `completion` rings over the shared frames.

use std::{
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        bind, sockopt,
        xdp::{SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags},
    },
};

use super::{
    ring::{Consumer, Producer},
    umem::Umem,
};
use crate::sys;

/// Descriptors in each ring.
pub(super) const RING: u32 = 2048;
/// A killed gate's sockets are torn down by the kernel a little later.
const BUSY_TRIES: usize = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// In copy mode every frame on its way counts against the send buffer.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// System calls in a row to have one transmit ring emptied.
const KICKS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Socket {
    socket: socket2::Socket,
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) receive: Consumer<libc::xdp_desc>,
    pub(super) transmit: Producer<libc::xdp_desc>,
    /// Frames were put into `transmit` since the last kick.
    dirty: bool,
}

/// Where to bind a socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) ifindex: u32,
    pub(super) queue: u32,
    /// The socket that registered the frames; `None` for that socket itself.
    pub(super) sharing: Option<&'a Socket>,
    /// Do not try to have the card write into the frames directly.
    pub(super) copy: bool,
}

impl Socket {
    pub(super) fn open(umem: &Umem, place: Place<'_>) -> io::Result<Self> {
        let socket = sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0)?;
        if place.sharing.is_none() {
            sockopt::set_xdp_umem_reg(&socket, umem.registration())?;
        }
        sockopt::set_xdp_umem_fill_ring_size(&socket, RING)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, RING)?;
        sockopt::set_xdp_rx_ring_size(&socket, RING)?;
        sockopt::set_xdp_tx_ring_size(&socket, RING)?;
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let fill = Producer::map(&socket, libc::XDP_UMEM_PGOFF_FILL_RING, offsets.fr, RING)?;
        let completion = Consumer::map(&socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, RING)?;
        let receive = Consumer::map(&socket, libc::XDP_PGOFF_RX_RING as u64, offsets.rx, RING)?;
        let transmit = Producer::map(&socket, libc::XDP_PGOFF_TX_RING as u64, offsets.tx, RING)?;
        sys::grow_send_buffer(&socket, SEND_BUFFER_BYTES);
        socket.set_mark(sys::MARK)?;
        let socket = Self { socket, fill, completion, receive, transmit, dirty: false };
        socket.bind(place)?;
        Ok(socket)
    }

    fn bind(&self, place: Place<'_>) -> io::Result<()> {
        let address = |flags| SocketAddrXdp::new(flags, place.ifindex, place.queue);
        let bind = || match place.sharing {
            Some(first) => {
                let addr = address(SocketAddrXdpFlags::XDP_SHARED_UMEM);
                bind(&self.socket, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: first.as_fd() })
            }
            None => {
                let copy = if place.copy { SocketAddrXdpFlags::XDP_COPY } else { SocketAddrXdpFlags::empty() };
                bind(&self.socket, &address(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | copy))
            }
        };
        for _ in 0..BUSY_TRIES {
            match bind() {
                Err(Errno::BUSY) => thread::sleep(BUSY_PAUSE),
                other => return Ok(other?),
            }
        }
        Ok(bind()?)
    }

    /// Whether the card writes into the frames directly.
    pub(super) fn is_zero_copy(&self) -> bool {
        sockopt::xdp_options(&self.socket).is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Frames that arrived at this queue and found no room.
    pub(super) fn dropped(&self) -> u64 {
        let counts = sockopt::xdp_statistics(&self.socket);
        counts.map_or(0, |counts| counts.rx_dropped + counts.rx_ring_full.unwrap_or(0))
    }

    /// Takes back frames that were sent.
    pub(super) fn reap(&mut self, umem: &mut Umem) {
        let mut reaped = false;
        while let Some(address) = self.completion.pop() {
            umem.give(address);
            reaped = true;
        }
        if reaped {
            self.completion.release();
        }
    }

    /// Takes back frames that were sent, and lends the kernel as many empty ones as fit.
    pub(super) fn recycle(&mut self, umem: &mut Umem) {
        self.reap(umem);
        let room = self.fill.room_now();
        // A quarter at once: one release per batch, not per frame.
        if room < RING / 4 {
            return;
        }
        for _ in 0..room {
            let Some(address) = umem.take() else { break };
            if !self.fill.push(address) {
                umem.give(address);
                break;
            }
        }
        self.lend();
    }

    /// Shows the kernel the empty frames that were put into `fill`.
    pub(super) fn lend(&mut self) {
        self.fill.publish();
        if self.fill.needs_wakeup() {
            // An empty read makes the driver look at the fill ring.
            let _ = (&self.socket).read(&mut []);
        }
    }

    /// Queues the packet of `len` bytes at `address`; `false` if the ring is full, even after a kick.
    pub(super) fn queue(&mut self, address: u64, len: usize) -> bool {
        if self.transmit.room() == 0 {
            self.kick();
            if self.transmit.room_now() == 0 {
                return false;
            }
        }
        self.dirty = true;
        self.transmit.push(libc::xdp_desc { addr: address, len: len as u32, options: 0 })
    }

    /// Has the kernel send what was queued. In copy mode it takes some 32 frames per call. Whether there was more to do than it
    /// does at once.
    pub(super) fn kick(&mut self) -> bool {
        if !std::mem::take(&mut self.dirty) {
            return false;
        }
        self.transmit.publish();
        if !self.transmit.needs_wakeup() {
            return false;
        }
        let mut is_busy = true;
        for _ in 0..KICKS_MAX {
            match self.socket.send(&[]) {
                // More to do than fits one call, or the interface is busy for the moment.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && self.transmit.is_pending() => {}
                // Done; or down, or a frame above the MTU (which the kernel has discarded): the rest goes with the next kick.
                _ => {
                    is_busy = false;
                    break;
                }
            }
        }
        self.dirty = self.transmit.is_pending();
        is_busy
    }

    /// Frames in `transmit` that the kernel has not taken.
    pub(super) fn is_pending(&self) -> bool {
        self.transmit.is_pending()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}
