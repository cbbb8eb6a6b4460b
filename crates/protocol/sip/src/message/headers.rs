//! Pass 2: values of header fields.

use super::{
    Fault, HeaderName, Line, Message, NameAddr, ParseError, Via,
    scan::{Class, Cursor, decimal, decimal_u32, trim},
};

impl<'a> Message<'a> {
    /// The value of the first header field of this name, trimmed, commas and folds included.
    #[must_use]
    pub fn header(&self, name: HeaderName) -> Option<&'a [u8]> {
        self.index.value(self.bytes, self.index.first(name)?)
    }

    /// The first header field of this name, without its line break, if it is written as we would write it.
    pub(crate) fn plain(&self, name: HeaderName) -> Option<&'a [u8]> {
        self.index.plain(self.bytes, self.index.first(name)?)
    }

    /// The values of all header fields of this name, one per line, commas included.
    pub fn headers_raw(&self, name: HeaderName) -> impl Iterator<Item = &'a [u8]> {
        let mut from = 0;
        core::iter::from_fn(move || {
            let position = self.index.next(name, from)?;
            from = position + 1;
            self.index.value(self.bytes, position)
        })
    }

    /// The values of all header fields of this name in their order, comma lists taken apart where the field is a list
    /// (RFC 3261 section 7.3.1). Empty list members are left out.
    pub fn headers(&self, name: HeaderName) -> impl Iterator<Item = &'a [u8]> {
        self.headers_raw(name).flat_map(move |value| members(value, name.is_list()))
    }

    /// All header fields in their order.
    pub fn lines(&self) -> impl Iterator<Item = Line<'a>> {
        (0..self.index.len()).map_while(|position| self.index.line(self.bytes, position))
    }

    /// The topmost Via value.
    ///
    /// # Errors
    /// Missing or malformed.
    pub fn top_via(&self) -> Result<Via<'a>, ParseError> {
        self.via.map_or_else(|| self.parse_via(), Ok)
    }

    pub(super) fn parse_via(&self) -> Result<Via<'a>, ParseError> {
        let value = self.single(HeaderName::Via, false)?;
        Via::parse(value).map_err(|fault| self.refuse(fault))
    }

    /// Caller.
    ///
    /// # Errors
    /// Missing, repeated or malformed.
    pub fn from(&self) -> Result<NameAddr<'a>, ParseError> {
        self.address(HeaderName::From)
    }

    /// Called.
    ///
    /// # Errors
    /// Missing, repeated or malformed.
    pub fn to(&self) -> Result<NameAddr<'a>, ParseError> {
        self.address(HeaderName::To)
    }

    /// The call identifier: one run of visible bytes.
    ///
    /// # Errors
    /// Missing, repeated or malformed.
    pub fn call_id(&self) -> Result<&'a [u8], ParseError> {
        let value = self.single(HeaderName::CallId, true)?;
        let is_word = !value.is_empty() && Class::WORD.covers(value);
        if is_word { Ok(value) } else { Err(self.refuse(Fault::Malformed(HeaderName::CallId))) }
    }

    /// Hops left, 0 to 255; `None` if the field is absent (RFC 2543).
    ///
    /// # Errors
    /// Repeated or malformed.
    pub fn max_forwards(&self) -> Result<Option<u8>, ParseError> {
        match self.single(HeaderName::MaxForwards, true) {
            Ok(value) => match decimal(value, u64::from(u8::MAX)) {
                Some(hops) => Ok(Some(hops as u8)),
                None => Err(self.refuse(Fault::Malformed(HeaderName::MaxForwards))),
            },
            Err(error) if error.fault == Fault::Missing(HeaderName::MaxForwards) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first Contact value; `Ok(None)` if there is none. `*` gives an empty URI and [`NameAddr::is_star`].
    ///
    /// # Errors
    /// Malformed.
    pub fn contact(&self) -> Result<Option<NameAddr<'a>>, ParseError> {
        self.contacts().next().transpose()
    }

    /// All Contact values.
    pub fn contacts(&self) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> {
        self.addresses(HeaderName::Contact)
    }

    /// All Route values, topmost first.
    pub fn routes(&self) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> {
        self.addresses(HeaderName::Route)
    }

    /// All Record-Route values, topmost first.
    pub fn record_routes(&self) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> {
        self.addresses(HeaderName::RecordRoute)
    }

    /// The Expires field in seconds. `None` if absent or out of range: then the default holds (RFC 4475 section 3.1.2.4).
    #[must_use]
    pub fn expires(&self) -> Option<u32> {
        decimal_u32(self.header(HeaderName::Expires)?)
    }

    /// Whether the list field `name` (Supported, Require, ...) holds the option tag, in any case.
    #[must_use]
    pub fn lists(&self, name: HeaderName, option_tag: &[u8]) -> bool {
        self.headers(name).any(|value| value.eq_ignore_ascii_case(option_tag))
    }

    /// The media type of the body without parameters, such as `application/sdp`; `None` if the field is absent.
    #[must_use]
    pub fn content_type(&self) -> Option<&'a [u8]> {
        let value = self.header(HeaderName::ContentType)?;
        value.split(|byte| *byte == b';').next().map(trim)
    }

    /// The one value of a field that must be there. A list field gives its first member.
    pub(super) fn single(&self, name: HeaderName, once: bool) -> Result<&'a [u8], ParseError> {
        let value = self.header(name).ok_or_else(|| self.refuse(Fault::Missing(name)))?;
        if once && self.index.is_repeated(name) {
            return Err(self.refuse(Fault::Repeated(name)));
        }
        Ok(value)
    }

    fn address(&self, name: HeaderName) -> Result<NameAddr<'a>, ParseError> {
        let value = self.single(name, true)?;
        NameAddr::parse(value).ok_or_else(|| self.refuse(Fault::Malformed(name)))
    }

    fn addresses(&self, name: HeaderName) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> {
        self.headers(name).map(move |value| NameAddr::parse(value).ok_or_else(|| self.refuse(Fault::Malformed(name))))
    }
}

/// The members of a comma list, or the one value of any other field; those that are empty are left out.
fn members(mut rest: &[u8], is_list: bool) -> impl Iterator<Item = &[u8]> {
    let next = move || {
        if rest.is_empty() || !is_list {
            return Some(core::mem::take(&mut rest)).filter(|value| !value.is_empty());
        }
        let mut cursor = Cursor::new(rest);
        cursor.skip_to_comma();
        let member = trim(cursor.since(0));
        cursor.eat(b',');
        rest = cursor.rest();
        Some(member)
    };
    core::iter::from_fn(next).filter(|member| !member.is_empty())
}
