//! Processes of this binary that have fewer rights than others: how they are started, and what they give up.

mod child;
mod filter;
mod rights;

pub(crate) use child::{Child, Parent};
pub(crate) use filter::Network;
pub(crate) use rights::{GATE, KEYS, confine, keep};
