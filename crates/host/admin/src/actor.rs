//! Who asks over the control socket, for the audit log.

use std::convert::Infallible;

use axum::{
    extract::{ConnectInfo, FromRequestParts, connect_info::Connected},
    http::request::Parts,
    serve::IncomingStream,
};
use sluicegate_store::audit::Event;
use tokio::net::UnixListener;

use crate::Api;

/// Names who asked, where a process of the same node hands a question on.
pub(crate) const HEADER: &str = "sluicegate-uid";
/// A user id that the system has not told.
const UNKNOWN: u32 = u32::MAX;

/// User id of the process that asks, as the kernel says it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Actor(pub(crate) u32);

impl Connected<IncomingStream<'_, UnixListener>> for Actor {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self(stream.io().peer_cred().map_or(UNKNOWN, |peer| peer.uid()))
    }
}

impl FromRequestParts<Api> for Actor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        let named = parts.headers.get(HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        // Only where nobody asks but this node's own gate: elsewhere anybody could write the header.
        if let Some(named) = named.filter(|_| api.is_beside) {
            return Ok(Self(named));
        }
        // Without a connection it is a command that works on files, for whoever runs it.
        let peer = parts.extensions.get::<ConnectInfo<Self>>().map(|info| info.0);
        Ok(peer.unwrap_or_else(|| Self(nix::unistd::Uid::current().as_raw())))
    }
}

impl Api {
    /// Writes down that somebody changed something.
    pub(crate) fn changed(&self, actor: Actor, change: &'static str, of: &str) {
        if let Some(audit) = &self.audit {
            audit.write(&Event::Changed { uid: actor.0, change, of: of.to_owned() }, 0);
        }
    }
}
