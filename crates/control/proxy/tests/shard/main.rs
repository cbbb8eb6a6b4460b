//! Behaviour of a shard on a virtual clock.

mod authentication;
mod authority;
mod bounds;
mod declared;
mod floods;
mod overload;
mod registration;
mod relayed;
mod servers;
mod session_keys;
mod signin;
#[path = "../site/mod.rs"]
mod site;
mod streams;
mod watching;
