//! Pass 1: where each header field begins and ends. One scan for line breaks, no allocation.

use super::{
    HEADERS_MAX, HeaderName,
    error::Fault,
    scan::{is_token_byte, trim},
};

/// One header field, folds included. Offsets fit because a message is at most `MESSAGE_LEN_MAX` long.
#[derive(Debug, Clone, Copy)]
struct Slot {
    line: u16,
    value: u16,
    end: u16,
    name: HeaderName,
    name_len: u8,
}

const EMPTY: Slot = Slot { line: 0, value: 0, end: 0, name: HeaderName::Other, name_len: 0 };

/// The header fields of a message, in their order.
#[derive(Clone)]
pub(super) struct Index {
    slots: [Slot; HEADERS_MAX],
    used: usize,
}

/// One header field as it stands in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Which field it is.
    pub name: HeaderName,
    /// The name as written, perhaps in compact form or unusual case.
    pub name_text: &'a [u8],
    /// The value without white space around it. May hold folds: a line break followed by a blank.
    pub value: &'a [u8],
    /// The whole field with all its lines, without the last line break.
    pub text: &'a [u8],
}

/// What pass 1 makes of a line that is no header field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strictness {
    /// Refuse the message.
    Refuse,
    /// Leave it out, so that the rest can be used for an answer.
    Skip,
}

impl Index {
    pub(super) const fn new() -> Self {
        Self { slots: [EMPTY; HEADERS_MAX], used: 0 }
    }

    /// Fills the index from `bytes`, whose header fields begin at `at`. Returns where the body begins.
    pub(super) fn fill(&mut self, bytes: &[u8], mut at: usize, strictness: Strictness) -> Result<usize, Fault> {
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let line_len = match find_line(rest) {
                Ok(len) => len,
                Err(_) if strictness == Strictness::Skip => return Ok(bytes.len()),
                Err(fault) => return Err(fault),
            };
            if line_len == 0 {
                return Ok(at + 2);
            }
            let line = rest.get(..line_len).unwrap_or_default();
            match self.add(line, at) {
                Err(Fault::HeaderLine) if strictness == Strictness::Skip => {}
                Err(_) if strictness == Strictness::Skip => return Ok(bytes.len()),
                Err(fault) => return Err(fault),
                Ok(()) => {}
            }
            at += line_len + 2;
        }
    }

    fn add(&mut self, line: &[u8], at: usize) -> Result<(), Fault> {
        let end = (at + line.len()) as u16;
        if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            let previous = self.used.checked_sub(1).and_then(|last| self.slots.get_mut(last));
            previous.ok_or(Fault::HeaderLine)?.end = end;
            return Ok(());
        }
        let name_len = line.iter().position(|byte| !is_token_byte(*byte)).ok_or(Fault::HeaderLine)?;
        let mut colon = name_len;
        while line.get(colon).is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            colon += 1;
        }
        if name_len == 0 || name_len > usize::from(u8::MAX) || line.get(colon) != Some(&b':') {
            return Err(Fault::HeaderLine);
        }
        let slot = self.slots.get_mut(self.used).ok_or(Fault::HeaderCount)?;
        let name = HeaderName::of(line.get(..name_len).unwrap_or_default());
        *slot = Slot { line: at as u16, value: (at + colon + 1) as u16, end, name, name_len: name_len as u8 };
        self.used += 1;
        Ok(())
    }

    pub(super) const fn len(&self) -> usize {
        self.used
    }

    pub(super) fn name(&self, position: usize) -> Option<HeaderName> {
        self.slots.get(position).filter(|_| position < self.used).map(|slot| slot.name)
    }

    pub(super) fn value<'a>(&self, bytes: &'a [u8], position: usize) -> Option<&'a [u8]> {
        let slot = self.slots.get(position).filter(|_| position < self.used)?;
        bytes.get(usize::from(slot.value)..usize::from(slot.end)).map(trim)
    }

    pub(super) fn line<'a>(&self, bytes: &'a [u8], position: usize) -> Option<Line<'a>> {
        let slot = self.slots.get(position).filter(|_| position < self.used)?;
        let text = bytes.get(usize::from(slot.line)..usize::from(slot.end))?;
        Some(Line {
            name: slot.name,
            name_text: text.get(..usize::from(slot.name_len))?,
            value: self.value(bytes, position)?,
            text,
        })
    }
}

/// The length of the line at the start of `bytes`. A line break is CR LF and nothing else.
pub(super) fn find_line(bytes: &[u8]) -> Result<usize, Fault> {
    let at = memchr::memchr2(b'\r', b'\n', bytes).ok_or(Fault::Unterminated)?;
    match bytes.get(at..at + 2) {
        Some(b"\r\n") => Ok(at),
        None if bytes.get(at) == Some(&b'\r') => Err(Fault::Unterminated),
        _ => Err(Fault::LineEnding),
    }
}
