//! SIP messages, transactions, digest and session descriptions without I/O.
//!
//! Everything here works on slices that the caller owns. [`message::Message`] indexes a datagram without allocating;
//! fields are parsed only when asked for; answers and forwarded messages are written into a buffer that the caller
//! reuses. There is no clock, socket or randomness: time, keys and tags are passed in.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod base64url;
pub mod cookie;
pub mod dialog;
pub mod digest;
mod keyed;
pub mod message;
pub mod nonce;
pub mod replay;
pub mod sdp;
pub mod stream;
pub mod stun;
pub mod transaction;
pub mod ua;
pub mod uri;
pub mod write;

pub use base64url::Base64Url;
pub use keyed::keyed_hash;
