use core::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroize;

use super::{FromGate, ToGate};

/// Longest message in bytes, without the 4 bytes of length in front of it.
pub const FRAME_LEN_MAX: usize = 64 * 1024;
const PREFIX_LEN: usize = 4;

/// What travels on a feed: a length (4 bytes, big-endian), then that many bytes of postcard.
pub trait Message: Serialize + DeserializeOwned {}

impl Message for ToGate {}
impl Message for FromGate {}

/// Why bytes are no message, or a message cannot be sent. The connection cannot go on after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Longer than any message.
    #[error(
        "the feed carries a message of {0} bytes, more than {FRAME_LEN_MAX}; the other end is no feed, or newer than this one"
    )]
    TooLong(usize),
    /// Not a message of this version.
    #[error("the feed carries a message that cannot be read; the other end is no feed, or of another version")]
    Malformed,
}

/// The bytes of a message, with their length in front.
///
/// # Errors
/// [`CodecError::TooLong`] if a message holds more than fits; nothing that arrived can be too long to be sent on in parts.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, CodecError> {
    let mut bytes = postcard::to_extend(message, vec![0; PREFIX_LEN]).map_err(|_| CodecError::Malformed)?;
    let len = bytes.len() - PREFIX_LEN;
    if len > FRAME_LEN_MAX {
        bytes.zeroize();
        return Err(CodecError::TooLong(len));
    }
    bytes[..PREFIX_LEN].copy_from_slice(&(len as u32).to_be_bytes());
    Ok(bytes)
}

/// Finds messages in a stream of bytes that arrives in pieces of any size.
///
/// Holds one buffer of the largest message, made at construction; what a message holds is at most a small multiple of its
/// bytes. After an error it stays in error.
///
/// After [`Self::advance`] or [`Self::push`], call [`Self::poll`] until it returns nothing: then there is room again.
pub struct Decoder<M> {
    buffer: Box<[u8]>,
    /// The bytes that have arrived and are not yet read: `start..end`.
    start: usize,
    end: usize,
    error: Option<CodecError>,
    message: PhantomData<M>,
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        let buffer = vec![0; PREFIX_LEN + FRAME_LEN_MAX].into_boxed_slice();
        Self { buffer, start: 0, end: 0, error: None, message: PhantomData }
    }
}

impl<M: Message> Decoder<M> {
    /// An empty decoder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where the next bytes go. Never empty once [`Self::poll`] has returned nothing.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// Says that `n` bytes were written to [`Self::space`].
    pub fn advance(&mut self, n: usize) {
        self.end = self.end.saturating_add(n).min(self.buffer.len());
    }

    /// Takes bytes and returns how many of them; the rest when there is room again.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let space = self.space();
        let taken = bytes.len().min(space.len());
        if let (Some(to), Some(from)) = (space.get_mut(..taken), bytes.get(..taken)) {
            to.copy_from_slice(from);
        }
        self.advance(taken);
        taken
    }

    /// The next message, if all of it has arrived.
    ///
    /// # Errors
    /// If the bytes are no message; from then on always.
    pub fn poll(&mut self) -> Result<Option<M>, CodecError> {
        match self.error {
            Some(error) => Err(error),
            None => self.poll_frame().inspect_err(|error| self.error = Some(*error)),
        }
    }

    fn poll_frame(&mut self) -> Result<Option<M>, CodecError> {
        let arrived = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some((prefix, rest)) = arrived.split_first_chunk::<PREFIX_LEN>() else { return Ok(None) };
        let len = u32::from_be_bytes(*prefix) as usize;
        if len > FRAME_LEN_MAX {
            return Err(CodecError::TooLong(len));
        }
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        let Ok((message, [])) = postcard::take_from_bytes(frame) else { return Err(CodecError::Malformed) };
        self.start += PREFIX_LEN + len;
        Ok(Some(message))
    }
}

impl<M> Drop for Decoder<M> {
    fn drop(&mut self) {
        // Join secrets pass through here.
        self.buffer.zeroize();
    }
}
