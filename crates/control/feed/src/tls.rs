//! TLS of the feed: version 1.3 only, both ends with self-signed certificates that the other recognises by SHA-256.
//!
//! Names, validity and chains of certificates mean nothing here: a certificate is known or it is not. That its sender
//! holds the key is proved by the handshake signature, which is checked as always.

use core::fmt;
use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime, pem::PemObject},
    server::{
        NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

use sluicegate_keys::{self as keys, KeyError};

/// The name that a gate asks for; certificates are recognised by their hash alone.
pub const SERVER_NAME: &str = "feed.sluicegate.invalid";
/// The application protocol (ALPN).
pub const PROTOCOL: &[u8] = b"sluicegate-feed/1";
/// The application protocol by which a frontend is sent what is sealed to it.
pub const SEALED_PROTOCOL: &[u8] = b"sluicegate-sealed/1";

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file with certificate and key cannot be used.
    #[error(transparent)]
    File(#[from] KeyError),
    /// The file holds no certificate or no key.
    #[error("{0} does not hold one certificate and one key in PEM; restore a copy, or move it away and join anew")]
    Content(String),
    /// No certificate could be made.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The certificate and key do not go together.
    #[error("certificate and key cannot be used: {0}")]
    Config(#[from] Error),
}

/// A certificate and its key. The key is erased when dropped, and never printed.
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Identity {
    /// A new one for the node `name`.
    ///
    /// # Errors
    /// Only if the system has no random bytes, or `name` cannot stand in a certificate.
    pub fn generate(name: &str) -> Result<Self, TlsError> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
        let mut params = rcgen::CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { certificate, key: PrivatePkcs8KeyDer::from(key.serialize_der()) })
    }

    /// The one in the file `path` (PEM, mode 0600), made for the node `name` on the first call.
    ///
    /// # Errors
    /// If the file cannot be read or created, is readable by others, or holds something else.
    pub fn load_or_create(path: &Path, name: &str) -> Result<Self, TlsError> {
        let content = keys::read_or_create(path, || Ok::<_, TlsError>(Self::generate(name)?.to_pem()))?;
        let wrong = || TlsError::Content(path.display().to_string());
        let certificate = CertificateDer::from_pem_slice(&content).map_err(|_| wrong())?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(&content).map_err(|_| wrong())?;
        Ok(Self { certificate, key })
    }

    /// SHA-256 of the certificate: what the other end pins.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.certificate)
    }

    fn to_pem(&self) -> Zeroizing<Vec<u8>> {
        let mut text = Zeroizing::new(String::with_capacity(keys::SECRET_LEN_MAX));
        pem_section(&mut text, "CERTIFICATE", &self.certificate);
        pem_section(&mut text, "PRIVATE KEY", self.key.secret_pkcs8_der());
        Zeroizing::new(core::mem::take(&mut *text).into_bytes())
    }

    fn chain_and_key(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (vec![self.certificate.clone()], PrivateKeyDer::Pkcs8(self.key.clone_key()))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity ")?;
        self.fingerprint().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// The other end of a feed, recognised by its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// SHA-256 of its certificate (DER).
    pub cert_hash: [u8; 32],
}

impl Peer {
    /// The peer that showed these certificates, as a finished handshake reports them.
    #[must_use]
    pub fn of(certificates: Option<&[CertificateDer<'_>]>) -> Option<Self> {
        certificates?.first().map(|certificate| Self { cert_hash: fingerprint(certificate) })
    }
}

/// Whom a frontend talks to at all. Called during the handshake, once the certificate is known: must not block.
///
/// A gate that has joined is always admitted. One that has not is admitted only while a join secret is open, and then has
/// to present it: an admitted peer is not yet a trusted one.
pub trait Admission: Send + Sync + fmt::Debug {
    /// Whether to go on with this peer.
    fn admits(&self, peer: &Peer) -> bool;
}

/// TLS for the frontend: every gate must show a certificate, prove its key and be admitted.
///
/// # Errors
/// If certificate and key do not go together.
pub fn server_config(identity: &Identity, admission: Arc<dyn Admission>) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = provider();
    let verifier = Arc::new(Admitted { admission, algorithms: provider.signature_verification_algorithms });
    let (chain, key) = identity.chain_and_key();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A resumed session would not be asked for its certificate again, and a gate may have been removed meanwhile.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// TLS for a gate that takes packets of agents: whoever connects shows no certificate, and proves itself within.
///
/// # Errors
/// If certificate and key do not go together.
pub fn tunnel_config(identity: &Identity) -> Result<Arc<ServerConfig>, TlsError> {
    to_anybody(identity, Vec::new())
}

/// TLS for a frontend that is sent what is sealed to it and signed: whoever connects shows no certificate.
///
/// # Errors
/// If certificate and key do not go together.
pub fn sealed_server_config(identity: &Identity) -> Result<Arc<ServerConfig>, TlsError> {
    to_anybody(identity, vec![SEALED_PROTOCOL.to_vec()])
}

fn to_anybody(identity: &Identity, protocols: Vec<Vec<u8>>) -> Result<Arc<ServerConfig>, TlsError> {
    let (chain, key) = identity.chain_and_key();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = protocols;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The other end of [`sealed_server_config`]. No certificate is pinned: what is sent is of use to its receiver alone, who
/// proves to have opened it.
///
/// # Errors
/// Only if TLS cannot be had at all.
pub fn sealed_client_config() -> Result<Arc<ClientConfig>, TlsError> {
    let provider = provider();
    let verifier = Arc::new(Pinned { pinned: None, algorithms: provider.signature_verification_algorithms });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![SEALED_PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// TLS for a gate that dials the frontend whose certificate has the SHA-256 `pinned`.
///
/// # Errors
/// If certificate and key do not go together.
pub fn client_config(identity: &Identity, pinned: [u8; 32]) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = provider();
    let verifier = Arc::new(Pinned { pinned: Some(pinned), algorithms: provider.signature_verification_algorithms });
    let (chain, key) = identity.chain_and_key();
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct Pinned {
    /// `None`: any.
    pinned: Option<[u8; 32]>,
    algorithms: WebPkiSupportedAlgorithms,
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
        if self.pinned.is_none_or(|pinned| fingerprint(end_entity).ct_eq(&pinned).into()) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12_refused())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[derive(Debug)]
struct Admitted {
    admission: Arc<dyn Admission>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Admitted {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.admission.admits(&Peer { cert_hash: fingerprint(end_entity) }) {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12_refused())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn tls12_refused() -> Error {
    Error::General("the feed speaks TLS 1.3 only".into())
}

/// One PEM section (RFC 7468).
fn pem_section(text: &mut String, label: &str, der: &[u8]) {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let encoded = Zeroizing::new(STANDARD.encode(der));
    text.push_str(&["-----BEGIN ", label, "-----\n"].concat());
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&["-----END ", label, "-----\n"].concat());
}
