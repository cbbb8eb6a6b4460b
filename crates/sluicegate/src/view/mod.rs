//! Terminal views.

pub(crate) mod demo;
