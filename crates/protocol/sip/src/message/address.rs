//! `name-addr` and parameters (RFC 3261 sections 20.10 and 25.1).

use super::scan::{Class, Cursor, is_lws, trim, unquoted};

/// A value of From, To, Contact, Route or Record-Route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameAddr<'a> {
    /// The display name with its quotes, if it has any; may be empty.
    pub display: &'a [u8],
    /// The URI without angle brackets; parse it with [`crate::uri::Uri::parse`].
    pub uri: &'a [u8],
    /// The `tag` parameter.
    pub tag: Option<&'a [u8]>,
    /// All header parameters. Those of the URI are not among them.
    pub params: Params<'a>,
}

impl<'a> NameAddr<'a> {
    /// Parses one value, not a list. `None` if it does not follow the grammar.
    #[must_use]
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        if value == b"*" {
            return Some(Self { display: b"*", uri: &[], tag: None, params: Params::default() });
        }
        let mut cursor = Cursor::new(value);
        cursor.skip_lws();
        let display_at = cursor.position();
        if cursor.peek() == Some(b'"') {
            cursor.quoted()?;
            cursor.skip_lws();
        } else {
            // Unquoted names are tokens; anything else means that the URI begins here, without brackets.
            cursor.take_while(|byte| Class::TOKEN.has(byte) || is_lws(byte));
        }
        let display = trim(cursor.since(display_at));
        let uri = if cursor.eat(b'<') {
            let uri = cursor.take(Class::URI);
            cursor.eat(b'>').then_some(uri)?
        } else if value.get(display_at) == Some(&b'"') {
            return None;
        } else {
            cursor = Cursor::new(value.get(display_at..)?);
            let uri = cursor.take(Class::BARE_URI);
            return Self::finish(&[], uri, cursor);
        };
        Self::finish(display, uri, cursor)
    }

    fn finish(display: &'a [u8], uri: &'a [u8], mut cursor: Cursor<'a>) -> Option<Self> {
        if !uri.starts_with(b"sip:") && !uri.contains(&b':') {
            return None;
        }
        let mut tag = None;
        let params = Params::parse(&mut cursor, |param| {
            if tag.is_none() && param.name.eq_ignore_ascii_case(b"tag") {
                tag = Some(unquoted(param.value?));
            }
            Some(())
        })?;
        if !cursor.is_at_end() {
            return None;
        }
        Some(Self { display, uri, tag, params })
    }

    /// The `*` of a REGISTER that removes all bindings (RFC 3261 section 10.2.2).
    #[must_use]
    pub const fn is_star(&self) -> bool {
        self.uri.is_empty()
    }
}

/// One parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param<'a> {
    /// Compared in any case.
    pub name: &'a [u8],
    /// The value with its quotes, if it has any; `None` if the parameter is a flag.
    pub value: Option<&'a [u8]>,
}

/// `;name=value` parameters, checked when made and taken apart when iterated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Params<'a> {
    bytes: &'a [u8],
}

impl<'a> Params<'a> {
    /// Steps over all parameters at the cursor, and has each looked at. `None` if one does not follow the grammar, or is refused.
    pub(crate) fn parse(cursor: &mut Cursor<'a>, mut look: impl FnMut(Param<'a>) -> Option<()>) -> Option<Self> {
        let start = cursor.position();
        let mut end = start;
        while cursor.eat_spaced(b';') {
            look(parse_param(cursor)?)?;
            end = cursor.position();
            cursor.skip_lws();
        }
        let bytes = cursor.since(start);
        Some(Self { bytes: bytes.get(..end - start)? })
    }

    /// The parameters in their order.
    pub fn iter(&self) -> impl Iterator<Item = Param<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes);
        core::iter::from_fn(move || if cursor.eat_spaced(b';') { parse_param(&mut cursor) } else { None })
    }

    /// The parameter of this name, in any case.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<Param<'a>> {
        self.iter().find(|param| param.name.eq_ignore_ascii_case(name))
    }

    /// The value of the parameter of this name without quotes. `None` if it is absent or a flag.
    #[must_use]
    pub fn value(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.find(name)?.value.map(unquoted)
    }

    /// The parameters as written, from the first semicolon on.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The cursor stands behind the semicolon and its white space.
fn parse_param<'a>(cursor: &mut Cursor<'a>) -> Option<Param<'a>> {
    let name = cursor.token();
    if name.is_empty() {
        return None;
    }
    let mut ahead = cursor.clone();
    if !ahead.eat_spaced(b'=') {
        return Some(Param { name, value: None });
    }
    *cursor = ahead;
    Some(Param { name, value: Some(cursor.parameter_value()?) })
}
