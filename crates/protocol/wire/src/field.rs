//! Reading and writing fields at fixed offsets, and the shape that all packet views share.
//!
//! Inside a checked view every offset exists. Outside one, a debug build stops at the mistake; a release build reads
//! zeros and writes nothing, because a gate must not be stopped by a packet.

use core::{
    net::{Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use crate::{IpProtocol, Reason, capability::ClientId, tcp::Flags};

/// The `N` bytes at `at`.
#[inline]
pub(crate) fn array<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    let found = data.get(at..).and_then(|rest| rest.first_chunk::<N>());
    debug_assert!(found.is_some(), "field {at}+{N} of a view of {} bytes that was not checked", data.len());
    found.copied().unwrap_or([0; N])
}

/// The byte at `at`.
#[inline]
pub(crate) fn u8_at(data: &[u8], at: usize) -> u8 {
    let [byte] = array(data, at);
    byte
}

/// The big-endian 16-bit number at `at`.
#[inline]
pub(crate) fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(data, at))
}

/// The big-endian 32-bit number at `at`.
#[inline]
pub(crate) fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(data, at))
}

/// Writes `bytes` at `at`.
#[inline]
pub(crate) fn put(data: &mut [u8], at: usize, bytes: &[u8]) {
    let len = data.len();
    let place = data.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
    debug_assert!(place.is_some(), "field {at}+{} of a view of {len} bytes that was not checked", bytes.len());
    if let Some(place) = place {
        place.copy_from_slice(bytes);
    }
}

/// Copies as much of `source` to `target` as both hold: a payload into the room left for it.
#[inline]
pub(crate) fn fill(target: &mut [u8], source: &[u8]) {
    for (to, from) in target.iter_mut().zip(source) {
        *to = *from;
    }
}

/// The bytes of this range, or those of them that are there: between a header and where its length field ends a packet.
#[inline]
pub(crate) fn within(data: &[u8], Range { start, end }: Range<usize>) -> &[u8] {
    data.get(start..end.min(data.len())).unwrap_or_default()
}

/// As [`within`], writable.
#[inline]
pub(crate) fn within_mut(data: &mut [u8], Range { start, end }: Range<usize>) -> &mut [u8] {
    let end = end.min(data.len());
    data.get_mut(start..end).unwrap_or_default()
}

/// A length as a 16-bit field; what does not fit becomes the largest value.
#[inline]
pub(crate) fn length(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// Refuses a message that was cut short in the middle of its transport header.
#[inline]
pub(crate) const fn at_least(len: usize, least: usize, reason: Reason) -> Result<(), Reason> {
    if len < least { Err(reason) } else { Ok(()) }
}

/// Takes the next option off a list of them (RFC 791 3.1, RFC 9293 3.2): its kind, and what follows kind and length. Padding
/// is left out. The first malformed option ends the list with `reason`, as the end of the list does without.
#[inline]
pub(crate) fn next_option<'a>(rest: &mut &'a [u8], reason: Reason) -> Option<Result<(u8, &'a [u8]), Reason>> {
    while let [1, behind @ ..] = *rest {
        *rest = behind;
    }
    let option = match *rest {
        [] | [0, ..] => None,
        [kind, len, behind @ ..] if *len >= 2 => {
            let option = behind.split_at_checked(usize::from(*len) - 2);
            Some(option.map(|(data, behind)| (*kind, data, behind)).ok_or(reason))
        }
        _ => Some(Err(reason)),
    };
    *rest = match option {
        Some(Ok((.., behind))) => behind,
        _ => &[],
    };
    option.map(|option| option.map(|(kind, data, _)| (kind, data)))
}

/// A value that stands at a fixed offset of a header, in network byte order.
pub(crate) trait Field {
    /// Reads the value at `at`.
    fn read(data: &[u8], at: usize) -> Self;
    /// Writes the value at `at`.
    fn write(self, data: &mut [u8], at: usize);
}

macro_rules! field {
    ($($kind:ty: $of_bytes:expr, $to_bytes:expr;)*) => {$(
        impl Field for $kind {
            #[inline]
            fn read(data: &[u8], at: usize) -> Self {
                $of_bytes(array(data, at))
            }

            #[inline]
            fn write(self, data: &mut [u8], at: usize) {
                put(data, at, &$to_bytes(&self));
            }
        }
    )*};
}

field! {
    u8: |[byte]: [Self; 1]| byte, |byte: &Self| [*byte];
    u16: Self::from_be_bytes, |number: &Self| number.to_be_bytes();
    u32: Self::from_be_bytes, |number: &Self| number.to_be_bytes();
    [u8; 6]: core::convert::identity, |address: &Self| *address;
    Ipv4Addr: Self::from_octets, Self::octets;
    Ipv6Addr: Self::from_octets, Self::octets;
    IpProtocol: |[number]: [u8; 1]| Self(number), |protocol: &Self| [protocol.0];
    Flags: |[bits]: [u8; 1]| Self(bits), |flags: &Self| [flags.0];
    ClientId: |bytes| Self(u32::from_be_bytes(bytes)), |client: &Self| client.0.to_be_bytes();
}

/// Declares a `Packet` view with its constructors, and its fields at fixed offsets: `reader, writer: TYPE = OFFSET`, the
/// writer only where somebody writes the field, `TYPE as OTHER` where it is read as another type. Last, of a view
/// with a payload, where that lies: `..|packet| START..END`. The module adds `check_len` and what takes more than an offset.
macro_rules! packet_view {
    (@read $kind:ty) => { $kind };
    (@read $kind:ty, $read_as:ty) => { $read_as };
    ($(#[$doc:meta])* pub struct Packet {
        $($(#[$field:meta])* $read:ident $(, $write:ident)?: $kind:ty $(as $read_as:ty)? = $at:expr;)*
        $(..|$packet:pat_param| $range:expr)?
    }) => {
        $(#[$doc])*
        pub struct Packet<T> {
            buffer: T,
        }

        impl<T> Packet<T> {
            /// Views `buffer` without looking at it. Call `check_len` before any accessor.
            #[inline]
            pub const fn new_unchecked(buffer: T) -> Self {
                Self { buffer }
            }

            /// Gives the buffer back.
            #[inline]
            pub fn into_inner(self) -> T {
                self.buffer
            }
        }

        impl<T: AsRef<[u8]>> Packet<T> {
            /// Views `buffer` if it holds a whole, self-consistent packet.
            ///
            /// # Errors
            /// Those of `check_len`.
            #[inline]
            pub fn new_checked(buffer: T) -> Result<Self, $crate::Reason> {
                let packet = Self { buffer };
                packet.check_len()?;
                Ok(packet)
            }

            #[inline]
            fn bytes(&self) -> &[u8] {
                self.buffer.as_ref()
            }

            $(
                $(#[$field])*
                #[inline]
                pub fn $read(&self) -> $crate::field::packet_view!(@read $kind $(, $read_as)?) {
                    <$kind as $crate::field::Field>::read(self.bytes(), $at).into()
                }
            )*

            $(
                /// What lies behind the header, as far as a length field says that the packet reaches.
                #[inline]
                pub fn payload(&self) -> &[u8] {
                    let $packet = self;
                    $crate::field::within(self.bytes(), $range)
                }
            )?
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
            $($(
                #[doc = concat!("Writes [`Self::", stringify!($read), "`].")]
                #[inline]
                pub fn $write(&mut self, value: $kind) {
                    $crate::field::Field::write(value, self.buffer.as_mut(), $at);
                }
            )?)*

            $(
                /// As [`Self::payload`], writable.
                #[inline]
                pub fn payload_mut(&mut self) -> &mut [u8] {
                    let $packet = &*self;
                    let range = $range;
                    $crate::field::within_mut(self.buffer.as_mut(), range)
                }
            )?
        }
    };
}
pub(crate) use packet_view;
