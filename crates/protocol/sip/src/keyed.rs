//! Keyed hashes of several things at once.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher24;

/// As much as is hashed in one go. What a flood is told apart by is shorter.
const GATHERED: usize = 192;

/// SipHash-2-4 over all parts, each with its length in front, so that no two lists of parts look alike. No part may be longer than
/// 65,535 bytes, as nothing in a message is.
#[must_use]
pub fn keyed_hash(key: &[u8; 16], parts: &[&[u8]]) -> u64 {
    let hasher = SipHasher24::new_with_key(key);
    // Each write by itself costs as much as to hash some twenty bytes.
    let mut gathered = [0; GATHERED];
    if let Some(len) = gather(&mut gathered, parts) {
        return hasher.hash(gathered.get(..len).unwrap_or_default());
    }
    streamed(hasher, parts)
}

/// Writes all parts to `out`; how much that was, if there was room.
fn gather(out: &mut [u8], parts: &[&[u8]]) -> Option<usize> {
    let mut at = 0;
    for part in parts {
        let (place, rest) = out.get_mut(at..)?.split_first_chunk_mut()?;
        *place = (part.len() as u16).to_le_bytes();
        rest.get_mut(..part.len())?.copy_from_slice(part);
        at += place.len() + part.len();
    }
    Some(at)
}

fn streamed(mut hasher: SipHasher24, parts: &[&[u8]]) -> u64 {
    for part in parts {
        hasher.write(&(part.len() as u16).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 16] = [7; 16];

    #[test]
    fn what_is_too_long_to_be_gathered_has_the_hash_that_it_would_have() {
        let long = [b'x'; 2 * GATHERED];
        for first in 0..GATHERED {
            for second in [0, 1, 7, GATHERED - 4, GATHERED] {
                let parts = [&long[..first], &long[..second]];
                let streamed = streamed(SipHasher24::new_with_key(&KEY), &parts);
                assert_eq!(keyed_hash(&KEY, &parts), streamed, "{first} and {second} bytes");
            }
        }
    }

    #[test]
    fn parts_that_are_cut_elsewhere_have_another_hash() {
        let hashes = [&[&b"ab"[..], b"c"][..], &[b"a", b"bc"], &[b"abc"], &[b"abc", b""], &[b"", b"abc"]];
        for (nth, parts) in hashes.iter().enumerate() {
            assert!(hashes[..nth].iter().all(|other| keyed_hash(&KEY, other) != keyed_hash(&KEY, parts)));
        }
    }
}
