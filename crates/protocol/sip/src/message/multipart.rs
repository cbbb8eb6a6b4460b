//! Bodies of several parts (RFC 2046 section 5.1, in SIP RFC 5621).

use core::ops::Range;

use memchr::memmem;

use super::{HeaderName, Message, scan::trim};

const MULTIPART: &[u8] = b"multipart/";
/// So deep parts may lie in parts. What lies deeper is not taken apart.
const DEPTH_MAX: u8 = 4;

/// The body of this media type: all of it, or the first such part of one that has several, also within a part. Parts that are
/// written in another encoding are not looked at.
#[must_use]
pub fn part<'a>(message: &Message<'a>, media_type: &str) -> Option<&'a [u8]> {
    message.body().get(part_range(message, media_type)?)
}

/// Where in the body [`part`] stands.
#[must_use]
pub fn part_range(message: &Message<'_>, media_type: &str) -> Option<Range<usize>> {
    let mut first = None;
    visit(message, media_type, &mut |piece| {
        if let Piece::Wanted { content, .. } = piece {
            first.get_or_insert(content);
        }
    });
    first
}

/// One part that has no parts of its own.
pub(crate) enum Piece {
    /// Of the type that is looked for.
    Wanted {
        whole: Range<usize>,
        content: Range<usize>,
    },
    /// May be, or may hold one.
    Opaque {
        whole: Range<usize>,
    },
    Other,
}

/// All pieces of a body, in their order.
pub(crate) fn visit(message: &Message<'_>, media_type: &str, found: &mut dyn FnMut(Piece)) {
    let (kind, body) = (message.header(HeaderName::ContentType).unwrap_or_default(), message.body());
    let all = 0..body.len();
    let head = Head { kind, is_plain: true };
    Visit { body, media_type, found }.piece(&head, all.clone(), all, DEPTH_MAX);
}

struct Visit<'a, 'v> {
    body: &'a [u8],
    media_type: &'v str,
    found: &'v mut dyn FnMut(Piece),
}

impl Visit<'_, '_> {
    /// One part of this type, in whose parts others may lie so deep.
    fn piece(&mut self, head: &Head<'_>, whole: Range<usize>, content: Range<usize>, depth: u8) {
        let is_wanted = is_type(head.kind, self.media_type);
        let piece = match head.is_multipart().then(|| self.parts(head, &content, depth)) {
            Some(true) => return,
            Some(false) => Piece::Opaque { whole },
            None if is_wanted && head.is_plain => Piece::Wanted { whole, content },
            None if is_wanted => Piece::Opaque { whole },
            None => Piece::Other,
        };
        (self.found)(piece);
    }

    /// The parts of a part; `false` if it cannot be taken apart.
    fn parts(&mut self, head: &Head<'_>, content: &Range<usize>, depth: u8) -> bool {
        let boundary = boundary_of(head.kind).filter(|boundary| head.is_plain && !boundary.is_empty());
        let (Some(boundary), Some(depth), Some(text)) =
            (boundary, depth.checked_sub(1), self.body.get(content.clone()))
        else {
            return false;
        };
        // Before anything is said of its parts.
        let mut next = 0;
        while let Some(part) = Part::at(text, next, boundary) {
            next = part.next;
        }
        if !is_closed(text, next, boundary) {
            return false;
        }
        let at = |range: Range<usize>| content.start + range.start..content.start + range.end;
        next = 0;
        while let Some(part) = Part::at(text, next, boundary) {
            next = part.next;
            let whole = at(part.whole);
            match text.get(part.text.clone()).and_then(Head::of) {
                Some((head, len)) => self.piece(&head, whole, at(part.text.start + len..part.text.end), depth),
                None => (self.found)(Piece::Opaque { whole }),
            }
        }
        true
    }
}

/// A part among others.
struct Part {
    /// From the dashes of its delimiter to those of the next: the line break before the one is then before the other.
    whole: Range<usize>,
    /// Its header fields and content.
    text: Range<usize>,
    /// Where to look for the next one.
    next: usize,
}

impl Part {
    /// The part whose delimiter is the first from `from` on. `None` behind the last.
    fn at(text: &[u8], from: usize, boundary: &[u8]) -> Option<Self> {
        let begin = delimiter(text, from, boundary)?;
        let start = begin.end + after_delimiter(text.get(begin.end..)?)?;
        let next = delimiter(text, start, boundary)?;
        let dashes = |delimiter: &Range<usize>| delimiter.end - boundary.len() - 2;
        Some(Self { whole: dashes(&begin)..dashes(&next), text: start..next.start, next: next.start })
    }
}

/// Whether the last delimiter stands there, which says that nothing follows.
fn is_closed(text: &[u8], from: usize, boundary: &[u8]) -> bool {
    delimiter(text, from, boundary).and_then(|last| text.get(last.end..)).is_some_and(|rest| rest.starts_with(b"--"))
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

/// What the header fields of a part say of it.
struct Head<'a> {
    /// Its Content-Type.
    kind: &'a [u8],
    /// Whether it is written as it is.
    is_plain: bool,
}

impl<'a> Head<'a> {
    /// The header fields of a part, and how long they are. `None` if they have no end or say two things.
    fn of(part: &'a [u8]) -> Option<(Self, usize)> {
        let len = if part.starts_with(b"\r\n") { 0 } else { memmem::find(part, b"\r\n\r\n")? + 2 };
        let mut head = Self { kind: b"", is_plain: true };
        let mut rest = part.get(..len)?;
        while !rest.is_empty() {
            let (line, after) = rest.split_at(line_len(rest));
            rest = after;
            let Some(colon) = memchr::memchr(b':', line) else { continue };
            let (name, value) = (trim(line.get(..colon)?), line.get(colon + 1..)?.trim_ascii());
            if name.eq_ignore_ascii_case(b"content-type") {
                if !head.kind.is_empty() {
                    return None;
                }
                head.kind = value;
            } else if name.eq_ignore_ascii_case(b"content-transfer-encoding") {
                let of = |plain: &&[u8]| value.eq_ignore_ascii_case(plain);
                head.is_plain &= [&b"7bit"[..], b"8bit", b"binary"].iter().any(of);
            }
        }
        Some((head, len + 2))
    }

    fn is_multipart(&self) -> bool {
        self.kind.get(..MULTIPART.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(MULTIPART))
    }
}

/// The length of the first header field, with the lines that it goes on in.
fn line_len(text: &[u8]) -> usize {
    let is_end = |at: &usize| !matches!(text.get(at + 1), Some(b' ' | b'\t'));
    memchr::memchr_iter(b'\n', text).find(is_end).map_or(text.len(), |at| at + 1)
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
