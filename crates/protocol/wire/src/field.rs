//! Reading and writing fields at fixed offsets, and the shape that all packet views share.
//!
//! Inside a checked view every offset exists. Outside one, a debug build stops at the mistake; a release build reads
//! zeros and writes nothing, because a gate must not be stopped by a packet.

use crate::Reason;

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

/// Declares a `Packet` view with its constructors. The module adds `check_len` and the fields.
macro_rules! packet_view {
    ($(#[$doc:meta])*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        }
    };
}
pub(crate) use packet_view;
