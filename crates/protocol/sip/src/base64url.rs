//! Bytes as they stand in header fields: base64url without padding, of a length that is known.

use core::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

/// Letters, digits, `-` and `_`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Base64Url<const LEN: usize>(pub(crate) [u8; LEN]);

impl<const LEN: usize> Base64Url<LEN> {
    /// The text of `bytes`, of which there are three quarters of `LEN`.
    pub(crate) fn encode(bytes: &[u8]) -> Self {
        let mut text = [0; LEN];
        let written = URL_SAFE_NO_PAD.encode_slice(bytes, &mut text);
        debug_assert_eq!(written, Ok(LEN));
        Self(text)
    }

    /// The text.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// What is encoded may be a secret of the one who is to send it back.
impl<const LEN: usize> fmt::Debug for Base64Url<LEN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Base64Url")
    }
}

/// The bytes that `text` stands for; `None` if it is not the text of so many.
pub(crate) fn decode<const BYTES: usize>(text: &[u8]) -> Option<[u8; BYTES]> {
    // A length that fits is checked first: the decoder wants room for whole groups.
    if text.len() != (BYTES * 4).div_ceil(3) {
        return None;
    }
    let mut bytes = [0; BYTES];
    let len = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
    (len == BYTES).then_some(bytes)
}
