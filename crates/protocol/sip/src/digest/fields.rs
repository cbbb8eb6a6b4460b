//! `Digest name=value, ...` taken apart.

use alloc::{borrow::Cow, vec::Vec};

use super::{Algorithm, DigestError, PARAMS_MAX, VALUE_LEN_MAX, hash::Output};
use crate::message::scan::{Cursor, unquoted};

/// The values of the parameters of these names, without quotes and with their escapes. One that stands there twice is an
/// error, and so is a backslash outside quotes, where it escapes nothing; others are left out.
pub(super) fn read<'a, const N: usize>(
    value: &'a [u8],
    names: [&str; N],
) -> Result<[Option<&'a [u8]>; N], DigestError> {
    if value.len() > VALUE_LEN_MAX {
        return Err(DigestError::Length);
    }
    let mut found = [None; N];
    let mut cursor = Cursor::new(value);
    cursor.skip_lws();
    if !cursor.token().eq_ignore_ascii_case(b"Digest") {
        return Err(DigestError::Scheme);
    }
    for _ in 0..PARAMS_MAX {
        cursor.skip_lws();
        let name = cursor.token();
        if name.is_empty() || !cursor.eat_spaced(b'=') {
            return Err(DigestError::Malformed);
        }
        let sent = cursor.parameter_value().ok_or(DigestError::Malformed)?;
        let value = unquoted(sent);
        // What is not quoted is quoted when it goes out again: its last backslash would take the quote with it.
        if value.len() == sent.len() && value.contains(&b'\\') {
            return Err(DigestError::Malformed);
        }
        let slot = found.iter_mut().zip(names).find(|(_, known)| name.eq_ignore_ascii_case(known.as_bytes()));
        if slot.is_some_and(|(slot, _)| slot.replace(value).is_some()) {
            return Err(DigestError::Malformed);
        }
        if !cursor.eat_spaced(b',') {
            return if cursor.is_at_end() { Ok(found) } else { Err(DigestError::Malformed) };
        }
    }
    Err(DigestError::Length)
}

/// The text that a quoted string stands for (RFC 3261 `quoted-pair`). Allocates only if there are escapes.
pub(super) fn text(quoted: &[u8]) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', quoted).is_none() {
        return core::str::from_utf8(quoted).ok().map(Cow::Borrowed);
    }
    let mut plain = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter();
    while let Some(byte) = bytes.next() {
        plain.push(if *byte == b'\\' { *bytes.next()? } else { *byte });
    }
    alloc::string::String::from_utf8(plain).ok().map(Cow::Owned)
}

/// Appends `"text"` with the escapes that it needs. Line breaks become blanks.
pub(super) fn push_quoted(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            b'\r' | b'\n' => out.push(b' '),
            other => out.push(*other),
        }
    }
    out.push(b'"');
}

/// Appends `"raw"`, where `raw` is the inside of a quoted string as received.
pub(super) fn push_requoted(out: &mut Vec<u8>, raw: &[u8]) {
    out.push(b'"');
    out.extend(raw.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
    out.push(b'"');
}

/// Appends `, name="raw"`, with `raw` as in [`push_requoted`].
pub(super) fn push_param(out: &mut Vec<u8>, name: &str, raw: &[u8]) {
    out.extend_from_slice(b", ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'=');
    push_requoted(out, raw);
}

/// The bytes that hexadecimal text of the right length stands for, and whether it was that. Takes the same time for
/// any text of one length.
pub(super) fn hex_bytes(text: &[u8], algorithm: Algorithm) -> (Output, bool) {
    let mut output = Output { algorithm, bytes: [0; 32] };
    let mut valid = text.len() == 2 * Output::len(algorithm);
    for (byte, pair) in output.bytes.iter_mut().zip(text.chunks_exact(2)) {
        for digit in pair {
            let value = char::from(*digit).to_digit(16);
            valid &= value.is_some();
            *byte = *byte << 4 | value.unwrap_or(0) as u8;
        }
    }
    (output, valid)
}
