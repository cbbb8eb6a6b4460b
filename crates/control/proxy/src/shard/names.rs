//! Names and addresses in messages that are passed on: a caller is who it has proved to be, and nobody outside learns where
//! a service lives inside.

use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::{HeaderName, Message, NameAddr, Transport},
    uri::{Host, Uri, unescape},
    write::ForwardError,
};

use super::{context::Context, ladder::Asked, settings::Settings};
use crate::transmits::Flow;

/// Header fields that are between client and frontend, besides its credentials for us, and those by which a caller would say
/// who it is besides From: the frontend says that (RFC 3325 section 5), in P-Asserted-Identity.
pub(super) const NOT_FORWARDED: &[HeaderName] = &[
    HeaderName::SluicegateContinues,
    HeaderName::SluicegateNoise,
    HeaderName::PAssertedIdentity,
    HeaderName::PPreferredIdentity,
    HeaderName::RemotePartyId,
    HeaderName::HistoryInfo,
    HeaderName::Diversion,
    HeaderName::PServedUser,
    HeaderName::PCalledPartyId,
    HeaderName::PChargingVector,
];

/// What of a service's answer a client does not get as it is.
pub(super) const HIDDEN: &[HeaderName] = &[HeaderName::PAssertedIdentity, HEADER, HeaderName::Contact];

/// The parameter that says, in a Contact as a client knows it, where that is inside.
const PLACE: &str = "sgat";
/// The parameter of a URI that says what carries messages to it.
const TRANSPORT: &[u8] = b"transport";
const SIP_PORT_DEFAULT: u16 = 5060;

/// Most places that a client is redirected to.
pub(super) const REDIRECTED_MAX: usize = 8;

/// Who calls without a name writes this (RFC 3323 section 4.1.1.3).
const ANONYMOUS: (&str, &str) = ("anonymous", "anonymous.invalid");

impl Settings {
    /// Whether From is this user's own address, or nobody's.
    pub(super) fn is_from(&self, asked: Asked<'_>, user: &str) -> bool {
        let Ok(uri) = Uri::parse(asked.essentials.from.uri) else { return false };
        is_anonymous(&uri) || self.is_address_of(&uri, user)
    }

    /// Whether a URI is this user's address here.
    pub(super) fn is_address_of(&self, uri: &Uri<'_>, user: &str) -> bool {
        uri.is_sip() && uri.user_is(user) && self.is_our_host(uri)
    }

    /// Whether the request names us or our realm: no one else's calls are carried.
    pub(super) fn is_for_us(&self, message: &Message<'_>) -> bool {
        let Some(Ok(uri)) = message.request_uri().map(Uri::parse) else { return false };
        self.is_our_host(&uri)
    }

    /// Whether a URI's host is the realm, or an address that we listen at or that a NAT makes into one.
    fn is_our_host(&self, uri: &Uri<'_>) -> bool {
        let address = uri.host.and_then(|host| host.address());
        uri.host_is(&self.realm) || address.is_some_and(|ip| self.dialled().any(|own| own.ip() == ip))
    }

    /// How many of the first Route values are ours: one, or two where both sides of a call have their own (RFC 5658).
    pub(super) fn own_routes(&self, message: &Message<'_>) -> usize {
        let is_ours = |uri: &[u8]| Uri::parse(uri).is_ok_and(|uri| self.is_our_place(&uri));
        message.routes().take(2).take_while(|route| route.as_ref().is_ok_and(|route| is_ours(route.uri))).count()
    }

    /// Whether a URI is an address and port of ours, or the realm.
    fn is_our_place(&self, uri: &Uri<'_>) -> bool {
        let host = uri.host.and_then(|host| host.address());
        let port = uri.port.unwrap_or(5060);
        uri.host_is(&self.realm) || self.places().any(|own| Some(own.ip()) == host && own.port() == port)
    }
}

impl Context {
    /// A service's Contact as a client may know it: the same user here, and behind it where that is inside, unless that is
    /// where the message came `from`. `None` if there is none that can be written so.
    pub(super) fn outer_contact(&self, message: &Message<'_>, from: Flow, to: Flow) -> Option<Vec<u8>> {
        let contact = message.contact().ok().flatten()?;
        let uri = Uri::parse(contact.uri).ok().filter(Uri::is_sip)?;
        let host = uri.host?;
        let transport = Transport::named(uri.param(TRANSPORT).flatten().unwrap_or(b"udp"));
        let is_there = host.address() == Some(from.peer.ip())
            && uri.port.unwrap_or(SIP_PORT_DEFAULT) == from.peer.port()
            && transport == Some(self.settings.listening(from.listener).transport);
        let place = place_of(&uri)?;
        let token = (!is_there).then(|| self.keys.hide(message.call_id().unwrap_or_default(), place.as_bytes()));
        let token = token.map(|token| format!(";{PLACE}={token}")).unwrap_or_default();
        let outer = at(&uri, &self.settings.place(to));
        Some([b"<", &outer[..], token.as_bytes(), b">"].concat())
    }

    /// The Contact that a client is told of in a service's answer; where it redirects, those that can be dialled here.
    pub(super) fn answer_contact(&self, message: &Message<'_>, from: Flow, to: Flow) -> Option<Vec<u8>> {
        if message.status().is_none_or(|code| code / 100 != 3) {
            return self.outer_contact(message, from, to);
        }
        let contacts = message.contacts().filter_map(Result::ok).filter_map(|contact| self.dialled_contact(&contact));
        let contacts: Vec<_> = contacts.take(REDIRECTED_MAX).collect();
        (!contacts.is_empty()).then(|| contacts.join(&b", "[..]))
    }

    /// Where a service redirects somebody to, as a name of our domain: an address of our own, or what reaches that service when
    /// it is dialled here. `None` for any other, whose place is inside or nobody's business.
    fn dialled_contact(&self, contact: &NameAddr<'_>) -> Option<Vec<u8>> {
        let uri = Uri::parse(contact.uri).ok().filter(Uri::is_sip)?;
        let (user, host) = (user_in(contact.uri)?, uri.host?);
        let is_inside = || self.policy.dialled(&user).is_some_and(|service| host.address() == Some(service.address));
        if !self.settings.is_our_host(&uri) && !is_inside() {
            return None;
        }
        let q = contact.params.value(b"q").map(|q| [b";q=", q].concat()).unwrap_or_default();
        Some([b"<sip:", uri.user?, b"@", self.settings.realm.as_bytes(), b">", &q[..]].concat())
    }

    /// The Request-URI for a service: where we stand in for it, the place that its Contact named, or else that of `hop`.
    pub(super) fn inner_uri(&self, message: &Message<'_>, hop: &[u8]) -> Option<Vec<u8>> {
        let mut uri = Uri::parse(message.request_uri()?).ok().filter(|uri| self.settings.is_our_host(uri))?;
        let token = uri.param(PLACE.as_bytes()).flatten();
        if let Some(place) = token.and_then(|token| self.keys.show(message.call_id().unwrap_or_default(), token)) {
            // It is the last one.
            let end = uri.params.len().saturating_sub(";=".len() + PLACE.len() + token.map_or(0, <[u8]>::len));
            uri.params = uri.params.get(..end)?;
            return Some(at(&uri, &place));
        }
        Some(at(&uri, &place_of(&Uri::parse(hop).ok()?)?))
    }
}

/// Whether a URI names nobody.
pub(super) fn is_anonymous(uri: &Uri<'_>) -> bool {
    uri.user_is(ANONYMOUS.0) && uri.host_is(ANONYMOUS.1)
}

/// The user that a URI names, without escapes.
pub(super) fn user_in(uri: &[u8]) -> Option<String> {
    let user = Uri::parse(uri).ok()?.user?;
    String::from_utf8(unescape(user).collect()).ok()
}

/// Where a URI leads: host, port and transport, as it says them.
pub(super) fn place_of(uri: &Uri<'_>) -> Option<String> {
    let host: Host<'_> = uri.host?;
    let place = uri.port.map_or_else(|| host.to_string(), |port| format!("{host}:{port}"));
    let transport = uri.param(TRANSPORT).flatten().and_then(|name| std::str::from_utf8(name).ok());
    Some(transport.map_or_else(|| place.clone(), |name| format!("{place};transport={name}")))
}

/// The URI with another host, port and transport.
fn at(uri: &Uri<'_>, place: &str) -> Vec<u8> {
    let user = uri.user.map(|user| [user, b"@"].concat()).unwrap_or_default();
    let is_transport = |param: &&[u8]| {
        param.split(|byte| *byte == b'=').next().is_some_and(|name| name.eq_ignore_ascii_case(TRANSPORT))
    };
    let params = uri.params.split(|byte| *byte == b';').filter(|param| !param.is_empty() && !is_transport(param));
    let others: Vec<u8> = params.flat_map(|param| [b";", param].concat()).collect();
    [b"sip:", &user[..], place.as_bytes(), &others].concat()
}

/// What a request is answered that cannot be passed on.
pub(super) const fn refusal_of(error: ForwardError) -> u16 {
    if matches!(error, ForwardError::NoHops) { 483 } else { 400 }
}
