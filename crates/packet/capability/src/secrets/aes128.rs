//! The paper's own hashes (TVA VI): AES-128 as pseudo-random function, and AES-128 in Matyas-Meyer-Oseas mode.

use aes::{
    Aes128Enc, Block,
    cipher::{BlockCipherEncrypt, KeyInit},
};
use sluicegate_wire::capability::{Capability, Limits};

use super::message::Message;

/// The key of the second hash. It is no secret: the hash is only to be one-way.
const COMPRESSION_KEY: [u8; 16] = *b"sluicegate mmo 1";

/// CBC-MAC over whole blocks. Safe because no message is the beginning of another.
pub(super) struct Prf(Aes128Enc);

impl Prf {
    pub(super) fn new(key: &[u8; 16]) -> Self {
        Self(Aes128Enc::new(&(*key).into()))
    }

    #[inline]
    pub(super) fn hash(&self, message: &Message) -> u64 {
        match *message {
            Message::V4(block) => first_half(self.encrypt(block)),
            Message::V6([first, second, third]) => {
                first_half(self.encrypt(self.encrypt(self.encrypt(first) ^ second) ^ third))
            }
        }
    }

    #[inline]
    fn encrypt(&self, block: u128) -> u128 {
        encrypt(&self.0, block)
    }
}

/// The second hash, with its key schedule.
pub(super) struct Compression(Aes128Enc);

impl Compression {
    pub(super) fn new() -> Self {
        Self(Aes128Enc::new(&COMPRESSION_KEY.into()))
    }

    /// One block: the pre-capability, N and T, zeros; encrypted and added to itself.
    #[inline]
    pub(super) fn seal(&self, pre: Capability, limits: Limits) -> Capability {
        let block = sealed_block(pre, limits);
        Capability::new(pre.timestamp(), first_half(encrypt(&self.0, block) ^ block))
    }
}

#[inline]
fn sealed_block(pre: Capability, limits: Limits) -> u128 {
    u128::from(pre.0) << 64 | u128::from(limits.bits()) << 48
}

/// The first 8 bytes of a block as a number; its low 56 bits become the hash.
#[inline]
const fn first_half(block: u128) -> u64 {
    (block >> 64) as u64
}

#[inline]
fn to_block(block: u128) -> Block {
    Block::from(block.to_be_bytes())
}

#[inline]
fn from_block(block: &Block) -> u128 {
    u128::from_be_bytes((*block).into())
}

#[inline]
fn encrypt(key: &Aes128Enc, block: u128) -> u128 {
    let mut block = to_block(block);
    key.encrypt_block(&mut block);
    from_block(&block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_fips_197_appendix_c1_encrypts_to_69c4e0d86a7b0430d8cdb78070b4c55a() {
        let prf = Prf::new(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let plain = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
        let cipher = 0x69c4_e0d8_6a7b_0430_d8cd_b780_70b4_c55a;
        assert_eq!(prf.encrypt(plain), cipher);
    }
}
