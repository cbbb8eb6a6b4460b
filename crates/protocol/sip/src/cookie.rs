//! Identifiers that come back from outside and carry their own proof, so that a call needs no memory at the frontend:
//! the To-tag that names a call, and the Record-Route parameter that names a relayed call.

use core::fmt;

use siphasher::sip::SipHasher24;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

use crate::base64url::{self, Base64Url};

const MAC_LEN: usize = 8;
/// Bytes that a To-tag carries: the call, the shard that made it, and a proof of the flow that it was made for.
pub const TAGGED_LEN: usize = CALL_PREFIX_LEN + 1 + 8;
/// Bytes that the grants of one call share.
pub const CALL_PREFIX_LEN: usize = 12;
/// Length of a To-tag made here.
pub const TO_TAG_LEN: usize = 39;
/// Length of a route cookie.
pub const ROUTE_COOKIE_LEN: usize = 27;

/// Makes and checks tags and cookies. All frontends of a site share one key, which outlives a restart.
#[derive(Clone)]
pub struct CookieKey([u8; 16]);

/// Keeps a To-tag from passing as a route cookie and the other way round.
#[derive(Clone, Copy)]
enum Use {
    ToTag = 1,
    Route = 2,
}

impl CookieKey {
    /// `key` is random and secret.
    #[must_use]
    pub const fn new(key: [u8; 16]) -> Self {
        Self(key)
    }

    /// The To-tag that carries this.
    #[must_use]
    pub fn to_tag(&self, tagged: &[u8; TAGGED_LEN]) -> Base64Url<TO_TAG_LEN> {
        self.encode::<{ TAGGED_LEN + MAC_LEN }, TO_TAG_LEN>(Use::ToTag, tagged)
    }

    /// What a To-tag carries; `None` if it is not one of ours.
    #[must_use]
    pub fn check_to_tag(&self, tag: &[u8]) -> Option<[u8; TAGGED_LEN]> {
        self.decode::<TAGGED_LEN, { TAGGED_LEN + MAC_LEN }>(Use::ToTag, tag)
    }

    /// The Record-Route parameter that stands for this call.
    #[must_use]
    pub fn route(&self, call: &[u8; CALL_PREFIX_LEN]) -> Base64Url<ROUTE_COOKIE_LEN> {
        self.encode::<{ CALL_PREFIX_LEN + MAC_LEN }, ROUTE_COOKIE_LEN>(Use::Route, call)
    }

    /// The call that a Route parameter stands for; `None` if it is not one of ours.
    #[must_use]
    pub fn check_route(&self, cookie: &[u8]) -> Option<[u8; CALL_PREFIX_LEN]> {
        self.decode::<CALL_PREFIX_LEN, { CALL_PREFIX_LEN + MAC_LEN }>(Use::Route, cookie)
    }

    fn mac(&self, purpose: Use, id: &[u8]) -> [u8; MAC_LEN] {
        let mut input = [0; 1 + TAGGED_LEN];
        input[0] = purpose as u8;
        for (to, from) in input.iter_mut().skip(1).zip(id) {
            *to = *from;
        }
        SipHasher24::new_with_key(&self.0).hash(&input).to_be_bytes()
    }

    fn encode<const BYTES: usize, const TEXT: usize>(&self, purpose: Use, id: &[u8]) -> Base64Url<TEXT> {
        let mut bytes = [0; BYTES];
        let (id_part, mac_part) = bytes.split_at_mut(BYTES - MAC_LEN);
        id_part.copy_from_slice(id);
        mac_part.copy_from_slice(&self.mac(purpose, id));
        Base64Url::encode(&bytes)
    }

    fn decode<const ID: usize, const BYTES: usize>(&self, purpose: Use, text: &[u8]) -> Option<[u8; ID]> {
        let bytes: [u8; BYTES] = base64url::decode(text)?;
        let (id, mac) = bytes.split_at(BYTES - MAC_LEN);
        if bool::from(self.mac(purpose, id).ct_eq(mac)) { id.try_into().ok() } else { None }
    }
}

impl Drop for CookieKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: [u8; TAGGED_LEN] = [0xa5; TAGGED_LEN];
    const CALL: [u8; 12] = [0x5a; 12];

    #[test]
    fn tags_and_cookies_give_back_what_they_stand_for() {
        let key = CookieKey::new([1; 16]);
        assert_eq!(key.check_to_tag(key.to_tag(&GRANT).as_bytes()), Some(GRANT));
        assert_eq!(key.check_route(key.route(&CALL).as_bytes()), Some(CALL));
    }

    #[test]
    fn a_changed_or_foreign_text_stands_for_nothing() {
        let key = CookieKey::new([1; 16]);
        let other = CookieKey::new([2; 16]);
        assert_eq!(other.check_to_tag(key.to_tag(&GRANT).as_bytes()), None);
        for position in 0..TO_TAG_LEN {
            let mut text = key.to_tag(&GRANT).0;
            text[position] = if text[position] == b'A' { b'B' } else { b'A' };
            assert_eq!(key.check_to_tag(&text), None);
        }
        for position in 0..ROUTE_COOKIE_LEN {
            let mut text = key.route(&CALL).0;
            text[position] = if text[position] == b'A' { b'B' } else { b'A' };
            assert_eq!(key.check_route(&text), None);
        }
        for text in [&b""[..], b"1928301774", &[b'='; TO_TAG_LEN], &[b'A'; TO_TAG_LEN - 1], &[b'A'; TO_TAG_LEN + 1]] {
            assert_eq!((key.check_to_tag(text), key.check_route(text)), (None, None));
        }
    }

    #[test]
    fn one_use_does_not_pass_for_the_other() {
        let key = CookieKey::new([1; 16]);
        let mut as_grant = [0; TAGGED_LEN];
        as_grant[..12].copy_from_slice(&CALL);
        assert_ne!(key.mac(Use::ToTag, &as_grant), key.mac(Use::Route, &as_grant));
    }
}
