//! How agents sign in, without sockets, clocks and randomness of its own.
//!
//! - [`UserSecret`] is what an agent and the key holder share; from it comes a password for each epoch and frontend.
//! - [`SiteKey`] certifies the [`ReplicaKey`] of each frontend; agents pin its public half.
//! - [`seal`] and [`unseal`] take a frontend's keys from a key holder on another host to it.
//! - [`Initiator`] and [`respond`] are the two ends of the handshake that proves both ends to each other, binds what was
//!   asked for and leaves a session secret that neither password nor stored key gives later.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod handshake;
mod noise;
mod sealed;
mod secret;
mod site;

pub use handshake::{
    ADDRESS_TAG, ANSWER_LEN, Answer, CAPABILITY_TAG, CONTINUES, HEADER, Hello, Initiator, MESSAGE_LEN, Proposal,
    SignInError, answer_tag, joined, respond,
};
pub use sealed::{SEALED_HEAD_LEN, SealError, SealedHead, seal, sealed_head, unseal};
pub use secret::{EpochHa1, SECRET_LEN, UserSecret};
pub use site::{CERTIFICATE_LEN, Certificate, CertificateError, ReplicaKey, SiteKey, SitePublic, key_of, key_text};
