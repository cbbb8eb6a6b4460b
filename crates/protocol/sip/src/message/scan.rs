//! Character classes and a cursor over one header value.

/// Bytes that may stand in the same places: a bit in [`CLASSES`].
#[derive(Clone, Copy)]
pub(crate) struct Class(u8);

impl Class {
    /// `token` of RFC 3261 section 25.1.
    pub(crate) const TOKEN: Self = Self(1);
    /// May stand in an unquoted parameter value. Wider than `token`, for hosts and addresses.
    const VALUE: Self = Self(1 << 1);
    /// May stand in a URI that is not quoted or bracketed.
    pub(crate) const URI: Self = Self(1 << 2);
    /// The same of a URI in a header field without brackets: there a comma, semicolon or question mark is not the URI's (RFC
    /// 3261 section 20).
    pub(crate) const BARE_URI: Self = Self(1 << 3);
    /// May stand in a host name. The underscore is not in the grammar but in the names of many private networks.
    pub(crate) const HOST: Self = Self(1 << 4);
    pub(crate) const DIGIT: Self = Self(1 << 5);
    /// May stand in a dotted address.
    pub(crate) const ADDRESS: Self = Self(1 << 7);
    /// May stand in a Call-ID.
    pub(crate) const WORD: Self = Self(1 << 6);

    pub(crate) const fn has(self, byte: u8) -> bool {
        CLASSES[byte as usize] & self.0 != 0
    }

    /// How many bytes at the start are of this class. Eight to each turn: this sees most of what a flood consists of.
    pub(super) fn span(self, bytes: &[u8]) -> usize {
        let (groups, rest) = bytes.as_chunks::<8>();
        for (nth, group) in groups.iter().enumerate() {
            if let Some(end) = group.iter().position(|byte| !self.has(*byte)) {
                return nth * 8 + end;
            }
        }
        let end = rest.iter().position(|byte| !self.has(*byte)).unwrap_or(rest.len());
        bytes.len() - rest.len() + end
    }

    /// Whether all bytes are of this class.
    pub(crate) fn covers(self, bytes: &[u8]) -> bool {
        self.span(bytes) == bytes.len()
    }
}

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        let is_visible = b > b' ' && b != 0x7f;
        let is_token = b.is_ascii_alphanumeric()
            || matches!(b, b'-' | b'.' | b'!' | b'%' | b'*' | b'_' | b'+' | b'`' | b'\'' | b'~');
        let is_uri = is_visible && !matches!(b, b'<' | b'>' | b'"');
        let classes = [
            (Class::TOKEN, is_token),
            (Class::VALUE, is_uri && !matches!(b, b';' | b',')),
            (Class::URI, is_uri),
            (Class::BARE_URI, is_uri && !matches!(b, b';' | b',' | b'?')),
            (Class::HOST, b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_')),
            (Class::DIGIT, b.is_ascii_digit()),
            (Class::WORD, is_visible && b != b','),
            (Class::ADDRESS, b.is_ascii_digit() || b == b'.'),
        ];
        let mut nth = 0;
        while nth < classes.len() {
            if classes[nth].1 {
                table[byte] |= classes[nth].0.0;
            }
            nth += 1;
        }
        byte += 1;
    }
    table
}

/// Linear white space, folds included: pass 1 made sure that a line break inside a value is followed by a blank.
pub(crate) const fn is_lws(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && Class::TOKEN.covers(bytes)
}

/// The scheme of a URI (RFC 3986 section 3.1).
pub(crate) fn is_scheme(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// What stands before the first such byte and behind it; `None` if there is none.
pub(crate) fn split_once(byte: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(byte, bytes)?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

pub(crate) fn trim(bytes: &[u8]) -> &[u8] {
    trim_end(trim_start(bytes))
}

fn trim_start(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes {
        if !is_lws(*first) {
            break;
        }
        bytes = rest;
    }
    bytes
}

pub(crate) fn trim_end(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., last] = bytes {
        if !is_lws(*last) {
            break;
        }
        bytes = rest;
    }
    bytes
}

/// Decimal digits only; `None` when empty, not digits or above `max`.
pub(crate) fn decimal(bytes: &[u8], max: u64) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    let mut number = 0_u64;
    for byte in bytes {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
    }
    (number <= max).then_some(number)
}

pub(crate) fn decimal_u16(bytes: &[u8]) -> Option<u16> {
    decimal(bytes, u64::from(u16::MAX)).map(|number| number as u16)
}

pub(crate) fn decimal_u32(bytes: &[u8]) -> Option<u32> {
    decimal(bytes, u64::from(u32::MAX)).map(|number| number as u32)
}

/// The inside of a quoted string (RFC 3261 `quoted-string`), or the bytes themselves when they are not quoted.
/// Escapes stay as they are.
pub(crate) fn unquoted(bytes: &[u8]) -> &[u8] {
    match bytes {
        [b'"', inside @ .., b'"'] => inside,
        other => other,
    }
}

/// Reads one header value from left to right. Never moves past the end.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, rest: bytes }
    }

    pub(crate) const fn position(&self) -> usize {
        self.bytes.len() - self.rest.len()
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Steps over the next byte.
    fn next(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    /// What lies between `from` and the cursor.
    pub(crate) fn since(&self, from: usize) -> &'a [u8] {
        self.bytes.get(from..self.position()).unwrap_or_default()
    }

    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn skip_lws(&mut self) {
        self.rest = trim_start(self.rest);
    }

    /// Steps over `byte` if it comes next.
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        self.eat_all(&[byte])
    }

    /// Steps over `bytes` if they come next.
    pub(crate) fn eat_all<const N: usize>(&mut self, bytes: &[u8; N]) -> bool {
        let rest = self.rest.strip_prefix(bytes);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Steps over `byte` with linear white space on both sides.
    pub(crate) fn eat_spaced(&mut self, byte: u8) -> bool {
        self.skip_lws();
        let found = self.eat(byte);
        if found {
            self.skip_lws();
        }
        found
    }

    pub(crate) fn take_while(&mut self, class: impl Fn(u8) -> bool) -> &'a [u8] {
        self.split(self.rest.iter().position(|byte| !class(*byte)).unwrap_or(self.rest.len()))
    }

    /// What is of this class; empty if nothing of it stands here.
    pub(crate) fn take(&mut self, class: Class) -> &'a [u8] {
        self.split(class.span(self.rest))
    }

    fn split(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, &[]));
        self.rest = rest;
        taken
    }

    /// A token; empty if none stands here.
    pub(crate) fn token(&mut self) -> &'a [u8] {
        self.take(Class::TOKEN)
    }

    /// A quoted string with its quotes; `None` if none stands here or it does not end.
    pub(crate) fn quoted(&mut self) -> Option<&'a [u8]> {
        let start = self.position();
        if !self.eat(b'"') {
            return None;
        }
        loop {
            match self.next()? {
                b'"' => return Some(self.since(start)),
                // A quoted pair: the next byte has no meaning of its own.
                b'\\' => drop(self.next()?),
                _ => {}
            }
        }
    }

    /// The value of a parameter: a quoted string or a run of bytes that cannot end it. `None` if empty or unterminated.
    pub(crate) fn parameter_value(&mut self) -> Option<&'a [u8]> {
        if self.peek() == Some(b'"') {
            return self.quoted();
        }
        let value = self.take(Class::VALUE);
        (!value.is_empty()).then_some(value)
    }

    /// Steps to the next comma outside quotes and angle brackets, or to the end. `false` if a quote does not end.
    pub(crate) fn skip_to_comma(&mut self) -> bool {
        let mut bracketed = false;
        while let Some(byte) = self.peek() {
            match byte {
                b',' if !bracketed => return true,
                b'"' if !bracketed => {
                    if self.quoted().is_none() {
                        self.rest = &[];
                        return false;
                    }
                    continue;
                }
                b'<' => bracketed = true,
                b'>' => bracketed = false,
                _ => {}
            }
            self.next();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_string_ends_at_the_first_quote_that_is_not_escaped() {
        let mut cursor = Cursor::new(br#""a \" b" rest"#);
        assert_eq!(cursor.quoted(), Some(&br#""a \" b""#[..]));
        assert_eq!(cursor.rest(), b" rest");
        assert_eq!(Cursor::new(br#""never \" ends"#).quoted(), None);
        assert_eq!(Cursor::new(br#""ends in escape\"#).quoted(), None);
    }

    #[test]
    fn commas_inside_quotes_and_brackets_do_not_separate() {
        let mut cursor = Cursor::new(br#""a,b" <sip:x,y@z>;p="1,2", next"#);
        assert!(cursor.skip_to_comma());
        assert_eq!(cursor.rest(), b", next");
    }

    #[test]
    fn decimals_are_digits_only_and_bounded() {
        assert_eq!(decimal(b"0068", 255), Some(68));
        assert_eq!(decimal(b"256", 255), None);
        for bad in [&b""[..], b"-1", b"+1", b"five", b"1 ", b"36893488147419103232"] {
            assert_eq!(decimal(bad, u64::MAX), None);
        }
    }
}
