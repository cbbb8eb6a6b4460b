use core::fmt;

use sha2::Digest as _;
use zeroize::Zeroize as _;

use super::Algorithm;

/// `H(user:realm:password)`: all that a server must know of a password. Erased when dropped, never shown.
#[derive(Clone)]
pub struct Ha1(Output);

impl Ha1 {
    /// As stored for MD5.
    #[must_use]
    pub fn from_md5(bytes: [u8; 16]) -> Self {
        let mut wide = [0; 32];
        wide[..16].copy_from_slice(&bytes);
        Self(Output { algorithm: Algorithm::Md5, bytes: wide })
    }

    /// As stored for SHA-256.
    #[must_use]
    pub const fn from_sha256(bytes: [u8; 32]) -> Self {
        Self(Output { algorithm: Algorithm::Sha256, bytes })
    }

    pub(super) const fn dummy(algorithm: Algorithm) -> Self {
        Self(Output { algorithm, bytes: [0x5a; 32] })
    }

    /// The hash that made it.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.0.algorithm
    }

    /// 16 bytes for MD5, 32 for SHA-256. Secret.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Ha1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ha1({})", self.algorithm().name())
    }
}

/// `H(user:realm:password)` (RFC 7616 section 3.4.2).
#[must_use]
pub fn ha1(algorithm: Algorithm, user: &str, realm: &str, password: &str) -> Ha1 {
    Ha1(digest(algorithm, &[user.as_bytes(), b":", realm.as_bytes(), b":", password.as_bytes()]))
}

/// The `response` parameter (RFC 7616 section 3.4.1, `qop=auth`). `nc` is its eight hexadecimal digits.
pub(super) fn response(ha1: &Ha1, method: &[u8], uri: &[u8], nonce: &[u8], nc: &[u8], cnonce: &[u8]) -> Output {
    let ha2 = digest(ha1.algorithm(), &[method, b":", uri]);
    let mut ha1_hex = ha1.0.hex();
    let ha2_hex = ha2.hex();
    let parts = [ha1_hex.as_bytes(), b":", nonce, b":", nc, b":", cnonce, b":auth:", ha2_hex.as_bytes()];
    let output = digest(ha1.algorithm(), &parts);
    ha1_hex.bytes.zeroize();
    output
}

fn digest(algorithm: Algorithm, parts: &[&[u8]]) -> Output {
    let mut bytes = [0; 32];
    match algorithm {
        Algorithm::Md5 => {
            let mut hasher = md5::Md5::new();
            parts.iter().for_each(|part| hasher.update(part));
            bytes[..16].copy_from_slice(&hasher.finalize());
        }
        Algorithm::Sha256 => {
            let mut hasher = sha2::Sha256::new();
            parts.iter().for_each(|part| hasher.update(part));
            bytes.copy_from_slice(&hasher.finalize());
        }
    }
    Output { algorithm, bytes }
}

/// What a hash gives: 16 or 32 bytes.
#[derive(Clone)]
pub(super) struct Output {
    pub(super) algorithm: Algorithm,
    pub(super) bytes: [u8; 32],
}

impl Output {
    pub(super) const fn len(algorithm: Algorithm) -> usize {
        match algorithm {
            Algorithm::Md5 => 16,
            Algorithm::Sha256 => 32,
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        let (bytes, _) = self.bytes.split_at(Self::len(self.algorithm));
        bytes
    }

    pub(super) fn hex(&self) -> Hex {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut bytes = [0; 64];
        for (pair, byte) in bytes.chunks_exact_mut(2).zip(self.as_bytes()) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        Hex { bytes, len: 2 * Self::len(self.algorithm) }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

pub(super) struct Hex {
    bytes: [u8; 64],
    len: usize,
}

impl Hex {
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
