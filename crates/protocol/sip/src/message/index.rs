//! Pass 1: where each header field begins and ends. One scan for line breaks, no allocation.

use super::{
    HEADERS_MAX, HeaderName,
    error::Fault,
    scan::{is_lws, is_token, trim, trim_end},
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
    /// By name: 1 + the position of the first such field, 0 if there is none.
    first: [u8; NAMES],
    /// By name, one bit each: there is more than one such field.
    repeated: u64,
    /// Whether line breaks may stand in values: where lines are folded, and where faults are left out.
    has_breaks: bool,
}

const NAMES: usize = HeaderName::ALL.len() + 1;
const _: () = assert!(NAMES <= u64::BITS as usize && HEADERS_MAX < u8::MAX as usize);

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
    /// Leave it out, so that the rest can be used for an answer. Lines may end in a line feed alone.
    Skip,
}

impl Strictness {
    /// The length of the line at the start of `bytes`, and where the next one starts.
    pub(super) fn find_line(self, bytes: &[u8]) -> Result<(usize, usize), Fault> {
        match (find_line(bytes), self) {
            (Ok(len), _) => Ok((len, len + 2)),
            (Err(Fault::LineEnding), Self::Skip) => {
                let end = memchr::memchr(b'\n', bytes).ok_or(Fault::Unterminated)?;
                let len = if end > 0 && bytes.get(end - 1) == Some(&b'\r') { end - 1 } else { end };
                Ok((len, end + 1))
            }
            (Err(fault), _) => Err(fault),
        }
    }
}

impl Index {
    pub(super) const fn new() -> Self {
        Self { slots: [EMPTY; HEADERS_MAX], used: 0, first: [0; NAMES], repeated: 0, has_breaks: false }
    }

    /// Fills the index from `bytes`, whose header fields begin at `at`. Returns where the body begins.
    pub(super) fn fill(&mut self, bytes: &[u8], mut at: usize, strictness: Strictness) -> Result<usize, Fault> {
        self.has_breaks = strictness == Strictness::Skip;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let (line_len, next) = match strictness.find_line(rest) {
                Ok(found) => found,
                Err(_) if strictness == Strictness::Skip => return Ok(bytes.len()),
                Err(fault) => return Err(fault),
            };
            if line_len == 0 {
                return Ok(at + next);
            }
            let line = rest.get(..line_len).unwrap_or_default();
            match self.add(line, at) {
                Err(Fault::HeaderLine) if strictness == Strictness::Skip => {}
                Err(_) if strictness == Strictness::Skip => return Ok(bytes.len()),
                Err(fault) => return Err(fault),
                Ok(()) => {}
            }
            at += next;
        }
    }

    fn add(&mut self, line: &[u8], at: usize) -> Result<(), Fault> {
        let end = (at + line.len()) as u16;
        if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            let previous = self.used.checked_sub(1).and_then(|last| self.slots.get_mut(last));
            previous.ok_or(Fault::HeaderLine)?.end = end;
            self.has_breaks = true;
            return Ok(());
        }
        let colon = find_colon(line).ok_or(Fault::HeaderLine)?;
        let name_text = trim_end(line.get(..colon).unwrap_or_default());
        let name_len = u8::try_from(name_text.len()).map_err(|_| Fault::HeaderLine)?;
        let name = HeaderName::of(name_text);
        // Names that are known are tokens.
        if name == HeaderName::Other && !is_token(name_text) {
            return Err(Fault::HeaderLine);
        }
        let slot = self.slots.get_mut(self.used).ok_or(Fault::HeaderCount)?;
        *slot = Slot { line: at as u16, value: (at + colon + 1) as u16, end, name, name_len };
        self.used += 1;
        match self.first.get_mut(name as usize) {
            Some(first) if *first == 0 => *first = self.used as u8,
            _ => self.repeated |= 1 << name as u8,
        }
        Ok(())
    }

    /// The position of the first field of this name.
    pub(super) fn first(&self, name: HeaderName) -> Option<usize> {
        usize::from(*self.first.get(name as usize)?).checked_sub(1)
    }

    /// The position of the first field of this name from `from` on.
    pub(super) fn next(&self, name: HeaderName, from: usize) -> Option<usize> {
        let first = self.first(name)?;
        if from <= first {
            return Some(first);
        }
        if !self.is_repeated(name) {
            return None;
        }
        let rest = self.slots.get(from..self.used)?;
        rest.iter().position(|slot| slot.name == name).map(|position| from + position)
    }

    pub(super) const fn is_repeated(&self, name: HeaderName) -> bool {
        self.repeated >> name as u8 & 1 == 1
    }

    pub(super) const fn len(&self) -> usize {
        self.used
    }

    pub(super) fn value<'a>(&self, bytes: &'a [u8], position: usize) -> Option<&'a [u8]> {
        let slot = self.slots.get(position).filter(|_| position < self.used)?;
        bytes.get(usize::from(slot.value)..usize::from(slot.end)).map(trim)
    }

    /// The field at `position`, without its line break, if it is written as we would: with its long name, one blank, and all on one
    /// line.
    pub(super) fn plain<'a>(&self, bytes: &'a [u8], position: usize) -> Option<&'a [u8]> {
        let slot = self.slots.get(position).filter(|_| position < self.used && !self.has_breaks)?;
        let text = bytes.get(usize::from(slot.line)..usize::from(slot.end))?;
        let value = text.strip_prefix(slot.name.as_str().as_bytes())?.strip_prefix(b": ")?;
        let is_trimmed = !is_lws(*value.first()?) && !is_lws(*value.last()?);
        is_trimmed.then_some(text)
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

/// Where the first colon stands. Eight bytes at a time: names are short, and this runs for each line of a flood.
pub(super) fn find_colon(line: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut at = 0;
    while let Some(chunk) = line.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let zero_where_colon = u64::from_le_bytes(*chunk) ^ (ONES * b':' as u64);
        let found = zero_where_colon.wrapping_sub(ONES) & !zero_where_colon & (ONES << 7);
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    line.get(at..)?.iter().position(|byte| *byte == b':').map(|position| at + position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_colon_is_found_wherever_it_stands() {
        for len in 0..40 {
            for colon in 0..len {
                let mut line = [b'x'; 40];
                line[colon] = b':';
                line[len - 1] = b':';
                assert_eq!(find_colon(&line[..len]), Some(colon));
            }
            assert_eq!(find_colon(&[0xba; 40][..len]), None);
        }
    }

    #[test]
    fn a_line_ends_at_its_break_whatever_stands_before() {
        for before in [&b"x"[..], b"\0", b"\t", b"\x0c", b"\x7f", b"\x80", b"\xff", "\u{8d}\u{10d}".as_bytes()] {
            for times in 0..20 {
                let text = before.repeat(times);
                let line = |end: &[u8]| find_line(&[&text[..], end].concat());
                for rest in [&b""[..], b"next", b"\r\n", b"\n"] {
                    assert_eq!(line(&[b"\r\n", rest].concat()), Ok(text.len()));
                }
                for (end, fault) in [
                    (&b""[..], Fault::Unterminated),
                    (b"\r", Fault::Unterminated),
                    (b"\n", Fault::LineEnding),
                    (b"\n\r\n", Fault::LineEnding),
                    (b"\rx\r\n", Fault::LineEnding),
                    (b"\r\r\n", Fault::LineEnding),
                ] {
                    assert_eq!(line(end), Err(fault), "{text:?} {end:?}");
                }
            }
        }
    }
}
