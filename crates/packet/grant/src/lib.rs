//! Grants, the signed permissions that gates check, and what proves that a packet belongs to one.
//!
//! A frontend turns an authenticated, permitted request into a [`Grant`]: who may send what to which gate, for how many
//! bytes and until when. Its 136 bytes are signed with the frontend's [`IssuerKey`]; whoever holds the matching
//! [`IssuerPublic`] can check it without asking anyone. [`epoch`]s bound the life of the secrets behind it, [`mac`] seals
//! packets of a grant under its session key, [`relay`] the SIP between a frontend and a gate. Nothing here does I/O, reads a
//! clock or draws randomness.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod epoch;
mod grant;
mod id;
mod issuer;
pub mod mac;
pub mod relay;
pub mod tunnel;

pub use grant::{
    ANY_PORTS, DataMode, EndCause, FLAG_PROVES_ADDRESS, GRANT_LEN, GRANT_VERSION, Grant, GrantError, Protocol,
};
pub use id::{CALL_ID_LEN, GrantId, GrantIdError};
pub use issuer::{ISSUER_ID_LEN, IssuerKey, IssuerPublic, SIGNATURE_LEN, SIGNED_GRANT_LEN, SignedGrant, VerifyError};
