//! TVA's capabilities, whole: what a destination allowed its senders, and what routers on the way hold them to.
//!
//! [`secrets`] are what routers mint and check with, without state; [`lines`] count the bytes that each capability carried,
//! in bounded memory; a [`router`] puts both to work on packets; [`host`] is what senders and receivers do. Nothing here
//! does I/O, reads a clock or draws randomness.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod host;
pub mod lines;
pub mod router;
pub mod secrets;
