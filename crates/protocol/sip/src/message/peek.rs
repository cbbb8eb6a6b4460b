//! What can be told of a message before it is parsed.

use memchr::{memchr, memchr_iter};

use super::{
    HeaderName, Method, NameAddr, Via,
    index::{find_colon, find_line},
    scan::{Class, trim, trim_end},
    skip_line_breaks,
};

/// A first look at a message: one pass over its lines, nothing checked, nothing remembered. Whoever decides by it must be
/// able to bear that the parser would have read the message in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peek<'a> {
    /// The request's method; `None` for a response.
    pub method: Option<Method<'a>>,
    /// The branch of the topmost Via, if it has one.
    pub branch: Option<&'a [u8]>,
    /// To has a tag: the message is of a dialog, or claims to be.
    pub has_to_tag: bool,
}

impl<'a> Peek<'a> {
    /// Looks at a datagram. `None` if it has not both fields, each whole on one line: then only the parser can tell.
    ///
    /// Ends at the second of the fields, which stand at the top in what is sent by anybody who follows RFC 3261 section
    /// 7.3.1.
    #[must_use]
    pub fn at(datagram: &'a [u8]) -> Option<Self> {
        let start = datagram.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
        let bytes = datagram.get(start..)?;
        let (mut line_at, mut method, mut via, mut to) = (0, None, None, None);
        for end in memchr_iter(b'\n', bytes) {
            let line = bytes.get(line_at..end)?;
            let is_first = line_at == 0;
            line_at = end + 1;
            if is_first {
                let is_response = line.get(..4)?.eq_ignore_ascii_case(b"SIP/");
                method = if is_response { None } else { Some(line.get(..memchr(b' ', line)?)?) };
                continue;
            }
            let Some((name, value)) = memchr(b':', line).and_then(|at| line.split_at_checked(at)) else { break };
            let is_folded = matches!(bytes.get(line_at), Some(b' ' | b'\t'));
            let field = match name.trim_ascii() {
                name if via.is_none() && is_name(name, b"Via", b'v') => &mut via,
                name if is_name(name, b"To", b't') => &mut to,
                _ => continue,
            };
            if is_folded || field.replace(value).is_some() {
                return None;
            }
            if let (Some(via), Some(to)) = (via, to) {
                let to_parameters = memchr(b'>', to).map_or(to, |at| to.get(at..).unwrap_or_default());
                return Some(Self {
                    method: method.map(Method::of),
                    branch: parameter(via, b"branch"),
                    has_to_tag: parameter(to_parameters, b"tag").is_some(),
                });
            }
        }
        None
    }
}

/// What an ACK shares with the refusal that it is for, besides its method (RFC 3261 section 17.1.1.3). Each field is read as the
/// parser reads it; the rest of the message is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeekAck<'a> {
    /// The topmost Via value.
    pub via: Via<'a>,
    /// The call identifier.
    pub call_id: &'a [u8],
    /// The caller's tag.
    pub from_tag: Option<&'a [u8]>,
    /// The called one's tag.
    pub to_tag: &'a [u8],
}

impl<'a> PeekAck<'a> {
    /// Looks at a datagram. `None` if it is no ACK, or one of which only the parser can tell: a field is not there, not whole
    /// on one line or there twice, before all were found.
    #[must_use]
    pub fn at(datagram: &'a [u8]) -> Option<Self> {
        let mut rest = skip_line_breaks(datagram);
        if !rest.starts_with(b"ACK ") {
            return None;
        }
        let mut found = [None; 4];
        while let [None, ..] | [_, None, ..] | [_, _, None, _] | [.., None] = found {
            let (line, next) = (rest.get(..find_line(rest).ok()?)?, rest);
            rest = next.get(line.len() + 2..)?;
            if !matches!(line.first()?, b'V' | b'v' | b'F' | b'f' | b'T' | b't' | b'C' | b'c' | b'I' | b'i') {
                continue;
            }
            let (name, value) = line.split_at_checked(find_colon(line)?)?;
            let place = match HeaderName::of(trim_end(name)) {
                HeaderName::Via if found[0].is_some() => continue,
                HeaderName::Via => 0,
                HeaderName::From => 1,
                HeaderName::To => 2,
                HeaderName::CallId => 3,
                _ => continue,
            };
            let is_folded = matches!(rest.first(), Some(b' ' | b'\t'));
            if is_folded || found[place].replace(trim(value.get(1..)?)).is_some() {
                return None;
            }
        }
        let [via, from, to, call_id] = found;
        Some(Self { via: Via::parse(via?).ok()?, call_id: call_id?, from_tag: tag(from?)?, to_tag: tag(to?)?? })
    }
}

/// The tag of a From or To, if it has one; `None` if it is no address. Most have a tag behind the brackets and nothing else.
fn tag(value: &[u8]) -> Option<Option<&[u8]>> {
    let plain = value.strip_prefix(b"<sip:").and_then(|rest| {
        let (uri, tag) = rest.split_at_checked(Class::URI.span(rest))?;
        let tag = tag.strip_prefix(b">;tag=")?;
        (!uri.is_empty() && !tag.is_empty() && Class::TOKEN.covers(tag)).then_some(tag)
    });
    match plain {
        Some(tag) => Some(Some(tag)),
        None => Some(NameAddr::parse(value)?.tag),
    }
}

fn is_name(name: &[u8], long: &[u8], compact: u8) -> bool {
    name.eq_ignore_ascii_case(long) || matches!(name, [only] if only.eq_ignore_ascii_case(&compact))
}

/// The value of a parameter of the first value in a header field.
fn parameter<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let first = value.split(|byte| *byte == b',').next()?;
    first.split(|byte| *byte == b';').skip(1).find_map(|parameter| {
        let (found, value) = parameter.split_at_checked(memchr(b'=', parameter)?)?;
        found.trim_ascii().eq_ignore_ascii_case(name).then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use std::{format, string::String};

    use super::*;
    use crate::message::Message;

    fn text(via: &str, to: &str) -> String {
        format!(
            "BYE sip:b@b SIP/2.0\r\n{via}\r\nFrom: <sip:a@b>;tag=1\r\nTo: {to}\r\nCall-ID: 1\r\nCSeq: 1 BYE\r\n\r\n"
        )
    }

    #[test]
    fn a_look_tells_method_branch_and_tag_as_the_parser_does() {
        for via in
            ["Via: SIP/2.0/UDP a;branch=z9hG4bK1", "v:SIP/2.0/UDP a ; rport; Branch = x , SIP/2.0/UDP b;branch=y"]
        {
            for to in ["<sip:b@b>", "<sip:b@b>;tag=2", "sip:b@b;tag=3", "\"x\" <sip:b@b;tag=uri>"] {
                let text = text(via, to);
                let (peek, message) = (Peek::at(text.as_bytes()).unwrap(), Message::parse(text.as_bytes()).unwrap());
                assert_eq!(peek.method, message.method());
                assert_eq!(peek.branch, message.top_via().unwrap().branch, "{text}");
                assert_eq!(peek.has_to_tag, message.to().unwrap().tag.is_some(), "{text}");
            }
        }
        let response =
            text("Via: SIP/2.0/UDP a;branch=x", "<sip:b@b>").replace("BYE sip:b@b SIP/2.0", "SIP/2.0 200 OK");
        assert_eq!(Peek::at(response.as_bytes()).unwrap().method, None);
    }

    #[test]
    fn a_look_at_an_ack_tells_what_it_is_for_as_the_parser_does() {
        let plain = text("v :SIP / 2.0/UDP a ;branch=x , SIP/2.0/UDP b", "\"x\" <sip:b@b;tag=uri>;tag=2")
            .replace("BYE", "ACK")
            .replace("Call-ID", "Vx: y\r\n folded\r\nVia: SIP/2.0/UDP c\r\ni");
        for text in [plain.clone(), std::format!("\r\n{plain}")] {
            let (peek, message) = (PeekAck::at(text.as_bytes()).unwrap(), Message::parse(text.as_bytes()).unwrap());
            let fields = message.essentials().unwrap();
            assert_eq!((peek.via, peek.call_id), (fields.via, fields.call_id));
            assert_eq!((peek.from_tag, Some(peek.to_tag)), (fields.from.tag, fields.to.tag));
        }
        for (own, other) in [
            ("ACK sip", "BYE sip"),
            ("\r\nFrom", "\r\nTo: <sip:b@b>;tag=2\r\nFrom"),
            ("From: ", "From:\r\n "),
            (";tag=2", "\r\n ;tag=2"),
            (";tag=2", ""),
            ("<sip:a@b>", "<sip:a@b"),
            ("a ;branch=x", "a ;branch=x;branch=y"),
            ("\r\ni:", "\r\nx:"),
            ("From", "Other\nFrom"),
        ] {
            let odd = plain.replacen(own, other, 1);
            assert!(odd != plain && PeekAck::at(odd.as_bytes()).is_none(), "{odd}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_parser() {
        let folded = text("Via: SIP/2.0/UDP a;branch=x", "<sip:b@b>\r\n ;tag=2");
        let twice = text("Via: SIP/2.0/UDP a;branch=x\r\nTo: <sip:c@c>", "<sip:b@b>");
        for odd in ["", "\r\n\r\n", "BYE", "BYE sip:b@b SIP/2.0\r\nVia: x\r\n\r\n", &folded] {
            assert_eq!(Peek::at(odd.as_bytes()), None, "{odd}");
        }
        // The first two fields are enough; that there is another is the parser's to see.
        assert!(Peek::at(twice.as_bytes()).is_some());
    }
}
