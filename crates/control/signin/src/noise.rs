//! Noise with the caller's random bytes: a protocol crate has none of its own.

use alloc::boxed::Box;

use snow::{
    Builder,
    params::{CipherChoice, DHChoice, HashChoice, NoiseParams},
    resolvers::{CryptoResolver, DefaultResolver},
    types::{Cipher, Dh, Hash, Random},
};
use zeroize::{Zeroize as _, Zeroizing};

/// One end of `pattern`; `seed` is 32 secret random bytes, used for its one ephemeral key alone.
pub(crate) fn builder<'a>(pattern: &str, seed: [u8; 32]) -> Result<Builder<'a>, snow::Error> {
    let params: NoiseParams = pattern.parse()?;
    Ok(Builder::with_resolver(params, Box::new(Seeded(seed))))
}

/// The default algorithms with the caller's random bytes, enough for the one ephemeral key that each end makes.
struct Seeded([u8; 32]);

impl Drop for Seeded {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl CryptoResolver for Seeded {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(Zeroizing::new(self.0)))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Random bytes that are given out once.
struct Once(Option<Zeroizing<[u8; 32]>>);

impl Random for Once {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        match self.0.take() {
            Some(bytes) if out.len() == bytes.len() => {
                out.copy_from_slice(&*bytes);
                Ok(())
            }
            _ => Err(snow::Error::Rng),
        }
    }
}
