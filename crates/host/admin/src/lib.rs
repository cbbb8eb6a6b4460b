//! The HTTP API of a node on a unix socket, and its metrics on loopback.
//!
//! The socket has mode 0600: whoever may connect administers the node. Bodies are JSON; an error is
//! `{"error": "what, and what to do next"}` with a status of 400 or above.

mod actor;
mod api;
mod beside;
pub mod client;
mod metrics;
mod objects;
mod routes;
mod server;

pub use api::Api;
pub use beside::Beside;
pub use server::{ServerError, bind_api, bind_metrics, serve_api, serve_metrics};
