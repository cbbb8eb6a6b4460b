use std::sync::Arc;

use sluicegate_policy::SipCertificate;

/// What was proved over one connection, by whoever owns it. Datagrams prove nothing: each has to be looked at by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proofs {
    /// Who signed in over it last.
    pub user: Option<Arc<str>>,
    /// As which of the certificates that SIP servers at that address are known by the one counts that its peer has shown,
    /// with proof that it has the key.
    pub certificates: Vec<SipCertificate>,
}
