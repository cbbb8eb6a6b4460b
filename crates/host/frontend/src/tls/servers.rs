//! SIP servers that speak TLS: how they are known, whether we dial them or they connect to us.

use std::{fmt, net::IpAddr, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
    sign::SingleCertAndKey,
};
use sluicegate_feed::tls::Peer;
use sluicegate_policy::{Policy, Service, ServiceKind, SipCertificate, SipPeer};
use sluicegate_sip::message::Transport;

/// A server of the policy, or a peer.
#[derive(Debug)]
struct Known {
    /// Where it listens for TLS, if it does.
    listens: Option<SocketAddr>,
    /// The peer that it is, which may connect from elsewhere.
    peer: Option<Arc<SipPeer>>,
    certificate: SipCertificate,
}

impl Known {
    fn of_server(service: &Service) -> Option<Self> {
        let port = service.sip_port_over(Transport::Tls).filter(|_| service.kind == ServiceKind::Sip)?;
        let listens = Some(SocketAddr::new(service.address, port));
        Some(Self { listens, peer: None, certificate: service.certificate_or_default() })
    }

    fn of_peer(peer: &Arc<SipPeer>) -> Option<Self> {
        let listens = peer.sip.map(|sip| sip.address);
        Some(Self { listens, peer: Some(Arc::clone(peer)), certificate: peer.certificate.clone()? })
    }

    fn is_at(&self, address: IpAddr) -> bool {
        let listens = self.listens.is_some_and(|listens| listens.ip() == address);
        listens || self.peer.as_ref().is_some_and(|peer| peer.is_at(address))
    }
}

/// The servers and peers that the policy names. All threads share it.
pub(crate) struct Servers {
    provider: Arc<CryptoProvider>,
    /// What those that we dial are shown.
    own: Arc<SingleCertAndKey>,
    /// Who signs certificates of servers, if anybody is believed.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    known: ArcSwap<Vec<Known>>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Servers {
    /// None yet. They are shown this certificate, and believed with one of these authorities.
    pub(crate) fn new(
        provider: Arc<CryptoProvider>,
        own: Arc<SingleCertAndKey>,
        authorities: Option<Arc<WebPkiServerVerifier>>,
    ) -> Self {
        Self { provider, own, authorities, known: ArcSwap::default() }
    }

    /// From now on the servers of this policy are all.
    pub(crate) fn know(&self, policy: &Policy) {
        let servers = policy.services().filter_map(|service| Known::of_server(service));
        self.known.store(Arc::new(servers.chain(policy.peers().filter_map(Known::of_peer)).collect()));
    }

    /// The certificate by which the server there is known. What two services say of one server has to be the same.
    pub(crate) fn certificate(&self, address: SocketAddr) -> Option<SipCertificate> {
        let known = self.known.load();
        let there = known.iter().filter(|known| known.listens == Some(address));
        let mut there = there.map(|known| &known.certificate);
        let first = there.next()?;
        there.all(|other| other == first).then(|| first.clone())
    }

    /// TLS with the server there, which has to show this certificate. `None` if no authority's would be believed.
    pub(crate) fn dial(&self, address: SocketAddr, certificate: &SipCertificate) -> Option<ClientConnection> {
        let (verifier, name): (Arc<dyn ServerCertVerifier>, _) = match certificate {
            SipCertificate::Name(name) => {
                let authorities = Arc::clone(self.authorities.as_ref()?);
                (authorities, ServerName::try_from(name.clone()).ok()?)
            }
            SipCertificate::Sha256(pinned) => {
                let provider = Arc::clone(&self.provider);
                (Arc::new(Pinned { pinned: *pinned, provider }), ServerName::from(address.ip()))
            }
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider));
        let builder = builder.with_safe_default_protocol_versions().ok()?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = builder.with_client_cert_resolver(Arc::clone(&self.own) as _);
        config.resumption = Resumption::disabled();
        ClientConnection::new(Arc::new(config), name).ok()
    }

    /// As which servers' certificates these count, of servers at `address` or of all: one that is good for a server that is
    /// dialled is as good for one that connects (RFC 5922 section 7).
    pub(crate) fn count_as(&self, shown: &[CertificateDer<'_>], address: Option<IpAddr>) -> Vec<SipCertificate> {
        let Some((first, issuers)) = shown.split_first() else { return Vec::new() };
        let known = self.known.load();
        let is_meant = |known: &&Known| address.is_none_or(|address| known.is_at(address));
        let mut found: Vec<SipCertificate> = Vec::new();
        for Known { certificate, .. } in known.iter().filter(is_meant) {
            if !found.contains(certificate) && self.is(certificate, first, issuers) {
                found.push(certificate.clone());
            }
        }
        found
    }

    fn is(&self, certificate: &SipCertificate, first: &CertificateDer<'_>, issuers: &[CertificateDer<'_>]) -> bool {
        match certificate {
            SipCertificate::Sha256(pinned) => is_pinned(first, pinned),
            SipCertificate::Name(name) => {
                let verify = |authorities: &Arc<WebPkiServerVerifier>| {
                    let name = ServerName::try_from(name.as_str()).ok()?;
                    authorities.verify_server_cert(first, issuers, &name, &[], UnixTime::now()).ok()
                };
                self.authorities.as_ref().and_then(verify).is_some()
            }
        }
    }
}

fn is_pinned(certificate: &CertificateDer<'_>, pinned: &[u8; 32]) -> bool {
    Peer::of(Some(std::slice::from_ref(certificate))).is_some_and(|peer| peer.cert_hash == *pinned)
}

/// The server with one certificate, whatever stands in it.
#[derive(Debug)]
struct Pinned {
    pinned: [u8; 32],
    provider: Arc<CryptoProvider>,
}

/// What is the same of all who check certificates: that their sender has the key.
macro_rules! check_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider().signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider().signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

impl Pinned {
    fn provider(&self) -> &CryptoProvider {
        &self.provider
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_right = is_pinned(end_entity, &self.pinned);
        is_right.then(ServerCertVerified::assertion).ok_or(unknown())
    }

    check_signatures!();
}

const fn unknown() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

/// Who may connect to us: everybody, or whoever shows a certificate that counts, be it a client's or a server's.
#[derive(Debug)]
pub(crate) struct Clients {
    /// Whose certificates count, if each has to show one.
    pub(crate) demanded: Option<Arc<dyn ClientCertVerifier>>,
    pub(crate) servers: Arc<Servers>,
}

impl Clients {
    fn provider(&self) -> &CryptoProvider {
        &self.servers.provider
    }
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.demanded.is_some() || !self.servers.known.load().is_empty()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.demanded.is_some()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Where none is demanded, one that nobody knows is as good as none.
        let Some(demanded) = &self.demanded else { return Ok(ClientCertVerified::assertion()) };
        demanded.verify_client_cert(end_entity, intermediates, now).or_else(|error| {
            let shown: Vec<_> = std::iter::once(end_entity).chain(intermediates).cloned().collect();
            let is_server = !self.servers.count_as(&shown, None).is_empty();
            is_server.then(ClientCertVerified::assertion).ok_or(error)
        })
    }

    check_signatures!();
}
