//! Bodies of several parts (RFC 2046 section 5.1).

use sluicegate_sip::message::{HeaderName, Message};

/// The body of this content type, alone or as a part of `multipart/mixed` (RFC 2046 section 5.1).
pub(crate) fn part<'a>(message: &Message<'a>, content_type: &str) -> Option<&'a [u8]> {
    let whole = message.header(HeaderName::ContentType)?;
    if has_type(whole, content_type) {
        return Some(message.body());
    }
    if !has_type(whole, "multipart/mixed") {
        return None;
    }
    let text = std::str::from_utf8(whole).ok()?;
    let boundary = text.split_once("boundary=")?.1.split(';').next()?.trim().trim_matches('"');
    let delimiter = format!("--{boundary}");
    let mut rest = message.body();
    loop {
        let start = find(rest, delimiter.as_bytes())? + delimiter.len();
        rest = rest.get(start..)?;
        let inner = rest.strip_prefix(b"\r\n")?;
        let head = find(inner, b"\r\n\r\n")?;
        let body = inner.get(head + 4..)?;
        let end = find(body, format!("\r\n{delimiter}").as_bytes())?;
        let fits = inner.get(..head)?.split(|byte| *byte == b'\n').any(|line| {
            line.split_first_chunk::<13>().is_some_and(|(name, value)| {
                name.eq_ignore_ascii_case(b"content-type:") && has_type(value, content_type)
            })
        });
        if fits {
            return body.get(..end);
        }
        rest = body.get(end..)?;
    }
}

fn has_type(value: &[u8], content_type: &str) -> bool {
    let value = value.split(|byte| *byte == b';').next().unwrap_or_default();
    value.trim_ascii().eq_ignore_ascii_case(content_type.as_bytes())
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
