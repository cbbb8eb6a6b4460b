//! SIP, SIPS and tel URIs (RFC 3261 section 19.1, RFC 3966).

use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::message::scan::{Class, Cursor, decimal_u16, is_scheme, split_once};

/// Why a URI is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// No scheme and colon at the start.
    #[error("the URI has no scheme")]
    Scheme,
    /// The host is no name, IPv4 address or IPv6 address in brackets.
    #[error("the URI's host is malformed")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("the URI's port is malformed")]
    Port,
    /// A byte that may not stand in the user part, or a percent sign without two hexadecimal digits.
    #[error("the URI's user part is malformed")]
    User,
    /// Parameters or header fields that do not follow the grammar.
    #[error("the URI's parameters are malformed")]
    Parameters,
}

/// The scheme of a URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme<'a> {
    /// `sip`
    Sip,
    /// `sips`
    Sips,
    /// `tel`
    Tel,
    /// Any other: an element that routes by it answers 416.
    Other(&'a [u8]),
}

/// A host as it stands in a URI or a Via.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host<'a> {
    /// A literal address.
    Address(IpAddr),
    /// A name to be resolved; compared in any case.
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// Parses a whole host, IPv6 addresses in brackets.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(text);
        let host = Self::parse_prefix(&mut cursor)?;
        cursor.is_at_end().then_some(host)
    }

    /// Parses the host at the cursor and steps over it.
    pub(crate) fn parse_prefix(cursor: &mut Cursor<'a>) -> Option<Self> {
        if cursor.eat(b'[') {
            let inside = cursor.take_while(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
            let address = address_v6(core::str::from_utf8(inside).ok()?)?;
            return cursor.eat(b']').then_some(Self::Address(IpAddr::V6(address)));
        }
        let name = cursor.take(Class::HOST);
        if let Some(address) = address_v4(name) {
            return Some(Self::Address(IpAddr::V4(address)));
        }
        if Class::ADDRESS.covers(name) {
            return None;
        }
        core::str::from_utf8(name).ok().filter(|name| !name.starts_with('.')).map(Self::Name)
    }

    /// The literal address; `None` for a name.
    #[must_use]
    pub const fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Name(_) => None,
        }
    }

    /// Whether this is `name`, in any case, or the address that it spells.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        match self {
            Self::Address(_) => Host::parse(name.as_bytes()) == Some(*self),
            Self::Name(own) => own.eq_ignore_ascii_case(name),
        }
    }
}

/// Four numbers as the standard library reads them, without zeros in front. Most senders name themselves by an address, and a
/// flood does in each message.
fn address_v4(text: &[u8]) -> Option<Ipv4Addr> {
    let (mut address, mut octet, mut is_begun, mut dots) = (0_u32, 0_u32, false, 0);
    for byte in text {
        match byte {
            b'0'..=b'9' if !is_begun || octet != 0 => {
                octet = octet * 10 + u32::from(byte - b'0');
                is_begun = true;
            }
            b'.' if is_begun && dots < 3 => {
                (address, octet, is_begun) = (address << 8 | octet, 0, false);
                dots += 1;
            }
            _ => return None,
        }
        if octet > 255 {
            return None;
        }
    }
    (is_begun && dots == 3).then(|| (address << 8 | octet).into())
}

/// An address as RFC 4291 writes it, or with the colon too many before dotted decimals that the grammar of RFC 3261 lets in and
/// that has to be borne (RFC 5118 section 4.10).
fn address_v6(text: &str) -> Option<Ipv6Addr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let colons = text.find(":::")?;
    let (before, rest) = text.split_at_checked(colons + 2)?;
    let (before, rest): (Ipv6Addr, Ipv4Addr) = (before.parse().ok()?, rest.strip_prefix(':')?.parse().ok()?);
    // The two colons stand for one group at least, and the decimals for the last two.
    let has_room = before.segments().iter().skip(5).all(|group| *group == 0);
    has_room.then(|| Ipv6Addr::from_bits(before.to_bits() | u128::from(rest.to_bits())))
}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A URI taken apart. All parts are as written; escapes are resolved by [`unescape`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uri<'a> {
    /// Which kind of URI.
    pub scheme: Scheme<'a>,
    /// The user part, or the number of a tel URI. May hold escapes.
    pub user: Option<&'a [u8]>,
    /// The host; `None` for tel and unknown schemes.
    pub host: Option<Host<'a>>,
    /// The port, 1 to 65535.
    pub port: Option<u16>,
    /// `;name=value` parameters from the first semicolon on; may be empty.
    pub params: &'a [u8],
    /// Header fields behind the question mark; may be empty.
    pub headers: &'a [u8],
    /// For unknown schemes: all that follows the colon.
    pub opaque: &'a [u8],
}

impl<'a> Uri<'a> {
    /// Parses a URI without brackets around it. Unknown schemes pass with only `scheme` and `opaque` filled in.
    ///
    /// # Errors
    /// See [`UriError`].
    pub fn parse(text: &'a [u8]) -> Result<Self, UriError> {
        let (name, rest) = split_once(b':', text).filter(|(name, _)| is_scheme(name)).ok_or(UriError::Scheme)?;
        match name {
            _ if name.eq_ignore_ascii_case(b"sip") => Self::parse_sip(Scheme::Sip, rest),
            _ if name.eq_ignore_ascii_case(b"sips") => Self::parse_sip(Scheme::Sips, rest),
            _ if name.eq_ignore_ascii_case(b"tel") => Self::parse_tel(rest),
            other => Ok(Self { opaque: rest, ..Self::empty(Scheme::Other(other)) }),
        }
    }

    const fn empty(scheme: Scheme<'a>) -> Self {
        Self { scheme, user: None, host: None, port: None, params: &[], headers: &[], opaque: &[] }
    }

    fn parse_sip(scheme: Scheme<'a>, rest: &'a [u8]) -> Result<Self, UriError> {
        let mut uri = Self::empty(scheme);
        let mut cursor = Cursor::new(rest);
        // An `@` stands nowhere else unescaped, so the first one ends the user part.
        if let Some(at) = memchr::memchr(b'@', rest) {
            let user = rest.get(..at).unwrap_or_default();
            // The password, deprecated and never used here, is cut off.
            let end = memchr::memchr(b':', user).unwrap_or(at);
            if end == 0 || !is_escaped(user, is_user_byte) {
                return Err(UriError::User);
            }
            uri.user = user.get(..end);
            cursor = Cursor::new(rest.get(at + 1..).unwrap_or_default());
        }
        uri.host = Some(Host::parse_prefix(&mut cursor).ok_or(UriError::Host)?);
        if cursor.eat(b':') {
            let port = decimal_u16(cursor.take(Class::DIGIT));
            uri.port = Some(port.filter(|port| *port != 0).ok_or(UriError::Port)?);
        }
        uri.params = cursor.take_while(|byte| byte != b'?');
        if cursor.eat(b'?') {
            uri.headers = cursor.rest();
        }
        let begins_right = uri.params.is_empty() || uri.params.starts_with(b";");
        if !begins_right || !is_escaped(uri.params, is_param_byte) || !is_escaped(uri.headers, is_param_byte) {
            return Err(UriError::Parameters);
        }
        Ok(uri)
    }

    fn parse_tel(rest: &'a [u8]) -> Result<Self, UriError> {
        let mut cursor = Cursor::new(rest);
        let number = cursor.take_while(|byte| byte != b';');
        let is_number = number.iter().any(u8::is_ascii_hexdigit)
            && number
                .iter()
                .all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'+' | b'-' | b'.' | b'(' | b')' | b'*' | b'#'));
        if !is_number {
            return Err(UriError::User);
        }
        let params = cursor.rest();
        if !is_escaped(params, is_param_byte) {
            return Err(UriError::Parameters);
        }
        Ok(Self { user: Some(number), params, ..Self::empty(Scheme::Tel) })
    }

    /// Whether the scheme is `sip` or `sips`.
    #[must_use]
    pub const fn is_sip(&self) -> bool {
        matches!(self.scheme, Scheme::Sip | Scheme::Sips)
    }

    /// Whether the user part, with escapes resolved, is exactly `name`.
    #[must_use]
    pub fn user_is(&self, name: &str) -> bool {
        self.user.is_some_and(|user| unescape(user).eq(name.bytes()))
    }

    /// Whether the host is `name` (in any case, or the address that it spells).
    #[must_use]
    pub fn host_is(&self, name: &str) -> bool {
        self.host.is_some_and(|host| host.is(name))
    }

    /// The URI parameter of this name, in any case: `Some(None)` if it is a flag such as `lr`.
    #[must_use]
    pub fn param(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.params.split(|byte| *byte == b';').find_map(|param| {
            let (own, value) = split_once(b'=', param).map_or((param, None), |(own, value)| (own, Some(value)));
            (!own.is_empty() && own.eq_ignore_ascii_case(name)).then_some(value)
        })
    }

    /// Whether both name the same user at the same host and port: scheme, user, host, port (RFC 3261 section 19.1.4
    /// without parameters and header fields).
    #[must_use]
    pub fn names_same_address(&self, other: &Uri<'_>) -> bool {
        let same_user = match (self.user, other.user) {
            (Some(one), Some(two)) => unescape(one).eq(unescape(two)),
            (None, None) => true,
            _ => false,
        };
        let same_host = match (self.host, other.host) {
            (Some(Host::Name(one)), Some(Host::Name(two))) => one.eq_ignore_ascii_case(two),
            (Some(Host::Address(one)), Some(Host::Address(two))) => one == two,
            (None, None) => true,
            _ => false,
        };
        let same_scheme = match (self.scheme, other.scheme) {
            (Scheme::Sip, Scheme::Sip) | (Scheme::Sips, Scheme::Sips) | (Scheme::Tel, Scheme::Tel) => true,
            (Scheme::Other(one), Scheme::Other(two)) => one.eq_ignore_ascii_case(two),
            _ => false,
        };
        same_scheme && same_user && same_host && self.port == other.port && self.opaque == other.opaque
    }

    /// Whether both are the same URI (RFC 3261 section 19.1.4), by which a registrar finds the binding of a Contact. As
    /// there, two that are the same as a third need not be the same. Passwords do not count.
    #[must_use]
    pub fn is_equivalent(&self, other: &Uri<'_>) -> bool {
        self.names_same_address(other)
            && parts(self.params, b';').all(|own| fits_params(own, other.params))
            && parts(other.params, b';').all(|own| fits_params(own, self.params))
            && parts(self.headers, b'&').all(|own| parts(other.headers, b'&').any(|part| is_same_part(own, part)))
            && parts(other.headers, b'&').all(|own| parts(self.headers, b'&').any(|part| is_same_part(own, part)))
    }
}

/// URI parameters that count even where only one of two URIs has them.
const NEVER_IGNORED: [&[u8]; 5] = [b"user", b"ttl", b"method", b"maddr", b"transport"];

/// A parameter or header field of a URI: its name and its value.
type Part<'a> = (&'a [u8], &'a [u8]);

fn parts(text: &[u8], separator: u8) -> impl Iterator<Item = Part<'_>> {
    let parts = text.split(move |byte| *byte == separator).filter(|part| !part.is_empty());
    parts.map(|part| split_once(b'=', part).unwrap_or((part, &[])))
}

/// Whether a parameter of one URI does not make it another than that with the parameters `others`.
fn fits_params(own: Part<'_>, others: &[u8]) -> bool {
    match parts(others, b';').find(|(name, _)| name.eq_ignore_ascii_case(own.0)) {
        Some(other) => is_same_part(own, other),
        None => !NEVER_IGNORED.iter().any(|name| name.eq_ignore_ascii_case(own.0)),
    }
}

fn is_same_part((name, value): Part<'_>, (other, others): Part<'_>) -> bool {
    let lower = |text| unescape(text).map(|byte| byte.to_ascii_lowercase());
    name.eq_ignore_ascii_case(other) && lower(value).eq(lower(others))
}

/// The bytes of `text` with each `%XX` resolved, once (RFC 3261 section 19.1.2). A percent sign that is no escape stays.
pub fn unescape(text: &[u8]) -> impl Iterator<Item = u8> + Clone {
    let mut rest = text;
    core::iter::from_fn(move || {
        let (byte, len) = match rest {
            [b'%', high, low, ..] => match [*high, *low].map(|digit| char::from(digit).to_digit(16)) {
                [Some(high), Some(low)] => ((high << 4 | low) as u8, 3),
                _ => (b'%', 1),
            },
            [byte, ..] => (*byte, 1),
            [] => return None,
        };
        rest = rest.get(len..).unwrap_or_default();
        Some(byte)
    })
}

fn is_escaped(text: &[u8], class: fn(u8) -> bool) -> bool {
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        let valid = match byte {
            b'%' => [bytes.next(), bytes.next()].iter().all(|digit| digit.is_some_and(u8::is_ascii_hexdigit)),
            other => class(*other),
        };
        if !valid {
            return false;
        }
    }
    true
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'!' | b'~' | b'*' | b'\'' | b'(' | b')')
}

const fn is_user_byte(byte: u8) -> bool {
    // `#` is not in the grammar; phones dial it unescaped.
    is_unreserved(byte) || matches!(byte, b'&' | b'=' | b'+' | b'$' | b',' | b';' | b'?' | b'/' | b':' | b'#')
}

const fn is_param_byte(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(byte, b'[' | b']' | b'/' | b':' | b'&' | b'+' | b'$' | b'=' | b';' | b'?' | b'@' | b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_the_standard_library_takes_for_one() {
        let octets = ["", "0", "00", "1", "01", "9", "10", "99", "100", "255", "256", "1000", "99999999999"];
        for first in octets {
            for second in octets {
                for text in [
                    std::format!("{first}.{second}.{first}.{second}"),
                    std::format!("{first}.{second}.{second}"),
                    std::format!("{first}.1.1.1.{second}"),
                    std::format!("1.{first}..{second}"),
                    std::format!("{first}{second}"),
                    std::format!("1.1.1.{first}x{second}"),
                ] {
                    assert_eq!(address_v4(text.as_bytes()), text.parse().ok(), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_sip_uri_comes_apart() {
        let uri = Uri::parse(b"sips:al%69ce:pw@[2001:db8::1]:5071;transport=udp;lr?Subject=x").unwrap();
        assert_eq!(uri.scheme, Scheme::Sips);
        assert!(uri.user_is("alice"));
        assert_eq!(uri.host, Some(Host::Address("2001:db8::1".parse().unwrap())));
        assert_eq!((uri.port, uri.headers), (Some(5071), &b"Subject=x"[..]));
        assert_eq!(uri.param(b"Transport"), Some(Some(&b"udp"[..])));
        assert_eq!(uri.param(b"lr"), Some(None));
        assert_eq!(uri.param(b"maddr"), None);
    }

    #[test]
    fn an_unescaped_null_does_not_shorten_the_user() {
        let uri = Uri::parse(b"sip:null-%00-null@example.com").unwrap();
        assert!(uri.user_is("null-\0-null"));
        assert!(!uri.user_is("null-"));
    }

    #[test]
    fn escapes_are_resolved_once() {
        assert!(unescape(b"value%25%34%31").eq(*b"value%41"));
        assert!(unescape(b"%zz%4").eq(*b"%zz%4"));
    }

    #[test]
    fn tel_and_unknown_schemes_pass() {
        assert_eq!(Uri::parse(b"tel:+1-201-555-0123;phone-context=x").unwrap().user, Some(&b"+1-201-555-0123"[..]));
        let uri = Uri::parse(b"nobodyKnowsThisScheme:totallyopaquecontent").unwrap();
        assert_eq!(uri.opaque, b"totallyopaquecontent");
        assert!(!uri.is_sip());
    }

    #[test]
    fn malformed_uris_say_which_part() {
        for (text, error) in [
            (&b"alice@example.com"[..], UriError::Scheme),
            (b":x", UriError::Scheme),
            (b"sip:", UriError::Host),
            (b"sip:@example.com", UriError::User),
            (b"sip:a%2@example.com", UriError::User),
            (b"sip:a b@example.com", UriError::User),
            (b"sip:a@[::1", UriError::Host),
            (b"sip:a@300.1.1.1", UriError::Host),
            (b"sip:a@b:0", UriError::Port),
            (b"sip:a@b:65536", UriError::Port),
            (b"sip:a@b:", UriError::Port),
            (b"sip:a@b/x", UriError::Parameters),
            (b"sip:a@b;x=%4", UriError::Parameters),
            (b"tel:", UriError::User),
        ] {
            assert_eq!(Uri::parse(text), Err(error), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn comparison_resolves_escapes_and_ignores_the_hosts_case() {
        let one = Uri::parse(b"sip:%61lice@AtLanTa.CoM;Transport=tcp").unwrap();
        let two = Uri::parse(b"SIP:alice@AtLanta.CoM").unwrap();
        assert!(one.names_same_address(&two));
        assert!(!one.names_same_address(&Uri::parse(b"sip:ALICE@AtLanta.CoM").unwrap()));
        assert!(!one.names_same_address(&Uri::parse(b"sip:alice@AtLanta.CoM:5060").unwrap()));
    }

    /// The examples of RFC 3261 section 19.1.4.
    #[test]
    fn uris_are_equivalent_as_the_rfc_has_it() {
        let are_same = |one: &str, two: &str| {
            let (one, two) = (Uri::parse(one.as_bytes()).unwrap(), Uri::parse(two.as_bytes()).unwrap());
            assert_eq!(one.is_equivalent(&two), two.is_equivalent(&one));
            one.is_equivalent(&two)
        };
        for (one, two) in [
            ("sip:%61lice@atlanta.com;transport=TCP", "sip:alice@AtLanTa.CoM;Transport=tcp"),
            ("sip:carol@chicago.com", "sip:carol@chicago.com;newparam=5"),
            ("sip:carol@chicago.com;newparam=5", "sip:carol@chicago.com;security=on"),
            (
                "sip:biloxi.com;transport=tcp;method=REGISTER?to=sip:bob%40biloxi.com",
                "sip:biloxi.com;method=REGISTER;transport=tcp?to=sip:bob%40biloxi.com",
            ),
            (
                "sip:alice@atlanta.com?subject=project%20x&priority=urgent",
                "sip:alice@atlanta.com?priority=urgent&subject=project%20x",
            ),
        ] {
            assert!(are_same(one, two), "{one} {two}");
        }
        for (one, two) in [
            ("SIP:ALICE@AtLanTa.CoM;Transport=udp", "sip:alice@AtLanTa.CoM;Transport=UDP"),
            ("sip:bob@biloxi.com", "sip:bob@biloxi.com:5060"),
            ("sip:bob@biloxi.com", "sip:bob@biloxi.com;transport=udp"),
            ("sip:bob@biloxi.com", "sip:bob@biloxi.com:6000;transport=tcp"),
            ("sip:carol@chicago.com", "sip:carol@chicago.com?Subject=next%20meeting"),
            ("sip:bob@phone21.boxesbybob.com", "sip:bob@192.0.2.4"),
            ("sip:carol@chicago.com;security=on", "sip:carol@chicago.com;security=off"),
            ("sip:carol@chicago.com", "sips:carol@chicago.com"),
            ("sip:carol@chicago.com", "sip:carol@chicago.com;maddr=192.0.2.4"),
        ] {
            assert!(!are_same(one, two), "{one} {two}");
        }
    }
}
