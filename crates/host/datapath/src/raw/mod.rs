//! Raw Ethernet sockets (AF_PACKET) with batches and kernel timestamps: for attackers, captures, link emulators, and the
//! `packet` back end.
//!
//! Checksums: packets of a local sender on a veth pair may carry half-computed checksums and exceed the MTU. Switch that
//! off with [`crate::offload::disable`] on the sending interface.

mod checksum;
mod ring;
mod transmit;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

pub(crate) use checksum::{complete_checksum, complete_if_partial};
pub(crate) use ring::{Ring, Slot};
pub(crate) use transmit::Batch;
pub use transmit::{BATCH, Transmitted};

use nix::net::if_::if_nametoindex;

use crate::sys;

/// The default stops a fast sender after some hundred frames in flight.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// How to open a [`Socket`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Slots of the receive ring (rounded up); 0 opens a socket that only sends.
    pub receive_slots: usize,
    /// The longest frame to receive whole, in bytes, Ethernet header included.
    pub frame_bytes_max: usize,
    /// Send straight to the driver, without the queueing discipline. Faster; overflow is dropped, not queued.
    pub bypass_qdisc: bool,
    /// Receive frames for other hosts' MAC addresses too.
    pub promiscuous: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { receive_slots: 4096, frame_bytes_max: 1518, bypass_qdisc: false, promiscuous: false }
    }
}

impl Options {
    /// A socket that only sends, straight to the driver.
    #[must_use]
    pub fn send_only() -> Self {
        Self { receive_slots: 0, bypass_qdisc: true, ..Self::default() }
    }
}

/// A received frame, lent to the handler of [`Socket::receive`].
#[derive(Debug)]
pub struct Received<'a> {
    /// The frame from its Ethernet header on, cut at the slot size.
    pub bytes: &'a mut [u8],
    /// Length on the wire in bytes; larger than `bytes` if it was cut.
    pub wire_len: usize,
    /// When the kernel received it, in nanoseconds since 1970.
    pub timestamp_ns: u64,
}

/// What the kernel counted since the last call of [`Socket::statistics`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Frames that passed the filter, dropped ones included.
    pub received: u64,
    /// Frames dropped because the ring was full.
    pub dropped: u64,
}

/// A raw socket on one interface of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    pub(crate) socket: socket2::Socket,
    pub(crate) ring: Option<Ring>,
    pub(crate) batch: Batch,
}

impl Socket {
    /// Opens a socket on `interface` in the calling thread's network namespace (it stays there).
    ///
    /// # Errors
    /// No such interface; no `CAP_NET_RAW` in the namespace; not enough memory for the ring.
    pub fn open(interface: &str, options: &Options) -> io::Result<Self> {
        let index = if_nametoindex(interface)?;
        // Protocol 0: nothing arrives before the ring is in place.
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        if options.bypass_qdisc {
            sys::set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1)?;
        }
        let receives = options.receive_slots > 0;
        let mut ring = None;
        if receives {
            // What this host sends is not received.
            sys::set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
            ring = Some(Ring::open(&socket, options.receive_slots, options.frame_bytes_max)?);
        }
        sys::grow_send_buffer(&socket, SEND_BUFFER_BYTES);
        bind(&socket, index, receives)?;
        if options.promiscuous {
            join_promiscuous(&socket, index)?;
        }
        Ok(Self { socket, ring, batch: Batch::new() })
    }

    /// Hands every waiting frame, at most `max`, to `handler` and returns their number. Does not wait.
    pub fn receive(&mut self, max: usize, handler: &mut dyn FnMut(Received<'_>)) -> usize {
        let Some(ring) = &mut self.ring else { return 0 };
        let mut count = 0;
        while count < max {
            let Some(slot) = ring.take() else { break };
            let bytes = ring.buffer(&slot).get_mut(slot.start..slot.start + slot.len).unwrap_or_default();
            handler(Received { bytes, wire_len: slot.wire_len, timestamp_ns: slot.timestamp_ns });
            ring.release(1);
            count += 1;
        }
        count
    }

    /// Waits until a frame is there; `false` after `timeout`.
    ///
    /// # Errors
    /// `ENETDOWN` if the interface went down or away.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        sys::wait_readable(&[self.socket.as_fd()], timeout)
    }

    /// Sends frames, each from its Ethernet header on, in batches of [`BATCH`] per system call.
    ///
    /// # Errors
    /// Only what makes sending impossible, such as an interface that is down. Frames that the interface had no room for,
    /// or that were larger than its MTU, are counted in [`Transmitted`].
    pub fn send<B: AsRef<[u8]>>(&mut self, frames: &[B]) -> io::Result<Transmitted> {
        let mut total = Transmitted::default();
        for chunk in frames.chunks(BATCH) {
            self.batch.clear();
            for frame in chunk {
                self.batch.push(frame.as_ref());
            }
            // `flush` sends and forgets the pushed frames before `frames` can go away.
            total += self.batch.flush(&self.socket)?;
        }
        Ok(total)
    }

    /// Frames received and dropped since the last call.
    ///
    /// # Errors
    /// None in practice; those of `getsockopt`.
    pub fn statistics(&self) -> io::Result<Statistics> {
        let raw: libc::tpacket_stats = sys::option(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
        Ok(Statistics { received: raw.tp_packets.into(), dropped: raw.tp_drops.into() })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bind(socket: &socket2::Socket, index: u32, receives: bool) -> io::Result<()> {
    let protocol = if receives { (libc::ETH_P_ALL as u16).to_be() } else { 0 };
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol,
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    sys::bind(socket, &address)
}

fn join_promiscuous(socket: &socket2::Socket, index: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}
