//! What moves through a site: telephones, transfers and sign-ins, floods and other attackers, a link emulator, observers.

pub mod attack;
pub mod client;
pub mod count;
mod datagrams;
pub mod emulator;
pub mod forward;
mod listen;
pub mod passing;
pub mod sample;
pub mod seen;
pub mod sipload;
mod sockets;
pub mod stream;
pub mod worker;
