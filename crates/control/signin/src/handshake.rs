//! The handshake of a sign-in: `Noise_NKpsk0_25519_ChaChaPoly_SHA256`.
//!
//! Message 1 goes with the credentials, message 2 with the answer that lets the agent in. The prologue covers what was
//! asked for and of whom, so that a request which somebody relays from another address, or changes, fails. The
//! pre-shared key comes from the digest's HA1: only who knows the user's secret makes a message 1 that fits, and only the
//! frontend whose key the site certified a message 2.
//!
//! What was granted is known only after the gate has answered, and the gate needs the session key for that. So message 2
//! itself is empty, and what it would say, the answer's Contact and body, is covered by a tag under the session secret.

use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::net::SocketAddr;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hkdf::Hkdf;
use sha2::{Digest as _, Sha256};
use sluicegate_grant::mac::SessionSecret;
use sluicegate_sip::message::{HeaderName, Message};
use snow::HandshakeState;
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::{noise::builder, secret::EpochHa1, site::ReplicaKey};

/// The header field that carries certificate, message 1 and message 2.
pub const HEADER: HeaderName = HeaderName::SluicegateNoise;
/// The field in which an agent names the call whose grants are to go on, of another frontend that answers no more: the 24
/// hexadecimal digits that their ids share.
pub const CONTINUES: HeaderName = HeaderName::SluicegateContinues;
/// What an agent's Supported lists that sends with capabilities, and so wants grants whose packets have to prove one.
pub const CAPABILITY_TAG: &str = "sluicegate-capability";
/// What an agent's Supported lists that opens ports for programs whose packets prove nothing but this host's address. It is
/// covered by the handshake, so nobody on the way can put it in; a service's `least_mode` refuses it.
pub const ADDRESS_TAG: &str = "sluicegate-address";
/// Length of either message.
pub const MESSAGE_LEN: usize = 48;
/// Length of what an answer carries: message 2 and the tag.
pub const ANSWER_LEN: usize = MESSAGE_LEN + TAG_LEN;

const TAG_LEN: usize = 32;
const PATTERN: &str = "Noise_NKpsk0_25519_ChaChaPoly_SHA256";

/// Why a sign-in does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignInError {
    /// A header field is missing or cannot be read.
    #[error("the handshake is missing or cannot be read")]
    Malformed,
    /// The handshake fails: the other end lacks a key, or something was changed on the way.
    #[error("the handshake fails: somebody changed or relayed it, or the other end is not who it says")]
    Handshake,
    /// The answer was changed on the way.
    #[error("the answer was changed on its way")]
    Answer,
}

/// What an agent asks for, and of whom: everything that the handshake binds.
#[derive(Debug, Clone, Copy)]
pub struct Proposal<'a> {
    /// The request's method.
    pub method: &'a [u8],
    /// The Request-URI.
    pub uri: &'a [u8],
    /// Nonce and client nonce of the digest, as between their quotes.
    pub nonces: (&'a [u8], &'a [u8]),
    /// The values of all Supported fields, joined with a comma.
    pub supported: &'a [u8],
    /// The values of all Contact fields, joined with a comma.
    pub contact: &'a [u8],
    /// The whole body.
    pub body: &'a [u8],
    /// The frontend's address as the agent dialled it.
    pub dialled: SocketAddr,
}

impl Proposal<'_> {
    fn prologue(&self) -> [u8; 32] {
        let dialled = format!("{}", self.dialled);
        let mut hash = Sha256::new();
        hash.update(b"sluicegate sign-in v2\0");
        let parts = [
            self.method,
            self.uri,
            self.nonces.0,
            self.nonces.1,
            self.supported,
            self.contact,
            self.body,
            dialled.as_bytes(),
        ];
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    fn psk(&self, ha1: &EpochHa1) -> Zeroizing<[u8; 32]> {
        let mut psk = Zeroizing::new([0; 32]);
        let salt = [self.nonces.0, self.nonces.1].concat();
        // 32 bytes are never too many for HKDF.
        let _ = Hkdf::<Sha256>::new(Some(&salt), ha1.expose()).expand(b"sluicegate psk v2", &mut *psk);
        psk
    }
}

/// All values of a header field, joined as [`Proposal`] and [`answer_tag`] have them.
#[must_use]
pub fn joined(message: &Message<'_>, name: HeaderName) -> Vec<u8> {
    message.headers_raw(name).collect::<Vec<_>>().join(&b","[..])
}

/// Message 1 and where the agent sent it, as the request says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Message 1.
    pub message: [u8; MESSAGE_LEN],
    /// The frontend's address as the agent dialled it.
    pub dialled: SocketAddr,
}

impl Hello {
    /// The header field's value.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{};to={}", URL_SAFE_NO_PAD.encode(self.message), self.dialled)
    }

    /// Reads it from a request.
    ///
    /// # Errors
    /// [`SignInError::Malformed`].
    pub fn of(message: &Message<'_>) -> Result<Self, SignInError> {
        let value = message.header(HEADER).ok_or(SignInError::Malformed)?;
        let text = core::str::from_utf8(value).map_err(|_| SignInError::Malformed)?;
        let (encoded, dialled) = text.trim().split_once(";to=").ok_or(SignInError::Malformed)?;
        let dialled = dialled.parse().map_err(|_| SignInError::Malformed)?;
        Ok(Self { message: decode(encoded.as_bytes())?, dialled })
    }
}

/// The agent's end, between message 1 and message 2.
pub struct Initiator(Box<HandshakeState>);

impl Initiator {
    /// Begins a handshake with the frontend that has the key `replica`; gives message 1. `seed` is 32 secret random bytes,
    /// used for this alone.
    ///
    /// # Errors
    /// [`SignInError::Handshake`] if the key is none.
    pub fn begin(
        seed: [u8; 32],
        replica: &[u8; 32],
        ha1: &EpochHa1,
        proposal: &Proposal<'_>,
    ) -> Result<(Self, [u8; MESSAGE_LEN]), SignInError> {
        let psk = proposal.psk(ha1);
        let prologue = proposal.prologue();
        let built = builder(PATTERN, seed).and_then(|builder| {
            builder.psk(0, &psk)?.prologue(&prologue)?.remote_public_key(replica)?.build_initiator()
        });
        let mut state = built.map_err(|_| SignInError::Handshake)?;
        let mut message = [0; MESSAGE_LEN];
        match state.write_message(&[], &mut message) {
            Ok(MESSAGE_LEN) => Ok((Self(Box::new(state)), message)),
            _ => Err(SignInError::Handshake),
        }
    }

    /// Ends it with the answer that let the agent in; what both ends know then.
    ///
    /// # Errors
    /// [`SignInError`]: then nothing in the answer is to be believed.
    pub fn finish(self, response: &Message<'_>) -> Result<SessionSecret, SignInError> {
        let answer = Answer::of(response)?;
        let mut state = self.0;
        state.read_message(&answer.message, &mut []).map_err(|_| SignInError::Handshake)?;
        let secret = secret_of(&mut state);
        let contact = joined(response, HeaderName::Contact);
        let tag = answer_tag(&secret, &contact, response.body());
        if bool::from(tag.ct_eq(&answer.tag)) { Ok(secret) } else { Err(SignInError::Answer) }
    }
}

impl core::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Initiator(..)")
    }
}

/// The frontend's end: message 2 and what both ends know then. Costs three X25519 operations; to be called only after the
/// digest was right. `seed` is 32 secret random bytes, used for this alone and forgotten.
///
/// # Errors
/// [`SignInError::Handshake`] if message 1 was made for something else, or by somebody without the user's secret.
pub fn respond(
    seed: [u8; 32],
    replica: &ReplicaKey,
    ha1: &EpochHa1,
    proposal: &Proposal<'_>,
    message: &[u8; MESSAGE_LEN],
) -> Result<([u8; MESSAGE_LEN], SessionSecret), SignInError> {
    let psk = proposal.psk(ha1);
    let prologue = proposal.prologue();
    let built = builder(PATTERN, seed).and_then(|builder| {
        builder.psk(0, &psk)?.prologue(&prologue)?.local_private_key(replica.secret())?.build_responder()
    });
    let mut state = built.map_err(|_| SignInError::Handshake)?;
    state.read_message(message, &mut []).map_err(|_| SignInError::Handshake)?;
    let mut answer = [0; MESSAGE_LEN];
    match state.write_message(&[], &mut answer) {
        Ok(MESSAGE_LEN) => Ok((answer, secret_of(&mut state))),
        _ => Err(SignInError::Handshake),
    }
}

/// What an answer carries: message 2, and the tag over what was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Message 2.
    pub message: [u8; MESSAGE_LEN],
    /// [`answer_tag`] of the answer.
    pub tag: [u8; TAG_LEN],
}

impl Answer {
    /// The header field's value.
    #[must_use]
    pub fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode([&self.message[..], &self.tag].concat())
    }

    fn of(response: &Message<'_>) -> Result<Self, SignInError> {
        let value = response.header(HEADER).ok_or(SignInError::Malformed)?;
        let bytes: [u8; ANSWER_LEN] = decode(value.trim_ascii())?;
        let (mut message, mut tag) = ([0; MESSAGE_LEN], [0; TAG_LEN]);
        message.copy_from_slice(&bytes[..MESSAGE_LEN]);
        tag.copy_from_slice(&bytes[MESSAGE_LEN..]);
        Ok(Self { message, tag })
    }
}

/// What proves that a frontend granted this: 32 bytes of HKDF-Expand over
/// `SHA-256(length of contact, 8 bytes ‖ contact ‖ body)`. `contact` is the values of all Contact fields of the answer,
/// joined with a comma.
#[must_use]
pub fn answer_tag(secret: &SessionSecret, contact: &[u8], body: &[u8]) -> [u8; TAG_LEN] {
    let mut hash = Sha256::new();
    hash.update((contact.len() as u64).to_be_bytes());
    hash.update(contact);
    hash.update(body);
    secret.confirm(&hash.finalize().into())
}

fn secret_of(state: &mut HandshakeState) -> SessionSecret {
    let (mut first, mut second) = state.dangerously_get_raw_split();
    let secret = SessionSecret::extract(state.get_handshake_hash(), (&first, &second));
    first.zeroize();
    second.zeroize();
    secret
}

fn decode<const N: usize>(text: &[u8]) -> Result<[u8; N], SignInError> {
    let mut bytes = [0; N];
    match URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
        Ok(len) if len == N => Ok(bytes),
        _ => Err(SignInError::Malformed),
    }
}

#[cfg(test)]
mod tests;
