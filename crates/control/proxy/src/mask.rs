//! Takes out of a copy of a message by what somebody could be signed in as, or what is said could be heard. Each secret is
//! overwritten where it stands, so that no length changes.

use std::ops::Range;

/// What stands in a secret's place.
const MASK: u8 = b'x';
/// Header fields of credentials.
const CREDENTIALS: [&[u8]; 4] =
    [b"Authorization", b"Proxy-Authorization", b"Authentication-Info", b"Proxy-Authentication-Info"];
/// Their parameters from which a password could be guessed, or which another request could be sent with.
const SECRETS: [&[u8]; 3] = [b"response", b"rspauth", b"nonce"];
/// Lines of session descriptions that hold the keys of a stream (RFC 4568, RFC 4567, RFC 8866 section 5.12), as far as they
/// do not.
const KEYS: [(&[u8], &[u8]); 3] = [(b"a=crypto:", b"inline:"), (b"a=key-mgmt:", b" "), (b"k=", b":")];

/// Overwrites all credentials and keys in a whole message.
pub(crate) fn mask(message: &mut [u8]) {
    let mut rest = message;
    let mut is_first = true;
    while let Some((line, after)) = split_line(rest, true) {
        if line.trim_ascii().is_empty() && !is_first {
            return mask_body(after);
        }
        if let Some(colon) = line.iter().position(|byte| *byte == b':')
            && let Some((name, value)) = line.split_at_mut_checked(colon)
            && CREDENTIALS.iter().any(|field| name.trim_ascii().eq_ignore_ascii_case(field))
        {
            mask_credentials(value.get_mut(1..).unwrap_or_default());
        }
        (rest, is_first) = (after, false);
    }
}

/// The first line with its break, and what follows it.
fn split_line(bytes: &mut [u8], folded: bool) -> Option<(&mut [u8], &mut [u8])> {
    let len = line_len(bytes, folded);
    if len == 0 { None } else { bytes.split_at_mut_checked(len) }
}

/// Length of the first line with its break, and with those that it goes on in where lines are `folded`.
fn line_len(bytes: &[u8], folded: bool) -> usize {
    let mut from = 0;
    loop {
        let rest = bytes.get(from..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return bytes.len() };
        from += end + 1;
        let is_empty = rest.get(..end).unwrap_or_default().trim_ascii().is_empty();
        if !folded || is_empty || !matches!(bytes.get(from), Some(b' ' | b'\t')) {
            return from;
        }
    }
}

/// Overwrites what is secret in one or more credentials, commas between them: of Digest the parameters that are, of any
/// other scheme all that follows its name.
fn mask_credentials(value: &mut [u8]) {
    let mut at = 0;
    while at < value.len() {
        at += count(value, at, is_between);
        let word = at..at + count(value, at, |byte| !is_between(byte) && !matches!(byte, b'=' | b'"'));
        at = word.end + count(value, word.end, |byte| byte.is_ascii_whitespace());
        let is = |name: &[u8]| value.get(word.clone()).unwrap_or_default().eq_ignore_ascii_case(name);
        if value.get(at) == Some(&b'=') {
            let is_secret = SECRETS.iter().any(|name| is(name));
            at += 1 + count(value, at + 1, |byte| byte.is_ascii_whitespace());
            let inside = value_at(value, at);
            at = inside.end + usize::from(value.get(inside.end) == Some(&b'"'));
            if is_secret {
                fill(value, inside);
            }
        } else if word.is_empty() {
            at += 1;
        } else if !is(b"Digest") {
            let rest = at..at + count(value, at, |byte| byte != b',');
            at = rest.end;
            fill(value, rest);
        }
    }
}

/// Where the inside of a parameter's value is that begins at `at`.
fn value_at(value: &[u8], at: usize) -> Range<usize> {
    if value.get(at) != Some(&b'"') {
        return at..at + count(value, at, |byte| !is_between(byte));
    }
    let mut is_escaped = false;
    let inside = count(value, at + 1, |byte| {
        let goes_on = byte != b'"' || is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        goes_on
    });
    at + 1..at + 1 + inside
}

fn mask_body(body: &mut [u8]) {
    let mut rest = body;
    while let Some((line, after)) = split_line(rest, false) {
        for (start, mark) in KEYS {
            if line.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start)) {
                mask_behind(line, mark);
            }
        }
        rest = after;
    }
}

/// Overwrites each key of a line, from behind `mark` to what says how it is used.
fn mask_behind(line: &mut [u8], mark: &[u8]) {
    let mut at = 0;
    while let Some(found) = line.get(at..).and_then(|rest| rest.windows(mark.len()).position(|text| text == mark)) {
        let key = at + found + mark.len();
        at = key + count(line, key, |byte| !matches!(byte, b'|' | b';' | b' ' | b'\r' | b'\n'));
        fill(line, key..at);
    }
}

fn fill(bytes: &mut [u8], place: Range<usize>) {
    for byte in bytes.get_mut(place).unwrap_or_default() {
        if !byte.is_ascii_whitespace() {
            *byte = MASK;
        }
    }
}

/// How many bytes from `at` on are such ones.
fn count(bytes: &[u8], at: usize, mut is: impl FnMut(u8) -> bool) -> usize {
    bytes.get(at..).unwrap_or_default().iter().take_while(|byte| is(**byte)).count()
}

const fn is_between(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b','
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        mask(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    fn with(field: &str) -> String {
        format!("INVITE sip:pbx@example.net SIP/2.0\r\nCall-ID: 1\r\n{field}\r\nCSeq: 1 INVITE\r\n\r\n")
    }

    #[test]
    fn what_a_password_could_be_guessed_from_is_overwritten_in_place() {
        for (field, expected) in [
            (
                "Proxy-Authorization: Digest username=\"alice\", nonce=\"abc\", uri=\"sip:x\", response=\"d0d0\", nc=00000001",
                "Proxy-Authorization: Digest username=\"alice\", nonce=\"xxx\", uri=\"sip:x\", response=\"xxxx\", nc=00000001",
            ),
            (
                "AUTHORIZATION : digest response=d0d0,nonce = \"a\\\"b\"",
                "AUTHORIZATION : digest response=xxxx,nonce = \"xxxx\"",
            ),
            (
                "Authorization: Digest username=\"a\",\r\n\tresponse=\r\n \"d0d0\"",
                "Authorization: Digest username=\"a\",\r\n\tresponse=\r\n \"xxxx\"",
            ),
            ("Authorization: Basic YWxpY2U6cHc=", "Authorization: Basic xxxxxxxxxxxx"),
            ("Authorization: Bearer a b, Digest response=\"1\"", "Authorization: Bearer x x, Digest response=\"x\""),
            ("Authentication-Info: qop=auth, rspauth=\"d0d0\"", "Authentication-Info: qop=auth, rspauth=\"xxxx\""),
            (
                "Authorization: Digest username=\"response=\\\"q\", response=\"d0",
                "Authorization: Digest username=\"response=\\\"q\", response=\"xx",
            ),
            ("Authorization: Digest =,\"\",=x, response=\"1\"", "Authorization: Digest =,\"\",=x, response=\"x\""),
        ] {
            let (found, expected) = (masked(&with(field)), with(expected));
            assert_eq!(found.split("CSeq").next(), expected.split("CSeq").next(), "{field}");
        }
    }

    #[test]
    fn keys_of_streams_are_overwritten_and_how_they_are_used_is_not() {
        let head = "SIP/2.0 200 OK\r\nAuthorization-X: Digest response=\"1\"\r\n\r\n";
        let body = "v=0\r\nk=base64:AAAA\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:WVNf|2^20|1:4;inline:QQ\r\n\
            a=key-mgmt:mikey AQAF\r\na=rtpmap:0 PCMU/8000\r\nAuthorization: Digest response=\"1\"\r\n";
        let expected = body.replace("AAAA", "xxxx").replace("WVNf", "xxxx").replace("QQ", "xx").replace("AQAF", "xxxx");
        assert_eq!(masked(&format!("{head}{body}")), format!("{head}{expected}"));
    }

    #[test]
    fn whatever_the_bytes_are_their_number_stays_and_an_end_is_found() {
        let mut seed = 7_u64;
        let pieces =
            ["Authorization:", "Digest ", "response", "=", "\"", "\\", ",", "\r\n", " ", "\n", "k=", "x:", "\0", ""];
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(pieces[(seed >> 33) as usize % pieces.len()]);
            }
            assert_eq!(masked(&text).len(), text.len());
        }
    }
}
