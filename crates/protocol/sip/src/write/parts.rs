//! Bodies of several parts, with another part in the place of one.

use alloc::vec::Vec;

use crate::message::{
    Message,
    multipart::{Piece, visit},
};

/// The body with `content` in place of [`part`](crate::message::part), and without any other of this type: a second one, one in
/// another encoding, one in what cannot be taken apart. Without any at all where `content` is `None`: then the body may become
/// empty. `None` if there is nothing of this type.
#[must_use]
pub fn with_part(message: &Message<'_>, media_type: &str, content: Option<&[u8]>) -> Option<Vec<u8>> {
    let (body, mut content) = (message.body(), content);
    let (mut out, mut copied, mut has_others, mut is_changed) = (Vec::with_capacity(body.len()), 0, false, false);
    visit(message, media_type, &mut |piece| {
        let (place, new) = match piece {
            Piece::Other => {
                has_others = true;
                return;
            }
            Piece::Wanted { whole, content: place } => match content.take() {
                Some(new) => (place, new),
                None => (whole, &[][..]),
            },
            Piece::Opaque { whole } => (whole, &[][..]),
        };
        out.extend_from_slice(body.get(copied..place.start).unwrap_or_default());
        out.extend_from_slice(new);
        has_others |= !new.is_empty();
        (copied, is_changed) = (place.end, true);
    });
    out.extend_from_slice(body.get(copied..).unwrap_or_default());
    // Delimiters alone are no body.
    if !has_others {
        out.clear();
    }
    is_changed.then_some(out)
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
        let part = crate::message::part(&Message::parse(text.as_bytes()).unwrap(), "application/sdp")?;
        Some(String::from_utf8(part.to_vec()).unwrap())
    }

    /// The body without its descriptions but the first, which is replaced by this.
    fn with(content_type: &str, body: &str, content: Option<&str>) -> Option<String> {
        let text = message(content_type, body);
        let message = Message::parse(text.as_bytes()).unwrap();
        let body = with_part(&message, "application/sdp", content.map(str::as_bytes))?;
        Some(String::from_utf8(body).unwrap())
    }

    const MIXED: &str = "multipart/mixed;boundary=b1";
    const ISUP: &str = "--b1\r\nContent-Type: application/isup\r\n\r\nAA\r\n";
    const NESTED: &str = "--b1\r\nContent-Type: multipart/alternative;\r\n boundary=\"x\"\r\n\r\n--x\r\n\r\nplain\r\n--x\r\n\
        Content-Type: application/sdp\r\n\r\nv=0\r\n--x--\r\n";

    #[test]
    fn a_part_of_a_part_is_found_and_replaced() {
        let body = format!("{ISUP}{NESTED}--b1--\r\n");
        assert_eq!(part(MIXED, &body).as_deref(), Some("v=0"));
        assert_eq!(with(MIXED, &body, Some("new")), Some(body.replace("v=0", "new")));
        let mut deep = String::from("v=0");
        let mut kind = String::from("application/sdp");
        for depth in 0..10 {
            assert_eq!(part(&kind, &deep).is_some(), depth <= 4, "{depth}");
            assert!(!with(&kind, &format!("{ISUP}{deep}"), None).unwrap_or_default().contains("v=0"));
            deep = format!("--d{depth}\r\nContent-Type: {kind}\r\n\r\n{deep}\r\n--d{depth}--\r\n");
            kind = format!("multipart/mixed;boundary=d{depth}");
        }
    }

    #[test]
    fn no_other_part_of_the_type_stays_however_it_is_written() {
        let sdp = "--b1\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n";
        let encoded = "--b1\r\ncontent-transfer-encoding: base64\r\nContent-Type: application/sdp\r\n\r\ndj0w\r\n";
        let broken = "--b1\r\nContent-Type: multipart/mixed;boundary=x\r\n\r\n--x\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n";
        let twice = "--b1\r\nContent-Type: text/plain\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n";
        let headless = "--b1\r\nContent-Type: application/sdp\n\nv=0\r\n";
        let new = sdp.replace("v=0", "new");
        for other in [sdp, encoded, broken, twice, headless, NESTED] {
            let kept = if other == NESTED {
                NESTED.replace("--x\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n", "")
            } else {
                String::new()
            };
            let body = format!("{sdp}{ISUP}{other}--b1--\r\n");
            assert_eq!(with(MIXED, &body, Some("new")), Some(format!("{new}{ISUP}{kept}--b1--\r\n")), "{other}");
            let body = format!("{ISUP}{other}--b1--\r\n");
            assert_eq!(with(MIXED, &body, None), Some(format!("{ISUP}{kept}--b1--\r\n")), "{other}");
        }
        for body in [format!("{sdp}{encoded}--b1--"), format!("{ISUP}{sdp}"), String::from("v=0")] {
            assert_eq!(with(MIXED, &body, None).as_deref(), Some(""), "nothing is left of {body}");
        }
        assert_eq!(with("multipart/mixed", sdp, None).as_deref(), Some(""), "it says not where its parts are");
        assert_eq!(with("application/sdp", "v=0", None).as_deref(), Some(""));
        for (kind, body) in [(MIXED, format!("{ISUP}--b1--")), ("text/plain", String::from("v=0"))] {
            assert_eq!((with(kind, &body, None), with(kind, &body, Some("new"))), (None, None));
        }
    }

    #[test]
    fn behind_an_empty_part_that_goes_the_next_one_is_still_one() {
        let sdp = "--b1\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n";
        for empty in ["--b1\r\n", "--b1\r\n--b1\r\n"] {
            let body = format!("{ISUP}{empty}{sdp}--b1--\r\n");
            let kept = format!("{ISUP}{sdp}--b1--\r\n");
            let new = kept.replace("v=0", "new");
            assert_eq!(with(MIXED, &body, Some("new")).as_deref(), Some(&*new));
            assert_eq!(part(MIXED, &new).as_deref(), Some("new"));
            assert_eq!(with(MIXED, &body, None), Some(format!("{ISUP}--b1--\r\n")));
            let body = format!("{empty}{ISUP}{sdp}--b1--\r\n");
            assert_eq!(with(MIXED, &body, Some("new")).as_deref(), Some(&*new));
        }
    }
}
