//! Messages on a stream: bytes in, as they come, whole messages out (RFC 3261 section 18.3, RFC 5626 section 4.4.1).
//!
//! A message is framed by the same index of its header fields by which [`Message::parse`] reads it, so that the two never
//! see different ends. Nothing is held between messages, and of one under way no more than [`MESSAGE_LEN_MAX`] bytes.

use alloc::vec::Vec;

use memchr::memmem;

use crate::message::{Fault, MESSAGE_LEN_MAX, Message, ParseError, refuse};

/// What ends the header fields.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// What comes out of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'b> {
    /// One whole message, for [`Message::parse`].
    Message(&'b [u8]),
    /// A keep-alive, to be answered with one CR LF (RFC 5626 section 4.4.1).
    Ping,
}

/// Nobody can tell where the next message begins: the stream is to be closed, after an answer if there is one to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Broken<'b> {
    /// What is wrong, and the status to answer with.
    pub error: ParseError,
    /// What has come of the message, for [`Message::salvage`].
    pub bytes: &'b [u8],
}

/// Cuts one direction of a stream into messages.
#[derive(Debug, Default)]
pub struct Framer {
    /// What has come of the message under way; empty between messages.
    buffer: Vec<u8>,
    /// How long that message is, once its header fields are there.
    len: Option<usize>,
    /// The last call gave the message in the buffer away.
    is_given: bool,
    /// How much of CR LF CR LF has come since the last message or ping.
    breaks: u8,
    is_broken: bool,
}

/// What line breaks between messages lead to.
enum Between {
    /// A ping, so many bytes on.
    Ping(usize),
    /// The first byte of a message.
    Message(usize),
    /// Nothing yet.
    Nothing,
}

impl Framer {
    /// At the beginning of a stream. Takes no memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { buffer: Vec::new(), len: None, is_given: false, breaks: 0, is_broken: false }
    }

    /// The next item, and how many bytes of `input` it ends behind: those that follow are for the next call. `None` once
    /// all of `input` has been taken and more has to come.
    ///
    /// # Errors
    /// [`Broken`], once; all calls after it give `None`.
    pub fn next<'b>(&'b mut self, input: &'b [u8]) -> Result<Option<(usize, Item<'b>)>, Broken<'b>> {
        if self.is_given {
            // Given back to the system: most messages come in one piece and need none.
            (self.buffer, self.len, self.is_given) = (Vec::new(), None, false);
        }
        if self.is_broken {
            return Ok(None);
        }
        let start = if self.buffer.is_empty() {
            match self.line_breaks(input) {
                Ok(Between::Nothing) => return Ok(None),
                Ok(Between::Ping(used)) => return Ok(Some((used, Item::Ping))),
                Ok(Between::Message(start)) => start,
                Err(error) => return Err(Broken { error, bytes: &[] }),
            }
        } else {
            0
        };
        let input = input.get(start..).unwrap_or_default();
        if self.buffer.is_empty() {
            match len_of(input, 0) {
                Ok(Some(len)) if len <= input.len() => {
                    return Ok(Some((start + len, Item::Message(input.get(..len).unwrap_or_default()))));
                }
                Ok(len) => self.len = len,
                Err(error) => {
                    self.is_broken = true;
                    return Err(Broken { error, bytes: input });
                }
            }
        }
        match self.take(input) {
            Ok(Some(used)) => Ok(Some((start + used, Item::Message(&self.buffer)))),
            Ok(None) => Ok(None),
            Err(error) => Err(Broken { error, bytes: &self.buffer }),
        }
    }

    /// Whether the stream has stopped within a message.
    #[must_use]
    pub const fn is_within(&self) -> bool {
        !self.buffer.is_empty() && !self.is_given
    }

    /// Bytes of memory that are held for the message under way.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.buffer.capacity()
    }

    /// Takes what stands between messages: line breaks, of which two are a ping and one is nothing (RFC 3261 section 7.5).
    fn line_breaks(&mut self, input: &[u8]) -> Result<Between, ParseError> {
        for (at, byte) in input.iter().enumerate() {
            self.breaks = match (self.breaks, byte) {
                (0 | 2, b'\r') | (1, b'\n') => self.breaks + 1,
                (3, b'\n') => {
                    self.breaks = 0;
                    return Ok(Between::Ping(at + 1));
                }
                (0 | 2, byte) if *byte != b'\n' => {
                    self.breaks = 0;
                    return Ok(Between::Message(at));
                }
                _ => {
                    self.is_broken = true;
                    return Err(ParseError::new(Fault::LineEnding, false));
                }
            };
        }
        Ok(Between::Nothing)
    }

    /// Adds to the message under way; how many bytes of `input` are its last ones, if it is whole now.
    fn take(&mut self, input: &[u8]) -> Result<Option<usize>, ParseError> {
        let before = self.buffer.len();
        let room = self.len.unwrap_or(MESSAGE_LEN_MAX).saturating_sub(before);
        let input = input.get(..room).unwrap_or(input);
        self.reserve(before + input.len());
        self.buffer.extend_from_slice(input);
        if self.len.is_none() {
            self.len = len_of(&self.buffer, before.saturating_sub(HEAD_END.len() - 1)).inspect_err(|_| {
                self.is_broken = true;
            })?;
        }
        let Some(len) = self.len.filter(|len| *len <= self.buffer.len()) else { return Ok(None) };
        self.buffer.truncate(len);
        self.is_given = true;
        Ok(Some(len - before))
    }

    /// Makes room for so many bytes in all: for what the message will need if that is known, else twice as much, and never
    /// more than a message may have.
    fn reserve(&mut self, needed: usize) {
        if needed > self.buffer.capacity() {
            let wanted = self.len.unwrap_or_else(|| (needed * 2).min(MESSAGE_LEN_MAX)).max(needed);
            self.buffer.reserve_exact(wanted - self.buffer.len());
        }
    }
}

/// How long the message is that begins with `bytes`, of which the first `seen` hold no end of the header fields. `None` if
/// that end has yet to come.
fn len_of(bytes: &[u8], seen: usize) -> Result<Option<usize>, ParseError> {
    match memmem::find(bytes.get(seen..).unwrap_or_default(), HEAD_END) {
        Some(at) => Message::len_on_stream(bytes.get(..seen + at + HEAD_END.len()).unwrap_or_default()).map(Some),
        None if bytes.len() >= MESSAGE_LEN_MAX => Err(refuse(bytes, Fault::MessageLength)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
