//! What a key holder gives a frontend on another host: sealed to the frontend's key, signed with the site's.
//!
//! `site key 32 | replica key 32 | number 8 | hash 32 | Ed25519 signature 64 | Noise messages`, big-endian, as base64url. The
//! first message of `Noise_N_25519_ChaChaPoly_SHA256` is empty; each of the others carries a part of the content. The
//! signature is over `"sluicegate keys v2\0" ‖ realm ‖ 0 ‖ replica key ‖ number ‖ hash`, the hash is the SHA-256 of the
//! messages, and all of that but the hash is the prologue: whoever changes, replaces or redirects the file has to have the
//! site's key. What is in front of the messages says by itself whether they are worth waiting for.

use alloc::{string::String, vec, vec::Vec};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::{
    noise::builder,
    site::{ReplicaKey, SiteKey, SitePublic},
};

const PATTERN: &str = "Noise_N_25519_ChaChaPoly_SHA256";
const CONTEXT: &[u8] = b"sluicegate keys v2\0";
/// Site key, replica key, number, hash and signature.
const HEAD_LEN: usize = 168;
/// The same as it is written.
pub const SEALED_HEAD_LEN: usize = HEAD_LEN / 3 * 4;
/// The first message: an ephemeral key and a tag.
const FIRST_LEN: usize = 48;
/// Longest Noise message.
const MESSAGE_LEN_MAX: usize = 65_535;
/// What of it is content.
const PART_LEN_MAX: usize = MESSAGE_LEN_MAX - 16;

/// Why a file of keys is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// It is none.
    #[error("this is no file of keys of this version, or it was cut; issue it again with `sluicegate key issue`")]
    Malformed,
    /// It is for another frontend.
    #[error("these keys are for another frontend; copy the file that bears this one's name")]
    Replica,
    /// Another site issued it.
    #[error(
        "these keys were issued by the site {0}, and not by this frontend's; correct `site_key` if that is the right one"
    )]
    Site(SitePublic),
    /// It was changed.
    #[error("the file of keys was changed, or is of another realm; issue it again")]
    Changed,
}

/// What the site says about a file before its content: which it is, of all that were issued to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedHead<'a> {
    /// The realm.
    pub realm: &'a str,
    /// The key of the frontend that it is for.
    pub replica: [u8; 32],
    /// Its number: of a later file it is higher.
    pub number: u64,
}

impl SealedHead<'_> {
    fn said(&self) -> Vec<u8> {
        [CONTEXT, self.realm.as_bytes(), &[0], &self.replica, &self.number.to_be_bytes()].concat()
    }
}

impl SiteKey {
    /// Signs a file with this head and this SHA-256 of its messages.
    #[must_use]
    pub fn sign_sealed(&self, head: &SealedHead<'_>, hash: &[u8; 32]) -> [u8; 64] {
        self.sign(&[&head.said()[..], hash].concat())
    }
}

/// Seals `content` to the frontend that `head` names. `seed` is 32 secret random bytes, used for this alone; `sign` gives what
/// [`SiteKey::sign_sealed`] gives for a hash.
///
/// # Errors
/// [`SealError::Malformed`] if the frontend's key is none; or as `sign`.
pub fn seal<E: From<SealError>>(
    seed: [u8; 32],
    (site, head): (&SitePublic, &SealedHead<'_>),
    content: &[u8],
    sign: impl FnOnce(&[u8; 32]) -> Result<[u8; 64], E>,
) -> Result<String, E> {
    let messages = encrypt(seed, &head.replica, &head.said(), content).map_err(|_| SealError::Malformed)?;
    let hash = <[u8; 32]>::from(Sha256::digest(&messages));
    let signature = sign(&hash)?;
    let number = head.number.to_be_bytes();
    let parts = [&site.to_bytes()[..], &head.replica, &number, &hash, &signature, &messages];
    Ok(URL_SAFE_NO_PAD.encode(parts.concat()))
}

/// What stands in front of a file for the frontend `replica`: its number, and the hash of what follows. `head` is its first
/// [`SEALED_HEAD_LEN`] bytes, `site` whom this frontend believes.
///
/// # Errors
/// [`SealError`]: then the rest is to be believed as little.
pub fn sealed_head(
    head: &[u8],
    realm: &str,
    replica: &[u8; 32],
    site: &SitePublic,
) -> Result<(u64, [u8; 32]), SealError> {
    let mut bytes = [0; HEAD_LEN];
    match URL_SAFE_NO_PAD.decode_slice(head, &mut bytes) {
        Ok(HEAD_LEN) => {}
        _ => return Err(SealError::Malformed),
    }
    let key = |at: usize| <[u8; 32]>::try_from(&bytes[at..at + 32]).unwrap_or_default();
    let (named, hash) = (SitePublic::from_bytes(key(0)), key(72));
    let number = u64::from_be_bytes(<[u8; 8]>::try_from(&bytes[64..72]).unwrap_or_default());
    let mut signature = [0; 64];
    signature.copy_from_slice(&bytes[104..]);
    if named != *site {
        return Err(SealError::Site(named));
    }
    let said = SealedHead { realm, replica: key(32), number }.said();
    if !site.verifies(&[&said[..], &hash].concat(), &signature) {
        return Err(SealError::Changed);
    }
    if key(32) == *replica { Ok((number, hash)) } else { Err(SealError::Replica) }
}

/// Opens a file of keys: its number, and its content. `site` is whom this frontend believes.
///
/// # Errors
/// [`SealError`]: then nothing in it is to be believed.
pub fn unseal(
    file: &[u8],
    realm: &str,
    replica: &ReplicaKey,
    site: &SitePublic,
) -> Result<(u64, Zeroizing<Vec<u8>>), SealError> {
    let (head, messages) = file.trim_ascii().split_at_checked(SEALED_HEAD_LEN).ok_or(SealError::Malformed)?;
    let (number, hash) = sealed_head(head, realm, replica.public(), site)?;
    let messages = URL_SAFE_NO_PAD.decode(messages).map_err(|_| SealError::Malformed)?;
    if <[u8; 32]>::from(Sha256::digest(&messages)) != hash {
        return Err(SealError::Changed);
    }
    let said = SealedHead { realm, replica: *replica.public(), number }.said();
    decrypt(replica, &said, &messages).map(|content| (number, content)).map_err(|_| SealError::Changed)
}

fn encrypt(seed: [u8; 32], replica: &[u8; 32], said: &[u8], content: &[u8]) -> Result<Vec<u8>, snow::Error> {
    let mut state = builder(PATTERN, seed)?.prologue(said)?.remote_public_key(replica)?.build_initiator()?;
    let mut messages = vec![0; FIRST_LEN];
    state.write_message(&[], &mut messages)?;
    let mut transport = state.into_transport_mode()?;
    let mut message = vec![0; MESSAGE_LEN_MAX];
    for part in content.chunks(PART_LEN_MAX) {
        let len = transport.write_message(part, &mut message)?;
        messages.extend_from_slice(message.get(..len).unwrap_or_default());
    }
    Ok(messages)
}

fn decrypt(replica: &ReplicaKey, said: &[u8], messages: &[u8]) -> Result<Zeroizing<Vec<u8>>, snow::Error> {
    let (first, parts) = messages.split_at_checked(FIRST_LEN).ok_or(snow::Error::Decrypt)?;
    // The receiver of a one-way message makes no key of its own.
    let builder = builder(PATTERN, [0; 32])?.prologue(said)?;
    let mut state = builder.local_private_key(replica.secret())?.build_responder()?;
    state.read_message(first, &mut [])?;
    let mut transport = state.into_transport_mode()?;
    // Room for all of it from the start: growing would leave copies behind.
    let mut content = Zeroizing::new(Vec::with_capacity(parts.len()));
    let mut part = Zeroizing::new(vec![0; MESSAGE_LEN_MAX]);
    for message in parts.chunks(MESSAGE_LEN_MAX) {
        let len = transport.read_message(message, &mut part)?;
        content.extend_from_slice(part.get(..len).unwrap_or_default());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    const NUMBER: u64 = 1_800_000_000_000_000;

    fn sealed(content: &[u8]) -> String {
        let site = SiteKey::from_seed(&[1; 32]);
        let replica = *ReplicaKey::from_seed(&[2; 32]).public();
        let head = SealedHead { realm: "example.net", replica, number: NUMBER };
        seal([3; 32], (&site.public(), &head), content, |hash| Ok::<_, SealError>(site.sign_sealed(&head, hash)))
            .unwrap()
    }

    fn opened(file: &[u8], realm: &str, replica: u8, site: u8) -> Result<Vec<u8>, SealError> {
        let site = SiteKey::from_seed(&[site; 32]).public();
        unseal(file, realm, &ReplicaKey::from_seed(&[replica; 32]), &site).map(|(number, content)| {
            assert_eq!(number, NUMBER);
            content.to_vec()
        })
    }

    #[test]
    fn keys_are_for_one_frontend_of_one_site_and_realm() {
        for len in [0, 1, PART_LEN_MAX, PART_LEN_MAX + 1, 3 * PART_LEN_MAX] {
            let content: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let file = sealed(&content);
            assert_eq!(opened(file.as_bytes(), "example.net", 2, 1), Ok(content), "{len}");
        }
        let file = sealed(b"keys");
        assert_eq!(opened(file.as_bytes(), "example.net", 9, 1), Err(SealError::Replica));
        assert_eq!(opened(file.as_bytes(), "example.org", 2, 1), Err(SealError::Changed));
        let other = opened(file.as_bytes(), "example.net", 2, 9).unwrap_err();
        assert!(other.to_string().contains(&SiteKey::from_seed(&[1; 32]).public().to_string()));
    }

    #[test]
    fn no_bit_of_a_file_of_keys_can_be_changed_and_no_byte_left_out() {
        let file = sealed(b"keys of everybody");
        let bytes = URL_SAFE_NO_PAD.decode(&file).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(opened(URL_SAFE_NO_PAD.encode(&changed).as_bytes(), "example.net", 2, 1).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            let cut = URL_SAFE_NO_PAD.encode(&bytes[..len]);
            assert!(opened(cut.as_bytes(), "example.net", 2, 1).is_err(), "{len} bytes");
        }
        assert_eq!(opened(b"!", "example.net", 2, 1), Err(SealError::Malformed));
        let head = |len: usize, site: u8| {
            let (replica, site) = (ReplicaKey::from_seed(&[2; 32]), SiteKey::from_seed(&[site; 32]).public());
            sealed_head(&file.as_bytes()[..len], "example.net", replica.public(), &site).map(|(number, _)| number)
        };
        assert_eq!(head(SEALED_HEAD_LEN, 1), Ok(NUMBER), "the head is believed without the rest");
        assert!(head(SEALED_HEAD_LEN, 9).is_err() && head(SEALED_HEAD_LEN - 1, 1).is_err());
        // With a right signature over a head that lacks its messages there is nothing to open either.
        assert!(!file.contains("a2V5cyBvZiBldmVyeWJvZHk"), "the content is not in clear");
    }
}
