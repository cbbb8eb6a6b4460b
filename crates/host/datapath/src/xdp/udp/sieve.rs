//! Requests that the kernel program refuses in the process's place, before anything is spent on them: with what probability is
//! said by source, as often as the process likes.

use std::{
    mem::offset_of,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use aya::{
    Ebpf,
    maps::{Array, IterableMap, MapData},
};
use sluicegate_wire::ip::octets;

use super::{
    LISTENERS_MAX, Server, TAKEN_BYTES_MAX, UdpQueue,
    program::{Attached, QUEUES_MAX},
    receiver,
};
use crate::{
    Interface, OpenError, offload,
    sys::Mapping,
    xdp::{program::take, queues},
};

/// Rows of shares, and columns of each.
const SHARE_ROWS: usize = 2;
const SHARE_COLUMNS: usize = 4_096;
/// Shares of each kind that there are, row after row.
pub const SHARES: usize = SHARE_ROWS * SHARE_COLUMNS;
const TABLES: usize = 2;
const COUNTERS: usize = 5;

/// What is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sieved {
    /// INVITE and REGISTER in datagrams, without credentials.
    Requests,
    /// TCP connections.
    Connections,
}

/// Most prefixes of which nothing is refused.
pub const SPARED_MAX: usize = 128;
/// Words of text that the program writes without looking into them.
const HEAD_WORDS: usize = 5;
const TAG_WORDS: usize = 3;
const TAIL_WORDS: usize = 5;

/// What a refusal says (RFC 3261 section 21.5.1), the header fields of the request apart.
const HEAD: &[u8] = b"SIP/2.0 500 Server Internal Error\r\n";
const TO_TAG: &[u8] = b";tag=";
const TAIL: &[u8] = b"Retry-After: 1\r\nContent-Length: 0\r\n\r\n";
/// Where in the last the program writes a random digit.
const RETRY_AFTER_AT: usize = 13;
const _: () = assert!(TAIL[RETRY_AFTER_AT] == b'1');

/// What the kernel program needs to refuse in the process's place.
#[derive(Clone, Copy)]
pub struct Sieve {
    /// Of SipHash-2-4, by which a source has its shares.
    pub key: [u8; 16],
    /// Goes on To, in hexadecimal digits; an ACK that has it there is for a refusal, and ends here.
    pub tag: [u8; 16],
    /// What is sent to an IPv4 /24 or an IPv6 /64 in a second at most.
    pub bytes_per_s: u64,
}

impl std::fmt::Debug for Sieve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sieve").field("bytes_per_s", &self.bytes_per_s).finish_non_exhaustive()
    }
}

/// What the program is told of it: the mirror of `struct sieve` in `bpf/sieve.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Told {
    key: [u8; 16],
    tag: [u8; 16],
    bytes_per_s: u64,
    head: [[u8; 8]; HEAD_WORDS],
    to_tag: [[u8; 8]; TAG_WORDS],
    tail: [[u8; 8]; TAIL_WORDS],
    head_len: u32,
    to_tag_len: u32,
    tail_len: u32,
    is_on: u32,
}

impl Told {
    pub(super) fn new(sieve: &Sieve) -> Self {
        let Sieve { key, tag, bytes_per_s } = *sieve;
        let mut told = Self { key, tag, bytes_per_s, is_on: 1, ..Self::default() };
        told.head_len = write(&mut told.head, &[HEAD]);
        told.to_tag_len = write(&mut told.to_tag, &[TO_TAG, &tag, b"\r\n"]);
        told.tail_len = write(&mut told.tail, &[TAIL]);
        told
    }
}

/// Fills words with a text; its length.
fn write(words: &mut [[u8; 8]], parts: &[&[u8]]) -> u32 {
    let text = parts.iter().copied().flatten();
    words.as_flattened_mut().iter_mut().zip(text).map(|(slot, byte)| *slot = *byte).count() as u32
}

/// Addresses of IPv4 mapped into IPv6, those that agree in the bits of the mask.
#[repr(C)]
#[derive(Clone, Copy)]
struct Prefix {
    address: [u8; 16],
    mask: [u8; 16],
}

/// The mirror of `struct shared` in `bpf/sieve.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shared {
    columns: [u32; TABLES * SHARES],
    counters: [u64; COUNTERS],
    spared_count: u64,
    spared: [Prefix; SPARED_MAX],
}

// SAFETY: a `repr(C)` structure of integers without implicit padding (checked by the size test below).
unsafe impl aya::Pod for Shared {}

/// What the program reads and counts, as memory: a process without privileges has it still.
pub(super) struct Maps(Mapping);

impl Maps {
    /// Before the program is attached: nobody is refused until the process says so.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, OpenError> {
        let shared: Array<MapData, Shared> = take(ebpf, "shared")?;
        let failed = |source| OpenError::system("map the shares of sources", source);
        let mut maps = Self(Mapping::shared(&shared.map().fd().as_fd(), size_of::<Shared>(), 0).map_err(failed)?);
        for what in [Sieved::Requests, Sieved::Connections] {
            maps.set_shares(what, &[u32::MAX; SHARES]);
        }
        Ok(maps)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        let cell = self.0.pointer(at, size_of::<u64>()).cast::<AtomicU64>();
        // SAFETY: the cell lies in the mapping, which lives as long as `self` and starts at a page; all that is asked for are
        // multiples of eight. The program does nothing with it that is not atomic.
        unsafe { cell.as_ref() }
    }

    fn set_shares(&mut self, what: Sieved, shares: &[u32]) {
        for (at, share) in (what as usize * SHARES..).zip(shares.iter().take(SHARES)) {
            let cell = self.0.pointer(at * size_of::<u32>(), size_of::<u32>()).cast::<AtomicU32>();
            // SAFETY: as above, but for multiples of four; the program only reads it.
            unsafe { cell.as_ref() }.store(*share, Ordering::Relaxed);
        }
    }

    fn spare(&mut self, prefixes: &[(IpAddr, u8)]) -> Result<(), OpenError> {
        if prefixes.len() > SPARED_MAX {
            return Err(OpenError::TooMany { table: "spared", given: prefixes.len(), max: SPARED_MAX });
        }
        let count = self.word(offset_of!(Shared, spared_count));
        // For a moment nobody is spared, rather than somebody who is half written.
        count.store(0, Ordering::Release);
        let places = (offset_of!(Shared, spared)..).step_by(size_of::<u64>());
        let words = prefixes.iter().flat_map(|prefix| {
            let Prefix { address, mask } = prefix_of(*prefix);
            [address, mask].map(u128::from_ne_bytes).map(halves).into_iter().flatten()
        });
        for (place, word) in places.zip(words) {
            self.word(place).store(word, Ordering::Relaxed);
        }
        count.store(prefixes.len() as u64, Ordering::Release);
        Ok(())
    }

    fn counts(&self) -> SieveCounts {
        let counted =
            |which: usize| self.word(offset_of!(Shared, counters) + which * size_of::<u64>()).load(Ordering::Relaxed);
        let [refused, acks, over_budget, unread, resets] = std::array::from_fn::<_, COUNTERS, _>(counted);
        SieveCounts { refused, acks, over_budget, unread, resets }
    }
}

/// As it lies in memory.
fn halves(whole: u128) -> [u64; 2] {
    let bytes = whole.to_ne_bytes();
    let half = |from: usize| bytes[from..].first_chunk().copied().map_or(0, u64::from_ne_bytes);
    [half(0), half(8)]
}

fn prefix_of((address, len): (IpAddr, u8)) -> Prefix {
    let len = if address.is_ipv4() { 96 } else { 0 } + u32::from(len);
    let mask = u128::MAX.checked_shl(128_u32.saturating_sub(len)).unwrap_or(0).to_be_bytes();
    let address = octets(address);
    Prefix { address: std::array::from_fn(|at| address[at] & mask[at]), mask }
}

/// What the program did with requests since it was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SieveCounts {
    /// Refused, each with an answer.
    pub refused: u64,
    /// ACKs for such answers.
    pub acks: u64,
    /// Dropped without an answer, because so much was sent to their neighbourhood.
    pub over_budget: u64,
    /// To be refused, or perhaps an ACK for a refusal, but not understood, so that the process had them.
    pub unread: u64,
    /// Connections refused.
    pub resets: u64,
}

/// An interface by which datagrams for a server come. The kernel program is at work there until this and all queues are dropped.
pub struct UdpPort {
    attached: Arc<Attached>,
    maps: Option<Maps>,
}

impl std::fmt::Debug for UdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpPort").field("attached", &self.attached).finish_non_exhaustive()
    }
}

impl UdpPort {
    /// Looks at what comes by `interface` for one of `listeners`, [`LISTENERS_MAX`] addresses at most, each with the number that
    /// its owner knows it by. Takes it as frames, by one queue for each of the interface's, or leaves it to ordinary sockets;
    /// and refuses requests, as [`Self::set_shares`] says, if there is a sieve.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is left attached.
    pub fn open(
        interface: &Interface,
        (listeners, streams): (&[(u8, SocketAddr)], &[SocketAddr]),
        takes_frames: bool,
        sieve: Option<&Sieve>,
    ) -> Result<(Self, Vec<UdpQueue>), OpenError> {
        let given = listeners.len().max(streams.len());
        if given > LISTENERS_MAX {
            return Err(OpenError::TooMany { table: "listen", given, max: LISTENERS_MAX });
        }
        // What is of another VLAN must be neither taken nor answered.
        let failed = |source| OpenError::system(format!("keep VLAN tags on at {}", interface.name), source);
        offload::leave_tags_on(&interface.name).map_err(failed)?;
        if offload::takes_tags_off(&interface.name).map_err(failed)? {
            return Err(OpenError::TagsHidden(interface.name.clone()));
        }
        let mut opened = Vec::new();
        for queue in 0..if takes_frames { queues(interface, QUEUES_MAX)? } else { 0 } {
            opened.push(receiver(interface, queue)?);
        }
        let server = Arc::new(Server::new(interface, listeners)?);
        let sockets: Vec<_> = opened.iter().map(|(socket, _)| socket).collect();
        let (attached, maps) = Attached::new(interface, (listeners, streams), TAKEN_BYTES_MAX, &sockets, sieve)?;
        let attached = Arc::new(attached);
        let queue = |(socket, umem)| UdpQueue::new(socket, umem, &server, &attached);
        let queues = opened.into_iter().map(queue).collect();
        Ok((Self { attached, maps }, queues))
    }

    /// How the program works.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} hook", self.attached.mode)
    }

    /// With what probability requests or connections pass, [`SHARES`] numbers row after row: those of a source where SipHash of
    /// it points to, by its lowest twelve bits in the first row and by those from the 17th on in the second; the higher of the
    /// two counts.
    /// [`u32::MAX`] is always. The source is [`sluicegate_wire::ip::sender_of`] the address, in 4 or 16 octets.
    pub fn set_shares(&mut self, what: Sieved, shares: &[u32]) {
        if let Some(maps) = &mut self.maps {
            maps.set_shares(what, shares);
        }
    }

    /// Nothing is refused of these prefixes, [`SPARED_MAX`] at most, and of them alone.
    ///
    /// # Errors
    /// [`OpenError::TooMany`]; then they are as before.
    pub fn spare(&mut self, prefixes: &[(IpAddr, u8)]) -> Result<(), OpenError> {
        self.maps.as_mut().map_or(Ok(()), |maps| maps.spare(prefixes))
    }

    /// What was refused.
    #[must_use]
    pub fn counts(&self) -> SieveCounts {
        self.maps.as_ref().map(Maps::counts).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sieve_and_its_mirror_have_the_same_numbers_and_no_hidden_padding() {
        let source = include_str!("../../../bpf/sieve.h");
        let numbers = [
            ("SHARE_ROWS", SHARE_ROWS),
            ("SHARE_COLUMNS", SHARE_COLUMNS),
            ("TABLES", TABLES),
            ("SPARED_MAX", SPARED_MAX),
            ("HEAD_WORDS", HEAD_WORDS),
            ("TAG_WORDS", TAG_WORDS),
            ("TAIL_WORDS", TAIL_WORDS),
            ("RETRY_AFTER_AT", RETRY_AFTER_AT),
        ];
        for (name, value) in numbers {
            assert!(source.contains(&format!("#define {name} {value}\n")), "{name}");
        }
        assert_eq!(size_of::<Shared>(), 4 * TABLES * SHARES + 8 * (COUNTERS + 1) + 32 * SPARED_MAX);
        assert_eq!(size_of::<Told>(), 32 + 8 + 8 * (HEAD_WORDS + TAG_WORDS + TAIL_WORDS) + 16);
        let told = Told::new(&Sieve { key: [1; 16], tag: *b"0123456789abcdef", bytes_per_s: 1 });
        let text = |words: &[[u8; 8]], len: u32| words.as_flattened()[..len as usize].to_vec();
        assert_eq!(text(&told.head, told.head_len), HEAD);
        assert_eq!(text(&told.to_tag, told.to_tag_len), b";tag=0123456789abcdef\r\n");
        assert_eq!(text(&told.tail, told.tail_len), TAIL);
    }
}
