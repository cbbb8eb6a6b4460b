//! What an agent does where no UDP passes: SIP over TLS to the frontend, and packets over TLS to the gate.

mod link;
mod sip;
mod stack;
mod trust;
mod tunnel;

use std::{net::SocketAddr, time::Duration};

pub use self::trust::{Trust, TrustedError};
pub(crate) use self::{
    sip::SipStream,
    stack::Stream,
    tunnel::{Datagrams, Tunnel},
};

/// How long a connection may take, with its TLS handshake.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How a site is reached where no UDP passes.
#[derive(Debug, Clone)]
pub struct Fallback {
    /// Which certificates are the site's.
    pub trust: Trust,
    /// The port at which its frontends take SIP over TLS.
    pub sip_port: u16,
    /// Where its gate takes packets over TLS.
    pub tunnel: Option<SocketAddr>,
    /// Hears over what all goes, each time that this changes.
    pub told: fn(&str),
}
