//! Via (RFC 3261 section 20.42, RFC 3581).

use super::{
    Fault, HeaderName, Param, Params,
    scan::{Class, Cursor, decimal_u16},
};
use crate::uri::Host;

/// What carries messages from one hop to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// `UDP`
    Udp,
    /// `TCP`
    Tcp,
    /// `TLS`
    Tls,
}

impl Transport {
    /// The token in a Via value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
        }
    }

    /// The `transport` parameter of a URI, and the name that people write.
    #[must_use]
    pub const fn param(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }

    /// The transport that has this name, in any case.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        [Self::Udp, Self::Tcp, Self::Tls].into_iter().find(|known| name.eq_ignore_ascii_case(known.param().as_bytes()))
    }

    /// Whether what is sent arrives or the connection fails, so that no transaction sends anything again
    /// (RFC 3261 section 17).
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Udp)
    }
}

/// The `rport` parameter (RFC 3581).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rport {
    /// Not there: the client wants the answer at the port in `sent-by`.
    Absent,
    /// There without a value: the client asks for the answer at its source port.
    Asked,
    /// Filled in by the server.
    Port(u16),
}

/// One Via value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Via<'a> {
    /// Transport of the hop; `None` if it is another than those.
    pub transport: Option<Transport>,
    /// Host of `sent-by`.
    pub host: Host<'a>,
    /// Port of `sent-by`; the transport's default if `None`.
    pub port: Option<u16>,
    /// Transaction identifier.
    pub branch: Option<&'a [u8]>,
    /// Answer to the source port?
    pub rport: Rport,
    /// Source address as a server before us saw it.
    pub received: Option<&'a [u8]>,
    /// All parameters.
    pub params: Params<'a>,
    /// Protocol and `sent-by` as written.
    pub head: &'a [u8],
    /// How much of the header field this value takes: what lies behind is the comma and the next values.
    pub len: usize,
    /// How many `received` and `rport` parameters there are.
    of_server: u8,
}

/// Begins each branch that identifies its transaction alone (RFC 3261 section 8.1.1.7).
pub const MAGIC_COOKIE: &[u8] = b"z9hG4bK";

impl<'a> Via<'a> {
    /// Parses the first value of a Via header field.
    ///
    /// # Errors
    /// [`Fault::Malformed`].
    pub fn parse(value: &'a [u8]) -> Result<Self, Fault> {
        Self::parse_first(value).ok_or(Fault::Malformed(HeaderName::Via))
    }

    fn parse_first(value: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(value);
        if !cursor.eat_all(b"SIP/2.0/") {
            let is_sip = cursor.token().eq_ignore_ascii_case(b"SIP");
            if !is_sip || !cursor.eat_spaced(b'/') || cursor.token().is_empty() || !cursor.eat_spaced(b'/') {
                return None;
            }
        }
        cursor.skip_lws();
        let token = Some(cursor.token()).filter(|token| !token.is_empty())?;
        let transport = Transport::named(token);
        let before = cursor.position();
        cursor.skip_lws();
        if cursor.position() == before {
            return None;
        }
        let host = Host::parse_prefix(&mut cursor)?;
        let mut head = cursor.since(0);
        let mut ahead = cursor.clone();
        let mut port = None;
        if ahead.eat_spaced(b':') {
            port = Some(decimal_u16(ahead.take(Class::DIGIT)).filter(|port| *port != 0)?);
            head = ahead.since(0);
            cursor = ahead;
        }
        let mut via = Self {
            transport,
            host,
            port,
            branch: None,
            rport: Rport::Absent,
            received: None,
            params: Params::default(),
            head,
            len: 0,
            of_server: 0,
        };
        via.params = Params::parse(&mut cursor, |param| via.take(param))?;
        cursor.skip_lws();
        let len = cursor.position();
        let next_follows = cursor.eat(b',') && {
            cursor.skip_lws();
            cursor.peek().is_some_and(|byte| byte != b',')
        };
        if len != value.len() && !next_follows {
            return None;
        }
        Some(Self { len, ..via })
    }

    fn take(&mut self, param: Param<'a>) -> Option<()> {
        if param.name.eq_ignore_ascii_case(b"branch") {
            // Two branches would let us and the next element see different transactions.
            if self.branch.replace(param.value?).is_some() {
                return None;
            }
        } else if param.name.eq_ignore_ascii_case(b"received") {
            self.received = Some(param.value?);
            self.of_server = self.of_server.saturating_add(1);
        } else if param.name.eq_ignore_ascii_case(b"rport") {
            self.rport = match param.value {
                None => Rport::Asked,
                Some(port) => Rport::Port(decimal_u16(port)?),
            };
            self.of_server = self.of_server.saturating_add(1);
        }
        Some(())
    }

    /// All parameters but those that are the server's to fill in, as they stand, if they stand together and without white space.
    pub(crate) fn plain_params(&self) -> Option<&'a [u8]> {
        let params = self.params.as_bytes();
        let own = match self.of_server {
            0 => Some(params),
            1 => params.strip_suffix(b";rport"),
            _ => None,
        };
        own.filter(|own| Class::WORD.covers(own))
    }

    /// Whether the branch identifies its transaction by itself (RFC 3261 section 17.2.3).
    #[must_use]
    pub fn has_magic_cookie(&self) -> bool {
        self.branch.is_some_and(|branch| {
            branch.get(..MAGIC_COOKIE.len()).is_some_and(|head| head.eq_ignore_ascii_case(MAGIC_COOKIE))
        })
    }

    pub(super) fn has_empty_branch(&self) -> bool {
        self.branch.is_some_and(|branch| branch.eq_ignore_ascii_case(MAGIC_COOKIE))
    }
}
