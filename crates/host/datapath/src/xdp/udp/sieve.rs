//! Requests that the kernel program refuses in the process's place, before anything is spent on them: with what probability is
//! said by source, as often as the process likes.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use aya::{
    Ebpf,
    maps::{
        Array, IterableMap, MapData, PerCpuArray,
        lpm_trie::{Key, LpmTrie},
    },
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
    xdp::{
        program::{refused, take},
        queues,
    },
};

/// Rows of shares, and columns of each.
const SHARE_ROWS: usize = 2;
const SHARE_COLUMNS: usize = 4_096;
/// Shares of each kind that there are, row after row.
pub const SHARES: usize = SHARE_ROWS * SHARE_COLUMNS;
const TABLES: usize = 2;

/// What is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sieved {
    /// INVITE and REGISTER in datagrams, without credentials.
    Requests,
    /// TCP connections.
    Connections,
}
/// Most prefixes of which nothing is refused.
pub const SPARED_MAX: usize = 64;
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
#[derive(Debug, Clone, Copy, Default)]
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

/// What the program reads and counts.
pub(super) struct Maps {
    shares: Mapping,
    spared: LpmTrie<MapData, [u8; 16], u8>,
    /// What stands there.
    told: Vec<(IpAddr, u8)>,
    counters: PerCpuArray<MapData, u64>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Shares([u32; TABLES * SHARES]);

// SAFETY: an array of integers.
unsafe impl aya::Pod for Shares {}

impl Maps {
    /// Before the program is attached: nobody is refused until the process says so.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, OpenError> {
        let shares: Array<MapData, Shares> = take(ebpf, "shares")?;
        let failed = |source| OpenError::system("map the shares of sources", source);
        let shares = Mapping::shared(&shares.map().fd().as_fd(), size_of::<Shares>(), 0).map_err(failed)?;
        let mut maps =
            Self { shares, spared: take(ebpf, "spared")?, told: Vec::new(), counters: take(ebpf, "counters")? };
        for what in [Sieved::Requests, Sieved::Connections] {
            maps.set_shares(what, &[u32::MAX; SHARES]);
        }
        Ok(maps)
    }

    fn set_shares(&mut self, what: Sieved, shares: &[u32]) {
        for (at, share) in (what as usize * SHARES..).zip(shares.iter().take(SHARES)) {
            let cell = self.shares.pointer(at * size_of::<u32>(), size_of::<u32>()).cast::<AtomicU32>();
            // SAFETY: the cell lies in the mapping, which lives as long as `self` and starts at a page, so that it is aligned;
            // the program only reads it.
            unsafe { cell.as_ref() }.store(*share, Ordering::Relaxed);
        }
    }

    fn spare(&mut self, prefixes: &[(IpAddr, u8)]) -> Result<(), OpenError> {
        let mut wanted = prefixes.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.len() > SPARED_MAX {
            return Err(OpenError::TooMany { table: "spared", given: wanted.len(), max: SPARED_MAX });
        }
        for gone in self.told.iter().filter(|prefix| wanted.binary_search(prefix).is_err()) {
            self.spared.remove(&key(*gone)).map_err(|error| refused(&error))?;
        }
        self.told.retain(|prefix| wanted.binary_search(prefix).is_ok());
        for new in wanted {
            if let Err(at) = self.told.binary_search(&new) {
                self.spared.insert(&key(new), 1, 0).map_err(|error| refused(&error))?;
                self.told.insert(at, new);
            }
        }
        Ok(())
    }

    fn counts(&self) -> SieveCounts {
        let [refused, acks, over_budget, unread, resets] =
            [0, 1, 2, 3, 4].map(|at| self.counters.get(&at, 0).map_or(0, |counts| counts.iter().sum()));
        SieveCounts { refused, acks, over_budget, unread, resets }
    }
}

/// A prefix as the program compares it: of IPv4 mapped into IPv6.
fn key((address, len): (IpAddr, u8)) -> Key<[u8; 16]> {
    let mapped = if address.is_ipv4() { 96 } else { 0 };
    Key::new(mapped + u32::from(len), octets(address))
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

    /// With what probability requests or connections pass, [`SHARES`] numbers row after row: those of a source where SipHash of it points to,
    /// by its lowest twelve bits in the first row and by those from the 17th on in the second; the higher of the two counts.
    /// [`u32::MAX`] is always. The source is [`sluicegate_wire::ip::sender_of`] the address, in 4 or 16 octets.
    pub fn set_shares(&mut self, what: Sieved, shares: &[u32]) {
        if let Some(maps) = &mut self.maps {
            maps.set_shares(what, shares);
        }
    }

    /// Nothing is refused of these prefixes, [`SPARED_MAX`] at most, and of them alone.
    ///
    /// # Errors
    /// [`OpenError::TooMany`], or [`OpenError::Program`] if the kernel takes them not.
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
        assert_eq!(size_of::<Told>(), 32 + 8 + 8 * (HEAD_WORDS + TAG_WORDS + TAIL_WORDS) + 16);
        let told = Told::new(&Sieve { key: [1; 16], tag: *b"0123456789abcdef", bytes_per_s: 1 });
        let text = |words: &[[u8; 8]], len: u32| words.as_flattened()[..len as usize].to_vec();
        assert_eq!(text(&told.head, told.head_len), HEAD);
        assert_eq!(text(&told.to_tag, told.to_tag_len), b";tag=0123456789abcdef\r\n");
        assert_eq!(text(&told.tail, told.tail_len), TAIL);
    }
}
