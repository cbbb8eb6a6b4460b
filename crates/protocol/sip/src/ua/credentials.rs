use alloc::{borrow::ToOwned as _, string::String, vec, vec::Vec};
use core::net::SocketAddr;

use super::Field;
use crate::{
    digest::{Answer, Challenge, ha1, strongest},
    message::{HeaderName, Message},
};

/// A 401 or 407 and what it answers.
#[derive(Debug, Clone, Copy)]
pub struct Challenged<'a, 'm> {
    /// Random, and not used twice: a client nonce.
    pub token: &'a str,
    /// The server that was asked.
    pub target: SocketAddr,
    /// The request as it was sent.
    pub request: &'a Message<'m>,
    /// The response.
    pub response: &'a Message<'m>,
}

impl Challenged<'_, '_> {
    /// Where the challenges are in the response, and where their answer goes in the next request.
    #[must_use]
    pub fn fields(&self) -> (HeaderName, HeaderName) {
        match self.response.status() {
            Some(401) => (HeaderName::WwwAuthenticate, HeaderName::Authorization),
            _ => (HeaderName::ProxyAuthenticate, HeaderName::ProxyAuthorization),
        }
    }
}

/// How a user agent proves who it is. One for each leg, so that it may remember what it sent.
///
/// Digest with a password is [`Password`]. What else a site asks for, such as a handshake in header fields of its own, is
/// another implementation: the user agent only carries the fields.
pub trait Credentials {
    /// The header fields that answer a challenge; `None` if there is no answer, and then the response is final.
    fn answer(&mut self, challenged: Challenged<'_, '_>) -> Option<Vec<Field>>;

    /// Whether a 2xx comes from whom the request was meant for. Nothing in one that does not is used, not even where it
    /// wants its ACK.
    fn believe(&mut self, response: &Message<'_>) -> bool {
        let _ = response;
        true
    }
}

/// A user's name and password in one realm (RFC 7616).
#[derive(Clone)]
pub struct Password {
    user: String,
    realm: String,
    password: String,
    has_answered: bool,
}

impl Password {
    /// Answers challenges of `realm` only: whoever asks for another realm would learn a hash of this password.
    #[must_use]
    pub fn new(user: &str, realm: &str, password: &str) -> Self {
        let (user, realm, password) = (user.to_owned(), realm.to_owned(), password.to_owned());
        Self { user, realm, password, has_answered: false }
    }
}

impl core::fmt::Debug for Password {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Password").field("user", &self.user).field("realm", &self.realm).finish_non_exhaustive()
    }
}

impl Credentials for Password {
    /// A second challenge that does not call the nonce stale means that the password is wrong.
    fn answer(&mut self, challenged: Challenged<'_, '_>) -> Option<Vec<Field>> {
        let Challenged { token, request, response, .. } = challenged;
        let (asks, answers) = challenged.fields();
        let is_ours = |value: &&[u8]| {
            Challenge::parse(value).is_ok_and(|challenge| challenge.realm_text().as_deref() == Some(&self.realm))
        };
        let challenge = strongest(response.headers_raw(asks).filter(is_ours))?;
        if core::mem::replace(&mut self.has_answered, true) && !challenge.stale {
            return None;
        }
        let ha1 = ha1(challenge.algorithm, &self.user, &self.realm, &self.password);
        let (method, uri) = (request.method()?.as_bytes(), request.request_uri()?);
        let mut value = Vec::new();
        Answer { challenge: &challenge, username: &self.user, ha1: &ha1, method, uri, cnonce: token, nc: 1 }
            .write(&mut value);
        Some(vec![(answers.as_str(), value)])
    }
}
