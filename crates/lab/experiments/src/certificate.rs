//! The certificate of a SIP server in a lab.

use std::{
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use sluicegate_site::{During as _, LabError, scratch::write_private};
use sluicegate_traffic::stream::{Connecting, Over};

/// A SIP server's certificate, which clients are to believe, and its key.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificate {
    /// Makes one for these addresses in this directory.
    pub(crate) fn make(directory: &Path, addresses: &[Ipv4Addr]) -> Result<Self, LabError> {
        let made = rcgen::generate_simple_self_signed(addresses.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>());
        let made = made.map_err(io::Error::other).during(|| "making a certificate".to_owned())?;
        let [certificate, key] = ["frontend-sip.pem", "frontend-sip.key"].map(|name| directory.join(name));
        write_private(&certificate, &made.cert.pem())
            .and_then(|()| write_private(&key, &made.signing_key.serialize_pem()))
            .during(|| format!("writing {}", directory.display()))?;
        Ok(Self { certificate, key })
    }

    /// The line of `[frontend]` that shows it.
    pub(crate) fn line(&self) -> String {
        let Self { certificate, key } = self;
        format!("tls = {{ certificate = {certificate:?}, key = {key:?} }}\n")
    }

    /// Where it and its key are.
    pub(crate) fn paths(&self) -> [&Path; 2] {
        [&self.certificate, &self.key]
    }

    /// How to reach who shows it over this.
    pub(crate) fn way(&self, over: Over) -> Connecting {
        Connecting { over, certificate: (over == Over::Tls).then(|| self.certificate.clone()), own: None }
    }
}
