//! Bodies of several parts (RFC 2046 section 5.1, in SIP RFC 5621).

use core::ops::Range;

use memchr::memmem;

use super::{HeaderName, Message, scan::trim};

const MULTIPART: &[u8] = b"multipart/";

/// The body of this media type: all of it, or the first such part of one that has several. Parts of parts are not looked
/// at, nor are those that are written in another encoding.
#[must_use]
pub fn part<'a>(message: &Message<'a>, media_type: &str) -> Option<&'a [u8]> {
    message.body().get(part_range(message, media_type)?)
}

/// Where in the body [`part`] stands.
#[must_use]
pub fn part_range(message: &Message<'_>, media_type: &str) -> Option<Range<usize>> {
    let (whole, body) = (message.header(HeaderName::ContentType)?, message.body());
    if is_type(whole, media_type) {
        return Some(0..body.len());
    }
    let is_multipart = whole.get(..MULTIPART.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(MULTIPART));
    let boundary = boundary_of(whole).filter(|boundary| is_multipart && !boundary.is_empty())?;
    let mut next = delimiter(body, 0, boundary)?.end;
    loop {
        let begin = next + after_delimiter(body.get(next..)?)?;
        let end = delimiter(body, begin, boundary)?;
        let part = body.get(begin..end.start)?;
        if let Some(content) = content_of(part, media_type) {
            return Some(begin + content..end.start);
        }
        next = end.end;
    }
}

/// Where the next delimiter stands at the start of a line, from `from` on; its line break belongs to it.
fn delimiter(body: &[u8], from: usize, boundary: &[u8]) -> Option<Range<usize>> {
    let mut at = from;
    loop {
        let found = at + memmem::find(body.get(at..)?, boundary)?;
        let before = body.get(from..found)?;
        if before == b"--" && from == 0 {
            return Some(0..found + boundary.len());
        }
        // An empty part has no line break of its own.
        if before.ends_with(b"\r\n--") || (before == b"--" && from > 0) {
            let start = found - if before == b"--" { 2 } else { 4 };
            return Some(start..found + boundary.len());
        }
        at = found + 1;
    }
}

/// Padding and line break behind a delimiter. `None` behind the last.
fn after_delimiter(rest: &[u8]) -> Option<usize> {
    let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    rest.get(padding..)?.starts_with(b"\r\n").then_some(padding + 2)
}

/// Where the content of a part begins, if it is of this type and written as it is.
fn content_of(part: &[u8], media_type: &str) -> Option<usize> {
    let head_len = memmem::find(part, b"\r\n\r\n")?;
    let mut is_wanted = false;
    for line in part.get(..head_len)?.split(|byte| *byte == b'\n') {
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let (name, value) = (trim(line.get(..colon)?), trim(line.get(colon + 1..)?));
        if name.eq_ignore_ascii_case(b"content-type") {
            is_wanted = is_type(value, media_type);
        } else if name.eq_ignore_ascii_case(b"content-transfer-encoding") {
            let is_plain = [&b"7bit"[..], b"8bit", b"binary"].iter().any(|plain| value.eq_ignore_ascii_case(plain));
            if !is_plain {
                return None;
            }
        }
    }
    is_wanted.then_some(head_len + 4)
}

fn is_type(value: &[u8], media_type: &str) -> bool {
    let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
    trim(kind).eq_ignore_ascii_case(media_type.as_bytes())
}

fn boundary_of(value: &[u8]) -> Option<&[u8]> {
    value.split(|byte| *byte == b';').skip(1).find_map(|param| {
        let equals = memchr::memchr(b'=', param)?;
        let (name, text) = (trim(param.get(..equals)?), trim(param.get(equals + 1..)?));
        let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text);
        name.eq_ignore_ascii_case(b"boundary").then_some(text)
    })
}

#[cfg(test)]
mod tests {
    use std::{format, string::String};

    use super::*;

    fn message(content_type: &str, body: &str) -> String {
        format!("OPTIONS sip:a SIP/2.0\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn part(content_type: &str, body: &str) -> Option<String> {
        let text = message(content_type, body);
        let part = super::part(&Message::parse(text.as_bytes()).unwrap(), "application/sdp")?;
        Some(String::from_utf8(part.to_vec()).unwrap())
    }

    #[test]
    fn a_part_is_found_wherever_it_stands() {
        let of = |body: &str| part("multipart/mixed;boundary=b1", body);
        assert_eq!(part("Application/SDP; charset=x", "v=0").as_deref(), Some("v=0"));
        assert_eq!(part("text/plain", "v=0"), None);
        let other = "--b1\r\nContent-Type: application/isup\r\nContent-Transfer-Encoding: base64\r\n\r\nAA\r\n";
        let sdp = "--b1\r\ncontent-type:application/sdp\r\n\r\nv=0\r\no=--b1\r\n\r\n";
        for body in
            [format!("{other}{sdp}--b1--"), format!("{sdp}{other}--b1--\r\n"), format!("preamble\r\n{sdp}--b1--")]
        {
            assert_eq!(of(&body).as_deref(), Some("v=0\r\no=--b1\r\n"), "{body}");
        }
        assert!(part("multipart/mixed; Boundary=\"b1\"", &format!("{sdp}--b1--")).is_some());
        assert_eq!(of(&format!("{other}--b1--")), None);
        assert_eq!(of(sdp), None, "it has no end");
        assert_eq!(of("--b1--"), None);
        assert_eq!(of(&sdp.replace("\r\n\r\nv=0", "\r\nContent-Transfer-Encoding: base64\r\n\r\nv=0")), None);
        assert_eq!(part("multipart/mixed", &format!("{sdp}--b1--")), None);
        assert_eq!(part("multipart/mixed;boundary=", &format!("{sdp}--b1--")), None);
    }

    #[test]
    fn a_part_may_be_empty() {
        let body = "--b1\r\nContent-Type: application/sdp\r\n\r\n\r\n--b1--";
        assert_eq!(part("multipart/mixed;boundary=b1", body).as_deref(), Some(""));
    }
}
